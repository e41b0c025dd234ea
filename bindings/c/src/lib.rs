//! The C interface; its header is `include/triad.h`.
//!
//! [`status`] converts errors and panics to codes, and [`pointers`] reads the caller's pointers; [`model`], [`session`],
//! [`answer`], [`images`], [`tools`] and [`adapters`] have the functions, by subject. [`constraint`] compiles the form of
//! answers.
#![allow(unsafe_code, reason = "pointers of another language")]

pub mod adapters;
pub mod answer;
mod constraint;
pub mod images;
pub mod model;
mod pointers;
pub mod session;
pub mod status;
pub mod tools;
