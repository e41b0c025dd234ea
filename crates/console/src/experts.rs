//! Counts of experts that do not stay in memory, in words.

use triad_engine::weights::ExpertUse;

use crate::output;

/// Describes the experts that were computed, and those that were read from the file.
pub fn describe(usage: ExpertUse) -> String {
    let ExpertUse {
        computed,
        awaited,
        requested_ahead,
        foreseen,
        bytes_read,
    } = usage;
    let share = 100.0 * awaited as f64 / computed.max(1) as f64;
    format!(
        "experts: {computed} computed, {awaited} of them awaited from the file ({share:.0} %), {requested_ahead} read \
         ahead, of which {foreseen} were needed, {} read",
        output::bytes(bytes_read)
    )
}
