//! Shared parts of the commands `triad` and `triad-lab`.
//!
//! - [`arguments`] reads models, threads and numbers from the command line. [`processors`], [`device`], [`cut`] and
//!   [`partition`] read the processors of a run.
//! - [`output`] prints, [`progress`] draws progress bars, and [`output_file`] writes files, which can't be [`inputs`].
//! - [`chart`] draws figures, and [`timeline_file`] writes timelines.
//! - [`preparing`] shows the preparation of a package, and [`measure`] measures prefill and decode. [`arithmetic`]
//!   measures peak rates.
//! - [`task`] names the tasks of evaluations. [`version`] is the text of `--version`.
//! - [`interrupt`] handles Ctrl-C, [`failure`](mod@failure) converts errors, and [`process`] starts and ends a command.
//!
//! Code that does not print is in `triad-frontend`.
#![forbid(unsafe_code)]
// These macros panic if the stream can't be written. Use the functions of `output`.
#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod arguments;
pub mod arithmetic;
pub mod chart;
pub mod cut;
pub mod device;
pub mod device_profile;
pub mod encoded;
pub mod executed;
pub mod experts;
pub mod failure;
pub mod inputs;
pub mod interrupt;
pub mod measure;
pub mod measurements;
pub mod output;
pub mod output_file;
pub mod partition;
pub mod preparing;
pub mod priority;
pub mod process;
pub mod processors;
pub mod progress;
pub mod renamed;
pub mod task;
pub mod timeline_file;
pub mod version;
pub mod vision;
