//! The forward pass of a vision encoder. Its operators are those of texts: attention without an order, which never
//! stores more scores than those of a tile, linear layers, norms, RoPE. The feed-forward runs on tiles of rows, so that
//! memory grows with patches times the width of the residual stream.

use std::ops::Range;

use triad_kernels::activation::{Activation, activate, activate_and_multiply, add};
use triad_kernels::attention::{Precision, Shape, attention_within};
use triad_kernels::chunks::{chunks_mut, for_each_chunk};
use triad_kernels::rope::{Angles, Pairing, rope};
use triad_kernels::{OutputMut, Phase, matmul};
use triad_model::vision::{Positions, VisionActivation};

use super::cells::Cells;
use super::weights::{Block, Dense};
use super::{Pixels, VisionModel};
use crate::cancel::Cancel;
use crate::error::{Error, Result};

/// Rows of one task of an elementwise operator.
const TASK_ROWS: usize = 16;
/// Rows of the feed-forward that are computed at once.
const TILE_ROWS: usize = 1024;
/// The factor in the sigmoid of `QuickGelu`.
const QUICK_GELU: f32 = 1.702;

impl VisionModel {
    /// Computes the rows of a view on the installed threads: `[rows, width · (1 + deepstack)]`, each row followed by those
    /// that are added after the first blocks of the text model. Rows are in reading order.
    ///
    /// # Errors
    /// If the encoder cannot read views of this size, the number of pixels is another, or one is not finite; if `cancel` is
    /// set.
    pub(crate) fn encode(&self, pixels: Pixels, cancel: &Cancel) -> Result<Vec<f32>> {
        let description = &self.description;
        let [high, wide] = description.cells(pixels.height, pixels.width)?;
        let expected = 3 * pixels.height * pixels.width;
        if pixels.planes.len() != expected {
            return Err(Error::Picture(format!(
                "a view of {} × {} pixels has {} numbers, expected {expected}",
                pixels.width,
                pixels.height,
                pixels.planes.len()
            )));
        }
        if pixels.planes.iter().any(|value| !value.is_finite()) {
            return Err(Error::Picture(
                "a view has pixels that are not finite".into(),
            ));
        }
        let cells = Cells::new(description, [high, wide]);
        let mut x = self.embed(pixels, &cells);
        let patches = cells.count() * description.hidden;
        let stages = 1 + description.deepstack.len();
        let mut rows = vec![0.0; high * wide * stages * description.width];
        let mut scratch = Scratch::default();
        let angles = self.angles(&cells);
        let whole = 0..x.len() / description.hidden;
        let windows = cells.windows_of_patches();
        for (index, block) in self.weights.blocks.iter().enumerate() {
            cancel.check()?;
            let is_whole = description
                .windows
                .as_ref()
                .is_none_or(|windows| windows.whole[index]);
            let reach = if is_whole {
                std::slice::from_ref(&whole)
            } else {
                &windows[..]
            };
            self.block(block, &mut x, (reach, &angles), &mut scratch, cancel)?;
            let stage = description.deepstack.iter().position(|it| *it == index);
            if let Some(stage) = stage {
                self.project(stage + 1, &x[..patches], &cells, wide, &mut rows);
            }
        }
        if let Some(norm) = &self.weights.output_norm {
            let given = std::mem::take(&mut x);
            x.resize(given.len(), 0.0);
            norm.normalize(&given, &mut x);
        }
        self.project(0, &x[..patches], &cells, wide, &mut rows);
        match rows.iter().all(|value| value.is_finite()) {
            true => Ok(rows),
            false => Err(Error::NotFinite),
        }
    }

    /// Returns the first value of the residual stream `[rows, hidden]`; that of the class token is the last row.
    fn embed(&self, pixels: Pixels, cells: &Cells) -> Vec<f32> {
        let (description, weights) = (&self.description, &self.weights);
        let (side, hidden) = (description.patch, description.hidden);
        let (count, of_patch) = (cells.count(), 3 * side * side);
        let mut cut = vec![0.0; count * of_patch];
        let plane = pixels.height * pixels.width;
        for ([y, x], patch) in cells.patches().zip(cut.chunks_exact_mut(of_patch)) {
            for (row, out) in patch.chunks_exact_mut(side).enumerate() {
                let (channel, row) = (row / side, row % side);
                let first = channel * plane + (y * side + row) * pixels.width + x * side;
                out.copy_from_slice(&pixels.planes[first..first + side]);
            }
        }
        let mut x = vec![0.0; count * hidden];
        multiply(&weights.patch, &cut, &mut x);
        drop(cut);
        self.add_positions(cells, pixels, &mut x);
        if let Some(class) = &weights.class {
            x.extend_from_slice(class);
        }
        match &weights.input_norm {
            None => x,
            Some(norm) => {
                let mut normed = vec![0.0; x.len()];
                norm.normalize(&x, &mut normed);
                normed
            }
        }
    }

    fn add_positions(&self, cells: &Cells, pixels: Pixels, x: &mut [f32]) {
        let (table, hidden) = (&self.weights.positions[..], self.description.hidden);
        let row = |y: usize, x: usize, side: usize| &table[(y * side + x) * hidden..][..hidden];
        let grid = [pixels.height, pixels.width].map(|size| size / self.description.patch);
        let rows = cells.patches().zip(x.chunks_exact_mut(hidden));
        match self.description.positions {
            Positions::None => {}
            Positions::Fixed { side } => rows.for_each(|([y, x], out)| add(out, row(y, x, side))),
            Positions::Nearest { side } => {
                let [down, across] = grid.map(|size| nearest(size, side));
                rows.for_each(|([y, x], out)| add(out, row(down[y], across[x], side)));
            }
            Positions::Bilinear { side } | Positions::Resized { side } => {
                let is_resized = matches!(self.description.positions, Positions::Resized { .. });
                let [down, across] = grid.map(|size| {
                    if is_resized {
                        resized(size, side)
                    } else {
                        between(size, side)
                    }
                });
                rows.for_each(|([y, x], out)| {
                    for (y, of_y) in &down[y] {
                        for (x, of_x) in &across[x] {
                            let row = row(*y, *x, side).iter();
                            let factor = of_y * of_x;
                            out.iter_mut()
                                .zip(row)
                                .for_each(|(out, x)| *out += factor * x);
                        }
                    }
                });
            }
        }
    }

    /// Returns the angles of all rows, if the encoder has RoPE.
    fn angles(&self, cells: &Cells) -> Option<Angles> {
        let base = f64::from(self.description.rope_base?);
        let quarter = self.description.head_dim() / 4;
        let frequency = |pair: usize| base.powf(-(pair as f64) / quarter as f64) as f32;
        let frequencies: Vec<f32> = (0..2 * quarter).map(|it| frequency(it % quarter)).collect();
        let axes: Vec<u8> = (0..2 * quarter)
            .map(|pair| u8::from(pair >= quarter))
            .collect();
        let mut angles = Angles::default();
        let positions = cells.patches().map(|[y, x]| [y, x, 0]);
        angles.fill_by_axis(positions, &frequencies, &axes, 1.0);
        Some(angles)
    }

    fn block(
        &self,
        block: &Block,
        x: &mut [f32],
        (reach, angles): (&[Range<usize>], &Option<Angles>),
        scratch: &mut Scratch,
        cancel: &Cancel,
    ) -> Result<()> {
        let (hidden, heads) = (self.description.hidden, self.description.heads);
        let (rows, head_dim) = (x.len() / hidden, self.description.head_dim());
        let Scratch {
            normed,
            joined,
            parts,
            attended,
            ..
        } = scratch;
        normed.resize(x.len(), 0.0);
        attended.resize(x.len(), 0.0);
        parts.iter_mut().for_each(|part| part.resize(x.len(), 0.0));
        block.attention_norm.normalize(x, normed);
        match &block.query_key_value[..] {
            [layer] => {
                joined.resize(3 * x.len(), 0.0);
                multiply(layer, normed, joined);
                for (at, part) in parts.iter_mut().enumerate() {
                    let joined = joined.chunks_exact(3 * hidden);
                    for (part, joined) in part.chunks_exact_mut(hidden).zip(joined) {
                        part.copy_from_slice(&joined[at * hidden..(at + 1) * hidden]);
                    }
                }
            }
            layers => {
                for (layer, part) in layers.iter().zip(parts.iter_mut()) {
                    multiply(layer, normed, part);
                }
            }
        }
        cancel.check()?;
        let [queries, keys, values] = parts;
        if let Some(angles) = angles {
            for x in [&mut *queries, &mut *keys] {
                for_each_chunk(chunks_mut(x, TASK_ROWS * hidden), 1, |task, x| {
                    let first = task * TASK_ROWS;
                    rope(x, head_dim, heads, angles, first, Pairing::Halves);
                });
            }
        }
        let is_float = block.query_key_value.iter().all(|it| it.weight.is_float());
        let shape = Shape {
            heads,
            kv_heads: heads,
            head_dim,
            scale: (head_dim as f32).sqrt().recip(),
            window: None,
            soft_cap: None,
            sinks: None,
            precision: match is_float {
                true => Precision::Exact,
                false => Precision::Fast,
            },
        };
        debug_assert_eq!(reach.last().map(|range| range.end), Some(rows));
        attention_within(queries, (&keys[..], &values[..]), reach, &shape, attended);
        cancel.check()?;
        multiply(&block.attention_output, attended, normed);
        add_scaled(x, normed, block.attention_scale.as_deref());
        block.feed_forward_norm.normalize(x, normed);
        for (x, normed) in x
            .chunks_mut(TILE_ROWS * hidden)
            .zip(normed.chunks(TILE_ROWS * hidden))
        {
            cancel.check()?;
            self.feed_forward(block, normed, &mut scratch.tile);
            add_scaled(x, &scratch.tile.out, block.feed_forward_scale.as_deref());
        }
        Ok(())
    }

    /// Computes the feed-forward of `normed[rows, hidden]` into `tile.out`.
    fn feed_forward(&self, block: &Block, normed: &[f32], tile: &mut Tile) {
        let inner = normed.len() / self.description.hidden * self.description.inner;
        let activation = self.description.activation;
        tile.up.resize(inner, 0.0);
        tile.out.resize(normed.len(), 0.0);
        multiply(&block.up, normed, &mut tile.up);
        match &block.gate {
            None => {
                activate_all(&mut tile.up, activation);
                multiply(&block.down, &tile.up, &mut tile.out);
            }
            Some(gate) => {
                tile.gate.resize(inner, 0.0);
                multiply(gate, normed, &mut tile.gate);
                gate_all(&mut tile.gate, &tile.up, activation);
                multiply(&block.down, &tile.gate, &mut tile.out);
            }
        }
    }

    /// Writes the rows of one projector for the patches `x[patches, hidden]` to their columns of `out`.
    fn project(&self, stage: usize, x: &[f32], cells: &Cells, wide: usize, out: &mut [f32]) {
        let (description, projector) =
            (&self.description.projector, &self.weights.projectors[stage]);
        let (hidden, width) = (self.description.hidden, self.description.width);
        let described = self.description.projector_norm(stage);
        let after_merge = described.is_some_and(|norm| norm.after_merge);
        let of_cell = description.merge * description.merge;
        let normed = |x: &[f32]| match &projector.norm {
            None => x.to_vec(),
            Some(norm) => {
                let mut normed = vec![0.0; x.len()];
                norm.normalize(x, &mut normed);
                normed
            }
        };
        let mut merged = if after_merge { x.to_vec() } else { normed(x) };
        if description.mean {
            let factor = 1.0 / of_cell as f32;
            let mut means = vec![0.0; merged.len() / of_cell];
            let cells = merged.chunks_exact(of_cell * hidden);
            for (mean, cell) in means.chunks_exact_mut(hidden).zip(cells) {
                cell.chunks_exact(hidden).for_each(|patch| add(mean, patch));
                mean.iter_mut().for_each(|value| *value *= factor);
            }
            merged = means;
        }
        // The patches of a cell are next to each other: joined, they are a row.
        if after_merge {
            merged = normed(&merged);
        }
        if let Some(first) = &projector.first {
            let mut inner = vec![0.0; cells.cells.len() * first.weight.out_features()];
            multiply(first, &merged, &mut inner);
            activate_all(&mut inner, description.activation);
            merged = inner;
        }
        let mut rows = vec![0.0; cells.cells.len() * width];
        multiply(&projector.last, &merged, &mut rows);
        let stages = self.weights.projectors.len();
        for ([y, x], row) in cells.cells.iter().zip(rows.chunks_exact(width)) {
            let first = ((y * wide + x) * stages + stage) * width;
            out[first..first + width].copy_from_slice(row);
        }
    }
}

/// Buffers of a forward pass.
#[derive(Default)]
struct Scratch {
    normed: Vec<f32>,
    joined: Vec<f32>,
    /// Queries, keys and values.
    parts: [Vec<f32>; 3],
    attended: Vec<f32>,
    tile: Tile,
}

/// Buffers of some rows in the feed-forward.
#[derive(Default)]
struct Tile {
    gate: Vec<f32>,
    up: Vec<f32>,
    out: Vec<f32>,
}

fn multiply(layer: &Dense, x: &[f32], out: &mut [f32]) {
    let out = OutputMut::new(out, layer.weight.out_features());
    let bias = layer.bias.as_deref();
    matmul(x, layer.weight.view(), bias, Phase::Prefill, out);
}

/// Adds `y[rows, channels]` to `x`, times a factor for each channel.
fn add_scaled(x: &mut [f32], y: &[f32], scale: Option<&[f32]>) {
    let Some(scale) = scale else {
        return add(x, y);
    };
    let rows = x
        .chunks_exact_mut(scale.len())
        .zip(y.chunks_exact(scale.len()));
    for (x, y) in rows {
        for ((x, y), scale) in x.iter_mut().zip(y).zip(scale) {
            *x += y * scale;
        }
    }
}

/// Returns the kernel of an activation, and the factor on its input that its output is divided by.
fn kernel(activation: VisionActivation) -> (Activation, f32) {
    match activation {
        VisionActivation::Gelu => (Activation::Gelu, 1.0),
        VisionActivation::GeluTanh => (Activation::GeluTanh, 1.0),
        VisionActivation::Silu => (Activation::Silu, 1.0),
        // x · sigmoid(c · x) is silu(c · x) / c.
        VisionActivation::QuickGelu => (Activation::Silu, QUICK_GELU),
    }
}

fn activate_all(x: &mut [f32], activation: VisionActivation) {
    let (kernel, factor) = kernel(activation);
    for_each_chunk(chunks_mut(x, ELEMENTS), 1, |_, x| {
        if factor != 1.0 {
            x.iter_mut().for_each(|value| *value *= factor);
        }
        activate(x, kernel);
        if factor != 1.0 {
            x.iter_mut().for_each(|value| *value /= factor);
        }
    });
}

fn gate_all(gate: &mut [f32], up: &[f32], activation: VisionActivation) {
    let (kernel, factor) = kernel(activation);
    for_each_chunk(chunks_mut(gate, ELEMENTS), 1, |task, gate| {
        let up = &up[task * ELEMENTS..][..gate.len()];
        if factor == 1.0 {
            return activate_and_multiply(gate, up, kernel);
        }
        gate.iter_mut().for_each(|value| *value *= factor);
        activate(gate, kernel);
        gate.iter_mut()
            .zip(up)
            .for_each(|(gate, up)| *gate = *gate / factor * up);
    });
}

/// Elements of one task of an activation.
const ELEMENTS: usize = 1 << 14;

/// Returns for each of `size` patches the row of a table with `side`, as `transformers` computes it in f32: the number of
/// boundaries at multiples of 1 / side that are not above the patch's relative place.
fn nearest(size: usize, side: usize) -> Vec<usize> {
    let step = 1.0 / side as f64;
    let boundaries = ((1.0 - step) / step).ceil() as usize;
    let boundaries: Vec<f32> = (0..boundaries)
        .map(|index| (step + index as f64 * step) as f32)
        .collect();
    let place = |patch: usize| (patch as f32 * (1.0 / size as f32)).min((1.0 - 1e-6) as f32);
    let below = |place: f32| boundaries.partition_point(|boundary| *boundary <= place);
    (0..size)
        .map(|patch| below(place(patch)).min(side - 1))
        .collect()
}

/// Returns for each of `size` patches the two rows of a table with `side` that it is between, and their factors. The first
/// and the last patch are at the first and the last row.
fn between(size: usize, side: usize) -> Vec<Vec<(usize, f32)>> {
    (0..size)
        .map(|patch| {
            let place = patch as f32 * (side - 1) as f32 / size.saturating_sub(1).max(1) as f32;
            let low = (place as usize).min(side - 1);
            let factor = place - low as f32;
            let high = (low + 1).min(side - 1);
            vec![(low, 1.0 - factor), (high, factor)]
        })
        .collect()
}

/// Returns for each of `size` patches the rows of a table with `side` that it is made of when the table is resized, and
/// their factors: a triangle around the patch's place, as wide as two rows or, if the table has more, two patches.
fn resized(size: usize, side: usize) -> Vec<Vec<(usize, f32)>> {
    let scale = side as f64 / size as f64;
    let support = scale.max(1.0);
    (0..size)
        .map(|patch| {
            let center = scale * (patch as f64 + 0.5);
            let first = (center - support + 0.5).max(0.0) as usize;
            let end = ((center + support + 0.5) as usize).min(side);
            let factor = |row: usize| {
                let distance = (row as f64 - center + 0.5).abs() / support;
                (1.0 - distance).max(0.0)
            };
            let total: f64 = (first..end).map(factor).sum();
            (first..end)
                .map(|row| (row, (factor(row) / total) as f32))
                .collect()
        })
        .collect()
}
