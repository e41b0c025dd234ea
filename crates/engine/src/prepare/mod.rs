//! Preparing a model: what is learned and computed once, before any prompt runs.

pub mod calibration;
