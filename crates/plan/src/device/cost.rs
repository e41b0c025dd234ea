//! Costs from a profile: the seconds of a subgraph on each processor of a device.

use triad_model::description::{LinearShape, ModelDescription};

use super::{DeviceProfile, Float};
use crate::graph::Subgraph;

const MILLI: f64 = 1e-3;
const GIGA: f64 = 1e9;
const TERA: f64 = 1e12;
/// Bytes of an f32 value.
const F32: f64 = 4.0;

/// Options for using the NPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NpuUse {
    /// Whether rows are in the equivalent shape that is fastest, not in one line.
    pub equivalent_shapes: bool,
    /// Whether activations have one scale per tensor, not one per group.
    pub per_tensor: bool,
}

impl DeviceProfile {
    /// Returns the seconds on the NPU of a product of `rows` INT8 rows with weights `[out_features, in_features]`. The
    /// weights are loaded, then the rows stream through the array. All sizes are rounded up to a multiple of the step.
    pub fn npu_matmul(
        &self,
        rows: usize,
        in_features: usize,
        out_features: usize,
        equivalent_shapes: bool,
    ) -> f64 {
        let npu = &self.npu;
        let padded = |size: usize| size.div_ceil(npu.step) as f64 * npu.step as f64;
        let weights = padded(in_features) * padded(out_features);
        let flat = if equivalent_shapes {
            1.0
        } else {
            npu.flat_rows_slowdown
        };
        let streaming = 2.0 * padded(rows) * weights / (npu.int8_tera_operations * TERA);
        weights / (npu.gigabytes_per_second * GIGA) + streaming * flat
    }

    /// Returns the seconds on the NPU of a subgraph that is one INT8 product in the fastest shape, with its
    /// activations.
    pub fn npu_product(&self, rows: usize, in_features: usize, out_features: usize) -> f64 {
        let npu = &self.npu;
        let activations =
            activation_bytes(rows, in_features, out_features) / (npu.gigabytes_per_second * GIGA);
        npu.launch_milliseconds * MILLI
            + self.npu_matmul(rows, in_features, out_features, true)
            + activations
    }

    /// Returns the seconds on the NPU of an INT8 subgraph: its linear layers and activations, without waiting.
    pub fn npu_subgraph(
        &self,
        subgraph: &Subgraph,
        linears: &[LinearShape],
        rows: usize,
        how: NpuUse,
    ) -> f64 {
        let npu = &self.npu;
        let product = |shape: &LinearShape| {
            self.npu_matmul(
                rows,
                shape.in_features,
                shape.out_features,
                how.equivalent_shapes,
            )
        };
        let products: f64 = linears.iter().map(product).sum();
        let activations =
            (subgraph.activation_bytes_per_row * rows) as f64 / (npu.gigabytes_per_second * GIGA);
        let per_tensor = npu.launch_milliseconds * MILLI + products + activations;
        if how.per_tensor {
            per_tensor
        } else {
            per_tensor * npu.per_group_slowdown
        }
    }
}

impl Float {
    /// Returns the seconds of a float subgraph: its activations and the `operations` of attention.
    pub fn float_subgraph(&self, subgraph: &Subgraph, rows: usize, operations: f64) -> f64 {
        self.launch()
            + self.bytes((subgraph.activation_bytes_per_row * rows) as f64)
            + self.floats(operations)
    }

    /// Returns the seconds of an INT8 subgraph.
    pub fn int8_subgraph(&self, subgraph: &Subgraph, rows: usize, operations: f64) -> f64 {
        let bytes = (subgraph.activation_bytes_per_row * rows + subgraph.weight_bytes) as f64;
        self.launch() + self.bytes(bytes) + operations / (self.int8_tera_operations * TERA)
    }

    /// Returns the seconds of a subgraph that is one INT8 product, with its activations and weights.
    pub fn int8_product(&self, rows: usize, in_features: usize, out_features: usize) -> f64 {
        // Each output channel has a scale and a sum.
        let weights = out_features as f64 * (in_features as f64 + 2.0 * F32);
        let operations = 2.0 * rows as f64 * in_features as f64 * out_features as f64;
        self.launch()
            + self.bytes(activation_bytes(rows, in_features, out_features) + weights)
            + operations / (self.int8_tera_operations * TERA)
    }

    /// Returns the seconds of the shadow of linear layers: `channels` outlier channels of each row times their weights,
    /// and writing the sum.
    pub fn shadow(&self, linears: &[LinearShape], rows: usize, channels: f64) -> f64 {
        let outputs: usize = linears.iter().map(|shape| shape.out_features).sum();
        let products = 2.0 * channels * (rows * outputs) as f64;
        self.launch() + self.floats(products) + self.bytes(rows as f64 * outputs as f64 * F32)
    }

    /// Returns the seconds of one token of decode, in which all weights are read once, in INT8, and the cache.
    pub fn decode_token(&self, description: &ModelDescription, tokens: usize) -> f64 {
        let linears = |block: &triad_model::description::BlockDescription| {
            block
                .linears(description.hidden)
                .iter()
                .map(LinearShape::parameters)
                .sum::<usize>()
        };
        let weights: usize = description.blocks.iter().map(linears).sum();
        let output = description.vocab * description.hidden;
        self.bytes(
            (weights + output + tokens * description.kv_bytes_per_token(|width| 2 * width)) as f64,
        )
    }

    fn launch(&self) -> f64 {
        self.launch_milliseconds * MILLI
    }

    fn bytes(&self, bytes: f64) -> f64 {
        bytes / (self.gigabytes_per_second * GIGA)
    }

    fn floats(&self, operations: f64) -> f64 {
        operations / (self.float_giga_operations * GIGA)
    }
}

/// Returns the bytes of a product's inputs, in INT8, and of its outputs, in f32.
fn activation_bytes(rows: usize, in_features: usize, out_features: usize) -> f64 {
    rows as f64 * (in_features as f64 + out_features as f64 * F32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{Graph, Role};
    use proptest::prelude::*;

    fn device() -> DeviceProfile {
        DeviceProfile::builtin("snapdragon-8gen3").unwrap()
    }

    #[test]
    fn sizes_within_a_step_take_the_same_time() {
        let seconds = |rows| device().npu_matmul(rows, 2048, 2048, true);
        assert_eq!(seconds(1), seconds(32));
        assert!(seconds(33) > seconds(32));
        assert_eq!(seconds(33), seconds(64));
    }

    #[test]
    fn a_large_input_with_few_weights_is_faster_than_the_reverse() {
        // HeteroLLM's figure 5: six times at K = 48. K is not in the text.
        let (large, few) = (14_336, 48);
        let device = DeviceProfile {
            npu: super::super::Npu {
                step: 1,
                ..device().npu
            },
            ..device()
        };
        let ratio =
            device.npu_matmul(few, 4096, large, true) / device.npu_matmul(large, 4096, few, true);
        assert!((5.5..6.5).contains(&ratio), "{ratio}");
    }

    #[test]
    fn a_product_takes_what_the_subgraph_that_it_is_takes() {
        let (device, description) = (device(), triad_model::family::shape("llama-2-7b").unwrap());
        let graph = Graph::with_splits(&description, 256, 256, |_| true);
        let gpu = device.gpu.as_ref().unwrap();
        let how = NpuUse {
            equivalent_shapes: true,
            per_tensor: true,
        };
        for subgraph in graph
            .subgraphs()
            .iter()
            .filter(|subgraph| subgraph.role.is_product())
        {
            let linears = description.blocks[subgraph.block].linears(description.hidden);
            let linears: Vec<_> = linears
                .into_iter()
                .filter(|shape| subgraph.role.has(shape.linear))
                .collect();
            let depth = if subgraph.role == Role::Down {
                11_008
            } else {
                4096
            };
            let (rows, columns) = (256, subgraph.output_columns);
            let pairs = [
                (
                    device.npu_product(rows, depth, columns),
                    device.npu_subgraph(subgraph, &linears, rows, how),
                ),
                (
                    gpu.int8_product(rows, depth, columns),
                    gpu.int8_subgraph(subgraph, rows, subgraph.operations(rows, 0) as f64),
                ),
            ];
            for (product, whole) in pairs {
                assert!(
                    (product / whole - 1.0).abs() < 1e-9,
                    "{:?}: {product} and {whole}",
                    subgraph.role
                );
            }
        }
    }

    proptest! {
        #[test]
        fn more_of_anything_never_takes_less(rows in 1usize..2000, inputs in 1usize..9000, outputs in 1usize..9000) {
            let device = device();
            let seconds = device.npu_matmul(rows, inputs, outputs, true);
            prop_assert!(seconds.is_finite() && seconds > 0.0);
            prop_assert!(device.npu_matmul(rows + 1, inputs, outputs, true) >= seconds);
            prop_assert!(device.npu_matmul(rows, inputs + 1, outputs, true) >= seconds);
            prop_assert!(device.npu_matmul(rows, inputs, outputs + 1, true) >= seconds);
            prop_assert!(device.npu_matmul(rows, inputs, outputs, false) > seconds);
        }
    }
}
