//! Qualcomm's provider and layers for it.

#[path = "../conformance/plain.rs"]
#[allow(dead_code, reason = "the conformance suite uses all of it")]
pub mod plain;
#[path = "../skip/mod.rs"]
mod skip;

use std::sync::Arc;

use triad_kernels::OutputMut;
use triad_kernels::int8::QuantizedRows;
use triad_processors::npu::{Npu, NpuOptions, Provider, library_from_environment};
use triad_processors::{Device, DeviceSubgraph, Layer, Linear};

use plain::Plain;

pub const SCALE: f32 = 0.013;

/// Returns options for the emulator, or `None` if a library is missing.
pub fn options() -> Option<NpuOptions> {
    let library = match library_from_environment() {
        Ok(library) => library,
        Err(error) => {
            skip::skip(error);
            return None;
        }
    };
    let options = NpuOptions::new(library, Provider::Qnn);
    if options.provider_library.is_none() {
        skip::skip("TRIAD_QNN names no library");
        return None;
    }
    Some(options)
}

pub fn linear(layers: &[Arc<Plain>]) -> DeviceSubgraph {
    let layers = layers
        .iter()
        .map(|layer| Arc::clone(layer) as Arc<dyn Layer>);
    DeviceSubgraph::Linear(Linear {
        input_scale: SCALE,
        layers: layers.collect(),
    })
}

pub fn run(
    npu: &Npu,
    layers: &[Arc<Plain>],
    prepared: usize,
    input: &QuantizedRows,
) -> Vec<Vec<f32>> {
    let mut program = npu.prepare(&linear(layers), prepared).unwrap();
    let mut outputs: Vec<_> = layers
        .iter()
        .map(|layer| vec![0.5; input.rows() * layer.out_features])
        .collect();
    let views = outputs
        .iter_mut()
        .zip(layers)
        .map(|(out, layer)| OutputMut::new(out, layer.out_features));
    program
        .run(input.view(), &mut views.collect::<Vec<_>>())
        .unwrap();
    outputs
}
