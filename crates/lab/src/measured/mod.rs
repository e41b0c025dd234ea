//! Studies of models and of the engine, beyond what preparing a package needs.
//!
//! A [`Subject`] is a float model with its calibration results. [`outliers`] counts outliers: their position, skew and
//! importance, and the memory of their rows. [`sweep`] runs the model in INT8 in several variants, with fewer and fewer
//! shadows or with each rule for clip thresholds. [`hot_channels`] runs it with the weights of shadows in a file,
//! calibrated on one domain of text and run on another.
//!
//! [`encoder`] measures how much INT8 changes an encoder of pictures. Two modules study the engine with several conversations: [`stall`] measures how long they wait for tokens while a
//! prompt is computed, [`prefixes`] what conversations with a common prefix share. [`rendering`] counts the frames that
//! an application loses while prompts run on the same GPU, and [`interference`] measures what other programs cost a
//! prompt.

pub mod encoder;
pub mod hot_channels;
pub mod interference;
pub mod outliers;
pub mod prefixes;
pub mod rendering;
pub mod stall;
mod subject;
pub mod sweep;

pub use subject::Subject;
