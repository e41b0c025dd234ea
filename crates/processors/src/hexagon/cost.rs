//! The work of products on HMX, by shape, and the time that it takes by the rates of a chip. No device is needed.
//!
//! The work is the device program's. Its division into passes, groups and steps is that of hexagon/hmx_product.c, and
//! packets of the vector threads are those of the compiled loops, as qemu counts them (module `packets`). A test
//! compares both with what the program executes. Rates were measured by others, on phones, or are guesses; the caller
//! brings them ([`Rates`]).

use super::protocol::{TILE_ROWS, sum_stride};

/// Rows and columns of a tile of HMX, and features of a crouton.
const ROWS: usize = 64;
const COLUMNS: usize = 32;
const FEATURES: usize = 32;
/// Bytes of a crouton and of a plane, and of a tile of weights.
const CROUTON: usize = 2048;
const WEIGHTS: usize = 1024;
/// Planes of a sum.
const PLANES: usize = 4;
/// Bytes of the tables, rounded up to a crouton.
const TABLES: usize = 2048;
/// Blocks of rows of a pass, and tiles of a group, at most: `HMX_BLOCKS` and `TILES_AT_ONCE` of the device program.
const MAX_BLOCKS: usize = 4;
const MAX_GROUP: usize = 16;
/// Boundaries of VTCM that no operand may cross.
const CUT: usize = 256 << 10;
/// Croutons that one instruction multiplies, at most.
const MAX_CROUTONS: usize = 32;
/// Bytes of an i32.
const NUMBER: usize = 4;

/// Packets of the compiled loops of the device program, by clang 19: least squares over the counts of qemu for the products
/// of `tests/hexagon/costs.rs`.
mod packets {
    /// For each 8 bytes of a row: the copy, its hash, and packing to croutons.
    pub const WORD: f64 = 6.47;
    /// For each tile of 8 rows, in addition.
    pub const ROWS: f64 = 43.25;
    /// For each tile of weights: copying to VTCM.
    pub const WEIGHTS: f64 = 7.97;
    /// For each group of tiles of weights of one column tile, in addition.
    pub const COPY: f64 = 42.05;
    /// For each 4 rows of 32 columns: combining planes to sums.
    pub const COMBINE: f64 = 10.27;
    /// For each tile of 64 rows by 32 columns, in addition.
    pub const TILE: f64 = 11.44;
    /// For each row: the check of its sums.
    pub const CHECK: f64 = 13.93;
    /// For each step, on the calling thread.
    pub const STEP: f64 = 228.9;
    /// For each column: the hash of the head of an image.
    pub const COLUMN: f64 = 2.41;
    /// For each run.
    pub const RUN: f64 = 1464.0;
}

/// A product: rows by the weights of one or more layers that read the same input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Product {
    /// Rows of the input.
    pub rows: usize,
    /// Features of the input.
    pub in_features: usize,
    /// Channels of all layers together.
    pub out_features: usize,
}

/// Work that happens at once: the unit multiplies, and the vector threads do their part.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Step {
    /// Tiles of 64 by 32 by 32 that HMX multiplies.
    pub tiles: usize,
    /// Instructions of HMX, of which a product is two.
    pub instructions: usize,
    /// Planes of 64 by 32 bytes that HMX stores.
    pub planes: usize,
    /// Packets of the busiest vector thread, and of the calling thread alone.
    pub packets: f64,
    /// Bytes that are read from memory and written to it.
    pub bytes: usize,
}

/// Rates of a chip.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// Multiply-adds of INT8 per second of HMX, its operands in VTCM.
    pub multiplies: f64,
    /// Seconds for a plane to be stored.
    pub plane: f64,
    /// Packets per second of one vector thread.
    pub packets: f64,
    /// Bytes per second of memory.
    pub memory: f64,
}

/// Seconds of a product, and those of its parts alone. The parts overlap.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Seconds {
    /// All steps, each as long as its longest part.
    pub all: f64,
    /// HMX: products and stores.
    pub unit: f64,
    /// The busiest vector thread.
    pub vectors: f64,
    /// Memory.
    pub memory: f64,
}

/// Division of VTCM for a pass.
struct Plan {
    blocks: usize,
    croutons: usize,
    /// Tiles of 32 columns.
    tiles: usize,
    /// Tiles of a group.
    group: usize,
}

impl Plan {
    /// Returns the plan for a number of blocks of rows; `None` if `near` bytes of VTCM are too few.
    fn new(product: &Product, blocks: usize, near: usize) -> Option<Self> {
        let croutons = product.in_features.div_ceil(FEATURES);
        let tiles = sum_stride(product.out_features) / COLUMNS;
        let left = near.checked_sub(TABLES + blocks * croutons * CROUTON)? / 2 / CROUTON * CROUTON;
        let tile = croutons * WEIGHTS + blocks * PLANES * CROUTON;
        let group = left.saturating_sub(CROUTON) / tile;
        (group > 0).then_some(Self {
            blocks,
            croutons,
            tiles,
            group: group.min(MAX_GROUP).min(tiles),
        })
    }

    /// Returns the packets of HMX that multiply a group: no operand crosses a boundary. VTCM begins at one.
    fn products_of(&self, group: usize) -> usize {
        let planes = self.group * self.blocks * PLANES * CROUTON;
        let weights = (self.group * self.croutons * WEIGHTS).next_multiple_of(CROUTON);
        let first = TABLES + self.blocks * self.croutons * CROUTON;
        let weights = first + planes + group % 2 * (weights + planes);
        let (blocks, croutons) = (self.blocks, self.croutons);
        let products = (0..self.tiles_of(group)).flat_map(|tile| {
            let of_tile = weights + tile * croutons * WEIGHTS;
            (0..blocks)
                .map(move |block| products(TABLES + block * croutons * CROUTON, of_tile, croutons))
        });
        products.sum()
    }

    /// Returns the tiles of a group, counted from 0; 0 after the last group.
    fn tiles_of(&self, group: usize) -> usize {
        self.tiles
            .saturating_sub(group * self.group)
            .min(self.group)
    }
}

impl Product {
    /// Returns the steps of a run by the given number of vector threads, with `near` bytes of VTCM. Returns `None` if the
    /// product does not fit into VTCM: the device program then multiplies on HVX.
    pub fn steps(&self, threads: usize, near: usize) -> Option<Vec<Step>> {
        let most = (1..=MAX_BLOCKS)
            .rev()
            .find(|blocks| Plan::new(self, *blocks, near).is_some())?;
        let columns = sum_stride(self.out_features);
        let mut steps = vec![Step {
            packets: packets::RUN + packets::COLUMN * columns as f64,
            ..Step::default()
        }];
        let mut row = 0;
        while row < self.rows {
            let rows = (self.rows - row).min(most * ROWS);
            let plan = Plan::new(self, rows.div_ceil(ROWS), near)?;
            steps.push(self.reading(rows, threads));
            let groups = plan.tiles.div_ceil(plan.group);
            steps.extend((0..groups + 2).map(|number| step(&plan, number, (rows, threads))));
            steps.push(Step {
                packets: packets::CHECK * rows as f64,
                ..Step::default()
            });
            row += rows;
        }
        Some(steps)
    }

    /// Returns the step that copies, hashes and packs the input of a pass.
    fn reading(&self, rows: usize, threads: usize) -> Step {
        let features = self.in_features.next_multiple_of(4 * FEATURES);
        let tile = packets::ROWS + packets::WORD * (TILE_ROWS * features / 8) as f64;
        let tiles = rows.div_ceil(TILE_ROWS);
        Step {
            packets: tiles.div_ceil(threads) as f64 * tile,
            bytes: tiles * TILE_ROWS * features,
            ..Step::default()
        }
    }
}

/// Returns the packets that multiply `croutons` at the offset `activations` by the weights at another.
fn products(mut activations: usize, mut weights: usize, mut croutons: usize) -> usize {
    let mut packets = 0;
    while croutons > 0 {
        let before_cut = |offset: usize, bytes: usize| (CUT - offset % CUT) / bytes;
        let count = croutons
            .min(MAX_CROUTONS)
            .min(before_cut(activations, CROUTON))
            .min(before_cut(weights, WEIGHTS));
        activations += count * CROUTON;
        weights += count * WEIGHTS;
        croutons -= count;
        packets += 1;
    }
    packets
}

/// Returns a step of a pass: the threads copy the weights of group `number` and combine the planes of the group two
/// before it, while HMX multiplies the one before it.
fn step(plan: &Plan, number: usize, (rows, threads): (usize, usize)) -> Step {
    let copied = plan.tiles_of(number);
    let multiplied = number
        .checked_sub(1)
        .map_or(0, |group| plan.tiles_of(group));
    let combined = number
        .checked_sub(2)
        .map_or(0, |group| plan.tiles_of(group));
    let outputs = multiplied * plan.blocks;
    let copy = packets::COPY + packets::WEIGHTS * plan.croutons as f64;
    let combine = packets::TILE * plan.blocks as f64 + packets::COMBINE * rows.div_ceil(4) as f64;
    let busiest = |tiles: usize| tiles.div_ceil(threads) as f64;
    Step {
        tiles: outputs * plan.croutons,
        // Clearing, products, and a table and a store for each plane.
        instructions: outputs * (1 + 2 * PLANES)
            + 2 * number
                .checked_sub(1)
                .map_or(0, |group| plan.products_of(group)),
        planes: outputs * PLANES,
        packets: packets::STEP + copy * busiest(copied) + combine * busiest(combined),
        bytes: copied * plan.croutons * WEIGHTS + combined * rows * COLUMNS * NUMBER,
    }
}

/// Returns the steps of one tile of one crouton, one after the other on one thread: the product with its planes, and their
/// combination.
pub fn one_tile() -> [Step; 2] {
    let on_unit = Step {
        tiles: 1,
        planes: PLANES,
        ..Step::default()
    };
    let combined = Step {
        packets: packets::TILE + packets::COMBINE * (ROWS / 4) as f64,
        ..Step::default()
    };
    [on_unit, combined]
}

impl Rates {
    /// Returns the seconds of some steps, one after the other.
    pub fn seconds(&self, steps: &[Step]) -> Seconds {
        let mut sum = Seconds::default();
        for step in steps {
            let products = (step.tiles * ROWS * COLUMNS * FEATURES) as f64;
            let unit = products / self.multiplies + step.planes as f64 * self.plane;
            let vectors = step.packets / self.packets;
            let memory = step.bytes as f64 / self.memory;
            sum.unit += unit;
            sum.vectors += vectors;
            sum.memory += memory;
            sum.all += unit.max(vectors).max(memory);
        }
        sum
    }
}
