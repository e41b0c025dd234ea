//! One module per command, with its arguments and its implementation.

pub mod hwbench;
pub mod plan;
pub mod record;
pub mod report;
pub mod reproduce;
pub mod simulate;
pub mod study;
