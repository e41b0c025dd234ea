//! Why a processor refuses.

use std::path::PathBuf;

/// What a processor returns, or why it refuses.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a processor can't be had, does not prepare a subgraph, or did not run a program.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The parts of a subgraph contradict each other.
    #[error("{part} of the subgraph: {found}, expected {expected}")]
    Subgraph {
        /// Which part.
        part: String,
        /// What it has.
        found: String,
        /// What it should have.
        expected: String,
    },
    /// The processor computes what is between the products of a feed-forward in f32 alone.
    #[error("{processor} computes no feed-forward in fixed point: expected the CPU or npu:hexagon")]
    FixedPoint {
        /// The processor.
        processor: String,
    },
    /// More rows than the program was prepared for, or none.
    #[error("{rows} rows were given to a program that was prepared for 1 to {prepared}")]
    Rows {
        /// Rows of the input.
        rows: usize,
        /// Rows that the program was prepared for.
        prepared: usize,
    },
    /// The input is not what the program was prepared for.
    #[error("the input has {found}, but the program was prepared for {expected}")]
    Input {
        /// What it has.
        found: String,
        /// What it should have.
        expected: String,
    },
    /// The views of outputs don't fit what the program computes.
    #[error("the outputs are {found:?}, but the program writes {expected:?}")]
    Outputs {
        /// `[rows, columns]` of each view that was given.
        found: Vec<[usize; 2]>,
        /// `[rows, features]` of each output.
        expected: Vec<[usize; 2]>,
    },
    /// The path of ONNX Runtime was not given.
    #[error(
        "no ONNX Runtime was named: set {variable} to the path of its library, such as libonnxruntime.so"
    )]
    LibraryUnnamed {
        /// The environment variable that may name it.
        variable: &'static str,
    },
    /// There is no library.
    #[error("{}: {reason}: install ONNX Runtime and give the path of its library", path.display())]
    LibraryMissing {
        /// Where it should be.
        path: PathBuf,
        /// The system's error.
        reason: std::io::Error,
    },
    /// The file is no library of ONNX Runtime, or none for this machine.
    #[error("{} can't be used as a library of ONNX Runtime: {reason}", path.display())]
    LibraryWrong {
        /// The file.
        path: PathBuf,
        /// What went wrong.
        reason: String,
    },
    /// The library is too old.
    #[error("{} is ONNX Runtime {found}: install {oldest} or later", path.display())]
    LibraryVersion {
        /// The library.
        path: PathBuf,
        /// Its version.
        found: String,
        /// The oldest that would do.
        oldest: &'static str,
    },
    /// A process loads one library, once.
    #[error("{} can't be loaded beside {}: use one library in one process", path.display(), loaded.display())]
    LibraryLoaded {
        /// The one that was loaded.
        loaded: PathBuf,
        /// The requested one.
        path: PathBuf,
    },
    /// The library was built without the provider.
    #[error(
        "{} was built without the provider {provider} (it has {}): take a build that has it",
        library.display(),
        available.join(", ")
    )]
    ProviderMissing {
        /// The provider.
        provider: String,
        /// ONNX Runtime's library.
        library: PathBuf,
        /// Those of ours that the library has.
        available: Vec<String>,
    },
    /// The provider lists no device of the requested kind.
    #[error(
        "the provider {provider} finds no {kind} on this machine (it finds: {}): check the device's driver, or choose \
         another processor",
        if listed.is_empty() { "nothing" } else { listed }
    )]
    NoDevice {
        /// The provider.
        provider: String,
        /// The requested kind.
        kind: String,
        /// What there is.
        listed: String,
    },
    /// The provider would leave a part of a graph to the CPU.
    #[error(
        "the provider {provider} takes only a part of the graph: {taken}. Run this subgraph on the CPU, or choose another provider"
    )]
    PartlyTaken {
        /// The provider.
        provider: String,
        /// Which part.
        taken: String,
    },
    /// The provider does not build the graph.
    #[error("the provider {provider} refuses the graph: {reason}")]
    Refused {
        /// The provider.
        provider: String,
        /// Its message.
        reason: String,
    },
    /// The subgraph does not fit beside what was prepared before.
    #[error(
        "the subgraph needs {needed} bytes of {processor}'s window, of which {free} of {window} are free: run it on \
         another processor"
    )]
    WindowFull {
        /// The processor.
        processor: String,
        /// Bytes of the subgraph.
        needed: usize,
        /// Bytes that are left.
        free: usize,
        /// Bytes in all.
        window: usize,
    },
    /// Compiled graphs can't be kept.
    #[error("{}: {reason}: compiled graphs can't be kept there", path.display())]
    Cache {
        /// The folder.
        path: PathBuf,
        /// The system's error.
        reason: std::io::Error,
    },
    /// The path of the device program for Hexagon was not given.
    #[error(
        "no device program for Hexagon was named: run hexagon/build and set {variable} to the path that it prints (for a \
         phone's DSP: hexagon/build qurt)"
    )]
    HexagonUnnamed {
        /// The environment variable that may name it.
        variable: &'static str,
    },
    /// There is no device program.
    #[error("{}: {reason}: run hexagon/build and give the path of the device program that it prints", path.display())]
    HexagonMissing {
        /// Where it should be.
        path: PathBuf,
        /// The system's error.
        reason: std::io::Error,
    },
    /// There is no emulator.
    #[error(
        "{}, which runs the device program for Hexagon, can't be started: {reason}: install qemu-user-static, or set \
         TRIAD_QEMU_HEXAGON to the path of qemu-hexagon, or on a phone use what hexagon/build qurt prints",
        emulator.display()
    )]
    HexagonEmulator {
        /// Its name.
        emulator: PathBuf,
        /// The system's error.
        reason: std::io::Error,
    },
    /// The file is no device program, or one of another version.
    #[error(
        "{} can't be used as the device program for Hexagon: {reason}: run hexagon/build (for a phone's DSP: hexagon/build \
         qurt) and use what it prints",
        path.display()
    )]
    HexagonProgram {
        /// The file.
        path: PathBuf,
        /// What went wrong.
        reason: String,
    },
    /// The DSP of a phone is not reached.
    #[error("npu:hexagon: {call} of {} failed: {reason}: {advice}", path.display())]
    HexagonDsp {
        /// The call that failed.
        call: &'static str,
        /// The device node or file that it is of.
        path: PathBuf,
        /// The system's error.
        reason: std::io::Error,
        /// What to do about it.
        advice: &'static str,
    },
    /// The device has no memory for a subgraph.
    #[error(
        "npu:hexagon has no room for the subgraph, since {reason}: run it on another processor"
    )]
    HexagonMemory {
        /// Why.
        reason: String,
    },
    /// There is no GPU.
    #[error(
        "no GPU was found{}: install a driver for Vulkan, Metal or Direct3D 12, or name the adapter to use",
        if software.is_empty() { String::new() } else { format!(", only software that takes the place of one: {software}") }
    )]
    NoGpu {
        /// Software that takes the place of one.
        software: String,
    },
    /// There is no GPU of this name.
    #[error("no GPU is called {wanted}: expected a part of the name of one that was found: {}", if found.is_empty() { "none" } else { found })]
    GpuNotFound {
        /// The name.
        wanted: String,
        /// What there is.
        found: String,
    },
    /// There is no variant of the shaders of this name.
    #[error("{variable}: there are no shaders {wanted}: expected some of {expected}")]
    GpuVariant {
        /// The environment variable that names them.
        variable: &'static str,
        /// The name.
        wanted: String,
        /// What there is.
        expected: String,
    },
    /// The driver does not open the GPU.
    #[error("{gpu} can't be opened: {reason}")]
    GpuRefused {
        /// The GPU.
        gpu: String,
        /// The driver's message.
        reason: String,
    },
    /// No variant of the shaders computes rightly.
    #[error(
        "{gpu} computes wrongly, whichever shaders it is given ({reasons}): update its driver, or choose another processor"
    )]
    GpuMiscomputes {
        /// The GPU.
        gpu: String,
        /// What is wrong with each.
        reasons: String,
    },
    /// The GPU has no memory for a buffer.
    #[error(
        "{gpu} has no buffer of {bytes} bytes for {what}, since {reason}: run this subgraph on another processor"
    )]
    GpuMemory {
        /// The GPU.
        gpu: String,
        /// What for.
        what: &'static str,
        /// Bytes of the buffer.
        bytes: u64,
        /// Why.
        reason: String,
    },
    /// The device runs subgraphs alone.
    #[error("{processor} runs no whole models: expected a GPU")]
    WholeModel {
        /// The device.
        processor: String,
    },
    /// The GPU does not run a model.
    #[error("{gpu} does not run this model: {reason}")]
    GpuModel {
        /// The GPU.
        gpu: String,
        /// Why.
        reason: String,
    },
    /// The device failed while it ran a program.
    #[error("{processor} failed: {reason}")]
    Run {
        /// The processor.
        processor: String,
        /// Its message.
        reason: String,
    },
}
