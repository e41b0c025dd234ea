//! The programs of a device, which multiply in place of our own kernels.

use std::sync::Arc;

use triad_kernels::int8::{Int8Weight, QuantizedRows};
use triad_model::description;
use triad_processors::{Layer, Linear, Processor, Program, Subgraph};

use crate::error::{Error, Result};
use crate::linear::{Output, Products};
use crate::linear_input::LinearInput;
use crate::model::Model;
use crate::quantize::{INT8_MAX, InputQuantization};
use crate::weights::{Block, Int8Matrix, Weight};

/// One for each linear input of each block, whose layers it multiplies. Shadows are not in it, nor what stands between
/// gate, up and down: whoever drives the device computes these.
pub struct Programs {
    /// Name of who runs them.
    processor: String,
    blocks: Vec<[OfInput; 4]>,
}

/// The program of the layers that read one input.
struct OfInput {
    /// In the order of the program's outputs.
    names: Vec<description::Linear>,
    program: Box<dyn Program>,
}

impl Programs {
    /// Has `processor` prepare all of `model` for chunks of up to `rows` tokens. `progress` hears how many blocks are done.
    ///
    /// # Errors
    /// If the model's layers don't read INT8 with scales that are known before, or the processor refuses one.
    pub fn prepare(
        model: &Model,
        processor: &dyn Processor,
        rows: usize,
        mut progress: impl FnMut(usize),
    ) -> Result<Self> {
        let blocks = model.weights().blocks.iter().enumerate().map(|(index, block)| {
            let [attention, output, feed_forward, down] = LinearInput::ALL.map(|input| {
                OfInput::prepare(block, input, processor, rows)
                    .map_err(|reason| error(processor.name(), index, input, reason))
            });
            let of_block = [attention?, output?, feed_forward?, down?];
            progress(index + 1);
            Ok(of_block)
        });
        Ok(Self { processor: processor.name().to_owned(), blocks: blocks.collect::<Result<_>>()? })
    }
}

fn error(processor: &str, block: usize, input: LinearInput, reason: String) -> Error {
    let subgraph = format!("what reads {} of block {block}", input.name());
    Error::Subgraph { processor: processor.to_owned(), subgraph, reason }
}

impl OfInput {
    fn prepare(block: &Block, input: LinearInput, processor: &dyn Processor, rows: usize) -> Result<Self, String> {
        let expected = "expected a package, whose layers read INT8 with a scale that is known before";
        let clip = match block.inputs.as_ref().map(|inputs| &inputs[input.index()]) {
            Some(InputQuantization::Static { clip, .. }) => *clip,
            Some(InputQuantization::Dynamic { .. }) => {
                return Err(format!("its scales are found while it runs: {expected}"));
            }
            None => return Err(format!("it computes in float: {expected}")),
        };
        let readers = block.linears.iter().filter(|(name, _)| LinearInput::of(**name) == input);
        let (names, layers) = readers
            .map(|(name, linear)| {
                let Weight::Int8(weight) = &linear.weight else { unreachable!("what reads INT8 has INT8 weights") };
                let layer: Arc<dyn Layer> = Arc::new(Shared { weight: weight.clone(), bias: linear.bias.clone() });
                (*name, layer)
            })
            .unzip();
        let subgraph = Subgraph::Linear(Linear { input_scale: clip / INT8_MAX, layers });
        let program = processor.prepare(&subgraph, rows).map_err(|error| error.to_string())?;
        Ok(Self { names, program })
    }
}

impl Products for Programs {
    fn multiply(&mut self, block: usize, input: LinearInput, x: &QuantizedRows, outs: &mut [Output]) -> Result<()> {
        let OfInput { names, program } = &mut self.blocks[block][input.index()];
        let place = |name: description::Linear| names.iter().position(|other| *other == name);
        let mut ordered: Vec<_> = outs.iter_mut().map(|(name, out)| (place(*name), &mut **out)).collect();
        ordered.sort_by_key(|(place, _)| *place);
        let mut outs: Vec<_> = ordered.into_iter().map(|(_, out)| out).collect();
        program.run(x, &mut outs).map_err(|reason| error(&self.processor, block, input, reason.to_string()))
    }
}

/// A layer of the model; its weights are shared.
struct Shared {
    weight: Int8Matrix,
    bias: Option<Vec<f32>>,
}

impl Layer for Shared {
    fn weight(&self) -> Int8Weight<'_> {
        self.weight.view()
    }

    fn bias(&self) -> Option<&[f32]> {
        self.bias.as_deref()
    }
}
