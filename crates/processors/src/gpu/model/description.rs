//! Checks whether a GPU can run a model.

use triad_kernels::Matrix;
use triad_kernels::int8::{Int8Weight, MAX_IN_FEATURES, packed_len};
use triad_model::description::{
    Attention, BlockDescription, KeyValues, Linear, LinearShape, QkNorm,
};

use super::weight_format::UNIT;
use super::weights::{Layer, row_bytes, stored_bytes};
use crate::error::{Error, Result};
use crate::model::{DeviceBlock, DeviceLinear, DeviceModel, DeviceNorm, DeviceWeight, Int8Input};
use crate::subgraph::is_scale;

impl DeviceLinear<'_> {
    /// Returns the number of rows of the weight, which reads `in_features` features.
    pub(super) fn out_features(&self, in_features: usize) -> usize {
        Layer::from(self.weight).out_features(in_features)
    }
}

impl DeviceModel<'_> {
    /// Returns the attention of a block of a model that was checked.
    pub(super) fn attention(&self, index: usize) -> &Attention {
        attention_of(&self.description.blocks[index])
    }

    /// Checks that the model's parts are consistent, and that the shaders support its shapes.
    ///
    /// # Errors
    /// [`Error::GpuModel`] with the name of the part that does not fit.
    pub(super) fn check(&self, gpu: &str) -> Result<()> {
        let Self {
            description,
            rotations,
            rotation_of_block,
            blocks,
            output_norm,
            output,
        } = self;
        let hidden = description.hidden;
        let check = Check { gpu };
        let count = description.blocks.len();
        check.that(
            blocks.len() == count && rotation_of_block.len() == count,
            || {
                format!(
                    "it has weights of {} blocks and rotations of {}",
                    blocks.len(),
                    rotation_of_block.len()
                )
            },
        )?;
        for (name, scale) in [
            ("residual additions", description.residual_scale),
            ("logits", description.logit_scale),
        ] {
            check.that(scale == 1.0, || {
                format!("it has a factor on {name}, which shaders do not compute")
            })?;
        }
        check.that(description.token_inputs.is_none(), || {
            "it has inputs of blocks by token, which shaders do not compute".to_owned()
        })?;
        check.that(description.streams.is_none(), || {
            "it has several residual streams, which shaders do not compute".to_owned()
        })?;
        // The other checks rely on this one.
        for (index, described) in description.blocks.iter().enumerate() {
            check.that(described.attention().is_some(), || {
                format!(
                    "block {index}: its mixer is not attention, which is all that shaders compute"
                )
            })?;
        }
        for (index, (block, described)) in blocks.iter().zip(&description.blocks).enumerate() {
            let named = |error: String| format!("block {index}: {error}");
            block
                .check(described, hidden)
                .map_err(|error| check.refused(named(error)))?;
            let pairs = rotations
                .get(rotation_of_block[index])
                .map(|rotation| rotation.frequencies.len());
            if let Some(part) = not_computed(described) {
                return Err(check.refused(named(format!(
                    "it has {part}, which shaders do not compute"
                ))));
            }
            let rope = &attention_of(described).rope;
            check.that(pairs == Some(rope.dims / 2), || {
                named(format!(
                    "its rotation has {pairs:?} frequencies, for {} dimensions",
                    rope.dims
                ))
            })?;
        }
        norm_fits(output_norm, hidden)
            .map_err(|error| check.refused(format!("output norm: {error}")))?;
        let shape = (description.vocab, hidden);
        let fits =
            linear_fits(output, shape, output.bias.is_some()).and_then(|()| match output.weight {
                DeviceWeight::Float(_) => Ok(()),
                DeviceWeight::Int8(..) => {
                    Err("it reads INT8, expected float activations".to_owned())
                }
            });
        fits.map_err(|error| check.refused(format!("output matrix: {error}")))
    }
}

/// Returns the attention of a block of a model that was checked.
pub(super) fn attention_of(block: &BlockDescription) -> &Attention {
    block
        .attention()
        .expect("models with other mixers are refused")
}

/// Returns the first part of a block that no shader computes.
fn not_computed(block: &BlockDescription) -> Option<&'static str> {
    let attention = attention_of(block);
    let factors = [
        block.mixer_scale,
        block.feed_forward_scale,
        block.feed_forward.gate_scale,
    ];
    let is_spanned = |norm: &QkNorm| norm.spans_heads || norm.after_rope;
    [
        (attention.rope.dims == 0, "no RoPE"),
        (!block.residual.has_feed_forward(), "no feed-forward"),
        (
            factors.iter().any(|factor| *factor != 1.0),
            "factors on its parts",
        ),
        (
            !block.residual.has_attention_norm(),
            "no norm before attention",
        ),
        (
            attention.qk_norm.as_ref().is_some_and(is_spanned),
            "norms of queries and keys over all heads or after RoPE",
        ),
        (attention.bidirectional, "attention to later positions"),
        (
            block.residual.replaces(),
            "norms that replace the residual stream",
        ),
        (attention.sinks, "sinks of attention"),
        (
            attention.key_values != KeyValues::Own,
            "no layers of its own for keys and values",
        ),
        (attention.value_norm.is_some(), "a norm of values"),
        (block.scaled, "a factor on the residual stream after it"),
        (attention.output_gate, "gates on the output of attention"),
        (block.feed_forward.experts.is_some(), "experts"),
        (
            block.feed_forward.cutoff.is_some(),
            "small gates that become 0",
        ),
        (
            attention.temperature.is_some(),
            "a factor on queries by position",
        ),
    ]
    .into_iter()
    .find_map(|(has_it, part)| has_it.then_some(part))
}

struct Check<'a> {
    gpu: &'a str,
}

impl Check<'_> {
    fn refused(&self, reason: String) -> Error {
        Error::GpuModel {
            gpu: self.gpu.to_owned(),
            reason,
        }
    }

    fn that(&self, holds: bool, reason: impl Fn() -> String) -> Result<()> {
        if holds {
            Ok(())
        } else {
            Err(self.refused(reason()))
        }
    }
}

impl<'a> DeviceBlock<'a> {
    /// Returns the layers `wanted`, in this order.
    pub(super) fn layers(&self, wanted: &[Linear]) -> Vec<DeviceLinear<'a>> {
        let layer = |name: &Linear| {
            self.linears
                .iter()
                .find(|(linear, _)| linear == name)
                .map(|(_, layer)| *layer)
        };
        wanted.iter().filter_map(layer).collect()
    }

    fn check(
        &self,
        described: &BlockDescription,
        hidden: usize,
    ) -> std::result::Result<(), String> {
        let attention = attention_of(described);
        let head_dim = attention.head_dim;
        if !head_dim.is_multiple_of(UNIT) {
            return Err(format!(
                "heads are {head_dim} wide, expected a multiple of {UNIT}"
            ));
        }
        let residual = described.residual;
        let (post, second) = (residual.has_post_norms(), residual.has_feed_forward_norm());
        let has_head_norms = attention.qk_norm.is_some();
        let norms = [
            (
                "attention norm",
                self.attention_norm.as_ref(),
                hidden,
                residual.has_attention_norm(),
            ),
            (
                "attention post norm",
                self.attention_post_norm.as_ref(),
                hidden,
                post,
            ),
            (
                "feed-forward norm",
                self.feed_forward_norm.as_ref(),
                hidden,
                second,
            ),
            (
                "feed-forward post norm",
                self.feed_forward_post_norm.as_ref(),
                hidden,
                post,
            ),
            (
                "query norm",
                self.query_norm.as_ref(),
                head_dim,
                has_head_norms,
            ),
            ("key norm", self.key_norm.as_ref(), head_dim, has_head_norms),
        ];
        for (name, norm, features, wanted) in norms {
            match norm {
                Some(norm) if wanted => {
                    norm_fits(norm, features).map_err(|error| format!("{name}: {error}"))?;
                }
                None if !wanted => {}
                _ => {
                    return Err(format!(
                        "{name}: expected exactly where the description has one"
                    ));
                }
            }
        }
        for LinearShape {
            linear,
            out_features,
            in_features,
            bias,
        } in described.linears(hidden)
        {
            match &self.layers(&[linear])[..] {
                [layer] => linear_fits(layer, (out_features, in_features), bias)
                    .map_err(|error| format!("{linear:?}: {error}"))?,
                _ => return Err(format!("{linear:?}: no weights")),
            }
        }
        for readers in READERS {
            let layers = self.layers(readers);
            if layers
                .windows(2)
                .any(|pair| input(&pair[0]) != input(&pair[1]))
            {
                return Err(format!(
                    "{readers:?} read one input and have several of its scales"
                ));
            }
        }
        Ok(())
    }
}

/// Groups of layers that read the same input.
const READERS: [&[Linear]; 2] = [
    &[Linear::Query, Linear::Key, Linear::Value],
    &[Linear::Gate, Linear::Up],
];

/// Returns how the layer's input is quantized to INT8, and whether decode uses other weights without quantization.
fn input<'a>(layer: &DeviceLinear<'a>) -> (Option<Int8Input<'a>>, bool) {
    (layer.weight.input(), layer.decode_weight.is_some())
}

fn norm_fits(norm: &DeviceNorm, features: usize) -> std::result::Result<(), String> {
    let lengths = [Some(norm.weight.len()), norm.bias.map(<[f32]>::len)];
    match lengths
        .into_iter()
        .flatten()
        .find(|length| *length != features)
    {
        Some(length) => Err(format!("{length} values, expected {features}")),
        None => Ok(()),
    }
}

fn linear_fits(
    layer: &DeviceLinear,
    shape: (usize, usize),
    bias: bool,
) -> std::result::Result<(), String> {
    match layer.weight {
        DeviceWeight::Float(matrix) => matrix_fits(matrix, shape)?,
        DeviceWeight::Int8(weight, input) => int8_fits(weight, &input, shape)?,
    }
    if let Some(matrix) = layer.decode_weight {
        matrix_fits(matrix, shape).map_err(|error| format!("in decode, {error}"))?;
    }
    let (out_features, _) = shape;
    if layer.bias.map(<[f32]>::len) != bias.then_some(out_features) {
        return Err(format!(
            "a bias of {:?} values, expected {:?}",
            layer.bias.map(<[f32]>::len),
            bias.then_some(out_features)
        ));
    }
    Ok(())
}

fn matrix_fits(
    matrix: Matrix,
    (out_features, in_features): (usize, usize),
) -> std::result::Result<(), String> {
    let (multiple, scales) = match matrix {
        Matrix::Int4 { scales, .. } => {
            let group = triad_kernels::int4::GROUP;
            (
                group,
                Some((scales.len(), out_features * in_features / group)),
            )
        }
        Matrix::Int8 { scales, .. } => (UNIT, Some((scales.len(), out_features))),
        Matrix::F32(_) | Matrix::F16(_) | Matrix::Bf16(_) | Matrix::Blocks(_) => (UNIT, None),
    };
    reads_multiple_of(multiple, in_features)?;
    let (found, row) = (stored_bytes(matrix), row_bytes(matrix, in_features));
    if out_features.checked_mul(row) != Some(found) {
        return Err(format!(
            "weights of {found} bytes, expected {out_features} rows of {row}"
        ));
    }
    match scales.filter(|(found, expected)| found != expected) {
        Some((found, expected)) => Err(format!("{found} scales, expected {expected}")),
        None => Ok(()),
    }
}

fn int8_fits(
    weight: Int8Weight,
    input: &Int8Input,
    (out_features, in_features): (usize, usize),
) -> std::result::Result<(), String> {
    reads_multiple_of(UNIT, in_features)?;
    if in_features > MAX_IN_FEATURES {
        return Err(format!(
            "it reads {in_features} features in INT8, expected {MAX_IN_FEATURES} at most"
        ));
    }
    if (weight.out_features, weight.in_features) != (out_features, in_features) {
        let found = (weight.out_features, weight.in_features);
        return Err(format!(
            "a weight of {found:?} in INT8, expected {:?}",
            (out_features, in_features)
        ));
    }
    let smoothing = input.smoothing.map_or(in_features, <[f32]>::len);
    for (what, found, expected) in [
        (
            "packed numbers",
            weight.packed.len(),
            packed_len(out_features, in_features).unwrap_or(usize::MAX),
        ),
        ("scales", weight.scales.len(), out_features),
        ("factors of smoothing", smoothing, in_features),
    ] {
        if found != expected {
            return Err(format!("{found} {what}, expected {expected}"));
        }
    }
    if !is_scale(input.scale) {
        return Err(format!(
            "an input scale of {}, expected a positive one to divide by",
            input.scale
        ));
    }
    Ok(())
}

fn reads_multiple_of(multiple: usize, in_features: usize) -> std::result::Result<(), String> {
    if in_features.is_multiple_of(multiple) {
        return Ok(());
    }
    Err(format!(
        "it reads {in_features} features, expected a multiple of {multiple}"
    ))
}
