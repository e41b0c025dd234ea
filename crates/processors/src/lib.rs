//! Devices that run subgraphs: the trait [`Device`] and its implementations.
//!
//! A [`DeviceSubgraph`] is data: linear layers that read one quantized input, or a feed-forward. A device *prepares* it
//! once for a number of rows and returns a [`Program`], which then *runs* for every chunk. Only a prepared program can
//! run. A device that refuses a subgraph returns an [`Error`]; no work moves silently to another device.
//!
//! [`cpu`] runs Triad's own kernels on CPU cores. `npu` (a feature of this crate) builds graphs for ONNX Runtime, which
//! runs them on an NPU or on any other execution provider. `hexagon` (another feature) runs Triad's own program on
//! Hexagon NPUs. `gpu` runs shaders on a GPU. The conformance suite compares all devices with a plain reference: sums
//! are exact, and what follows them is exact up to the rounding of f32.
//!
//! A device says which formats of layers it multiplies ([`Capabilities::formats`]). Layers that read floats are prepared
//! as a [`FloatLinear`]; the CPU and GPUs run them.
//!
//! A device may also run a whole [`DeviceModel`](model::DeviceModel), including its KV cache. It prepares a
//! [`ModelProgram`](model::ModelProgram), which takes token embeddings and returns logits. GPUs support this.
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

// Lets unit tests use the plain reference of the conformance suite.
#[cfg(all(test, feature = "hexagon"))]
extern crate self as triad_processors;

pub mod cpu;
mod device;
mod error;
mod fixed_point;
mod float_linear;
#[cfg(feature = "gpu")]
pub mod gpu;
#[cfg(feature = "hexagon")]
pub mod hexagon;
mod layer_columns;
mod layer_format;
pub mod model;
mod multiplier;
#[cfg(feature = "npu")]
pub mod npu;
mod program;
mod subgraph;
#[cfg(any(feature = "hexagon", feature = "npu"))]
mod window;

pub use device::{Capabilities, Device, ModelOptions, Peaks, Program};
pub use error::{Error, Result};
pub use fixed_point::{FixedFeedForward, FixedScratch};
pub use float_linear::{FloatLayer, FloatLinear, FloatProgram};
pub use layer_columns::LayerColumns;
pub use layer_format::LayerFormat;
pub use multiplier::{
    ColumnsProgram, Division, Multiplier, ProductPart, ProductPrograms, ProductWait,
};
pub use subgraph::{DeviceSubgraph, FeedForward, Layer, Linear};
