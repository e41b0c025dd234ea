//! The trait of all devices, and the programs that they prepare.

use triad_kernels::OutputMut;
use triad_kernels::int8::QuantizedView;
use triad_plan::graph::Format;

use crate::error::{Error, Result};
use crate::model::{DeviceModel, ModelProgram};
use crate::subgraph::DeviceSubgraph;

/// A device that runs subgraphs: a group of CPU cores, an NPU.
pub trait Device: Send + Sync {
    /// Name for people, timelines and files: `cpu`, `npu:cpu`, `npu:qnn`.
    fn name(&self) -> &str;

    /// What it can do.
    fn capabilities(&self) -> &Capabilities;

    /// Makes `subgraph` ready for inputs of 1 to `rows` rows.
    ///
    /// # Errors
    /// If the subgraph's parts contradict each other, or this device does not run it: the error has the reason, and it
    /// does not let another one run it instead.
    fn prepare(&self, subgraph: &DeviceSubgraph, rows: usize) -> Result<Box<dyn Program>>;

    /// Makes a model ready to run whole, keys and values included.
    ///
    /// # Errors
    /// If the model's parts contradict each other, or this device runs no whole models, or not this one: the error has the
    /// reason.
    fn prepare_model(
        &self,
        _model: &DeviceModel,
        _options: &ModelOptions,
    ) -> Result<Box<dyn ModelProgram>> {
        Err(Error::WholeModel {
            processor: self.name().to_owned(),
        })
    }

    /// What it does at most, measured now; `None` where that is not measured.
    ///
    /// # Errors
    /// If the device fails.
    fn peaks(&self) -> Result<Option<Peaks>> {
        Ok(None)
    }
}

/// What a device does at most, measured by work that is nothing else: the limits that runs are compared with.
#[derive(Clone, Debug, PartialEq)]
pub struct Peaks {
    /// The device as its driver describes it.
    pub processor: String,
    /// Multiply-adds in registers; each counts two.
    pub f32_operations_per_second: f64,
    /// The same of INT8, summed in i32.
    pub int8_operations_per_second: f64,
    /// Of memory that no cache holds.
    pub bytes_read_per_second: f64,
}

/// What a model is prepared for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelOptions {
    /// Rows of a chunk, at most.
    pub rows: usize,
    /// Rows of a chunk whose logits are wanted, at most.
    pub outputs: usize,
}

/// A subgraph ready to run on one device. It has what it needs, weights and scratch memory among it; the device
/// that prepared it need not be there any more.
pub trait Program: Send {
    /// Computes the subgraph on `input`, `[rows, in_features]`, quantized with the subgraph's static scale. `outputs` are
    /// those that [`DeviceSubgraph::outputs`] lists, each `[rows, features]`, whose rows may be apart. A row of the
    /// input whose scale is NaN, since an activation of it was not finite, makes that row of all outputs NaN.
    ///
    /// # Errors
    /// If input or outputs are not of the shapes that were prepared, or the device fails.
    fn run(&mut self, input: QuantizedView, outputs: &mut [OutputMut]) -> Result<()>;
}

/// What a device can do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// The numbers that it computes in.
    pub formats: Vec<Format>,
    /// Whether it computes all rows that a program was prepared for, however few the input has.
    pub static_shapes: bool,
    /// Whether it keeps weights in memory of its own or in a layout of its own, where no other device reads them. The
    /// engine then gives back the CPU's pages of what it has prepared, and shadows beside it read the rows of hot channels
    /// from memory and others from a file, in place of the weights.
    pub own_memory: bool,
    /// Bytes that all its programs together may take, if that is limited.
    pub window: Option<usize>,
    /// Whether it runs models whole ([`Device::prepare_model`]).
    pub whole_models: bool,
}

/// The shapes that a program was prepared for.
#[derive(Debug)]
pub(crate) struct ProgramShapes {
    pub rows: usize,
    pub in_features: usize,
    pub input_scale: f32,
    /// Features of each output.
    pub outputs: Vec<usize>,
}

impl ProgramShapes {
    /// Of a subgraph whose parts agree.
    pub fn new(subgraph: &DeviceSubgraph, rows: usize) -> Result<Self> {
        subgraph.check()?;
        if rows == 0 {
            return Err(Error::Rows {
                rows,
                prepared: rows,
            });
        }
        Ok(Self {
            rows,
            in_features: subgraph.in_features(),
            input_scale: subgraph.input_scale(),
            outputs: subgraph.outputs(),
        })
    }

    /// Whether a run may begin.
    pub fn check(&self, input: QuantizedView, outputs: &[OutputMut]) -> Result<()> {
        let rows = input.rows();
        if rows == 0 || rows > self.rows {
            return Err(Error::Rows {
                rows,
                prepared: self.rows,
            });
        }
        if input.in_features() != self.in_features {
            let features = |features: usize| format!("{features} features");
            return Err(Error::Input {
                found: features(input.in_features()),
                expected: features(self.in_features),
            });
        }
        let other_scale = |scale: &&f32| **scale != self.input_scale && !scale.is_nan();
        if let Some(other) = input.scales().iter().find(other_scale) {
            let scale = |scale: f32| format!("the scale {scale}");
            return Err(Error::Input {
                found: scale(*other),
                expected: scale(self.input_scale),
            });
        }
        let expected = self.outputs.iter().map(|features| [rows, *features]);
        let found = outputs.iter().map(|out| [out.rows(), out.columns()]);
        if !found.clone().eq(expected.clone()) {
            return Err(Error::Outputs {
                found: found.collect(),
                expected: expected.collect(),
            });
        }
        Ok(())
    }
}
