//! Grammars that a separate program compiles first: its possible failures, and its guaranteed end.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use triad_engine::Cancel;
use triad_grammar::{Checker, Error, GrammarSource, Grammars};

use crate::{byte_level, grammars};

/// A time limit that is longer than any test.
const LONG: Duration = Duration::from_secs(600);

fn with_shell(script: &str) -> Grammars {
    grammars(&byte_level()).with_checker(Checker::new("sh", ["-c", script]).with_time(LONG))
}

fn regex(text: &str) -> GrammarSource {
    GrammarSource::Regex(text.into())
}

#[test]
fn only_a_process_that_says_so_lets_a_grammar_pass() {
    let passes = r#"cat > /dev/null; echo '{"passes": true}'"#;
    with_shell(passes).compile(&regex("a")).unwrap();
    for script in [
        "exit 3",
        "exit 0",
        "cat > /dev/null; echo '{}'",
        "cat > /dev/null; echo true",
        "cat > /dev/null; echo '{\"passes\": 1}'",
        "cat > /dev/null; echo '{\"passes\": true}'; exit 1",
        "cat > /dev/null; yes '{\"passes\": true}' | head -c 20000",
    ] {
        let error = with_shell(script).compile(&regex("a")).unwrap_err();
        assert!(matches!(error, Error::Checker { .. }), "{script}: {error}");
    }
    let missing = Checker::new("/no/such/program", [""; 0]);
    let error = grammars(&byte_level())
        .with_checker(missing)
        .compile(&regex("a"))
        .unwrap_err();
    assert!(matches!(error, Error::Checker { .. }), "{error}");
}

#[test]
fn grammars_are_kept_in_bounded_memory_of_each_owner() {
    let says = r#"{"passes": true, "bytes": 30000000}"#;
    let grammars = with_shell(&format!("cat > /dev/null; echo '{says}'"));
    let compiled = |owner: u8, text: &str| {
        let compiled = grammars.compile_for([owner; 32], &regex(text), &Cancel::new());
        compiled.unwrap()
    };
    let (first, second) = (compiled(1, "a"), compiled(1, "b"));
    assert!(Arc::ptr_eq(&first, &compiled(1, "a")) && Arc::ptr_eq(&second, &compiled(1, "b")));
    // What another owner compiles changes nothing for this one.
    let other = compiled(2, "c");
    assert!(Arc::ptr_eq(&first, &compiled(1, "a")));
    assert!(Arc::ptr_eq(&other, &compiled(2, "c")));
    // The third does not fit.
    compiled(1, "d");
    assert!(!Arc::ptr_eq(&second, &compiled(1, "b")));
    assert!(Arc::ptr_eq(&other, &compiled(2, "c")));
    grammars.release();
    assert!(!Arc::ptr_eq(&other, &compiled(2, "c")));
    // Without a checker, the length of the source counts.
    let grammars = crate::grammars(&byte_level());
    let one = grammars.compile(&regex("a")).unwrap();
    assert!(Arc::ptr_eq(&one, &grammars.compile(&regex("a")).unwrap()));
    for count in 2..80 {
        grammars.compile(&regex(&"a".repeat(count))).unwrap();
    }
    assert!(!Arc::ptr_eq(&one, &grammars.compile(&regex("a")).unwrap()));
}

#[test]
fn a_process_that_the_system_ends_or_that_finds_a_grammar_too_costly_refuses_it() {
    for script in [
        "kill -ABRT $$",
        "kill -KILL $$",
        "cat > /dev/null; echo '{\"is_costly\": true}'",
    ] {
        let error = with_shell(script).compile(&regex("a")).unwrap_err();
        assert!(
            matches!(error, Error::TooCostly { .. }),
            "{script}: {error}"
        );
    }
    let script = "cat > /dev/null; echo '{\"problem\": \"it is odd\"}'";
    let error = with_shell(script).compile(&regex("a")).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the regular expression can't be used: it is odd"
    );
}

#[test]
fn a_process_that_had_no_time_is_killed_and_its_grammar_is_not_judged() {
    let checker = Checker::new("sleep", ["600"]).with_time(Duration::from_millis(100));
    let start = Instant::now();
    let long = "a".repeat(1 << 16);
    let error = grammars(&byte_level())
        .with_checker(checker)
        .compile(&regex(&long))
        .unwrap_err();
    assert!(matches!(error, Error::Starved), "{error}");
    assert!(start.elapsed() < LONG / 2);
}

#[test]
#[cfg(target_os = "linux")]
fn a_cancelled_compile_ends_its_process() {
    let name = "600.0625";
    let grammars = grammars(&byte_level());
    let grammars = Arc::new(grammars.with_checker(Checker::new("sleep", [name]).with_time(LONG)));
    let cancel = Cancel::new();
    let compile = {
        let (grammars, cancel) = (Arc::clone(&grammars), cancel.clone());
        thread::spawn(move || grammars.compile_for([1; 32], &regex("a"), &cancel))
    };
    let start = Instant::now();
    while !is_running(name) {
        assert!(start.elapsed() < LONG / 10, "it was not started");
        thread::sleep(Duration::from_millis(1));
    }
    cancel.cancel();
    let error = compile.join().unwrap().unwrap_err();
    assert!(matches!(error, Error::Cancelled), "{error}");
    assert!(start.elapsed() < LONG / 2);
    assert!(!is_running(name), "the process is there");
}

/// Returns whether a process with this argument exists, including one that was not reaped.
#[cfg(target_os = "linux")]
fn is_running(argument: &str) -> bool {
    let processes = std::fs::read_dir("/proc").unwrap();
    processes.flatten().any(|process| {
        let line = std::fs::read(process.path().join("cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0)
            .any(|part| part == argument.as_bytes())
    })
}

#[test]
fn a_grammar_that_is_kept_and_any_json_object_are_not_checked() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let script = format!(
        "cat > /dev/null; echo x >> '{}'; echo '{{\"passes\": true}}'",
        log.display()
    );
    let grammars = with_shell(&script);
    let count = || std::fs::read(&log).map_or(0, |log| log.len() / 2);
    grammars.compile(&GrammarSource::JsonObject).unwrap();
    assert_eq!(count(), 0);
    for _ in 0..2 {
        grammars.compile(&regex("a")).unwrap();
        assert_eq!(count(), 1);
    }
    let cancel = Cancel::new();
    grammars.compile_for([1; 32], &regex("a"), &cancel).unwrap();
    assert_eq!(count(), 2, "another owner's is compiled, and so checked");
}
