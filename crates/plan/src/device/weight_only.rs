//! A GPU and an NPU that multiply f16 activations with INT4 weights (W4A16, §5.1 of the HeteroLLM paper), and the
//! memory that they share.
//!
//! Both follow the characterization in §3 of the paper. The GPU has a rate and a bandwidth. The rate of the NPU depends
//! on the sizes of a product, in steps, and on its order and shape. Together they have more memory bandwidth than each
//! of them alone.

use serde::{Deserialize, Serialize};

use super::range::Range::{self, Factor, NotNegative, Positive};
use crate::graph::Subgraph;

const MICRO: f64 = 1e-6;
const MILLI: f64 = 1e-3;
const GIGA: f64 = 1e9;
const TERA: f64 = 1e12;
/// Bytes of an f16 value.
const F16: f64 = 2.0;
/// Minimum number of rows of a prefill product on the NPU. Decode products have fewer.
const SHORTEST_PREFILL: usize = 32;

/// The part of a [profile](super::DeviceProfile) for W4A16.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WeightOnly {
    /// Bits per weight in memory, including its share of a scale.
    pub weight_bits: f64,
    /// Bandwidth of GPU and NPU together if both read.
    pub gigabytes_per_second: f64,
    /// The GPU.
    pub gpu: Gpu,
    /// The NPU.
    pub npu: Npu,
    /// Times for waiting for the other processor.
    pub synchronization: Synchronization,
}

/// A GPU that computes in f16.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gpu {
    /// Tera multiplications and additions per second.
    pub tera_operations: f64,
    /// Bandwidth of the GPU alone.
    pub gigabytes_per_second: f64,
    /// Time of a kernel that follows others in the queue: the minimum time of a kernel.
    pub submission_microseconds: f64,
    /// Power while it works.
    pub busy_watts: f64,
    /// Power while it is idle.
    pub idle_watts: f64,
}

/// An NPU that computes in f16 in prefill and in integers in decode.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Npu {
    /// Sizes are rounded up to a multiple of this number, the side of its array (§3.2, stage performance).
    pub step: usize,
    /// Tera multiplications and additions per second if order and shape are good.
    pub tera_operations: f64,
    /// Tera multiplications and additions per second in integers, used in decode.
    pub decode_tera_operations: f64,
    /// Minimum rate in f16 for the worst order and shape.
    pub least_tera_operations: f64,
    /// Slowdown of a product by the ratio of columns to rows of the matrix that streams through the array (§3.2, order-
    /// and shape-sensitive performance).
    pub order_slowdown: f64,
    /// Bandwidth of the NPU alone.
    pub gigabytes_per_second: f64,
    /// Time to build a graph of one product, independent of its size.
    pub graph_milliseconds: f64,
    /// Time to build a graph, per 10⁹ multiplications and additions.
    pub graph_milliseconds_per_giga_operation: f64,
    /// Power while it works.
    pub busy_watts: f64,
    /// Power while it is idle.
    pub idle_watts: f64,
}

/// Times for waiting for another processor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Synchronization {
    /// Time to copy a matrix between the GPU's memory and memory that the NPU can access, in either direction,
    /// independent of its size.
    pub copy_microseconds: f64,
    /// Additional time of a kernel if the queue has become empty.
    pub empty_queue_microseconds: f64,
    /// Time to notice a polled flag.
    pub poll_microseconds: f64,
}

impl WeightOnly {
    /// Returns names, values and ranges of all fields except the step.
    pub(super) fn fields(&self) -> Vec<(String, f64, Range)> {
        let Self {
            gpu,
            npu,
            synchronization,
            ..
        } = self;
        let fields = [
            ("weight_bits", self.weight_bits, Positive),
            ("gigabytes_per_second", self.gigabytes_per_second, Positive),
            ("gpu.tera_operations", gpu.tera_operations, Positive),
            (
                "gpu.gigabytes_per_second",
                gpu.gigabytes_per_second,
                Positive,
            ),
            (
                "gpu.submission_microseconds",
                gpu.submission_microseconds,
                NotNegative,
            ),
            ("gpu.busy_watts", gpu.busy_watts, NotNegative),
            ("gpu.idle_watts", gpu.idle_watts, NotNegative),
            ("npu.tera_operations", npu.tera_operations, Positive),
            (
                "npu.decode_tera_operations",
                npu.decode_tera_operations,
                Positive,
            ),
            (
                "npu.least_tera_operations",
                npu.least_tera_operations,
                Positive,
            ),
            ("npu.order_slowdown", npu.order_slowdown, NotNegative),
            (
                "npu.gigabytes_per_second",
                npu.gigabytes_per_second,
                Positive,
            ),
            (
                "npu.graph_milliseconds",
                npu.graph_milliseconds,
                NotNegative,
            ),
            (
                "npu.graph_milliseconds_per_giga_operation",
                npu.graph_milliseconds_per_giga_operation,
                NotNegative,
            ),
            ("npu.busy_watts", npu.busy_watts, NotNegative),
            ("npu.idle_watts", npu.idle_watts, NotNegative),
            (
                "synchronization.copy_microseconds",
                synchronization.copy_microseconds,
                NotNegative,
            ),
            (
                "synchronization.empty_queue_microseconds",
                synchronization.empty_queue_microseconds,
                NotNegative,
            ),
            (
                "synchronization.poll_microseconds",
                synchronization.poll_microseconds,
                NotNegative,
            ),
            // The worst rate must not exceed the best one.
            (
                "npu.tera_operations / npu.least_tera_operations",
                self.most_slowdown(),
                Factor,
            ),
        ];
        fields
            .map(|(field, value, range)| (format!("w4a16.{field}"), value, range))
            .into()
    }

    fn most_slowdown(&self) -> f64 {
        self.npu.tera_operations / self.npu.least_tera_operations
    }

    /// Returns the seconds on the GPU of a product of `rows` tokens with weights `[columns, depth]`: the maximum of the
    /// times for its operations and for its bytes. While the NPU works, the GPU has only its share of the memory
    /// bandwidth.
    pub fn gpu_product(
        &self,
        rows: usize,
        columns: usize,
        depth: usize,
        is_concurrent: bool,
    ) -> f64 {
        let Gpu {
            tera_operations,
            gigabytes_per_second,
            submission_microseconds,
            ..
        } = self.gpu;
        let operations =
            2.0 * rows as f64 * columns as f64 * depth as f64 / (tera_operations * TERA);
        let bytes = self.product_bytes(rows, columns, depth)
            / (gigabytes_per_second * GIGA * self.share(is_concurrent));
        operations.max(bytes).max(submission_microseconds * MICRO)
    }

    /// Returns the seconds on the NPU of the same product, in the better of both orders. The matrix with more rows
    /// streams through the array, which holds the other one. The more columns it has relative to its rows, the larger
    /// is the matrix in the array, and the slower is the product.
    pub fn npu_product(
        &self,
        rows: usize,
        columns: usize,
        depth: usize,
        is_concurrent: bool,
    ) -> f64 {
        self.npu_order(
            rows.max(columns),
            rows.min(columns),
            depth,
            rows < SHORTEST_PREFILL,
        )
        .max(
            self.product_bytes(rows, columns, depth)
                / (self.npu.gigabytes_per_second * GIGA * self.share(is_concurrent)),
        )
    }

    /// Returns the seconds on the NPU of the operations of `[streamed, depth] × [depth, kept]` in this order.
    pub fn npu_order(&self, streamed: usize, kept: usize, depth: usize, is_decode: bool) -> f64 {
        let npu = &self.npu;
        let [streamed, kept, depth] =
            [streamed, kept, depth].map(|size| (size.div_ceil(npu.step) * npu.step) as f64);
        let slowdown = (1.0 + npu.order_slowdown * depth / streamed).min(self.most_slowdown());
        let rate = if is_decode {
            npu.decode_tera_operations
        } else {
            npu.tera_operations
        };
        2.0 * streamed * kept * depth / (rate * TERA) * slowdown
    }

    /// Returns the seconds on the GPU of a subgraph of norms, RoPE, attention or activation: its activations,
    /// `cache_bytes` of keys and values before its rows, and the `operations` of attention.
    pub fn gpu_float(
        &self,
        subgraph: &Subgraph,
        rows: usize,
        operations: f64,
        cache_bytes: f64,
    ) -> f64 {
        let bytes = (subgraph.activation_numbers_per_row * rows) as f64 * F16 + cache_bytes;
        let seconds = bytes / (self.gpu.gigabytes_per_second * GIGA)
            + operations / (self.gpu.tera_operations * TERA);
        seconds.max(self.gpu.submission_microseconds * MICRO)
    }

    /// Returns the seconds to build the NPU's graph of a product.
    pub fn npu_graph(&self, rows: usize, columns: usize, depth: usize) -> f64 {
        let giga_operations = 2.0 * rows as f64 * columns as f64 * depth as f64 / GIGA;
        let npu = &self.npu;
        (npu.graph_milliseconds + npu.graph_milliseconds_per_giga_operation * giga_operations)
            * MILLI
    }

    /// Returns the bytes of a product: its weights, and inputs and outputs in f16.
    pub fn product_bytes(&self, rows: usize, columns: usize, depth: usize) -> f64 {
        let (rows, columns, depth) = (rows as f64, columns as f64, depth as f64);
        columns * depth * self.weight_bits / 8.0 + rows * (columns + depth) * F16
    }

    /// Returns the fraction of its own bandwidth that each processor has. If both read, they have less than the sum.
    fn share(&self, is_concurrent: bool) -> f64 {
        let both = self.gpu.gigabytes_per_second + self.npu.gigabytes_per_second;
        if is_concurrent {
            (self.gigabytes_per_second / both).min(1.0)
        } else {
            1.0
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::DeviceProfile;
    use proptest::prelude::*;

    fn phone() -> WeightOnly {
        DeviceProfile::builtin("snapdragon-8gen3")
            .unwrap()
            .w4a16
            .unwrap()
    }

    #[test]
    fn sizes_within_a_step_take_the_npu_the_same_time() {
        let seconds = |rows| phone().npu_order(4096, rows, 4096, false);
        assert_eq!(seconds(1), seconds(32));
        assert_eq!(seconds(33), seconds(64));
        assert!(seconds(33) > seconds(32));
    }

    #[test]
    fn the_better_order_streams_the_larger_matrix_and_a_wide_one_is_slower_than_a_tall_one() {
        let phone = phone();
        assert!(
            phone.npu_order(14_336, 256, 4096, false) < phone.npu_order(256, 14_336, 4096, false)
        );
        assert!(
            phone.npu_order(14_336, 256, 4096, false) < phone.npu_order(4096, 256, 14_336, false)
        );
        assert_eq!(
            phone.npu_product(256, 14_336, 4096, false),
            phone.npu_order(14_336, 256, 4096, false)
        );
        // The rate is never below the minimum rate.
        let worst = 2.0 * 32.0 * 32.0 * 65_536.0 / (phone.npu.least_tera_operations * TERA);
        assert!((phone.npu_order(32, 32, 65_536, false) / worst - 1.0).abs() < 1e-9);
    }

    proptest! {
        #[test]
        fn more_of_anything_never_takes_less(rows in 1usize..1200, columns in 1usize..20_000, depth in 1usize..20_000, is_concurrent: bool) {
            let phone = phone();
            for product in [WeightOnly::gpu_product, WeightOnly::npu_product] {
                let seconds = product(&phone, rows, columns, depth, is_concurrent);
                prop_assert!(seconds.is_finite() && seconds > 0.0);
                prop_assert!(product(&phone, rows, columns, depth, true) >= seconds);
                prop_assert!(product(&phone, rows, columns, depth + 1, is_concurrent) >= seconds);
                prop_assert!(product(&phone, rows, columns + 1, depth, is_concurrent) >= seconds);
                // In f16, and from the integers of decode to f16.
                prop_assert!(product(&phone, rows + 1, columns, depth, is_concurrent) >= seconds);
            }
        }
    }
}
