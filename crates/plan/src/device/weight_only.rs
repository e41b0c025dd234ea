//! A GPU and an NPU that multiply f16 activations with weights in INT4 (W4A16, §5.1 of the HeteroLLM paper), and the
//! memory that they share.
//!
//! Both are as §3 of the paper characterizes them: the GPU has a rate and a bandwidth; the NPU has a rate that depends on
//! the sizes of a product, in steps, on its order and on its shape; and together they have more of the memory's bandwidth
//! than each of them alone.

use serde::{Deserialize, Serialize};

use super::Range::{self, Factor, NotNegative, Positive};
use crate::graph::Subgraph;

const MICRO: f64 = 1e-6;
const MILLI: f64 = 1e-3;
const GIGA: f64 = 1e9;
const TERA: f64 = 1e12;
/// Bytes of a number in f16.
const F16: f64 = 2.0;
/// Products of prefill on the NPU have at least 32 rows, those of decode fewer.
const SHORTEST_PREFILL: usize = 32;

/// The part of a [profile](super::DeviceProfile) for W4A16.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WeightOnly {
    /// Bits of a weight in memory, with its share of a scale.
    pub weight_bits: f64,
    /// Of GPU and NPU together, where both read.
    pub gigabytes_per_second: f64,
    /// The GPU.
    pub gpu: Gpu,
    /// The NPU.
    pub npu: Npu,
    /// What it takes that one of them waits for the other.
    pub synchronization: Synchronization,
}

/// A GPU that computes in f16.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gpu {
    /// Multiplications and additions in a second.
    pub tera_operations: f64,
    /// At which it reads and writes memory alone.
    pub gigabytes_per_second: f64,
    /// Of a kernel behind others in the queue: no kernel takes less.
    pub submission_microseconds: f64,
    /// Drawn while it works.
    pub busy_watts: f64,
    /// Drawn while it does not.
    pub idle_watts: f64,
}

/// An NPU that computes in f16, and in decode in integers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Npu {
    /// Sizes count as the next multiple of this: the side of its array (§3.2, stage performance).
    pub step: usize,
    /// Multiplications and additions in a second, where order and shape are good.
    pub tera_operations: f64,
    /// The same in integers, which it uses in decode.
    pub decode_tera_operations: f64,
    /// In f16, however bad order and shape are.
    pub least_tera_operations: f64,
    /// How much slower a product becomes with the ratio of columns to rows of the matrix that streams through the array
    /// (§3.2, order- and shape-sensitive performance).
    pub order_slowdown: f64,
    /// At which it reads and writes memory alone.
    pub gigabytes_per_second: f64,
    /// Building a graph of one product, whatever its size.
    pub graph_milliseconds: f64,
    /// Building it, for each 10⁹ multiplications and additions.
    pub graph_milliseconds_per_giga_operation: f64,
    /// Drawn while it works.
    pub busy_watts: f64,
    /// Drawn while it does not.
    pub idle_watts: f64,
}

/// What it takes that a processor waits for another one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Synchronization {
    /// From a matrix in the GPU's memory to one that the NPU has access to, or back, whatever its size.
    pub copy_microseconds: f64,
    /// Of a kernel whose queue became empty.
    pub empty_queue_microseconds: f64,
    /// Noticing a flag that is polled.
    pub poll_microseconds: f64,
}

impl WeightOnly {
    /// Names, values and ranges of all fields but the step.
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
            // At its worst it is no faster than at its best.
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

    /// Seconds of a product of `rows` tokens with weights `[columns, depth]` on the GPU: of its operations or of its
    /// bytes, what takes longer. Beside the NPU it has its share of the memory's bandwidth.
    pub fn gpu_product(&self, rows: usize, columns: usize, depth: usize, is_beside: bool) -> f64 {
        let Gpu {
            tera_operations,
            gigabytes_per_second,
            submission_microseconds,
            ..
        } = self.gpu;
        let operations =
            2.0 * rows as f64 * columns as f64 * depth as f64 / (tera_operations * TERA);
        let bytes = self.product_bytes(rows, columns, depth)
            / (gigabytes_per_second * GIGA * self.share(is_beside));
        operations.max(bytes).max(submission_microseconds * MICRO)
    }

    /// The same on the NPU, in the better of both orders. The matrix with more rows streams through the array past the
    /// other one. The more columns it has for its rows, the larger is what it streams past, and the slower it is.
    pub fn npu_product(&self, rows: usize, columns: usize, depth: usize, is_beside: bool) -> f64 {
        self.npu_order(
            rows.max(columns),
            rows.min(columns),
            depth,
            rows < SHORTEST_PREFILL,
        )
        .max(
            self.product_bytes(rows, columns, depth)
                / (self.npu.gigabytes_per_second * GIGA * self.share(is_beside)),
        )
    }

    /// Seconds of the operations of `[streamed, depth] × [depth, kept]` on the NPU in this order.
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

    /// Seconds of a subgraph of norms, RoPE, attention or activation on the GPU: its activations, `cache_bytes` of keys
    /// and values before its rows, and `operations` of attention.
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

    /// Seconds to build the NPU's graph of a product.
    pub fn npu_graph(&self, rows: usize, columns: usize, depth: usize) -> f64 {
        let giga_operations = 2.0 * rows as f64 * columns as f64 * depth as f64 / GIGA;
        let npu = &self.npu;
        (npu.graph_milliseconds + npu.graph_milliseconds_per_giga_operation * giga_operations)
            * MILLI
    }

    /// Bytes of a product: its weights, and inputs and outputs in f16.
    pub fn product_bytes(&self, rows: usize, columns: usize, depth: usize) -> f64 {
        let (rows, columns, depth) = (rows as f64, columns as f64, depth as f64);
        columns * depth * self.weight_bits / 8.0 + rows * (columns + depth) * F16
    }

    /// Share of its own bandwidth that each processor has: where both read, they have less than the sum.
    fn share(&self, is_beside: bool) -> f64 {
        let both = self.gpu.gigabytes_per_second + self.npu.gigabytes_per_second;
        if is_beside {
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
        // However bad, it is no slower than its least rate.
        let worst = 2.0 * 32.0 * 32.0 * 65_536.0 / (phone.npu.least_tera_operations * TERA);
        assert!((phone.npu_order(32, 32, 65_536, false) / worst - 1.0).abs() < 1e-9);
    }

    proptest! {
        #[test]
        fn more_of_anything_never_takes_less(rows in 1usize..1200, columns in 1usize..20_000, depth in 1usize..20_000, is_beside: bool) {
            let phone = phone();
            for product in [WeightOnly::gpu_product, WeightOnly::npu_product] {
                let seconds = product(&phone, rows, columns, depth, is_beside);
                prop_assert!(seconds.is_finite() && seconds > 0.0);
                prop_assert!(product(&phone, rows, columns, depth, true) >= seconds);
                prop_assert!(product(&phone, rows, columns, depth + 1, is_beside) >= seconds);
                prop_assert!(product(&phone, rows, columns + 1, depth, is_beside) >= seconds);
                // In f16; from decode's integers to f16 as well.
                prop_assert!(product(&phone, rows + 1, columns, depth, is_beside) >= seconds);
            }
        }
    }
}
