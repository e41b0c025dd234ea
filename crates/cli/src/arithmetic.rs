//! How fast this machine multiplies at most, measured.

use serde::Serialize;
use triad_kernels::peak;

/// What some threads can do at once. A product and its addition count two operations.
#[derive(Clone, Copy, Serialize)]
pub struct Arithmetic {
    pub threads: usize,
    /// `None` where it is not measured.
    pub int8_operations_per_second: Option<f64>,
    /// `None` where the processor has no instructions for it: bf16 is then multiplied as f32.
    pub bf16_operations_per_second: Option<f64>,
    pub f32_operations_per_second: f64,
}

impl Arithmetic {
    /// A tenth of a second.
    pub fn measure(threads: usize) -> Self {
        Self {
            threads,
            int8_operations_per_second: peak::int8_operations_per_second(threads),
            bf16_operations_per_second: peak::bf16_operations_per_second(threads),
            f32_operations_per_second: peak::f32_operations_per_second(threads),
        }
    }
}
