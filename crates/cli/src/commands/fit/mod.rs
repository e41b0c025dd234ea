//! `triad fit`: predicts from the header of a model's file whether the model fits, how fast it runs and in which form.
//!
//! [`forms`] reads the header of the model's file. [`rates`] measures the [`operators`] of its blocks on weights from
//! an [`arena`], and [`predict`] adds the times up. [`phone`] simulates the profile of a device instead of measuring.
//! [`report`] prints.

mod arena;
mod forms;
mod operators;
mod phone;
mod picture;
mod predict;
mod rates;
mod report;

use anyhow::{Context, Result, bail};
use triad_engine::memory::{self, Memory};
use triad_engine::{Error, KvFormat, Threads};
use triad_frontend::machine::Machine;
use triad_kernels::peak;
use triad_kernels::pool::Pool;
use triad_model::description::ModelDescription;
use triad_model::{family, fetch};
use triad_plan::device::{DeviceProfile, Float};

use super::bench::limit::{Limit, Operations, cache_bytes};
use forms::{Product, Subject, WeightFormat};
use picture::{Picture, Size};
use predict::{Parts, Predictor};
use rates::Rates;
use report::{Decode, Needs, Prediction, Prompt, Report, Source};
use triad_console::arguments::{self, KvArgument, MAX_CHUNKS, ModelArgument, ThreadArguments};
use triad_console::arithmetic::Arithmetic;
use triad_console::device::DeviceArguments;
use triad_console::device_profile;
use triad_console::vision::VisionArguments;
use triad_console::{output, progress};

/// Predict whether a model runs here, how fast, and in which form, without loading it.
///
/// Memory and bytes are computed from the header of the model's file. Times are predicted: every kernel is measured for
/// some milliseconds on the model's shapes, and the time of a prompt or a token is the sum over its operators. For a
/// GPU the times are a lower bound, from its peak arithmetic and bandwidth. With --device, nothing is measured: the
/// profile of a phone is simulated.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  triad fit                                     the default model
  triad fit model.gguf --context 32768
  triad fit model.triad                         a package, in its own form
  triad fit --shape llama-2-7b                  a known shape, without a file
  triad fit --shape qwen1.5-1.8b --device snapdragon-8gen3 --memory 8
  triad fit model.gguf --mmproj mmproj.gguf --image 540x1200
  triad fit model.gguf --json")]
pub struct Arguments {
    /// Path of a package, GGUF file or safetensors folder, `smollm2-135m`, or `hf:owner/name[:file]`
    #[arg(value_name = "MODEL", default_value = fetch::DEFAULT_MODEL, conflicts_with = "shape")]
    model: String,
    /// Known shape to use instead of a file, with weights in bf16
    #[arg(long, value_name = "NAME", value_parser = clap::builder::PossibleValuesParser::new(family::SHAPES))]
    shape: Option<String>,
    /// Prompt lengths to predict, in tokens [default: 64,256,1024,4096, up to the model's context]
    #[arg(long, value_name = "N,...", value_delimiter = ',', value_parser = arguments::tokens)]
    prompt: Vec<usize>,
    /// Context lengths for memory and decode, in tokens [default: 1024,4096,16384 and the model's own]
    #[arg(long, value_name = "N,...", value_delimiter = ',', value_parser = arguments::tokens)]
    context: Vec<usize>,
    /// Tokens of a prompt that are computed together
    #[arg(long = "prefill-chunk", value_name = "N", default_value = "256", value_parser = arguments::tokens)]
    chunk: usize,
    #[command(flatten)]
    kv: KvArgument,
    /// Memory that the model may take, in GiB [default: what is available here; unknown for a phone]
    #[arg(long, value_name = "GIB", value_parser = arguments::gibibytes)]
    memory: Option<usize>,
    #[command(flatten)]
    vision: VisionArguments,
    /// Size of a picture to count, in pixels [default: 1080x2400, if the model reads pictures]
    #[arg(long, value_name = "WIDTHxHEIGHT")]
    image: Option<Size>,
    #[command(flatten)]
    threads: ThreadArguments,
    /// Phone to simulate instead of this machine: snapdragon-8gen3, snapdragon-8gen2, or a TOML file
    #[arg(long, value_name = "NAME", conflicts_with_all = ["threads", "cores"])]
    device: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

const PROMPTS: [usize; 4] = [64, 256, 1024, 4096];
/// The picture that is counted by default: a phone's screen.
const SCREEN: Size = Size {
    width: 1080,
    height: 2400,
};
const CONTEXTS: [usize; 3] = [1024, 4096, 16384];
/// Context length, in tokens, of the decode step of a short conversation.
const POSITION: usize = 64;

/// Runs `triad fit`.
pub fn run(arguments: &Arguments) -> Result<()> {
    let device = arguments
        .device
        .as_deref()
        .map(device_profile::device)
        .transpose()?;
    let (subject, encoder) = match &arguments.shape {
        Some(_) if arguments.vision.mmproj.is_some() => {
            bail!("--mmproj is for the file of a model, and --shape has none: leave out either")
        }
        Some(shape) => (Subject::of_shape(shape, family::shape(shape)?)?, None),
        None => {
            let model = arguments.model.clone();
            let path = ModelArgument { model }.path()?;
            let encoder = arguments.vision.encoder(&path);
            (Subject::open(&path, &arguments.model)?, encoder)
        }
    };
    let picture = match (encoder, arguments.image) {
        (Some(encoder), size) => Some(Picture::count(&encoder, size.unwrap_or(SCREEN))?),
        (None, None) => None,
        (None, Some(_)) => bail!(
            "--image: no encoder of pictures is known for the model, expected its folder or --mmproj"
        ),
    };
    if let Some(part) = subject.description.only_for_one_cpu() {
        let hints = [": `triad bench` measures it", ""];
        let hint = hints[usize::from(subject.description.is_encoder())];
        let model = &arguments.model;
        bail!("{model} {part}, whose speed `fit` does not predict{hint}");
    }
    let lengths = Lengths::new(arguments, &subject.description)?;
    let mut report = match &device {
        Some(device) => on_phone(&subject, &lengths, device, arguments.memory),
        None => here(&subject, &lengths, arguments)?,
    };
    report.picture = picture;
    if arguments.json {
        output::json(&report)
    } else {
        output::text(&report.to_string())
    }
}

/// Lengths and formats to predict for.
struct Lengths {
    prompts: Vec<usize>,
    contexts: Vec<usize>,
    chunk: usize,
    kv_format: KvFormat,
}

impl Lengths {
    fn new(arguments: &Arguments, description: &ModelDescription) -> Result<Self> {
        let longest = description.context;
        let given = |given: &[usize], usual: &[usize]| -> Result<Vec<usize>> {
            if let Some(asked) = given.iter().copied().find(|length| *length > longest) {
                return Err(Error::ContextTooLong { asked, longest }.into());
            }
            let fit = usual.iter().copied().filter(|length| *length <= longest);
            let mut all: Vec<_> = if given.is_empty() {
                fit.collect()
            } else {
                given.to_vec()
            };
            all.sort_unstable();
            all.dedup();
            Ok(all)
        };
        let prompts = given(
            &arguments.prompt,
            &[&PROMPTS[..], &[longest.min(PROMPTS[0])]].concat(),
        )?;
        let contexts = given(&arguments.context, &[&CONTEXTS[..], &[longest]].concat())?;
        for prompt in &prompts {
            arguments::check_chunks(*prompt, arguments.chunk, MAX_CHUNKS)?;
        }
        Ok(Self {
            prompts,
            contexts,
            chunk: arguments.chunk,
            kv_format: arguments.kv.format(),
        })
    }

    /// Returns the context lengths at which a decode step is predicted.
    fn positions(&self) -> Vec<usize> {
        let mut positions: Vec<_> = [POSITION]
            .into_iter()
            .chain(self.contexts.iter().copied())
            .collect();
        // A decode step needs room for one more token in the context.
        let last = self.contexts.last().copied().unwrap_or(1);
        positions
            .iter_mut()
            .for_each(|position| *position = (*position).min(last.saturating_sub(1)));
        positions.sort_unstable();
        positions.dedup();
        positions
    }

    /// Returns the memory of a form at each context length. `fits` is `None` where the available memory is unknown.
    fn needs(
        &self,
        form: &WeightFormat,
        description: &ModelDescription,
        available: Option<u64>,
    ) -> Vec<Needs> {
        let needs = |context: &usize| {
            let needed = memory::of_session(
                description,
                form.weight_bytes,
                *context,
                self.chunk,
                self.kv_format,
            );
            let Memory {
                weights,
                kv_cache,
                activations,
            } = needed;
            Needs {
                context: *context,
                weight_bytes: weights,
                kv_cache_bytes: kv_cache,
                activation_bytes: activations,
                total_bytes: needed.total(),
                fits: available.map(|available| needed.total() as u64 <= available),
            }
        };
        self.contexts.iter().map(needs).collect()
    }

    /// Returns the longest context that fits, in tokens, at most the model's own. `None` where `available` is unknown.
    fn longest(
        &self,
        form: &WeightFormat,
        description: &ModelDescription,
        available: Option<u64>,
    ) -> Option<usize> {
        let available = available?;
        let fits = |context: usize| {
            let needed = memory::of_session(
                description,
                form.weight_bytes,
                context,
                self.chunk,
                self.kv_format,
            );
            needed.total() as u64 <= available
        };
        // Binary search: every context up to `low` fits, none from `high` on does.
        let (mut low, mut high) = (0, description.context + 1);
        while low + 1 < high {
            let middle = usize::midpoint(low, high);
            if fits(middle) {
                low = middle;
            } else {
                high = middle;
            }
        }
        Some(low)
    }
}

/// Predicts for this machine's CPU, and for its GPU if it has one.
fn here(subject: &Subject, lengths: &Lengths, arguments: &Arguments) -> Result<Report> {
    let Subject {
        name,
        description,
        forms,
    } = subject;
    let machine = Machine::detect();
    let available = arguments
        .memory
        .map(|bytes| bytes as u64)
        .or(machine.memory_available_bytes);
    let chosen = arguments.threads.chosen();
    let threads = chosen.count();
    let pool = match chosen {
        Threads::On(cores) => Pool::pinned(&cores),
        _ => Pool::new(threads),
    };
    let pool = pool.with_context(|| format!("cannot start {threads} threads"))?;
    let spinner = progress::spinner(format!("measuring kernels on {threads} threads"));
    let bytes_read_per_second = peak::bytes_read_per_second(threads, peak::MEMORY / 2);
    let limit = Limit {
        processor: None,
        arithmetic: Arithmetic::measure(threads),
        bytes_read_per_second,
    };
    let bytes = forms
        .iter()
        .map(|form| form.bytes_per_token(description))
        .max()
        .unwrap_or(0);
    let rows = lengths
        .chunk
        .min(lengths.prompts.last().copied().unwrap_or(1));
    let mut predictor = Predictor {
        description,
        rates: Rates::new(rows, bytes, lengths.kv_format),
        chunk: lengths.chunk,
    };
    let mut predictions = Vec::new();
    for form in forms {
        let (prompts, decode) = pool.install(|| {
            let prompt = |tokens: &usize| {
                Prompt::new(*tokens, predictor.prefill(form, *tokens), description)
            };
            let prompts = lengths.prompts.iter().map(prompt).collect();
            let token = |position: &usize| {
                let bytes = form.bytes_per_token(description)
                    + cache_bytes(description, 1, *position, lengths.kv_format);
                Decode::new(*position, predictor.decode(form, *position), bytes)
            };
            (prompts, lengths.positions().iter().map(token).collect())
        });
        predictions.push(Prediction {
            on: format!("CPU, {threads} threads"),
            source: Source::Measured,
            form: form.clone(),
            needs: lengths.needs(form, description, available),
            longest_context: lengths.longest(form, description, available),
            prompts,
            decode,
        });
    }
    drop(spinner);
    predictions.extend(on_gpu(subject, lengths, threads)?);
    let device = machine
        .processor
        .unwrap_or_else(|| machine.architecture.into());
    Ok(Report::new(
        name,
        description,
        device,
        Some(limit),
        available,
        lengths.kv_format,
        predictions,
    ))
}

/// Returns lower bounds of the times on a GPU, if there is one that runs whole models.
fn on_gpu(subject: &Subject, lengths: &Lengths, threads: usize) -> Result<Vec<Prediction>> {
    // A software renderer does not count as a GPU, unless the environment names it.
    let Ok(Some(peaks)) = DeviceArguments::default().gpu_peaks() else {
        return Ok(Vec::new());
    };
    let limit = Limit::of_gpu(peaks, threads);
    let on = limit.processor.clone().unwrap_or_default();
    let (rate, bandwidth) = (
        limit.arithmetic.f32_operations_per_second,
        limit.bytes_read_per_second,
    );
    let description = &subject.description;
    let prediction = |form: &WeightFormat| {
        let prompt = |tokens: &usize| {
            let Operations { linear, attention } = Operations::of_prefill(description, *tokens);
            let int8 = limit
                .arithmetic
                .int8_operations_per_second
                .filter(|_| form.prefill == Product::W8a8);
            let parts = Parts {
                linear: linear / int8.unwrap_or(rate),
                attention: attention / rate,
                ..Parts::default()
            };
            Prompt::new(*tokens, parts, description)
        };
        let token = |position: &usize| {
            let cache = cache_bytes(description, 1, *position, lengths.kv_format);
            let weights = form.bytes_per_token(description);
            let linear = weights as f64 / bandwidth;
            let parts = Parts {
                linear,
                attention: cache as f64 / bandwidth,
                ..Parts::default()
            };
            Decode::new(*position, parts, weights + cache)
        };
        Prediction {
            on: on.clone(),
            source: Source::Limit,
            form: WeightFormat {
                command: format!("{} --processors gpu", form.command),
                ..form.clone()
            },
            // The free memory of a GPU is unknown.
            needs: lengths.needs(form, description, None),
            longest_context: None,
            prompts: lengths.prompts.iter().map(prompt).collect(),
            decode: lengths.positions().iter().map(token).collect(),
        }
    };
    Ok(subject.forms.iter().map(prediction).collect())
}

/// Predicts for the phone of a device profile.
fn on_phone(
    subject: &Subject,
    lengths: &Lengths,
    device: &DeviceProfile,
    memory: Option<usize>,
) -> Report {
    let Subject {
        name,
        description,
        forms,
    } = subject;
    let available = memory.map(|bytes| bytes as u64);
    let _spinner = progress::spinner(format!("simulating {}", device.name));
    let chunk = lengths.chunk;
    let float = |on: &str, processor: &Float, form: &WeightFormat| {
        let prompt = |tokens: usize| phone::float_prefill(processor, description, tokens, chunk);
        let token = |position: usize| phone::float_token(processor, description, position);
        simulated(on, form, lengths, description, available, (&prompt, &token))
    };
    let mut predictions = Vec::new();
    for form in forms {
        let int8 = form.prefill == Product::W8a8 && form.decode == Product::W8a8;
        if int8 {
            let token = |position: usize| device.cpu.decode_token(description, position);
            let prompt = |tokens: usize| phone::npu_prefill(device, description, tokens, chunk);
            predictions.push(simulated(
                "NPU and CPU",
                form,
                lengths,
                description,
                available,
                (&prompt, &token),
            ));
            let prompt =
                |tokens: usize| phone::cpu_prefill(&device.cpu, description, tokens, chunk);
            predictions.push(simulated(
                "CPU",
                form,
                lengths,
                description,
                available,
                (&prompt, &token),
            ));
        } else if matches!(form.prefill, Product::Weights(numbers) if numbers != forms::Numbers::Int4)
        {
            predictions.push(float("CPU", &device.cpu, form));
            predictions.extend(device.gpu.as_ref().map(|gpu| float("GPU", gpu, form)));
        }
    }
    let title = format!("{}, simulated", device.name);
    Report::new(
        name,
        description,
        title,
        None,
        available,
        lengths.kv_format,
        predictions,
    )
}

/// Returns the seconds of a prompt of that many tokens, or of one decode step at that context length.
type Seconds<'a> = &'a dyn Fn(usize) -> f64;

fn simulated(
    on: &str,
    form: &WeightFormat,
    lengths: &Lengths,
    description: &ModelDescription,
    available: Option<u64>,
    (prompt, token): (Seconds, Seconds),
) -> Prediction {
    // The simulation has no times of the parts.
    let whole = |seconds: f64| Parts {
        linear: seconds,
        ..Parts::default()
    };
    let decode = |position: &usize| {
        let bytes = form.bytes_per_token(description)
            + cache_bytes(description, 1, *position, KvFormat::F16);
        Decode::new(*position, whole(token(*position)), bytes)
    };
    Prediction {
        on: on.into(),
        source: Source::Simulated,
        form: WeightFormat {
            command: String::new(),
            ..form.clone()
        },
        needs: lengths.needs(form, description, available),
        longest_context: lengths.longest(form, description, available),
        prompts: lengths
            .prompts
            .iter()
            .map(|tokens| Prompt::new(*tokens, whole(prompt(*tokens)), description))
            .collect(),
        decode: lengths.positions().iter().map(decode).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lengths(contexts: &[usize]) -> Lengths {
        Lengths {
            prompts: vec![64],
            contexts: contexts.into(),
            chunk: 256,
            kv_format: KvFormat::F16,
        }
    }

    #[test]
    fn the_longest_context_that_fits_is_one_token_below_the_first_that_does_not() {
        let subject =
            Subject::of_shape("smollm2-135m", family::shape("smollm2-135m").unwrap()).unwrap();
        let (description, form) = (&subject.description, &subject.forms[0]);
        let lengths = lengths(&[8192]);
        let needed = |context| {
            memory::of_session(description, form.weight_bytes, context, 256, KvFormat::F16).total()
                as u64
        };
        for context in [1, 300, 5000] {
            let fits = |bytes| lengths.longest(form, description, Some(bytes));
            assert_eq!(
                [fits(needed(context)), fits(needed(context) - 1)],
                [Some(context), Some(context - 1)]
            );
        }
        assert_eq!(
            lengths.longest(form, description, Some(u64::MAX)),
            Some(description.context)
        );
        assert_eq!(lengths.longest(form, description, Some(0)), Some(0));
        assert_eq!(lengths.longest(form, description, None), None);
    }

    #[test]
    fn tokens_are_decoded_after_contexts_that_have_room_for_one_more() {
        assert_eq!(lengths(&[1024, 8192]).positions(), [64, 1024, 8191]);
        assert_eq!(lengths(&[32]).positions(), [31]);
        assert_eq!(lengths(&[1]).positions(), [0]);
    }

    #[test]
    fn each_form_has_the_bytes_of_its_formats() {
        let subject =
            Subject::of_shape("qwen1.5-1.8b", family::shape("qwen1.5-1.8b").unwrap()).unwrap();
        let per_token: Vec<_> = subject
            .forms
            .iter()
            .map(|form| form.bytes_per_token(&subject.description) as f64)
            .collect();
        // The weights are bf16, INT8 and INT4; the output matrix of the INT4 form is INT8.
        assert!(
            (1.97..2.0).contains(&(per_token[0] / per_token[1])),
            "{per_token:?}"
        );
        assert!(
            (1.4..1.7).contains(&(per_token[1] / per_token[3])),
            "{per_token:?}"
        );
        let [float, int8, both, int4] = subject.forms.each_weight_bytes();
        assert!(
            int4 < int8 && int8 < both && both < float,
            "{float} {int8} {both} {int4}"
        );
    }

    trait Weights {
        fn each_weight_bytes(&self) -> [usize; 4];
    }

    impl Weights for Vec<WeightFormat> {
        fn each_weight_bytes(&self) -> [usize; 4] {
            std::array::from_fn(|index| self[index].weight_bytes)
        }
    }
}
