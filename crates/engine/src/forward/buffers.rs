//! The activations of one chunk, and the RoPE frequencies of a session.

use std::ops::Range;
use std::sync::{Arc, Mutex, RwLock};

use triad_kernels::lease::{LeasedMatrix, ReadLease};
use triad_kernels::mixer::scratch_rows;
use triad_kernels::rope::Angles;
use triad_model::description::{
    Attention, BlockDescription, Linear, Mixer, ModelDescription, Rope, RopeScaling, Streams,
};
use triad_model::role::Role;

use super::kernels::{delta_net_shape, mamba2_shape};
use crate::linear::{QuantizedInput, layers};
use crate::outlier_cache::Requested;
use crate::pictures::PictureRows;

/// Activations of one chunk. Several processors may compute them concurrently: a task leases each field that it uses,
/// for reading, or for writing as a whole or in rectangles. In shapes, `rows` are the tokens of the chunk.
pub struct Buffers {
    /// The number of rows that fit.
    rows: usize,
    /// Residual stream `[rows, hidden]`.
    pub(super) x: LeasedMatrix,
    /// Norm of the residual stream `[rows, hidden]`.
    pub(super) normed: LeasedMatrix,
    /// `[rows, heads, head_dim]`, or `[rows, heads, 2, head_dim]` with gates of the output after the queries.
    pub(super) queries: LeasedMatrix,
    /// The queries of layers whose outputs have gates, or those that fit latent vectors, `[rows, heads, head_dim]`.
    pub(super) separate_queries: LeasedMatrix,
    /// `[rows, kv_heads, head_dim]`.
    pub(super) keys: LeasedMatrix,
    /// `[rows, kv_heads, head_dim]`.
    pub(super) values: LeasedMatrix,
    /// The inputs of a mixer with a state.
    pub(super) mixed: LeasedMatrix,
    /// Intermediate values of a mixer, of some rows.
    pub(super) mixer_scratch: LeasedMatrix,
    /// `[rows, heads, head_dim]`, or the output of another mixer.
    pub(super) attended: LeasedMatrix,
    /// Output of attention and of the feed-forward `[rows, hidden]`.
    pub(super) projected: LeasedMatrix,
    /// `[rows, width]`.
    pub(super) gate: LeasedMatrix,
    /// `[rows, width]`.
    pub(super) up: LeasedMatrix,
    /// Inputs by token of all blocks `[rows, blocks · width]`.
    pub(super) token_inputs: LeasedMatrix,
    /// Rows of the table of inputs by token; then a block's gate `[rows, width]`.
    pub(super) token_rows: LeasedMatrix,
    /// Shadows that are computed apart from their linear layers, `[rows, out_features]` of one layer after the other;
    /// empty if there are none.
    pub(super) shadows: LeasedMatrix,
    /// The subgraph of `shadows`, until they are added.
    pub(super) shadow_of: Mutex<Option<(usize, Role)>>,
    /// The requested rows for the shadow of the input that was quantized last.
    pub(super) requested: Mutex<Option<Requested>>,
    /// Rows of pictures, of which more is added to the residual stream after blocks: row, token, picture.
    pub(super) added_rows: RwLock<Vec<(usize, u32, Arc<PictureRows>)>>,
    /// RoPE of the chunk's positions, one for each distinct [`Rope`] of the model.
    pub(super) angles: RwLock<Vec<Angles>>,
    /// The input of linear layers, in INT8.
    pub(super) input: RwLock<QuantizedInput>,
    /// The rows of one expert.
    pub(super) experts: Mutex<ExpertBuffers>,
    /// Intermediate values of latent vectors.
    pub(super) latent: Mutex<LatentBuffers>,
    /// Several residual streams.
    pub(super) streams: Mutex<StreamBuffers>,
    /// Buffers of adapters.
    pub(super) adapters: Mutex<AdapterBuffers>,
}

/// Intermediate values of adapters.
#[derive(Default)]
pub(super) struct AdapterBuffers {
    /// `[rows of an adapter, in_features]`.
    pub(super) x: Vec<f32>,
    /// `[rows of an adapter, rank]`.
    pub(super) reduced: Vec<f32>,
    /// `[rows of an adapter, out_features]`.
    pub(super) added: Vec<f32>,
}

/// Intermediate values of latent vectors.
#[derive(Default)]
pub(super) struct LatentBuffers {
    /// All queries before they are multiplied with the key matrices.
    pub(super) queries: Vec<f32>,
    /// The inputs and the outputs of products of some heads.
    pub(super) of_head: [Vec<f32>; 2],
}

impl LatentBuffers {
    /// Returns the number of values for one row.
    pub(super) fn row_len(attention: &Attention) -> usize {
        let Some(latent) = attention.latent() else {
            return 0;
        };
        let queries = attention.latent_queries(&latent);
        // The same two vectors hold the products of queries and of values.
        let of_head = latent.key_dim.max(latent.width) + latent.width.max(latent.value_dim);
        queries + HEADS.min(attention.heads) * of_head
    }
}

/// The heads with latent vectors that are computed together: more than most machines have cores, and few enough to need little
/// memory.
pub(super) const HEADS: usize = 16;

/// The streams but the first, and intermediate values.
#[derive(Default)]
pub(super) struct StreamBuffers {
    /// `[rows, streams − 1, hidden]`.
    pub(super) others: Vec<f32>,
    /// The first stream as the block reads it, `[rows, hidden]`.
    pub(super) predicted: Vec<f32>,
    /// The output of the layers next to attention, `[rows, hidden]`.
    pub(super) added: Vec<f32>,
    /// The values between these layers, `[rows, rank]`.
    pub(super) reduced: Vec<f32>,
    /// One stream, or the input of a matrix, `[rows, hidden]`.
    pub(super) of_one: Vec<f32>,
    /// The outputs of the router, `[rows, streams]`.
    pub(super) routes: Vec<f32>,
}

impl StreamBuffers {
    /// Returns the number of values for one row.
    pub(super) fn row_len(hidden: usize, streams: &Streams) -> usize {
        (streams.count + 2) * hidden + streams.rank + streams.count
    }
}

/// The rows of one expert, and the choices of all. Reused from layer to layer.
#[derive(Default)]
pub(super) struct ExpertBuffers {
    /// The router's outputs, then the scores, `[rows, experts]`.
    pub(super) scores: Vec<f32>,
    /// One entry for each row and each of its experts, sorted by expert, then by row.
    pub(super) chosen: Vec<Chosen>,
    /// `[rows of an expert, hidden]`.
    pub(super) x: Vec<f32>,
    /// The input of an expert's layers, in INT8.
    pub(super) input: QuantizedInput,
    /// `[rows of an expert, width]`.
    pub(super) gate: Vec<f32>,
    /// `[rows of an expert, width]`.
    pub(super) up: Vec<f32>,
    /// `[rows of an expert, hidden]`.
    pub(super) out: Vec<f32>,
    /// The norm of the residual stream with which the experts of the next block are foreseen, `[rows, hidden]`.
    pub(super) foreseen: Vec<f32>,
    /// The inputs of router and experts that are a branch, and the sums of the experts, `[rows, hidden]`.
    pub(super) branch: [Vec<f32>; 3],
}

/// An expert of a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Chosen {
    pub(super) expert: usize,
    pub(super) row: usize,
    pub(super) weight: f32,
}

/// The parts of RoPE that depend on no token.
pub struct Rotation {
    /// The distinct ones of the model: frequencies `[dims / 2]`, and the factor on cosine and sine.
    pub(super) distinct: Vec<(Vec<f32>, f32)>,
    /// The index of each block's own among them; arbitrary for blocks without attention.
    pub(super) of_block: Vec<usize>,
}

impl Rotation {
    /// Creates the parts for a session of `context` tokens, which selects one of LongRoPE's two sets of divisors.
    pub(crate) fn new(description: &ModelDescription, context: usize) -> Self {
        let mut ropes: Vec<&Rope> = Vec::new();
        let of_block = description.blocks.iter().map(|block| {
            let Mixer::Attention(attention) = &block.mixer else {
                return 0;
            };
            let rope = &attention.rope;
            ropes
                .iter()
                .position(|other| *other == rope)
                .unwrap_or_else(|| {
                    ropes.push(rope);
                    ropes.len() - 1
                })
        });
        let of_block = of_block.collect();
        Self {
            distinct: ropes
                .iter()
                .map(|rope| frequencies(rope, context))
                .collect(),
            of_block,
        }
    }

    /// Returns frequencies and factor of each distinct RoPE, and the index of each block's own.
    pub fn parts(&self) -> (&[(Vec<f32>, f32)], &[usize]) {
        (&self.distinct, &self.of_block)
    }
}

fn frequencies(rope: &Rope, context: usize) -> (Vec<f32>, f32) {
    let (divisor, factor): (Box<dyn Fn(usize) -> f32 + '_>, f32) = match &rope.scaling {
        RopeScaling::None => (Box::new(|_| 1.0), 1.0),
        RopeScaling::Linear { factor } => (Box::new(|_| *factor), 1.0),
        RopeScaling::Factors { factors } => (Box::new(|pair| factors[pair]), 1.0),
        RopeScaling::Yarn {
            factors,
            attention_factor,
        } => (Box::new(|pair| factors[pair]), *attention_factor),
        RopeScaling::LongRope {
            short,
            long,
            original_context,
            attention_factor,
        } => {
            let factors = if context > *original_context {
                long
            } else {
                short
            };
            (Box::new(|pair| factors[pair]), *attention_factor)
        }
    };
    let frequency = |pair: usize| {
        if pair + rope.still >= rope.dims / 2 {
            return 0.0;
        }
        let exponent = 2.0 * pair as f64 / rope.dims as f64;
        (f64::from(rope.base).powf(-exponent) / f64::from(divisor(pair))) as f32
    };
    ((0..rope.dims / 2).map(frequency).collect(), factor)
}

impl Buffers {
    /// Allocates buffers for up to `rows` rows, and for shadows apart from their linear layers if `has_shadows`.
    pub fn new(description: &ModelDescription, rows: usize, has_shadows: bool) -> Self {
        let Widths {
            query,
            separate_query,
            key_value,
            mixed,
            mixer_scratch,
            attended,
            width,
            token_inputs,
        } = Widths::new(description);
        let zeros = |width: usize| LeasedMatrix::new(rows * width);
        Self {
            rows,
            x: zeros(description.hidden),
            normed: zeros(description.hidden),
            queries: zeros(query),
            separate_queries: zeros(separate_query),
            keys: zeros(key_value),
            values: zeros(key_value),
            mixed: zeros(mixed),
            mixer_scratch: LeasedMatrix::new(scratch_rows(rows) * mixer_scratch),
            attended: zeros(attended),
            projected: zeros(description.hidden),
            gate: zeros(width),
            up: zeros(width),
            token_inputs: zeros(token_inputs),
            token_rows: zeros(token_inputs),
            shadows: zeros(if has_shadows {
                shadow_width(description)
            } else {
                0
            }),
            shadow_of: Mutex::default(),
            requested: Mutex::default(),
            added_rows: RwLock::default(),
            angles: RwLock::default(),
            input: RwLock::default(),
            experts: Mutex::default(),
            latent: Mutex::default(),
            streams: Mutex::default(),
            adapters: Mutex::default(),
        }
    }

    /// Returns the buffer of a linear layer's outputs.
    pub(super) fn output(&self, linear: Linear) -> &LeasedMatrix {
        match linear {
            Linear::Query => &self.queries,
            Linear::Key => &self.keys,
            Linear::Value => &self.values,
            Linear::MixerInput | Linear::MixerGate | Linear::MixerRate | Linear::MixerDecay => {
                &self.mixed
            }
            Linear::AttentionOutput | Linear::MixerOutput | Linear::Down => &self.projected,
            Linear::Gate => &self.gate,
            Linear::Up => &self.up,
            Linear::ExpertGate(_) | Linear::ExpertUp(_) | Linear::ExpertDown(_) => {
                unreachable!("experts have buffers of their own")
            }
        }
    }

    /// Returns the number of rows that fit.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Returns the residual stream of some rows.
    pub fn residual(&self, rows: Range<usize>, hidden: usize) -> ReadLease<'_> {
        self.x.read(hidden, rows)
    }

    /// Returns the maximum number of rows that buffers can have.
    pub(crate) fn most_rows(description: &ModelDescription) -> usize {
        let widths = Widths::new(description);
        let widest = [
            widths.query,
            widths.key_value,
            widths.mixed,
            widths.attended,
            widths.width,
            widths.token_inputs,
            description.hidden,
            shadow_width(description),
        ];
        LeasedMatrix::MAX_VALUES / widest.into_iter().max().unwrap_or(1).max(1)
    }

    /// Returns the bytes per row.
    pub fn bytes_per_row(description: &ModelDescription) -> usize {
        let Widths {
            query,
            separate_query,
            key_value,
            mixed,
            mixer_scratch,
            attended,
            width,
            token_inputs,
        } = Widths::new(description);
        let of_mixer = query + separate_query + 2 * key_value + mixed + mixer_scratch + attended;
        let floats = 3 * description.hidden + of_mixer + 2 * width + 2 * token_inputs;
        let of_experts = |block: &BlockDescription| match block.feed_forward.experts {
            Some(experts) => {
                let of_branch = if experts.branch { 3 } else { 0 };
                experts.count + 2 * experts.width + (2 + of_branch) * description.hidden
            }
            None => 0,
        };
        let floats = floats + description.blocks.iter().map(of_experts).max().unwrap_or(0);
        let latent = |block: &BlockDescription| block.attention().map_or(0, LatentBuffers::row_len);
        let floats = floats + description.blocks.iter().map(latent).max().unwrap_or(0);
        let streams = description.streams.as_ref();
        let floats =
            floats + streams.map_or(0, |it| StreamBuffers::row_len(description.hidden, it));
        // Also the widest input of linear layers, in INT8.
        floats * size_of::<f32>() + description.hidden.max(attended).max(width)
    }

    /// Returns the bytes per row of shadows that are computed apart.
    pub fn shadow_bytes_per_row(description: &ModelDescription) -> usize {
        shadow_width(description) * size_of::<f32>()
    }
}

/// Returns the maximum number of output features of the layers that read one input.
fn shadow_width(description: &ModelDescription) -> usize {
    let of_block = |block: &BlockDescription| {
        let features = |role| {
            layers(block, description.hidden, role)
                .iter()
                .map(|(_, features)| features)
                .sum::<usize>()
        };
        Role::ALL.into_iter().map(features).max().unwrap_or(0)
    };
    description.blocks.iter().map(of_block).max().unwrap_or(0)
}

/// The widest values of all blocks.
struct Widths {
    query: usize,
    /// Queries that are separated from gates.
    separate_query: usize,
    key_value: usize,
    /// Inputs of mixers with a state.
    mixed: usize,
    /// Intermediate values of mixers.
    mixer_scratch: usize,
    /// Outputs of all mixers.
    attended: usize,
    /// Inner values of the feed-forward.
    width: usize,
    /// Inputs by token of all blocks.
    token_inputs: usize,
}

impl Widths {
    fn new(description: &ModelDescription) -> Self {
        let widest = |width: &dyn Fn(&BlockDescription) -> usize| {
            description.blocks.iter().map(width).max().unwrap_or(0)
        };
        let heads = |heads: &dyn Fn(&Attention) -> usize| {
            widest(&|block| {
                block
                    .attention()
                    .map_or(0, |attention| heads(attention) * attention.head_dim)
            })
        };
        Self {
            // Weighted sums of latent vectors take the place of the queries.
            query: widest(&|block| {
                let attention = block.attention();
                attention.map_or(0, |it| match it.latent() {
                    Some(_) => it.query_width().max(it.heads * it.head_dim),
                    None => it.query_width(),
                })
            }),
            separate_query: heads(&|attention| match attention.output_gate
                || !attention.stores_values()
            {
                true => attention.heads,
                false => 0,
            }),
            key_value: heads(&Attention::stored_heads),
            mixed: widest(&|block| block.mixer.state().map_or(0, |size| size.row)),
            mixer_scratch: widest(&|block| match &block.mixer {
                Mixer::DeltaNet(net) => delta_net_shape(net).scratch_len(),
                Mixer::Mamba2(mamba) => mamba2_shape(mamba).scratch_len(),
                Mixer::Attention(_) | Mixer::ShortConv(_) => 0,
            }),
            attended: widest(&|block| block.mixer.width()),
            width: widest(&|block| block.feed_forward.width),
            token_inputs: description
                .token_inputs
                .map_or(0, |inputs| inputs.width * description.blocks.len()),
        }
    }
}

#[cfg(test)]
mod tests {
    use triad_model::description::{Experts, Routing};

    use super::*;
    use crate::testing::models::description;

    #[test]
    fn rows_of_experts_that_are_a_branch_are_counted() {
        let bytes = |branch: bool| {
            let mut description = description();
            for block in &mut description.blocks {
                block.feed_forward.experts = Some(Experts {
                    count: 4,
                    used: 2,
                    width: 8,
                    routing: Routing::Softmax,
                    normalized: false,
                    sum_offset: 0.0,
                    sum_floor: 0.0,
                    scale: 1.0,
                    correction: false,
                    bias: false,
                    clamp: None,
                    shared_gate: false,
                    branch,
                    groups: None,
                });
            }
            Buffers::bytes_per_row(&description)
        };
        let of_branch = 3 * description().hidden * size_of::<f32>();
        assert_eq!(bytes(true), bytes(false) + of_branch);
    }
}
