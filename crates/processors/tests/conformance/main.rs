//! The conformance suite: compares every processor with a plain reference in the same cases. To add a processor, add it
//! to `processors::all`.

mod plain;
mod processors;
#[path = "../skip/mod.rs"]
mod skip;

mod cuts;
mod feed_forward;
mod floats;
mod linear;
mod refusals;
