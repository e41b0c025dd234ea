//! Programs in C and C++ with the header and the libraries that were built next to this test, on the default model.
#![cfg(unix)]

// The tests of the command use the other functions.
#[allow(dead_code)]
#[path = "../../../crates/cli/tests/support/gguf.rs"]
mod gguf;
#[path = "../../../crates/cli/tests/support/scripted.rs"]
mod scripted;
/// The module of the command's tests that `scripted` uses.
mod support {
    pub(crate) use crate::gguf;
}

use std::path::{Path, PathBuf};
use std::process::Command;

use safetensors::SafeTensors;
use scripted::{Word, scripted};

const STRICT: [&str; 4] = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"];

/// Returns the folder in which cargo puts the libraries that tests depend on: that of this test.
fn libraries() -> PathBuf {
    std::env::current_exe()
        .unwrap()
        .parent()
        .unwrap()
        .to_owned()
}

/// Compiles a file of this crate with one of its libraries.
fn compile(
    compiler: &str,
    source: &str,
    standard: &str,
    library: &[String],
    folder: &Path,
) -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = folder.join("program");
    let variable = if compiler == "cc" { "CC" } else { "CXX" };
    let compiler = std::env::var(variable).unwrap_or_else(|_| compiler.to_owned());
    let compiled = Command::new(compiler)
        .args(STRICT)
        .arg(format!("-std={standard}"))
        .arg("-I")
        .arg(here.join("include"))
        .arg(here.join(source))
        .args(library)
        .args(["-pthread", "-ldl", "-lm", "-o"])
        .arg(&program)
        .output()
        .expect("there is a compiler");
    assert!(
        compiled.status.success(),
        "{source}: {}",
        String::from_utf8_lossy(&compiled.stderr)
    );
    program
}

/// Returns the options that link the static library, or the shared one, which gets its names in `folder`.
fn linked(shared: bool, folder: &Path) -> Vec<String> {
    if !shared {
        return vec![libraries().join("libtriad.a").display().to_string()];
    }
    // Programs find it by the second name: see build.rs.
    for name in ["libtriad.so", "libtriad.so.0"] {
        std::os::unix::fs::symlink(libraries().join("libtriad.so"), folder.join(name)).unwrap();
    }
    let folder = folder.display();
    vec![
        format!("-L{folder}"),
        format!("-Wl,-rpath,{folder}"),
        "-ltriad".into(),
    ]
}

fn run(program: &Path, arguments: &[&str]) -> (String, String) {
    let run = Command::new(program).args(arguments).output().unwrap();
    let (output, error) = (
        String::from_utf8_lossy(&run.stdout),
        String::from_utf8_lossy(&run.stderr),
    );
    assert!(
        run.status.success(),
        "{}: {output}{error}",
        program.display()
    );
    (output.into_owned(), error.into_owned())
}

#[test]
fn every_function_does_what_the_header_promises_and_refuses_what_it_cannot_do() {
    let folder = tempfile::tempdir().unwrap();
    let program = compile(
        "cc",
        "tests/calls.c",
        "gnu11",
        &linked(true, folder.path()),
        folder.path(),
    );
    let (output, _) = run(
        &program,
        &[
            "smollm2-135m",
            folder.path().join("session").to_str().unwrap(),
        ],
    );
    assert_eq!(output, "all calls are as they should be\n");
}

#[test]
fn the_examples_answer_with_the_static_library() {
    let folder = tempfile::tempdir().unwrap();
    let program = compile(
        "cc",
        "examples/chat.c",
        "c99",
        &linked(false, folder.path()),
        folder.path(),
    );
    let (answer, notes) = run(&program, &["Name three colours."]);
    assert!(
        answer.trim().len() > 10
            && notes.contains("loading smollm2-135m")
            && notes.contains("a second"),
        "{notes}"
    );
    let program = compile(
        "c++",
        "examples/sessions.cpp",
        "c++11",
        &linked(false, folder.path()),
        folder.path(),
    );
    let (answers, _) = run(&program, &[]);
    assert!(
        answers.starts_with("Name three colours.\n") && answers.contains("What is a number?\n"),
        "{answers}"
    );
    let made = |source: &str| {
        let library = linked(false, folder.path());
        run(&compile("cc", source, "c99", &library, folder.path()), &[]).0
    };
    let answer: serde_json::Value = serde_json::from_str(&made("examples/constrain.c")).unwrap();
    assert!(answer["city"].is_string(), "{answer}");
    let cosine: f32 = made("examples/embed.c").trim().parse().unwrap();
    assert!((0.5..1.0).contains(&cosine), "{cosine}");
}

#[test]
fn an_example_that_fails_prints_why() {
    let folder = tempfile::tempdir().unwrap();
    let program = compile(
        "cc",
        "examples/chat.c",
        "c99",
        &linked(false, folder.path()),
        folder.path(),
    );
    let run = Command::new(program)
        .args(["Hello", "/nowhere.gguf"])
        .output()
        .unwrap();
    assert_eq!(run.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&run.stderr).contains("/nowhere.gguf"));
}

#[test]
fn answers_to_pictures_are_those_of_transformers() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/pictures");
    let lines = std::fs::read_to_string(golden.join("chat.json")).unwrap();
    let talk: serde_json::Value = serde_json::from_str(lines.lines().next().unwrap()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let program = compile(
        "cc",
        "tests/images.c",
        "c99",
        &linked(true, folder.path()),
        folder.path(),
    );
    let text = |pointer: &str| talk.pointer(pointer).unwrap().as_str().unwrap();
    let picture = golden.join("files").join(text("/files/0"));
    let arguments = [
        golden.join("chat").display().to_string(),
        picture.display().to_string(),
        text("/messages/0/content/1/text").to_owned(),
    ];
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    let (output, _) = run(&program, &arguments);
    // The program prints the answer's tokens, first with the path of the picture and then with its bytes. The last token is
    // not in the session, which has computed only those before it.
    let expected = talk["answer"].as_array().unwrap();
    let expected = expected[..expected.len() - 1]
        .iter()
        .map(ToString::to_string);
    let expected = expected.collect::<Vec<_>>().join(" ");
    assert_eq!(output, format!("{expected}\n{expected}\n"));
}

#[test]
fn calls_of_tools_reach_their_callback_and_results_continue_the_conversation() {
    let folder = tempfile::tempdir().unwrap();
    let library = linked(true, folder.path());
    let program = compile("cc", "tests/tools.c", "c99", &library, folder.path());
    let words = [
        Word::Control("<|end|>"),
        Word::Control("<|ask|>"),
        Word::Control("<tool_call>"),
        Word::Text("{\"name\": \"add\", \"arguments\": {\"a\": 2}}"),
        Word::Control("</tool_call>"),
        Word::Control("<|tell|>"),
        Word::Text("five"),
    ];
    let next = [(1, 2), (2, 3), (3, 4), (4, 0), (5, 6), (6, 0)];
    // The script tells after the result alone, and the template reads the call as OpenAI's form has it.
    let template = "{% set last = messages[-1] %}{% if last.role == 'tool' %}\
        {{ messages[1].tool_calls[0].function.name }}{{ last.content }}<|tell|>\
        {% elif tools[0].function.name == 'add' %}<|ask|>{% endif %}";
    let model = folder.path().join("model.gguf");
    std::fs::write(&model, scripted(&words, &next, 0, template).bytes()).unwrap();
    let (output, _) = run(&program, &[model.to_str().unwrap()]);
    let call = "call add {\"a\":2}\n";
    assert_eq!(output, format!("{call}text five\n{call}"));
}

#[test]
fn adapters_with_scales_give_the_logits_of_peft_until_they_are_removed() {
    let folder = tempfile::tempdir().unwrap();
    let library = linked(true, folder.path());
    let program = compile("cc", "tests/adapters.c", "c99", &library, folder.path());
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden");
    let bytes = std::fs::read(golden.join("adapters/golden.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let words = |name: &str| -> Vec<[u8; 4]> {
        let data = tensors.tensor(name).unwrap().data();
        data.as_chunks::<4>().0.to_vec()
    };
    let path = |name: &str| golden.join(name).display().to_string();
    let mut arguments = vec![
        path("families/llama"),
        path("adapters/llama-patterns"),
        "1.5".to_owned(),
        path("adapters/llama-all.gguf"),
        "0.5".to_owned(),
    ];
    let tokens = words("llama-both.tokens");
    arguments.extend(
        tokens
            .iter()
            .map(|token| u32::from_le_bytes(*token).to_string()),
    );
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    let (output, _) = run(&program, &arguments);
    let rows: Vec<Vec<f32>> = output
        .lines()
        .map(|line| {
            line.split_whitespace()
                .map(|one| one.parse().unwrap())
                .collect()
        })
        .collect();
    let [before, with, after_failure, removed] = &rows[..] else {
        panic!("{output}");
    };
    let expected = words("llama-both.logits");
    let expected: Vec<f32> = expected[expected.len() - with.len()..]
        .iter()
        .map(|one| f32::from_le_bytes(*one))
        .collect();
    let largest = expected
        .iter()
        .fold(0.0f32, |most, one| most.max(one.abs()));
    let difference = |one: &[f32], other: &[f32]| {
        let pairs = one.iter().zip(other);
        pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max) / largest
    };
    assert!(difference(with, &expected) < 1e-4);
    assert!(difference(before, &expected) > 1e-2);
    assert_eq!(with, after_failure);
    assert_eq!(before, removed);
}
