//! Where the time of INT8 layers goes.

use std::sync::{Mutex, PoisonError};

use serde::Serialize;

/// Where the time of a session's INT8 layers went, and what its shadows did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Int8Statistics {
    /// Seconds of quantizing activations and finding outliers.
    pub quantize_seconds: f64,
    /// Seconds of the INT8 matmuls.
    pub matmul_seconds: f64,
    /// Seconds of the shadow matmuls.
    pub shadow_seconds: f64,
    /// Activations quantized.
    pub values: u64,
    /// Outliers among them that a shadow computed.
    pub outliers: u64,
}

impl Int8Statistics {
    /// Both together.
    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            quantize_seconds: self.quantize_seconds + other.quantize_seconds,
            matmul_seconds: self.matmul_seconds + other.matmul_seconds,
            shadow_seconds: self.shadow_seconds + other.shadow_seconds,
            values: self.values + other.values,
            outliers: self.outliers + other.outliers,
        }
    }

    /// Share of the linear layers' time that shadows take.
    pub fn shadow_share(&self) -> f64 {
        let total = self.quantize_seconds + self.matmul_seconds + self.shadow_seconds;
        if total > 0.0 { self.shadow_seconds / total } else { 0.0 }
    }
}

/// The statistics of a chunk, which several processors may add to at once.
#[derive(Default)]
pub(crate) struct Counted(Mutex<Int8Statistics>);

impl Counted {
    pub(crate) fn add(&self, add: impl FnOnce(&mut Int8Statistics)) {
        add(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// All so far.
    pub(crate) fn get(&self) -> Int8Statistics {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
