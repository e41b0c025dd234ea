//! Chooses the fastest kernels of this machine: newer instructions of a processor may be slower than older ones.
//!
//! Every permitted kernel is timed on products of a language model's size, and the fastest of each kind is
//! [used](use_kernels). A kernel of a lower instruction set must be a quarter faster, so that noise changes nothing:
//! float kernels round differently, and a model should give the same bits on two machines of a kind. Kernels take turns
//! several times, and the fastest rounds count, since other programs may run at the same time.

mod bench;
mod rate;

use std::sync::OnceLock;

use super::int8::quantize::ActivationRow;
use super::int8::rows::Outliers;
use super::int8::shadow::ShadowColumns;
use super::int8::{Int8Kernel, Rectangle};
use super::int16::Int16Kernel;
use super::panel::{Bf16Kernel, PairKernel, PanelKernel};
use super::{Kernels, available};
use bench::Bench;
pub use rate::Rate;
use rate::{MANY, ROUNDS};

/// Minimum number of rows for the INT8 kernel for many rows.
const MANY_FROM: usize = 16;
const TURNS: usize = 4;
/// Factor by which a kernel must be faster than one of a better instruction set.
const MARGIN: f64 = 1.25;

/// A kind of product that has a kernel of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProductKind {
    /// INT8 activations by INT8 weights, one row or few.
    Int8Few,
    /// INT8 activations by INT8 weights, many rows.
    Int8Many,
    /// INT16 activations of decode by weights in INT8, INT4 and blocks.
    Int16,
    /// Products in f32.
    F32,
    /// Products that may be rounded to bf16 or INT16: attention, and prefill with weights in INT8, INT4 and blocks.
    Rounded,
}

impl ProductKind {
    /// All kinds.
    pub const ALL: [Self; 5] = [
        Self::Int8Few,
        Self::Int8Many,
        Self::Int16,
        Self::F32,
        Self::Rounded,
    ];

    /// Returns the kind's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Int8Few => "INT8, few rows",
            Self::Int8Many => "INT8, many rows",
            Self::Int16 => "INT16, few rows",
            Self::F32 => "f32, many rows",
            Self::Rounded => "rounded, many rows",
        }
    }
}

/// The permitted kernels for products of a kind, and the one that is used.
#[derive(Clone, Debug)]
pub struct Choice {
    /// The kind of product.
    pub kind: ProductKind,
    /// The kernels that were timed, best instruction set first. Plain Rust is only timed if there is no other.
    pub timed: Vec<TimedKernel>,
    /// The kernel that is used.
    pub chosen: &'static str,
}

/// The speed of a kernel.
#[derive(Clone, Debug)]
pub struct TimedKernel {
    /// The kernel's name.
    pub kernel: &'static str,
    /// Its rates in the same settings for every kernel: numbers of threads, weights in a cache or in memory.
    pub rates: Vec<Rate>,
}

impl TimedKernel {
    /// Returns the geometric mean of the rates.
    pub fn mean(&self) -> f64 {
        let logarithms = self
            .rates
            .iter()
            .map(|rate| rate.operations_per_second.ln());
        (logarithms.sum::<f64>() / self.rates.len() as f64).exp()
    }
}

impl Choice {
    /// Returns the kernel of the best instruction set, which is used if nothing is timed.
    pub fn by_isa(&self) -> &'static str {
        self.timed.first().map_or(self.chosen, |timed| timed.kernel)
    }

    /// Returns how many times faster the chosen kernel is than that of the best instruction set: 1 if it is the same.
    pub fn gain(&self) -> f64 {
        let mean = |name| {
            self.timed
                .iter()
                .find(|timed| timed.kernel == name)
                .map(TimedKernel::mean)
        };
        mean(self.chosen)
            .zip(mean(self.by_isa()))
            .map_or(1.0, |(chosen, by_isa)| chosen / by_isa)
    }

    /// Chooses among kernels that are sorted by instruction set, best first.
    fn new(kind: ProductKind, timed: Vec<TimedKernel>) -> Self {
        let mut chosen = 0;
        for (index, candidate) in timed.iter().enumerate() {
            let margin = if chosen == 0 { MARGIN } else { 1.0 };
            if candidate.mean() > timed[chosen].mean() * margin {
                chosen = index;
            }
        }
        let chosen = timed[chosen].kernel;
        Self {
            kind,
            timed,
            chosen,
        }
    }
}

/// Times every permitted kernel, on one thread and on `threads` threads. This takes about half a second.
pub fn choose_kernels(threads: usize) -> Vec<Choice> {
    let bench = Bench::new(threads);
    let int8 = |rows| {
        time_each(
            |row| Some(row.int8),
            <dyn Int8Kernel>::name,
            |kernel| bench.int8(kernel, rows),
        )
    };
    let int16 = time_each(
        |row| Some(row.int16),
        <dyn Int16Kernel>::name,
        |kernel| bench.int16(kernel),
    );
    let f32 = time_each(
        |row| Some(row.float),
        <dyn PanelKernel>::name,
        |kernel| bench.words(kernel, 1),
    );
    let f32 = Choice::new(ProductKind::F32, f32);
    let mut rounded = time_each(
        |row| row.bf16,
        <dyn Bf16Kernel>::name,
        |kernel| bench.words(kernel, 2),
    );
    let pairs = time_each(
        |row| row.pairs,
        <dyn PairKernel>::name,
        |kernel| bench.words(kernel, 2),
    );
    let place = if available()[0].rounds_to_pairs {
        0
    } else {
        rounded.len()
    };
    rounded.splice(place..place, pairs);
    rounded.extend(
        f32.timed
            .iter()
            .find(|timed| timed.kernel == f32.chosen)
            .cloned(),
    );
    vec![
        Choice::new(ProductKind::Int8Few, int8(1)),
        Choice::new(ProductKind::Int8Many, int8(MANY)),
        Choice::new(ProductKind::Int16, int16),
        f32,
        Choice::new(ProductKind::Rounded, rounded),
    ]
}

/// Returns each permitted kernel of a format once, with the best result of `time` over several turns.
fn time_each<K: ?Sized + 'static>(
    kernel: impl Fn(&Kernels) -> Option<&'static K>,
    name: impl Fn(&K) -> &'static str,
    time: impl Fn(&K) -> Vec<Rate>,
) -> Vec<TimedKernel> {
    let mut kernels: Vec<&K> = Vec::new();
    for kernel in available().iter().filter_map(kernel) {
        let is_plain = matches!(name(kernel), "reference" | "portable");
        let is_new = kernels.iter().all(|other| name(other) != name(kernel));
        if is_new && (kernels.is_empty() || !is_plain) {
            kernels.push(kernel);
        }
    }
    let mut timed: Vec<_> = kernels
        .iter()
        .map(|kernel| TimedKernel {
            kernel: name(kernel),
            rates: time(kernel),
        })
        .collect();
    for _ in 1..TURNS {
        for (timed, kernel) in timed.iter_mut().zip(&kernels) {
            for (rate, again) in timed.rates.iter_mut().zip(time(kernel)) {
                rate.operations_per_second =
                    rate.operations_per_second.max(again.operations_per_second);
            }
        }
    }
    timed
}

static CHOSEN: OnceLock<Kernels> = OnceLock::new();

/// Returns the chosen kernels, if they were set.
#[inline]
pub(super) fn chosen() -> Option<&'static Kernels> {
    CHOSEN.get()
}

/// Makes this process use the kernel of each kind that `name` returns. Must be called once, before anything is
/// computed: a later call changes nothing. A kind for which it returns `None` keeps the kernel of the best instruction
/// set.
///
/// # Errors
/// The name of a kernel that this processor does not have; then nothing is changed.
pub fn use_kernels<'n>(name: impl Fn(ProductKind) -> Option<&'n str>) -> Result<(), String> {
    let chosen = named(available(), name)?;
    CHOSEN.get_or_init(|| chosen);
    Ok(())
}

/// Selects the kernels with these names among those of `rows`.
fn named<'n>(
    rows: &[Kernels],
    name: impl Fn(ProductKind) -> Option<&'n str>,
) -> Result<Kernels, String> {
    let find = |kind, of_row: &dyn Fn(&Kernels) -> bool, name: &str| {
        let unknown = || {
            format!(
                "{name} is no kernel of this processor for {}",
                ProductKind::name(kind)
            )
        };
        rows.iter().find(|row| of_row(row)).ok_or_else(unknown)
    };
    let mut chosen = rows[0];
    let int8 = |kind| match name(kind) {
        None => Ok(rows[0].int8),
        Some(name) => find(kind, &|row| row.int8.name() == name, name).map(|row| row.int8),
    };
    let (few, many) = (int8(ProductKind::Int8Few)?, int8(ProductKind::Int8Many)?);
    chosen.int8 = if few.name() == many.name() {
        many
    } else {
        Box::leak(Box::new(ByRows { few, many }))
    };
    if let Some(name) = name(ProductKind::Int16) {
        chosen.int16 = find(ProductKind::Int16, &|row| row.int16.name() == name, name)?.int16;
    }
    if let Some(name) = name(ProductKind::F32) {
        chosen.float = find(ProductKind::F32, &|row| row.float.name() == name, name)?.float;
    }
    if let Some(name) = name(ProductKind::Rounded) {
        let pairs = rows
            .iter()
            .filter_map(|row| row.pairs)
            .find(|kernel| kernel.name() == name);
        if pairs.is_some() {
            chosen.pairs = pairs;
        } else {
            let is = |row: &Kernels| {
                row.float.name() == name || row.bf16.is_some_and(|kernel| kernel.name() == name)
            };
            let row = find(ProductKind::Rounded, &is, name)?;
            chosen.bf16 = row.bf16.filter(|kernel| kernel.name() == name);
        }
        chosen.rounds_to_pairs = pairs.is_some();
    }
    Ok(chosen)
}

/// One kernel for few rows and another for many; both give the same bits.
struct ByRows {
    few: &'static dyn Int8Kernel,
    many: &'static dyn Int8Kernel,
}

impl Int8Kernel for ByRows {
    fn name(&self) -> &'static str {
        self.many.name()
    }

    fn task_rows(&self, in_features: usize) -> usize {
        self.many.task_rows(in_features)
    }

    fn multiply(&self, rectangle: &Rectangle) {
        let kernel = if rectangle.rows.len() < MANY_FROM {
            self.few
        } else {
            self.many
        };
        kernel.multiply(rectangle);
    }

    fn quantize(&self, row: &ActivationRow, numbers: &mut [u8], outliers: &mut Outliers) {
        self.many.quantize(row, numbers, outliers);
    }

    fn shadow(&self, columns: &ShadowColumns) {
        self.many.shadow(columns);
    }
}

#[cfg(test)]
mod tests;
