//! Operators on the CPU.
