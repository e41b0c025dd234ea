//! Models on the GPU of which another processor computes products in prompts: here the CPU's kernels, which may fail.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use triad_kernels::int8::{Int8Weight, QuantizedView};
use triad_kernels::pool::Pool;
use triad_kernels::{OutputMut, Phase};
use triad_model::description::Linear;
use triad_processors::cpu::Cpu;
use triad_processors::gpu::model::{GpuModel, ModelVariant};
use triad_processors::gpu::{AdapterKind, Gpu};
use triad_processors::model::{DeviceLinear, DeviceWeight};
use triad_processors::{
    ColumnsProgram, Device, DeviceSubgraph, Error, Layer, LayerColumns, Linear as LinearLayers,
    Multiplier, ProductPart, ProductPrograms, ProductWait, Program, Result,
};

use super::families::{all, llama};
use super::plain::{Format, PlainModel};
use super::{OPTIONS, assert_near, assert_within, gpu, logits_in, on_gpu};

/// The layers that read one input, in the order in which the GPU concatenates them.
const READERS: [&[Linear]; 4] = [
    &[Linear::Query, Linear::Key, Linear::Value],
    &[Linear::AttentionOutput],
    &[Linear::Gate, Linear::Up],
    &[Linear::Down],
];

/// Relative change of logits if some numbers are rounded to a neighbour, compared with the largest.
const TOLERANCE: f32 = 2e-2;

struct Owned {
    out_features: usize,
    in_features: usize,
    packed: Vec<i8>,
    scales: Vec<f32>,
    sums: Vec<i32>,
    bias: Option<Vec<f32>>,
}

impl Layer for Owned {
    fn weight(&self) -> Int8Weight<'_> {
        Int8Weight {
            out_features: self.out_features,
            in_features: self.in_features,
            packed: &self.packed,
            scales: &self.scales,
            sums: &self.sums,
        }
    }

    fn bias(&self) -> Option<&[f32]> {
        self.bias.as_deref()
    }
}

/// Counts the runs of a program, and fails from one on.
struct Counted {
    program: Box<dyn Program>,
    runs: Arc<AtomicUsize>,
    fails_at: usize,
}

impl Program for Counted {
    fn run(&mut self, input: QuantizedView, outputs: &mut [OutputMut]) -> Result<()> {
        if self.runs.fetch_add(1, Ordering::Relaxed) >= self.fails_at {
            if self.fails_at % 2 == 1 {
                // Does not print the message of a panic.
                std::panic::resume_unwind(Box::new("unplugged"));
            }
            return Err(Error::Run {
                processor: "test".into(),
                reason: "unplugged".into(),
            });
        }
        self.program.run(input, outputs)
    }
}

/// How products are divided.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Division {
    /// The other processor computes all.
    Whole,
    /// It computes the last columns, or the first ones.
    LastColumns,
    FirstColumns,
    /// It computes the first 32 rows.
    Rows,
    /// It computes some columns of the first 32 rows.
    Both,
    /// It computes 32 rows, then the others.
    Pipe,
}

const DIVISIONS: [Division; 6] = [
    Division::Whole,
    Division::LastColumns,
    Division::FirstColumns,
    Division::Rows,
    Division::Both,
    Division::Pipe,
];

/// Rows of the other processor where rows are divided.
const FIRST_ROWS: usize = 32;

impl Division {
    /// Returns the parts of outputs of `rows` by `columns`, cut at a column.
    fn parts(self, rows: usize, columns: usize, cut: usize) -> Vec<ProductPart> {
        let part = |rows, columns, by_other| ProductPart {
            rows,
            columns,
            by_other,
        };
        let first = rows.min(FIRST_ROWS);
        let parts = match self {
            Self::Whole => vec![part(0..rows, 0..columns, true)],
            Self::LastColumns => vec![
                part(0..rows, 0..cut, false),
                part(0..rows, cut..columns, true),
            ],
            Self::FirstColumns => vec![
                part(0..rows, 0..cut, true),
                part(0..rows, cut..columns, false),
            ],
            Self::Rows => vec![
                part(0..first, 0..columns, true),
                part(first..rows, 0..columns, false),
            ],
            Self::Both => vec![
                part(0..first, 0..cut, true),
                part(0..first, cut..columns, false),
                part(first..rows, 0..columns, false),
            ],
            Self::Pipe => vec![
                part(0..first, 0..columns, true),
                part(first..rows, 0..columns, true),
            ],
        };
        let is_some = |part: &ProductPart| !part.rows.is_empty() && !part.columns.is_empty();
        parts.into_iter().filter(is_some).collect()
    }
}

/// Returns where the outputs of layers are cut: in the middle, at a block of packed weights; `None` if there is no such
/// place.
fn cut_of(widths: &[usize]) -> Option<usize> {
    let columns: usize = widths.iter().sum();
    let is_place = |cut: &usize| {
        let mut first = 0;
        *cut > 0
            && *cut < columns
            && widths.iter().all(|width| {
                let is_outside = *cut <= first || *cut >= first + width;
                let is_at_block = (*cut - first.min(*cut)).is_multiple_of(Int8Weight::COLUMNS);
                first += width;
                is_outside || is_at_block
            })
    };
    (columns / 2..columns).find(is_place)
}

/// Returns programs for the products of a model.
fn products(
    model: &PlainModel,
    division: Division,
    runs: &Arc<AtomicUsize>,
    fails_at: usize,
) -> Vec<ProductPrograms> {
    let cpu = Cpu::new(Arc::new(Pool::new(1).unwrap()));
    let view = model.view();
    let mut products = Vec::new();
    for (block, weights) in view.blocks.iter().enumerate() {
        for names in READERS {
            let of_name = |name: &Linear| {
                let mut linears = weights.linears.iter();
                linears.find(|(linear, _)| linear == name).map(|it| it.1)
            };
            let layers = names
                .iter()
                .filter_map(|name| Some((*name, of_name(name)?)));
            let layers: Vec<(Linear, DeviceLinear)> = layers.collect();
            let mut owned = Vec::new();
            let mut input_scale = 0.0;
            for (_, layer) in &layers {
                let DeviceWeight::Int8(weight, input) = layer.weight else {
                    panic!("in INT8")
                };
                input_scale = input.scale;
                owned.push(Arc::new(Owned {
                    out_features: weight.out_features,
                    in_features: weight.in_features,
                    packed: weight.packed.to_vec(),
                    scales: weight.scales.to_vec(),
                    sums: weight.sums.to_vec(),
                    bias: layer.bias.map(<[f32]>::to_vec),
                }));
            }
            let widths: Vec<_> = owned.iter().map(|layer| layer.out_features).collect();
            let columns = widths.iter().sum();
            let (division, cut) = match cut_of(&widths) {
                Some(cut) => (division, cut),
                None => (Division::Whole, columns),
            };
            let parts = division.parts(OPTIONS.rows, columns, cut);
            let program = |part: &ProductPart| {
                let mut shared = Vec::new();
                let mut first = 0;
                for (layer, width) in owned.iter().zip(&widths) {
                    let start = part.columns.start.max(first);
                    let end = part.columns.end.min(first + width);
                    if start < end {
                        let range = start - first..end - first;
                        let columns = LayerColumns::new(Arc::clone(layer) as _, range).unwrap();
                        shared.push(Arc::new(columns) as Arc<dyn Layer>);
                    }
                    first += width;
                }
                let subgraph = DeviceSubgraph::Linear(LinearLayers {
                    input_scale,
                    layers: shared,
                });
                ColumnsProgram {
                    columns: part.columns.clone(),
                    rows: part.rows.len(),
                    program: Box::new(Counted {
                        program: cpu.prepare(&subgraph, part.rows.len()).unwrap(),
                        runs: Arc::clone(runs),
                        fails_at,
                    }),
                }
            };
            products.push(ProductPrograms {
                block,
                layers: layers.iter().map(|(name, _)| *name).collect(),
                programs: parts
                    .iter()
                    .filter(|part| part.by_other)
                    .map(program)
                    .collect(),
                division: Box::new(move |rows| division.parts(rows, columns, cut)),
            });
        }
    }
    products
}

const TIME_OUT: Duration = Duration::from_secs(60);

fn with_products(
    gpu: &Gpu,
    model: &PlainModel,
    products: Vec<ProductPrograms>,
) -> Result<GpuModel> {
    within(gpu, model, products, (TIME_OUT, ProductWait::Flag))
}

fn within(
    gpu: &Gpu,
    model: &PlainModel,
    products: Vec<ProductPrograms>,
    (time_out, wait): (Duration, ProductWait),
) -> Result<GpuModel> {
    let multiplier = Multiplier {
        name: "other".into(),
        time_out,
        wait,
        products,
    };
    let (view, variants) = (model.view(), &ModelVariant::ALL);
    GpuModel::with_multiplier(gpu, &view, &OPTIONS, variants, Some(multiplier))
}

/// Asserts that logits are those of the GPU alone: bit for bit in software, whose compiler fuses nothing.
#[track_caller]
fn assert_same(gpu: &Gpu, found: &[f32], expected: &[f32], what: &str) {
    if gpu.adapter().kind == AdapterKind::Software {
        let is_other =
            |(_, (found, expected)): &(usize, (&f32, &f32))| found.to_bits() != expected.to_bits();
        let other = found.iter().zip(expected).enumerate().find(is_other);
        assert!(other.is_none(), "{what}: {other:?}");
    } else {
        assert_within(TOLERANCE, found, expected, what);
    }
}

#[test]
fn a_model_whose_products_another_processor_computes_in_part_has_the_logits_of_the_gpu_alone() {
    let Some(gpu) = gpu() else { return };
    for (name, description) in all() {
        // The divisions differ in what is read and joined, not in the rest of a family.
        let divisions = match name {
            "llama" => &DIVISIONS[..],
            _ => &[Division::LastColumns, Division::Both][..],
        };
        for (format, divisions) in [
            (Format::W8a8, divisions),
            (Format::W8a8Int4, &DIVISIONS[..1]),
        ] {
            let hidden = description.hidden;
            let blocks = description.blocks.iter();
            let mut linears = blocks.flat_map(|block| block.linears(hidden));
            // INT4 has whole groups alone.
            if format == Format::W8a8Int4 && !linears.all(|it| it.in_features.is_multiple_of(32)) {
                continue;
            }
            let model = PlainModel::new(description.clone(), &[format], 1);
            let mut alone = on_gpu(&gpu, &model);
            for division in divisions {
                let what = format!("{name}, {format:?}, {division:?}");
                let runs = Arc::default();
                let programs = products(&model, *division, &runs, usize::MAX);
                let mut with = with_products(&gpu, &model, programs).unwrap();
                // Chunks of several lengths, of which the last one is fewer rows than the other processor has.
                let (mut one, mut other) = (alone.sequence(), with.sequence());
                for (seed, rows) in [(2, 37), (3, 33), (4, 37), (5, 9)] {
                    let x = model.rows(rows, seed);
                    let expected = logits_in(&mut alone, &mut one, &x, rows, Phase::Prefill);
                    let found = logits_in(&mut with, &mut other, &x, rows, Phase::Prefill);
                    assert_same(&gpu, &found, &expected, &what);
                }
                let prompts = runs.load(Ordering::Relaxed);
                assert!(prompts > 0, "{what}");
                let x = model.rows(5, 6);
                let expected = logits_in(&mut alone, &mut one, &x, 5, Phase::Decode);
                let found = logits_in(&mut with, &mut other, &x, 5, Phase::Decode);
                assert_same(&gpu, &found, &expected, &what);
                let all = runs.load(Ordering::Relaxed);
                assert_eq!(all, prompts, "{what}: none in decode");
                let operations = with.operations();
                assert!(operations.products > 0, "{what}");
                let joins = with.joins();
                assert!(joins.bytes_read > 0 && joins.bytes_written > 0, "{what}");
                assert!(with.take_failure().is_none(), "{what}");
            }
        }
    }
}

#[test]
fn the_gpu_computes_less_where_another_processor_computes_more() {
    let Some(gpu) = gpu() else { return };
    let model = PlainModel::new(llama(), &[Format::W8a8], 1);
    let x = model.rows(37, 2);
    let count = |division: Option<Division>| {
        let programs =
            division.map(|division| products(&model, division, &Arc::default(), usize::MAX));
        let mut with = with_products(&gpu, &model, programs.unwrap_or_default()).unwrap();
        let mut sequence = with.sequence();
        logits_in(&mut with, &mut sequence, &x, 37, Phase::Prefill);
        with.operations()
    };
    let [alone, cut, whole] = [None, Some(Division::LastColumns), Some(Division::Whole)].map(count);
    assert_eq!(alone.products, 0);
    assert!(cut.products > 0 && cut.products < whole.products);
    assert!(cut.device < alone.device && whole.device < cut.device);
    // Nothing is counted twice or left out.
    assert_eq!(cut.device + cut.products, whole.device + whole.products);
    assert_eq!(alone.device, whole.device + whole.products);
}

#[test]
fn the_gpu_computes_all_of_a_chunk_at_any_of_whose_products_the_other_processor_is_lost() {
    let Some(gpu) = gpu() else { return };
    let model = PlainModel::new(llama(), &[Format::W8a8], 1);
    let x = model.rows(37, 2);
    let mut alone = on_gpu(&gpu, &model);
    let mut sequence = alone.sequence();
    let expected = logits_in(&mut alone, &mut sequence, &x, 37, Phase::Prefill);
    for division in DIVISIONS {
        // A part of a pipe is a run of its own.
        let runs_of = if division == Division::Pipe { 2 } else { 1 };
        let count = runs_of * products(&model, division, &Arc::default(), 0).len();
        for fails_at in 0..count {
            let runs = Arc::default();
            let programs = products(&model, division, &runs, fails_at);
            let mut with = with_products(&gpu, &model, programs).unwrap();
            let mut sequence = with.sequence();
            let found = logits_in(&mut with, &mut sequence, &x, 37, Phase::Prefill);
            // It is the same pass as that of the GPU alone.
            assert!(found == expected, "lost at {fails_at}, {division:?}");
            let failure = with.take_failure().unwrap().to_string();
            assert!(failure.contains("unplugged"), "{failure}");
            assert!(with.take_failure().is_none(), "it is reported once");
            let mut sequence = with.sequence();
            let again = logits_in(&mut with, &mut sequence, &x, 37, Phase::Prefill);
            assert!(again == expected);
            assert_eq!(
                runs.load(Ordering::Relaxed),
                fails_at + 1,
                "not asked again before a retry"
            );
            with.retry();
            let mut sequence = with.sequence();
            let again = logits_in(&mut with, &mut sequence, &x, 37, Phase::Prefill);
            assert!(again == expected);
            assert_eq!(runs.load(Ordering::Relaxed), fails_at + 2);
            assert!(with.take_failure().is_some(), "and reported again");
        }
    }
}

/// Waits until it is let go.
struct Hanging {
    program: Box<dyn Program>,
    hangs: Arc<AtomicBool>,
}

impl Program for Hanging {
    fn run(&mut self, input: QuantizedView, outputs: &mut [OutputMut]) -> Result<()> {
        while self.hangs.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.program.run(input, outputs)
    }
}

#[test]
fn the_gpu_computes_all_of_a_chunk_while_the_other_processor_hangs_which_is_used_again_when_it_returns()
 {
    let Some(gpu) = gpu() else { return };
    let model = PlainModel::new(llama(), &[Format::W8a8], 1);
    let x = model.rows(37, 2);
    let mut alone = on_gpu(&gpu, &model);
    let mut sequence = alone.sequence();
    let expected = logits_in(&mut alone, &mut sequence, &x, 37, Phase::Prefill);
    for wait in [ProductWait::Blocking, ProductWait::Flag] {
        let hangs = Arc::new(AtomicBool::new(false));
        let mut list = products(&model, Division::LastColumns, &Arc::default(), usize::MAX);
        let middle = list.len() / 2;
        list[middle].programs = std::mem::take(&mut list[middle].programs)
            .into_iter()
            .map(|one| ColumnsProgram {
                program: Box::new(Hanging {
                    program: one.program,
                    hangs: Arc::clone(&hangs),
                }),
                ..one
            })
            .collect();
        // Longer than a product of this size takes on any machine.
        let mut with = within(&gpu, &model, list, (Duration::from_secs(2), wait)).unwrap();
        let run = |with: &mut GpuModel| {
            let mut sequence = with.sequence();
            let found = logits_in(with, &mut sequence, &x, 37, Phase::Prefill);
            assert!(found == expected, "{wait:?}");
            with.operations().products
        };
        let once = run(&mut with);
        hangs.store(true, Ordering::Relaxed);
        let before_hang = run(&mut with);
        let failure = with.take_failure().unwrap().to_string();
        assert!(
            failure.contains("did not end a product within 2 s"),
            "{failure}"
        );
        // It hangs still, so that a retry changes nothing.
        with.retry();
        assert_eq!(run(&mut with), before_hang, "{wait:?}");
        assert!(with.take_failure().is_none());
        hangs.store(false, Ordering::Relaxed);
        let start = std::time::Instant::now();
        while run(&mut with) == before_hang {
            assert!(start.elapsed() < TIME_OUT, "it is used again");
            with.retry();
        }
        assert_eq!(with.operations().products - before_hang, once, "{wait:?}");
        assert!(with.take_failure().is_none());
    }
}

#[test]
fn logits_of_the_residual_stream_are_those_of_a_chunk() {
    let Some(gpu) = gpu() else { return };
    let model = PlainModel::new(llama(), &[Format::W8a8], 1);
    let x = model.rows(9, 2);
    let run = model.run(&x);
    let mut on_gpu = on_gpu(&gpu, &model);
    let mut found = Vec::new();
    on_gpu
        .logits(&run.residual, Phase::Prefill, |logits| {
            found.extend_from_slice(logits);
        })
        .unwrap();
    assert_near(&found, &run.logits, "logits");
    let hidden = model.description.hidden;
    for wrong in [0, hidden - 1, (OPTIONS.rows + 1) * hidden] {
        let refused = on_gpu.logits(&vec![0.0; wrong], Phase::Prefill, |_| {});
        assert!(matches!(refused, Err(Error::Rows { .. })));
    }
}

#[test]
fn products_that_do_not_fit_the_model_are_refused() {
    let Some(gpu) = gpu() else { return };
    let model = PlainModel::new(llama(), &[Format::W8a8], 1);
    let refused = |model: &PlainModel, plant: &dyn Fn(&mut Vec<ProductPrograms>)| {
        let int8 = PlainModel::new(llama(), &[Format::W8a8], 1);
        let mut list = products(&int8, Division::LastColumns, &Arc::default(), usize::MAX);
        plant(&mut list);
        with_products(&gpu, model, list).unwrap_err().to_string()
    };
    for (plant, expected) in [
        (
            (&|list: &mut Vec<ProductPrograms>| {
                list[0].layers.pop();
            }) as &dyn Fn(&mut Vec<ProductPrograms>),
            "block 0: another processor computes [Query, Key]: expected [Query, Key, Value]",
        ),
        (&|list| list[0].block = 99, "block 99: it has no product of"),
        (
            &|list| list[0].division = Box::new(|_| Vec::new()),
            "that do not cover each output once",
        ),
        (
            &|list| {
                list[0].programs.clear();
            },
            "another processor has no program for",
        ),
        (
            &|list| list[0].programs[0].columns.end += 1,
            "expected some of",
        ),
    ] {
        let refused = refused(&model, plant);
        assert!(refused.contains(expected), "{refused}");
    }
    let float = PlainModel::new(llama(), &[Format::F32], 1);
    let refused = refused(&float, &|_| {});
    assert!(refused.contains("its layers read floats"), "{refused}");
}
