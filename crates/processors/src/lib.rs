//! What runs a subgraph in INT8: one trait, [`Device`], and its implementations.
//!
//! A [`DeviceSubgraph`] is data: linear layers that read one quantized input, or a feed-forward. A device *prepares*
//! it, once, for a number of rows, which returns a [`Program`]; that *runs*, for every chunk. What can't be prepared
//! can't be run by mistake, and whatever a device refuses it refuses by an [`Error`] of its own kind: nothing moves
//! elsewhere in silence.
//!
//! [`cpu`] computes with our kernels on cores of its own; `npu`, a feature of this crate, builds graphs for ONNX Runtime,
//! which runs them on an NPU or whatever else it has a provider for; `hexagon`, another one, runs a program of our own on
//! Hexagon's NPU; `gpu` runs shaders on a GPU. All devices are in one table of the conformance suite, which holds them to a plain reference: sums are exact, and what follows them is exact to the rounding of f32.
//!
//! A device may also run a [`DeviceModel`](model::DeviceModel) whole, keys and values included: it prepares a
//! [`ModelProgram`](model::ModelProgram), which takes embeddings of tokens and returns logits. GPUs do.
//!
//! ```
//! use std::sync::Arc;
//! use triad_kernels::OutputMut;
//! use triad_kernels::int8::{Int8Weight, QuantizedRows, pack};
//! use triad_kernels::pool::Pool;
//! use triad_processors::{Device, DeviceSubgraph, Layer, Linear, cpu::Cpu};
//!
//! struct Doubled([i8; 16 * 4]);
//!
//! impl Layer for Doubled {
//!     fn weight(&self) -> Int8Weight<'_> {
//!         Int8Weight { out_features: 1, in_features: 2, packed: &self.0, scales: &[1.0], sums: &[4] }
//!     }
//! }
//!
//! let mut packed = [0; 16 * 4];
//! pack(&[2, 2], 1, 2, &mut packed);
//! let subgraph = DeviceSubgraph::Linear(Linear { input_scale: 1.0, layers: vec![Arc::new(Doubled(packed))] });
//! let cpu = Cpu::new(Arc::new(Pool::new(1)?));
//! let mut program = cpu.prepare(&subgraph, 256)?;
//!
//! let mut input = QuantizedRows::default();
//! input.quantize_static(&[3.0, 4.0], 2, 1.0, None, false);
//! let mut out = [0.0];
//! program.run(input.view(), &mut [OutputMut::new(&mut out, 1)])?;
//! assert_eq!(out, [14.0]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

// The plain reference of the conformance suite is used by unit tests, too.
#[cfg(all(test, feature = "hexagon"))]
extern crate self as triad_processors;

pub mod cpu;
mod device;
mod error;
mod fixed_point;
#[cfg(feature = "gpu")]
pub mod gpu;
#[cfg(feature = "hexagon")]
pub mod hexagon;
mod layer_columns;
pub mod model;
#[cfg(feature = "npu")]
pub mod npu;
mod subgraph;
#[cfg(any(feature = "hexagon", feature = "npu"))]
mod window;

pub use device::{Capabilities, Device, ModelOptions, Peaks, Program};
pub use error::{Error, Result};
pub use fixed_point::{FixedFeedForward, FixedScratch};
pub use layer_columns::LayerColumns;
pub use subgraph::{DeviceSubgraph, FeedForward, Layer, Linear};
