//! The saved state of a calibration, from which an interrupted preparation continues.

use std::collections::BTreeMap;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use triad_engine::LinearInput;
use triad_model::mapped::MappedFile;
use triad_model::output::OutputFile;
use triad_model::safetensors::write::{Entry, Layout};
use triad_model::safetensors::{self, Element};
use triad_model::seal;
use triad_model::{Error, ErrorKind, Result};

use crate::calibration::Calibration;
use crate::calibration::statistics::{BINS, InputStatistics};
use crate::int4::moments::{Moments, SecondMoments};
use crate::int4::sensitivity::Sensitivities;

/// Version of the format: a state of another version is not resumed.
const FORMAT: &str = "3";

const VERSION: &str = "format";
const KEY: &str = "key";
const COUNTS: &str = "counts";
const SEAL: &str = "seal";

/// How often the state of a calibration is saved.
const SAVE_EVERY: Duration = Duration::from_secs(10);
/// Second moments are large: saving takes at most one part in so many of the time.
const SAVE_SHARE: u32 = 20;

/// The file with the state of a calibration that runs.
pub(super) struct Saved {
    key: String,
    path: PathBuf,
    at: Instant,
    /// How long the last save took.
    took: Duration,
}

impl Saved {
    /// Returns the state in the file at `path`, if it has the same `key`, which identifies the input of the calibration, or
    /// else what `fresh` returns, an empty state.
    pub(super) fn resume<S: State>(key: String, path: PathBuf, fresh: impl Fn() -> S) -> (Self, S) {
        let state = load(fresh, &key, &path);
        let saved = Self {
            key,
            path,
            at: Instant::now(),
            took: Duration::ZERO,
        };
        (saved, state)
    }

    /// Saves the state if it was not saved for some time.
    pub(super) fn keep<S: State>(&mut self, seen: &S) -> Result<()> {
        if self.at.elapsed() > SAVE_EVERY.max(self.took * SAVE_SHARE) {
            self.save(seen)?;
        }
        Ok(())
    }

    /// Saves the state.
    pub(super) fn save<S: State>(&mut self, seen: &S) -> Result<()> {
        let start = Instant::now();
        let saved = save(seen, &self.key, &self.path);
        (self.at, self.took) = (Instant::now(), start.elapsed());
        saved
    }
}

/// Statistics of a calibration that can be continued.
pub(super) trait State {
    /// The purpose of its [`seal`].
    const PURPOSE: &str;

    /// Returns how far the text is counted.
    fn counts(&self) -> Vec<u64>;

    /// Returns the tensors.
    fn tensors(&self) -> Vec<Tensor<'_>>;

    /// Replaces itself, which is empty, by the state with these counts and tensors, whose bytes `tensor` returns. Returns
    /// `None` if they do not fit.
    fn restore<'a>(&mut self, counts: &[u64], tensor: &dyn Fn(&str) -> &'a [u8]) -> Option<()>;
}

/// A tensor of a state.
pub(super) struct Tensor<'a> {
    name: String,
    element: Element,
    shape: Vec<usize>,
    bytes: &'a [u8],
}

/// Returns the names of one input's tensors: the largest magnitudes `[channels]`, and the histograms `[channels,
/// BINS]`.
fn names(block: usize, input: LinearInput) -> [String; 2] {
    ["largest", "counts"].map(|what| format!("blocks.{block}.{}.{what}", input.name()))
}

impl State for Calibration {
    const PURPOSE: &str = "calibration";

    fn counts(&self) -> Vec<u64> {
        [self.tokens, self.pieces, self.counted]
            .map(|count| count as u64)
            .to_vec()
    }

    fn tensors(&self) -> Vec<Tensor<'_>> {
        let mut tensors = Vec::new();
        for (block, input, statistics) in self.inputs() {
            let [largest, counts] = names(block, input);
            let channels = statistics.channels();
            tensors.push(Tensor {
                name: largest,
                element: Element::F32,
                shape: vec![channels],
                bytes: bytemuck::cast_slice(statistics.largest()),
            });
            tensors.push(Tensor {
                name: counts,
                element: Element::U32,
                shape: vec![channels, BINS],
                bytes: bytemuck::cast_slice(statistics.counts()),
            });
        }
        tensors
    }

    fn restore<'a>(&mut self, counts: &[u64], tensor: &dyn Fn(&str) -> &'a [u8]) -> Option<()> {
        [self.tokens, self.pieces, self.counted] = usizes(counts)?;
        for (block, inputs) in self.blocks.iter_mut().enumerate() {
            let inputs = LinearInput::ALL.into_iter().zip(inputs);
            for (input, statistics) in inputs.filter(|(_, it)| it.channels() > 0) {
                let [largest, counts] = names(block, input).map(|name| tensor(&name));
                let largest = floats(largest);
                let counts = counts.as_chunks::<4>().0;
                let counts = counts.iter().map(|bytes| u32::from_le_bytes(*bytes));
                if largest.len() != statistics.channels() {
                    return None;
                }
                *statistics = InputStatistics::from_parts(largest, counts.collect())?;
            }
        }
        Some(())
    }
}

/// Returns the names of one input's tensors `[channels, channels]`, of the part that is seen and of the part held out.
fn moment_names(block: usize, input: LinearInput) -> [String; 2] {
    ["seen", "held-out"].map(|part| format!("blocks.{block}.{}.{part}", input.name()))
}

impl State for Moments {
    const PURPOSE: &str = "second moments";

    fn counts(&self) -> Vec<u64> {
        let mut counts = [self.tokens, self.pieces, self.counted]
            .map(|count| count as u64)
            .to_vec();
        for (_, _, parts) in self.inputs() {
            counts.extend(parts.iter().map(SecondMoments::rows));
        }
        counts
    }

    fn tensors(&self) -> Vec<Tensor<'_>> {
        let mut tensors = Vec::new();
        for (block, input, parts) in self.inputs() {
            for (name, moments) in moment_names(block, input).into_iter().zip(parts) {
                tensors.push(Tensor {
                    name,
                    element: Element::F32,
                    shape: vec![moments.channels(); 2],
                    bytes: bytemuck::cast_slice(moments.sums()),
                });
            }
        }
        tensors
    }

    fn restore<'a>(&mut self, counts: &[u64], tensor: &dyn Fn(&str) -> &'a [u8]) -> Option<()> {
        let (progress, rows) = counts.split_at_checked(3)?;
        [self.tokens, self.pieces, self.counted] = usizes(progress)?;
        let mut rows = rows.iter();
        for (block, input, parts) in self.inputs_mut() {
            for (name, moments) in moment_names(block, input).iter().zip(parts) {
                let (channels, rows) = (moments.channels(), *rows.next()?);
                *moments = SecondMoments::from_parts(channels, rows, floats(tensor(name)))?;
            }
        }
        rows.next().is_none().then_some(())
    }
}

/// The name of the tensor of measured layers.
const DIVERGENCES: &str = "divergences";

impl State for Sensitivities {
    const PURPOSE: &str = "sensitivities";

    fn counts(&self) -> Vec<u64> {
        vec![self.divergences().len() as u64]
    }

    fn tensors(&self) -> Vec<Tensor<'_>> {
        vec![Tensor {
            name: DIVERGENCES.into(),
            element: Element::F32,
            shape: vec![self.divergences().len()],
            bytes: bytemuck::cast_slice(self.divergences()),
        }]
    }

    fn restore<'a>(&mut self, counts: &[u64], tensor: &dyn Fn(&str) -> &'a [u8]) -> Option<()> {
        let divergences = floats(tensor(DIVERGENCES));
        let is_whole = *counts == [divergences.len() as u64];
        is_whole.then(|| Sensitivities::restore(self, divergences))?
    }
}

fn usizes(counts: &[u64]) -> Option<[usize; 3]> {
    let [tokens, pieces, counted] = *counts else {
        return None;
    };
    Some([
        tokens.try_into().ok()?,
        pieces.try_into().ok()?,
        counted.try_into().ok()?,
    ])
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    let bytes = bytes.as_chunks::<4>().0.iter();
    bytes.map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

/// Returns the counts as they are written in the file.
fn text_of(counts: &[u64]) -> String {
    let counts: Vec<_> = counts.iter().map(u64::to_string).collect();
    counts.join(" ")
}

/// Returns this machine's [`seal`] of a state, in hexadecimal digits, so that a file from elsewhere cannot affect how a
/// model is quantized.
fn seal_of<S: State>(state: &S, key: &str) -> String {
    let counts = format!("{FORMAT} {}", text_of(&state.counts()));
    let tensors = state.tensors();
    let mut parts = vec![key.as_bytes(), counts.as_bytes()];
    parts.extend(tensors.iter().map(|tensor| tensor.bytes));
    seal::seal(S::PURPOSE, &parts)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// Replaces the file at `path` by one with `state`. `key` identifies the input of the calibration.
fn save<S: State>(state: &S, key: &str, path: &Path) -> Result<()> {
    let tensors = state.tensors();
    let entries = tensors.iter().map(|tensor| Entry {
        name: tensor.name.clone(),
        element: tensor.element,
        shape: tensor.shape.clone(),
    });
    let metadata = [
        (VERSION, FORMAT.to_owned()),
        (KEY, key.to_owned()),
        (COUNTS, text_of(&state.counts())),
        (SEAL, seal_of(state, key)),
    ];
    let layout = Layout::new(
        &entries.collect::<Vec<_>>(),
        &BTreeMap::from(metadata.map(|(name, value)| (name.to_owned(), value))),
    );
    let write = || {
        let mut file = BufWriter::new(OutputFile::own(path)?);
        file.write_all(&layout.header)?;
        for tensor in &tensors {
            file.write_all(tensor.bytes)?;
        }
        file.into_inner()?.finish()
    };
    write().map_err(|error| {
        Error::new(ErrorKind::Io, "cannot write the file")
            .caused_by(error)
            .at(path)
    })
}

/// Returns the state that [`save`] wrote to `path`, or what `fresh` returns, an empty state, if there is none with this
/// `key`.
fn load<S: State>(fresh: impl Fn() -> S, key: &str, path: &Path) -> S {
    match read(fresh(), key, path) {
        Ok(Some(saved)) => return saved,
        Ok(None) => {
            tracing::debug!(path = %path.display(), "a calibration of something else is not resumed");
        }
        Err(error) => tracing::debug!(%error, "no calibration is resumed"),
    }
    fresh()
}

/// Reads the state into `state`; returns `None` if it belongs to another calibration.
fn read<S: State>(mut state: S, key: &str, path: &Path) -> Result<Option<S>> {
    let file = MappedFile::open(path)?;
    let header = safetensors::read(file.bytes(), &[Element::F32, Element::U32])?;
    let value_of = |name| header.metadata.get(name).map_or("", String::as_str);
    if value_of(VERSION) != FORMAT || value_of(KEY) != key {
        return Ok(None);
    }
    let counts = value_of(COUNTS).split(' ').map(|count| count.parse().ok());
    let Some(counts) = counts.collect::<Option<Vec<u64>>>() else {
        return Ok(None);
    };
    let tensor = |name: &str| {
        let tensor = header.tensors.get(name);
        &file.bytes()[tensor.map_or(0..0, |tensor| tensor.bytes.clone())]
    };
    let restored = state.restore(&counts, &tensor);
    Ok((restored.is_some() && value_of(SEAL) == seal_of(&state, key)).then_some(state))
}
