//! `triad info`: describes a model and the memory of a run, without loading the model.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use anyhow::{Result, ensure};
use serde::Serialize;
use triad_engine::Error;
use triad_engine::memory::{self, Memory};
use triad_engine::package::{Manifest, Package};
use triad_frontend::{hashes, pictures};
use triad_model::ErrorKind;
use triad_model::checkpoint::Checkpoint;
use triad_model::description::{Attention, BlockDescription, Experts, ModelDescription};
use triad_model::fetch;
use triad_model::quantized;
use triad_model::template::ChatTemplate;
use triad_model::tokenizer::Tokenizer;
use triad_model::vision::VisionFile;

use crate::first_run;
use crate::package_fields;
use triad_console::arguments::{self, KvArgument, ModelArgument};
use triad_console::{output, progress};

/// Show a model's architecture, and how much memory a run needs.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  triad info
  triad info model.gguf --context 32768
  triad info model.triad                              a package: calibration, outliers, shadows
  triad info hf:Qwen/Qwen2.5-0.5B-Instruct --json")]
pub struct Arguments {
    /// Path of a package, GGUF file or safetensors folder, `smollm2-135m`, or `hf:owner/name[:file]`
    #[arg(value_name = "MODEL", default_value = fetch::DEFAULT_MODEL)]
    model: String,
    /// Context length for the memory of a run, in tokens [default: 4096, or the model's context if less]
    #[arg(long, value_name = "N", value_parser = arguments::tokens)]
    context: Option<usize>,
    /// Prefill chunk size, in tokens
    #[arg(long = "prefill-chunk", value_name = "N", default_value = "256", value_parser = arguments::tokens)]
    chunk: usize,
    #[command(flatten)]
    kv: KvArgument,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// The default context length for the memory of a run.
const CONTEXT: usize = 4096;

/// The output of `info --json` for a model file.
#[derive(Serialize)]
struct Info {
    path: String,
    family: String,
    name: Option<String>,
    parameters: usize,
    /// Parameters that one token uses.
    active_parameters: usize,
    blocks: usize,
    hidden: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    /// Width of the latent vectors of attention, if it has them.
    latent: Option<usize>,
    feed_forward: usize,
    /// The experts of the first block that has them.
    experts: Option<Experts>,
    vocab: usize,
    context: usize,
    tied_output: bool,
    /// The encoder of pictures, if the model reads some.
    #[serde(skip_serializing_if = "Option::is_none")]
    pictures: Option<PicturesInfo>,
    /// The number of tensors that neither the model nor this encoder uses, and the first one's name.
    unused_tensors: usize,
    #[serde(skip)]
    unused: Option<String>,
    /// Parameters of the head that predicts one more token, without those of the model; 0 if there is none that is used.
    mtp_parameters: usize,
    /// The number of tensors that predict more than one token and are not used, the first one's name, and the reason.
    more_tokens_tensors: usize,
    #[serde(skip)]
    more_tokens: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mtp_refused: Option<String>,
    /// Bytes of all tensors, by format.
    stored_bytes: BTreeMap<String, usize>,
    /// Quantized matrices of safetensors by scheme and format of the computation.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    quantized: Vec<QuantizedInfo>,
    tokenizer: Option<TokenizerInfo>,
    /// The reason why the tokenizer cannot be used.
    #[serde(skip_serializing_if = "Option::is_none")]
    tokenizer_error: Option<String>,
    chat_template: bool,
    /// The reason why the chat template cannot be used.
    #[serde(skip_serializing_if = "Option::is_none")]
    chat_template_error: Option<String>,
    /// Settings of `generation_config.json` that the sampler does not have.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    generation_not_followed: Vec<String>,
    /// The arithmetic of the next run: that of the package in the cache, or `as stored`.
    arithmetic: &'static str,
    /// The package in the cache.
    package: Option<String>,
    #[serde(skip)]
    runs: String,
    /// Memory of a run with this context and chunk size.
    run: Run,
}

#[derive(Serialize)]
struct QuantizedInfo {
    scheme: &'static str,
    matrices: usize,
    /// The format of the computation.
    computed: String,
    /// Whether that are floats, which take more memory than the stored tensors.
    widened: bool,
    bytes: usize,
    #[serde(skip)]
    text: String,
}

/// An encoder of pictures.
#[derive(Serialize)]
struct PicturesInfo {
    /// The path of its file or folder.
    encoder: String,
    tensors: usize,
    bytes: usize,
}

#[derive(Serialize)]
struct TokenizerInfo {
    kind: &'static str,
    tokens: usize,
}

#[derive(Serialize)]
struct Run {
    context: usize,
    chunk: usize,
    weight_bytes: usize,
    kv_cache_bytes: usize,
    activation_bytes: usize,
    total_bytes: usize,
}

/// Prints the description of a model file or of a package.
pub fn run(arguments: &Arguments) -> Result<()> {
    let path = ModelArgument {
        model: arguments.model.clone(),
    }
    .path()?;
    if Package::is_at(&path) {
        let package = hashes::open_package(&path, &mut progress::checking(&path))?;
        let run = memory_of_run(
            package.description(),
            package.weight_bytes() as usize,
            arguments,
        )?;
        return if arguments.json {
            output::json(&of_package(&package, run))
        } else {
            let mut fields = package_fields::fields(&package);
            fields.push(("memory of a run", run.sentence()));
            output::fields(&fields)
        };
    }
    let checkpoint = Arc::new(Checkpoint::open(&path)?);
    let info = inspect(&checkpoint, arguments)?;
    if arguments.json {
        output::json(&info)
    } else {
        print(&info)
    }
}

/// The output of `info --json` for a package.
#[derive(Serialize)]
struct PackageInfo<'a> {
    path: String,
    bytes: u64,
    /// Number of shadows; `None` for W4A16, which has no shadows.
    #[serde(skip_serializing_if = "Option::is_none")]
    shadows: Option<usize>,
    /// Memory of a run with this context and chunk size.
    run: Run,
    #[serde(flatten)]
    manifest: &'a Manifest,
}

fn of_package(package: &Package, run: Run) -> PackageInfo<'_> {
    let manifest = package.manifest();
    PackageInfo {
        path: package.path().display().to_string(),
        bytes: package.bytes(),
        shadows: manifest
            .preparation
            .quantization()
            .map(|plan| plan.shadows()),
        run,
        manifest,
    }
}

fn inspect(checkpoint: &Arc<Checkpoint>, arguments: &Arguments) -> Result<Info> {
    let description = checkpoint.description();
    let longest = description.context;
    let run = memory_of_run(description, memory::of_weights(checkpoint), arguments)?;
    let block = description.blocks.first();
    ensure!(
        block.is_some(),
        "{}: the model has no blocks",
        checkpoint.path().display()
    );
    let shape = |of: fn(&BlockDescription) -> usize| block.map_or(0, of);
    let mut blocks = description.blocks.iter();
    let attention = blocks.find_map(BlockDescription::attention);
    let heads = |of: fn(&Attention) -> usize| attention.map_or(0, of);
    let mut stored_bytes = BTreeMap::new();
    for tensor in checkpoint.tensors().values() {
        *stored_bytes.entry(tensor.format.to_string()).or_insert(0) += tensor.bytes.len();
    }
    for tensor in checkpoint.quantized().values() {
        *stored_bytes.entry(tensor.scheme().to_owned()).or_insert(0) += tensor.stored_bytes();
    }
    let quantized = quantized::summary(checkpoint.quantized().values(), true)
        .into_iter()
        .map(|summary| QuantizedInfo {
            scheme: summary.scheme,
            matrices: summary.matrices,
            computed: summary.computed.to_string(),
            widened: summary.computed.is_wide(),
            bytes: summary.bytes,
            text: summary.to_string(),
        })
        .collect();
    // The rest of the model is shown even if Triad cannot read its texts.
    let (tokenizer, tokenizer_error) = match Tokenizer::from_checkpoint(checkpoint) {
        Ok(tokenizer) => (Some(tokenizer), None),
        Err(error) if error.kind() == ErrorKind::Missing => (None, None),
        Err(error) => (None, Some(error.to_string())),
    };
    let template = tokenizer
        .as_ref()
        .map(|tokenizer| ChatTemplate::from_checkpoint(checkpoint, tokenizer));
    let (template, chat_template_error) = match template.transpose() {
        Ok(template) => (template.flatten(), None),
        Err(error) => (None, Some(error.to_string())),
    };
    let encoder = pictures::encoder_of(checkpoint.path());
    let encoder = encoder.and_then(|path| VisionFile::open(&path).ok());
    let of_encoder: BTreeSet<_> = encoder.iter().flat_map(VisionFile::tensor_names).collect();
    let unused = checkpoint.tensor_map().unused.iter();
    let unused = unused.filter(|name| !of_encoder.contains(name.as_str()));
    let (arithmetic, package, runs) = first_run::next_run(checkpoint.path())?;
    Ok(Info {
        path: checkpoint.path().display().to_string(),
        family: description.family.clone(),
        name: description.name.clone(),
        parameters: description.parameters(),
        active_parameters: description.active_parameters(),
        blocks: description.blocks.len(),
        hidden: description.hidden,
        heads: heads(|attention| attention.heads),
        kv_heads: heads(|attention| attention.kv_heads),
        head_dim: heads(|attention| attention.head_dim),
        latent: description
            .blocks
            .iter()
            .find_map(|block| Some(block.attention()?.latent()?.width)),
        feed_forward: shape(|block| block.feed_forward.width),
        experts: description
            .blocks
            .iter()
            .find_map(|block| block.feed_forward.experts),
        vocab: description.vocab,
        context: longest,
        tied_output: description.tied_output,
        pictures: encoder.as_ref().map(|encoder| PicturesInfo {
            encoder: encoder.path().display().to_string(),
            tensors: of_encoder.len(),
            bytes: encoder.bytes(),
        }),
        unused_tensors: unused.clone().count(),
        unused: unused.clone().next().cloned(),
        more_tokens_tensors: checkpoint.tensor_map().more_tokens.len(),
        more_tokens: checkpoint.tensor_map().more_tokens.first().cloned(),
        mtp_refused: checkpoint.tensor_map().mtp_refused.clone(),
        mtp_parameters: description.mtp_parameters(),
        stored_bytes,
        quantized,
        tokenizer: tokenizer.map(|tokenizer| TokenizerInfo {
            kind: tokenizer.kind().name(),
            tokens: tokenizer.vocab_size(),
        }),
        tokenizer_error,
        chat_template: template.is_some(),
        chat_template_error,
        generation_not_followed: checkpoint.generation_defaults().not_followed.clone(),
        arithmetic,
        package: package.map(|package| package.display().to_string()),
        runs,
        run,
    })
}

/// Returns the memory of a run with `weights` bytes of weights.
fn memory_of_run(
    description: &ModelDescription,
    weights: usize,
    arguments: &Arguments,
) -> Result<Run> {
    let longest = description.context;
    let context = arguments.context.unwrap_or(longest.min(CONTEXT));
    if context > longest {
        return Err(Error::ContextTooLong {
            asked: context,
            longest,
        }
        .into());
    }
    let needed = memory::of_session(
        description,
        weights,
        context,
        arguments.chunk,
        arguments.kv.format(),
    );
    let Memory {
        weights,
        kv_cache,
        activations,
    } = needed;
    Ok(Run {
        context,
        chunk: arguments.chunk,
        weight_bytes: weights,
        kv_cache_bytes: kv_cache,
        activation_bytes: activations,
        total_bytes: needed.total(),
    })
}

impl Run {
    fn sentence(&self) -> String {
        let bytes = |bytes: usize| output::bytes(bytes as u64);
        format!(
            "{} with a context of {}: weights {}, KV cache {}, activations {}",
            bytes(self.total_bytes),
            output::count(self.context),
            bytes(self.weight_bytes),
            bytes(self.kv_cache_bytes),
            bytes(self.activation_bytes)
        )
    }
}

fn print(info: &Info) -> Result<()> {
    let bytes = |bytes: usize| output::bytes(bytes as u64);
    let formats: Vec<_> = info
        .stored_bytes
        .iter()
        .map(|(format, size)| format!("{format} {}", bytes(*size)))
        .collect();
    let tokenizer = info.tokenizer.as_ref();
    let all = output::count(info.parameters);
    let parameters = match info.experts {
        Some(_) => format!(
            "{all}, {} for a token",
            output::count(info.active_parameters)
        ),
        None => all,
    };
    let feed_forward = match info.experts {
        Some(experts) => {
            let shared = match info.feed_forward {
                0 => String::new(),
                width => format!("{width} and "),
            };
            let Experts {
                count, used, width, ..
            } = experts;
            format!("{shared}{used} of {count} experts of {width}")
        }
        None => info.feed_forward.to_string(),
    };
    let mut fields = vec![
        (
            "model",
            info.name.clone().unwrap_or_else(|| "unnamed".into()),
        ),
        ("path", info.path.clone()),
        ("family", info.family.clone()),
        ("parameters", parameters),
        ("blocks", info.blocks.to_string()),
        ("hidden", info.hidden.to_string()),
        (
            "heads",
            match info.latent {
                Some(width) => format!("{} query, one latent vector of {width}", info.heads),
                None => format!(
                    "{} query, {} key and value, of {}",
                    info.heads, info.kv_heads, info.head_dim
                ),
            },
        ),
        ("feed-forward", feed_forward),
        (
            "vocabulary",
            format!(
                "{}{}",
                output::count(info.vocab),
                if info.tied_output {
                    ", output tied to it"
                } else {
                    ""
                }
            ),
        ),
        ("context", format!("{} tokens", output::count(info.context))),
        (
            "stored",
            format!(
                "{} ({})",
                bytes(info.stored_bytes.values().sum()),
                formats.join(", ")
            ),
        ),
    ];
    let tensors = |name: &str, count: usize| match count {
        1 => format!("tensor {name}"),
        count => format!("{} tensors, such as {name}", output::count(count)),
    };
    if let Some(PicturesInfo { tensors, bytes, .. }) = &info.pictures {
        let size = output::bytes(*bytes as u64);
        fields.push((
            "pictures",
            format!("read, by an encoder of {tensors} tensors ({size})"),
        ));
    }
    if let Some(name) = &info.unused {
        fields.push(("not used", tensors(name, info.unused_tensors)));
    }
    if let Some(name) = &info.more_tokens {
        let tensors = tensors(name, info.more_tokens_tensors);
        let reason = info.mtp_refused.iter();
        let reason: String = reason.map(|reason| format!("; {reason}")).collect();
        let more = format!("prediction of more than one token (MTP): {tensors}{reason}");
        fields.push(("not used", more));
    }
    if info.mtp_parameters > 0 {
        let parameters = output::count(info.mtp_parameters);
        fields.push((
            "MTP head",
            format!("{parameters} parameters, which propose tokens"),
        ));
    }
    if !info.quantized.is_empty() {
        let quantized: Vec<_> = info.quantized.iter().map(|it| it.text.as_str()).collect();
        fields.push(("computed", format!("matrices: {}", quantized.join(", "))));
    }
    fields.extend([
        (
            "tokenizer",
            match (tokenizer, &info.tokenizer_error) {
                (Some(it), _) => format!("{}, {} tokens", it.kind, output::count(it.tokens)),
                (None, Some(error)) => format!("cannot be used: {error}"),
                (None, None) => "none".into(),
            },
        ),
        (
            "chat template",
            match &info.chat_template_error {
                Some(error) => format!("cannot be used: {error}"),
                None if info.chat_template => "yes".into(),
                None if info.tokenizer_error.is_some() => "not read, without a tokenizer".into(),
                None => "no".into(),
            },
        ),
    ]);
    if !info.generation_not_followed.is_empty() {
        let settings = info.generation_not_followed.join(", ");
        fields.push(("sampling", format!("not followed: {settings}")));
    }
    fields.push(("runs", info.runs.clone()));
    fields.push(("memory of a run", info.run.sentence()));
    output::fields(&fields)
}
