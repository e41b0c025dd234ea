//! `triad eval` on a tiny model: the likelihoods of every task are those of its texts, computed one by one here.

use std::sync::Arc;

use serde_json::{Value as Json, json};
use triad_engine::{Cancel, LoadOptions, Model, Session, SessionOptions, Threads};

use crate::support::gguf::{Gguf, VOCAB, Value};
use crate::support::{Place, stderr, stdout};
use crate::{json, succeed};

/// The tiny model's only special token.
const END: u32 = VOCAB as u32 - 1;

pub(super) const LAMBADA: &str = r#"{"text": "We ate the cake"}
{"text": "not alone"}
{"text": "Then she said: \"no\""}
"#;
pub(super) const HELLASWAG: &str = r#"{"activity_label": "Tea", "ctx": "A cup. he", "endings": ["sips.", "sips [sic] tea.", "is", "go"], "label": 2}
"#;
const WINOGRANDE: &str = r#"{"sentence": "Ann met Eve when _ was old.", "option1": "Ann", "option2": "Eve", "answer": "1"}
{"sentence": "The bee bit Bob as _ sat.", "option1": "the bee", "option2": "Bob", "answer": "2"}
"#;
const OPENBOOKQA: &str = r#"{"Question Stem": "Ice is ", "Choices": "(A) hot (B) cold (C) a gas (D) alive", "Answer Key": "B"}
"#;
const MMLU: &str = r#"{"subject": "b", "question": "1?", "choice0": "w", "choice1": "x", "choice2": "y", "choice3": "z", "answer": 3}
{"subject": "a", "question": "2?", "choice0": "w", "choice1": "x", "choice2": "y", "choice3": "z", "answer": 0}
{"subject": "b", "question": "3?", "choice0": "w", "choice1": "x", "choice2": "y", "choice3": "z", "answer": 1}
"#;
pub(super) const TEXT: &str = " = Ice = \n\n Ice is cold water .\n It floats .\n";

/// Writes a model whose tokens are bytes, and a file for every task.
fn place(context: u32) -> Place {
    let place = Place::new();
    place.write(
        "model.gguf",
        Gguf::tiny()
            .with("llama.context_length", Value::U32(context))
            .bytes(),
    );
    place.write("lambada.jsonl", LAMBADA);
    place.write("hellaswag.jsonl", HELLASWAG);
    place.write("winogrande.jsonl", WINOGRANDE);
    place.write("openbookqa.jsonl", OPENBOOKQA);
    place.write("mmlu.jsonl", MMLU);
    let example = |subject, question: usize| {
        let row = json!({"subject": subject, "question": question.to_string(), "choice0": "w", "choice1": "x",
            "choice2": "y", "choice3": "z", "answer": question % 4});
        row.to_string()
    };
    let examples: Vec<_> = (0..6)
        .flat_map(|question| ["a", "b"].map(|subject| example(subject, question)))
        .collect();
    place.write("mmlu_fewshot.jsonl", examples.join("\n"));
    place.write("text.txt", TEXT);
    place
}

fn eval(place: &Place, task: &str, data: &str, more: &[&str]) -> Json {
    let mut results = compare(place, &[&["--task", task, "--data", data], more].concat());
    assert_eq!(results.len(), 1);
    results.remove(0)
}

/// Returns the results of all methods and tasks.
fn compare(place: &Place, arguments: &[&str]) -> Vec<Json> {
    let mut report =
        json(&place.triad(&[&["eval", "-m", "model.gguf", "--json"], arguments].concat()));
    assert_eq!(report["model"], "model.gguf");
    serde_json::from_value(report["results"].take()).unwrap()
}

/// A model that scores one text at a time.
struct Plain(Arc<Model>);

impl Plain {
    fn new(place: &Place) -> Self {
        Self(Arc::new(
            Model::load(
                &place.path("model.gguf"),
                &LoadOptions {
                    threads: Threads::Count(1),
                    ..Default::default()
                },
            )
            .unwrap(),
        ))
    }

    /// Returns the log-likelihood of `continuation` after `context`, and whether greedy decoding generates it. Without
    /// a context, the end token comes first, since the model has no other special token.
    fn score(&self, context: &str, continuation: &str) -> (f64, bool) {
        let encode = |text: &str| self.0.encode_prompt(text).unwrap();
        let (before, tokens) = match context {
            "" => (1, [vec![END], encode(continuation)].concat()),
            _ => (
                encode(context).len(),
                encode(&[context, continuation].concat()),
            ),
        };
        let options = SessionOptions {
            context: tokens.len(),
            chunk: tokens.len(),
            ..SessionOptions::default()
        };
        let mut session = Session::new(&self.0, &options).unwrap();
        let logits = session.prefill_all_logits(&tokens, &Cancel::new()).unwrap();
        let rows = logits.chunks(VOCAB).skip(before - 1);
        tokens[before..]
            .iter()
            .zip(rows)
            .fold((0.0, true), |(sum, greedy), (token, logits)| {
                let logit = logits[*token as usize];
                let total: f64 = logits.iter().map(|logit| f64::from(*logit).exp()).sum();
                (
                    sum + f64::from(logit) - total.ln(),
                    greedy && logits.iter().all(|other| *other <= logit),
                )
            })
    }
}

/// Asserts that the likelihoods of every row are those of these contexts and continuations.
fn same_likelihoods(place: &Place, evaluation: &Json, expected: &[Vec<(&str, &str)>]) {
    let plain = Plain::new(place);
    let rows = evaluation["rows"]["log_likelihoods"].as_array().unwrap();
    assert_eq!(rows.len(), expected.len());
    for (row, texts) in rows.iter().zip(expected) {
        let row: Vec<_> = row
            .as_array()
            .unwrap()
            .iter()
            .map(|value| value.as_f64().unwrap())
            .collect();
        assert_eq!(row.len(), texts.len());
        for (value, (context, continuation)) in row.iter().zip(texts) {
            let (expected, _) = plain.score(context, continuation);
            assert!(
                (value - expected).abs() < 1e-2,
                "{context:?} {continuation:?}: {value} is not {expected}"
            );
        }
    }
}

#[test]
fn lambada_scores_last_words() {
    let place = place(600);
    let evaluation = eval(&place, "lambada", "lambada.jsonl", &[]);
    let texts = [
        ("We ate the", " cake"),
        ("not", " alone"),
        ("Then she said:", " \"no\""),
    ];
    same_likelihoods(&place, &evaluation, &texts.map(|text| vec![text]));
    let plain = Plain::new(&place);
    let greedy = texts.map(|(context, word)| plain.score(context, word).1);
    assert_eq!(evaluation["rows"]["correct"], json!(greedy));
    assert_eq!(evaluation["metrics"][1]["name"], "perplexity");
    assert_eq!(evaluation["count"], 3);
}

#[test]
fn choices_are_scored_after_their_contexts() {
    let place = place(600);
    let evaluation = eval(&place, "hellaswag", "hellaswag.jsonl", &[]);
    let endings = [" sips.", " sips tea.", " is", " go"];
    same_likelihoods(
        &place,
        &evaluation,
        &[endings.map(|ending| ("Tea: A cup. he", ending)).to_vec()],
    );
    assert_eq!(evaluation["metrics"][0]["name"], "acc_norm");
    // The context once, its last byte for every ending but the first, and all bytes of the endings but their last ones.
    let run = "Tea: A cup. he".len() + 3 + endings.concat().len() - 4;
    assert_eq!(evaluation["tokens"], run);

    let evaluation = eval(&place, "winogrande", "winogrande.jsonl", &[]);
    let expected = [
        vec![
            ("Ann met Eve when Ann", " was old."),
            ("Ann met Eve when Eve", " was old."),
        ],
        vec![
            ("The bee bit Bob as the bee", " sat."),
            ("The bee bit Bob as Bob", " sat."),
        ],
    ];
    same_likelihoods(&place, &evaluation, &expected);
    assert_eq!(evaluation["metrics"][0]["name"], "acc");

    // The space at the end of the stem belongs to the choices.
    let evaluation = eval(&place, "openbookqa", "openbookqa.jsonl", &[]);
    let choices = ["  hot", "  cold", "  a gas", "  alive"];
    same_likelihoods(
        &place,
        &evaluation,
        &[choices.map(|choice| ("Ice is", choice)).to_vec()],
    );
}

/// Returns the text before the letter of a row of [`MMLU`].
fn mmlu_context(subject: &str, question: &str, examples: usize) -> String {
    let mut text =
        format!("The following are multiple choice questions (with answers) about {subject}.\n\n");
    for index in 0..examples {
        text += &format!(
            "{index}\nA. w\nB. x\nC. y\nD. z\nAnswer: {}\n\n",
            ["A", "B", "C", "D"][index % 4]
        );
    }
    text + &format!("{question}\nA. w\nB. x\nC. y\nD. z\nAnswer:")
}

#[test]
fn letters_are_scored_after_five_examples_that_are_run_once_for_each_subject() {
    let place = place(600);
    let evaluation = eval(&place, "mmlu", "mmlu.jsonl", &[]);
    let contexts = [("b", "1?"), ("a", "2?"), ("b", "3?")]
        .map(|(subject, question)| mmlu_context(subject, question, 5));
    let letters = [" A", " B", " C", " D"];
    let expected = contexts
        .each_ref()
        .map(|context| letters.map(|letter| (context.as_str(), letter)).to_vec());
    same_likelihoods(&place, &evaluation, &expected);
    assert_eq!(evaluation["notes"], json!([]));
    let run = evaluation["tokens"].as_u64().unwrap() as usize;
    assert!(
        run < 2 * contexts[0].len(),
        "{run} tokens for three questions of {} on two subjects",
        contexts[0].len()
    );
}

#[test]
fn examples_that_do_not_fit_the_context_are_left_out_with_a_note() {
    let longest = mmlu_context("a", "1?", 2).len() + 10;
    let place = place(longest as u32);
    let evaluation = eval(&place, "mmlu", "mmlu.jsonl", &["--limit", "1"]);
    let context = mmlu_context("b", "1?", 2);
    same_likelihoods(
        &place,
        &evaluation,
        &[[" A", " B", " C", " D"]
            .map(|letter| (context.as_str(), letter))
            .to_vec()],
    );
    let printed = evaluation["notes"][0].as_str().unwrap();
    assert!(
        printed.starts_with("1 questions have fewer solved examples"),
        "{printed}"
    );
}

#[test]
fn perplexity_counts_every_token_of_the_text_once() {
    let place = place(600);
    let evaluation = eval(&place, "perplexity", "text.txt", &["--window", "16"]);
    let plain = Plain::new(&place);
    let starts: Vec<_> = (0..TEXT.len()).step_by(16).collect();
    let log_likelihood = |start: &usize| {
        let window = &TEXT[*start..TEXT.len().min(start + 16)];
        let before = if *start == 0 {
            ""
        } else {
            &TEXT[start - 1..*start]
        };
        plain.score(before, window).0
    };
    let expected = -starts.iter().map(log_likelihood).sum::<f64>() / TEXT.len() as f64;
    let value = |index: usize| evaluation["metrics"][index]["value"].as_f64().unwrap();
    assert_eq!(evaluation["metrics"][3]["name"], "loss");
    assert!(
        (value(3) - expected).abs() < 1e-3,
        "{} is not {expected}",
        value(3)
    );
    assert!((value(0) - value(3).exp()).abs() < 1e-9 * value(0));
    // A token is a byte, and the text has ten words.
    assert!((value(2) - value(0)).abs() < 1e-9 * value(0));
    assert!(
        (value(1).ln() - value(3) * TEXT.len() as f64 / TEXT.split_whitespace().count() as f64)
            .abs()
            < 1e-9
    );
    assert_eq!(evaluation["count"], starts.len());
    assert_eq!(
        evaluation["rows"]["losses"].as_array().unwrap().len(),
        starts.len()
    );
}

#[test]
fn a_limit_takes_rows_evenly_over_the_file() {
    let place = place(600);
    let rows: String = (0..10)
        .map(|row| format!("{{\"text\": \"{} x\"}}\n", "a".repeat(row + 1)))
        .collect();
    place.write("ten.jsonl", rows);
    let all = eval(&place, "lambada", "ten.jsonl", &[]);
    let some = eval(&place, "lambada", "ten.jsonl", &["--limit", "4"]);
    let row = |evaluation: &Json, index: usize| {
        evaluation["rows"]["log_likelihoods"][index][0]
            .as_f64()
            .unwrap()
    };
    assert_eq!(some["count"], 4);
    for (taken, index) in [0, 2, 5, 7].into_iter().enumerate() {
        assert!((row(&some, taken) - row(&all, index)).abs() < 1e-2);
    }
    assert_eq!(
        eval(&place, "lambada", "ten.jsonl", &["--limit", "11"])["count"],
        10
    );
}

#[test]
fn without_json_the_score_comes_first_with_its_error() {
    let place = place(600);
    let output = place.triad(&[
        "eval",
        "-m",
        "model.gguf",
        "--task",
        "winogrande",
        "--data",
        "winogrande.jsonl",
    ]);
    let printed = stdout(&output);
    let mut lines = printed.lines();
    assert!(
        lines
            .next()
            .is_some_and(|line| line.starts_with("acc ") && line.contains(" ± ")),
        "{printed}"
    );
    assert!(
        printed.contains("rows    2\n") && printed.contains(" tokens/s"),
        "{printed}"
    );
}

#[test]
fn methods_and_tasks_are_compared_as_each_alone_would_be_evaluated() {
    let place = place(600);
    let tasks = [
        "--task",
        "winogrande,perplexity,winogrande",
        "--task",
        "hellaswag",
        "--data",
        ".",
    ];
    let methods = [
        "--method",
        "shadow,llm.int8,float",
        "--prune",
        "none,1",
        "--tokens",
        "500",
    ];
    let together = compare(&place, &[tasks, methods].concat());
    let names: Vec<_> = together
        .iter()
        .map(|result| {
            (
                result["method"].as_str().unwrap(),
                result["task"].as_str().unwrap(),
            )
        })
        .collect();
    let of_method = |method| ["winogrande", "perplexity", "hellaswag"].map(|task| (method, task));
    assert_eq!(
        names,
        ["float", "shadow", "shadow", "llm.int8"]
            .map(of_method)
            .concat()
    );
    let pruned = |result: usize| together[result]["pruned"].as_f64();
    assert_eq!([0, 3, 6, 9].map(pruned), [None, Some(0.0), Some(1.0), None]);
    let seconds = |result: usize| together[result]["prepare_seconds"].as_f64().unwrap();
    assert!(seconds(3) > 0.0 && seconds(3) == seconds(4));

    for (result, method) in [
        (0, &["--method", "float"][..]),
        (
            5,
            &["--method", "shadow", "--prune", "none", "--tokens", "500"],
        ),
        (
            8,
            &["--method", "shadow", "--prune", "1", "--tokens", "500"],
        ),
        (11, &["--method", "llm.int8"]),
    ] {
        let (task, data) = if result == 0 {
            ("winogrande", "winogrande.jsonl")
        } else {
            ("hellaswag", "hellaswag.jsonl")
        };
        let alone = eval(&place, task, data, method);
        assert_eq!(alone["rows"], together[result]["rows"], "{method:?}");
    }
    let rows = |result: usize| &together[result]["rows"];
    assert!(
        rows(2) != rows(5) && rows(5) != rows(8) && rows(2) != rows(11),
        "methods differ"
    );
}

#[test]
fn several_methods_make_a_table_with_float_first() {
    let place = place(600);
    let run = |more: &[&str]| {
        succeed(&place.triad(&[&["eval", "-m", "model.gguf", "--data", "."], more].concat()))
    };
    let table = run(&[
        "--task",
        "all",
        "--method",
        "shadow,float",
        "--prune",
        "auto,none",
        "--tokens",
        "500",
    ]);
    let lines: Vec<_> = table.lines().collect();
    let columns = [
        "lambada",
        "hellaswag",
        "winogrande",
        "openbookqa",
        "mmlu",
        "perplexity",
        "average",
        "difference",
    ];
    assert_eq!(
        lines[0].split_whitespace().skip(1).collect::<Vec<_>>(),
        columns
    );
    assert!(
        lines[1].starts_with("float ") && lines[1].ends_with(" +0.00"),
        "{table}"
    );
    assert!(lines[2].starts_with("shadow, prune auto "), "{table}");
    assert!(lines[3].starts_with("shadow, prune none "), "{table}");
    let note = lines[4];
    assert!(
        note.starts_with("shadow, prune auto: ") && note.ends_with(" % of the shadows left out"),
        "{table}"
    );
    assert_eq!(lines.len(), 5);
    // Mean and difference are computed from the accuracies in the same row.
    let numbers = |line: &str| {
        let words = line
            .split("  ")
            .map(str::trim)
            .filter(|word| !word.is_empty())
            .skip(1);
        words
            .map(|word| word.split(' ').next().unwrap().parse::<f64>().unwrap())
            .collect::<Vec<_>>()
    };
    let (float, shadow) = (numbers(lines[1]), numbers(lines[2]));
    for numbers in [&float, &shadow] {
        assert_eq!(numbers.len(), 8);
        assert!(
            (numbers[..5].iter().sum::<f64>() / 5.0 - numbers[6]).abs() < 0.011,
            "{table}"
        );
    }
    assert!((shadow[6] - float[6] - shadow[7]).abs() < 0.011, "{table}");

    let one = run(&["--task", "perplexity", "--method", "float,llm.int8"]);
    assert_eq!(
        one.lines()
            .next()
            .unwrap()
            .split_whitespace()
            .collect::<Vec<_>>(),
        ["method", "perplexity"]
    );
    assert_eq!(one.lines().count(), 3);
}

#[test]
fn a_package_is_evaluated_as_it_is() {
    let place = place(600);
    succeed(&place.triad(&[
        "prepare",
        "model.gguf",
        "-o",
        "package",
        "--tokens",
        "500",
        "--prune",
        "0.5",
    ]));
    let arguments = [
        "eval",
        "-m",
        "package",
        "--task",
        "hellaswag",
        "--data",
        "hellaswag.jsonl",
    ];
    let report = json(&place.triad(&[&arguments[..], &["--json"]].concat()));
    let of_package = &report["results"][0];
    assert_eq!(
        (&of_package["method"], &of_package["pruned"]),
        (&Json::from("package"), &Json::from(0.5))
    );
    let same = eval(
        &place,
        "hellaswag",
        "hellaswag.jsonl",
        &["--method", "shadow", "--prune", "0.5", "--tokens", "500"],
    );
    assert_eq!(of_package["rows"], same["rows"]);
    let refused = place.triad(&[&arguments[..], &["--method", "shadow"]].concat());
    assert_eq!(refused.status.code(), Some(1));
    assert!(
        stderr(&refused).contains("package is a package, which is quantized already"),
        "{}",
        stderr(&refused)
    );
}

#[test]
#[cfg(unix)]
fn what_is_finished_when_ctrl_c_comes_is_kept() {
    use std::process::Stdio;

    let place = place(256);
    // The second task is long enough to be interrupted before it ends.
    place.write("data/lambada.jsonl", LAMBADA);
    place.write(
        "data/perplexity.txt",
        "It floats on cold water . ".repeat(200_000),
    );
    let arguments = [
        "eval",
        "-m",
        "model.gguf",
        "--task",
        "lambada,perplexity",
        "--data",
        "data",
        "--threads",
        "1",
    ];
    let interrupted = |more: &[&str], seconds: u64| {
        let mut command = place.command(&[&arguments[..], more].concat());
        let child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(std::time::Duration::from_secs(seconds));
        let killed = std::process::Command::new("sh")
            .args(["-c", &format!("kill -INT {}", child.id())])
            .status();
        assert!(killed.unwrap().success());
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(130), "{}", stderr(&output));
        stdout(&output)
    };
    // Rows of the first task take milliseconds, but a busy machine may start late.
    let first_task_is_done = |more: &[&str], is_done: fn(&str) -> bool| {
        [1, 4, 16]
            .into_iter()
            .map(|seconds| interrupted(more, seconds))
            .find(|shown| is_done(shown))
            .unwrap()
    };
    let report = first_task_is_done(&["--json"], |shown| shown.contains("lambada"));
    let report: Json = serde_json::from_str(&report).unwrap();
    assert_eq!(report["interrupted"], true);
    let results = report["results"].as_array().unwrap();
    assert_eq!((results.len(), &results[0]["task"]), (1, &"lambada".into()));
    let table = first_task_is_done(&[], |shown| shown.contains('±'));
    let row = table
        .lines()
        .find(|line| line.starts_with("float"))
        .unwrap();
    assert!(row.trim_end().ends_with('-'), "{table}");
}
