//! The trait that all devices implement, and the programs that they prepare.

use triad_kernels::OutputMut;
use triad_kernels::int8::QuantizedView;

use crate::error::{Error, Result};
use crate::float_linear::{FloatLinear, FloatProgram};
use crate::layer_format::LayerFormat;
use crate::model::{DeviceModel, ModelProgram};
use crate::multiplier::Multiplier;
pub use crate::program::Program;
use crate::subgraph::DeviceSubgraph;

/// A device that runs subgraphs, such as a group of CPU cores or an NPU.
pub trait Device: Send + Sync {
    /// Returns the name for people, timelines and files, such as `cpu`, `npu:cpu` or `npu:qnn`.
    fn name(&self) -> &str;

    /// Returns the device's capabilities.
    fn capabilities(&self) -> &Capabilities;

    /// Prepares `subgraph` for inputs of 1 to `rows` rows.
    ///
    /// # Errors
    /// If the subgraph's parts contradict each other, or this device does not run it. The error has the reason. The
    /// device never passes the subgraph on to another one.
    fn prepare(&self, subgraph: &DeviceSubgraph, rows: usize) -> Result<Box<dyn Program>>;

    /// Prepares layers that read floats, for inputs of 1 to `rows` rows. The formats of the layers are among
    /// [`Capabilities::formats`].
    ///
    /// # Errors
    /// If the layers contradict each other, or this device does not run them. The error has the reason.
    fn prepare_floats(&self, linear: &FloatLinear, _rows: usize) -> Result<Box<dyn FloatProgram>> {
        let format = linear.formats().next().unwrap_or(LayerFormat::Float);
        Err(self.capabilities().refuse(self.name(), format))
    }

    /// Prepares a whole model, including its KV cache. If there is a multiplier, it computes products in prompts.
    ///
    /// # Errors
    /// If the model's parts contradict each other or the products, this device does not run whole models, or it does not
    /// run this one. The error has the reason.
    fn prepare_model(
        &self,
        _model: &DeviceModel,
        _options: &ModelOptions,
        _multiplier: Option<Multiplier>,
    ) -> Result<Box<dyn ModelProgram>> {
        Err(Error::WholeModel {
            processor: self.name().to_owned(),
        })
    }

    /// Measures the device's peak rates; returns `None` if it has no such measurement.
    ///
    /// # Errors
    /// If the device fails.
    fn peaks(&self) -> Result<Option<Peaks>> {
        Ok(None)
    }

    /// Describes the device's work since it was opened; `None` if it counts nothing.
    fn work(&self) -> Option<String> {
        None
    }
}

/// Peak rates of a device, measured by work that does nothing else. Runs are compared with these limits.
#[derive(Clone, Debug, PartialEq)]
pub struct Peaks {
    /// The device as its driver describes it.
    pub processor: String,
    /// Rate of multiply-adds in registers; each counts as two operations.
    pub f32_operations_per_second: f64,
    /// The same for INT8 with i32 sums.
    pub int8_operations_per_second: f64,
    /// Bandwidth of reading memory that no cache holds.
    pub bytes_read_per_second: f64,
}

/// Sizes that a model is prepared for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelOptions {
    /// Maximum number of rows in a chunk.
    pub rows: usize,
    /// Maximum number of rows in a chunk whose logits are requested.
    pub outputs: usize,
}

/// Capabilities of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Formats of the linear layers that it multiplies next to other processors.
    pub formats: Vec<LayerFormat>,
    /// Whether each run computes all rows that the program was prepared for, even if the input has fewer.
    pub static_shapes: bool,
    /// Whether the device keeps weights in its own memory or in its own layout, where no other device reads them. The
    /// engine then releases the CPU's pages of prepared weights. For the shadow products it then reads the weights of
    /// hot channels from memory and those of other channels from a file.
    pub own_memory: bool,
    /// Maximum number of bytes that all its programs may take together, if there is a limit.
    pub window: Option<usize>,
    /// Whether the device runs whole feed-forwards. The engine splits them for one that runs linear layers alone.
    pub feed_forwards: bool,
    /// Whether the device runs whole models ([`Device::prepare_model`]).
    pub whole_models: bool,
}

impl Capabilities {
    /// Returns the error of the device `name`, which does not multiply layers in `format`.
    pub fn refuse(&self, name: &str, format: LayerFormat) -> Error {
        let names: Vec<_> = self.formats.iter().map(LayerFormat::to_string).collect();
        Error::LayerFormat {
            processor: name.to_owned(),
            format,
            multiplies: names.join(" and "),
        }
    }
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
    /// Checks `subgraph` and returns its shapes.
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

    /// Checks that input and outputs fit the program.
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
