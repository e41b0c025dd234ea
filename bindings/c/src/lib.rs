//! The C interface, whose header is `include/triad.h`.
//!
//! [`status`] turns errors and panics into codes, [`pointers`] is where pointers of the caller are looked at; [`model`],
//! [`session`] and [`answer`] have the functions, by what they are about.
#![allow(unsafe_code, reason = "pointers of another language")]

pub mod answer;
pub mod model;
mod pointers;
pub mod session;
pub mod status;
