//! Weights on a GPU. Layers that read the same input are concatenated and split into slabs that fit into the GPU's
//! buffers.

use std::borrow::Cow;
use std::ops::Range;

use triad_kernels::Matrix;
use triad_kernels::int8::Int8Weight;

use super::super::context::Context;
use super::weight_format::WeightFormat;
use crate::error::Result;
use crate::model::DeviceWeight;

/// Maximum number of workgroups in one dimension on every GPU.
pub(super) const MAX_GROUPS: usize = 65535;

/// Output columns of layers that read the same input. Their weights have one format and share a buffer.
#[derive(Debug)]
pub(super) struct Slab {
    pub format: WeightFormat,
    /// Index of its first column among the columns of all layers.
    pub first: usize,
    pub columns: usize,
    pub weight: wgpu::Buffer,
    /// Scales of the weights. Empty for W8A8, whose scales are stored with norms and biases.
    pub scales: wgpu::Buffer,
}

/// A slab whose weights are not on the GPU yet.
struct Planned<'a> {
    format: WeightFormat,
    first: usize,
    columns: usize,
    parts: Vec<Part<'a>>,
}

/// Some columns of a layer.
struct Part<'a> {
    layer: Layer<'a>,
    columns: Range<usize>,
    in_features: usize,
}

/// The weights of a layer: with float input or with INT8 input.
#[derive(Clone, Copy, Debug)]
pub(super) enum Layer<'a> {
    Float(Matrix<'a>),
    W8a8(Int8Weight<'a>),
}

/// Copies `layers`, which read `in_features` features, to the GPU. Their outputs are concatenated in this order.
///
/// # Errors
/// If there is no memory for them.
pub(super) fn upload(context: &Context, layers: &[Layer], in_features: usize) -> Result<Vec<Slab>> {
    plan(layers, in_features, context.most_bytes())
        .iter()
        .map(|slab| slab.upload(context))
        .collect()
}

/// Divides `layers` into slabs of at most `most_bytes` each. There are as few as possible, and all columns keep their
/// order.
fn plan<'a>(layers: &[Layer<'a>], in_features: usize, most_bytes: u64) -> Vec<Planned<'a>> {
    let mut planned: Vec<Planned> = Vec::new();
    let mut column = 0;
    for layer in layers {
        let (format, unit) = (layer.format(), layer.columns_together());
        let most_columns = (MAX_GROUPS * format.rows_columns()) as u64;
        let most =
            (most_bytes / layer.row_bytes(in_features) as u64).clamp(1, most_columns) as usize;
        let most = (most - most % unit).max(unit);
        let out_features = layer.out_features(in_features);
        let mut row = 0;
        while row < out_features {
            let is_full = |last: &Planned| {
                last.format != format || last.columns >= most || !last.columns.is_multiple_of(unit)
            };
            if planned.last().is_none_or(is_full) {
                planned.push(Planned {
                    format,
                    first: column,
                    columns: 0,
                    parts: Vec::new(),
                });
            }
            let last = planned.last_mut().expect("it was pushed");
            let taken = (out_features - row).min(most - last.columns);
            last.parts.push(Part {
                layer: *layer,
                columns: row..row + taken,
                in_features,
            });
            last.columns += taken;
            (row, column) = (row + taken, column + taken);
        }
    }
    planned
}

impl<'a> From<DeviceWeight<'a>> for Layer<'a> {
    fn from(weight: DeviceWeight<'a>) -> Self {
        match weight {
            DeviceWeight::Float(matrix) => Self::Float(matrix),
            DeviceWeight::Int8(weight, _) => Self::W8a8(weight),
        }
    }
}

impl<'a> Layer<'a> {
    fn format(&self) -> WeightFormat {
        match self {
            Self::Float(matrix) => WeightFormat::for_matrix(*matrix),
            Self::W8a8(_) => WeightFormat::W8a8,
        }
    }

    /// Returns the number of columns that can't be separated.
    fn columns_together(&self) -> usize {
        match self {
            Self::Float(_) => 1,
            Self::W8a8(_) => Int8Weight::COLUMNS,
        }
    }

    pub fn out_features(&self, in_features: usize) -> usize {
        match self {
            Self::Float(matrix) => stored_bytes(*matrix) / row_bytes(*matrix, in_features),
            Self::W8a8(weight) => weight.out_features,
        }
    }

    fn row_bytes(&self, in_features: usize) -> usize {
        match self {
            Self::Float(matrix) => row_bytes(*matrix, in_features),
            Self::W8a8(_) => in_features,
        }
    }
}

impl<'a> Part<'a> {
    /// Returns the bytes of the weights in the GPU's format, and the bytes of their scales.
    fn bytes(&self) -> [Cow<'a, [u8]>; 2] {
        let Self {
            layer,
            columns,
            in_features,
        } = self;
        match layer {
            Layer::Float(matrix) => {
                stored(matrix.rows(columns.clone(), *in_features), *in_features)
            }
            Layer::W8a8(weight) => [
                bytemuck::cast_slice(weight.columns(columns.clone()).packed).into(),
                Cow::default(),
            ],
        }
    }
}

impl Planned<'_> {
    fn upload(&self, context: &Context) -> Result<Slab> {
        let Self {
            format,
            first,
            columns,
            parts,
        } = self;
        let parts: Vec<_> = parts.iter().map(Part::bytes).collect();
        let weight = context.uploaded(
            "weights",
            &parts
                .iter()
                .map(|[values, _]| &**values)
                .collect::<Vec<_>>(),
        )?;
        // The buffer consists of whole words.
        let mut scales = parts
            .iter()
            .map(|[_, scales]| &**scales)
            .collect::<Vec<_>>()
            .concat();
        scales.resize(scales.len().next_multiple_of(4), 0);
        let scales = context.uploaded("scales", &[&scales])?;
        Ok(Slab {
            format: *format,
            first: *first,
            columns: *columns,
            weight,
            scales,
        })
    }
}

/// Returns the bytes of a row without its scales.
pub(super) fn row_bytes(matrix: Matrix, in_features: usize) -> usize {
    match matrix {
        Matrix::F32(_) => 4 * in_features,
        Matrix::F16(_) | Matrix::Bf16(_) => 2 * in_features,
        Matrix::Int8 { .. } => in_features,
        Matrix::Int4 { .. } => in_features / 2,
        Matrix::Blocks(_) => 4 * in_features,
    }
}

/// Returns the bytes of a matrix without its scales.
pub(super) fn stored_bytes(matrix: Matrix) -> usize {
    match matrix {
        Matrix::F32(values) => size_of_val(values),
        Matrix::F16(values) => size_of_val(values),
        Matrix::Bf16(values) => size_of_val(values),
        Matrix::Int8 { values, .. } => values.len(),
        Matrix::Int4 { values, .. } => values.len(),
        Matrix::Blocks(blocks) => 4 * blocks.elements(),
    }
}

/// Returns the bytes of a matrix with rows of `in_features` weights, and the bytes of its scales. Quantized blocks are
/// widened to f32.
fn stored(matrix: Matrix<'_>, in_features: usize) -> [Cow<'_, [u8]>; 2] {
    match matrix {
        Matrix::F32(values) => [bytemuck::cast_slice(values).into(), Cow::default()],
        Matrix::F16(values) => [bytemuck::cast_slice(values).into(), Cow::default()],
        Matrix::Bf16(values) => [bytemuck::cast_slice(values).into(), Cow::default()],
        Matrix::Int8 { values, scales } => [
            bytemuck::cast_slice(values).into(),
            bytemuck::cast_slice(scales).into(),
        ],
        Matrix::Int4 { values, scales } => [values.into(), bytemuck::cast_slice(scales).into()],
        Matrix::Blocks(blocks) => {
            let mut wide = vec![0.0f32; blocks.elements()];
            for (row, wide) in wide.chunks_exact_mut(in_features).enumerate() {
                matrix.widen_row(row, wide);
            }
            [bytemuck::cast_slice(&wide).to_vec().into(), Cow::default()]
        }
    }
}

#[cfg(test)]
mod tests {
    use half::f16;
    use triad_kernels::int8::{pack, packed_len, unpack};

    use super::*;

    const FEATURES: usize = 8;

    fn f32s(bytes: &[u8], format: WeightFormat) -> Vec<f32> {
        match format {
            WeightFormat::F32 => bytemuck::pod_collect_to_vec(bytes),
            _ => bytemuck::pod_collect_to_vec::<_, f16>(bytes)
                .into_iter()
                .map(f16::to_f32)
                .collect(),
        }
    }

    #[test]
    fn every_column_is_in_one_slab_that_a_buffer_holds_and_slabs_are_as_few_as_formats_and_buffers_allow()
     {
        let numbers = |count: usize, first: usize| {
            (0..count * FEATURES).map(move |index| (first + index) as f32)
        };
        let [a, b, d] = [(5, 0), (9, 40), (3, 160)]
            .map(|(count, first)| numbers(count, first).collect::<Vec<_>>());
        let c: Vec<_> = numbers(6, 112).map(f16::from_f32).collect();
        let layers = [
            Matrix::F32(&a),
            Matrix::F32(&b),
            Matrix::F16(&c),
            Matrix::F32(&d),
        ];
        let layers = layers.map(Layer::Float);
        let expected: Vec<_> = numbers(23, 0).collect();
        // A row has 32 bytes in f32 and 16 in f16.
        for (most_bytes, columns) in [
            (u64::MAX, vec![14, 6, 3]),
            (14 * 32, vec![14, 6, 3]),
            (4 * 32 + 31, vec![4, 4, 4, 2, 6, 3]),
            (2 * 32, vec![2, 2, 2, 2, 2, 2, 2, 4, 2, 2, 1]),
        ] {
            let slabs = plan(&layers, FEATURES, most_bytes);
            assert_eq!(
                slabs.iter().map(|slab| slab.columns).collect::<Vec<_>>(),
                columns
            );
            let found: Vec<_> = slabs
                .iter()
                .flat_map(|slab| {
                    slab.parts
                        .iter()
                        .flat_map(|part| f32s(&part.bytes()[0], slab.format))
                })
                .collect();
            assert_eq!(found, expected);
            let mut first = 0;
            for slab in &slabs {
                assert_eq!(slab.first, first);
                first += slab.columns;
                let bytes: usize = slab.parts.iter().map(|part| part.bytes()[0].len()).sum();
                assert!(bytes as u64 <= most_bytes);
            }
        }
    }
    #[test]
    fn parts_of_packed_weights_are_whole_blocks_and_layers_share_a_slab_only_after_whole_blocks() {
        // Each column consists of its index. Padding of the blocks is zero.
        let weight = |columns: usize, first: usize| {
            let row_major: Vec<i8> = (first..first + columns)
                .flat_map(|column| [column as i8; FEATURES])
                .collect();
            let mut packed = vec![0; packed_len(columns, FEATURES).unwrap()];
            pack(&row_major, columns, FEATURES, &mut packed);
            packed
        };
        let columns = [32, 40, 7];
        let packed = [weight(32, 0), weight(40, 32), weight(7, 72)];
        let (scales, sums) = ([0.0; 40], [0; 40]);
        let layers: Vec<_> = columns
            .iter()
            .zip(&packed)
            .map(|(columns, packed)| {
                let (scales, sums) = (&scales[..*columns], &sums[..*columns]);
                let (out_features, in_features) = (*columns, FEATURES);
                Layer::W8a8(Int8Weight {
                    out_features,
                    in_features,
                    packed,
                    scales,
                    sums,
                })
            })
            .collect();
        for (most_bytes, expected) in [
            (u64::MAX, vec![72, 7]),
            (33 * FEATURES as u64, vec![32, 32, 8, 7]),
            (1, vec![16, 16, 16, 16, 8, 7]),
        ] {
            let slabs = plan(&layers, FEATURES, most_bytes);
            assert_eq!(
                slabs.iter().map(|slab| slab.columns).collect::<Vec<_>>(),
                expected
            );
            let mut column = 0;
            for slab in &slabs {
                assert_eq!(slab.first, column);
                let numbers: Vec<i8> = slab
                    .parts
                    .iter()
                    .flat_map(|part| bytemuck::pod_collect_to_vec(&part.bytes()[0]))
                    .collect();
                let mut row_major = vec![0; slab.columns * FEATURES];
                let (scales, sums) = (&vec![0.0; slab.columns], &vec![0; slab.columns]);
                let (out_features, in_features) = (slab.columns, FEATURES);
                let weight = Int8Weight {
                    out_features,
                    in_features,
                    packed: &numbers,
                    scales,
                    sums,
                };
                unpack(weight, &mut row_major);
                for row in row_major.chunks_exact(FEATURES) {
                    assert_eq!(row, [column as i8; FEATURES]);
                    column += 1;
                }
            }
            assert_eq!(column, 79);
        }
    }
}
