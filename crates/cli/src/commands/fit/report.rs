//! Prints predictions as JSON, whose format later versions keep, or as tables.

use std::fmt::{self, Display, Formatter};

use serde::Serialize;
use triad_engine::KvFormat;
use triad_model::description::ModelDescription;

use super::forms::{Numbers, Product, WeightFormat};
use super::picture::Picture;
use super::predict::Parts;
use crate::commands::bench::limit::{Limit, Operations};
use triad_console::output;

/// The predictions. Serialized, they are the output of `fit --json`.
#[derive(Serialize)]
pub struct Report {
    model: String,
    parameters: usize,
    context: usize,
    /// The name of the processor or of the phone.
    device: String,
    /// The peaks of this machine's CPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<Limit>,
    memory_available_bytes: Option<u64>,
    kv_format: KvFormat,
    kv_bytes_per_token: usize,
    /// The cost of a picture, if the model reads some.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub picture: Option<Picture>,
    predictions: Vec<Prediction>,
    choice: Option<Choice>,
    /// Actions for the user where something does not fit.
    advice: Vec<String>,
}

/// The source of the times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// The sum of measured kernels.
    Measured,
    /// A lower bound: no run is faster.
    Limit,
    /// A simulation of a device profile.
    Simulated,
}

/// One form on one processor.
#[derive(Serialize)]
pub struct Prediction {
    pub on: String,
    pub source: Source,
    pub form: WeightFormat,
    pub needs: Vec<Needs>,
    /// The longest context that fits, in tokens; `None` where the available memory is unknown.
    pub longest_context: Option<usize>,
    pub prompts: Vec<Prompt>,
    pub decode: Vec<Decode>,
}

/// The memory of a form at one context length.
#[derive(Serialize)]
pub struct Needs {
    pub context: usize,
    pub weight_bytes: usize,
    pub kv_cache_bytes: usize,
    pub activation_bytes: usize,
    pub total_bytes: usize,
    pub fits: Option<bool>,
}

/// The time to the first token of an answer.
#[derive(Serialize)]
pub struct Prompt {
    pub tokens: usize,
    pub seconds: f64,
    pub tokens_per_second: f64,
    pub parts: Parts,
    /// Multiplications and additions of the linear layers and of one token's logits.
    pub linear_operations: f64,
    pub attention_operations: f64,
}

/// One decode step.
#[derive(Serialize)]
pub struct Decode {
    pub position: usize,
    pub seconds: f64,
    pub tokens_per_second: f64,
    pub parts: Parts,
    /// Bytes of weights, keys and values that the step reads.
    pub bytes_read: usize,
}

/// The form that is fastest for a short conversation, of those that fit.
#[derive(Serialize)]
struct Choice {
    on: String,
    form: &'static str,
    command: String,
    /// Seconds of the prompt and the answer together.
    seconds: f64,
    prompt: usize,
    answer: usize,
}

/// Tokens of the answer by which forms are compared.
const ANSWER: usize = 128;
/// Tokens of the prompt by which forms are compared, if its time is predicted.
const QUESTION: usize = 256;

impl Prompt {
    pub fn new(tokens: usize, parts: Parts, description: &ModelDescription) -> Self {
        let Operations { linear, attention } = Operations::of_prefill(description, tokens);
        let seconds = parts.total();
        let tokens_per_second = tokens as f64 / seconds;
        Self {
            tokens,
            seconds,
            tokens_per_second,
            parts,
            linear_operations: linear,
            attention_operations: attention,
        }
    }
}

impl Decode {
    pub fn new(position: usize, parts: Parts, bytes_read: usize) -> Self {
        let seconds = parts.total();
        Self {
            position,
            seconds,
            tokens_per_second: 1.0 / seconds,
            parts,
            bytes_read,
        }
    }
}

impl Prediction {
    /// Returns whether the shortest context fits; true where the available memory is unknown.
    fn fits(&self) -> bool {
        self.needs
            .first()
            .is_none_or(|needs| needs.fits != Some(false))
    }

    /// Returns the seconds of a prompt and an answer, and the length of the prompt.
    fn conversation(&self) -> Option<(f64, usize)> {
        let prompt = self
            .prompts
            .iter()
            .find(|prompt| prompt.tokens == QUESTION)
            .or(self.prompts.first())?;
        Some((
            prompt.seconds + ANSWER as f64 * self.decode.first()?.seconds,
            prompt.tokens,
        ))
    }
}

impl Report {
    pub fn new(
        model: &str,
        description: &ModelDescription,
        device: String,
        limit: Option<Limit>,
        memory_available_bytes: Option<u64>,
        kv_format: KvFormat,
        predictions: Vec<Prediction>,
    ) -> Self {
        let known = predictions
            .iter()
            .filter(|prediction| prediction.source != Source::Limit && prediction.fits());
        let conversations =
            known.filter_map(|prediction| Some((prediction, prediction.conversation()?)));
        let best = conversations.min_by(|one, other| one.1.0.total_cmp(&other.1.0));
        let choice = best.map(|(prediction, (seconds, prompt))| Choice {
            on: prediction.on.clone(),
            form: prediction.form.name,
            command: prediction.form.command.clone(),
            seconds,
            prompt,
            answer: ANSWER,
        });
        let mut report = Self {
            model: model.into(),
            parameters: description.parameters(),
            context: description.context,
            device,
            limit,
            memory_available_bytes,
            kv_format,
            kv_bytes_per_token: description
                .kv_bytes_per_token(|head_dim| kv_format.bytes(head_dim)),
            picture: None,
            predictions,
            choice,
            advice: Vec::new(),
        };
        report.advice = report.advise();
        report
    }

    fn advise(&self) -> Vec<String> {
        let Some(available) = self.memory_available_bytes else {
            return Vec::new();
        };
        let mut advice = Vec::new();
        let smallest = self
            .predictions
            .iter()
            .min_by_key(|prediction| prediction.form.weight_bytes);
        if self.choice.is_none()
            && let Some(least) = smallest.and_then(|prediction| prediction.needs.first())
        {
            advice.push(format!(
                "nothing fits: the smallest form needs {} with a context of {}, and {} are available: close other programs, \
                 or take a smaller model",
                bytes(least.total_bytes),
                output::count(least.context),
                output::bytes(available)
            ));
            return advice;
        }
        let chosen = self.choice.as_ref().and_then(|choice| {
            self.predictions.iter().find(|prediction| {
                prediction.form.name == choice.form && prediction.on == choice.on
            })
        });
        let Some(chosen) = chosen else { return advice };
        if let Some(longest) = chosen
            .longest_context
            .filter(|longest| *longest < self.context)
        {
            let smaller = if self.kv_format == KvFormat::Int8 {
                ""
            } else {
                ", or --cache-type int8 for nearly twice as many"
            };
            advice.push(format!(
                "{} has memory for a context of {} of the model's {} tokens: expected --context {longest}{smaller}",
                chosen.form.name,
                output::count(longest),
                output::count(self.context),
            ));
        }
        advice
    }
}

fn bytes(bytes: usize) -> String {
    output::bytes(bytes as u64)
}

/// Formats with three significant digits, in ms below one second, else in s.
fn duration(seconds: f64) -> String {
    let digits = |value: f64| {
        if value < 9.95 {
            format!("{value:.2}")
        } else if value < 99.5 {
            format!("{value:.1}")
        } else {
            format!("{value:.0}")
        }
    };
    if seconds < 1.0 {
        format!("{} ms", digits(1e3 * seconds))
    } else {
        format!("{} s", digits(seconds))
    }
}

fn rate(tokens_per_second: f64) -> String {
    if tokens_per_second < 99.5 {
        format!("{tokens_per_second:.1}")
    } else {
        format!("{tokens_per_second:.0}")
    }
}

impl Display for Report {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        let Self {
            model,
            parameters,
            context,
            device,
            memory_available_bytes: available,
            ..
        } = self;
        writeln!(
            f,
            "{model}: {} parameters, context {}; KV cache {} per token",
            output::count(*parameters),
            output::count(*context),
            bytes(self.kv_bytes_per_token)
        )?;
        writeln!(
            f,
            "{device}: {}{} of memory available\n",
            self.peaks(),
            output::known_bytes(*available)
        )?;
        if let Some(picture) = &self.picture {
            writeln!(f, "{picture}\n")?;
        }
        writeln!(f, "{}\n", self.memory_table())?;
        writeln!(f, "{}", self.speed_table())?;
        for prediction in &self.predictions {
            if let Some(reason) = self.reason(prediction) {
                write!(f, "\n{reason}")?;
            }
        }
        if let Some(Choice {
            on,
            form,
            command,
            seconds,
            prompt,
            answer,
        }) = &self.choice
        {
            let time = duration(*seconds);
            write!(
                f,
                "\n\nfastest that fits: {form} on {on}: {time} for a prompt of {prompt} tokens and an answer of {answer}"
            )?;
            if !command.is_empty() {
                write!(f, "\n  {command}")?;
            }
        }
        self.advice
            .iter()
            .try_for_each(|advice| write!(f, "\n{advice}"))
    }
}

impl Report {
    fn peaks(&self) -> String {
        let Some(Limit {
            arithmetic,
            bytes_read_per_second,
            ..
        }) = &self.limit
        else {
            return String::new();
        };
        format!(
            "{} threads compute {} and read {:.1} GB/s; ",
            arithmetic.threads,
            arithmetic.sentence(),
            bytes_read_per_second / 1e9
        )
    }

    /// Returns a row for each form, also if the form runs on several processors.
    fn memory_table(&self) -> String {
        let Some(first) = self.predictions.first() else {
            return String::new();
        };
        let contexts = first
            .needs
            .iter()
            .map(|needs| format!("context {}", output::count(needs.context)));
        let names: Vec<_> = ["memory".into(), "weights".into(), "activations".into()]
            .into_iter()
            .chain(contexts)
            .chain(["longest".into()])
            .collect();
        let mut seen = Vec::new();
        let mut rows = Vec::new();
        for prediction in &self.predictions {
            let name = prediction.form.name;
            if seen.contains(&name) {
                continue;
            }
            seen.push(name);
            let needs = prediction.needs.iter().map(|needs| {
                let mark = if needs.fits == Some(false) {
                    " (too much)"
                } else {
                    ""
                };
                format!("{}{mark}", bytes(needs.total_bytes))
            });
            let activations = prediction
                .needs
                .first()
                .map_or(0, |needs| needs.activation_bytes);
            let longest = prediction
                .longest_context
                .map_or("unknown".into(), output::count);
            let labels = [
                name.to_owned(),
                bytes(prediction.form.weight_bytes),
                bytes(activations),
            ];
            rows.push(labels.into_iter().chain(needs).chain([longest]).collect());
        }
        output::table(
            &names.iter().map(String::as_str).collect::<Vec<_>>(),
            1,
            &rows,
        )
    }

    fn speed_table(&self) -> String {
        let Some(first) = self.predictions.first() else {
            return String::new();
        };
        let prompts = first
            .prompts
            .iter()
            .map(|prompt| format!("first token of {}", output::count(prompt.tokens)));
        let decode = first
            .decode
            .iter()
            .map(|decode| format!("tok/s after {}", output::count(decode.position)));
        let names: Vec<_> = ["speed".into(), "on".into()]
            .into_iter()
            .chain(prompts)
            .chain(decode)
            .collect();
        let row = |prediction: &Prediction| {
            let mark = match prediction.source {
                Source::Measured => "",
                Source::Limit => " (at most)",
                Source::Simulated => " (simulated)",
            };
            let labels = [
                prediction.form.name.to_owned(),
                format!("{}{mark}", prediction.on),
            ];
            let prompts = prediction
                .prompts
                .iter()
                .map(|prompt| duration(prompt.seconds));
            let decode = prediction
                .decode
                .iter()
                .map(|decode| rate(decode.tokens_per_second));
            labels.into_iter().chain(prompts).chain(decode).collect()
        };
        let rows: Vec<_> = self.predictions.iter().map(row).collect();
        output::table(
            &names.iter().map(String::as_str).collect::<Vec<_>>(),
            2,
            &rows,
        )
    }

    /// Describes the parts of a prompt's and a token's time, and compares their rates with the machine's peaks.
    fn reason(&self, prediction: &Prediction) -> Option<String> {
        let limit = self
            .limit
            .as_ref()
            .filter(|_| prediction.source == Source::Measured)?;
        let prompt = prediction
            .prompts
            .iter()
            .find(|prompt| prompt.tokens == QUESTION)
            .or(prediction.prompts.last())?;
        let decode = prediction.decode.first()?;
        let arithmetic = &limit.arithmetic;
        let (peak, of) = match prediction.form.prefill {
            Product::W8a8 => (arithmetic.int8_operations_per_second, "INT8"),
            Product::Weights(Numbers::Int4 | Numbers::Int8 | Numbers::Blocks(_))
                if arithmetic.bf16_operations_per_second.is_some() =>
            {
                (arithmetic.bf16_operations_per_second, "bf16")
            }
            Product::Weights(_) => (Some(arithmetic.f32_operations_per_second), "f32"),
        };
        let percent = |share: f64| format!("{:.0} %", 100.0 * share);
        let of_prompt = |part: f64| percent(part / prompt.seconds);
        // The output matrix may have another format than the linear layers, but its time is in this rate.
        let linear_rate = prompt.linear_operations / (prompt.parts.linear + prompt.parts.output);
        let share = peak.map_or(String::new(), |peak| {
            format!(", {} of the {of} peak", percent(linear_rate / peak))
        });
        let bandwidth = decode.bytes_read as f64 / decode.seconds;
        Some(format!(
            "{}: a prompt of {} tokens takes {} of its time for linear layers ({:.0} Gop/s{share}), {} for attention, {} for other operators; a token reads {} at {:.1} GB/s, {} of the memory bandwidth",
            prediction.form.name,
            prompt.tokens,
            of_prompt(prompt.parts.linear + prompt.parts.shadows + prompt.parts.output),
            linear_rate / 1e9,
            of_prompt(prompt.parts.attention),
            of_prompt(prompt.parts.between),
            bytes(decode.bytes_read),
            bandwidth / 1e9,
            percent(bandwidth / limit.bytes_read_per_second)
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_three_digits() {
        let shown = [0.00123, 0.0456, 0.789, 1.234, 12.34, 1234.0].map(duration);
        assert_eq!(
            shown,
            ["1.23 ms", "45.6 ms", "789 ms", "1.23 s", "12.3 s", "1234 s"]
        );
    }

    fn prediction(name: &'static str, weight_bytes: usize, fits: bool, seconds: f64) -> Prediction {
        let parts = Parts {
            linear: seconds,
            ..Parts::default()
        };
        let description = triad_model::family::shape("smollm2-135m").unwrap();
        let form = WeightFormat {
            name,
            prefill: Product::W8a8,
            decode: Product::W8a8,
            output: Numbers::Int8,
            shadows: [(0.0, 0.0); 4],
            weight_bytes,
            command: String::new(),
        };
        Prediction {
            on: "CPU".into(),
            source: Source::Measured,
            form,
            needs: vec![Needs {
                context: 1024,
                weight_bytes,
                kv_cache_bytes: 0,
                activation_bytes: 0,
                total_bytes: weight_bytes,
                fits: Some(fits),
            }],
            longest_context: Some(if fits { 4096 } else { 0 }),
            prompts: vec![Prompt::new(256, parts, &description)],
            decode: vec![Decode::new(64, parts, 1)],
        }
    }

    fn report(predictions: Vec<Prediction>, available: u64) -> Report {
        let description = triad_model::family::shape("smollm2-135m").unwrap();
        Report::new(
            "m",
            &description,
            "d".into(),
            None,
            Some(available),
            KvFormat::F16,
            predictions,
        )
    }

    #[test]
    fn the_fastest_form_is_chosen_of_those_that_fit() {
        let all = || {
            vec![
                prediction("large", 3 << 20, false, 0.1),
                prediction("small", 1 << 20, true, 0.3),
                prediction("other", 2 << 20, true, 0.2),
            ]
        };
        assert_eq!(report(all(), 2 << 20).choice.unwrap().form, "other");
        let text = report(all(), 2 << 20).to_string();
        assert!(
            text.contains("3.0 MiB (too much)") && text.contains("fastest that fits: other"),
            "{text}"
        );
        assert!(
            text.contains("--context 4096, or --cache-type int8"),
            "{text}"
        );
    }

    #[test]
    fn where_nothing_fits_the_least_that_is_needed_is_printed() {
        let report = report(vec![prediction("large", 3 << 20, false, 0.1)], 1 << 20);
        assert!(report.choice.is_none());
        assert!(
            report.advice[0]
                .contains("needs 3.0 MiB with a context of 1,024, and 1.0 MiB are available"),
            "{:?}",
            report.advice
        );
    }
}
