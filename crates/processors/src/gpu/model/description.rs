//! Whether a model is one that a GPU computes.

use triad_kernels::Matrix;
use triad_model::description::{BlockDescription, Linear, LinearShape, Residual};

use super::weights::{row_bytes, stored};
use crate::error::{Error, Result};
use crate::model::{FloatBlock, FloatLinear, FloatModel, FloatNorm};

impl FloatLinear<'_> {
    /// Rows of the weight, which reads so many features.
    pub(super) fn out_features(&self, in_features: usize) -> usize {
        stored(self.weight).0.len() / row_bytes(self.weight, in_features)
    }
}

/// Features that a unit of weights has: what layers read is a multiple of it.
pub(super) const UNIT: usize = 8;

impl FloatModel<'_> {
    /// Whether its parts agree, and a GPU computes such shapes.
    ///
    /// # Errors
    /// [`Error::GpuModel`], which names the part.
    pub(super) fn check(&self, gpu: &str) -> Result<()> {
        let Self { description, rotations, rotation_of_block, blocks, output_norm, output } = self;
        let hidden = description.hidden;
        let check = Check { gpu };
        let count = description.blocks.len();
        check.that(blocks.len() == count && rotation_of_block.len() == count, || {
            format!("it has weights of {} blocks and rotations of {}", blocks.len(), rotation_of_block.len())
        })?;
        for (index, (block, described)) in blocks.iter().zip(&description.blocks).enumerate() {
            let named = |error: String| format!("block {index}: {error}");
            block.check(described, hidden).map_err(|error| check.refused(named(error)))?;
            let pairs = rotations.get(rotation_of_block[index]).map(|rotation| rotation.frequencies.len());
            check.that(pairs == Some(described.attention.rope.dims / 2), || {
                named(format!(
                    "its rotation has {pairs:?} frequencies, for {} dimensions",
                    described.attention.rope.dims
                ))
            })?;
        }
        norm_fits(output_norm, hidden).map_err(|error| check.refused(format!("output norm: {error}")))?;
        let shape = (description.vocab, hidden);
        linear_fits(output, shape, output.bias.is_some())
            .map_err(|error| check.refused(format!("output matrix: {error}")))
    }
}

struct Check<'a> {
    gpu: &'a str,
}

impl Check<'_> {
    fn refused(&self, reason: String) -> Error {
        Error::GpuModel { gpu: self.gpu.to_owned(), reason }
    }

    fn that(&self, holds: bool, reason: impl Fn() -> String) -> Result<()> {
        if holds { Ok(()) } else { Err(self.refused(reason())) }
    }
}

impl<'a> FloatBlock<'a> {
    /// The layers `wanted`, in this order.
    pub(super) fn layers(&self, wanted: &[Linear]) -> Vec<FloatLinear<'a>> {
        let layer = |name: &Linear| self.linears.iter().find(|(linear, _)| linear == name).map(|(_, layer)| *layer);
        wanted.iter().filter_map(layer).collect()
    }

    fn check(&self, described: &BlockDescription, hidden: usize) -> std::result::Result<(), String> {
        let head_dim = described.attention.head_dim;
        if !head_dim.is_multiple_of(UNIT) {
            return Err(format!("heads are {head_dim} wide, expected a multiple of {UNIT}"));
        }
        let (post, second) = match described.residual {
            Residual::Serial => (false, true),
            Residual::SerialPostNorm => (true, true),
            Residual::Parallel => (false, false),
        };
        let has_head_norms = described.attention.qk_norm.is_some();
        let norms = [
            ("attention norm", Some(&self.attention_norm), hidden, true),
            ("attention post norm", self.attention_post_norm.as_ref(), hidden, post),
            ("feed-forward norm", self.feed_forward_norm.as_ref(), hidden, second),
            ("feed-forward post norm", self.feed_forward_post_norm.as_ref(), hidden, post),
            ("query norm", self.query_norm.as_ref(), head_dim, has_head_norms),
            ("key norm", self.key_norm.as_ref(), head_dim, has_head_norms),
        ];
        for (name, norm, features, wanted) in norms {
            match norm {
                Some(norm) if wanted => norm_fits(norm, features).map_err(|error| format!("{name}: {error}"))?,
                None if !wanted => {}
                _ => return Err(format!("{name}: expected exactly where the description has one")),
            }
        }
        for LinearShape { linear, out_features, in_features, bias } in described.linears(hidden) {
            match &self.layers(&[linear])[..] {
                [layer] => linear_fits(layer, (out_features, in_features), bias)
                    .map_err(|error| format!("{linear:?}: {error}"))?,
                _ => return Err(format!("{linear:?}: no weights")),
            }
        }
        Ok(())
    }
}

fn norm_fits(norm: &FloatNorm, features: usize) -> std::result::Result<(), String> {
    let lengths = [Some(norm.weight.len()), norm.bias.map(<[f32]>::len)];
    match lengths.into_iter().flatten().find(|length| *length != features) {
        Some(length) => Err(format!("{length} values, expected {features}")),
        None => Ok(()),
    }
}

fn linear_fits(layer: &FloatLinear, shape: (usize, usize), bias: bool) -> std::result::Result<(), String> {
    let (out_features, in_features) = shape;
    let (multiple, scales) = match layer.weight {
        Matrix::Int4 { scales, .. } => {
            let group = triad_kernels::int4::GROUP;
            (group, Some((scales.len(), out_features * in_features / group)))
        }
        Matrix::Int8 { scales, .. } => (UNIT, Some((scales.len(), out_features))),
        Matrix::F32(_) | Matrix::F16(_) | Matrix::Bf16(_) => (UNIT, None),
    };
    if !in_features.is_multiple_of(multiple) {
        return Err(format!("it reads {in_features} features, expected a multiple of {multiple}"));
    }
    let (found, row) = (stored(layer.weight).0.len(), row_bytes(layer.weight, in_features));
    if out_features.checked_mul(row) != Some(found) {
        return Err(format!("weights of {found} bytes, expected {out_features} rows of {row}"));
    }
    if let Some((found, expected)) = scales.filter(|(found, expected)| found != expected) {
        return Err(format!("{found} scales, expected {expected}"));
    }
    if layer.bias.map(<[f32]>::len) != bias.then_some(out_features) {
        return Err(format!(
            "a bias of {:?} values, expected {:?}",
            layer.bias.map(<[f32]>::len),
            bias.then_some(out_features)
        ));
    }
    Ok(())
}
