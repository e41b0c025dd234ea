//! Measures how many schemas of a published suite are supported, whether generated output is valid, and how long masks
//! take.
//!
//! ```sh
//! cargo run --release -p triad-grammar --example measure -- model.gguf FOLDER…
//! ```
//!
//! A folder holds JSON files of JSON-Schema-Test-Suite (`[{"schema": …, "tests": [{"data": …, "valid": …}]}]`) or of
//! JSONSchemaBench's MaskBench (`{"schema": …, "tests": […]}`). Each instance is accepted token by token, with a mask
//! before every token. In addition, output is generated from random logits for each schema, and the crate `jsonschema`
//! validates it.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use serde_json::Value;
use triad_engine::constraint::Constraint;
use triad_grammar::{Grammar, GrammarSource, Grammars};
use triad_model::checkpoint::Checkpoint;
use triad_model::tokenizer::Tokenizer;

/// Maximum number of tokens of a random output, or of an instance.
const LONGEST: usize = 1000;

#[derive(Default)]
struct Counts {
    schemas: usize,
    supported: usize,
    /// Instances of supported schemas: the valid ones, and how many of these the grammar accepts.
    valid: (usize, usize),
    /// Instances of supported schemas: the invalid ones, and how many of these the grammar refuses.
    invalid: (usize, usize),
    /// Random outputs: the complete ones, and how many of these are valid.
    answers: (usize, usize),
    /// Number of masks that reached a limit.
    limits: usize,
    compile_seconds: Vec<f64>,
    mask_seconds: Vec<f64>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args_os().skip(1).map(PathBuf::from);
    let model = arguments.next().ok_or("expected a model and folders")?;
    let tokenizer = Arc::new(Tokenizer::from_checkpoint(&Checkpoint::open(&model)?)?);
    let start = Instant::now();
    let grammars = Grammars::new(Arc::clone(&tokenizer) as _)?;
    println!(
        "{} tokens, ready after {:.0} ms",
        tokenizer.vocab_size(),
        start.elapsed().as_secs_f64() * 1e3
    );
    for folder in arguments {
        let mut files = Vec::new();
        find(&folder, &mut files)?;
        files.sort();
        let mut counts = Counts::default();
        for file in &files {
            let cases: Value = serde_json::from_str(&std::fs::read_to_string(file)?)?;
            let cases = if cases.is_array() {
                cases
            } else {
                Value::Array(vec![cases])
            };
            for case in cases.as_array().into_iter().flatten() {
                measure(&grammars, &tokenizer, case, &mut counts);
            }
        }
        counts.print(&folder);
    }
    Ok(())
}

fn find(folder: &Path, files: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            find(&path, files)?;
        } else if path
            .extension()
            .is_some_and(|extension| extension == "json")
        {
            files.push(path);
        }
    }
    Ok(())
}

fn measure(grammars: &Grammars, tokenizer: &Tokenizer, case: &Value, counts: &mut Counts) {
    let Some(schema) = case.get("schema") else {
        return;
    };
    counts.schemas += 1;
    let start = Instant::now();
    let Ok(grammar) = grammars.compile(&GrammarSource::JsonSchema(schema.to_string())) else {
        return;
    };
    counts.compile_seconds.push(start.elapsed().as_secs_f64());
    counts.supported += 1;
    for test in case["tests"].as_array().into_iter().flatten() {
        let (Some(data), Some(is_valid)) = (test.get("data"), test["valid"].as_bool()) else {
            continue;
        };
        let Some(could_be) = follow(&grammar, tokenizer, data, counts) else {
            continue;
        };
        let count = if is_valid {
            &mut counts.valid
        } else {
            &mut counts.invalid
        };
        count.0 += 1;
        count.1 += usize::from(could_be == is_valid);
        if could_be && !is_valid {
            println!("could be an answer: {data} by {schema}");
        }
    }
    if let Some(text) = answer(&grammar, tokenizer, counts) {
        counts.answers.0 += 1;
        let validator = jsonschema::options()
            .should_validate_formats(true)
            .build(schema);
        let value: Option<Value> = serde_json::from_slice(&text)
            .ok()
            .map(without_negative_zeros);
        let is_valid = match (validator, value) {
            (Ok(validator), Some(value)) => validator.is_valid(&value),
            // If the validator refuses the schema, the output must at least be JSON.
            (Err(_), value) => value.is_some(),
            (Ok(_), None) => false,
        };
        counts.answers.1 += usize::from(is_valid);
        if !is_valid {
            println!("not valid: {} by {schema}", String::from_utf8_lossy(&text));
        }
    }
}

/// Returns whether the grammar accepts `data`, or `None` if it has too many tokens.
fn follow(
    grammar: &Grammar,
    tokenizer: &Tokenizer,
    data: &Value,
    counts: &mut Counts,
) -> Option<bool> {
    let tokens = tokenizer
        .encode_part(&data.to_string())
        .ok()
        .filter(|tokens| tokens.len() <= LONGEST)?;
    let mut constraint = grammar.begin();
    for token in tokens {
        if constraint.is_complete() {
            return Some(false);
        }
        let start = Instant::now();
        let mask = constraint.mask();
        counts.mask_seconds.push(start.elapsed().as_secs_f64());
        if mask.is_err() {
            counts.limits += 1;
            return None;
        }
        // For forced tokens the mask has only the tokenizer's own spelling, but these tokens may be split differently.
        if constraint.allowed(&[token]).ok()? == 0 {
            return Some(false);
        }
        constraint.accept(token).ok()?;
    }
    Some(constraint.is_complete() || constraint.may_end())
}

/// Replaces -0 by 0 in `value`: JSON has -0 as an integer, but `serde_json` reads a float, which draft 4 does not
/// accept as an integer.
fn without_negative_zeros(value: Value) -> Value {
    match value {
        Value::Number(number) if number.as_f64() == Some(0.0) => Value::from(0),
        Value::Array(items) => items.into_iter().map(without_negative_zeros).collect(),
        Value::Object(fields) => fields
            .into_iter()
            .map(|(name, value)| (name, without_negative_zeros(value)))
            .collect(),
        other => other,
    }
}

/// Generates output from random logits, which favor closing brackets, quotes and end tokens. Returns `None` if it does
/// not end.
fn answer(grammar: &Grammar, tokenizer: &Tokenizer, counts: &mut Counts) -> Option<Vec<u8>> {
    let (mut constraint, mut random, mut text) =
        (grammar.begin(), ChaCha8Rng::seed_from_u64(0), Vec::new());
    for _ in 0..LONGEST {
        if constraint.is_complete() {
            return Some(text);
        }
        let start = Instant::now();
        let mask = constraint.mask();
        counts.mask_seconds.push(start.elapsed().as_secs_f64());
        let Ok(mask) = mask else {
            counts.limits += 1;
            return None;
        };
        let allowed = (0..tokenizer.vocab_size() as u32).filter(|token| mask.allows(*token));
        let weight = |token: &u32, random: &mut ChaCha8Rng| {
            let bytes = tokenizer.bytes(*token);
            let ends = bytes.is_empty() || (bytes.len() == 1 && b"\"]}".contains(&bytes[0]));
            (random.next_u32() >> 8) + if ends { 1 << 24 } else { 0 }
        };
        let next = allowed
            .map(|token| (weight(&token, &mut random), token))
            .max()?
            .1;
        constraint.accept(next).ok()?;
        text.extend(tokenizer.bytes(next));
    }
    constraint.is_complete().then_some(text)
}

impl Counts {
    fn print(mut self, folder: &Path) {
        let share = |(all, some): (usize, usize)| {
            format!(
                "{some} of {all} ({:.1} %)",
                100.0 * some as f64 / all.max(1) as f64
            )
        };
        println!("{}", folder.display());
        println!(
            "  supported schemas: {}",
            share((self.schemas, self.supported))
        );
        println!(
            "  valid instances that an answer could be: {}",
            share(self.valid)
        );
        println!(
            "  invalid instances that no answer could be: {}",
            share(self.invalid)
        );
        println!(
            "  random answers that ended: {}; valid: {}",
            share((self.supported, self.answers.0)),
            share(self.answers)
        );
        println!(
            "  masks beyond a limit: {} of {}",
            self.limits,
            self.mask_seconds.len()
        );
        println!("  compiling: {}", times(&mut self.compile_seconds));
        println!("  a mask: {}", times(&mut self.mask_seconds));
    }
}

fn times(seconds: &mut [f64]) -> String {
    seconds.sort_by(f64::total_cmp);
    let at = |share: f64| {
        seconds
            .get(((seconds.len() as f64 - 1.0) * share) as usize)
            .copied()
            .unwrap_or(0.0)
            * 1e6
    };
    let mean = seconds.iter().sum::<f64>() / seconds.len().max(1) as f64 * 1e6;
    format!(
        "mean {mean:.0} µs, median {:.0} µs, 99 % within {:.0} µs, longest {:.0} µs",
        at(0.5),
        at(0.99),
        at(1.0)
    )
}
