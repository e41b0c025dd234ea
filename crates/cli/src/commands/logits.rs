//! `triad logits`: writes the logits of a prompt, for comparisons with other engines.

use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Result, ensure};
use serde_json::json;
use triad_engine::{Cancel, Error, Model, Session, SessionOptions, memory};
use triad_frontend::{chat, machine};
use triad_model::tokenizer::EncodeOptions;

use crate::prompt::PromptArguments;
use triad_console::arguments::{self, KvArgument, ModelArguments};
use triad_console::failure::run_error;
use triad_console::interrupt::{Interrupted, on_interrupt};
use triad_console::output_file::OutputFile;
use triad_console::progress;

/// Write the logits of a prompt to a safetensors file.
///
/// The file has `logits` `[tokens, vocab]` in f32 and `tokens` `[tokens]` in u32. The prompt is plain text; no chat
/// template is applied.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  triad logits -p 'The capital of France is' -o logits.safetensors
  triad logits -m model.gguf --tokens 1,450,7483 -o logits.safetensors
  triad logits -m model.gguf -f text.txt --prefill-chunk 64 -o logits.safetensors")]
pub struct Arguments {
    #[command(flatten)]
    model: ModelArguments,
    #[command(flatten)]
    prompt: PromptArguments,
    /// Token ids instead of a text
    #[arg(long, value_name = "IDS", value_delimiter = ',', conflicts_with_all = ["prompt", "file"])]
    tokens: Option<Vec<u32>>,
    /// Prefill chunk size, in tokens
    #[arg(long = "prefill-chunk", value_name = "N", default_value = "256", value_parser = arguments::tokens)]
    chunk: usize,
    #[command(flatten)]
    kv: KvArgument,
    /// File to write
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
}

/// Computes and writes the logits.
pub fn run(arguments: &Arguments) -> Result<()> {
    let text = if arguments.tokens.is_some() {
        None
    } else {
        Some(arguments.prompt.require()?)
    };
    // The path is resolved first: the output must not be one of the model's files.
    arguments.model.name.path()?;
    let output = OutputFile::create(&arguments.output)?;
    let model = arguments.model.load()?;
    let context = model.description().context;
    let tokens = match (&arguments.tokens, text) {
        (Some(tokens), _) => tokens.clone(),
        (None, text) => chat::encode_text(
            &model,
            &text.unwrap_or_default(),
            EncodeOptions::TEXT,
            (context, &Cancel::new()),
        )?,
    };
    ensure!(
        tokens.len() <= context,
        "there are {} tokens, but the context is {context}",
        tokens.len()
    );
    let logits = compute(&model, &tokens, arguments)?;
    output.write(|file| write_tensors(file, &tokens, &logits, model.description().vocab))
}

fn compute(model: &Arc<Model>, tokens: &[u32], arguments: &Arguments) -> Result<Vec<f32>> {
    let logits = tokens
        .len()
        .saturating_mul(model.description().vocab)
        .saturating_mul(size_of::<f32>());
    let options = SessionOptions {
        context: tokens.len().max(1),
        chunk: arguments.chunk,
        kv_format: arguments.kv.format(),
    };
    let SessionOptions {
        context,
        chunk,
        kv_format,
    } = options;
    let session = memory::of_session(model.description(), 0, context, chunk, kv_format).total();
    machine::check_memory("the output", logits.saturating_add(session))?;
    let mut session = Session::new(model, &options)?;
    let cancel = Cancel::new();
    let on_ctrl_c = cancel.clone();
    let _guard = on_interrupt(move || on_ctrl_c.cancel());
    let _spinner = progress::spinner(format!("computing the logits of {} tokens", tokens.len()));
    match session.prefill_all_logits(tokens, &cancel) {
        Ok(logits) => Ok(logits),
        Err(Error::Cancelled) => Err(Interrupted.into()),
        Err(error) => Err(run_error(error, &arguments.model.name.model)),
    }
}

/// Writes the safetensors format: the header's length, the header, the data. The library would copy all data in memory
/// first.
fn write_tensors(file: &mut File, tokens: &[u32], logits: &[f32], vocab: usize) -> io::Result<()> {
    let (logit_bytes, all_bytes) = (
        size_of_val(logits),
        size_of_val(logits) + size_of_val(tokens),
    );
    let mut header = json!({
        "logits": {"dtype": "F32", "shape": [tokens.len(), vocab], "data_offsets": [0, logit_bytes]},
        "tokens": {"dtype": "U32", "shape": [tokens.len()], "data_offsets": [logit_bytes, all_bytes]},
    })
    .to_string();
    // The data must begin at a multiple of eight bytes.
    header += &" ".repeat(header.len().next_multiple_of(8) - header.len());
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(header.as_bytes())?;
    file.write_all(bytemuck::cast_slice(logits))?;
    file.write_all(bytemuck::cast_slice(tokens))
}
