//! A model that a device runs whole: each chunk of prompts and each decode step is a single submission.
//!
//! The device has its own KV cache. All keys and values that it computes are also written to the pages of the CPU. From
//! these it reads what it does not hold: what a session found in the index of prefixes, was forked from, or was
//! restored with.

use std::ops::Range;
use std::sync::Mutex;

use half::f16;
use half::slice::HalfFloatSliceExt;
use serde::Serialize;
use triad_kernels::attention::Cache;
use triad_kernels::lock;
use triad_model::description::{self, ModelDescription};
use triad_model::vision::VisionDescription;
use triad_plan::processors::label;
use triad_processors::model::{
    DeviceBlock, DeviceLinear, DeviceModel, DeviceNorm, DeviceWeight, Int8Input, JoinStatistics,
    JoinTimes, ModelProgram, OutputRows, Outputs, Rotation as DeviceRotation,
};
use triad_processors::{Device, ModelOptions, Multiplier, ProductPart};

use crate::error::{Error, Result};
use crate::preparing::int8_input;
use triad_engine::LinearInput;
use triad_engine::Model;
use triad_engine::batch::{Request, SequenceId};
use triad_engine::forward::{ForwardContext, Rotation};
use triad_engine::kv::{KvCache, KvFormat};
use triad_engine::weights::{Block, Linear, Norm, Weight};

/// A model on a device.
pub(super) struct WholeModel {
    program: Mutex<Box<dyn ModelProgram>>,
    options: ModelOptions,
    /// Sequences that have ended since the last run.
    ended: Mutex<Vec<SequenceId>>,
}

/// Multiplications and additions of an engine whose model a device runs whole, so far. Operators other than products are
/// counted approximately.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Operations {
    /// Number on the device that runs the model.
    pub device: u64,
    /// Number on the device that multiplies for it.
    pub multiplier: u64,
    /// Bytes that the CPU has copied to the device that runs the model.
    pub bytes_written: u64,
    /// Bytes that the CPU has copied from it.
    pub bytes_read: u64,
    /// Seconds of operators on the CPU other than reading embeddings, if another device multiplies: those of sessions
    /// with adapters. Sampling is not counted.
    pub cpu_seconds: Option<f64>,
}

/// Rows of one sequence.
pub(super) struct Rows<'a> {
    sequence: SequenceId,
    cache: &'a KvCache,
    tokens: &'a [u32],
    /// Position of the first token.
    position: usize,
    /// The rows whose outputs are wanted.
    pub(super) wanted: Range<usize>,
}

impl<'a> Rows<'a> {
    /// Returns `rows` of a request.
    pub(super) fn new(request: &'a Request, rows: Range<usize>) -> Self {
        let wanted = request.wanted_rows();
        let start = wanted.start.clamp(rows.start, rows.end) - rows.start;
        let end = wanted.end.clamp(rows.start, rows.end) - rows.start;
        Self {
            sequence: request.sequence(),
            cache: request.cache(),
            tokens: &request.tokens()[rows.clone()],
            position: request.position() + rows.start,
            wanted: start..end,
        }
    }

    /// Splits the rows into pieces of at most `most`.
    fn pieces(&self, most: usize) -> impl Iterator<Item = Rows<'a>> {
        let Self {
            sequence,
            cache,
            tokens,
            position,
            wanted,
        } = self;
        tokens.chunks(most).enumerate().map(move |(index, tokens)| {
            let first = index * most;
            let within = |row: usize| row.clamp(first, first + tokens.len()) - first;
            let wanted = within(wanted.start)..within(wanted.end);
            Rows {
                sequence: *sequence,
                cache,
                tokens,
                position: position + first,
                wanted,
            }
        })
    }
}

impl WholeModel {
    /// Checks what no device that runs whole models can do, before anything is prepared.
    ///
    /// # Errors
    /// If keys and values are not in f16, as devices keep them, or scales are dynamic.
    pub(super) fn check(model: &Model, kv_format: KvFormat) -> Result<()> {
        if kv_format != KvFormat::F16 {
            let expected = "f16, the format of devices that run the whole model";
            let error = triad_engine::Error::Option {
                name: "the format of keys and values",
                value: format!("{kv_format:?}"),
                expected,
            };
            return Err(error.into());
        }
        let weights = model.weights();
        if weights
            .blocks
            .iter()
            .flat_map(|block| block.inputs.iter().flatten())
            .any(|input| int8_input(input).is_none())
        {
            let expected = "static scales, which devices need to run whole models: prepare the package with another method";
            let error = triad_engine::Error::Option {
                name: "the scale of activations",
                value: "dynamic, per token".into(),
                expected,
            };
            return Err(error.into());
        }
        Ok(())
    }

    /// Checks that prompts with the pictures of an encoder can be computed by the processor `name`, which runs the model
    /// `text` whole.
    ///
    /// # Errors
    /// If they have something that no device that runs whole models computes.
    pub(super) fn check_pictures(
        text: &ModelDescription,
        vision: &VisionDescription,
        name: &str,
    ) -> triad_engine::Result<()> {
        let missing = if text.picture_rope.is_some() {
            "RoPE of three axes"
        } else if vision.together {
            "rows that read later ones"
        } else if !vision.deepstack.is_empty() {
            "rows that are added after the first layers"
        } else {
            return Ok(());
        };
        Err(triad_engine::Error::Picture(format!(
            "the {} runs the whole model, and prompts with pictures of this model have {missing}, which it does not \
             compute: list a CPU, too",
            label(name)
        )))
    }

    /// Has `device` prepare the model. Another device multiplies for it if there is a `multiplier`.
    ///
    /// # Errors
    /// If the device refuses the model.
    pub(super) fn prepare(
        model: &Model,
        rotation: &Rotation,
        device: &dyn Device,
        options: ModelOptions,
        multiplier: Option<Multiplier>,
    ) -> Result<Self> {
        let weights = model.weights();
        let (rotations, rotation_of_block) = rotation.parts();
        let rotations = rotations
            .iter()
            .map(|(frequencies, factor)| DeviceRotation {
                frequencies,
                factor: *factor,
            });
        let whole = DeviceModel {
            description: model.description(),
            rotations: rotations.collect(),
            rotation_of_block,
            blocks: weights.blocks.iter().map(block).collect(),
            output_norm: norm(&weights.output_norm),
            output: linear(&weights.output, None),
        };
        let program = device
            .prepare_model(&whole, &options, multiplier)
            .map_err(Error::Device)?;
        Ok(Self {
            program: Mutex::new(program),
            options,
            ended: Mutex::default(),
        })
    }

    /// Returns what was computed so far, if the device counts it.
    pub(super) fn operations(&self) -> Option<Operations> {
        let counted = lock(&self.program).operations()?;
        Some(Operations {
            device: counted.device,
            multiplier: counted.products,
            bytes_written: counted.bytes_written,
            bytes_read: counted.bytes_read,
            cpu_seconds: None,
        })
    }

    /// Returns what joining the device that multiplies has taken so far, if there is one.
    pub(super) fn joins(&self) -> Option<JoinStatistics> {
        lock(&self.program).joins()
    }

    /// Measures the seconds of a part of a product on the device.
    ///
    /// # Errors
    /// If the device fails, or has no such measurement.
    pub(super) fn time_part(&self, product: usize, part: &ProductPart) -> Result<f64> {
        let time = lock(&self.program).time_part(product, part);
        time.map_err(Error::Device)?.ok_or_else(unmeasured)
    }

    /// Measures the times of joining a part of a product that another device computes.
    ///
    /// # Errors
    /// If the device fails, or has no such measurement.
    pub(super) fn time_join(&self, product: usize, part: &ProductPart) -> Result<JoinTimes> {
        let times = lock(&self.program).time_join(product, part);
        times.map_err(Error::Device)?.ok_or_else(unmeasured)
    }

    /// Lets the device that multiplied, and failed, multiply again.
    pub(super) fn retry(&self) {
        lock(&self.program).retry();
    }

    /// Returns the failure of the device that multiplied, once.
    pub(super) fn take_failure(&self) -> Option<Error> {
        lock(&self.program).take_failure().map(Error::Device)
    }

    /// Returns the logits `[rows, vocab]` of rows of the residual stream after the last block, without a soft cap.
    ///
    /// # Errors
    /// If the device fails.
    pub(super) fn logits(&self, pass: &ForwardContext, x: &[f32]) -> Result<Vec<f32>> {
        let mut program = lock(&self.program);
        let most = self.options.outputs.min(self.options.rows).max(1);
        let mut values =
            Vec::with_capacity(x.len() / pass.description.hidden * pass.description.vocab);
        for x in x.chunks(most * pass.description.hidden) {
            let read = &mut |logits: &[f32]| values.extend_from_slice(logits);
            program.logits(x, pass.phase, read).map_err(Error::Device)?;
        }
        Ok(values)
    }

    /// Records that a sequence has ended: the device drops its keys and values before the next run.
    pub(super) fn forget(&self, sequence: SequenceId) {
        lock(&self.ended).push(sequence);
    }

    /// Runs rows through all blocks; their keys and values are then in the pages of their sequences, too. Returns the
    /// logits of the wanted rows, or their residual stream after the last block: `[rows, vocab]` or `[rows, hidden]`.
    ///
    /// # Errors
    /// If the device fails.
    pub(super) fn run(
        &self,
        pass: &ForwardContext,
        rows: &[Rows],
        logits: bool,
    ) -> Result<Vec<f32>> {
        let mut program = lock(&self.program);
        lock(&self.ended)
            .drain(..)
            .for_each(|sequence| program.truncate(sequence.number(), 0));
        let most = if logits {
            self.options.outputs
        } else {
            self.options.rows
        };
        let pieces: Vec<_> = rows.iter().flat_map(|rows| rows.pieces(most)).collect();
        let (mut values, mut rest) = (Vec::new(), &pieces[..]);
        while !rest.is_empty() {
            let mut count = 0;
            let fits = |(index, piece): &(usize, &Rows)| {
                count += piece.tokens.len();
                // A further piece of the same sequence continues it, or replaces its earlier tokens: it needs its own
                // run.
                count <= most
                    && rest[..*index]
                        .iter()
                        .all(|other| other.sequence != piece.sequence)
            };
            let together = rest.iter().enumerate().take_while(fits).count();
            run_together(&mut **program, pass, &rest[..together], logits, &mut values)?;
            rest = &rest[together..];
        }
        Ok(values)
    }
}

/// The same for rows of different sequences.
fn run_together(
    program: &mut dyn ModelProgram,
    pass: &ForwardContext,
    rows: &[Rows],
    logits: bool,
    values: &mut Vec<f32>,
) -> Result<()> {
    let description = pass.description;
    for Rows {
        sequence,
        cache,
        position,
        ..
    } in rows
    {
        hold(program, *sequence, cache, *position)?;
    }
    let tokens = rows.iter().flat_map(|rows| rows.tokens);
    let mut x =
        vec![0.0; rows.iter().map(|rows| rows.tokens.len()).sum::<usize>() * description.hidden];
    for (token, x) in tokens.zip(x.chunks_exact_mut(description.hidden)) {
        pass.embed(*token, x);
    }
    let mut first = 0;
    let mut wanted = Vec::new();
    for rows in rows {
        wanted.extend(first + rows.wanted.start..first + rows.wanted.end);
        first += rows.tokens.len();
    }
    let segments: Vec<_> = rows
        .iter()
        .map(|rows| (rows.sequence.number(), rows.tokens.len()))
        .collect();
    let wanted = OutputRows {
        rows: &wanted,
        logits,
        phase: pass.phase,
        keys_and_values: true,
    };
    let outcome = program.forward(&x, &segments, &wanted, &mut |outputs: Outputs| {
        values.extend_from_slice(outputs.values);
        keep(description, rows, outputs.keys_and_values);
    });
    outcome.map_err(Error::Device)
}

/// Makes the device hold the first `position` positions of a sequence, and nothing after them.
fn hold(
    program: &mut dyn ModelProgram,
    sequence: SequenceId,
    cache: &KvCache,
    position: usize,
) -> Result<()> {
    if program.length(sequence.number()) >= position {
        program.truncate(sequence.number(), position);
        return Ok(());
    }
    let blocks: Vec<_> = (0..cache.blocks())
        .map(|block| cache.block(block))
        .collect();
    let blocks: Vec<&dyn Cache> = blocks.iter().map(|block| &**block as &dyn Cache).collect();
    program
        .fill(sequence.number(), position, &blocks)
        .map_err(Error::Device)
}

/// Writes the keys and values of a chunk, by block `[2, rows, kv_heads, head_dim]`, to the pages of its sequences.
fn keep(description: &ModelDescription, rows: &[Rows], keys_and_values: &[f16]) {
    let count: usize = rows.iter().map(|rows| rows.tokens.len()).sum();
    let mut rest = keys_and_values;
    let mut wide = Vec::new();
    for (index, block) in description.blocks.iter().enumerate() {
        let Some(attention) = block.attention() else {
            continue;
        };
        let width = attention.kv_heads * attention.head_dim;
        let of_block = rest
            .split_off(..2 * count * width)
            .expect("values of all blocks");
        wide.resize(of_block.len(), 0.0);
        of_block.convert_to_f32_slice(&mut wide);
        let (mut keys, mut values) = wide.split_at(count * width);
        for Rows {
            cache,
            tokens,
            position,
            ..
        } in rows
        {
            let count = tokens.len() * width;
            let own = |plane: &mut &[f32]| {
                plane
                    .split_off(..count)
                    .expect("values of all rows")
                    .to_vec()
            };
            cache
                .block(index)
                .write(&own(&mut keys), &own(&mut values), *position);
        }
    }
}

fn unmeasured() -> Error {
    let expected = "one that measures parts of products, such as a GPU";
    Error::option("the device that runs the model", "another one", expected)
}

fn block(block: &Block) -> DeviceBlock<'_> {
    DeviceBlock {
        attention_norm: block.attention_norm.as_ref().map(norm),
        attention_post_norm: block.attention_post_norm.as_ref().map(norm),
        feed_forward_norm: block.feed_forward_norm.as_ref().map(norm),
        feed_forward_post_norm: block.feed_forward_post_norm.as_ref().map(norm),
        query_norm: block.query_norm.as_ref().map(norm),
        key_norm: block.key_norm.as_ref().map(norm),
        linears: block
            .linears
            .iter()
            .map(|(name, layer)| (*name, linear(layer, input(block, *name))))
            .collect(),
    }
}

fn norm(norm: &Norm) -> DeviceNorm<'_> {
    DeviceNorm {
        weight: &norm.weight,
        bias: norm.bias.as_deref(),
        epsilon: norm.epsilon,
    }
}

/// Returns how the input of a layer is quantized to INT8, if it is.
fn input(block: &Block, layer: description::Linear) -> Option<Int8Input<'_>> {
    block
        .inputs
        .as_ref()
        .and_then(|inputs| int8_input(&inputs[LinearInput::read_by(layer).index()]))
}

fn linear<'a>(linear: &'a Linear, input: Option<Int8Input<'a>>) -> DeviceLinear<'a> {
    let weight = match (&linear.weight, input) {
        (Weight::Float(weight), _) => DeviceWeight::Float(weight.view()),
        (Weight::Int8(weight), Some(input)) => DeviceWeight::Int8(weight.view(), input),
        (Weight::Int8(_), None) => {
            unreachable!("layers in INT8 have scales, and dynamic ones are refused")
        }
    };
    let decode_weight = linear.decode_weight.as_ref().map(|weight| weight.view());
    DeviceLinear {
        weight,
        decode_weight,
        bias: linear.bias.as_deref(),
    }
}
