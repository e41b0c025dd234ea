//! `triad tokenize`: prints the tokens of a text.

use anyhow::Result;
use serde::Serialize;
use triad_frontend::models;
use triad_model::tokenizer::EncodeOptions;

use crate::prompt::PromptArguments;
use triad_console::arguments::ModelArgument;
use triad_console::{output, progress};

/// Print the tokens of a text, with BOS and EOS if the model expects them.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  triad tokenize -p 'Hello, world'
  triad tokenize -m model.gguf -f text.txt --json
  triad tokenize --special -p '<|im_start|>user'")]
pub struct Arguments {
    #[command(flatten)]
    model: ModelArgument,
    #[command(flatten)]
    prompt: PromptArguments,
    /// Parse special tokens in the text as such, not as plain characters; a text that starts with BOS gets no second one
    #[arg(long)]
    special: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Tokens {
    count: usize,
    tokens: Vec<u32>,
}

/// Prints the token ids, in one line or as JSON.
pub fn run(arguments: &Arguments) -> Result<()> {
    let text = arguments.prompt.require()?;
    let path = arguments.model.path()?;
    let tokenizer = models::tokenizer(&path, &mut progress::checking(&path))?;
    let options = EncodeOptions {
        parse_special: arguments.special,
        ..EncodeOptions::TEXT
    };
    let tokens = tokenizer.encode(&text, options)?;
    if arguments.json {
        return output::json(&Tokens {
            count: tokens.len(),
            tokens,
        });
    }
    let ids: Vec<_> = tokens.iter().map(ToString::to_string).collect();
    output::text(&ids.join(" "))
}
