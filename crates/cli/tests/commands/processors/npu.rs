//! NPUs of ONNX Runtime: its CPU provider and Qualcomm's.

use serde_json::Value as Json;

use super::{CUTS, packaged};
use crate::support::{Place, stderr};
use crate::{json, succeed};

/// Returns the arguments for ONNX Runtime's CPU provider as NPU, or `None` where the environment names no library.
fn onnx_runtime() -> Option<[&'static str; 4]> {
    let is_named = std::env::var_os("TRIAD_ONNXRUNTIME").is_some();
    if !is_named {
        crate::skip::skip("TRIAD_ONNXRUNTIME names no library");
    }
    is_named.then_some(["--processors", "cpu,npu", "--npu", "cpu"])
}

#[test]
fn a_package_is_verified_with_onnx_runtime() {
    let Some(onnx_runtime) = onnx_runtime() else {
        return;
    };
    let place = packaged();
    for cuts in [&CUTS[..0], &CUTS] {
        let verify = ["verify", "package", "--prefill-chunk", "4"];
        let verdict = succeed(&place.triad(&[&verify[..], &onnx_runtime, cuts].concat()));
        let same = [
            "have the same logits, bit for bit, with",
            "of the largest with",
        ];
        assert!(same.iter().any(|same| verdict.contains(same)), "{verdict}");
        assert!(
            verdict
                .contains("with ONNX Runtime's cpu provider as NPU on cpu,npu by all 6 policies"),
            "{verdict}"
        );
    }
}

#[test]
fn a_package_is_verified_with_qualcomms_provider_within_the_rounding_of_its_sums() {
    let (true, Some(library)) = (onnx_runtime().is_some(), std::env::var("TRIAD_QNN").ok()) else {
        crate::skip::skip("TRIAD_QNN names no library");
        return;
    };
    let place = packaged();
    let verify = [
        "verify",
        "package",
        "--prefill-chunk",
        "4",
        "--processors",
        "cpu,npu",
    ];
    let qnn = ["--npu", "qnn", "--npu-library", &library, "--npu-option"];
    let verdict = succeed(&place.triad(&[&verify[..], &qnn, &["htp_arch=73"]].concat()));
    // The largest difference on this model is 0.0072: sums have 16 bits, and activations are rounded to INT8 after them.
    let (_, difference) = verdict.split_once("have logits within ").expect(&verdict);
    let (difference, rest) = difference.split_once(' ').unwrap();
    assert!(difference.parse::<f64>().unwrap() < 0.02, "{verdict}");
    let with =
        "of the largest with ONNX Runtime's qnn provider as NPU on cpu,npu by all 6 policies";
    assert!(rest.starts_with(with), "{verdict}");
    let option = |option: &str| stderr(&place.triad(&[&verify[..], &qnn, &[option]].concat()));
    assert!(
        option("vtcm=8")
            .contains("the provider qnn does not take the option vtcm: expected one of "),
    );
    assert!(option("vtcm_mb").contains("expected KEY=VALUE"));
    let other = ["--npu", "qnn", "--npu-library", "model.gguf"];
    let refused = stderr(&place.triad(&[&verify[..], &other].concat()));
    assert!(
        refused.contains("model.gguf can't be used as the library of the provider qnn: "),
        "{refused}"
    );
}

#[test]
fn a_package_runs_by_graphs_that_were_compiled_ahead_for_a_phone_and_by_no_others() {
    let (true, Some(library)) = (onnx_runtime().is_some(), std::env::var("TRIAD_QNN").ok()) else {
        crate::skip::skip("TRIAD_QNN names no library");
        return;
    };
    let place = packaged();
    let library = ["--npu-library", &library];
    let chip = ["--for", "snapdragon-8gen3", "--contexts", "phone", "--json"];
    let prepare = ["prepare", "package", "--prefill-chunk", "4"];
    let output = place.triad(&[&prepare[..], &library, &chip].concat());
    // After the report, the emulator prints a line of its own.
    let mut printed = serde_json::Deserializer::from_slice(&output.stdout).into_iter::<Json>();
    let report = printed.next().expect("a report").expect("JSON");
    assert_eq!(report["chip"], "snapdragon-8gen3");
    assert!(report["bytes"].as_u64() > Some(0), "{report}");
    let index: Json =
        serde_json::from_slice(&std::fs::read(place.path("phone/contexts.json")).unwrap()).unwrap();
    let graphs = index["graphs"].as_object().unwrap();
    assert_eq!(report["graphs"], graphs.len());
    assert_eq!(report["contexts_of_graphs"], 1, "all are in one context");
    let bytes = std::fs::metadata(place.path("phone/context0.bin")).unwrap();
    assert_eq!(report["bytes"], bytes.len());
    let on = |chunk: &str| {
        let verify = [
            "verify",
            "package",
            "--prefill-chunk",
            chunk,
            "--processors",
            "cpu,npu",
        ];
        let npu = ["--npu", "qnn", "--npu-contexts", "phone"];
        place.triad(&[&verify[..], &npu, &library].concat())
    };
    let verdict = succeed(&on("4"));
    let (_, difference) = verdict.split_once("have logits within ").expect(&verdict);
    let (difference, _) = difference.split_once(' ').unwrap();
    assert!(difference.parse::<f64>().unwrap() < 0.02, "{verdict}");
    let refused = stderr(&on("8"));
    assert!(
        refused.contains("no graph of these weights for chunks of 8 tokens"),
        "{refused}"
    );
    let again = stderr(&place.triad(&[&prepare[..], &library, &chip].concat()));
    assert!(again.contains("phone: it exists already"), "{again}");
    for (arguments, expected) in [
        (
            &[
                "prepare",
                "model.gguf",
                "--for",
                "snapdragon-8gen3",
                "--contexts",
                "p",
            ][..],
            "model.gguf is not a package",
        ),
        (
            &[
                "prepare",
                "package",
                "--for",
                "snapdragon-8",
                "--contexts",
                "p",
            ],
            "expected one of snapdragon-8gen2, ",
        ),
        (
            &["prepare", "package", "--for", "snapdragon-8gen3"],
            "--contexts",
        ),
        (
            &[
                "run",
                "-m",
                "package",
                "-p",
                "Hi",
                "--npu-contexts",
                "phone",
            ],
            "--npu-contexts is for a provider",
        ),
    ] {
        let refused = stderr(&place.triad(arguments));
        assert!(refused.contains(expected), "{refused}");
    }
}

/// Returns the files of compiled graphs in the package, with the times of their last change.
fn compiled(place: &Place) -> Vec<(std::path::PathBuf, std::time::SystemTime)> {
    let files = std::fs::read_dir(place.path("package/compiled"))
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = files
        .map(|path| (path.clone(), path.metadata().unwrap().modified().unwrap()))
        .collect();
    files.sort();
    files
}

#[test]
fn compiled_graphs_are_kept_in_the_package() {
    let Some(onnx_runtime) = onnx_runtime() else {
        return;
    };
    let place = packaged();
    let run = |chunk: &str| {
        let ask = [
            "run",
            "-m",
            "package",
            "-p",
            "Hello Hello",
            "-n",
            "4",
            "--prefill-chunk",
            chunk,
            "--json",
        ];
        let output = place.triad(&[&ask[..], &onnx_runtime].concat());
        assert!(!stderr(&output).contains("note"), "{}", stderr(&output));
        json(&output)["text"].clone()
    };
    let answer = run("4");
    let first = compiled(&place);
    assert!(!first.is_empty());
    assert_eq!(
        (run("4"), compiled(&place)),
        (answer.clone(), first.clone()),
        "used, not written again"
    );
    let graph = &first
        .iter()
        .find(|(path, _)| path.extension().is_some_and(|name| name == "onnx"))
        .unwrap()
        .0;
    std::fs::write(graph, "another one's").unwrap();
    assert_eq!(run("4"), answer);
    assert_ne!(
        std::fs::read(graph).unwrap(),
        b"another one's",
        "a damaged one is built again"
    );
    run("5");
    assert_eq!(
        compiled(&place).len(),
        2 * first.len(),
        "other graphs for another chunk length"
    );
    let verdict = succeed(&place.triad(&["verify", "package"]));
    assert!(
        verdict.contains("  made by runs, which check them: compiled, shadow-rows.bin\n"),
        "{verdict}"
    );
    succeed(&place.triad(&[
        "prepare",
        "model.gguf",
        "-o",
        "package",
        "--tokens",
        "100",
        "--force",
    ]));
    assert!(
        !place.path("package/compiled").exists(),
        "none of them is of the new weights"
    );
}

#[test]
fn a_package_that_can_not_be_written_runs_with_a_note_that_its_graphs_are_not_kept() {
    let Some(onnx_runtime) = onnx_runtime() else {
        return;
    };
    let place = packaged();
    // The user that runs this test may be able to write to all folders, but a file can't have files in it.
    place.write("package/compiled", "");
    let output = place.triad(
        &[
            &["run", "-m", "package", "-p", "Hello", "-n", "1"],
            &onnx_runtime[..],
        ]
        .concat(),
    );
    succeed(&output);
    let printed = stderr(&output);
    assert!(
        printed.contains("package/compiled: ")
            && printed.contains("compiled graphs can't be kept there"),
        "{printed}"
    );
    assert!(
        printed.contains(", and every run compiles them again"),
        "{printed}"
    );
}
