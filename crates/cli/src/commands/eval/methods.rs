//! The methods of computing a model that `triad eval` compares.

use std::sync::Arc;

use anyhow::{Result, ensure};
use clap::ValueEnum;
use triad_engine::{Cancel, Model};
use triad_prepare::calibration::Calibration;
use triad_prepare::{PrepareOptions, Prune, Quantized};

use triad_console::arguments;

/// How the linear layers are computed.
#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Method {
    /// f32, with the weights of the file
    Float,
    /// INT8, one scale for all activations of an input, from the largest one
    W8a8,
    /// INT8 with shadow outliers, as in `triad prepare`
    Shadow,
    /// INT8 as W8A8, with difficult channels scaled down (SmoothQuant)
    #[value(name = "smoothquant")]
    SmoothQuant,
    /// INT8, one scale for each token, outlier channels in float (LLM.int8())
    #[value(name = "llm.int8")]
    LlmInt8,
    /// INT4 weights and float activations, as in `triad prepare --weights int4`
    W4a16,
}

/// The arguments that choose methods.
#[derive(clap::Args)]
pub struct MethodArguments {
    /// Method of the linear layers; several, separated by commas, are compared, float first [default: float; a package
    /// as it was prepared]
    #[arg(long, value_enum, value_delimiter = ',')]
    method: Vec<Method>,
    /// Shadows that --method shadow leaves out: a share of them from 0 to 1, the least important first; none; or auto,
    /// as many as a loss of 0.3 % on held-out text allows; several, separated by commas, are compared [default: auto]
    #[arg(long, value_name = "RATE|none|auto", value_parser = arguments::prune, value_delimiter = ',')]
    prune: Vec<Prune>,
    /// Smoothing of inputs without a shadow in --method shadow, from 0, none, to 1 [default: 0.7]
    #[arg(long, value_name = "SHARE", value_parser = arguments::share)]
    smoothing: Option<f64>,
}

/// A method with its options.
pub struct Variant {
    /// The method's name on the command line; `package` for a prepared model.
    pub method: &'static str,
    /// The method's name with the other options.
    pub label: String,
    /// The quantization; `None` for the model as it is.
    quantized: Option<(triad_prepare::Method, PrepareOptions)>,
}

impl Method {
    fn name(self) -> &'static str {
        match self {
            Self::Float => "float",
            Self::W8a8 => "w8a8",
            Self::Shadow => "shadow",
            Self::SmoothQuant => "smoothquant",
            Self::LlmInt8 => "llm.int8",
            Self::W4a16 => "w4a16",
        }
    }

    fn variant(self, options: PrepareOptions) -> Variant {
        let quantized = match self {
            Self::Float => None,
            Self::W8a8 => Some(triad_prepare::Method::W8a8),
            Self::Shadow => Some(triad_prepare::Method::Shadow),
            Self::SmoothQuant => Some(triad_prepare::Method::SmoothQuant),
            Self::LlmInt8 => Some(triad_prepare::Method::LlmInt8),
            Self::W4a16 => Some(triad_prepare::Method::W4a16),
        };
        let label = match (self, options.prune) {
            (Self::Shadow, Prune::Auto { .. }) => "shadow, prune auto".into(),
            (Self::Shadow, Prune::Rate(0.0)) => "shadow, prune none".into(),
            (Self::Shadow, Prune::Rate(rate)) => format!("shadow, prune {rate}"),
            _ => self.name().into(),
        };
        Variant {
            method: self.name(),
            label,
            quantized: quantized.map(|method| (method, options)),
        }
    }
}

impl MethodArguments {
    /// Returns every chosen variant once. The float model is first, since the others are compared with it.
    pub fn variants(&self) -> Result<Vec<Variant>> {
        let shadow = self.method.contains(&Method::Shadow);
        ensure!(
            self.prune.is_empty() || shadow,
            "--prune is for --method shadow"
        );
        ensure!(
            self.smoothing.is_none() || shadow,
            "--smoothing is for --method shadow"
        );
        let rates = if self.prune.is_empty() {
            &[Prune::default()][..]
        } else {
            &self.prune
        };
        let mut variants: Vec<Variant> = Vec::new();
        let methods = if self.method.is_empty() {
            &[Method::Float][..]
        } else {
            &self.method
        };
        for method in methods {
            // Only shadows are pruned. The other methods have one variant.
            let rates = if *method == Method::Shadow {
                rates
            } else {
                &rates[..1]
            };
            for variant in rates.iter().map(|rate| method.variant(self.options(*rate))) {
                if !variants.iter().any(|other| other.label == variant.label) {
                    variants.push(variant);
                }
            }
        }
        variants.sort_by_key(|variant| !variant.is_float());
        Ok(variants)
    }

    fn options(&self, prune: Prune) -> PrepareOptions {
        let mut options = PrepareOptions {
            prune,
            ..PrepareOptions::default()
        };
        if let Some(smoothing) = self.smoothing {
            options.plan.smoothing = smoothing as f32;
        }
        options
    }

    /// Returns the single variant of a package. `name` is the user's name for it.
    pub fn package(&self, name: &str) -> Result<Variant> {
        ensure!(
            self.method.is_empty() && self.prune.is_empty() && self.smoothing.is_none(),
            "{name} is a package, which is quantized already: expected no --method, --prune or --smoothing"
        );
        Ok(Variant::as_it_is("package"))
    }
}

impl Variant {
    /// Returns the variant of a model that is not quantized here.
    pub fn as_it_is(method: &'static str) -> Self {
        Self {
            method,
            label: method.into(),
            quantized: None,
        }
    }

    /// Returns whether this is the model in float.
    pub fn is_float(&self) -> bool {
        self.method == Method::Float.name()
    }

    /// Returns whether the share of pruned shadows was given, and is therefore in the label.
    pub fn has_rate(&self) -> bool {
        self.quantized
            .is_some_and(|(_, options)| matches!(options.prune, Prune::Rate(_)))
    }

    /// Returns whether this variant needs statistics of a calibration text.
    pub fn calibrates(&self) -> bool {
        self.quantized
            .is_some_and(|(method, _)| method.calibrates())
    }

    /// Returns the model computed by this variant.
    pub fn quantize(
        &self,
        model: &Arc<Model>,
        (calibration, text): &(Calibration, [Vec<Vec<u32>>; 2]),
        cancel: &Cancel,
    ) -> triad_prepare::Result<Quantized> {
        let Some((method, options)) = self.quantized else {
            return Ok(Quantized {
                model: Arc::clone(model),
                preparation: None,
            });
        };
        method.quantize(model, calibration, text, &options, cancel)
    }
}
