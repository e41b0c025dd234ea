//! One module for each command: its arguments and what it does with them.

pub mod hwbench;
pub mod plan;
pub mod reproduce;
pub mod simulate;
pub mod study;
