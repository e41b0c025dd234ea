//! Encodes subgraphs in the format of the device program.

use triad_kernels::activation::{Activation, rounds_once};

use super::protocol::{ALIGNMENT, CHECKS, FIXED_POINT, IMAGE_HEADER, IMAGE_MAGIC, sum_stride};
use super::unit::Unit;
use crate::subgraph::{FeedForward, Layer};

/// Bytes in a quad: input features that a lane sums at once.
const QUAD: usize = 4;
/// Output channels in a block of the host's packed layout.
const BLOCK: usize = triad_kernels::int8::Int8Weight::COLUMNS;
/// Exclusive-or mask between signed bytes and bytes with an offset of 128.
const FLIP: u8 = 0x80;
// There is a check column for each digit of a sum.
const _: () = assert!(CHECKS == size_of::<i32>());
/// Index of the unit among the 32-bit fields of an image's header.
const UNIT_FIELD: usize = 16;

/// One matmul of an image: layers with concatenated outputs.
struct Product {
    in_features: usize,
    out_features: usize,
    bytes: Vec<u8>,
    /// −128 · Σ weights of each column, for HMX.
    corrections: Vec<i32>,
}

impl Product {
    /// Packs the weights of `layers`, which read the same input.
    ///
    /// The layout for HVX is `[channels / 64][in_features / 4][64][4]`: blocks of 64 channels, each with quads of its
    /// channels. Weights are stored with an offset of 128. For HMX, blocks have 32 channels, features are padded to a
    /// multiple of 32, and weights are signed. After the channels come check columns: the base-256 digits of the sum of all
    /// channels' weights, modulo 2³². A digit has an offset of 128, like weights.
    fn new(layers: &[&dyn Layer], unit: Unit) -> Self {
        let in_features = layers[0].weight().in_features;
        let out_features = layers.iter().map(|layer| layer.weight().out_features).sum();
        let (tile_columns, multiple) = unit.weight_tile();
        let quads = in_features.div_ceil(QUAD);
        let padded = in_features.next_multiple_of(multiple) / QUAD;
        let flip = unit.flip();
        let columns = sum_stride(out_features);
        let mut bytes = vec![0; columns * padded * QUAD];
        let place = |channel: usize, quad: usize| {
            (channel / tile_columns * padded + quad) * tile_columns * QUAD
                + channel % tile_columns * QUAD
        };
        let mut sums = vec![[0i32; QUAD]; quads];
        let mut channel = 0;
        for layer in layers {
            let weight = layer.weight();
            for of_layer in 0..weight.out_features {
                let (block, lane) = (of_layer / BLOCK, of_layer % BLOCK);
                for (quad, sums) in sums.iter_mut().enumerate() {
                    let from = ((block * quads + quad) * BLOCK + lane) * QUAD;
                    let to = place(channel, quad);
                    let numbers = bytes[to..to + QUAD].iter_mut().zip(sums);
                    for ((byte, sum), number) in numbers.zip(&weight.packed[from..from + QUAD]) {
                        *byte = number.cast_unsigned() ^ flip;
                        *sum = sum.wrapping_add(i32::from(*number));
                    }
                }
                channel += 1;
            }
        }
        // The columns after the digits are digits of zero.
        for column in out_features..columns {
            let digit = column - out_features;
            for (quad, sums) in sums.iter().enumerate() {
                let to = place(column, quad);
                for (byte, sum) in bytes[to..to + QUAD].iter_mut().zip(sums) {
                    let digit = sum.to_le_bytes().get(digit).copied().unwrap_or(0);
                    *byte = digit ^ flip ^ FLIP;
                }
            }
        }
        let correction = |column| {
            let weights = (0..padded).flat_map(|quad| &bytes[place(column, quad)..][..QUAD]);
            weights.fold(0i32, |sum, byte| {
                sum.wrapping_sub(128 * i32::from(byte.cast_signed()))
            })
        };
        let corrections = (0..unit.corrections(out_features))
            .map(correction)
            .collect();
        Self {
            in_features,
            out_features,
            bytes,
            corrections,
        }
    }
}

/// Returns the image of layers that read the same input, or `None` if it is too large.
pub(super) fn linear(layers: &[&dyn Layer], unit: Unit) -> Option<Vec<u8>> {
    encode(&[Product::new(layers, unit)], None, unit)
}

/// Returns the image of a whole, consistent feed-forward whose activation the device supports, or `None` if it is too
/// large.
pub(super) fn feed_forward(subgraph: &FeedForward, unit: Unit) -> Option<Vec<u8>> {
    let first: Vec<_> = [Some(&subgraph.up), subgraph.gate.as_ref()]
        .into_iter()
        .flatten()
        .map(|layer| &**layer)
        .collect();
    encode(
        &[
            Product::new(&first, unit),
            Product::new(&[&*subgraph.down], unit),
        ],
        Some(subgraph),
        unit,
    )
}

/// Returns whether the device computes this activation with the same bits as the CPU.
pub(super) fn has(activation: Activation) -> bool {
    kind(activation).is_some()
}

fn kind(activation: Activation) -> Option<u32> {
    match activation {
        Activation::Silu => Some(0),
        Activation::GeluTanh => Some(1),
        Activation::Gelu | Activation::ReluSquared => None,
    }
}

fn encode(products: &[Product], feed_forward: Option<&FeedForward>, unit: Unit) -> Option<Vec<u8>> {
    let parameters = match feed_forward {
        Some(feed_forward) if feed_forward.fixed_point => of_fixed_point(feed_forward)?,
        Some(feed_forward) => parameters(feed_forward),
        None => Vec::new(),
    };
    let mut end = IMAGE_HEADER + parameters.len();
    let mut fields = vec![IMAGE_MAGIC, products.len() as u32];
    fields.extend(match feed_forward {
        Some(FeedForward {
            gate,
            activation,
            inner_scale,
            return_inner,
            fixed_point,
            ..
        }) => [
            u32::from(gate.is_some()),
            kind(*activation)?,
            if *fixed_point {
                FIXED_POINT
            } else {
                u32::from(rounds_once())
            },
            u32::from(*return_inner),
            inner_scale.recip().to_bits(),
            IMAGE_HEADER as u32,
        ],
        None => [0; 6],
    });
    for product in products {
        let [in_features, out_features] =
            [product.in_features, product.out_features].map(u32::try_from);
        // Corrections precede the weights.
        let corrections = end;
        end += size_of_val(&*product.corrections);
        fields.extend([
            in_features.ok()?,
            out_features.ok()?,
            u32::try_from(end).ok()?,
            u32::try_from(corrections).ok()?,
        ]);
        end += product.bytes.len();
    }
    fields.resize(UNIT_FIELD, 0);
    fields.push(unit.code());
    // The device has 32-bit addresses.
    i32::try_from(end).ok()?;
    let mut image: Vec<u8> = fields
        .iter()
        .flat_map(|field| field.to_le_bytes())
        .collect();
    image.reserve_exact(end - image.len());
    image.resize(IMAGE_HEADER, 0);
    image.extend_from_slice(&parameters);
    for product in products {
        let corrections = product.corrections.iter();
        image.extend(corrections.flat_map(|correction| correction.to_le_bytes()));
        image.extend_from_slice(&product.bytes);
    }
    Some(image)
}

/// Returns the fixed-point parameters of each channel.
fn of_fixed_point(subgraph: &FeedForward) -> Option<Vec<u8>> {
    let fixed = subgraph.fixed_point().ok()?;
    let mut bytes: Vec<u8> = fixed
        .parameters()
        .iter()
        .flat_map(|number| number.to_le_bytes())
        .collect();
    bytes.resize(bytes.len().next_multiple_of(ALIGNMENT), 0);
    Some(bytes)
}

/// Returns scales and biases of up and of gate, and smoothing factors.
fn parameters(subgraph: &FeedForward) -> Vec<u8> {
    let FeedForward {
        input_scale,
        up,
        gate,
        smoothing,
        down,
        ..
    } = subgraph;
    let width = down.weight().in_features;
    let mut numbers = Vec::with_capacity(5 * width);
    for layer in [Some(up), gate.as_ref()] {
        let start = numbers.len();
        if let Some(layer) = layer {
            numbers.extend(
                layer
                    .weight()
                    .scales
                    .iter()
                    .map(|scale| input_scale * scale),
            );
            numbers.extend_from_slice(layer.bias().unwrap_or_default());
        }
        numbers.resize(start + 2 * width, 0.0);
    }
    match smoothing {
        Some(smoothing) => numbers.extend_from_slice(smoothing),
        None => numbers.resize(5 * width, 1.0),
    }
    let mut bytes: Vec<u8> = numbers
        .iter()
        .flat_map(|number| number.to_le_bytes())
        .collect();
    bytes.resize(bytes.len().next_multiple_of(ALIGNMENT), 0);
    bytes
}
