//! The CPU as a device: the kernels of this machine, on a pool of cores.
//!
//! Nothing is copied: programs read the weights in place and compute only the rows of the input.

use std::sync::Arc;

use triad_kernels::activation::{activate, activate_and_multiply};
use triad_kernels::chunks::{chunks_mut, for_each_chunk};
use triad_kernels::int8::{QuantizedRows, QuantizedView, matmul_int8};
use triad_kernels::pool::Pool;
use triad_kernels::{OutputMut, Phase, Product, matmul_each};

use crate::device::{Capabilities, Device, Program, ProgramShapes};
use crate::error::Result;
use crate::fixed_point::{FixedFeedForward, FixedScratch};
use crate::float_linear::{FloatLayer, FloatLinear, FloatProgram, FloatShapes};
use crate::layer_format::LayerFormat;
use crate::subgraph::{DeviceSubgraph, FeedForward, Layer};

/// Rows per task of an elementwise operator.
const TASK_ROWS: usize = 16;

/// A group of CPU cores.
#[derive(Debug)]
pub struct Cpu {
    pool: Arc<Pool>,
    capabilities: Capabilities,
}

impl Cpu {
    /// Creates a device with the cores of `pool`. Programs install the pool for each run, and wait while another thread
    /// has it installed.
    pub fn new(pool: Arc<Pool>) -> Self {
        let capabilities = Capabilities {
            formats: LayerFormat::ALL.into(),
            static_shapes: false,
            own_memory: false,
            window: None,
            feed_forwards: true,
            whole_models: false,
        };
        Self { pool, capabilities }
    }
}

impl Device for Cpu {
    fn name(&self) -> &str {
        "cpu"
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn prepare(&self, subgraph: &DeviceSubgraph, rows: usize) -> Result<Box<dyn Program>> {
        let shapes = ProgramShapes::new(subgraph, rows)?;
        let body = match subgraph {
            DeviceSubgraph::Linear(linear) => Body::Linear(linear.layers.clone()),
            DeviceSubgraph::FeedForward(feed_forward) if feed_forward.fixed_point => {
                Body::FixedPoint(Box::new((
                    FixedFeedForward::new(feed_forward)?,
                    FixedScratch::default(),
                )))
            }
            DeviceSubgraph::FeedForward(feed_forward) => {
                Body::FeedForward(Box::new(Scratch::new(feed_forward, rows)))
            }
        };
        Ok(Box::new(CpuProgram {
            pool: Arc::clone(&self.pool),
            shapes,
            body,
        }))
    }

    fn prepare_floats(&self, linear: &FloatLinear, rows: usize) -> Result<Box<dyn FloatProgram>> {
        Ok(Box::new(CpuFloatProgram {
            pool: Arc::clone(&self.pool),
            shapes: FloatShapes::new(linear, rows)?,
            layers: linear.layers.clone(),
        }))
    }
}

/// Layers that read floats.
struct CpuFloatProgram {
    pool: Arc<Pool>,
    shapes: FloatShapes,
    layers: Vec<Arc<dyn FloatLayer>>,
}

impl FloatProgram for CpuFloatProgram {
    fn run(&mut self, x: &[f32], phase: Phase, outputs: &mut [OutputMut]) -> Result<()> {
        let rows = self.shapes.check(x, outputs)?;
        let products = self.layers.iter().zip(outputs);
        let products =
            products.map(|(layer, out)| Product::new(layer.weight(), layer.bias(), out.reborrow()));
        let mut products: Vec<_> = products.collect();
        self.pool
            .install(|| matmul_each(x, rows, phase, &mut products));
        Ok(())
    }
}

struct CpuProgram {
    pool: Arc<Pool>,
    shapes: ProgramShapes,
    body: Body,
}

enum Body {
    Linear(Vec<Arc<dyn Layer>>),
    FeedForward(Box<Scratch>),
    FixedPoint(Box<(FixedFeedForward, FixedScratch)>),
}

impl Program for CpuProgram {
    fn run(&mut self, input: QuantizedView, outputs: &mut [OutputMut]) -> Result<()> {
        self.shapes.check(input, outputs)?;
        let Self { pool, body, .. } = self;
        pool.install(|| match body {
            Body::Linear(layers) => {
                layers
                    .iter()
                    .zip(outputs)
                    .for_each(|(layer, out)| multiply(&**layer, input, out.reborrow()));
            }
            Body::FeedForward(scratch) => scratch.run(input, outputs),
            Body::FixedPoint(fixed) => fixed.0.run(&mut fixed.1, input, outputs[0].reborrow()),
        });
        Ok(())
    }
}

/// A feed-forward and its intermediate buffers.
struct Scratch {
    feed_forward: FeedForward,
    /// `[rows, width]`.
    up: Vec<f32>,
    /// `[rows, width]`; only used by a gated feed-forward.
    gate: Vec<f32>,
    /// Input of down.
    inner: QuantizedRows,
}

impl Scratch {
    fn new(feed_forward: &FeedForward, rows: usize) -> Self {
        let FeedForward {
            gate,
            down,
            return_inner,
            ..
        } = feed_forward;
        let values = rows * down.weight().in_features;
        // One of the two holds the inner activations. If these are returned and the rows of the output are contiguous,
        // the output takes its place.
        let (of_up, of_gate) = match (gate, return_inner) {
            (None, true) => (0, 0),
            (None, false) | (Some(_), true) => (values, 0),
            (Some(_), false) => (values, values),
        };
        Self {
            feed_forward: feed_forward.clone(),
            up: vec![0.0; of_up],
            gate: vec![0.0; of_gate],
            inner: QuantizedRows::default(),
        }
    }

    fn run(&mut self, input: QuantizedView, outputs: &mut [OutputMut]) {
        let FeedForward {
            up,
            gate,
            activation,
            inner_scale,
            smoothing,
            down,
            ..
        } = &self.feed_forward;
        let (out, returned) = outputs
            .split_first_mut()
            .expect("a feed-forward has an output");
        let mut returned = returned.first_mut();
        let width = down.weight().in_features;
        let (values, task) = (input.rows() * width, TASK_ROWS * width);
        let in_place = returned.as_mut().and_then(|inner| inner.as_contiguous());
        let is_in_place = in_place.is_some();
        let inner = match gate {
            Some(gate) => {
                let ups = &mut self.up[..values];
                let gates = in_place.unwrap_or_else(|| first(&mut self.gate, values));
                multiply(&**up, input, OutputMut::new(ups, width));
                multiply(&**gate, input, OutputMut::new(gates, width));
                for_each_chunk(chunks_mut(gates, task), 1, |index, gates| {
                    activate_and_multiply(gates, &ups[index * task..][..gates.len()], *activation);
                });
                gates
            }
            None => {
                let ups = in_place.unwrap_or_else(|| first(&mut self.up, values));
                multiply(&**up, input, OutputMut::new(ups, width));
                for_each_chunk(chunks_mut(ups, task), 1, |_, ups| {
                    activate(ups, *activation);
                });
                ups
            }
        };
        self.inner
            .quantize_static(inner, width, *inner_scale, smoothing.as_deref(), false);
        multiply(&**down, self.inner.view(), out.reborrow());
        if let Some(returned) = returned.filter(|_| !is_in_place) {
            returned.copy_from_rows(if gate.is_some() { &self.gate } else { &self.up }, width);
        }
    }
}

/// Returns the first `values` elements of a buffer, which grows if necessary.
fn first(buffer: &mut Vec<f32>, values: usize) -> &mut [f32] {
    buffer.resize(buffer.len().max(values), 0.0);
    &mut buffer[..values]
}

fn multiply(layer: &dyn Layer, input: QuantizedView, out: OutputMut) {
    matmul_int8(input, layer.weight(), layer.bias(), out);
}
