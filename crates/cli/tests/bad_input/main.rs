//! Malformed files and inputs: each gives one clear message that names the file and the field, and an exit code. Their
//! table is `docs/bad-input.md`; `TRIAD_WRITE_DOCS=1` writes it.

mod command_lines;
mod evaluations;
mod files;
mod folders;
mod inputs;
mod packages;
mod pictures;
mod simulations;
mod studies;
#[path = "../support/mod.rs"]
mod support;

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use support::gguf::{CONTEXT, Gguf};
use support::{Place, stderr, stdout};

/// One bad input.
struct Case {
    /// The mistake, for the table.
    what: &'static str,
    /// The arguments of the command.
    arguments: Vec<&'static str>,
    /// Makes the files.
    prepare: Box<dyn Fn(&Place) + Send + Sync>,
    /// Exit code.
    code: i32,
    /// Words that the message must have: the file, the field, the expected value.
    message: Vec<&'static str>,
}

impl Case {
    /// Returns the row of the table, and the difference from the expected result.
    fn run(&self) -> (String, Option<String>) {
        let Self {
            what,
            arguments,
            prepare,
            code,
            message,
        } = self;
        let place = Place::new();
        prepare(&place);
        let output = place.triad(arguments);
        let printed = stderr(&output);
        let clear = *code == 2
            || (printed.starts_with("error: ") && printed.trim_end().lines().count() == 1);
        let complete = message.iter().all(|words| printed.contains(words));
        let is_expected = output.status.code() == Some(*code)
            && clear
            && complete
            && !printed.contains("panicked");
        let failure = || {
            format!(
                "{what}: expected {code} and {message:?}, got {} and {printed}",
                output.status
            )
        };
        let failure = (!is_expected).then(failure);
        let line = without_digests(printed.lines().next().unwrap_or_default());
        // Absolute paths in messages differ in every run.
        let folder = place.path("").canonicalize().unwrap().display().to_string();
        let line = line
            .replace(&format!("{}/", folder.trim_end_matches('/')), "FOLDER/")
            .replace('|', "\\|");
        let program = if arguments.first() == Some(&"triad-lab") {
            String::new()
        } else {
            "triad".to_owned()
        };
        let command = arguments.iter().fold(program, |line, word| {
            if word.is_empty() {
                line + " ''"
            } else {
                line + " " + word
            }
        });
        (
            format!(
                "| {what} | `{}` | {code} | {line} |\n",
                command.trim_start()
            ),
            failure,
        )
    }
}

fn case(
    what: &'static str,
    arguments: &[&'static str],
    prepare: impl Fn(&Place) + Send + Sync + 'static,
    code: i32,
    message: &[&'static str],
) -> Case {
    Case {
        what,
        arguments: arguments.to_vec(),
        prepare: Box::new(prepare),
        code,
        message: message.to_vec(),
    }
}

/// Returns a case of a valid model with an invalid input.
fn input(what: &'static str, arguments: &[&'static str], message: &[&'static str]) -> Case {
    case(
        what,
        arguments,
        |place| place.write("model.gguf", Gguf::tiny().bytes()),
        1,
        message,
    )
}

/// Returns a case of invalid arguments.
fn usage(what: &'static str, arguments: &[&'static str], message: &[&'static str]) -> Case {
    case(what, arguments, |_| (), 2, message)
}

#[test]
fn every_bad_input_gets_one_clear_sentence_and_its_exit_code() {
    let mut table = String::from(
        "# What bad input gives\n\nEvery row is a test (`crates/cli/tests/bad_input`), which also writes this page. \
         Files that are wrong, and inputs, exit with 1; a wrong command line exits with 2.\n\n\
         | what is wrong | command | exit | first line on standard error |\n| --- | --- | --- | --- |\n",
    );
    let cases: Vec<Case> = files::cases()
        .into_iter()
        .chain(folders::cases())
        .chain(inputs::cases())
        .chain(command_lines::cases())
        .chain(packages::cases())
        .chain(pictures::cases())
        .chain(evaluations::cases())
        .chain(simulations::cases())
        .chain(studies::cases())
        .collect();
    // Two cases run concurrently: each is one or two processes that mostly use one core.
    let next = AtomicUsize::new(0);
    let work = || {
        let of_next = || {
            cases
                .iter()
                .enumerate()
                .nth(next.fetch_add(1, Ordering::Relaxed))
        };
        std::iter::from_fn(of_next)
            .map(|(index, case)| (index, case.run()))
            .collect::<Vec<_>>()
    };
    let mut outcomes = std::thread::scope(|scope| {
        let workers = [(); 2].map(|()| scope.spawn(work));
        workers.map(|worker| worker.join().unwrap()).concat()
    });
    outcomes.sort_by_key(|(index, _)| *index);
    let mut failures = Vec::new();
    for (_, (row, failure)) in outcomes {
        table += &row;
        failures.extend(failure);
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    check_page(&table);
}

/// Replaces digests, which are those of a package whose bytes may depend on the processor.
fn without_digests(line: &str) -> String {
    let is_digest =
        |word: &str| word.len() == 64 && word.bytes().all(|byte| byte.is_ascii_hexdigit());
    let words = line.split_inclusive(|letter: char| !letter.is_ascii_alphanumeric());
    let masked = words.map(|word| {
        let end = word.trim_start_matches(char::is_alphanumeric);
        let plain = &word[..word.len() - end.len()];
        [if is_digest(plain) { "DIGEST" } else { plain }, end].concat()
    });
    masked.collect()
}

/// The messages in the page are those of Linux.
fn check_page(table: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/bad-input.md");
    if std::env::var_os("TRIAD_WRITE_DOCS").is_some() {
        std::fs::write(&path, table).unwrap();
    }
    if cfg!(target_os = "linux") {
        let page = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            page == table,
            "docs/bad-input.md is out of date: run this test with TRIAD_WRITE_DOCS=1"
        );
    }
}

/// Without this test, every case above could be refused for a fault of the model that they share.
#[test]
fn the_model_without_a_fault_runs() {
    let place = Place::new();
    place.write("model.gguf", Gguf::tiny().bytes());
    let length = (CONTEXT / 2).to_string();
    let output = place.triad(&["run", "-m", "model.gguf", "-p", "Hello", "-n", &length]);
    assert!(
        output.status.success() && !stdout(&output).is_empty(),
        "{}",
        stderr(&output)
    );
}

#[test]
#[cfg(unix)]
fn a_prompt_may_be_piped_into_the_option_for_a_file() {
    let place = Place::new();
    place.write("model.gguf", Gguf::tiny().bytes());
    let tokenize = |more: &[&str]| {
        stdout(&place.triad_with_input(
            &[&["tokenize", "-m", "model.gguf"], more].concat(),
            b"Hello",
        ))
    };
    assert!(!tokenize(&[]).is_empty());
    assert_eq!(tokenize(&["-f", "/dev/stdin"]), tokenize(&[]));
}
