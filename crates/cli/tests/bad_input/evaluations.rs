//! Data, tasks and methods that `triad eval` refuses.

use super::support::Place;
use super::support::gguf::Gguf;
use super::{Case, case, input, usage};

/// Returns a case of a data file that `triad eval` refuses.
fn data(
    what: &'static str,
    task: &'static str,
    content: &'static [u8],
    message: &[&'static str],
) -> Case {
    let arguments = [
        "eval",
        "-m",
        "model.gguf",
        "--task",
        task,
        "--data",
        "data.jsonl",
    ];
    let prepare = move |place: &Place| {
        place.write("model.gguf", Gguf::tiny().bytes());
        place.write("data.jsonl", content);
    };
    let mut case = case(what, &arguments, prepare, 1, message);
    case.message.push("data.jsonl");
    case
}

/// Returns a case of arguments that `triad eval` refuses, with valid files.
fn evaluation(what: &'static str, arguments: &[&'static str], message: &[&'static str]) -> Case {
    let prepare = |place: &Place| {
        place.write("model.gguf", Gguf::tiny().bytes());
        for name in [
            "a.jsonl",
            "data/lambada_a.jsonl",
            "data/lambada_b.jsonl",
            "data/hellaswag_train.jsonl",
        ] {
            place.write(name, "{\"text\": \"a b\"}\n");
        }
    };
    case(
        what,
        &[&["eval", "-m", "model.gguf"], arguments].concat(),
        prepare,
        1,
        message,
    )
}

/// Returns the case of a package that would be quantized a second time.
fn package_by_method() -> Case {
    let arguments = [
        "eval",
        "-m",
        "package",
        "--task",
        "lambada",
        "--data",
        "data.jsonl",
        "--method",
        "w8a8",
    ];
    let prepare = |place: &Place| {
        place.write("model.gguf", Gguf::tiny().bytes());
        place.write("data.jsonl", "{\"text\": \"a b\"}\n");
        assert!(
            place
                .triad(&["prepare", "model.gguf", "-o", "package", "--tokens", "50"])
                .status
                .success()
        );
    };
    case(
        "package by another method",
        &arguments,
        prepare,
        1,
        &["package is a package", "quantized already"],
    )
}

pub fn cases() -> Vec<Case> {
    let mmlu = br#"{"subject": "law", "question": "q", "choice0": "a", "choice1": "b", "choice2": "c", "choice3": "d", "answer": 0}"#;
    let few_shot = |what, examples: usize, message: &[&'static str]| {
        let arguments = [
            "eval",
            "-m",
            "model.gguf",
            "--task",
            "mmlu",
            "--data",
            "data.jsonl",
            "--few-shot",
            "examples.jsonl",
        ];
        let prepare = move |place: &Place| {
            place.write("model.gguf", Gguf::tiny().bytes());
            place.write(
                "data.jsonl",
                String::from_utf8_lossy(mmlu).replace("law", "history"),
            );
            place.write(
                "examples.jsonl",
                [&mmlu[..], b"\n"].concat().repeat(examples),
            );
        };
        case(what, &arguments, prepare, 1, message)
    };
    vec![
        data("empty data file", "lambada", b"\n", &["the data file is empty"]),
        data("data that is not text", "perplexity", b"word \xff", &["UTF-8", "byte 5"]),
        data(
            "data with a byte order mark",
            "lambada",
            b"\xef\xbb\xbf{\"text\": \"a b\"}",
            &["byte order mark", "expected UTF-8 without one"],
        ),
        data(
            "passage of one word",
            "lambada",
            b"{\"text\": \"word\"}",
            &["line 1", "single word", "expected a passage"],
        ),
        data("data that is not JSON", "lambada", b"{\"text\": \"a b\"}\n{\"text\"\n", &["line 2", "not JSON"]),
        data("data row that is no object", "lambada", b"[]", &["line 1", "expected a JSON object"]),
        data("data of another task", "lambada", mmlu, &["line 1", "\"text\" is missing", "expected a text"]),
        data(
            "number where a text belongs",
            "winogrande",
            br#"{"sentence": 1}"#,
            &["line 1", "\"sentence\" is a number", "expected a text"],
        ),
        data(
            "sentence without a blank",
            "winogrande",
            br#"{"sentence": "He sat.", "option1": "a", "option2": "b", "answer": "1"}"#,
            &["line 1", "\"sentence\" has no blank"],
        ),
        data(
            "three endings",
            "hellaswag",
            br#"{"activity_label": "a", "ctx": "b", "endings": ["c", "d", "e"], "label": 1}"#,
            &["line 1", "\"endings\" has 3 entries", "expected a list of 4 texts"],
        ),
        data(
            "answer out of range",
            "hellaswag",
            br#"{"activity_label": "a", "ctx": "b", "endings": ["c", "d", "e", "f"], "label": 4}"#,
            &["line 1", "\"label\" is \"4\"", "expected one of 0, 1, 2, 3"],
        ),
        data(
            "choices in no list",
            "openbookqa",
            br#"{"Question Stem": "a", "Choices": "b or c", "Answer Key": "A"}"#,
            &["line 1", "\"Choices\" does not list four choices"],
        ),
        data(
            "data row longer than the context",
            "lambada",
            br#"{"text": "It was the longest row of all, and the model would have no room for it."}"#,
            &["line 1", "context of 70 tokens", "the model's 64"],
        ),
        input(
            "data file that is not there",
            &["eval", "-m", "model.gguf", "--task", "lambada", "--data", "data.jsonl"],
            &["data.jsonl", "No such file"],
        ),
        evaluation(
            "several tasks, one file",
            &["--task", "lambada,mmlu", "--data", "a.jsonl"],
            &["a.jsonl", "folder", "2 tasks"],
        ),
        evaluation(
            "folder without the data of a task",
            &["--task", "hellaswag", "--data", "data"],
            &["data: ", "no file for hellaswag", "hellaswag*.jsonl"],
        ),
        evaluation(
            "folder with two files for a task",
            &["--task", "lambada", "--data", "data"],
            &["data: ", "lambada_a.jsonl and lambada_b.jsonl", "expected one file"],
        ),
        evaluation(
            "pruning without shadows",
            &["--task", "lambada", "--data", "a.jsonl", "--method", "w8a8", "--prune", "none"],
            &["--prune is for --method shadow"],
        ),
        evaluation(
            "smoothing without shadows",
            &["--task", "lambada", "--data", "a.jsonl", "--smoothing", "0"],
            &["--smoothing is for --method shadow"],
        ),
        package_by_method(),
        few_shot("too few solved examples", 4, &["examples.jsonl", "\"law\" has 4 solved examples", "expected 5"]),
        few_shot("subject without solved examples", 5, &["data.jsonl, line 1", "\"history\"", "examples.jsonl"]),
        usage("unknown task", &["eval", "--task", "chess", "--data", "data.jsonl"], &["chess", "lambada"]),
        usage(
            "unknown method",
            &["eval", "--task", "lambada", "--data", "data.jsonl", "--method", "float,int5"],
            &["int5", "llm.int8"],
        ),
        usage("limit of 0", &["eval", "--task", "lambada", "--data", "data.jsonl", "--limit", "0"], &["--limit"]),
    ]
}
