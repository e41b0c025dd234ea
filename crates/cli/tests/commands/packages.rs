//! The commands that make and use packages, from end to end on a tiny model.

use serde_json::Value as Json;

use crate::support::gguf::{Gguf, Value};
use crate::support::{Place, stderr};
use crate::{json, place, succeed};

/// The fastest preparation.
const PREPARE: [&str; 5] = ["prepare", "model.gguf", "--tokens", "100", "--json"];
const ASK: [&str; 5] = ["-p", "Hello", "-n", "8", "--json"];

fn package(place: &Place, more: &[&str]) -> Json {
    json(&place.triad(&[&PREPARE[..], &["-o", "package"], more].concat()))
}

#[test]
fn a_model_is_prepared_verified_shown_and_run() {
    let place = place();
    let report = package(&place, &["--prune", "0.5"]);
    assert_eq!(
        (&report["package"], &report["calibration_tokens"]),
        (&Json::from("package"), &Json::from(100))
    );
    assert_eq!(report["preparation"]["options"]["prune"]["rate"], 0.5);
    let hashed = "match their hashes: package.json, package.json.sha256, tokenizer.gguf, weights.safetensors";
    assert_eq!(
        succeed(&place.triad(&["verify", "package"])),
        format!("package: OK\n  {hashed}\n")
    );
    for name in ["costs.json", "notes.txt"] {
        std::fs::write(place.path("package").join(name), "{}").unwrap();
    }
    let others = "  made by runs, which check them: costs.json\n  not part of the package, not read: notes.txt\n";
    assert!(succeed(&place.triad(&["verify", "package"])).ends_with(others));
    let info = json(&place.triad(&["info", "package", "--json"]));
    assert_eq!(
        (&info["shadows"], &info["model"]["name"]),
        (&Json::from(2), &Json::from("tiny"))
    );
    let text = succeed(&place.triad(&["info", "package"]));
    assert!(
        text.contains("W8A8") && text.contains("2 of 4 inputs keep theirs"),
        "{text}"
    );

    let answer = json(&place.triad(&[&["run", "-m", "package"], &ASK[..]].concat()));
    assert!(!answer["tokens"].as_array().unwrap().is_empty());
    let tokens = |model| succeed(&place.triad(&["tokenize", "-m", model, "-p", "Hi ab"]));
    assert_eq!(tokens("package"), tokens("model.gguf"));
    succeed(&place.triad(&[
        "logits",
        "-m",
        "package",
        "-p",
        "Hello",
        "-o",
        "out.safetensors",
    ]));
    let bench = [
        "bench", "-m", "package", "--prompt", "8", "--decode", "0", "--repeat", "1", "--json",
    ];
    assert_eq!(
        json(&place.triad(&bench))["results"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
}

#[test]
fn a_model_with_weights_in_int4_is_prepared_verified_shown_and_run() {
    let place = place();
    let report = package(&place, &["--weights", "int4"]);
    assert_eq!(report["preparation"]["options"]["plan"]["linears"], "w4a16");
    assert_eq!(
        (
            &report["calibration_tokens"],
            &report["preparation"]["inputs"]
        ),
        (&Json::from(125), &Json::Array(vec![]))
    );
    let info = json(&place.triad(&["info", "package", "--json"]));
    assert_eq!(
        (info.get("shadows"), &info["model"]["name"]),
        (None, &Json::from("tiny"))
    );
    let text = succeed(&place.triad(&["info", "package"]));
    assert!(
        text.contains("W4A16")
            && text.contains("1 of 7 layers in f32, whose rows are no multiple of 32"),
        "{text}"
    );
    assert!(!text.contains("shadows"), "{text}");

    let ask = [&["run", "-m", "package"], &ASK[..]].concat();
    let answer = json(&place.triad(&ask));
    assert!(!answer["tokens"].as_array().unwrap().is_empty());
    // Two CPUs, which compute whole products and parts of the same products.
    let cut = [
        "--tensor-split",
        "query-key-value=columns:1:1",
        "--tensor-split",
        "down=rows:1:1",
    ];
    for more in [
        &["--prefill-chunk", "3"][..],
        &["--processors", "cpu,cpu"],
        &[&["--processors", "cpu,cpu"], &cut[..]].concat(),
    ] {
        assert_eq!(
            json(&place.triad(&[&ask[..], more].concat()))["text"],
            answer["text"],
            "{more:?}"
        );
    }
    let verify = [
        "verify",
        "package",
        "--prefill-chunk",
        "4",
        "--processors",
        "cpu,cpu",
    ];
    assert!(
        succeed(&place.triad(&[&verify[..], &cut].concat()))
            .contains("the same logits, bit for bit")
    );
    succeed(&place.triad(&[
        "profile",
        "-m",
        "package",
        "--prefill-chunk",
        "4",
        "--repeat",
        "1",
        "--processors",
        "cpu,cpu",
    ]));
    let bench = [
        "bench",
        "-m",
        "package",
        "--prompt",
        "8",
        "--decode",
        "4",
        "--context",
        "8",
        "--repeat",
        "1",
        "--json",
    ];
    assert_eq!(
        json(&place.triad(&bench))["results"]
            .as_array()
            .unwrap()
            .len(),
        2
    );
    for command in ["run", "profile", "bench", "verify"] {
        let model: &[_] = if command == "verify" {
            &["package"]
        } else {
            &["-m", "package"]
        };
        let prompt: &[_] = match command {
            "run" => &["-p", "Hello"],
            "bench" => &["--prompt", "8", "--decode", "0"],
            _ => &[],
        };
        let output =
            place.triad(&[&[command], model, prompt, &["--processors", "cpu,npu"]].concat());
        let error = stderr(&output);
        assert!(
            !output.status.success()
                && error.contains("expected a package in INT8, or only cpu and gpu"),
            "{error}"
        );
    }
}

#[test]
fn for_people_preparing_ends_with_what_to_do_next() {
    let place = place();
    let table =
        succeed(&place.triad(&["prepare", "model.gguf", "-o", "package", "--tokens", "100"]));
    for words in [
        "outliers",
        "shadows",
        "calibration  built-in, 100 tokens",
        "peak memory",
        "triad run -m package",
    ] {
        assert!(table.contains(words), "{table}");
    }
}

#[test]
fn a_model_that_is_run_is_prepared_once_and_again_when_it_has_changed() {
    let place = place();
    let run = [&["run", "-m", "model.gguf"], &ASK[..]].concat();
    let first = place.triad(&run);
    assert!(
        stderr(&first).starts_with("prepared model.gguf for INT8 in "),
        "{}",
        stderr(&first)
    );
    let again = place.triad(&run);
    assert_eq!(stderr(&again), "");
    assert_eq!(json(&first)["text"], json(&again)["text"]);
    let packages = || {
        std::fs::read_dir(place.path("cache/packages"))
            .unwrap()
            .count()
    };
    assert_eq!(packages(), 1);
    // `triad run` prepares as `triad prepare` does by default.
    assert_eq!(
        json(&place.triad(&["prepare", "model.gguf", "--json"]))["calibration_tokens"],
        0
    );

    let other = place.triad(&[&["run", "--no-quantize", "-m", "model.gguf"], &ASK[..]].concat());
    assert_eq!(stderr(&other), "");
    succeed(&other);
    assert_eq!(packages(), 1);

    place.write(
        "model.gguf",
        Gguf::tiny()
            .with("general.name", Value::Text("new".into()))
            .bytes(),
    );
    assert!(stderr(&place.triad(&run)).starts_with("prepared"));
    assert_eq!(packages(), 2);
}

#[test]
fn a_package_is_made_with_the_texts_and_options_asked_for() {
    let place = place();
    place.write("one.txt", "One text.\n".repeat(40));
    place.write("two.jsonl", "{\"text\": \"Another one.\"}\n".repeat(20));
    let options = [
        "--calibrate",
        "one.txt",
        "--calibrate",
        "two.jsonl",
        "--threshold",
        "max-min",
        "--weights",
        "tensor",
    ];
    let more = [
        "--decode-weights",
        "int4",
        "--prune",
        "none",
        "--hot-share",
        "0.5",
    ];
    let report = package(&place, &[&options[..], &more].concat());
    let preparation = &report["preparation"];
    assert_eq!(preparation["calibration_text"], "one.txt, two.jsonl");
    let plan = &preparation["options"]["plan"];
    let chosen =
        ["threshold", "weight_scales", "decode_weights"].map(|name| plan[name].as_str().unwrap());
    assert_eq!(chosen, ["max-min", "tensor", "int4"]);
    assert_eq!(plan["hot_share"], 0.5);
    assert!(
        preparation["inputs"]
            .as_array()
            .unwrap()
            .iter()
            .all(|input| input["shadow"] == true)
    );

    let again = place.triad(&[&PREPARE[..], &["-o", "package"]].concat());
    assert!(
        !again.status.success() && stderr(&again).contains("--force replaces it"),
        "{}",
        stderr(&again)
    );
    assert_eq!(
        package(&place, &["--force"])["preparation"]["options"]["plan"]["threshold"],
        "least-error"
    );
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
    assert!(
        stderr(&output).contains("package/weights.safetensors: altered"),
        "{}",
        stderr(&output)
    );
}

/// Returns the answer of a run of the package, or the error that refuses it.
fn answer(place: &Place) -> Result<Json, String> {
    let output = place.triad(&[&["run", "-m", "package"], &ASK[..]].concat());
    if output.status.success() {
        Ok(json(&output)["text"].clone())
    } else {
        Err(stderr(&output))
    }
}

#[test]
fn a_package_is_checked_again_before_it_is_run_once_any_byte_of_any_file_has_changed() {
    let place = place();
    package(&place, &[]);
    let right = answer(&place).unwrap();
    let files: Vec<_> = std::fs::read_dir(place.path("package"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    assert_eq!(files.len(), 4, "{files:?}");
    for path in files {
        let original = std::fs::read(&path).unwrap();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        // Bytes in all parts of the file. Each is changed alone, and the length stays the same.
        for place_of_byte in (0..7).map(|part| part * (original.len() - 1) / 6) {
            let mut bytes = original.clone();
            bytes[place_of_byte] ^= 1;
            std::fs::write(&path, &bytes).unwrap();
            let refused = answer(&place);
            // The hash of package.json is followed by the file's name, which is not read.
            let unread = name == "package.json.sha256" && place_of_byte >= 64;
            match refused {
                Err(error) => assert!(
                    error.contains("package.json") || error.contains(&name),
                    "{name}: {error}"
                ),
                Ok(text) => assert!(
                    unread && text == right,
                    "byte {place_of_byte} of {name} is not missed"
                ),
            }
        }
        std::fs::write(&path, original).unwrap();
        assert_eq!(answer(&place).as_ref(), Ok(&right));
    }
}

/// Copies a folder with its content.
fn copy(from: &std::path::Path, to: &std::path::Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
        let to = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &to);
        } else {
            assert!(std::fs::copy(entry.path(), to).is_ok());
        }
    }
}

#[test]
fn a_copied_model_finds_its_package_in_a_copied_cache() {
    let place = place();
    let run = |model: &str, cache: &str| {
        let mut command = place.command(&[&["run", "-m", model], &ASK[..]].concat());
        let output = command
            .env("TRIAD_CACHE", place.path(cache))
            .stdin(std::process::Stdio::null())
            .output()
            .unwrap();
        succeed(&output);
        stderr(&output)
    };
    assert!(run("model.gguf", "cache").starts_with("prepared"));
    copy(&place.path("cache"), &place.path("copy"));
    std::fs::create_dir(place.path("elsewhere")).unwrap();
    std::fs::copy(place.path("model.gguf"), place.path("elsewhere/other.gguf")).unwrap();
    for cache in ["cache", "copy"] {
        assert_eq!(run("elsewhere/other.gguf", cache), "", "{cache}");
    }
    // A changed byte makes it another model.
    let mut bytes = std::fs::read(place.path("model.gguf")).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(place.path("model.gguf"), bytes).unwrap();
    assert!(run("model.gguf", "cache").starts_with("prepared"));
}

#[test]
#[cfg(unix)]
fn a_package_that_is_only_to_be_read_runs_and_is_checked() {
    use std::os::unix::fs::PermissionsExt;

    let place = place();
    package(&place, &[]);
    let mode = |mode| {
        std::fs::set_permissions(place.path("package"), std::fs::Permissions::from_mode(mode))
            .unwrap();
    };
    mode(0o555);
    let right = answer(&place);
    mode(0o755);
    assert!(right.is_ok(), "{right:?}");
    assert_eq!(
        std::fs::read_dir(place.path("package")).unwrap().count(),
        4,
        "nothing is written into it"
    );
}

#[test]
#[cfg(unix)]
fn ctrl_c_leaves_no_package_and_the_next_preparation_goes_on() {
    let place = place();
    // Slow enough to be interrupted before it ends.
    place.write("long.txt", "A long text for one thread. ".repeat(60_000));
    let slow = [
        "prepare",
        "model.gguf",
        "-o",
        "package",
        "--calibrate",
        "long.txt",
        "--tokens",
        "1000000",
    ];
    let arguments = [&slow[..], &["--threads", "1"]].concat();
    let mut child = place
        .command(&arguments)
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    while !place.path("package.part/lock").exists() {
        assert!(
            child.try_wait().unwrap().is_none(),
            "it ended before it began"
        );
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let signalled = std::process::Command::new("sh")
        .args(["-c", &format!("kill -INT {}", child.id())])
        .status()
        .unwrap();
    assert!(signalled.success());
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(!place.path("package").exists());
    package(&place, &[]);
    assert!(!place.path("package.part").exists());
}

#[test]
fn a_package_of_another_model_under_the_name_of_this_ones_is_refused() {
    let place = place();
    let other = Gguf::tiny().with("general.name", Value::Text("other".into()));
    place.write("other.gguf", other.bytes());
    let packages = || {
        let folder = place.path("cache/packages").read_dir().unwrap();
        let mut paths: Vec<_> = folder.map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        paths
    };
    let run = |model| place.triad(&[&["run", "-m", model], &ASK[..]].concat());
    json(&run("model.gguf"));
    let [own] = &packages()[..] else { panic!() };
    let kept = place.path("kept");
    std::fs::rename(own, &kept).unwrap();
    json(&run("other.gguf"));
    let [others] = &packages()[..] else { panic!() };
    std::fs::rename(others, own).unwrap();
    let refused = run("model.gguf");
    assert_eq!(refused.status.code(), Some(1));
    let message =
        "the package of another model (other.gguf) under the name of this model's package";
    assert!(stderr(&refused).contains(message), "{}", stderr(&refused));
    std::fs::remove_dir_all(own).unwrap();
    std::fs::rename(&kept, own).unwrap();
    json(&run("model.gguf"));
}

#[test]
fn info_of_a_package_has_the_memory_of_a_run_with_the_context_that_is_asked_for() {
    let place = place();
    package(&place, &[]);
    let run = |context| {
        let info = ["info", "package", "--json", "--context", context];
        json(&place.triad(&info))["run"].clone()
    };
    let (short, long) = (run("8"), run("32"));
    assert_eq!(
        (&short["context"], &long["context"]),
        (&Json::from(8), &Json::from(32))
    );
    assert!(
        short["total_bytes"].as_u64() < long["total_bytes"].as_u64(),
        "{short} {long}"
    );
    let refused = place.triad(&["info", "package", "--context", "100000"]);
    assert!(stderr(&refused).contains("a context of 100000 tokens was asked for"));
}

#[cfg(unix)]
#[test]
fn a_variable_that_is_not_text_is_an_error_and_not_one_that_is_not_set() {
    use std::os::unix::ffi::OsStrExt;
    let place = place();
    let run: &[&str] = &["run", "-m", "model.gguf", "-p", "Hello", "-n", "1"];
    let serve: &[&str] = &["serve", "-m", "model.gguf", "--no-quantize", "--port", "0"];
    let pull: &[&str] = &["pull", "hf:owner/name"];
    for (name, arguments) in [
        ("TRIAD_PREPARE", run),
        #[cfg(feature = "server")]
        ("TRIAD_API_KEY", serve),
        #[cfg(feature = "server")]
        ("TRIAD_METRICS_KEY", serve),
        ("HF_ENDPOINT", pull),
        ("HF_TOKEN", pull),
    ] {
        let value = std::ffi::OsStr::from_bytes(b"secret\xff");
        let output = place.command(arguments).env(name, value).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{name}");
        let message = stderr(&output);
        assert!(
            message.contains(&format!("{name} is not UTF-8")),
            "{message}"
        );
        assert!(!message.contains("secret"), "{message}");
    }
}

#[test]
fn bench_prepares_nothing_where_the_user_says_never() {
    let place = place();
    let bench = [
        "bench",
        "-m",
        "model.gguf",
        "--prompt",
        "8",
        "--decode",
        "0",
        "--repeat",
        "1",
        "--json",
    ];
    let with = |when| {
        place
            .command(&bench)
            .env("TRIAD_PREPARE", when)
            .output()
            .unwrap()
    };
    assert_eq!(json(&with("never"))["arithmetic"], "as stored");
    assert!(!place.path("cache/packages").exists());
    assert!(stderr(&with("frist")).contains("TRIAD_PREPARE is \"frist\": expected"));
    assert_eq!(json(&with("first"))["arithmetic"], "w8a8");
    assert_eq!(
        json(&with("never"))["arithmetic"],
        "w8a8",
        "there is a package now"
    );
}

#[test]
fn an_option_without_effect_is_refused() {
    let place = place();
    place.write("lambada.jsonl", "{\"text\": \"We ate the cake\"}\n");
    let eval: &[&str] = &[
        "eval",
        "-m",
        "model.gguf",
        "--task",
        "lambada",
        "--data",
        "lambada.jsonl",
    ];
    let bench: &[&str] = &["bench", "--shape", "smollm2-135m"];
    for (command, more, message) in [
        (
            eval,
            &["--window", "8"][..],
            "--window is for --task perplexity",
        ),
        (
            eval,
            &["--few-shot", "lambada.jsonl"],
            "--few-shot is for --task mmlu",
        ),
        (
            eval,
            &["--calibrate", "lambada.jsonl"],
            "--calibrate is for a --method that calibrates",
        ),
        (
            bench,
            &["--no-quantize"],
            "are for the file of a model, and --shape has none",
        ),
        (
            bench,
            &["--expert-memory", "1"],
            "are for the file of a model, and --shape has none",
        ),
        (
            &["bench", "-m", "model.gguf", "--sustained", "1s"],
            &["--threads", "1,2"],
            "expected one with --threads",
        ),
        (
            &["fit", "--shape", "phi-2"],
            &["--mmproj", "none.gguf"],
            "--mmproj is for the file of a model",
        ),
    ] {
        let output = place.triad(&[command, more].concat());
        assert_eq!(output.status.code(), Some(1), "{more:?}");
        assert!(stderr(&output).contains(message), "{}", stderr(&output));
    }
    let one_row = succeed(&place.triad(eval));
    assert!(
        one_row.contains("standard error unknown") && !one_row.contains("inf"),
        "{one_row}"
    );
}

#[test]
fn a_draft_model_of_another_vocabulary_is_not_prepared() {
    let place = place();
    let draft = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/golden/families/glm.gguf"
    );
    let run = ["run", "-m", "model.gguf", "--speculate", draft];
    let refused = place.triad(&[&run[..], &ASK[..]].concat());
    assert_eq!(refused.status.code(), Some(1));
    assert!(
        stderr(&refused).contains("the draft model has a vocabulary of 128 tokens"),
        "{}",
        stderr(&refused)
    );
    let packages = place.path("cache/packages").read_dir().unwrap();
    assert_eq!(packages.count(), 1, "only that of the model itself");
}
