//! Calibration: watching the float model on sample texts to learn the ranges of its activations.

pub mod text;
