//! The format of packages, and the names of their content.

use triad_model::checkpoint::Source;

use super::vision;

/// The version of the format that is written and read.
pub const FORMAT: u64 = 2;

/// The file with all [`tensors`](super::tensors).
pub const WEIGHTS: &str = "weights.safetensors";

/// Returns whether a package can have a file of weights, of text or of pictures with this name.
pub fn is_content(name: &str) -> bool {
    name == WEIGHTS || Source::TEXT_FILES.contains(&name) || vision::FILES.contains(&name)
}
