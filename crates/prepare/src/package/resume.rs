//! The saved state of a calibration, from which an interrupted preparation continues.

use std::collections::BTreeMap;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use triad_engine::LinearInput;
use triad_model::mapped::MappedFile;
use triad_model::output::OutputFile;
use triad_model::safetensors::write::{Entry, Layout};
use triad_model::safetensors::{self, Element, Header};
use triad_model::seal;
use triad_model::{Error, ErrorKind, Result};

use crate::calibration::Calibration;
use crate::calibration::statistics::{BINS, InputStatistics};

/// Version of the format: a state of another version is not resumed. States before version 2 may count a part of a
/// piece twice.
const FORMAT: &str = "2";

const VERSION: &str = "format";
const KEY: &str = "key";
const TOKENS: &str = "tokens";
const PIECES: &str = "pieces";
const COUNTED: &str = "counted";
const SEAL: &str = "seal";

/// How often the state of a calibration is saved.
const SAVE_EVERY: Duration = Duration::from_secs(10);

/// The file with the state of a calibration that runs.
pub(super) struct Saved {
    key: String,
    path: PathBuf,
    at: Instant,
}

impl Saved {
    /// Replaces `calibration`, which must be empty, by the state in the file at `path`, if it has the same `key`, which
    /// identifies the input of the calibration.
    pub(super) fn resume(key: String, path: PathBuf, calibration: &mut Calibration) -> Self {
        load(calibration, &key, &path);
        Self {
            key,
            path,
            at: Instant::now(),
        }
    }

    /// Saves the state if it was not saved for some time.
    pub(super) fn keep(&mut self, seen: &Calibration) -> Result<()> {
        if self.at.elapsed() > SAVE_EVERY {
            self.save(seen)?;
        }
        Ok(())
    }

    /// Saves the state.
    pub(super) fn save(&mut self, seen: &Calibration) -> Result<()> {
        save(seen, &self.key, &self.path)?;
        self.at = Instant::now();
        Ok(())
    }
}

/// Returns the names of one input's tensors: the largest magnitudes `[channels]`, and the histograms `[channels,
/// BINS]`.
fn names(block: usize, input: LinearInput) -> [String; 2] {
    ["largest", "counts"].map(|what| format!("blocks.{block}.{}.{what}", input.name()))
}

/// Returns this machine's [`seal`] of a calibration, in hexadecimal digits, so that a file from elsewhere cannot affect
/// how a model is quantized.
fn seal_of(calibration: &Calibration, key: &str) -> String {
    let Calibration {
        tokens,
        pieces,
        counted,
        ..
    } = calibration;
    let counts = format!("{FORMAT} {tokens} {pieces} {counted}");
    let mut parts = vec![key.as_bytes(), counts.as_bytes()];
    for (_, _, statistics) in calibration.inputs() {
        parts.extend([
            bytemuck::cast_slice(statistics.largest()),
            bytemuck::cast_slice(statistics.counts()),
        ]);
    }
    seal::seal("calibration", &parts)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// Replaces the file at `path` by one with `calibration`. `key` identifies the input of the calibration.
fn save(calibration: &Calibration, key: &str, path: &Path) -> Result<()> {
    let mut entries = Vec::new();
    for (block, input, statistics) in calibration.inputs() {
        let [largest, counts] = names(block, input);
        let channels = statistics.channels();
        entries.push(Entry {
            name: largest,
            element: Element::F32,
            shape: vec![channels],
        });
        entries.push(Entry {
            name: counts,
            element: Element::U32,
            shape: vec![channels, BINS],
        });
    }
    let remarks = [
        (VERSION, FORMAT.to_owned()),
        (KEY, key.to_owned()),
        (TOKENS, calibration.tokens.to_string()),
        (PIECES, calibration.pieces.to_string()),
        (COUNTED, calibration.counted.to_string()),
        (SEAL, seal_of(calibration, key)),
    ];
    let layout = Layout::new(
        &entries,
        &BTreeMap::from(remarks.map(|(name, value)| (name.to_owned(), value))),
    );
    let write = || {
        let mut file = BufWriter::new(OutputFile::own(path)?);
        file.write_all(&layout.header)?;
        for (_, _, statistics) in calibration.inputs() {
            file.write_all(bytemuck::cast_slice(statistics.largest()))?;
            file.write_all(bytemuck::cast_slice(statistics.counts()))?;
        }
        file.into_inner()?.finish()
    };
    write().map_err(|error| {
        Error::new(ErrorKind::Io, "cannot write the file")
            .caused_by(error)
            .at(path)
    })
}

/// Replaces `calibration`, which must be empty, by the state that [`save`] wrote to `path`. Does nothing if there is no
/// state with this `key`.
fn load(calibration: &mut Calibration, key: &str, path: &Path) {
    match read(calibration, key, path) {
        Ok(Some(saved)) => *calibration = saved,
        Ok(None) => {
            tracing::debug!(path = %path.display(), "a calibration of something else is not resumed");
        }
        Err(error) => tracing::debug!(%error, "no calibration is resumed"),
    }
}

/// Reads the state; returns `None` if it belongs to another calibration.
fn read(fresh: &Calibration, key: &str, path: &Path) -> Result<Option<Calibration>> {
    let file = MappedFile::open(path)?;
    let header = safetensors::read(file.bytes(), &[Element::F32, Element::U32])?;
    let Header { tensors, remarks } = &header;
    let number = |name| {
        remarks
            .get(name)
            .and_then(|number| number.parse::<usize>().ok())
    };
    let is = |name, expected: &str| remarks.get(name).is_some_and(|found| found == expected);
    if !is(VERSION, FORMAT) || !is(KEY, key) {
        return Ok(None);
    }
    let (Some(tokens), Some(pieces), Some(counted)) =
        (number(TOKENS), number(PIECES), number(COUNTED))
    else {
        return Ok(None);
    };
    let mut saved = fresh.clone();
    (saved.tokens, saved.pieces, saved.counted) = (tokens, pieces, counted);
    for (block, inputs) in saved.blocks.iter_mut().enumerate() {
        let inputs = LinearInput::ALL.into_iter().zip(inputs);
        for (input, statistics) in inputs.filter(|(_, it)| it.channels() > 0) {
            let [largest, counts] = names(block, input).map(|name| {
                let bytes = tensors
                    .get(&name)
                    .map_or(0..0, |tensor| tensor.bytes.clone());
                file.bytes()[bytes].as_chunks::<4>().0
            });
            let largest: Vec<_> = largest
                .iter()
                .map(|bytes| f32::from_le_bytes(*bytes))
                .collect();
            let counts = counts
                .iter()
                .map(|bytes| u32::from_le_bytes(*bytes))
                .collect();
            if largest.len() != statistics.channels() {
                return Ok(None);
            }
            let Some(read) = InputStatistics::from_parts(largest, counts) else {
                return Ok(None);
            };
            *statistics = read;
        }
    }
    if !is(SEAL, &seal_of(&saved, key)) {
        return Ok(None);
    }
    Ok(Some(saved))
}
