//! `fit`: its predictions agree with what other commands count.

use serde_json::Value as Json;

use super::support::gguf::CONTEXT;
use super::support::{Place, stderr};
use super::{json, place, succeed};

#[test]
fn fit_tells_memory_and_times_of_each_form_from_the_header_alone() {
    let place = place();
    let report = json(&place.triad(&["fit", "model.gguf", "--threads", "1", "--json"]));
    assert_eq!(report["context"], CONTEXT);
    let predictions = report["predictions"].as_array().unwrap();
    let on_cpu: Vec<_> = predictions
        .iter()
        .filter(|prediction| prediction["source"] == "measured")
        .collect();
    let names: Vec<_> = on_cpu
        .iter()
        .map(|prediction| prediction["form"]["name"].as_str().unwrap())
        .collect();
    assert_eq!(
        names,
        ["float", "INT8", "INT8, decode INT4", "INT4 (W4A16)"]
    );
    for prediction in on_cpu {
        let needs = prediction["needs"].as_array().unwrap();
        assert_eq!(
            (needs.len(), &needs[0]["context"], &needs[0]["fits"]),
            (1, &CONTEXT.into(), &true.into())
        );
        let parts = ["weight_bytes", "kv_cache_bytes", "activation_bytes"]
            .map(|part| needs[0][part].as_u64().unwrap());
        assert_eq!(needs[0]["total_bytes"], parts.iter().sum::<u64>());
        for timed in [&prediction["prompts"][0], &prediction["decode"][0]] {
            let sum: f64 = timed["parts"]
                .as_object()
                .unwrap()
                .values()
                .map(|part| part.as_f64().unwrap())
                .sum();
            let seconds = timed["seconds"].as_f64().unwrap();
            assert!(
                seconds > 0.0 && (sum - seconds).abs() < 1e-9 * seconds,
                "{timed}"
            );
        }
    }
    // As in `info`, and with an empty cache: no package was made.
    let info = json(&place.triad(&["info", "model.gguf", "--context", "64", "--json"]));
    assert_eq!(
        predictions[0]["needs"][0]["total_bytes"],
        info["run"]["total_bytes"]
    );
    assert!(!place.path("cache/packages").exists());
    let text = succeed(&place.triad(&["fit", "model.gguf", "--threads", "1"]));
    assert!(
        text.contains("fastest that fits: ") && text.contains("of the memory bandwidth"),
        "{text}"
    );
}

#[test]
fn the_bytes_of_a_package_are_those_that_prepare_writes() {
    let place = place();
    let forms = [
        ("INT8", &[][..]),
        ("INT8, decode INT4", &["--decode-weights", "int4"][..]),
        ("INT4 (W4A16)", &["--weights", "int4"][..]),
    ];
    let expected = json(&place.triad(&["fit", "model.gguf", "--threads", "1", "--json"]));
    let bytes = |report: &Json, name: &str| {
        let all = report["predictions"].as_array().unwrap();
        all.iter()
            .find(|prediction| prediction["form"]["name"] == name)
            .unwrap()["form"]["weight_bytes"]
            .clone()
    };
    for (index, (name, options)) in forms.into_iter().enumerate() {
        let package = format!("{index}.triad");
        succeed(&place.triad(&[&["prepare", "model.gguf", "-o", &package], options].concat()));
        let written = std::fs::metadata(place.path(&package).join("weights.safetensors"))
            .unwrap()
            .len();
        let report = json(&place.triad(&["fit", &package, "--threads", "1", "--json"]));
        assert_eq!(bytes(&report, name), written, "{name}");
        // The header of the written file may hold metadata that is not known before.
        let expected = bytes(&expected, name).as_u64().unwrap();
        assert!(
            expected <= written && written < expected + 1024,
            "{name}: {expected}, {written}"
        );
    }
}

#[test]
fn what_does_not_fit_is_marked_and_the_least_that_does_not_is_printed() {
    let text =
        succeed(&place().triad(&["fit", "model.gguf", "--threads", "1", "--memory", "0.00001"]));
    assert!(
        text.contains("(too much)") && text.contains("nothing fits: the smallest form needs"),
        "{text}"
    );
}

#[test]
fn a_phone_is_simulated_and_says_so() {
    let arguments = [
        "fit",
        "--shape",
        "llama-2-7b",
        "--device",
        "snapdragon-8gen3",
        "--memory",
        "8",
    ];
    let report = json(&Place::new().triad(&[&arguments[..], &["--json"]].concat()));
    let predictions = report["predictions"].as_array().unwrap();
    assert!(
        predictions
            .iter()
            .all(|prediction| prediction["source"] == "simulated"),
        "{report}"
    );
    assert_eq!(report.get("limit"), None);
    // The same as `simulate` computes for this prompt.
    let npu = predictions
        .iter()
        .find(|prediction| prediction["on"] == "NPU and CPU")
        .unwrap();
    let simulate = [
        "triad-lab",
        "simulate",
        "--shape",
        "llama-2-7b",
        "--device",
        "snapdragon-8gen3",
        "--prompt",
        "1024",
        "--json",
    ];
    let simulated = json(&Place::new().triad(&simulate));
    let prompts = npu["prompts"].as_array().unwrap();
    let seconds = &prompts
        .iter()
        .find(|prompt| prompt["tokens"] == 1024)
        .unwrap()["seconds"];
    assert_eq!(seconds, &simulated["seconds"]);
    assert_eq!(report["choice"]["form"], "INT8");
    let text = succeed(&Place::new().triad(&arguments));
    assert!(
        text.contains("Snapdragon 8 Gen 3, simulated") && text.contains("(too much)"),
        "{text}"
    );
}

#[test]
fn an_encoder_is_refused_by_name_where_only_text_is_predicted_or_planned() {
    let bert = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/golden/encoders/bert.gguf"
    );
    for arguments in [
        &["fit", bert][..],
        &[
            "plan",
            "-m",
            bert,
            "--partition",
            "layer",
            "--processors",
            "cpu,cpu",
        ],
        &[
            "serve",
            "-m",
            bert,
            "--lora",
            "a=adapter.gguf",
            "--port",
            "0",
        ],
    ] {
        let output = place().triad(arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        assert!(stderr(&output).contains("encoder"), "{}", stderr(&output));
    }
}

#[test]
fn a_context_beyond_the_models_is_refused() {
    let output = place().triad(&["fit", "model.gguf", "--context", "65"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains("65") && stderr(&output).contains("64"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn fit_and_plan_refuse_blocks_without_a_feed_forward_by_name() {
    let place = place();
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/golden/families/falcon_h1.gguf"
    );
    for command in [&["fit", path][..], &["plan", "-m", path]] {
        let output = place.triad(command);
        let message = stderr(&output);
        assert!(!output.status.success(), "{message}");
        let expected = "has blocks without a feed-forward";
        assert!(message.contains(expected), "{command:?}: {message}");
    }
}
