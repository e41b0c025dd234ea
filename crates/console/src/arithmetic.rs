//! How fast this machine multiplies at most, measured.

use serde::Serialize;
use triad_kernels::peak;

/// What some threads can do at once. A product and its addition count two operations.
#[derive(Clone, Copy, Serialize)]
pub struct Arithmetic {
    /// Threads that multiply.
    pub threads: usize,
    /// `None` where it is not measured.
    pub int8_operations_per_second: Option<f64>,
    /// `None` where the processor multiplies it no faster than f32.
    pub int16_operations_per_second: Option<f64>,
    /// `None` where the processor has no instructions for it: bf16 is then multiplied as f32.
    pub bf16_operations_per_second: Option<f64>,
    /// Multiplications and additions in f32.
    pub f32_operations_per_second: f64,
}

impl Arithmetic {
    /// A tenth of a second.
    pub fn measure(threads: usize) -> Self {
        Self {
            threads,
            int8_operations_per_second: peak::int8_operations_per_second(threads),
            int16_operations_per_second: peak::int16_operations_per_second(threads),
            bf16_operations_per_second: peak::bf16_operations_per_second(threads),
            f32_operations_per_second: peak::f32_operations_per_second(threads),
        }
    }

    /// The higher of both in each rate.
    pub fn max(self, other: Self) -> Self {
        // An absent rate is less than any.
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

    /// For people, in Gop/s.
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

    /// The highest peak of the formats that products may be rounded to where they need not be exact: bf16, INT16 or none.
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
