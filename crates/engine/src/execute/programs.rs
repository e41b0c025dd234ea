//! The programs of a device, which multiply in place of our own kernels.

use std::sync::Arc;

use triad_kernels::OutputMut;
use triad_kernels::int8::{Int8Weight, QuantizedRows};
use triad_model::description::{self, BlockDescription};
use triad_processors::{FeedForward, Layer, Linear, Processor, Program, Subgraph};

use crate::error::{Error, Result};
use crate::forward::activation;
use crate::linear::{Output, Products};
use crate::linear_input::LinearInput;
use crate::model::Model;
use crate::quantize::{INT8_MAX, InputQuantization};
use crate::weights::{Block, Int8Matrix, Weight};

/// Those of each block: one for query, key and value, one for attention's output, one for the feed-forward. The last are
/// two, gate with up and down, where what gate and up read keeps its shadow, since that is added before the activation.
/// Shadows are in no program.
pub struct Programs {
    /// Name of who runs them.
    processor: String,
    blocks: Vec<OfBlock>,
}

struct OfBlock {
    /// By [`LinearInput::index`]; those of attention alone where the feed-forward is one program.
    of_inputs: Vec<OfInput>,
    feed_forward: Option<WholeFeedForward>,
}

/// The program of the layers that read one input.
struct OfInput {
    /// In the order of the program's outputs.
    names: Vec<description::Linear>,
    program: Box<dyn Program>,
}

/// The program of gate, up, activation and down.
struct WholeFeedForward {
    program: Box<dyn Program>,
    /// Whether what down reads is an output, for its shadow.
    returns_inner: bool,
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
        let blocks = model.weights().blocks.iter().zip(&model.description().blocks).enumerate();
        let blocks = blocks.map(|(index, (block, description))| {
            let preparing = Preparing { block, description, processor, rows };
            let of_block = preparing.all(index)?;
            progress(index + 1);
            Ok(of_block)
        });
        Ok(Self { processor: processor.name().to_owned(), blocks: blocks.collect::<Result<_>>()? })
    }
}

fn error(processor: &str, block: usize, part: &str, reason: String) -> Error {
    let subgraph = format!("{part} of block {block}");
    Error::Subgraph { processor: processor.to_owned(), subgraph, reason }
}

/// What reads an input, in an error.
fn readers(input: LinearInput) -> String {
    format!("what reads {}", input.name())
}

/// The whole feed-forward, in an error.
const FEED_FORWARD: &str = "the feed-forward";

/// A block whose programs are prepared.
struct Preparing<'a> {
    block: &'a Block,
    description: &'a BlockDescription,
    processor: &'a dyn Processor,
    rows: usize,
}

/// How one input becomes INT8.
struct Scaled<'a> {
    scale: f32,
    has_shadow: bool,
    smoothing: Option<&'a [f32]>,
}

impl Preparing<'_> {
    fn all(&self, index: usize) -> Result<OfBlock> {
        let error = |part: &str, reason| error(self.processor.name(), index, part, reason);
        let feed_forward = self.feed_forward().map_err(|reason| error(FEED_FORWARD, reason))?;
        let inputs = if feed_forward.is_some() { &LinearInput::ALL[..2] } else { &LinearInput::ALL[..] };
        let of_inputs = inputs.iter().map(|input| {
            let of_input = self.of_input(*input);
            of_input.map_err(|reason| error(&readers(*input), reason))
        });
        Ok(OfBlock { of_inputs: of_inputs.collect::<Result<_>>()?, feed_forward })
    }

    fn of_input(&self, input: LinearInput) -> Result<OfInput, String> {
        let input_scale = self.scaled(input)?.scale;
        let readers = self.block.linears.keys().filter(|name| LinearInput::of(**name) == input);
        let names: Vec<_> = readers.copied().collect();
        let layers = names.iter().map(|name| self.layer(*name)).collect();
        let program = self.program(&Subgraph::Linear(Linear { input_scale, layers }))?;
        Ok(OfInput { names, program })
    }

    /// `None` where it can't be one program.
    fn feed_forward(&self) -> Result<Option<WholeFeedForward>, String> {
        let (input, inner) = (self.scaled(LinearInput::FeedForward)?, self.scaled(LinearInput::Down)?);
        if input.has_shadow {
            return Ok(None);
        }
        let described = &self.description.feed_forward;
        let program = self.program(&Subgraph::FeedForward(FeedForward {
            input_scale: input.scale,
            up: self.layer(description::Linear::Up),
            gate: described.gated.then(|| self.layer(description::Linear::Gate)),
            activation: activation(described.activation),
            inner_scale: inner.scale,
            smoothing: inner.smoothing.map(Arc::from),
            down: self.layer(description::Linear::Down),
            return_inner: inner.has_shadow,
        }))?;
        Ok(Some(WholeFeedForward { program, returns_inner: inner.has_shadow }))
    }

    fn program(&self, subgraph: &Subgraph) -> Result<Box<dyn Program>, String> {
        self.processor.prepare(subgraph, self.rows).map_err(|error| error.to_string())
    }

    fn scaled(&self, input: LinearInput) -> Result<Scaled<'_>, String> {
        let expected = "expected a package, whose layers read INT8 with a scale that is known before";
        match self.block.inputs.as_ref().map(|inputs| &inputs[input.index()]) {
            Some(InputQuantization::Static { clip, shadow, smoothing }) => {
                Ok(Scaled { scale: clip / INT8_MAX, has_shadow: *shadow, smoothing: smoothing.as_deref() })
            }
            Some(InputQuantization::Dynamic { .. }) => Err(format!("its scales are found while it runs: {expected}")),
            None => Err(format!("it computes in float: {expected}")),
        }
    }

    fn layer(&self, name: description::Linear) -> Arc<dyn Layer> {
        let linear = &self.block.linears[&name];
        let Weight::Int8(weight) = &linear.weight else { unreachable!("what reads INT8 has INT8 weights") };
        Arc::new(Shared { weight: weight.clone(), bias: linear.bias.clone() })
    }
}

impl Products for Programs {
    fn multiply(&mut self, block: usize, input: LinearInput, x: &QuantizedRows, outs: &mut [Output]) -> Result<()> {
        let OfInput { names, program } = &mut self.blocks[block].of_inputs[input.index()];
        let place = |name: description::Linear| names.iter().position(|other| *other == name);
        let mut ordered: Vec<_> = outs.iter_mut().map(|(name, out)| (place(*name), &mut **out)).collect();
        ordered.sort_by_key(|(place, _)| *place);
        let outs = ordered.into_iter().map(|(_, out)| whole(out, x));
        let run = program.run(x.view(), &mut outs.collect::<Vec<_>>());
        run.map_err(|reason| error(&self.processor, block, &readers(input), reason.to_string()))
    }

    fn feed_forward(&mut self, block: usize, x: &QuantizedRows, out: &mut [f32], inner: &mut [f32]) -> Result<bool> {
        let Some(WholeFeedForward { program, returns_inner }) = &mut self.blocks[block].feed_forward else {
            return Ok(false);
        };
        let run = match *returns_inner {
            true => program.run(x.view(), &mut [whole(out, x), whole(inner, x)]),
            false => program.run(x.view(), &mut [whole(out, x)]),
        };
        run.map_err(|reason| error(&self.processor, block, FEED_FORWARD, reason.to_string()))?;
        Ok(true)
    }
}

/// `out[rows, ..]`, with as many rows as `x`.
fn whole<'a>(out: &'a mut [f32], x: &QuantizedRows) -> OutputMut<'a> {
    let columns = out.len() / x.rows();
    OutputMut::new(out, columns)
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
