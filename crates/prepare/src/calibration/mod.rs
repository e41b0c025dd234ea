//! Calibration: the float model processes some text, and the magnitudes of every linear input are counted.

pub mod pictures;
pub mod statistics;
pub mod text;

use std::sync::Arc;

use statistics::InputStatistics;
use triad_engine::{Cancel, Inputs, LinearInput, Model, Observer, Session, SessionOptions};
use triad_model::description::ModelDescription;

use crate::error::{Error, Result};
use text::CalibrationText;

/// Maximum tokens per piece of a calibration text; longer pieces are truncated.
pub const PIECE_TOKENS: usize = 512;

/// The statistics of a calibration text.
#[derive(Clone, Debug, PartialEq)]
pub struct Calibration {
    /// Name of the text.
    pub text: String,
    /// Tokens processed.
    pub tokens: usize,
    /// Pieces of text processed.
    pub pieces: usize,
    /// The inputs of each block.
    pub blocks: Vec<Inputs<InputStatistics>>,
    /// Observations of the next piece that `blocks` already counts, because its run was interrupted after them. The run
    /// that repeats the piece skips them: a piece has the same observations in the same order in each run.
    pub(crate) counted: usize,
}

impl Calibration {
    /// Creates empty statistics.
    pub fn new(description: &ModelDescription, text: &str) -> Self {
        let statistics = |block, input: LinearInput| {
            InputStatistics::new(input.channels(block, description.hidden))
        };
        let blocks = description
            .blocks
            .iter()
            .map(|block| LinearInput::ALL.map(|input| statistics(block, input)));
        Self::of_blocks(text, blocks.collect())
    }

    /// Creates empty statistics of these inputs of blocks.
    pub(crate) fn of_blocks(text: &str, blocks: Vec<Inputs<InputStatistics>>) -> Self {
        Self {
            text: text.into(),
            tokens: 0,
            pieces: 0,
            blocks,
            counted: 0,
        }
    }

    /// Runs the float model over at most `most_tokens` tokens of `text`; returns the calibration, and the pieces of the
    /// text as [`split`] does. `progress` is called with the number of processed tokens and the total.
    ///
    /// # Errors
    /// If `cancel` is set, the model has no tokenizer or cannot run, or the text has no tokens.
    pub fn of_text(
        model: &Arc<Model>,
        text: &CalibrationText,
        most_tokens: usize,
        cancel: &Cancel,
        mut progress: impl FnMut(usize, usize),
    ) -> Result<(Self, [Vec<Vec<u32>>; 2])> {
        let [pieces, held_out] = split(model, text, most_tokens)?;
        let total = pieces.iter().map(Vec::len).sum();
        let mut calibration = Self::new(model.description(), &text.name);
        calibration.run(model, &pieces, cancel, |calibration| {
            progress(calibration.tokens, total);
            Ok(())
        })?;
        Ok((calibration, [pieces, held_out]))
    }

    /// Returns the statistics of one input of one block.
    pub fn input(&self, block: usize, input: LinearInput) -> &InputStatistics {
        &self.blocks[block][input.index()]
    }

    /// Returns every input that a block has, with its block, first to last.
    pub fn inputs(&self) -> impl Iterator<Item = (usize, LinearInput, &InputStatistics)> {
        let of_block = |(block, inputs)| {
            LinearInput::ALL
                .into_iter()
                .zip(inputs)
                .filter(|(_, statistics): &(_, &InputStatistics)| statistics.channels() > 0)
                .map(move |(i, s)| (block, i, s))
        };
        self.blocks.iter().enumerate().flat_map(of_block)
    }

    /// Runs the float model over `pieces`, from the first unprocessed one. `progress` is called after each piece with
    /// the total so far.
    ///
    /// # Errors
    /// If `cancel` is set; otherwise as for [`Session::prefill`]. The statistics so far are kept, and a later call
    /// continues from there, with the same result as a call that was not interrupted.
    pub fn run(
        &mut self,
        model: &Arc<Model>,
        pieces: &[Vec<u32>],
        cancel: &Cancel,
        mut progress: impl FnMut(&Self) -> Result<()>,
    ) -> Result<()> {
        let mut observation = Observation::new(model)?;
        for piece in pieces.iter().skip(self.pieces) {
            let blocks = &mut self.blocks;
            observation.run(piece, &mut self.counted, cancel, &mut |block, input, x| {
                blocks[block][input.index()].add(x);
            })?;
            self.tokens += piece.len();
            self.pieces += 1;
            progress(self)?;
        }
        Ok(())
    }
}

/// A float model that processes pieces of text, whose linear inputs are observed.
pub(crate) struct Observation(Session);

impl Observation {
    pub(crate) fn new(model: &Arc<Model>) -> Result<Self> {
        Ok(Self(session(model)?))
    }

    /// Processes one piece, and calls `add` with each observation from number `counted` on, which then counts it. It is 0
    /// after a run that was not interrupted.
    pub(crate) fn run(
        &mut self,
        piece: &[u32],
        counted: &mut usize,
        cancel: &Cancel,
        add: Observer,
    ) -> Result<()> {
        self.0.truncate(0);
        let mut observed = 0;
        self.0.observe(piece, cancel, &mut |block, input, x| {
            if observed == *counted {
                add(block, input, x);
                *counted += 1;
            }
            observed += 1;
        })?;
        *counted = 0;
        Ok(())
    }
}

/// Creates a session for one piece of text after another.
pub(crate) fn session(model: &Arc<Model>) -> Result<Session> {
    let context = PIECE_TOKENS.min(model.description().context);
    let options = SessionOptions {
        context,
        chunk: PIECE_TOKENS,
        ..SessionOptions::default()
    };
    Ok(Session::new(model, &options)?)
}

/// One text, or picture, of this many is held out; the others calibrate.
const HELD_OUT: usize = 4;

/// Returns the pieces to calibrate on, of at most `most_tokens` in total, and those that are held out.
///
/// # Errors
/// If the model has no tokenizer, or the text has no tokens.
pub fn split(
    model: &Model,
    text: &CalibrationText,
    most_tokens: usize,
) -> Result<[Vec<Vec<u32>>; 2]> {
    let is_held_out = |index: usize| index % HELD_OUT == HELD_OUT - 1;
    let part = |held_out: bool| {
        let chosen = text
            .texts
            .iter()
            .enumerate()
            .filter(|(index, _)| is_held_out(*index) == held_out);
        CalibrationText {
            name: text.name.clone(),
            texts: chosen.map(|(_, text)| text.clone()).collect(),
        }
    };
    let calibrate = pieces(model, &part(false), most_tokens)?;
    if calibrate.is_empty() {
        return Err(nothing_seen());
    }
    Ok([
        calibrate,
        pieces(model, &part(true), most_tokens.div_ceil(HELD_OUT))?,
    ])
}

/// Returns the error that there is nothing to calibrate on.
pub(super) fn nothing_seen() -> Error {
    let name = "the number of calibration tokens";
    triad_engine::Error::Option {
        name,
        value: "0".into(),
        expected: "at least 1",
    }
    .into()
}

/// Returns the tokens of a calibration text, in pieces of at most [`PIECE_TOKENS`], and of at most `most_tokens` in
/// total.
///
/// # Errors
/// If the model has no tokenizer.
pub fn pieces(model: &Model, text: &CalibrationText, most_tokens: usize) -> Result<Vec<Vec<u32>>> {
    let mut pieces = Vec::new();
    let mut left = most_tokens;
    let longest = PIECE_TOKENS.min(model.description().context);
    for text in text.texts.iter().filter(|text| !text.is_empty()) {
        for piece in model.encode_prompt(text)?.chunks(longest) {
            let piece = &piece[..piece.len().min(left)];
            left -= piece.len();
            if piece.is_empty() {
                return Ok(pieces);
            }
            pieces.push(piece.to_vec());
        }
    }
    Ok(pieces)
}
