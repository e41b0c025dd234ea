//! Preparation of a package from a model file: the model is calibrated ([`resume`] stores the state of an interrupted
//! run), quantized and written ([`write`]) into a folder next to the package ([`part`]), which gets the package's name
//! when it is complete. The same model, text and options give the same bytes.

mod head;
mod journal;
mod output;
mod part;
mod recipe;
mod resume;
mod vision;
mod write;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use serde_json::json;
use triad_engine::package::preparation::LayerBits;
use triad_engine::package::tensors::Formats;
use triad_engine::package::vision::PackagedVision;
use triad_engine::package::{
    FORMAT, FileDigest, MANIFEST, MANIFEST_DIGEST, Manifest, PLAIN_FORMAT, Package, WEIGHTS, sha256,
};
use triad_engine::quantization::{LinearFormat, WeightBits};
use triad_engine::weights::Linear;
use triad_engine::{Cancel, LoadOptions, Model};
use triad_kernels::BlockArithmetic;
use triad_kernels::int8;
use triad_model::checkpoint::Checkpoint;
use triad_model::description::ModelDescription;
use triad_model::{Error, ErrorKind};

use crate::Preparation;
use crate::calibration::{self, Calibration};
use crate::error::Result;
use crate::int4::moments::Moments;
use crate::int4::sensitivity::Sensitivities;
use crate::int4::{Rounding, budget, round_output};
use output::write_file;
use part::{Opened, Part};
pub use part::{UNFINISHED, is_being_prepared, is_in_use};
pub use recipe::{Existing, Progress, Recipe};
use recipe::{name_of, program};
use resume::{Saved, State};
use vision::Encoder;
use write::LinearPlan;

/// Files by name.
type Source = BTreeMap<String, FileDigest>;

/// A package that was made or found.
#[derive(Debug)]
pub struct Prepared {
    /// The package.
    pub package: Package,
    /// Whether this run made it; otherwise it was there, or another process made it meanwhile.
    pub is_new: bool,
    /// Tokens that this run calibrated on, and the seconds for them: zeros if it resumed after a complete calibration.
    pub calibrated: (usize, f64),
}

/// Prepares a model by `recipe`; afterwards, `destination` has the complete package, or none.
///
/// # Errors
/// If the model cannot run, there are too few texts, files cannot be written, or `cancel` is set. The state of the
/// calibration on text is kept in `destination` + `.part`, and the next preparation with the same input continues from there.
pub fn prepare(
    recipe: &Recipe,
    destination: &Path,
    cancel: &Cancel,
    progress: &mut dyn FnMut(Progress),
) -> Result<Prepared> {
    let model = recipe.checkpoint.description();
    if model.is_encoder() || model.head.is_some() {
        let message = "an encoder or a model with layers after pooling cannot be prepared: it runs as it is stored";
        return Err(Error::new(ErrorKind::Unsupported, message).into());
    }
    if model.has_expert_branches() {
        let message = "experts next to a dense feed-forward cannot be prepared: the model runs as it is stored";
        return Err(Error::new(ErrorKind::Unsupported, message).into());
    }
    let plan = &recipe.options.plan;
    if let Some(bits) = plan.bits {
        if !bits.is_finite() || plan.linears != LinearFormat::W4a16 {
            let message = format!(
                "the plan has {bits} bits per weight, expected a finite number, and layers in W4A16"
            );
            return Err(Error::new(ErrorKind::Unsupported, message).into());
        }
        budget::check(model, bits)?;
    }
    let opened = Part::open(destination, recipe.existing, cancel, &mut || {
        progress(Progress::Waiting);
    })?;
    let Opened::Part(part) = opened else {
        return Ok(Prepared {
            package: Package::open(destination)?,
            is_new: false,
            calibrated: (0, 0.0),
        });
    };
    progress(Progress::Loading);
    // The statistics must not depend on this processor's rounding.
    let load = LoadOptions {
        threads: recipe.threads.clone(),
        block_arithmetic: BlockArithmetic::Exact,
        ..LoadOptions::default()
    };
    let model = Arc::new(Model::from_checkpoint(&recipe.checkpoint, &load)?);
    let files = source(&recipe.checkpoint)?;
    // A picture that cannot be read is found before the text is calibrated.
    let encoder = match &recipe.pictures {
        Some(pictures) => {
            let encoder = Encoder::open(recipe, pictures, (&model, &files))?;
            let decided = encoder.decide(&model, &part, cancel, progress)?;
            Some((encoder, decided))
        }
        None => None,
    };
    let source: Source = files
        .iter()
        .map(|(path, it)| (name_of(path), it.clone()))
        .collect();
    let text = calibration::split(&model, &recipe.text, recipe.options.tokens)?;
    let calibrated = Cell::new((0, 0.0));
    let run = Run {
        calibrated: &calibrated,
        model: &model,
        recipe,
        source: &source,
        text: &text,
        part: &part,
        cancel,
    };
    let (linears, preparation) = run.plan(progress)?;
    let head = head::of(&model);
    let written = (&*model, head);
    let formats = write::weights(written, linears, plan, &part, cancel, progress)?;
    let vision = match encoder {
        Some((encoder, decided)) => Some(encoder.write(&model, decided, &part, cancel)?),
        None => None,
    };
    model.check_unchanged()?;
    let described = ModelDescription {
        mtp: recipe
            .checkpoint
            .description()
            .mtp
            .clone()
            .filter(|_| head.is_some()),
        ..recipe.checkpoint.description().clone()
    };
    write_rest(
        (recipe, described),
        &part,
        source,
        (formats, preparation),
        vision,
    )?;
    cancel.check()?;
    part.finish()?;
    Ok(Prepared {
        package: Package::open(destination)?,
        is_new: true,
        calibrated: calibrated.get(),
    })
}

/// Returns the files of the model.
fn source(checkpoint: &Checkpoint) -> Result<Vec<(PathBuf, FileDigest)>> {
    let digest = |path: &Path| Ok((path.to_owned(), FileDigest::of_file(path)?));
    checkpoint.files().map(digest).collect()
}

/// The input that all calibrations of one preparation share.
#[derive(Clone, Copy)]
struct Run<'a> {
    model: &'a Arc<Model>,
    recipe: &'a Recipe,
    source: &'a Source,
    /// The pieces to calibrate on, and those that are held out.
    text: &'a [Vec<Vec<u32>>; 2],
    part: &'a Part,
    cancel: &'a Cancel,
    /// Tokens and seconds of all calibrations so far.
    calibrated: &'a Cell<(usize, f64)>,
}

impl<'a> Run<'a> {
    /// Returns how linear layers are quantized, and the decisions of the package.
    fn plan(self, progress: &mut dyn FnMut(Progress)) -> Result<(LinearPlan<'a>, Preparation)> {
        let Self {
            model,
            recipe,
            text: [pieces, held_out],
            cancel,
            ..
        } = self;
        match recipe.options.plan.linears {
            LinearFormat::W8a8 => {
                let calibration = self.calibrate(progress)?;
                progress(Progress::Deciding);
                let (options, held_out) = (&recipe.options, &held_out[..]);
                let preparation = crate::decide(model, &calibration, held_out, options, cancel)?;
                let quantization = preparation.quantization().expect("W8A8 has a plan");
                Ok((LinearPlan::W8a8(quantization), preparation))
            }
            LinearFormat::W4a16 => {
                let layers = match recipe.options.plan.bits {
                    Some(budget) => self.decide_bits(budget, progress)?,
                    None => Vec::new(),
                };
                let description = model.description();
                let bits = (!layers.is_empty()).then(|| write::bits_of(description, &layers));
                let preparation = Preparation {
                    options: recipe.options,
                    calibration_text: recipe.text.name.clone(),
                    calibration_tokens: pieces.iter().chain(held_out).map(Vec::len).sum(),
                    pruned: 0.0,
                    inputs: Vec::new(),
                    layers,
                };
                let plan = &preparation.options.plan;
                let linears = LinearPlan::W4a16 {
                    rounding: None,
                    next: Box::new(move |block, progress| self.round(block, progress)),
                    round_output: Box::new(move |bits, progress| self.round_output(bits, progress)),
                    key: self.key(&json!({
                        "journal": write::JOURNAL_FORMAT, "plan": plan, "layers": preparation.layers,
                    })),
                    bits,
                };
                Ok((linears, preparation))
            }
        }
    }

    /// Calibrates for W8A8.
    fn calibrate(self, progress: &mut dyn FnMut(Progress)) -> Result<Calibration> {
        let (model, text) = (self.model, &self.text[0]);
        let fresh = || Calibration::new(model.description(), &self.recipe.text.name);
        let path = self.part.path(Part::CALIBRATION);
        let (saved, mut calibration) = Saved::resume(self.key(&json!(null)), path, fresh);
        let mut seen = Seen::new(saved, calibration.tokens, text, progress);
        let run = calibration.run(model, text, self.cancel, |seen_so_far| {
            seen.piece(seen_so_far, seen_so_far.tokens)
        });
        let has_any = (calibration.pieces, calibration.counted) != (0, 0);
        self.count(seen.end(run, &calibration, calibration.tokens, has_any)?);
        Ok(calibration)
    }

    /// Decides the bits of all layers, for at most `budget` bits per weight.
    fn decide_bits(
        self,
        budget: f64,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Vec<LayerBits>> {
        let fresh = || Sensitivities::new(self.model.description());
        let path = self.part.path(Part::SENSITIVITIES);
        let key = self.key(&json!("sensitivities"));
        let (mut saved, mut measured) = Saved::resume(key, path, fresh);
        let mut show = |measured: &Sensitivities| {
            let (done, total) = (measured.divergences().len(), measured.layers());
            progress(Progress::Measuring { done, total });
        };
        show(&measured);
        let run = measured.run(self.model, self.text, self.cancel, |measured| {
            show(measured);
            if let Err(error) = saved.keep(measured) {
                tracing::warn!("the measured layers are not saved: {error}");
            }
            Ok(())
        });
        // The text is calibrated next, which may be interrupted, too.
        if !measured.divergences().is_empty()
            && let Err(error) = saved.save(&measured)
        {
            tracing::warn!("the measured layers are not saved: {error}");
        }
        run?;
        budget::decide(self.model, &measured, budget)
    }

    /// Computes the second moments for W4A16, of as many blocks from `first` on as fit into memory.
    fn round(self, first: usize, progress: &mut dyn FnMut(Progress)) -> Result<Rounding> {
        let fresh = || Moments::new(self.model.description(), first, self.recipe.moment_memory);
        let key = self.key(&json!({"first": first, "blocks": fresh().blocks()}));
        let path = self.part.path(Part::CALIBRATION);
        let (saved, mut moments) = Saved::resume(key, path, fresh);
        let mut seen = Seen::new(saved, moments.tokens, self.text.iter().flatten(), progress);
        let run = moments.run(self.model, self.text, self.cancel, |seen_so_far| {
            seen.piece(seen_so_far, seen_so_far.tokens)
        });
        let has_any = (moments.pieces, moments.counted) != (0, 0);
        self.count(seen.end(run, &moments, moments.tokens, has_any)?);
        Ok(Rounding::new(self.model, moments))
    }

    /// Rounds the output matrix to these bits, which a budget gave it.
    fn round_output(self, bits: WeightBits, progress: &mut dyn FnMut(Progress)) -> Result<Linear> {
        let total = self.text.iter().flatten().map(Vec::len).sum();
        let mut progress = |done| progress(Progress::Calibrating { done, total });
        round_output(self.model, self.text, bits, self.cancel, &mut progress)
    }

    /// Adds the tokens and seconds of a calibration.
    fn count(self, (tokens, seconds): (usize, f64)) {
        let (all_tokens, all_seconds) = self.calibrated.get();
        self.calibrated
            .set((all_tokens + tokens, all_seconds + seconds));
    }

    /// Returns the key of everything that affects a calibration: float kernels differ in the last bits. `moments` are the
    /// blocks whose moments are computed, null for the statistics of W8A8.
    fn key(self, moments: &serde_json::Value) -> String {
        let kernels = format!("{:?}", triad_kernels::kernel_names());
        let pieces = match moments.is_null() {
            true => json!(self.text[0]),
            false => json!(self.text),
        };
        let key = json!({
            "program": program(), "source": self.source, "pieces": pieces, "kernels": kernels, "moments": moments,
        });
        sha256(key.to_string().as_bytes())
    }
}

/// A calibration under way: shows its progress and saves its state from time to time.
struct Seen<'a> {
    saved: Saved,
    resumed: usize,
    total: usize,
    start: Instant,
    progress: &'a mut dyn FnMut(Progress),
}

impl<'a> Seen<'a> {
    fn new<'t>(
        saved: Saved,
        resumed: usize,
        pieces: impl IntoIterator<Item = &'t Vec<u32>>,
        progress: &'a mut dyn FnMut(Progress),
    ) -> Self {
        let total = pieces.into_iter().map(Vec::len).sum();
        progress(Progress::Calibrating {
            done: resumed,
            total,
        });
        Self {
            saved,
            resumed,
            total,
            start: Instant::now(),
            progress,
        }
    }

    /// Tells that another piece is counted in `state`, `tokens` in all.
    fn piece<S: State>(&mut self, state: &S, tokens: usize) -> Result<()> {
        (self.progress)(Progress::Calibrating {
            done: tokens,
            total: self.total,
        });
        // A disk without room for the state may have room for the package.
        if let Err(error) = self.saved.keep(state) {
            tracing::warn!("the state of the calibration is not saved: {error}");
        }
        Ok(())
    }

    /// Saves `state` if its `run` failed and it `has_any` observations; returns [`Prepared::calibrated`].
    fn end<S: State>(
        mut self,
        run: Result<()>,
        state: &S,
        tokens: usize,
        has_any: bool,
    ) -> Result<(usize, f64)> {
        if run.is_err()
            && has_any
            && let Err(error) = self.saved.save(state)
        {
            tracing::warn!("the state of the calibration is not saved: {error}");
        }
        run?;
        let seconds = self.start.elapsed().as_secs_f64();
        Ok((tokens - self.resumed, seconds))
    }
}

/// Writes everything except the weights, `package.json` last.
fn write_rest(
    (recipe, model): (&Recipe, ModelDescription),
    part: &Part,
    source: Source,
    (formats, preparation): (Formats, Preparation),
    vision: Option<(PackagedVision, Source)>,
) -> Result<()> {
    let mut files = BTreeMap::from([(
        WEIGHTS.to_owned(),
        FileDigest::of_file(&part.path(WEIGHTS))?,
    )]);
    for (name, content) in recipe.checkpoint.text_files()? {
        write_file(part, name, &content)?;
        files.insert(
            name.into(),
            FileDigest {
                bytes: content.len() as u64,
                sha256: sha256(&content),
            },
        );
    }
    let vision = vision.map(|(vision, of_vision)| {
        files.extend(of_vision);
        Box::new(vision)
    });
    let manifest = Manifest {
        format: match model.mtp.is_some() || preparation.options.plan.bits.is_some() {
            true => FORMAT,
            false => PLAIN_FORMAT,
        },
        made_by: program(),
        layout: int8::LAYOUT.into(),
        source,
        model,
        embedding: formats.embedding.name().into(),
        output: formats.output.name().into(),
        token_inputs: formats
            .token_inputs
            .map(|formats| [formats.table.name().into(), formats.matrices.name().into()]),
        vision,
        generation: recipe.checkpoint.generation_defaults().clone(),
        preparation,
        files,
    };
    let mut json = serde_json::to_vec_pretty(&manifest).expect("a manifest is plain data");
    json.push(b'\n');
    write_file(
        part,
        MANIFEST_DIGEST,
        format!("{}  {MANIFEST}\n", sha256(&json)).as_bytes(),
    )?;
    write_file(part, MANIFEST, &json)
}
