//! The memory that several processors add.

use triad_engine::forward::Buffers;
use triad_model::description::ModelDescription;

use crate::workers::ProcessorOptions;

/// Returns the bytes that several processors add: buffers for every chunk in flight except one and, if one of the
/// processors is an NPU, the shadows of each chunk.
pub fn of_chunks_in_flight(
    description: &ModelDescription,
    context: usize,
    chunk: usize,
    chunks_in_flight: usize,
    processors: &[ProcessorOptions],
) -> usize {
    let chunk = chunk.min(context);
    if processors.len() < 2 || chunk == 0 {
        return 0;
    }
    let shadows_apart = processors
        .iter()
        .any(|processor| processor.description.multiplies_alone());
    let chunks = chunks_in_flight.min(context.div_ceil(chunk));
    let shadows = if shadows_apart {
        Buffers::shadow_bytes_per_row(description)
    } else {
        0
    };
    chunk * (Buffers::bytes_per_row(description) * chunks.saturating_sub(1) + shadows * chunks)
}
