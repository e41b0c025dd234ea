//! How a model is loaded.

use std::path::PathBuf;

use triad_kernels::BlockArithmetic;

use crate::threads::Threads;

/// Options of loading a model.
#[derive(Clone, Debug, Default)]
pub struct LoadOptions {
    /// The threads that compute.
    pub threads: Threads,
    /// The arithmetic of linear layers with quantized blocks of a GGUF file, or with the integers of quantized
    /// safetensors.
    pub block_arithmetic: BlockArithmetic,
    /// The memory of experts; `None`: the system decides which pages stay in memory.
    pub expert_memory: Option<ExpertLimit>,
    /// The encoder of pictures: an mmproj file, or the folder of a model that has one; `None`: that of the model's own
    /// folder, if there is one.
    pub vision: Option<PathBuf>,
}

/// The memory of the experts of a model that is larger than memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertLimit {
    /// The maximum bytes of experts that stay in memory.
    pub bytes: u64,
    /// Whether experts are read before their block is reached, as the router of the block before foresees.
    pub reads_ahead: bool,
}
