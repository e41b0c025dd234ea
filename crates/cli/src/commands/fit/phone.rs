//! Times on a phone, simulated from its device profile.

use triad_model::description::ModelDescription;
use triad_plan::device::{DeviceProfile, Float};
use triad_plan::graph::{Format, Graph};
use triad_plan::prefill::{Options, Prefill};
use triad_plan::schedule::Policy;

use crate::commands::bench::limit::Operations;

/// Bytes of a weight or an activation in float on a phone.
const F16: f64 = 2.0;

/// Returns the seconds of a prompt on NPU and CPU in INT8 with shadows, as `triad-lab simulate` schedules it.
pub fn npu_prefill(
    device: &DeviceProfile,
    description: &ModelDescription,
    tokens: usize,
    chunk: usize,
) -> f64 {
    let options = Options {
        chunk,
        chunks_in_flight: 4,
        ..Options::paper(Policy::default())
    };
    Prefill::new(device, description, tokens, &options)
        .run()
        .seconds
}

/// Returns the seconds of a prompt on the CPU alone in INT8, one subgraph after the other.
pub fn cpu_prefill(
    cpu: &Float,
    description: &ModelDescription,
    tokens: usize,
    chunk: usize,
) -> f64 {
    let graph = Graph::new(description, tokens, chunk);
    let mut seconds = 0.0;
    for chunk in graph.chunks() {
        for subgraph in graph.subgraphs() {
            let operations = subgraph.operations(chunk.len(), chunk.start) as f64;
            seconds += match subgraph.role.format() {
                Format::Int8 => cpu.int8_subgraph(subgraph, chunk.len(), operations),
                Format::Float => cpu.float_subgraph(subgraph, chunk.len(), operations),
            };
        }
    }
    seconds
}

/// Returns the seconds of a prompt in float on one processor: all operations at its rate, and the weights read once for
/// each chunk.
pub fn float_prefill(
    processor: &Float,
    description: &ModelDescription,
    tokens: usize,
    chunk: usize,
) -> f64 {
    let Operations { linear, attention } = Operations::of_prefill(description, tokens);
    let weights = tokens.div_ceil(chunk) as f64 * float_weights(description) * F16;
    (linear + attention) / (processor.float_giga_operations * 1e9)
        + weights / (processor.gigabytes_per_second * 1e9)
}

/// Returns the seconds of a decode step in float on one processor, which reads the weights and the keys and values of
/// `context` positions once.
pub fn float_token(processor: &Float, description: &ModelDescription, context: usize) -> f64 {
    let cache = context * description.kv_bytes_per_token(|width| 2 * width);
    (float_weights(description) * F16 + cache as f64) / (processor.gigabytes_per_second * 1e9)
}

/// Returns the number of weights that a decode step multiplies.
fn float_weights(description: &ModelDescription) -> f64 {
    // Each weight takes two operations.
    Operations::of_prefill(description, 1).linear / 2.0
}
