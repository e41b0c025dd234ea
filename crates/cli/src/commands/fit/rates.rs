//! Times of the kernels on the model's shapes, each measured once for some milliseconds.
//!
//! For a large matrix, only as many columns are measured as take a few milliseconds. The time of a prompt's operators is a
//! line over the rows, through two measured lengths. The time of attention is a line over the positions that are read.

use std::collections::BTreeMap;

use triad_engine::KvFormat;
use triad_kernels::OutputMut;
use triad_kernels::Phase;
use triad_kernels::attention::{PAGE, Precision, Row, Shape};
use triad_kernels::int8::{QuantizedRows, packed_len, shadow};
use triad_kernels::timing::{self, turns};
use triad_model::description::{Attention, BlockDescription, Mixer};

use super::arena::{Arena, Cache};
use super::forms::{Group, Product, groups};
use super::operators::{Between, OPERATIONS, Prepared, int8_weight, numbers, part, seconds_of};

/// Minimum seconds and runs of a measurement.
const SECONDS: f64 = 0.012;
const RUNS: usize = 5;
/// The context lengths at which attention is measured.
const SEEN: [usize; 2] = [PAGE, 4 * PAGE];

/// A time that grows linearly with a size: `fixed` seconds, and `each` for each unit of the size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Line {
    pub fixed: f64,
    pub each: f64,
}

impl Line {
    /// Returns the line through two points `(size, seconds)`, the smaller size first. Neither `fixed` nor `each` is
    /// negative: where noise would make one negative, the line goes through the larger point alone.
    pub fn through((small, low): (f64, f64), (large, high): (f64, f64)) -> Self {
        let each = if large > small {
            ((high - low) / (large - small)).clamp(0.0, high / large)
        } else {
            high / large
        };
        Self {
            fixed: high - each * large,
            each,
        }
    }

    pub fn at(self, size: f64) -> f64 {
        self.fixed + self.each * size
    }
}

/// Seconds of one row in a block.
#[derive(Clone, Copy)]
pub struct Step {
    /// The four groups of linear layers.
    pub products: [f64; 4],
    /// All other operators except attention.
    pub between: f64,
}

/// Measures kernels on the installed thread pool, and keeps the results.
pub struct Rates {
    arena: Arena,
    /// Rows of a full chunk.
    rows: usize,
    kv_format: KvFormat,
    products: BTreeMap<(Product, Group), Line>,
    steps: BTreeMap<(Product, [Group; 4], BetweenKey), Step>,
    outputs: BTreeMap<(Product, Group), f64>,
    shadows: BTreeMap<(Group, bool), Line>,
    attention: BTreeMap<(AttentionKey, bool), Line>,
    attention_steps: BTreeMap<AttentionKey, Line>,
    between: BTreeMap<(BetweenKey, bool), Line>,
}

/// All that the time of attention depends on: heads, key-value heads, head dimension, whether scores have a soft cap.
type AttentionKey = (usize, usize, usize, bool);
/// All that the time of a block's other operators depends on.
type BetweenKey = String;

impl Rates {
    /// Creates the rates of a model. Its chunks have `rows` rows and its decode steps read `bytes` bytes of weights.
    pub fn new(rows: usize, bytes: usize, kv_format: KvFormat) -> Self {
        Self {
            arena: Arena::new(bytes),
            rows,
            kv_format,
            products: BTreeMap::new(),
            steps: BTreeMap::new(),
            outputs: BTreeMap::new(),
            shadows: BTreeMap::new(),
            attention: BTreeMap::new(),
            attention_steps: BTreeMap::new(),
            between: BTreeMap::new(),
        }
    }

    /// Returns the rows of the shorter of the two measured chunks.
    fn few(&self) -> usize {
        self.rows.div_ceil(8)
    }

    /// Measures two chunks, and returns the line over their rows.
    fn over_rows(&mut self, mut measure: impl FnMut(&mut Self, usize) -> f64) -> Line {
        let (few, rows) = (self.few(), self.rows);
        let low = measure(self, few);
        let high = measure(self, rows);
        Line::through((few as f64, low), (rows as f64, high))
    }

    /// Measures a group of linear layers in a prompt, over the rows of a chunk.
    pub fn products(&mut self, product: Product, group: &Group) -> Line {
        let key = (product.of_width(group.in_features), group.clone());
        if let Some(line) = self.products.get(&key) {
            return *line;
        }
        let line = self.over_rows(|rates, rows| {
            let mut prepared = Prepared::new(key.0, group, rows, Phase::Prefill);
            median(|| prepared.run(&mut rates.arena))
        });
        self.products.insert(key, line);
        line
    }

    /// Measures the linear layers and the other operators of a block in decode, for one row.
    pub fn step(&mut self, product: Product, block: &BlockDescription, hidden: usize) -> Step {
        let key = (product, groups(block, hidden), between_key(block));
        if let Some(step) = self.steps.get(&key) {
            return *step;
        }
        // They take turns, as in a run: each one finds caches and threads as another one left them.
        let mut products = key.1.each_ref().map(|group| {
            Prepared::new(product.of_width(group.in_features), group, 1, Phase::Decode)
        });
        let mut between = Between::new(block, hidden, product == Product::W8a8, 1);
        let arena = &mut self.arena;
        let seconds = means(|| {
            let [first, second, third, fourth] =
                products.each_mut().map(|product| product.run(arena));
            [first, second, third, fourth, between.run()]
        });
        let [first, second, third, fourth, between] = seconds;
        let step = Step {
            products: [first, second, third, fourth],
            between,
        };
        self.steps.insert(key, step);
        step
    }

    /// Measures the logits of one row.
    pub fn output(&mut self, product: Product, group: &Group) -> f64 {
        let key = (product, group.clone());
        if let Some(seconds) = self.outputs.get(&key) {
            return *seconds;
        }
        let mut prepared = Prepared::new(product, group, 1, Phase::Decode);
        let [seconds] = means(|| [prepared.run(&mut self.arena)]);
        self.outputs.insert(key, seconds);
        seconds
    }

    /// Measures the correction of outliers, where `outliers` is their share of the values. The line is over a prompt's
    /// rows. With `decode`, it is the time of one row.
    pub fn shadow(&mut self, group: &Group, outliers: f64, decode: bool) -> Line {
        if outliers <= 0.0 {
            return Line {
                fixed: 0.0,
                each: 0.0,
            };
        }
        let key = (group.clone(), decode);
        if let Some(line) = self.shadows.get(&key) {
            return *line;
        }
        let line = if decode {
            Line {
                fixed: self.shadow_of(group, outliers, 1),
                each: 0.0,
            }
        } else {
            self.over_rows(|rates, rows| rates.shadow_of(group, outliers, rows))
        };
        self.shadows.insert(key, line);
        line
    }

    fn shadow_of(&mut self, group: &Group, outliers: f64, rows: usize) -> f64 {
        let (part, share) = part(group, OPERATIONS / (2 * rows));
        let mut quantized = QuantizedRows::default();
        // The numbers are spread evenly from −1 to 1.
        let clip = (1.0 - outliers) as f32;
        quantized.quantize_static(
            &numbers(rows * part.in_features),
            part.in_features,
            clip / 127.0,
            None,
            true,
        );
        let mut seconds = 0.0;
        for columns in &part.out_features {
            let one = Group {
                in_features: part.in_features,
                out_features: vec![*columns],
            };
            let Some(length) = packed_len(*columns, part.in_features) else {
                continue;
            };
            let (scales, sums) = (vec![0.01; *columns], vec![0; *columns]);
            let mut out = vec![0.0; rows * columns];
            let arena = &mut self.arena;
            seconds += median(|| {
                let packed = arena.take(length);
                let weight = int8_weight(arena, &packed, &one, *columns, &scales, &sums);
                seconds_of(|| shadow(quantized.view(), weight, OutputMut::new(&mut out, *columns)))
            });
        }
        seconds / share
    }

    /// Measures attention in a prompt. The line is the time of one row over the positions that the row reads.
    pub fn attention(&mut self, attention: &Attention, precision: Precision) -> Line {
        let key = (attention_key(attention), precision == Precision::Fast);
        if let Some(line) = self.attention.get(&key) {
            return *line;
        }
        let rows = self.rows.min(PAGE);
        let [few, many] = SEEN.map(|context| {
            let before = context.max(rows) - rows;
            // The mean of the positions that a row reads.
            let seen = before as f64 + f64::midpoint(1.0, rows as f64);
            (
                seen,
                self.attention_of(attention, precision, rows, before) / rows as f64,
            )
        });
        let line = Line::through(few, many);
        self.attention.insert(key, line);
        line
    }

    fn attention_of(
        &mut self,
        attention: &Attention,
        precision: Precision,
        rows: usize,
        before: usize,
    ) -> f64 {
        let shape = shape(attention, precision);
        let queries = numbers(rows * shape.heads * shape.head_dim);
        let mut out = vec![0.0; queries.len()];
        let cache = Cache::new(before + rows, self.kv_format, &shape);
        let arena = &mut self.arena;
        median(|| {
            let places = cache.take(arena);
            let slab = cache.slab(arena, &places, &shape);
            seconds_of(|| triad_kernels::attention(&queries, before, &slab, &shape, &mut out))
        })
    }

    /// Measures attention of one row in decode, over the positions that it reads.
    pub fn attention_step(&mut self, attention: &Attention, precision: Precision) -> Line {
        let key = attention_key(attention);
        if let Some(line) = self.attention_steps.get(&key) {
            return *line;
        }
        let shape = shape(attention, precision);
        let queries = numbers(shape.heads * shape.head_dim);
        let mut out = vec![0.0; queries.len()];
        let [few, many] = SEEN.map(|seen| {
            let cache = Cache::new(seen, self.kv_format, &shape);
            let arena = &mut self.arena;
            let [seconds] = means(|| {
                let places = cache.take(arena);
                let slab = cache.slab(arena, &places, &shape);
                let row = Row {
                    cache: &slab,
                    position: seen - 1,
                };
                [seconds_of(|| {
                    triad_kernels::attention_of_rows(&queries, &[row], &shape, &mut out);
                })]
            });
            (seen as f64, seconds)
        });
        let line = Line::through(few, many);
        self.attention_steps.insert(key, line);
        line
    }

    /// Measures the operators between the linear layers of a block: norms, residuals, RoPE, activation, writes to the
    /// KV cache and, with INT8 linear layers, quantization.
    pub fn between(&mut self, block: &BlockDescription, hidden: usize, int8: bool) -> Line {
        let key = (between_key(block), int8);
        if let Some(line) = self.between.get(&key) {
            return *line;
        }
        let line = self.over_rows(|_, rows| {
            let mut between = Between::new(block, hidden, int8, rows);
            median(|| between.run())
        });
        self.between.insert(key, line);
        line
    }
}

fn attention_key(attention: &Attention) -> AttentionKey {
    (
        attention.heads,
        attention.kv_heads,
        attention.head_dim,
        attention.soft_cap.is_some(),
    )
}

fn between_key(block: &BlockDescription) -> BetweenKey {
    let mixer = match &block.mixer {
        Mixer::Attention(attention) => format!(
            "{:?}",
            (
                attention.heads,
                attention.kv_heads,
                attention.head_dim,
                attention.rope.dims,
                attention.qk_norm,
            )
        ),
        mixer => format!("{mixer:?}"),
    };
    format!(
        "{:?} {mixer} {:?} {:?}",
        block.feed_forward, block.norm, block.residual
    )
}

fn shape(attention: &Attention, precision: Precision) -> Shape<'static> {
    Shape {
        heads: attention.heads,
        kv_heads: attention.kv_heads,
        head_dim: attention.head_dim,
        scale: attention.scale,
        window: None,
        soft_cap: attention.soft_cap,
        sinks: None,
        precision,
    }
}

/// Returns the median time of a few runs after a warm-up run. For runs that take milliseconds.
fn median(mut run: impl FnMut() -> f64) -> f64 {
    let [times] = turns(RUNS, SECONDS, || [run()]);
    timing::median(&times)
}

/// Returns the mean time of each of several kernels that take turns. For runs that take microseconds: a decode step has
/// many of them, and its time is their sum.
fn means<const N: usize>(run: impl FnMut() -> [f64; N]) -> [f64; N] {
    turns(RUNS, SECONDS, run).map(undisturbed_mean)
}

/// Returns the mean of the times that are at most twice the median. In longer runs another program had the core.
fn undisturbed_mean(mut times: Vec<f64>) -> f64 {
    times.sort_unstable_by(f64::total_cmp);
    let most = 2.0 * times[times.len() / 2];
    let count = times.iter().take_while(|seconds| **seconds <= most).count();
    times[..count].iter().sum::<f64>() / count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_goes_through_both_points_and_no_part_of_it_is_below_zero() {
        let line = Line::through((10.0, 3.0), (20.0, 4.0));
        assert_eq!(
            [line.at(10.0), line.at(20.0), line.at(0.0)],
            [3.0, 4.0, 2.0]
        );
        // Fewer rows that take longer than more rows; and a slope steeper than from zero.
        assert_eq!(
            Line::through((10.0, 5.0), (20.0, 4.0)),
            Line {
                fixed: 4.0,
                each: 0.0
            }
        );
        assert_eq!(
            Line::through((10.0, 1.0), (20.0, 4.0)),
            Line {
                fixed: 0.0,
                each: 0.2
            }
        );
        assert_eq!(
            Line::through((1.0, 2.0), (1.0, 2.0)),
            Line {
                fixed: 0.0,
                each: 2.0
            }
        );
    }

    #[test]
    fn a_run_that_was_disturbed_does_not_count() {
        assert_eq!(undisturbed_mean(vec![1.0, 2.0, 9.0, 3.0]), 2.0);
        assert_eq!(undisturbed_mean(vec![1.0, 2.0, 9.0, 1.5, 2.5]), 1.75);
        assert_eq!(undisturbed_mean(vec![7.0]), 7.0);
    }
}
