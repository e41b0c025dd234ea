//! The errors of processors.

use std::path::PathBuf;

use crate::layer_format::LayerFormat;

/// A result of a processor.
pub type Result<T> = std::result::Result<T, Error>;

/// The reason why a processor is not available, does not prepare a subgraph, or failed to run a program.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The parts of a subgraph contradict each other.
    #[error("{part} of the subgraph: {found}, expected {expected}")]
    Subgraph {
        /// The part.
        part: String,
        /// The value found.
        found: String,
        /// The value expected.
        expected: String,
    },
    /// The processor does not multiply layers in this format.
    #[error(
        "{processor} multiplies {multiplies} alone, and the layer is in {format}: expected processors among cpu and gpu, or \
         a package in INT8"
    )]
    LayerFormat {
        /// The processor.
        processor: String,
        /// The format of the layer.
        format: LayerFormat,
        /// The formats that it multiplies, as text.
        multiplies: String,
    },
    /// The processor computes the part between the matmuls of a feed-forward only in f32.
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
    /// The input does not fit the program.
    #[error("the input has {found}, but the program was prepared for {expected}")]
    Input {
        /// Property of the input.
        found: String,
        /// Property that the program expects.
        expected: String,
    },
    /// The shapes of the output views are not those of the program's outputs.
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
        /// The environment variable that names it.
        variable: &'static str,
    },
    /// The library does not exist.
    #[error("{}: {reason}: install ONNX Runtime and give the path of its library", path.display())]
    LibraryMissing {
        /// The path that was tried.
        path: PathBuf,
        /// The system's error.
        reason: std::io::Error,
    },
    /// The file is not a library of ONNX Runtime, or not one for this machine.
    #[error("{} can't be used as a library of ONNX Runtime: {reason}", path.display())]
    LibraryWrong {
        /// The file.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// The library is too old.
    #[error("{} is ONNX Runtime {found}: install {oldest} or later", path.display())]
    LibraryVersion {
        /// The library.
        path: PathBuf,
        /// Its version.
        found: String,
        /// The oldest supported version.
        oldest: &'static str,
    },
    /// Another library is loaded already. A process can load only one.
    #[error("{} can't be loaded, since this process has loaded {}: use one library per process", path.display(), loaded.display())]
    LibraryLoaded {
        /// The one that was loaded.
        loaded: PathBuf,
        /// The requested one.
        path: PathBuf,
    },
    /// The library was built without the provider.
    #[error(
        "{} was built without the provider {provider} (it has {}): take a build that has it, or \
         name the provider's own library (--npu-library, or TRIAD_QNN for qnn)",
        library.display(),
        available.join(", ")
    )]
    ProviderMissing {
        /// The provider.
        provider: String,
        /// ONNX Runtime's library.
        library: PathBuf,
        /// The supported providers that the library has.
        available: Vec<String>,
    },
    /// The provider's own library can't be used.
    #[error("{} can't be used as the library of the provider {provider}: {reason}", path.display())]
    ProviderLibrary {
        /// The provider.
        provider: String,
        /// The file.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// The provider does not have an option.
    #[error("the provider {provider} does not take the option {option}: {reason}")]
    ProviderOption {
        /// The provider.
        provider: String,
        /// The name of the option.
        option: String,
        /// The reason.
        reason: String,
    },
    /// The processor runs linear layers only.
    #[error("{processor} runs no whole feed-forwards: expected their linear layers")]
    WholeFeedForward {
        /// The processor.
        processor: String,
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
        /// The devices that it lists.
        listed: String,
    },
    /// The provider would leave part of a graph to the CPU.
    #[error(
        "the provider {provider} takes only a part of the graph: {taken}. Run this subgraph on the CPU, or choose another provider"
    )]
    PartlyTaken {
        /// The provider.
        provider: String,
        /// The part that the provider takes.
        taken: String,
    },
    /// The provider refused to build the graph.
    #[error("the provider {provider} refuses the graph: {reason}")]
    Refused {
        /// The provider.
        provider: String,
        /// The provider's message.
        reason: String,
    },
    /// The subgraph does not fit into the rest of the processor's memory window.
    #[error(
        "the subgraph needs {needed} bytes of {processor}'s window, of which {free} of {window} are free: run it on \
         another processor"
    )]
    WindowFull {
        /// The processor.
        processor: String,
        /// Bytes that the subgraph needs.
        needed: usize,
        /// Free bytes.
        free: usize,
        /// Bytes of the whole window.
        window: usize,
    },
    /// The folder for compiled graphs can't be used.
    #[error("{}: {reason}: compiled graphs can't be kept there", path.display())]
    Cache {
        /// The folder.
        path: PathBuf,
        /// The system's error.
        reason: std::io::Error,
    },
    /// A folder of graphs that are compiled ahead of time can't be used.
    #[error("{}: {reason}", path.display())]
    Contexts {
        /// The folder, or a file in it.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// The path of the device program for Hexagon was not given.
    #[error(
        "no device program for Hexagon was named: run hexagon/build and set {variable} to the path that it prints (for a \
         phone's DSP: hexagon/build qurt)"
    )]
    HexagonUnnamed {
        /// The environment variable that names it.
        variable: &'static str,
    },
    /// The device program does not exist.
    #[error("{}: {reason}: run hexagon/build and give the path of the device program that it prints", path.display())]
    HexagonMissing {
        /// The path that was tried.
        path: PathBuf,
        /// The system's error.
        reason: std::io::Error,
    },
    /// The emulator can't be started.
    #[error(
        "{}, which runs the device program for Hexagon, can't be started: {reason}: install qemu-user-static, or set \
         TRIAD_QEMU_HEXAGON to the path of qemu-hexagon, or on a phone use what hexagon/build qurt prints",
        emulator.display()
    )]
    HexagonEmulator {
        /// The emulator's file name.
        emulator: PathBuf,
        /// The system's error.
        reason: std::io::Error,
    },
    /// The file is not a device program, or one of another version.
    #[error(
        "{} can't be used as the device program for Hexagon: {reason}: run hexagon/build (for a phone's DSP: hexagon/build \
         qurt) and use what it prints",
        path.display()
    )]
    HexagonProgram {
        /// The file.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// The DSP of a phone can't be reached.
    #[error("npu:hexagon: {call} of {} failed: {reason}: {advice}", path.display())]
    HexagonDsp {
        /// The call that failed.
        call: &'static str,
        /// The device node or file of the call.
        path: PathBuf,
        /// The system's error.
        reason: std::io::Error,
        /// Advice for the user.
        advice: &'static str,
    },
    /// The device has no memory for a subgraph.
    #[error(
        "npu:hexagon has no room for the subgraph, since {reason}: run it on another processor"
    )]
    HexagonMemory {
        /// The reason.
        reason: String,
    },
    /// No GPU was found.
    #[error(
        "no GPU was found{}: install a driver for Vulkan, Metal or Direct3D 12, or name the adapter to use",
        if software.is_empty() { String::new() } else { format!(", only software renderers: {software}") }
    )]
    NoGpu {
        /// Software renderers that were found.
        software: String,
    },
    /// No GPU has this name.
    #[error("no GPU is called {wanted}: expected a part of the name of one that was found: {}", if found.is_empty() { "none" } else { found })]
    GpuNotFound {
        /// The requested name.
        wanted: String,
        /// The names that were found.
        found: String,
    },
    /// No shader variant has this name.
    #[error("{variable}: there are no shaders {wanted}: expected some of {expected}")]
    GpuVariant {
        /// The environment variable that names variants.
        variable: &'static str,
        /// The requested name.
        wanted: String,
        /// The names that exist.
        expected: String,
    },
    /// The driver refused to open the GPU.
    #[error("{gpu} can't be opened: {reason}")]
    GpuRefused {
        /// The GPU.
        gpu: String,
        /// The driver's message.
        reason: String,
    },
    /// No shader variant computes correctly.
    #[error(
        "{gpu} computes wrong results with all shader variants ({reasons}): update its driver, or choose another processor"
    )]
    GpuMiscomputes {
        /// The GPU.
        gpu: String,
        /// The error of each variant.
        reasons: String,
    },
    /// The GPU has no memory for a buffer.
    #[error(
        "{gpu} has no buffer of {bytes} bytes for {what}, since {reason}: run this subgraph on another processor"
    )]
    GpuMemory {
        /// The GPU.
        gpu: String,
        /// Purpose of the buffer.
        what: &'static str,
        /// Bytes of the buffer.
        bytes: u64,
        /// The reason.
        reason: String,
    },
    /// The device runs only subgraphs.
    #[error("{processor} does not run whole models: expected a GPU")]
    WholeModel {
        /// The device.
        processor: String,
    },
    /// The GPU does not support a model.
    #[error("{gpu} does not run this model: {reason}")]
    GpuModel {
        /// The GPU.
        gpu: String,
        /// The reason.
        reason: String,
    },
    /// The device failed while it ran a program.
    #[error("{processor} failed: {reason}")]
    Run {
        /// The processor.
        processor: String,
        /// The processor's message.
        reason: String,
    },
}
