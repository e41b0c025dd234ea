//! The arguments `--schema`, `--grammar` and `--regex`.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use triad_engine::Model;
use triad_engine::constraint::ConstraintFactory;
use triad_grammar::{GrammarSource, Grammars};

use triad_console::inputs;

/// Maximum bytes of a file that are read: more than any grammar may have.
const LONGEST: u64 = 1 << 21;

/// The constraint on an answer.
#[derive(clap::Args)]
#[group(multiple = false)]
pub struct FormArguments {
    /// Answer in JSON that matches the JSON schema in FILE
    #[arg(long, value_name = "FILE")]
    schema: Option<PathBuf>,
    /// Answer in text that matches the Lark grammar in FILE, from its rule `start`
    #[arg(long, value_name = "FILE")]
    grammar: Option<PathBuf>,
    /// Answer in text that the regular expression TEXT matches as a whole
    #[arg(long, value_name = "TEXT")]
    regex: Option<String>,
}

impl FormArguments {
    /// Returns the constraint as text, and the file that it is from. Called before a model is loaded.
    pub fn read(&self) -> Result<Option<(GrammarSource, Option<&Path>)>> {
        let from = |path: &PathBuf| -> Result<String> {
            inputs::add(path);
            let context = || format!("cannot read {}", path.display());
            let mut text = String::new();
            let file = File::open(path).with_context(context)?;
            file.take(LONGEST)
                .read_to_string(&mut text)
                .with_context(context)?;
            Ok(match text.strip_prefix('\u{feff}') {
                Some(without_mark) => without_mark.to_owned(),
                None => text,
            })
        };
        Ok(match (&self.schema, &self.grammar, &self.regex) {
            (Some(path), ..) => Some((GrammarSource::JsonSchema(from(path)?), Some(path))),
            (_, Some(path), _) => Some((GrammarSource::Lark(from(path)?), Some(path))),
            (.., Some(text)) => Some((GrammarSource::Regex(text.clone()), None)),
            (None, None, None) => None,
        })
    }
}

/// Compiles the constraint for answers of `model`.
pub fn compile(
    model: &Arc<Model>,
    (source, path): (GrammarSource, Option<&Path>),
) -> Result<Arc<dyn ConstraintFactory>> {
    let form = Grammars::new(Arc::clone(model) as _).and_then(|grammars| grammars.compile(&source));
    match path {
        Some(path) => Ok(form.with_context(|| path.display().to_string())?),
        None => Ok(form?),
    }
}
