//! The benchmark of products: some columns of a product on one processor, alone and while the other processors run
//! theirs.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::ScopedJoinHandle;
use std::time::Instant;

use triad_kernels::int8::QuantizedRows;
use triad_kernels::timing::median;
use triad_kernels::{OutputMut, Phase};
use triad_plan::graph::Role;
use triad_plan::partition::{Part, ProductShape};
use triad_plan::processors::ProcessorId;
use triad_processors::Device;

use crate::error::Result;
use crate::preparing::input_scale;
use crate::products::ProductTime;
use crate::programs::{DeviceBackend, ProgramSpec, Programs};
use crate::workers::Worker;
use triad_engine::Model;
use triad_engine::linear::{
    Backend, CpuBackend, FloatRows, LinearOutput, Shadows, columns_of, layers,
};
use triad_kernels::lock;

/// Maximum numbers of columns that are measured of a product; those between are interpolated linearly.
const MAX_COLUMNS: usize = 6;
/// Blocks whose weights a device gets for each measurement. Our own kernels take all blocks in turn, as a prompt does.
const BLOCKS_OF_DEVICE: usize = 2;

/// Returns the numbers of columns that a part can have if it is cut at multiples: all of them, or some including the
/// least and the most.
pub(super) fn columns(all: usize, multiple: usize, every: bool) -> Vec<usize> {
    let from_left = (1..)
        .map(|tiles| tiles * multiple)
        .take_while(|columns| *columns < all);
    let from_right = from_left.clone().map(|columns| all - columns);
    let sizes: BTreeSet<_> = from_left.chain(from_right).chain([all]).collect();
    let sizes: Vec<_> = sizes.into_iter().collect();
    if every || sizes.len() <= MAX_COLUMNS {
        return sizes;
    }
    let last = sizes.len() - 1;
    (0..MAX_COLUMNS)
        .map(|index| sizes[index * last / (MAX_COLUMNS - 1)])
        .collect()
}

/// Runs were disturbed if their median is more than this multiple of the shortest.
const DISTURBED: f64 = 1.25;
/// Maximum runs, as a multiple of those that were asked for, unless they are short.
const MAX_ROUNDS: usize = 8;
/// Minimum seconds of all runs together: a run of microseconds depends on what the processor did before.
const MIN_SECONDS: f64 = 2e-3;

/// The model, processors and devices of the benchmark.
pub(super) struct Bench<'a> {
    pub(super) model: &'a Model,
    pub(super) workers: &'a [Worker],
    pub(super) devices: &'a [Option<Arc<dyn Device>>],
    pub(super) repeat: usize,
}

impl<'a> Bench<'a> {
    /// Returns, by processor, the product that it runs while another one is measured: a whole one. Each has run with
    /// the weights of all blocks, which are read from a file the first time.
    pub(super) fn loads(&self, role: Role, shape: ProductShape) -> Result<Vec<Mutex<Product<'a>>>> {
        let load = |processor: ProcessorId| {
            let mut product = self.product(role, processor, shape)?;
            self.workers[processor.index()]
                .pool()
                .install(|| (0..product.blocks()).try_for_each(|_| product.run()))?;
            Ok(Mutex::new(product))
        };
        (0..self.workers.len())
            .map(ProcessorId::new)
            .map(load)
            .collect()
    }

    /// Measures a product on a processor, alone and while the others run theirs.
    pub(super) fn measure(
        &self,
        role: Role,
        processor: ProcessorId,
        shape: ProductShape,
        loads: &[Mutex<Product>],
    ) -> Result<ProductTime> {
        let mut product = self.product(role, processor, shape)?;
        let alone = self.seconds(processor, &mut product)?;
        let others = || (0..loads.len()).filter(|index| *index != processor.index());
        let (begun, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
        let run = |index: usize| {
            let mut load = lock(&loads[index]);
            let mut result = Ok(());
            self.workers[index].pool().install(|| {
                while result.is_ok() && !is_over.load(Ordering::Relaxed) {
                    result = load.run();
                    begun.fetch_add(1, Ordering::Relaxed);
                }
            });
            result
        };
        let contended = std::thread::scope(|scope| {
            let loads: Vec<_> = others()
                .map(|index| scope.spawn(move || run(index)))
                .collect();
            while begun.load(Ordering::Relaxed) < loads.len()
                && !loads.iter().any(ScopedJoinHandle::is_finished)
            {
                std::thread::yield_now();
            }
            let contended = self.seconds(processor, &mut product);
            is_over.store(true, Ordering::Relaxed);
            for load in loads {
                load.join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            }
            contended
        })?;
        let (rows, columns, depth) = (shape.rows(), shape.columns(), shape.depth());
        Ok(ProductTime {
            processor,
            rows,
            columns,
            depth,
            alone,
            contended,
        })
    }

    /// Returns the median of some runs, after one that does not count. Takes more runs if they are short, or disturbed
    /// by other programs.
    pub(super) fn seconds(&self, processor: ProcessorId, product: &mut Product) -> Result<f64> {
        self.workers[processor.index()].pool().install(|| {
            product.run()?;
            let (mut seconds, mut all) = (Vec::new(), 0.0);
            loop {
                for _ in 0..self.repeat {
                    let start = Instant::now();
                    product.run()?;
                    // Clocks may be too coarse for the shortest runs.
                    let one = start.elapsed().as_secs_f64().max(1e-9);
                    seconds.push(one);
                    all += one;
                }
                if all < MIN_SECONDS {
                    continue;
                }
                let (middle, least) = (
                    median(&seconds),
                    seconds.iter().copied().fold(f64::INFINITY, f64::min),
                );
                if middle <= DISTURBED * least || seconds.len() >= MAX_ROUNDS * self.repeat {
                    return Ok(middle);
                }
            }
        })
    }

    /// Returns the first columns of a product, with the weights of several blocks.
    pub(super) fn product(
        &self,
        role: Role,
        processor: ProcessorId,
        shape: ProductShape,
    ) -> Result<Product<'a>> {
        self.product_of(role, processor, shape, 0..shape.columns())
    }

    /// Returns some columns of a product that has at least those of `shape`.
    pub(super) fn product_of(
        &self,
        role: Role,
        processor: ProcessorId,
        shape: ProductShape,
        columns: Range<usize>,
    ) -> Result<Product<'a>> {
        let description = self.model.description();
        let device = self.devices[processor.index()].as_deref();
        let name = &self.workers[processor.index()].name;
        let has = |block: &usize| {
            let block = &description.blocks[*block];
            let layers = layers(block, description.hidden, role);
            let has_columns =
                layers.iter().map(|(_, features)| features).sum::<usize>() >= shape.columns();
            let linears = block.linears(description.hidden);
            let reads = linears.iter().find(|linear| {
                layers
                    .first()
                    .is_some_and(|(first, _)| linear.linear == *first)
            });
            has_columns && reads.is_some_and(|linear| linear.in_features == shape.depth())
        };
        let most = device.map_or(usize::MAX, |_| BLOCKS_OF_DEVICE);
        let blocks: Vec<_> = (0..description.blocks.len())
            .filter(has)
            .take(most)
            .collect();
        let first = *blocks.first().expect("a product of the model");
        let outs = columns_of(
            &layers(&description.blocks[first], description.hidden, role),
            &columns,
        );
        let outs: Vec<_> = outs
            .into_iter()
            .map(|(linear, columns)| {
                let room = vec![0.0; shape.rows() * columns.len()];
                (linear, columns, room)
            })
            .collect();
        let mut inputs = Vec::new();
        for block in &blocks {
            // Only devices compare the scale with that of their program.
            let scale = input_scale(self.model, name, *block, role)?;
            if inputs.is_empty() || (device.is_some() && scale.is_some()) {
                inputs.push(Input::any(shape, scale));
            }
        }
        let mut programs =
            device.map(|device| Programs::new(self.model.description().blocks.len(), device));
        if let (Some(programs), Some(device)) = (&mut programs, device) {
            let part = Part {
                rows: 0..shape.rows(),
                columns,
            };
            for block in &blocks {
                let wanted = ProgramSpec {
                    block: *block,
                    role,
                    part: &part,
                    rows: shape.rows(),
                    fixed_point: false,
                };
                programs.prepare(self.model, device, &wanted)?;
            }
        }
        Ok(Product {
            model: self.model,
            role,
            blocks,
            inputs,
            outs,
            programs,
            phase: Phase::Prefill,
            next: 0,
        })
    }
}

/// A product that can be run repeatedly, each time with the weights of the next block.
pub(super) struct Product<'a> {
    model: &'a Model,
    role: Role,
    blocks: Vec<usize>,
    /// The input of each block, or one for all of them.
    inputs: Vec<Input>,
    outs: Vec<(triad_model::description::Linear, Range<usize>, Vec<f32>)>,
    programs: Option<Programs>,
    /// Selects the kernels for float activations.
    phase: Phase,
    next: usize,
}

impl Product<'_> {
    /// Returns the product as decode steps compute it.
    pub(super) fn of_steps(self) -> Self {
        let phase = Phase::Decode;
        Self { phase, ..self }
    }

    /// Returns the number of blocks whose weights it has.
    pub(super) fn blocks(&self) -> usize {
        self.blocks.len()
    }

    /// Runs the product on the installed threads.
    pub(super) fn run(&mut self) -> Result<()> {
        let Self {
            model,
            role,
            blocks,
            inputs,
            outs,
            programs,
            phase,
            next,
        } = self;
        let turn = *next % blocks.len();
        *next += 1;
        let x = &inputs[turn % inputs.len()];
        let outs = outs.iter_mut().map(|(linear, columns, room)| LinearOutput {
            linear: *linear,
            columns: columns.clone(),
            out: OutputMut::new(room, columns.len()),
        });
        let mut outs: Vec<_> = outs.collect();
        let kernels = || CpuBackend(&model.weights().blocks);
        let mut device = programs.as_mut().map(|programs| DeviceBackend {
            programs,
            kernels: kernels(),
        });
        let backend: &mut dyn Backend = match &mut device {
            Some(device) => device,
            None => &mut kernels(),
        };
        let block = blocks[turn];
        match x {
            Input::Int8(x) => {
                backend.multiply(block, *role, x.view(), &mut outs, Shadows::Apart)?;
            }
            Input::Float(x, rows) => {
                let (rows, phase) = (*rows, *phase);
                backend.multiply_floats(block, *role, FloatRows { x, rows, phase }, &mut outs)?;
            }
        }
        Ok(())
    }
}

/// Activations that a product reads.
enum Input {
    Int8(QuantizedRows),
    /// `[rows, depth]`, and the rows.
    Float(Vec<f32>, usize),
}

impl Input {
    /// Returns activations with all values of INT8 in turn, times `scale`; in float if there is no scale.
    fn any(shape: ProductShape, scale: Option<f32>) -> Self {
        let number = |index: usize| (index.wrapping_mul(7919) % 255) as f32 - 127.0;
        let numbers = (0..shape.rows() * shape.depth()).map(number);
        let Some(scale) = scale else {
            return Self::Float(numbers.map(|x| x / 127.0).collect(), shape.rows());
        };
        let x: Vec<f32> = numbers.map(|x| scale * x).collect();
        let mut rows = QuantizedRows::default();
        rows.quantize_static(&x, shape.depth(), scale, None, false);
        Self::Int8(rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_those_that_a_cut_can_give_the_least_and_the_most_among_them() {
        assert_eq!(
            columns(576, 64, true),
            (1..=9).map(|tiles| 64 * tiles).collect::<Vec<_>>()
        );
        assert_eq!(columns(200, 64, true), [8, 64, 72, 128, 136, 192, 200]);
        assert_eq!(columns(100, 100, true), [100]);
        let some = columns(1000, 64, false);
        assert_eq!(
            (some.len(), some[0], some[MAX_COLUMNS - 1]),
            (MAX_COLUMNS, 40, 1000)
        );
    }
}
