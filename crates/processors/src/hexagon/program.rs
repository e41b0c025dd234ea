//! A subgraph in the device's memory.

use std::sync::{Arc, Mutex};

use triad_kernels::OutputMut;
use triad_kernels::activation::{activate, activate_and_multiply};
use triad_kernels::int8::{QuantizedRows, QuantizedView, scale_sums};
use triad_kernels::lock;

use super::connection::Connection;
use super::image;
use super::options::Between;
use super::protocol::{
    ALIGNMENT, HEADER, Operation, STATUS_SUM, TILE_ROWS, hash, reason, sum_stride, words,
};
use super::unit::Unit;
use crate::device::{Program, ProgramShapes};
use crate::error::{Error, Result};
use crate::subgraph::{DeviceSubgraph, FeedForward, Layer};
use crate::window::Reservation;

/// Bytes of an f32 or i32 number.
const NUMBER: usize = 4;
/// Features that a lane sums at once.
const QUAD: usize = 4;

/// The connection that all programs of a device share.
pub(super) type SharedConnection = Arc<Mutex<Connection>>;

pub(super) struct HexagonProgram {
    shapes: ProgramShapes,
    body: Body,
    _window: Reservation,
}

enum Body {
    Linear(Loaded, Vec<Arc<dyn Layer>>),
    FeedForward(Loaded, FeedForward),
    Apart(Box<Apart>),
}

/// A feed-forward whose matmuls run on the device, while the CPU computes the part between them.
struct Apart {
    feed_forward: FeedForward,
    first: Loaded,
    down: Loaded,
    up: Vec<f32>,
    gate: Vec<f32>,
    inner: QuantizedRows,
}

impl HexagonProgram {
    pub fn new(
        connection: &SharedConnection,
        subgraph: &DeviceSubgraph,
        (rows, between): (usize, Between),
        window: Reservation,
    ) -> Result<Self> {
        let shapes = ProgramShapes::new(subgraph, rows)?;
        let body = match subgraph {
            DeviceSubgraph::Linear(linear) => Body::Linear(
                Loaded::linear(connection, &references(&linear.layers))?,
                linear.layers.clone(),
            ),
            DeviceSubgraph::FeedForward(feed_forward)
                if feed_forward.fixed_point
                    || (between == Between::Device && image::has(feed_forward.activation)) =>
            {
                let down = feed_forward.down.weight();
                let inner = if feed_forward.return_inner {
                    down.in_features
                } else {
                    0
                };
                let unit = lock(connection)
                    .unit()
                    .for_features([shapes.in_features, down.in_features]);
                let image = image::feed_forward(feed_forward, unit);
                let loaded = Loaded::new(
                    connection,
                    (image, unit),
                    shapes.in_features,
                    down.out_features,
                    inner,
                )?;
                Body::FeedForward(loaded, feed_forward.clone())
            }
            DeviceSubgraph::FeedForward(feed_forward) => {
                let first: Vec<_> = [Some(&feed_forward.up), feed_forward.gate.as_ref()]
                    .into_iter()
                    .flatten()
                    .collect();
                let first: Vec<_> = first.into_iter().cloned().collect();
                Body::Apart(Box::new(Apart {
                    first: Loaded::linear(connection, &references(&first))?,
                    down: Loaded::linear(connection, &[&*feed_forward.down])?,
                    feed_forward: feed_forward.clone(),
                    up: Vec::new(),
                    gate: Vec::new(),
                    inner: QuantizedRows::default(),
                }))
            }
        };
        Ok(Self {
            shapes,
            body,
            _window: window,
        })
    }
}

fn references(layers: &[Arc<dyn Layer>]) -> Vec<&dyn Layer> {
    layers.iter().map(|layer| &**layer).collect()
}

impl Program for HexagonProgram {
    fn run(&mut self, input: QuantizedView, outputs: &mut [OutputMut]) -> Result<()> {
        self.shapes.check(input, outputs)?;
        match &mut self.body {
            Body::Linear(loaded, layers) => {
                let sums = loaded.run(input)?;
                let mut first = 0;
                for (layer, out) in layers.iter().zip(outputs) {
                    let features = layer.weight().out_features;
                    sums.scale(first, &**layer, |row| input.scales()[row], out.reborrow());
                    first += features;
                }
            }
            Body::FeedForward(loaded, feed_forward) => {
                let sums = loaded.run(input)?;
                let is_nan = |row: usize| input.scales()[row].is_nan() || sums.not_finite[row];
                let scale = |row: usize| {
                    if is_nan(row) {
                        f32::NAN
                    } else {
                        feed_forward.inner_scale
                    }
                };
                let (out, inner) = outputs
                    .split_first_mut()
                    .expect("a feed-forward has an output");
                sums.scale(0, &*feed_forward.down, scale, out.reborrow());
                if let Some(inner) = inner.first_mut() {
                    let width = inner.columns();
                    inner.copy_from_rows(&sums.inner, width);
                    let nan = (0..input.rows()).filter(|row| input.scales()[*row].is_nan());
                    nan.for_each(|row| inner.row_mut(row).fill(f32::NAN));
                }
            }
            Body::Apart(apart) => apart.run(input, outputs)?,
        }
        Ok(())
    }
}

impl Apart {
    fn run(&mut self, input: QuantizedView, outputs: &mut [OutputMut]) -> Result<()> {
        let FeedForward {
            up,
            gate,
            activation,
            inner_scale,
            smoothing,
            down,
            ..
        } = &self.feed_forward;
        let (width, scale) = (down.weight().in_features, |row: usize| input.scales()[row]);
        let sums = self.first.run(input)?;
        let product = |first, layer: &dyn Layer, out: &mut Vec<f32>| {
            out.resize(input.rows() * width, 0.0);
            sums.scale(first, layer, scale, OutputMut::new(out, width));
        };
        product(0, &**up, &mut self.up);
        let inner = match gate {
            Some(gate) => {
                product(width, &**gate, &mut self.gate);
                activate_and_multiply(&mut self.gate, &self.up, *activation);
                &self.gate
            }
            None => {
                activate(&mut self.up, *activation);
                &self.up
            }
        };
        self.inner
            .quantize_static(inner, width, *inner_scale, smoothing.as_deref(), false);
        let view = self.inner.view();
        let (out, returned) = outputs
            .split_first_mut()
            .expect("a feed-forward has an output");
        self.down
            .run(view)?
            .scale(0, &**down, |row| view.scales()[row], out.reborrow());
        if let Some(returned) = returned.first_mut() {
            returned.copy_from_rows(inner, width);
        }
        Ok(())
    }
}

/// An image in the device's memory. Dropping it frees the memory.
struct Loaded {
    connection: SharedConnection,
    program: u64,
    hash: u64,
    unit: Unit,
    in_features: usize,
    out_features: usize,
    /// Width of down's input if it is returned, or 0.
    inner: usize,
    /// Maximum number of rows in the transfer area.
    most_rows: usize,
}

/// Result of a run.
struct Sums {
    /// `[rows, out_features]`.
    sums: Vec<i32>,
    out_features: usize,
    /// `[rows, width]`.
    inner: Vec<f32>,
    /// For each row, whether down's input had a number that is not finite.
    not_finite: Vec<bool>,
}

impl Loaded {
    fn linear(connection: &SharedConnection, layers: &[&dyn Layer]) -> Result<Self> {
        let out_features = layers.iter().map(|layer| layer.weight().out_features).sum();
        let in_features = layers[0].weight().in_features;
        let unit = lock(connection).unit().for_features([in_features]);
        Self::new(
            connection,
            (image::linear(layers, unit), unit),
            in_features,
            out_features,
            0,
        )
    }

    fn new(
        connection: &SharedConnection,
        (image, unit): (Option<Vec<u8>>, Unit),
        in_features: usize,
        out_features: usize,
        inner: usize,
    ) -> Result<Self> {
        let image = image.ok_or_else(|| Error::HexagonMemory {
            reason: "it addresses 2 GiB for one".to_owned(),
        })?;
        let mut locked = lock(connection);
        let per_row =
            unit.input_tile(in_features) / TILE_ROWS + (sum_stride(out_features) + inner) * NUMBER;
        // Alignment, and the absent rows of the last tile.
        let tile = unit.input_tile(in_features) + TILE_ROWS * sum_stride(out_features) * NUMBER;
        let overhead = HEADER + 4 * ALIGNMENT + tile;
        let most_rows = locked.shared().bytes().saturating_sub(overhead) / per_row;
        if most_rows == 0 {
            let reason = format!(
                "a row needs {per_row} bytes of the {} that both map",
                locked.shared().bytes()
            );
            return Err(Error::HexagonMemory { reason });
        }
        let (program, hash) = locked.load(&image)?;
        locked.count(unit);
        drop(locked);
        let connection = Arc::clone(connection);
        Ok(Self {
            connection,
            program,
            hash,
            unit,
            in_features,
            out_features,
            inner,
            most_rows,
        })
    }

    /// Runs all rows of `input`.
    fn run(&self, input: QuantizedView) -> Result<Sums> {
        let rows = input.rows();
        let mut all = Sums {
            sums: Vec::with_capacity(rows * self.out_features),
            out_features: self.out_features,
            inner: Vec::with_capacity(rows * self.inner),
            not_finite: Vec::with_capacity(rows),
        };
        let lines = &input.bytes()[..rows * input.stride()];
        let mut connection = lock(&self.connection);
        for lines in lines.chunks(self.most_rows * input.stride()) {
            self.run_some(&mut connection, lines, input.stride(), &mut all)?;
        }
        Ok(all)
    }

    /// Runs as many rows as fit into the transfer area.
    fn run_some(
        &self,
        connection: &mut Connection,
        lines: &[u8],
        from: usize,
        all: &mut Sums,
    ) -> Result<()> {
        let (rows, columns, tile) = (
            lines.len() / from,
            sum_stride(self.out_features),
            self.unit.input_tile(self.in_features),
        );
        let mut input = vec![0; rows.div_ceil(TILE_ROWS) * tile];
        for (row, line) in lines.chunks_exact(from).enumerate() {
            let (tile_of_row, line) = (
                &mut input[row / TILE_ROWS * tile..][..tile],
                &line[..self.in_features],
            );
            match self.unit {
                Unit::Hvx => write_quads(tile_of_row, row % TILE_ROWS, line),
                Unit::Hmx => write_flipped(
                    &mut tile_of_row[row % TILE_ROWS * (tile / TILE_ROWS)..],
                    line,
                    activation_flip(self.unit),
                ),
            }
        }
        let sums_at = HEADER + input.len();
        let inner_at =
            sums_at + ((rows + TILE_ROWS) * columns * NUMBER).next_multiple_of(ALIGNMENT);
        connection.shared().write(HEADER, words(&input));
        // These sums fail the check sums. So sums that the device does not write, or whose writes are not visible to
        // the host, are detected.
        for row in 0..rows {
            let word = row * columns / 2 + self.out_features / 2;
            let ones = std::iter::repeat_n(u64::MAX, 1 + self.out_features % 2);
            connection.shared().write(sums_at + word * 2 * NUMBER, ones);
        }
        let of_input = hash(input.chunks_exact(tile).map(|tile| hash(words(tile))));
        let places = [HEADER as u64, of_input, sums_at as u64, inner_at as u64];
        let [at, of_input, sums, inner] = places;
        let arguments = [self.hash, rows as u64, at, of_input, sums, inner];
        let of_inner = connection.request(Operation::Run, self.program, &arguments)?;
        let halves = |word: u64| [word as u32, (word >> 32) as u32];
        let mut numbers = Vec::with_capacity(columns);
        for row in 0..rows {
            numbers.clear();
            let words = (self.out_features + 2).div_ceil(2);
            numbers.extend(
                connection
                    .shared()
                    .read(sums_at + row * columns * NUMBER, words)
                    .flat_map(halves),
            );
            let (sums, flags) = numbers.split_at(self.out_features);
            let sum = sums
                .iter()
                .fold(flags[1], |all, sum| all.wrapping_add(*sum));
            if sum != flags[0] || flags[1] > 1 {
                return Err(connection.fail(reason(STATUS_SUM, 0)));
            }
            all.sums.extend(sums.iter().map(|sum| sum.cast_signed()));
            all.not_finite.push(flags[1] == 1);
        }
        if self.inner > 0 {
            let count = rows * self.inner;
            let words: Vec<_> = connection
                .shared()
                .read(inner_at, count.div_ceil(2))
                .collect();
            if hash(words.iter().copied()) != of_inner {
                let reason =
                    "activations in the memory that it shares with the host were overwritten"
                        .to_owned();
                return Err(connection.fail(reason));
            }
            all.inner.extend(
                words
                    .into_iter()
                    .flat_map(halves)
                    .take(count)
                    .map(f32::from_bits),
            );
        }
        Ok(())
    }
}

/// Returns the exclusive-or mask between the activations of this machine's kernels, which are signed or unsigned, and those
/// of a unit: signed for HVX, unsigned for HMX.
fn activation_flip(unit: Unit) -> u8 {
    let unsigned = match unit {
        Unit::Hvx => 0,
        Unit::Hmx => 0x80,
    };
    QuantizedRows::ZERO ^ unsigned
}

/// Writes a row of a tile for HVX.
fn write_quads(tile: &mut [u8], row: usize, line: &[u8]) {
    let flip = activation_flip(Unit::Hvx);
    let quads = tile.chunks_exact_mut(TILE_ROWS * QUAD);
    for (quad, bytes) in quads.zip(line.chunks(QUAD)) {
        write_flipped(&mut quad[row * QUAD..], bytes, flip);
    }
}

fn write_flipped(to: &mut [u8], bytes: &[u8], flip: u8) {
    to.iter_mut()
        .zip(bytes)
        .for_each(|(number, byte)| *number = byte ^ flip);
}

impl Drop for Loaded {
    fn drop(&mut self) {
        lock(&self.connection).free(self.program);
    }
}

impl Sums {
    /// Writes the output of `layer`, whose channels begin at `first`.
    fn scale(
        &self,
        first: usize,
        layer: &dyn Layer,
        scale: impl Fn(usize) -> f32 + Sync,
        out: OutputMut,
    ) {
        let (weight, bias) = (layer.weight(), layer.bias());
        if weight.out_features == self.out_features {
            return scale_sums(&self.sums, scale, weight, bias, out);
        }
        let rows = self.sums.chunks_exact(self.out_features);
        let sums: Vec<_> = rows
            .flat_map(|row| &row[first..first + weight.out_features])
            .copied()
            .collect();
        scale_sums(&sums, scale, weight, bias, out);
    }
}
