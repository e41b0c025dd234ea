//! The first run of a model: it answers from the file as it is, and the package is prepared for the next one.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value as Json;

use crate::support::{Place, stderr};
use crate::{json, place, succeed};

const RUN: [&str; 8] = [
    "run",
    "-m",
    "model.gguf",
    "-p",
    "Hello",
    "-n",
    "8",
    "--json",
];
/// The line that says that the package is prepared after this run.
const DUE: &str = "model.gguf answers from the file as it is; its package is prepared in the background for the next run\n";
/// Longer than a preparation takes here.
const LONG: Duration = Duration::from_secs(120);

/// Runs a command as on a machine whose user has set nothing.
fn triad(place: &Place, arguments: &[&str]) -> Output {
    let mut command = place.command(arguments);
    command.env_remove("TRIAD_PREPARE").stdin(Stdio::null());
    command.output().unwrap()
}

/// Returns the package of the model, which another place prepares: its name depends on the model alone.
fn package(place: &Place) -> PathBuf {
    let other = crate::place();
    let report = json(&other.triad(&["prepare", "model.gguf", "--json"]));
    let path = PathBuf::from(report["package"].as_str().unwrap());
    place.path("cache/packages").join(path.file_name().unwrap())
}

fn wait_for(what: &str, is_there: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_there() {
        assert!(start.elapsed() < LONG, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn names(place: &Place) -> Vec<String> {
    let entries = fs::read_dir(place.path("cache/packages")).unwrap();
    let name = |entry: fs::DirEntry| entry.file_name().into_string().unwrap();
    entries.flatten().map(name).collect()
}

#[test]
fn the_first_run_answers_as_stored_and_the_next_one_from_the_package_that_was_prepared_meanwhile() {
    let place = place();
    let info = |place: &Place| json(&triad(place, &["info", "model.gguf", "--json"]));
    assert_eq!(info(&place)["package"], Json::Null);
    let first = triad(&place, &RUN);
    assert_eq!(stderr(&first), DUE);
    let first = json(&first);
    assert_eq!(first["arithmetic"], "as stored");
    let stored = json(&triad(&place, &[&RUN[..], &["--no-quantize"]].concat()));
    assert_eq!(
        (&first["text"], &first["tokens"]),
        (&stored["text"], &stored["tokens"])
    );

    let path = package(&place);
    wait_for("the package is prepared after the command", || {
        path.join("package.json").is_file()
    });
    let prepared = triad(&place, &RUN);
    assert_eq!(stderr(&prepared), "");
    assert_eq!(json(&prepared)["arithmetic"], "w8a8");
    // It is the package that `triad prepare` makes, and nothing else is left.
    assert_eq!(
        json(&triad(&place, &["prepare", "model.gguf", "--json"]))["calibration_tokens"],
        0
    );
    wait_for("the log is removed", || names(&place).len() == 1);
    assert_eq!(names(&place), [path.file_name().unwrap().to_str().unwrap()]);
    assert_eq!(stored["arithmetic"], "as stored");
}

#[test]
fn a_package_that_another_process_prepares_is_not_prepared_twice() {
    let place = place();
    let path = package(&place);
    let part = path.with_extension("part");
    fs::create_dir_all(&part).unwrap();
    let lock = File::create(part.join("lock")).unwrap();
    lock.lock().unwrap();
    let output = triad(&place, &RUN);
    let line = "model.gguf answers from the file as it is; its package is being prepared for the next run\n";
    assert_eq!(stderr(&output), line);
    assert_eq!(json(&output)["arithmetic"], "as stored");
    // No log: no process was started.
    assert_eq!(names(&place).len(), 1, "{:?}", names(&place));
    drop(lock);
    assert_eq!(
        stderr(&triad(&place, &RUN)),
        DUE,
        "what a killed process left is used"
    );
    wait_for("the package", || path.join("package.json").is_file());
}

#[test]
fn a_preparation_that_failed_is_said_and_not_tried_again_until_the_user_does() {
    let place = place();
    let path = package(&place);
    let part = path.with_extension("part");
    fs::create_dir_all(&part).unwrap();
    fs::write(part.join("mine.txt"), "").unwrap();
    assert_eq!(stderr(&triad(&place, &RUN)), DUE);
    let log = path.with_extension("log");
    wait_for("the error is kept", || {
        fs::metadata(&log).is_ok_and(|log| log.len() > 0)
    });
    let again = triad(&place, &RUN);
    assert_eq!(json(&again)["arithmetic"], "as stored");
    let line = stderr(&again);
    for words in [
        "model.gguf answers from the file as it is; preparing its package failed: ",
        "it has mine.txt, which no preparation makes",
        "(triad prepare model.gguf tries again)",
    ] {
        assert!(line.contains(words), "{line}");
    }
    assert_eq!(line.lines().count(), 1);
    fs::remove_file(part.join("mine.txt")).unwrap();
    succeed(&triad(&place, &["prepare", "model.gguf"]));
    assert!(!log.exists());
    assert_eq!(json(&triad(&place, &RUN))["arithmetic"], "w8a8");
}

#[test]
fn two_first_runs_at_once_make_one_package() {
    let place = place();
    let both = std::thread::scope(|scope| {
        let runs = [(); 2].map(|()| scope.spawn(|| triad(&place, &RUN)));
        runs.map(|run| json(&run.join().unwrap()))
    });
    assert_eq!(both[0]["text"], both[1]["text"]);
    let path = package(&place);
    wait_for("the package", || path.join("package.json").is_file());
    wait_for("nothing else is left", || names(&place).len() == 1);
    succeed(&triad(&place, &["verify", path.to_str().unwrap()]));
}

#[test]
fn preparing_before_the_first_answer_is_there_on_request_and_other_values_are_refused() {
    let place = place();
    let run = |when: &str| {
        place
            .command(&RUN)
            .env("TRIAD_PREPARE", when)
            .output()
            .unwrap()
    };
    let refused = stderr(&run("soon"));
    assert_eq!(
        refused,
        "error: TRIAD_PREPARE is \"soon\": expected `later`, `first` or `never`\n"
    );
    let never = run("never");
    assert_eq!(
        stderr(&never),
        "model.gguf answers from the file as it is\n"
    );
    assert_eq!(json(&never)["arithmetic"], "as stored");
    let first = run("first");
    assert!(stderr(&first).starts_with("prepared model.gguf for INT8 in "));
    assert_eq!(json(&first)["arithmetic"], "w8a8");
}

#[test]
fn measuring_prepares_first_and_names_its_arithmetic() {
    let place = place();
    let bench = "bench -m model.gguf --prompt 8 --decode 0 --repeat 1 --threads 1 --json";
    let bench: Vec<_> = bench.split(' ').collect();
    assert_eq!(json(&triad(&place, &bench))["arithmetic"], "w8a8");
    let float = json(&triad(&place, &[&bench[..], &["--no-quantize"]].concat()));
    assert_eq!(float["arithmetic"], "as stored");
}

#[cfg(feature = "server")]
#[test]
fn a_server_that_prepares_later_answers_as_stored_and_takes_the_package_at_its_next_start() {
    let place = place();
    let answer = |mut lines: &mut dyn Iterator<Item = String>| {
        let address = Iterator::find_map(&mut lines, |line| {
            let (_, address) = line.split_once("http://")?;
            Some(address.split(';').next()?.to_owned())
        });
        let mut stream = TcpStream::connect(address.unwrap()).unwrap();
        let body = r#"{"prompt": "Hello", "max_tokens": 8, "temperature": 0}"#;
        write!(
            stream,
            "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )
        .unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        let (_, body) = reply.split_once("\r\n\r\n").unwrap();
        serde_json::from_str::<Json>(body).unwrap()["choices"][0]["text"].clone()
    };
    let serve = |use_it: &dyn Fn(&mut dyn Iterator<Item = String>)| {
        let mut command = place.command(&["serve", "-m", "model.gguf", "--port", "0"]);
        command.env("TRIAD_PREPARE", "later").stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap())
            .lines()
            .map(Result::unwrap);
        use_it(&mut lines);
        child.kill().unwrap();
        child.wait().unwrap();
    };
    let run = |more: &[&str]| {
        let run = "run -m model.gguf --raw -p Hello -n 8 --temperature 0 --json";
        let run: Vec<_> = run.split(' ').chain(more.iter().copied()).collect();
        json(&triad(&place, &run))["text"].clone()
    };
    serve(&|mut lines| {
        let first = lines.next().unwrap();
        let due = "model.gguf answers from the file as it is; its package is prepared in the background for the next start";
        assert_eq!(first, due);
        assert_eq!(answer(lines), run(&["--no-quantize"]));
        let end = "the package of model.gguf is prepared; the server takes it at its next start";
        assert_eq!(
            Iterator::find(&mut lines, |line| line.contains("package of")).unwrap(),
            end
        );
    });
    serve(&|lines| assert_eq!(answer(lines), run(&[])));
}
