//! The commands that make and use packages, from end to end on a tiny model.

use serde_json::Value as Json;

use crate::support::gguf::{Gguf, Value};
use crate::support::{Place, stderr};
use crate::{json, place, succeed};

/// As quick as preparing can be.
const PREPARE: [&str; 5] = ["prepare", "model.gguf", "--tokens", "100", "--json"];
const ASK: [&str; 5] = ["-p", "Hello", "-n", "8", "--json"];

fn package(place: &Place, more: &[&str]) -> Json {
    json(&place.triad(&[&PREPARE[..], &["-o", "package"], more].concat()))
}

#[test]
fn a_model_is_prepared_verified_shown_and_run() {
    let place = place();
    let report = package(&place, &["--prune", "0.5"]);
    assert_eq!((&report["package"], &report["calibration_tokens"]), (&Json::from("package"), &Json::from(100)));
    assert_eq!(report["preparation"]["options"]["prune"]["rate"], 0.5);
    assert_eq!(succeed(&place.triad(&["verify", "package"])), "package: OK\n");
    let info = json(&place.triad(&["info", "package", "--json"]));
    assert_eq!((&info["shadows"], &info["model"]["name"]), (&Json::from(2), &Json::from("tiny")));
    let text = succeed(&place.triad(&["info", "package"]));
    assert!(text.contains("W8A8") && text.contains("2 of 4 inputs keep theirs"), "{text}");

    let answer = json(&place.triad(&[&["run", "-m", "package"], &ASK[..]].concat()));
    assert!(!answer["tokens"].as_array().unwrap().is_empty());
    let tokens = |model| succeed(&place.triad(&["tokenize", "-m", model, "-p", "Hi ab"]));
    assert_eq!(tokens("package"), tokens("model.gguf"));
    succeed(&place.triad(&["logits", "-m", "package", "-p", "Hello", "-o", "out.safetensors"]));
    let bench = ["bench", "-m", "package", "--prompt", "8", "--decode", "0", "--repeat", "1", "--json"];
    assert_eq!(json(&place.triad(&bench))["results"].as_array().unwrap().len(), 1);
}

#[test]
fn for_people_preparing_ends_with_what_to_do_next() {
    let place = place();
    let table = succeed(&place.triad(&["prepare", "model.gguf", "-o", "package", "--tokens", "100"]));
    for words in ["outliers", "shadows", "calibration  built-in, 100 tokens", "peak memory", "triad run -m package"] {
        assert!(table.contains(words), "{table}");
    }
}

#[test]
fn a_model_that_is_run_is_prepared_once_and_again_when_it_has_changed() {
    let place = place();
    let run = [&["run", "-m", "model.gguf"], &ASK[..]].concat();
    let first = place.triad(&run);
    assert!(stderr(&first).starts_with("prepared model.gguf for INT8 in "), "{}", stderr(&first));
    let again = place.triad(&run);
    assert_eq!(stderr(&again), "");
    assert_eq!(json(&first)["text"], json(&again)["text"]);
    let packages = || std::fs::read_dir(place.path("cache/packages")).unwrap().count();
    assert_eq!(packages(), 1);
    // What `triad run` prepares is what `triad prepare` does by default.
    assert_eq!(json(&place.triad(&["prepare", "model.gguf", "--json"]))["calibration_tokens"], 0);

    let other = place.triad(&[&["run", "--float", "-m", "model.gguf"], &ASK[..]].concat());
    assert_eq!(stderr(&other), "");
    succeed(&other);
    assert_eq!(packages(), 1);

    place.write("model.gguf", Gguf::tiny().with("general.name", Value::Text("new".into())).bytes());
    assert!(stderr(&place.triad(&run)).starts_with("prepared"));
    assert_eq!(packages(), 2);
}

#[test]
fn a_package_is_made_with_the_texts_and_options_asked_for() {
    let place = place();
    place.write("one.txt", "One text.\n".repeat(40));
    place.write("two.jsonl", "{\"text\": \"Another one.\"}\n".repeat(20));
    let options =
        ["--calibrate", "one.txt", "--calibrate", "two.jsonl", "--threshold", "max-min", "--weights", "tensor"];
    let more = ["--decode-weights", "int4", "--prune", "none", "--hot-share", "0.5"];
    let report = package(&place, &[&options[..], &more].concat());
    let preparation = &report["preparation"];
    assert_eq!(preparation["calibration_text"], "one.txt, two.jsonl");
    let plan = &preparation["options"]["plan"];
    let chosen = ["threshold", "weight_scales", "decode_weights"].map(|name| plan[name].as_str().unwrap());
    assert_eq!(chosen, ["max-min", "tensor", "int4"]);
    assert_eq!(plan["hot_share"], 0.5);
    assert!(preparation["inputs"].as_array().unwrap().iter().all(|input| input["shadow"] == true));

    let again = place.triad(&[&PREPARE[..], &["-o", "package"]].concat());
    assert!(!again.status.success() && stderr(&again).contains("--force replaces it"), "{}", stderr(&again));
    assert_eq!(package(&place, &["--force"])["preparation"]["options"]["plan"]["threshold"], "least-error");
    let package = place.triad(&["prepare", "package"]);
    assert!(!package.status.success() && stderr(&package).contains("package is a package already"));
}

#[test]
fn an_altered_package_fails_to_verify() {
    let place = place();
    package(&place, &[]);
    let weights = place.path("package/weights.safetensors");
    let mut bytes = std::fs::read(&weights).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(weights, bytes).unwrap();
    let output = place.triad(&["verify", "package"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("package/weights.safetensors: altered"), "{}", stderr(&output));
}

#[test]
#[cfg(unix)]
fn ctrl_c_leaves_no_package_and_the_next_preparation_goes_on() {
    let place = place();
    // So slow that it is interrupted before it ends.
    place.write("long.txt", "A long text for one thread. ".repeat(60_000));
    let slow = ["prepare", "model.gguf", "-o", "package", "--calibrate", "long.txt", "--tokens", "1000000"];
    let arguments = [&slow[..], &["--threads", "1"]].concat();
    let mut child = place.command(&arguments).stderr(std::process::Stdio::null()).spawn().unwrap();
    while !place.path("package.part/lock").exists() {
        assert!(child.try_wait().unwrap().is_none(), "it ended before it began");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let signalled =
        std::process::Command::new("sh").args(["-c", &format!("kill -INT {}", child.id())]).status().unwrap();
    assert!(signalled.success());
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(!place.path("package").exists());
    package(&place, &[]);
    assert!(!place.path("package.part").exists());
}
