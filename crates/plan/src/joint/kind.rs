//! The kinds of candidates of a search.

use serde::{Deserialize, Serialize};

/// Kinds of candidates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// One processor computes everything.
    Alone,
    /// Each product is whole, on its fastest processor. One processor computes in float (Hetero-layer).
    Layer,
    /// Each product is cut. One processor computes in float (Hetero-tensor).
    Tensor,
    /// Each product is cut if that is faster in isolation. One processor computes in float.
    Auto,
    /// Whole chunks alternate between the processors that compute in float.
    Chunks,
    /// Each subgraph of each chunk runs where it ends first, with whole products.
    Placed,
    /// Each subgraph of each chunk runs where it ends first, with whole or cut products.
    Mixed,
}

impl Kind {
    /// Returns the name for messages and files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Alone => "alone",
            Self::Layer => "layer",
            Self::Tensor => "tensor",
            Self::Auto => "auto",
            Self::Chunks => "chunks",
            Self::Placed => "placed",
            Self::Mixed => "mixed",
        }
    }
}
