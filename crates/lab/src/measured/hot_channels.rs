//! Calibrates on one domain of text and runs on another, to find whether their hot channels are the same.
//!
//! A file has the weights of all shadows by channel, as for a processor whose weights the CPU can't read
//! ([`triad_engine::outlier_cache`]). The float model reads each text. For every linear input, the CPU simulates that
//! processor: it quantizes the input, requests the rows of its outlier channels, multiplies in INT8, and adds the
//! shadow when all rows have arrived.

use std::sync::Arc;

use serde::Serialize;
use tempfile::TempDir;
use triad_engine::outlier_cache::{ChannelRows, OutlierCacheStatistics, OutlierWeightCache};
use triad_engine::quantization::{INT8_MAX, InputQuantization, Quantization};
use triad_engine::{Cancel, LinearInput, Model, Session, SessionOptions};
use triad_kernels::OutputMut;
use triad_kernels::int8::{QuantizedRows, matmul_int8};
use triad_prepare::calibration::text::CalibrationText;
use triad_prepare::calibration::{self, Calibration};
use triad_prepare::plan::{self, PlanOptions};
use triad_prepare::weight_statistics;

use crate::error::{Error, Result};

/// Tokens per chunk, as in the paper. A chunk requests each row once.
const CHUNK: usize = 256;

/// Texts of one kind as tokens. Every second text is for calibration, the others for runs.
pub struct Domain {
    name: String,
    calibrate: Vec<Vec<u32>>,
    run: Vec<Vec<u32>>,
}

impl Domain {
    /// Tokenizes `text`: at most `tokens` tokens for calibration, and as many for the run.
    ///
    /// # Errors
    /// If the model has no tokenizer, or there are fewer than two texts.
    pub fn new(model: &Model, text: &CalibrationText, tokens: usize) -> Result<Self> {
        let half = |parity: usize| {
            let texts = text
                .texts
                .iter()
                .enumerate()
                .filter(|(index, _)| index % 2 == parity);
            let texts = texts.map(|(_, text)| text.clone()).collect();
            calibration::pieces(
                model,
                &CalibrationText {
                    name: text.name.clone(),
                    texts,
                },
                tokens,
            )
        };
        let (calibrate, run) = (half(0)?, half(1)?);
        if calibrate.is_empty() || run.is_empty() {
            return Err(Error::Domain {
                name: text.name.clone(),
            });
        }
        Ok(Self {
            name: text.name.clone(),
            calibrate,
            run,
        })
    }

    /// Returns its name.
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// Results for all pairs of domains.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HotChannelStudy {
    /// Result of the calibration on each domain.
    pub domains: Vec<Calibrated>,
    /// Results of each domain run with each calibration, grouped by calibration.
    pub pairs: Vec<Pair>,
}

/// Result of the calibration on one domain.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Calibrated {
    /// The domain.
    pub name: String,
    /// Tokens calibrated on.
    pub calibration_tokens: usize,
    /// Channels of all inputs with a shadow.
    pub channels: usize,
    /// Hot channels among them.
    pub hot_channels: usize,
    /// Bytes of their rows in memory.
    pub hot_bytes: usize,
}

/// Results of calibrating on one domain and running on another.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Pair {
    /// Domain of the hot channels and clip thresholds.
    pub calibrated_on: String,
    /// Domain that was run.
    pub run_on: String,
    /// Tokens that were run.
    pub tokens: usize,
    /// Quantized values of inputs with a shadow.
    pub values: u64,
    /// Outliers among these values.
    pub outliers: u64,
    /// Outliers in hot channels.
    pub hot_outliers: u64,
    /// Requested rows: one for each channel with an outlier in any token of a chunk.
    pub rows: OutlierCacheStatistics,
}

impl Pair {
    /// Returns the share of the outliers that are in hot channels; 1 if there are no outliers.
    pub fn hit_rate(&self) -> f64 {
        if self.outliers == 0 {
            1.0
        } else {
            self.hot_outliers as f64 / self.outliers as f64
        }
    }
}

/// Progress of the study.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The rows are being written to a file.
    Writing,
    /// Tokens go through the model.
    Running {
        /// Tokens that are done.
        done: usize,
        /// Tokens in total.
        total: usize,
    },
}

/// Calibrates `model` on each domain, and runs it on every domain. `rate` is the share of the inputs without a shadow.
///
/// # Errors
/// If the rows can't be written to a file in the system's temporary folder, the model can't run, or `cancel` is set.
///
/// # Panics
/// If the model's weights are not float.
pub fn study(
    model: &Arc<Model>,
    domains: &[Domain],
    options: &PlanOptions,
    rate: f64,
    cancel: &Cancel,
    progress: &mut dyn FnMut(Progress),
) -> Result<HotChannelStudy> {
    let tokens = |pieces: &[Vec<u32>]| pieces.iter().map(Vec::len).sum::<usize>();
    let to_run: usize = domains.iter().map(|domain| tokens(&domain.run)).sum();
    let total = domains
        .iter()
        .map(|domain| tokens(&domain.calibrate))
        .sum::<usize>()
        + domains.len() * to_run;
    let mut done = 0;
    let weights = model.install(|| weight_statistics::of_model(model.weights()));
    let mut rows = None;
    let mut study = HotChannelStudy {
        domains: Vec::new(),
        pairs: Vec::new(),
    };
    for domain in domains {
        let mut calibration = Calibration::new(model.description(), &domain.name);
        calibration.run(model, &domain.calibrate, cancel, |calibration| {
            progress(Progress::Running {
                done: done + calibration.tokens,
                total,
            });
            Ok(())
        })?;
        done += calibration.tokens;
        let mut inputs = plan::summarize(&calibration, &weights, options);
        plan::prune(&mut inputs, rate);
        let quantization = plan::quantization(&inputs, options);
        let hot: Vec<_> = inputs
            .iter()
            .map(|input| input.hot_channels.as_slice())
            .collect();
        let rows = match &rows {
            Some(rows) => rows,
            None => {
                progress(Progress::Writing);
                rows.insert(WeightRows::write(model.quantize(&quantization))?)
            }
        };
        let kept = || inputs.iter().filter(|input| input.shadow);
        let mut calibrated = Calibrated {
            name: domain.name.clone(),
            calibration_tokens: calibration.tokens,
            channels: kept().map(|input| input.channels).sum(),
            hot_channels: kept().map(|input| input.hot_channels.len()).sum(),
            hot_bytes: 0,
        };
        for other in domains {
            let mut processor = SimulatedDevice::new(rows, &quantization, &hot)?;
            calibrated.hot_bytes = processor.bytes();
            let mut pair = Pair {
                calibrated_on: domain.name.clone(),
                run_on: other.name.clone(),
                tokens: 0,
                values: 0,
                outliers: 0,
                hot_outliers: 0,
                rows: OutlierCacheStatistics::default(),
            };
            run(
                model,
                &other.run,
                &mut processor,
                &mut pair,
                cancel,
                &mut |tokens| {
                    done += tokens;
                    progress(Progress::Running { done, total });
                },
            )?;
            study.pairs.push(pair);
        }
        study.domains.push(calibrated);
    }
    Ok(study)
}

/// Runs the float model on `pieces`. `processor` also computes the linear layers.
fn run(
    model: &Arc<Model>,
    pieces: &[Vec<u32>],
    processor: &mut SimulatedDevice,
    pair: &mut Pair,
    cancel: &Cancel,
    progress: &mut dyn FnMut(usize),
) -> Result<()> {
    let longest = pieces.iter().map(Vec::len).max().unwrap_or(1);
    let options = SessionOptions {
        context: longest,
        chunk: CHUNK,
        ..SessionOptions::default()
    };
    let mut session = Session::new(model, &options)?;
    for piece in pieces {
        session.truncate(0);
        session.observe(piece, cancel, &mut |block, input, x| {
            processor.run(block, input, x, pair);
        })?;
        pair.tokens += piece.len();
        progress(piece.len());
    }
    pair.rows = processor.rows.usage().statistics;
    Ok(())
}

/// INT8 weights, and a file with the same weights by channel.
struct WeightRows {
    /// The INT8 model. Its weights do not depend on which inputs keep a shadow.
    model: Model,
    rows: Arc<ChannelRows>,
    /// Removed when dropped.
    _folder: TempDir,
}

impl WeightRows {
    /// Writes the rows of all inputs of an INT8 model.
    fn write(model: Model) -> Result<Self> {
        let failed = |source| Error::WriteRows {
            folder: std::env::temp_dir(),
            source,
        };
        let folder = tempfile::tempdir().map_err(failed)?;
        let of = (model.description(), model.weights());
        let rows =
            model.install(|| ChannelRows::open(&folder.path().join("rows"), of, "", &|_, _| true));
        Ok(Self {
            rows: Arc::new(rows.map_err(failed)?),
            model,
            _folder: folder,
        })
    }
}

/// Simulates a device whose weights the CPU can't read; the CPU has only the hot rows.
struct SimulatedDevice<'a> {
    model: &'a Model,
    /// Inputs by layer and kind; `None` for an input without a shadow.
    inputs: Vec<Option<Input>>,
    rows: OutlierWeightCache,
    quantized: QuantizedRows,
    out: Vec<f32>,
}

struct Input {
    clip: f32,
    /// For each channel, whether it is hot.
    is_hot: Vec<bool>,
}

impl<'a> SimulatedDevice<'a> {
    fn new(weights: &'a WeightRows, quantization: &Quantization, hot: &[&[u32]]) -> Result<Self> {
        let model = &weights.model;
        let (description, blocks) = (model.description(), model.weights().blocks.len());
        let plans = quantization.blocks.iter().flatten().zip(hot).enumerate();
        let of_input = |(index, (plan, hot)): (usize, (&InputQuantization, &&[u32]))| {
            let InputQuantization::Static {
                clip, shadow: true, ..
            } = plan
            else {
                return None;
            };
            let (block, input) = (
                index / LinearInput::DENSE.len(),
                LinearInput::DENSE[index % LinearInput::DENSE.len()],
            );
            let mut is_hot =
                vec![false; input.channels(&description.blocks[block], description.hidden)];
            hot.iter()
                .for_each(|channel| is_hot[*channel as usize] = true);
            Some(Input {
                clip: *clip,
                is_hot,
            })
        };
        let inputs: Vec<_> = plans.map(of_input).collect();
        let place =
            |block: usize, input: LinearInput| block * LinearInput::DENSE.len() + input.index();
        let hot = |block: usize, input: LinearInput| {
            let place = place(block, input);
            inputs[place].as_ref().map(|_| hot[place].to_vec())
        };
        let rows = OutlierWeightCache::start(Arc::clone(&weights.rows), blocks, &hot);
        let rows = rows.map_err(|source| Error::OutlierCache { source })?;
        Ok(Self {
            model,
            inputs,
            rows,
            quantized: QuantizedRows::default(),
            out: Vec::new(),
        })
    }

    /// Returns the bytes of the hot rows.
    fn bytes(&self) -> usize {
        self.rows.usage().hot_bytes
    }

    /// Computes the layers that read `x` `[rows, channels]`, and counts outliers.
    fn run(&mut self, block: usize, input: LinearInput, x: &[f32], pair: &mut Pair) {
        let Some(Input { clip, is_hot }) =
            &self.inputs[block * LinearInput::DENSE.len() + input.index()]
        else {
            return;
        };
        let quantized = &mut self.quantized;
        quantized.quantize_static(x, is_hot.len(), clip / INT8_MAX, None, true);
        let requested = self.rows.request(block, input, quantized.view());
        let matrices = ChannelRows::readers(
            self.model.description(),
            block,
            &self.model.weights().blocks[block],
            input,
        );
        let rows = quantized.rows();
        for matrix in &matrices {
            self.out.resize(rows * matrix.out_features(), 0.0);
            let out = OutputMut::new(&mut self.out, matrix.out_features());
            matmul_int8(quantized.view(), matrix.view(), None, out);
        }
        let scales: Vec<_> = matrices.iter().map(|matrix| matrix.view().scales).collect();
        self.out.resize(
            rows * scales.iter().map(|scales| scales.len()).sum::<usize>(),
            0.0,
        );
        self.rows.shadow(
            (block, input),
            quantized.view(),
            requested,
            &scales,
            &mut self.out,
        );
        pair.values += x.len() as u64;
        for channel in (0..rows).flat_map(|row| quantized.view().outliers_of(row).0) {
            pair.outliers += 1;
            pair.hot_outliers += u64::from(is_hot[*channel as usize]);
        }
    }
}
