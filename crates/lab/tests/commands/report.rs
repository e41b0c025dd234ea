//! Measurements as data, and the tables of the documents.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use crate::outcome::succeed;
use crate::support::{Place, stderr};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// Returns the error of a command that fails.
fn fail(output: &Output) -> String {
    assert!(!output.status.success());
    stderr(output)
}

/// Copies the pages of the repository, and their data.
fn copy(place: &Place) {
    for folder in ["docs/measurements", "docs/measurements/data"] {
        for entry in fs::read_dir(Path::new(ROOT).join(folder)).unwrap() {
            let path = entry.unwrap().path();
            if path.is_file() {
                let name = path.file_name().unwrap().to_str().unwrap();
                place.write(&format!("{folder}/{name}"), fs::read(&path).unwrap());
            }
        }
    }
}

#[test]
fn all_tables_of_the_documents_are_as_measured() {
    let place = Place::on_a_new_machine();
    succeed(&place.triad(&["triad-lab", "report", "--check", "--root", ROOT]));
}

#[test]
fn a_number_that_is_changed_by_hand_is_found_and_mended() {
    let place = Place::on_a_new_machine();
    copy(&place);
    let page = place.path("docs/measurements/peers.md");
    let text = fs::read_to_string(&page).unwrap();
    let changed = text.replacen("3,030", "3,300", 1);
    assert_ne!(changed, text);
    fs::write(&page, changed).unwrap();
    let error = fail(&place.triad(&["triad-lab", "report", "--check"]));
    assert!(
        error.contains("peers.md") && !error.contains("gguf.md"),
        "{error}"
    );
    succeed(&place.triad(&["triad-lab", "report"]));
    assert_eq!(fs::read_to_string(&page).unwrap(), text);
}

#[test]
fn measurements_that_no_page_shows_and_fields_outside_of_the_schema_are_refused() {
    let place = Place::on_a_new_machine();
    copy(&place);
    let data = fs::read_to_string(place.path("docs/measurements/data/stall.json")).unwrap();
    place.write("docs/measurements/data/other.json", &data);
    let error = fail(&place.triad(&["triad-lab", "report", "--check"]));
    assert!(
        error.contains("no page shows the measurements other"),
        "{error}"
    );
    place.write(
        "docs/measurements/data/other.json",
        data.replacen("\"rounds\"", "\"turns\"", 1),
    );
    let error = fail(&place.triad(&["triad-lab", "report", "--check"]));
    assert!(
        error.contains("other.json: unknown field `turns`"),
        "{error}"
    );
}

#[test]
fn a_recorded_command_has_its_rounds_its_commit_and_its_values() {
    let place = Place::on_a_new_machine();
    let git = |arguments: &[&str]| {
        let mut command = Command::new("git");
        command
            .current_dir(place.path("."))
            .args(["-c", "user.name=a", "-c", "user.email=a@b"]);
        assert!(command.args(arguments).output().unwrap().status.success());
    };
    let results = r#"{"results": [{"test": "prefill", "tokens": 64, "rate": {"median": 12.5}}, {"test": "decode", "tokens": 8, "rate": null}]}"#;
    place.write("results.json", results);
    git(&["init", "-q"]);
    git(&["add", "results.json"]);
    git(&["commit", "-q", "-m", "results"]);
    let record = |more: &[&str]| {
        let start = [
            "triad-lab",
            "record",
            "out.json",
            "--machine",
            "two cores",
            "--rounds",
            "2",
        ];
        let fields = [
            "--rows",
            "results.*",
            "--label",
            "test",
            "--label",
            "tokens",
            "--value",
            "rate=rate.median",
        ];
        let mut command =
            place.command(&[&start[..], &fields, more, &["--", "cat", "results.json"]].concat());
        // It runs git and the command.
        command
            .env("PATH", std::env::var_os("PATH").unwrap())
            .output()
            .unwrap()
    };
    succeed(&record(&["--set", "model=a"]));
    let written = fs::read_to_string(place.path("out.json")).unwrap();
    let row =
        r#"{"labels":{"model":"a","test":"prefill","tokens":"64"},"values":{"rate":[12.5,12.5]}}"#;
    assert!(
        written.contains(row) && written.contains(r#""command": "cat results.json""#),
        "{written}"
    );
    assert!(!written.contains("decode"), "{written}");
    succeed(&record(&["--set", "model=b", "--append"]));
    let both = fs::read_to_string(place.path("out.json")).unwrap();
    assert!(
        both.contains(row) && both.contains(r#""model":"b""#),
        "{both}"
    );
    // Another commit is another file.
    git(&["commit", "-q", "--allow-empty", "-m", "more"]);
    let error = fail(&record(&["--set", "model=c", "--append"]));
    assert!(
        error.contains("out.json is of two cores, commit"),
        "{error}"
    );
    place.write("results.json", "{}");
    let error = fail(&record(&["--set", "model=a"]));
    assert!(error.contains("changes that are not committed"), "{error}");
}
