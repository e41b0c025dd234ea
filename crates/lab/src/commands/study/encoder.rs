//! `triad-lab study encoder`: measures how much INT8 changes an encoder of pictures.

use std::path::PathBuf;

use anyhow::{Context, Result};
use serde::Serialize;
use triad_lab::measured::encoder::{self, EncoderStudy, Measured, Method};
use triad_prepare::calibration::pictures::CalibrationPictures;

use super::{OutputArguments, Report, percent, title_of};
use triad_console::arguments::ModelArguments;
use triad_console::chart::{Axis, Chart, Figure, Mark, Panel, Series};
use triad_console::vision::VisionArguments;
use triad_console::{output, progress};

/// Quantize an encoder of pictures in several ways, and measure its rows and the logits computed from them.
///
/// Three of four pictures calibrate, as by `triad prepare --calibrate-images`; the methods are measured on views of the
/// others. Rows and logits are compared with those of the encoder in float. The text model is in float throughout.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  triad-lab study encoder -m SmolVLM-256M-Instruct --images screens
  triad-lab study encoder -m model.gguf --mmproj mmproj.gguf --images screens --json > encoder.json")]
pub struct Arguments {
    #[command(flatten)]
    model: ModelArguments,
    #[command(flatten)]
    vision: VisionArguments,
    /// Folder of pictures, at least eight
    #[arg(long, value_name = "FOLDER")]
    images: PathBuf,
    /// Text of the prompt with each picture
    #[arg(long, value_name = "TEXT", default_value = "What is on this screen?")]
    prompt: String,
    #[command(flatten)]
    output: OutputArguments,
}

#[derive(Serialize)]
struct Found {
    model: String,
    #[serde(flatten)]
    study: EncoderStudy,
}

/// Measures and prints.
pub fn run(arguments: &Arguments) -> Result<()> {
    let name = &arguments.model.name.model;
    let path = arguments.model.name.path()?;
    let encoder = arguments.vision.encoder(&path).with_context(|| {
        format!("{name} has no encoder of pictures that Triad runs: expected one, of a GGUF file by --mmproj")
    })?;
    let pictures = CalibrationPictures::of_folder(&arguments.images, &encoder)?;
    let model = arguments.model.load_float()?;
    let model = std::sync::Arc::into_inner(model).context("the model is used elsewhere")?;
    let tokens = model.encode_prompt(&arguments.prompt)?;
    arguments.output.show(name, |cancel| {
        let bar = progress::pictures("calibrating", 0);
        let show = |done, total| bar.set_to(done, total);
        let study = encoder::study(model, &pictures, &tokens, cancel, show)?;
        Ok(Found {
            model: name.clone(),
            study,
        })
    })
}

fn name_of(method: Method) -> &'static str {
    match method {
        Method::Float => "float",
        Method::MaxMin => "max-min, no shadows",
        Method::Clipped => "clipped, no shadows",
        Method::WithoutShadows => "smoothed, no shadows",
        Method::Paper => "85 % pruned",
        Method::Auto => "auto",
        Method::AllShadows => "all shadows",
    }
}

impl Report for Found {
    fn text(&self) -> String {
        let names = [
            "method",
            "shadows",
            "cosine of rows",
            "least",
            "rows differ by",
            "logits differ by",
            "same token",
            "s per view",
        ];
        let cells = |measured: &Measured| {
            vec![
                name_of(measured.method).to_owned(),
                measured.shadows.to_string(),
                format!("{:.5}", measured.cosine),
                format!("{:.5}", measured.least_cosine),
                percent(measured.rows_difference, 2),
                percent(measured.logits_difference, 2),
                percent(measured.same_token, 0),
                format!("{:.2}", measured.seconds_per_view),
            ]
        };
        let EncoderStudy {
            family,
            pictures,
            calibrated,
            views,
            inputs,
            methods,
        } = &self.study;
        let rows: Vec<_> = methods.iter().map(cells).collect();
        format!(
            "{}, encoder {family}, calibrated on {calibrated} pictures ({pictures}), measured on {views} views of others; {inputs} linear inputs\n\n{}",
            self.model,
            output::table(&names, 1, &rows)
        )
    }

    fn figure(&self) -> Figure {
        let methods = self.study.methods.iter();
        let methods: Vec<_> = methods.filter(|it| it.method != Method::Float).collect();
        let panel = |title: &str, of: &dyn Fn(&Measured) -> f64| {
            let values: Vec<_> = methods
                .iter()
                .map(|measured| 100.0 * of(measured))
                .collect();
            Panel::Chart(Chart {
                title: title.into(),
                x: Axis::categories("", methods.iter().map(|it| name_of(it.method))),
                y: Axis::linear("difference to float (%)").covering(0.0, 0.0),
                series: vec![Series::by_category("W8A8", Mark::Bars, values)],
                guides: Vec::new(),
            })
        };
        Figure {
            title: format!("Encoder of {} in INT8", title_of(&self.model)),
            panels: vec![
                panel("Rows", &|measured| measured.rows_difference),
                panel("Logits", &|measured| measured.logits_difference),
            ],
            columns: 2,
        }
    }
}
