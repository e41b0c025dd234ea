//! Packages: what was prepared is what runs, in all circumstances.

mod bits;
mod damaged;
mod extremes;
mod heads;
mod pictures;
mod prepared;
mod quantized;
mod tiny;
