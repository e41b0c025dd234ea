//! The table of processors.

use std::sync::Arc;

use triad_kernels::OutputMut;
use triad_kernels::int8::QuantizedRows;
use triad_kernels::pool::Pool;
use triad_processors::cpu::Cpu;
use triad_processors::{Device, DeviceSubgraph};

/// Returns every processor that is available here.
fn all() -> Vec<Box<dyn Device>> {
    let cpu =
        |threads| -> Box<dyn Device> { Box::new(Cpu::new(Arc::new(Pool::new(threads).unwrap()))) };
    [cpu(1), cpu(2)]
        .into_iter()
        .chain(npu())
        .chain(hexagon())
        .chain(gpus())
        .collect()
}

/// Returns the GPU that the environment names, with each variant of its shaders and with short submissions.
#[cfg(feature = "gpu")]
fn gpus() -> Vec<Box<dyn Device>> {
    use triad_processors::gpu::{ADAPTER, Gpu, GpuOptions, Variant};
    let options = GpuOptions::from_environment();
    if options.adapter.is_none() {
        crate::skip::skip(format_args!("{ADAPTER} names no GPU"));
        return Vec::new();
    }
    let of_variant = |variant| -> Box<dyn Device> {
        Box::new(
            Gpu::open(&GpuOptions {
                variants: Some(vec![variant]),
                ..options.clone()
            })
            .unwrap(),
        )
    };
    // Makes pieces as small as possible.
    let slice = Some(std::time::Duration::from_nanos(1));
    let sliced = Box::new(
        Gpu::open(&GpuOptions {
            slice,
            ..options.clone()
        })
        .unwrap(),
    );
    Variant::ALL
        .map(of_variant)
        .into_iter()
        .chain([sliced as Box<dyn Device>])
        .collect()
}

/// Returns none, since this build has no GPUs.
#[cfg(not(feature = "gpu"))]
fn gpus() -> Vec<Box<dyn Device>> {
    crate::skip::skip("this build has no GPUs");
    Vec::new()
}

/// Returns ONNX Runtime's CPU provider, if the environment names the library.
#[cfg(feature = "npu")]
fn npu() -> Option<Box<dyn Device>> {
    use triad_processors::npu::{Npu, NpuOptions, Provider, library_from_environment};
    match library_from_environment() {
        Ok(library) => Some(Box::new(
            Npu::new(NpuOptions::new(library, Provider::Cpu)).unwrap(),
        )),
        Err(error) => {
            crate::skip::skip(error);
            None
        }
    }
}

/// Returns none, since this build has no ONNX Runtime.
#[cfg(not(feature = "npu"))]
fn npu() -> Option<Box<dyn Device>> {
    crate::skip::skip("this build has no ONNX Runtime");
    None
}

/// Returns Hexagon's NPU under qemu, if the environment names the device program. The part between matmuls is computed
/// by the CPU or by the device, and matmuls by HVX or by the model of HMX.
#[cfg(feature = "hexagon")]
fn hexagon() -> Vec<Box<dyn Device>> {
    use triad_processors::hexagon::{
        Between, Hexagon, HexagonOptions, Unit, program_from_environment,
    };
    match program_from_environment() {
        Ok(program) => {
            let options = HexagonOptions::new(program);
            let of = |(between, unit)| -> Box<dyn Device> {
                Box::new(
                    Hexagon::open(&HexagonOptions {
                        between,
                        unit: Some(unit),
                        ..options.clone()
                    })
                    .unwrap(),
                )
            };
            [
                (Between::Host, Unit::Hmx),
                (Between::Device, Unit::Hmx),
                (Between::Host, Unit::Hvx),
                (Between::Device, Unit::Hvx),
            ]
            .map(of)
            .into()
        }
        Err(error) => {
            crate::skip::skip(error);
            Vec::new()
        }
    }
}

/// Returns none, since this build has no Hexagon.
#[cfg(not(feature = "hexagon"))]
fn hexagon() -> Vec<Box<dyn Device>> {
    crate::skip::skip("this build has no Hexagon");
    Vec::new()
}

/// Calls `test` with each processor.
pub fn each(test: impl Fn(&dyn Device)) {
    for processor in all() {
        test(&*processor);
    }
}

/// Prepares `subgraph` for `prepared` rows and runs it once.
pub fn run(
    processor: &dyn Device,
    subgraph: &DeviceSubgraph,
    prepared: usize,
    input: &QuantizedRows,
) -> Vec<Vec<f32>> {
    let mut program = processor.prepare(subgraph, prepared).unwrap();
    let mut outputs: Vec<_> = subgraph
        .outputs()
        .iter()
        .map(|features| vec![0.5; input.rows() * features])
        .collect();
    let views = outputs
        .iter_mut()
        .zip(subgraph.outputs())
        .map(|(out, features)| OutputMut::new(out, features));
    program
        .run(input.view(), &mut views.collect::<Vec<_>>())
        .unwrap();
    outputs
}
