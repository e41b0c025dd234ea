//! Counts outliers: their position, skew and importance, and the memory of their shadows (llm.npu, §3.3).

use std::cmp::Reverse;

use serde::Serialize;
use triad_engine::weights::Embedding;
use triad_engine::{KvFormat, LinearInput, Model, memory};
use triad_kernels::int8;
use triad_model::description::ModelDescription;
use triad_prepare::plan::{self, InputSummary, PlanOptions};

use super::Subject;

/// Prompt tokens for the comparison of memory, as in the paper's figure 16.
pub const PROMPT_TOKENS: usize = 512;
/// Tokens per chunk, as in the paper.
const CHUNK: usize = 256;

/// Outliers of a model over a calibration text.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OutlierStudy {
    /// One entry per linear input, in the order of the layers.
    pub inputs: Vec<InputOutliers>,
    /// One entry per kind of input, over all layers.
    pub kinds: Vec<KindOutliers>,
    /// Totals of all inputs.
    pub all: KindOutliers,
    /// Memory of the rows of shadows.
    pub memory: ShadowMemory,
}

/// Outliers of one linear input: values beyond its clip threshold.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct InputOutliers {
    /// Index of the layer, from zero.
    pub block: usize,
    /// Kind of input.
    pub input: LinearInput,
    /// Channels of the input.
    pub channels: usize,
    /// Clip threshold.
    pub clip: f32,
    /// Average number of channels of one token that are outliers (figure 10).
    pub of_a_token: f64,
    /// Channels that were an outlier at some token.
    pub ever: usize,
    /// The fewest channels that cover the requested share of the outliers (figure 11).
    pub hot: usize,
    /// Largest outlier / clip threshold (figure 12).
    pub importance: f32,
    /// Whether its shadow is kept at the study's pruning rate.
    pub shadow: bool,
}

/// Outliers of several inputs together.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KindOutliers {
    /// Kind of input; `None` for all.
    pub input: Option<LinearInput>,
    /// Outlier channels per token, averaged over the inputs.
    pub of_a_token: f64,
    /// Outliers as a share of all values. It is also the share of a token's channels that are outliers.
    pub outlier_share: f64,
    /// Channels that were an outlier at some token, as a share of all channels.
    pub ever_share: f64,
    /// Channels that cover the requested share of their input's outliers, as a share of all channels.
    pub hot_share: f64,
    /// Largest importance.
    pub importance: f32,
    /// Pairs of a share of each input's channels, those with the most outliers first, and the share of the outliers
    /// that they cover.
    pub skew: Vec<[f64; 2]>,
}

/// Memory of shadows for a processor whose weights the CPU can't read. If the CPU can, shadows take no memory.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ShadowMemory {
    /// Bytes of the INT8 weights.
    pub weights: usize,
    /// Bytes of KV cache and activations for a prompt of [`PROMPT_TOKENS`] tokens.
    pub session: usize,
    /// Rows if every input keeps its shadow.
    pub unpruned: RowBytes,
    /// Rows at the study's pruning rate.
    pub pruned: RowBytes,
}

/// Bytes of the INT8 rows that shadows read. A row holds the weights that read one channel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct RowBytes {
    /// Rows of all channels: a second copy of the weights.
    pub all: usize,
    /// Rows of the channels that ever had an outlier.
    pub ever: usize,
    /// Rows of the hot channels.
    pub hot: usize,
}

impl RowBytes {
    /// Returns the saving of hot rows compared with the rows of all channels.
    pub fn saving(&self) -> f64 {
        saving(self.hot, self.all)
    }

    /// Returns the saving of hot rows compared with the rows of channels that ever had an outlier.
    pub fn saving_of_ever(&self) -> f64 {
        saving(self.hot, self.ever)
    }
}

fn saving(part: usize, whole: usize) -> f64 {
    if whole == 0 {
        0.0
    } else {
        1.0 - part as f64 / whole as f64
    }
}

impl ShadowMemory {
    /// Returns `rows` bytes as a share of all memory of a run with them.
    pub fn share(&self, rows: usize) -> f64 {
        rows as f64 / (self.weights + self.session + rows).max(1) as f64
    }
}

/// Counts outliers with the clip thresholds of `options`. `rate` is the share of the inputs without a shadow.
pub fn study(subject: &Subject, options: &PlanOptions, rate: f64) -> OutlierStudy {
    let mut summaries = subject.summarize(options);
    plan::prune(&mut summaries, rate);
    let counted: Vec<_> = subject
        .calibration
        .inputs()
        .zip(&summaries)
        .map(|((_, _, statistics), summary)| {
            Counted::new(statistics.outliers(summary.shadow_clip), summary)
        })
        .collect();
    let kind = |wanted: Option<LinearInput>| {
        let of_kind = counted
            .iter()
            .filter(|counted| wanted.is_none_or(|wanted| counted.summary.input == wanted));
        of_inputs(wanted, &of_kind.collect::<Vec<_>>())
    };
    OutlierStudy {
        inputs: summaries.iter().map(of_input).collect(),
        kinds: LinearInput::DENSE.map(|input| kind(Some(input))).into(),
        all: kind(None),
        memory: shadow_memory(&subject.model, &counted),
    }
}

/// Outliers per channel of one input, the most first.
struct Counted<'a> {
    summary: &'a InputSummary,
    outliers: Vec<u64>,
}

impl<'a> Counted<'a> {
    fn new(mut outliers: Vec<u64>, summary: &'a InputSummary) -> Self {
        outliers.sort_unstable_by_key(|count| Reverse(*count));
        Self { summary, outliers }
    }

    /// Returns the outliers of the first `share` of the channels. A partially included channel counts in proportion.
    fn of_first(&self, share: f64) -> f64 {
        let channels = share * self.outliers.len() as f64;
        let whole = channels as usize;
        let given: u64 = self.outliers.iter().take(whole).sum();
        let next = self.outliers.get(whole).copied().unwrap_or(0);
        given as f64 + (channels - whole as f64) * next as f64
    }
}

fn of_input(summary: &InputSummary) -> InputOutliers {
    InputOutliers {
        block: summary.block,
        input: summary.input,
        channels: summary.channels,
        clip: summary.shadow_clip,
        of_a_token: summary.outlier_share * summary.channels as f64,
        ever: summary.outlier_channels,
        hot: summary.hot_channels.len(),
        importance: summary.importance,
        shadow: summary.shadow,
    }
}

/// Points of a skew curve are powers of ten, from a thousandth of the channels to all of them.
const SKEW_DECADES: i32 = 3;
const POINTS_OF_DECADE: i32 = 20;

fn of_inputs(input: Option<LinearInput>, counted: &[&Counted]) -> KindOutliers {
    let summaries = || counted.iter().map(|counted| counted.summary);
    let sum = |of: &dyn Fn(&InputSummary) -> f64| summaries().map(of).sum::<f64>();
    let channels = sum(&|summary| summary.channels as f64).max(1.0);
    let of_a_token = sum(&|summary| summary.outlier_share * summary.channels as f64);
    let outliers: u64 = counted.iter().flat_map(|counted| &counted.outliers).sum();
    let skew = (-SKEW_DECADES * POINTS_OF_DECADE..=0)
        .filter(|_| outliers > 0)
        .map(|point| {
            let share = 10f64.powf(f64::from(point) / f64::from(POINTS_OF_DECADE));
            [
                share,
                counted
                    .iter()
                    .map(|counted| counted.of_first(share))
                    .sum::<f64>()
                    / outliers as f64,
            ]
        });
    KindOutliers {
        input,
        of_a_token: of_a_token / counted.len().max(1) as f64,
        outlier_share: of_a_token / channels,
        ever_share: sum(&|summary| summary.outlier_channels as f64) / channels,
        hot_share: sum(&|summary| summary.hot_channels.len() as f64) / channels,
        importance: summaries()
            .map(|summary| summary.importance)
            .fold(0.0, f32::max),
        skew: skew.collect(),
    }
}

fn shadow_memory(model: &Model, counted: &[Counted]) -> ShadowMemory {
    let description = model.description();
    let rows = |pruned: bool| {
        let mut bytes = RowBytes::default();
        for summary in counted
            .iter()
            .map(|counted| counted.summary)
            .filter(|summary| !pruned || summary.shadow)
        {
            let row = row_bytes(description, summary.block, summary.input);
            bytes.all += row * summary.channels;
            bytes.ever += row * summary.outlier_channels;
            bytes.hot += row * summary.hot_channels.len();
        }
        bytes
    };
    let context = PROMPT_TOKENS.min(description.context);
    let session = memory::of_session(description, 0, context, CHUNK, KvFormat::F16);
    ShadowMemory {
        weights: int8_bytes(model),
        session: session.total(),
        unpruned: rows(false),
        pruned: rows(true),
    }
}

/// Returns the bytes of the INT8 weights that read one channel of an input.
fn row_bytes(description: &ModelDescription, block: usize, input: LinearInput) -> usize {
    let readers = description.blocks[block]
        .linears(description.hidden)
        .into_iter();
    readers
        .filter(|shape| LinearInput::read_by(shape.linear) == input)
        .map(|shape| shape.out_features)
        .sum()
}

/// Returns the bytes of this float model's weights in INT8. Each output channel has a scale and a sum, the output
/// matrix has a scale for each token, and the embedding is unchanged.
fn int8_bytes(model: &Model) -> usize {
    let description = model.description();
    let shapes = description
        .blocks
        .iter()
        .flat_map(|block| block.linears(description.hidden));
    let linear = |out_features: usize, in_features: usize| {
        let scales = out_features * (size_of::<f32>() + size_of::<i32>());
        int8::packed_len(out_features, in_features).expect("the float weights are larger") + scales
    };
    let linears: usize = shapes
        .map(|shape| linear(shape.out_features, shape.in_features))
        .sum();
    let embedding = match &model.weights().embedding {
        Embedding::Stored { bytes, .. } => bytes.len(),
        Embedding::Output => 0,
        Embedding::Matrix(matrix) => matrix.bytes(),
    };
    linears + description.vocab * (description.hidden + size_of::<f32>()) + embedding
}
