//! Measured peak rates of this machine's arithmetic.

use serde::Serialize;
use triad_kernels::peak;

/// Peak rates of some threads. A multiplication and its addition are two operations.
#[derive(Clone, Copy, Serialize)]
pub struct Arithmetic {
    /// Number of threads that compute.
    pub threads: usize,
    /// `None` if it was not measured.
    pub int8_operations_per_second: Option<f64>,
    /// `None` if the processor is no faster than in f32.
    pub int16_operations_per_second: Option<f64>,
    /// `None` if the processor has no instructions for it and computes bf16 as f32.
    pub bf16_operations_per_second: Option<f64>,
    /// Multiplications and additions per second in f32.
    pub f32_operations_per_second: f64,
}

impl Arithmetic {
    /// Measures the rates. This takes a tenth of a second.
    pub fn measure(threads: usize) -> Self {
        Self {
            threads,
            int8_operations_per_second: peak::int8_operations_per_second(threads),
            int16_operations_per_second: peak::int16_operations_per_second(threads),
            bf16_operations_per_second: peak::bf16_operations_per_second(threads),
            f32_operations_per_second: peak::f32_operations_per_second(threads),
        }
    }

    /// Returns the higher of both values for each rate.
    pub fn max(self, other: Self) -> Self {
        // `None` is less than any rate.
        let higher = |a: Option<f64>, b: Option<f64>| if a > b { a } else { b };
        Self {
            threads: self.threads,
            int8_operations_per_second: higher(
                self.int8_operations_per_second,
                other.int8_operations_per_second,
            ),
            int16_operations_per_second: higher(
                self.int16_operations_per_second,
                other.int16_operations_per_second,
            ),
            bf16_operations_per_second: higher(
                self.bf16_operations_per_second,
                other.bf16_operations_per_second,
            ),
            f32_operations_per_second: self
                .f32_operations_per_second
                .max(other.f32_operations_per_second),
        }
    }

    /// Returns the rates in Gop/s as text.
    pub fn sentence(&self) -> String {
        let giga = |value: f64| format!("{:.0}", value / 1e9);
        let optional = |value: Option<f64>| value.map_or("-".into(), giga);
        format!(
            "INT8 {}, INT16 {}, bf16 {}, f32 {} Gop/s",
            optional(self.int8_operations_per_second),
            optional(self.int16_operations_per_second),
            optional(self.bf16_operations_per_second),
            giga(self.f32_operations_per_second)
        )
    }

    /// Returns the highest rate of the formats to which activations may be rounded: bf16, INT16, or f32 without
    /// rounding.
    pub fn rounded_operations_per_second(&self) -> f64 {
        let formats = [
            self.bf16_operations_per_second,
            self.int16_operations_per_second,
        ];
        formats
            .into_iter()
            .flatten()
            .fold(self.f32_operations_per_second, f64::max)
    }
}
