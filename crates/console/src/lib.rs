//! Shared parts of the commands `triad` and `triad-lab`.
//!
//! [`arguments`] reads models, threads and numbers from the command line; [`processors`], [`device`], [`cut`] and
//! [`partition`] the processors that a run uses. [`output`] prints, [`progress`] draws bars, [`output_file`] writes files,
//! none of them one of the [`inputs`]. [`chart`] draws figures and [`timeline_file`] timelines. [`preparing`] shows how a
//! package is made, [`measure`] takes the times of prefill and decode. [`task`] names the tasks of evaluations. [`interrupt`] handles Ctrl-C, [`failure`](mod@failure)
//! reads errors, [`process`] starts and ends a command. Code that does not print is in `triad-frontend`.
#![forbid(unsafe_code)]
// Their macros panic where the stream cannot be written: `output` has functions that do not.
#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod arguments;
pub mod arithmetic;
pub mod chart;
pub mod cut;
pub mod device;
pub mod failure;
pub mod inputs;
pub mod interrupt;
pub mod measure;
pub mod output;
pub mod output_file;
pub mod partition;
pub mod preparing;
pub mod process;
pub mod processors;
pub mod progress;
pub mod task;
pub mod timeline_file;
pub mod version;
