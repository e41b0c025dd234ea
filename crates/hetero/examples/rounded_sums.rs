//! Compares the perplexity of a package in INT8 with that of the same package on an NPU that rounds the outputs of its
//! products: `cargo run --release -p triad-hetero --example rounded_sums -- PACKAGE TEXT [WINDOWS]`.
//!
//! The NPU is our kernels, whose outputs are then rounded to 16 bits as `--npu qnn` rounds them, or to 8 bits with scales
//! that are calibrated on the first window of the text. That window is not scored.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use triad_engine::package::Package;
use triad_engine::{Cancel, EngineOptions, LoadOptions, Model, SessionOptions, Threads};
use triad_hetero::{HeteroEngine, HeteroOptions, ProcessorOptions};
use triad_kernels::OutputMut;
use triad_kernels::int8::{QuantizedView, unpack};
use triad_kernels::pool::Pool;
use triad_model::tokenizer::EncodeOptions;
use triad_plan::processors::Processor;
use triad_processors::cpu::Cpu;
use triad_processors::{Capabilities, Device, DeviceSubgraph, Layer, Program, Result};

const WINDOW: usize = 512;

/// How outputs are rounded.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Rounding {
    /// They are not.
    None,
    /// Sums to 16 bits, by the power of two that the weights of each column need.
    Sixteen,
    /// Outputs to 8 bits, by the largest output of each layer in calibration.
    Eight,
    /// Outputs to 8 bits, by the largest output of each column in calibration.
    EightByColumn,
}

/// By program and by output, the largest magnitude of each column.
type Largest = Mutex<Vec<Vec<Vec<f32>>>>;

/// Our kernels as an NPU.
struct RoundingNpu {
    cpu: Cpu,
    capabilities: Capabilities,
    rounding: Arc<Mutex<Rounding>>,
    largest: Arc<Largest>,
}

struct RoundingProgram {
    program: Box<dyn Program>,
    layers: Vec<Arc<dyn Layer>>,
    /// By layer and column, the value of one unit of an output in 16 bits.
    units: Vec<Vec<f32>>,
    number: usize,
    rounding: Arc<Mutex<Rounding>>,
    largest: Arc<Largest>,
}

fn units(layer: &dyn Layer, input_scale: f32) -> Vec<f32> {
    let weight = layer.weight();
    let mut row_major = vec![0; weight.out_features * weight.in_features];
    unpack(weight, &mut row_major);
    let columns = row_major
        .chunks_exact(weight.in_features)
        .zip(weight.scales);
    let unit = |(column, scale): (&[i8], &f32)| {
        let sum: u64 = column.iter().map(|q| u64::from(q.unsigned_abs())).sum();
        let power = (128 * sum).div_ceil(32767).max(1).next_power_of_two();
        power as f32 * input_scale * scale
    };
    columns.map(unit).collect()
}

impl Device for RoundingNpu {
    fn name(&self) -> &str {
        "npu:rounding"
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn prepare(&self, subgraph: &DeviceSubgraph, rows: usize) -> Result<Box<dyn Program>> {
        let DeviceSubgraph::Linear(linear) = subgraph else {
            panic!("the device has no whole feed-forwards")
        };
        let of_layer = |layer: &Arc<dyn Layer>| vec![0.0; layer.weight().out_features];
        let mut largest = self.largest.lock().unwrap();
        largest.push(linear.layers.iter().map(of_layer).collect());
        let units = linear
            .layers
            .iter()
            .map(|layer| units(&**layer, linear.input_scale));
        Ok(Box::new(RoundingProgram {
            program: self.cpu.prepare(subgraph, rows)?,
            layers: linear.layers.clone(),
            units: units.collect(),
            number: largest.len() - 1,
            rounding: Arc::clone(&self.rounding),
            largest: Arc::clone(&self.largest),
        }))
    }
}

impl Program for RoundingProgram {
    fn run(&mut self, input: QuantizedView, outputs: &mut [OutputMut]) -> Result<()> {
        self.program.run(input, outputs)?;
        let rounding = *self.rounding.lock().unwrap();
        let mut largest = self.largest.lock().unwrap();
        for (index, out) in outputs.iter_mut().enumerate() {
            let (bias, largest) = (self.layers[index].bias(), &mut largest[self.number][index]);
            let of_layer = largest.iter().copied().fold(0.0, f32::max);
            for row in 0..out.rows() {
                for (column, out) in out.row_mut(row).iter_mut().enumerate() {
                    let bias = bias.map_or(0.0, |bias| bias[column]);
                    let (unit, most) = match rounding {
                        Rounding::None => {
                            largest[column] = largest[column].max((*out - bias).abs());
                            continue;
                        }
                        Rounding::Sixteen => (self.units[index][column], 32767.0),
                        Rounding::Eight => (of_layer / 127.0, 127.0),
                        Rounding::EightByColumn => (largest[column] / 127.0, 127.0),
                    };
                    let codes = (*out - bias) / unit.max(f32::MIN_POSITIVE);
                    *out = codes.round_ties_even().clamp(-most, most) * unit + bias;
                }
            }
        }
        Ok(())
    }
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args_os().skip(1);
    let mut next = || arguments.next().ok_or("expected PACKAGE TEXT [WINDOWS]");
    let (package, text) = (PathBuf::from(next()?), PathBuf::from(next()?));
    let count = arguments
        .next()
        .map_or(Ok(usize::MAX), |count| count.to_string_lossy().parse())?;
    let model = Model::from_package(&Package::open(&package)?, &LoadOptions::default())?;
    let model = Arc::new(model);
    let tokens = model
        .tokenizer()?
        .encode(&std::fs::read_to_string(text)?, EncodeOptions::TEXT)?;
    let cpu = Cpu::new(Arc::new(Pool::new(2)?));
    let npu = RoundingNpu {
        capabilities: Capabilities {
            feed_forwards: false,
            ..cpu.capabilities().clone()
        },
        cpu,
        rounding: Arc::new(Mutex::new(Rounding::None)),
        largest: Arc::default(),
    };
    let rounding = Arc::clone(&npu.rounding);
    let processor = |description, device| ProcessorOptions {
        description,
        threads: Threads::Count(1),
        device,
        multiplier: None,
    };
    let session = SessionOptions {
        context: WINDOW,
        chunk: WINDOW,
        ..SessionOptions::default()
    };
    let options = HeteroOptions {
        engine: EngineOptions {
            session,
            ..EngineOptions::default()
        },
        processors: vec![
            processor(Processor::cpu("cpu"), None),
            processor(
                Processor::npu("npu", None),
                Some(Arc::new(npu) as Arc<dyn Device>),
            ),
        ],
        ..HeteroOptions::default()
    };
    let engine = HeteroEngine::new(&model, options, &mut |_, _| {})?;
    let (cancel, vocab) = (Cancel::new(), model.description().vocab);
    let windows: Vec<_> = tokens
        .chunks_exact(WINDOW)
        .take(count.saturating_add(1))
        .collect();
    let (calibration, scored) = windows.split_first().ok_or("the text is too short")?;
    let run = |rounding_of: Rounding, window: &[u32]| {
        *rounding.lock().unwrap() = rounding_of;
        engine.session().prefill_all_logits(window, &cancel)
    };
    run(Rounding::None, calibration)?;
    // What is observed later must not change the scales.
    let mut exact = Vec::new();
    for rounding_of in [
        Rounding::Sixteen,
        Rounding::EightByColumn,
        Rounding::Eight,
        Rounding::None,
    ] {
        let (mut loss, mut predictions) = (0.0, 0);
        let mut all = Vec::new();
        for window in scored {
            let logits = run(rounding_of, window)?;
            for (logits, next) in logits.chunks_exact(vocab).zip(&window[1..]) {
                let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let sum: f64 = logits.iter().map(|x| f64::from(x - most).exp()).sum();
                loss += sum.ln() + f64::from(most - logits[*next as usize]);
                predictions += 1;
            }
            all.push(logits);
        }
        println!(
            "{rounding_of:?}: perplexity {:.4} of {predictions} tokens",
            (loss / f64::from(predictions)).exp()
        );
        exact.push((rounding_of, all));
    }
    let (_, expected) = exact.pop().ok_or("nothing was computed")?;
    for (rounding_of, found) in exact {
        let windows = found.iter().flatten().zip(expected.iter().flatten());
        let largest = expected
            .iter()
            .flatten()
            .fold(0.0f32, |most, x| most.max(x.abs()));
        let (mut most, mut squares) = (0.0f32, 0.0f64);
        for (found, expected) in windows {
            most = most.max((found - expected).abs());
            squares += f64::from(found - expected).powi(2);
        }
        let count = expected.iter().map(Vec::len).sum::<usize>() as f64;
        println!(
            "{rounding_of:?}: logits off by up to {:.2e} of the largest, {:.3} on average (root of the mean square)",
            most / largest,
            (squares / count).sqrt()
        );
    }
    Ok(())
}
