//! Graphs that are compiled ahead of time for a chip, usually on another machine than the one that runs them.
//!
//! A folder has the compiled graphs of one package, for one chip and one length of chunks, in one context or a few (module
//! `joined`). Its index names each graph by a hash of it with its weights. A device that is given such a folder
//! compiles nothing: a graph that the folder lacks, and a context that is not the one that was written, are errors. Each
//! graph has to multiply correctly before it is used (module `self_test`). That is no protection: a compiled graph is a
//! program for the device.

use std::path::PathBuf;

use super::chip::Chip;
use super::compiled::Compiled;
use super::compiling::Compiling;
use super::index::wrong;
use super::provider::Provider;
use crate::error::{Error, Result};

/// How graphs that are compiled ahead of time are used.
#[derive(Clone, Debug)]
pub enum Contexts {
    /// They are compiled for `chip`. [`Npu::keep_contexts`](super::Npu::keep_contexts) gives the folder its name.
    Compile {
        /// The chip that will run them.
        chip: Chip,
        /// A folder that does not exist yet.
        folder: PathBuf,
        /// Most bytes of the weights of a context, which has at least one graph. See [`Contexts::MAX_BYTES`].
        context_bytes: usize,
    },
    /// They are run, and no others.
    Run {
        /// The folder that has them.
        folder: PathBuf,
    },
}

/// A folder in use.
#[derive(Debug)]
pub(super) enum Folder {
    Compiling(Compiling),
    Compiled(Compiled),
}

impl Contexts {
    /// Most bytes of the weights of a context: a model of ONNX has at most 2 GiB, and several are in memory while it is
    /// compiled.
    pub const MAX_BYTES: usize = 1 << 30;

    /// Adds the options that select the chip.
    ///
    /// # Errors
    /// If the provider has no chips, or the options select one.
    pub(super) fn complete(
        &self,
        provider: Provider,
        options: &mut Vec<(String, String)>,
    ) -> Result<()> {
        let (Self::Compile { folder, .. } | Self::Run { folder }) = self;
        if provider != Provider::Qnn {
            let reason = format!(
                "graphs are compiled ahead of time for the provider {}: expected it, and not {provider}",
                Provider::Qnn
            );
            return Err(wrong(folder, reason));
        }
        let Self::Compile { chip, .. } = self else {
            return Ok(());
        };
        for (option, value) in chip.options() {
            if options.iter().any(|(other, _)| *other == option) {
                return Err(Error::ProviderOption {
                    provider: provider.to_string(),
                    option,
                    reason: format!("{chip} gives it"),
                });
            }
            options.push((option, value));
        }
        Ok(())
    }

    /// Opens the folder.
    ///
    /// # Errors
    /// If it exists and should not, or has no valid index and should have one.
    pub(super) fn open(&self) -> Result<Folder> {
        match self {
            Self::Compile {
                chip,
                folder,
                context_bytes,
            } => Compiling::new(*chip, folder.clone(), *context_bytes).map(Folder::Compiling),
            Self::Run { folder } => Compiled::open(folder.clone()).map(Folder::Compiled),
        }
    }
}
