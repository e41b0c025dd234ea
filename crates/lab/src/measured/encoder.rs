//! How much INT8 changes an encoder of pictures: the rows that it makes, and the logits of the text model that reads them.

use std::sync::Arc;
use std::time::Instant;

use serde::Serialize;
use triad_engine::quantization::Quantization;
use triad_engine::vision::VisionModel;
use triad_engine::{Cancel, Engine, EngineOptions, Model, PrefixSalt, SessionOptions};
use triad_kernels::BlockArithmetic;
use triad_prepare::calibration::Calibration;
use triad_prepare::calibration::pictures::{CalibrationPictures, HeldOutView, pixels};
use triad_prepare::plan::{self, PlanOptions};
use triad_prepare::vision::{self, cosine};
use triad_prepare::{PrepareOptions, Prune, baselines};

use crate::error::Result;

/// A way to quantize an encoder.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Method {
    /// Not at all.
    Float,
    /// Scales by the largest magnitudes, without shadows.
    MaxMin,
    /// As `triad prepare` does it, without shadows and without smoothing: outliers are clipped.
    Clipped,
    /// As `triad prepare` does it, without shadows.
    WithoutShadows,
    /// With 85 % of the shadows pruned, as in the paper.
    Paper,
    /// With as many shadows pruned as the budget allows.
    Auto,
    /// With all shadows.
    AllShadows,
}

impl Method {
    /// All methods, in the order in which they are measured.
    pub const ALL: [Self; 7] = [
        Self::Float,
        Self::MaxMin,
        Self::Clipped,
        Self::WithoutShadows,
        Self::Paper,
        Self::Auto,
        Self::AllShadows,
    ];
}

/// An encoder that was quantized in one way.
#[derive(Clone, Debug, Serialize)]
pub struct Measured {
    /// The way.
    pub method: Method,
    /// Number of inputs with a shadow.
    pub shadows: usize,
    /// Mean cosine of the rows to those in float.
    pub cosine: f64,
    /// Least cosine of a row.
    pub least_cosine: f64,
    /// Norm of the rows' difference to those in float, relative to the norm of these.
    pub rows_difference: f64,
    /// The same of the logits of the last token of a prompt with the picture; the text model is in float.
    pub logits_difference: f64,
    /// Share of these prompts after which the most probable token is that in float.
    pub same_token: f64,
    /// Mean seconds in which a view is encoded.
    pub seconds_per_view: f64,
}

/// The results of a study.
#[derive(Clone, Debug, Serialize)]
pub struct EncoderStudy {
    /// Family of the encoder.
    pub family: String,
    /// Name of the calibration pictures.
    pub pictures: String,
    /// Number of pictures that calibrated.
    pub calibrated: usize,
    /// Number of views on which it was measured, of other pictures.
    pub views: usize,
    /// Linear inputs of the encoder; each has its own shadow.
    pub inputs: usize,
    /// The results.
    pub methods: Vec<Measured>,
}

/// Calibrates the encoder of `pictures` for the float `model`, and measures it in each way on the pictures that are held
/// out. `tokens` are those of the text around a picture, which comes after the first of them. `progress` is called with the
/// number of processed pictures and the total.
///
/// # Errors
/// If `cancel` is set, there are too few pictures, one cannot be read, or the encoder is of another model.
pub fn study(
    model: Model,
    pictures: &CalibrationPictures,
    tokens: &[u32],
    cancel: &Cancel,
    mut progress: impl FnMut(usize, usize),
) -> Result<EncoderStudy> {
    let load = |model: &Model| {
        let (path, text) = (&pictures.encoder, model.description());
        VisionModel::load(path, text, BlockArithmetic::Exact)
    };
    let float = load(&model)?;
    let mut calibration = Calibration::of_encoder(&float, &pictures.name);
    let mut progress = |_: &Calibration, done, total| {
        progress(done, total);
        Ok(())
    };
    let held_out = pictures.calibrate((&model, &float), &mut calibration, cancel, &mut progress)?;
    // `auto` chooses on other views than those that are measured.
    let half = held_out.len() / 2;
    let (chosen_on, held_out) = held_out.split_at(half);
    if chosen_on.is_empty() {
        return Err(triad_engine::Error::Option {
            name: "the number of calibration pictures",
            value: pictures.files.len().to_string(),
            expected: "at least 8: every fourth is held out, and half of those choose for auto",
        }
        .into());
    }
    let mut found = EncoderStudy {
        family: float.description().family.clone(),
        pictures: pictures.name.clone(),
        calibrated: calibration.pieces,
        views: held_out.len(),
        inputs: calibration.inputs().count(),
        methods: Vec::new(),
    };
    let (mut model, mut expected) = (model, Vec::new());
    for method in Method::ALL {
        let plan = plan_of(method, (&model, &float), &calibration, chosen_on, cancel)?;
        let encoder = match &plan {
            Some(plan) => model.install(|| float.quantize(plan, None)),
            None => load(&model)?,
        };
        let measured = Arc::new(model.with_vision(encoder));
        let (rows, logits, seconds) = run(&measured, held_out, tokens, cancel)?;
        if method == Method::Float {
            expected = logits.clone();
        }
        let width = measured.vision()?.description().width;
        let of_float = held_out.iter().map(|view| &view.rows[..]);
        let cosines: Vec<f64> = rows
            .iter()
            .zip(of_float.clone())
            .flat_map(|(rows, expected)| {
                let pairs = rows.chunks_exact(width).zip(expected.chunks_exact(width));
                pairs.map(|(row, expected)| cosine(row, expected))
            })
            .collect();
        let same = logits.iter().zip(&expected);
        let same = same.filter(|(one, other)| largest(one) == largest(other));
        found.methods.push(Measured {
            method,
            shadows: plan.as_ref().map_or(0, Quantization::shadows),
            cosine: cosines.iter().sum::<f64>() / cosines.len() as f64,
            least_cosine: cosines.iter().copied().fold(1.0, f64::min),
            rows_difference: difference(rows.iter().map(Vec::as_slice).zip(of_float)),
            logits_difference: difference(
                logits
                    .iter()
                    .map(Vec::as_slice)
                    .zip(expected.iter().map(Vec::as_slice)),
            ),
            same_token: same.count() as f64 / logits.len() as f64,
            seconds_per_view: seconds / held_out.len() as f64,
        });
        model = Arc::into_inner(measured).expect("engines and sessions have ended");
    }
    Ok(found)
}

/// Returns the plan of a method; `None` for float.
fn plan_of(
    method: Method,
    (model, float): (&Model, &VisionModel),
    calibration: &Calibration,
    held_out: &[HeldOutView],
    cancel: &Cancel,
) -> Result<Option<Quantization>> {
    let usual = PrepareOptions::default();
    let pruned = |prune, plan| PrepareOptions {
        prune,
        plan,
        ..usual
    };
    let cut = PlanOptions {
        smoothing: 0.0,
        ..usual.plan
    };
    let options = match method {
        Method::Float => return Ok(None),
        Method::MaxMin => return Ok(Some(baselines::w8a8(calibration))),
        Method::Clipped => pruned(Prune::Rate(1.0), cut),
        Method::WithoutShadows => pruned(Prune::Rate(1.0), usual.plan),
        Method::Paper => pruned(Prune::PAPER, usual.plan),
        Method::Auto => pruned(Prune::AUTO, usual.plan),
        Method::AllShadows => pruned(Prune::Rate(0.0), usual.plan),
    };
    let decided = vision::decide(model, float, calibration, held_out, &options, cancel)?;
    let plan = plan::quantization(&decided.inputs, &options.plan);
    Ok(Some(plan))
}

/// Values by view.
type OfViews = Vec<Vec<f32>>;

/// Encodes the views, and runs a prompt with each. Returns rows, logits of the last token, and the seconds of encoding.
fn run(
    model: &Arc<Model>,
    views: &[HeldOutView],
    tokens: &[u32],
    cancel: &Cancel,
) -> Result<(OfViews, OfViews, f64)> {
    let most = views.iter().map(|view| view.rows.len()).max().unwrap_or(0);
    let most = most / model.vision()?.description().width + tokens.len();
    let options = EngineOptions {
        session: SessionOptions {
            context: most.min(model.description().context),
            ..SessionOptions::default()
        },
        ..EngineOptions::default()
    };
    let engine = Engine::new(model, &options)?;
    let (mut rows, mut logits, mut seconds) = (Vec::new(), Vec::new(), 0.0);
    for HeldOutView { view, .. } in views {
        let start = Instant::now();
        let picture = engine.picture(pixels(view), PrefixSalt::default(), cancel)?;
        seconds += start.elapsed().as_secs_f64();
        let mut session = engine.session();
        session.hold(&picture);
        let (first, rest) = tokens.split_at(tokens.len().min(1));
        let prompt: Vec<u32> = first
            .iter()
            .copied()
            .chain(picture.tokens())
            .chain(rest.iter().copied())
            .collect();
        logits.push(session.prefill(&prompt, cancel, |_| {})?.to_vec());
        rows.push(picture.values().to_vec());
    }
    Ok((rows, logits, seconds))
}

/// Returns the norm of the differences, relative to the norm of the second ones.
fn difference<'a>(pairs: impl Iterator<Item = (&'a [f32], &'a [f32])>) -> f64 {
    let (mut apart, mut all) = (0.0, 0.0);
    for (found, expected) in pairs {
        for (found, expected) in found.iter().zip(expected) {
            apart += f64::from(found - expected).powi(2);
            all += f64::from(*expected).powi(2);
        }
    }
    match all > 0.0 {
        true => (apart / all).sqrt(),
        false => 0.0,
    }
}

/// Returns the index of the largest number.
fn largest(values: &[f32]) -> Option<usize> {
    let values = values.iter().enumerate();
    values
        .max_by(|one, other| one.1.total_cmp(other.1))
        .map(|(index, _)| index)
}
