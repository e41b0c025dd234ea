//! Tests of devices that multiply layers that read floats: in W4A16, and with weights as they are stored. The test
//! device uses our kernels, so that its bits are those of one processor alone.

use triad_engine::testing::models::{MODELS, ON_PROCESSORS, all_models};
use triad_kernels::pool::Pool;
use triad_kernels::{OutputMut, Phase};
use triad_plan::graph::Role;
use triad_plan::schedule::parts::{Axis, Cut, Share};
use triad_processors::cpu::Cpu;
use triad_processors::{
    Capabilities, DeviceSubgraph, FloatLinear, FloatProgram, LayerFormat, Program,
};

use super::devices::unplugged;
use super::*;

/// A device that multiplies layers in some formats, and counts it.
struct FloatDevice {
    cpu: Cpu,
    capabilities: Capabilities,
    runs: Arc<AtomicUsize>,
    /// The run that fails, and all after it.
    fails_at: usize,
}

struct Counted {
    program: Box<dyn FloatProgram>,
    runs: Arc<AtomicUsize>,
    fails_at: usize,
}

impl FloatDevice {
    fn new(formats: &[LayerFormat], fails_at: usize) -> Arc<Self> {
        let cpu = Cpu::new(Arc::new(Pool::new(1).unwrap()));
        let capabilities = Capabilities {
            formats: formats.to_vec(),
            ..cpu.capabilities().clone()
        };
        Arc::new(Self {
            cpu,
            capabilities,
            runs: Arc::default(),
            fails_at,
        })
    }

    fn runs(&self) -> usize {
        self.runs.load(Ordering::Relaxed)
    }
}

impl Device for FloatDevice {
    fn name(&self) -> &str {
        "test"
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn prepare(
        &self,
        subgraph: &DeviceSubgraph,
        rows: usize,
    ) -> triad_processors::Result<Box<dyn Program>> {
        self.cpu.prepare(subgraph, rows)
    }

    fn prepare_floats(
        &self,
        linear: &FloatLinear,
        rows: usize,
    ) -> triad_processors::Result<Box<dyn FloatProgram>> {
        Ok(Box::new(Counted {
            program: self.cpu.prepare_floats(linear, rows)?,
            runs: Arc::clone(&self.runs),
            fails_at: self.fails_at,
        }))
    }
}

impl FloatProgram for Counted {
    fn run(
        &mut self,
        x: &[f32],
        phase: Phase,
        outputs: &mut [OutputMut],
    ) -> triad_processors::Result<()> {
        if self.runs.fetch_add(1, Ordering::Relaxed) >= self.fails_at {
            // Nothing that is in the outputs may be used.
            outputs.iter_mut().for_each(|out| out.fill(f32::NAN));
            return Err(unplugged());
        }
        self.program.run(x, phase, outputs)
    }
}

fn with(device: &Arc<FloatDevice>, cuts: Vec<(Role, Cut)>) -> HeteroOptions {
    HeteroOptions {
        processors: two(1, Some(Arc::clone(device) as Arc<dyn Device>)),
        cuts,
        ..options(Policy::CriticalPath)
    }
}

fn cut(axis: Axis, shares: [f64; 2]) -> Cut {
    let share = |(index, share)| Share {
        processor: ProcessorId::new(index),
        share,
    };
    Cut::new(axis, shares.into_iter().enumerate().map(share).collect(), 1).unwrap()
}

/// Every product in two parts, by columns and by rows.
fn cuts() -> Vec<(Role, Cut)> {
    vec![
        (Role::QueryKeyValue, cut(Axis::Columns, [1.0, 1.0])),
        (Role::AttentionOutput, cut(Axis::Rows, [1.0, 1.0])),
        (Role::GateUp, cut(Axis::Columns, [1.0, 2.0])),
        (Role::Down, cut(Axis::Columns, [2.0, 1.0])),
    ]
}

#[test]
fn a_device_multiplies_every_product_of_a_model_that_reads_floats_with_the_bits_of_one_processor() {
    for (what, format, model) in all_models().take(ON_PROCESSORS) {
        if model.weights().is_int8() {
            continue;
        }
        let tokens = prompt(model, 2 * CHUNK + 3);
        let expected = all_logits(session(model, CHUNK), &tokens);
        for cuts in [Vec::new(), cuts()] {
            let device = FloatDevice::new(&[LayerFormat::W4a16, LayerFormat::Float], usize::MAX);
            let engine = engine(model, with(&device, cuts));
            let mut session = engine.session();
            let logits = session.prefill_all_logits(&tokens, &Cancel::new()).unwrap();
            assert!(logits == expected, "{what}, {format}");
            assert!(failures(&session).is_empty(), "{what}, {format}");
            // Its tasks are exactly what it ran.
            let execution = execution(&session).unwrap();
            let events = execution.timeline.events().iter();
            let on_device = events.filter(|event| event.processor == NPU).count();
            assert!(on_device > 0, "{what}, {format}");
            assert_eq!(device.runs(), on_device, "{what}, {format}");
        }
    }
}

#[test]
fn a_device_of_floats_that_is_lost_at_any_product_changes_no_bit() {
    let (_, w4a16) = &MODELS[3];
    let tokens = prompt(w4a16, 2 * CHUNK + 3);
    let expected = all_logits(session(w4a16, CHUNK), &tokens);
    for cuts in [Vec::new(), cuts()] {
        let mut fails_at = 0;
        loop {
            let device = FloatDevice::new(&LayerFormat::ALL, fails_at);
            let mut session = engine(w4a16, with(&device, cuts.clone())).session();
            let logits = session.prefill_all_logits(&tokens, &Cancel::new()).unwrap();
            assert!(logits == expected, "lost at {fails_at}");
            if failures(&session).is_empty() {
                break;
            }
            assert_eq!(device.runs(), fails_at + 1, "it is not asked again");
            fails_at += 1;
        }
        assert!(fails_at > 8, "there are as many products");
    }
}

#[test]
fn a_format_that_a_device_does_not_multiply_is_refused_with_the_device_the_format_and_what_would_work()
 {
    let refused = |formats: &[LayerFormat], model: &Arc<Model>| {
        let device = FloatDevice::new(formats, usize::MAX);
        let refused = start(model, with(&device, Vec::new()))
            .unwrap_err()
            .to_string();
        assert_eq!(device.runs(), 0);
        refused
    };
    let (_, w4a16) = &MODELS[3];
    assert_eq!(
        refused(&[LayerFormat::W8a8], w4a16),
        "test does not run gate-up of block 0: test multiplies INT8 (W8A8) alone, and the layer is in INT4 with float \
         activations (W4A16): expected processors among cpu and gpu, or a package in INT8"
    );
    // Some layers of this model have no INT4 weights.
    let text = refused(&[LayerFormat::W8a8, LayerFormat::W4a16], w4a16);
    assert!(text.contains("and the layer is in float"), "{text}");
    let text = refused(&[LayerFormat::W8a8, LayerFormat::W4a16], &float("llama"));
    assert!(text.contains("and the layer is in float"), "{text}");
}
