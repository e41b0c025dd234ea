//! Tests every command of `triad-lab` end to end, on a tiny model.

#[path = "../../../cli/tests/support/outcome.rs"]
mod outcome;
mod plan;
mod processors;
mod report;
mod simulate;
#[path = "../../../processors/tests/skip/mod.rs"]
mod skip;
mod study;
// The tests of `triad` use the rest of it.
#[allow(dead_code)]
#[path = "../../../cli/tests/support/mod.rs"]
mod support;

use support::Place;
use support::gguf::Gguf;

fn place() -> Place {
    let place = Place::new();
    place.write("model.gguf", Gguf::tiny().bytes());
    place
}
