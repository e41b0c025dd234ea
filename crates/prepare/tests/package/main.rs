//! Packages: what was prepared is what runs, whatever happened in between.

mod damaged;
mod extremes;
mod prepared;
mod tiny;
