//! The format of packages, and the names of their content.

use triad_model::checkpoint::Source;

use super::vision;

/// The latest version of the format: packages with a head that predicts more tokens, or with a budget of bits.
pub const FORMAT: u64 = 3;
/// The version of all other packages, the earliest that is read.
pub const PLAIN_FORMAT: u64 = 2;

/// The file with all [`tensors`](super::tensors).
pub const WEIGHTS: &str = "weights.safetensors";

/// Returns whether a package can have a file of weights, of text or of pictures with this name.
pub fn is_content(name: &str) -> bool {
    name == WEIGHTS || Source::TEXT_FILES.contains(&name) || vision::FILES.contains(&name)
}
