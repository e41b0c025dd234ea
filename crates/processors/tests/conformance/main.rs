//! One suite for all processors: the same cases against a plain reference. A new processor is a line in
//! `processors::all`.

mod plain;
mod processors;
#[path = "../skip/mod.rs"]
mod skip;

mod cuts;
mod feed_forward;
mod linear;
mod refusals;
