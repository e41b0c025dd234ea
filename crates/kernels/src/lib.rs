//! CPU operators over slices: the float path, which is the oracle for all faster ones, and INT8.
//!
//! [`matmul`](mod@matmul) multiplies float activations by a weight [`Matrix`] of any format, in the arithmetic of a
//! [`Phase`]. [`attention`](mod@attention) reads keys and values from a cache. [`norm`], [`rope`] and [`activation`]
//! are the operators between them. [`mixer`] has those with a state. [`log_softmax`] scores logits. [`int8`] multiplies
//! quantized activations by quantized weights. [`int4`] quantizes weights for float activations. [`peak`] measures peak
//! rates of this processor. [`isa`] selects the instructions that kernels may use. All matrices are row-major; outputs
//! are views, [`OutputMut`], whose rows need not be contiguous. [`lease`] shares a buffer between threads that write
//! parts of it.
//!
//! Parallel operators run on the [`pool`] that the caller has installed. Every output is summed in the same order
//! however work is divided, so the number of threads changes no bit.
//!
//! ```
//! use triad_kernels::{Matrix, OutputMut, Phase, matmul};
//!
//! let weight = Matrix::F32(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]); // [out_features 3, in_features 2]
//! let mut out = [0.0; 3];
//! matmul(&[10.0, 1.0], weight, None, Phase::Decode, OutputMut::new(&mut out, 3));
//! assert_eq!(out, [12.0, 34.0, 56.0]);
//! ```

pub mod activation;
mod aligned_buf;
#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "aarch64")]
mod arm;
pub mod attention;
pub mod chunks;
mod cores;
#[cfg(test)]
mod cut_tests;
mod dot;
pub mod fixed_point;
pub mod heap;
pub mod int4;
pub mod int8;
pub mod isa;
mod kernel;
pub mod lease;
mod lock;
pub mod log_softmax;
mod magnitude;
pub mod matmul;
mod matrix;
pub mod mixer;
pub mod norm;
mod output;
pub mod peak;
mod phase;
pub mod pool;
mod product;
pub mod rope;
pub mod streams;
mod sync;
#[cfg(test)]
mod testing;
pub mod timing;
mod vectorize;

pub use attention::{Together, attention, attention_of_rows, attention_together};
pub use cores::Cores;
pub use dot::narrow_f16;
pub use kernel::{
    Choice, KernelNames, ProductKind, Rate, RefusedKernel, TimedKernel, choose_kernels,
    kernel_names, refused_kernels, use_kernels,
};
pub use lock::lock;
pub use matmul::{Product, matmul, matmul_each};
pub use matrix::{BlockArithmetic, Blocks, Matrix};
pub use output::OutputMut;
pub use phase::Phase;
pub use triad_blocks::BlockFormat;
