//! Packages on a GPU next to a CPU in formats other than INT8, and on a GPU whose products an NPU computes. The GPU is
//! the one that the environment names.

use serde_json::Value as Json;

use crate::support::{Place, stderr};
use crate::{json, place, succeed};

/// Chunks of all prompts that `verify` runs with a chunk of four tokens: of 1, 3, 4, 5 and 14 tokens.
const CHUNKS: u64 = 1 + 1 + 1 + 2 + 4;
/// Chunks of one token: the only one of the first prompt, and the second one of five tokens.
const CHUNKS_OF_ONE_ROW: u64 = 2;
const POLICIES: u64 = 6;
const PRODUCTS: u64 = 4;

/// Returns whether the environment names a GPU.
fn has_gpu() -> bool {
    let is_named = std::env::var_os("TRIAD_GPU").is_some();
    if !is_named {
        crate::skip::skip("TRIAD_GPU names no GPU");
    }
    is_named
}

/// Prepares a package of the tiny model in this format.
fn prepared(format: &[&str]) -> Place {
    let place = place();
    let prepare = ["prepare", "model.gguf", "-o", "package", "--tokens", "100"];
    succeed(&place.triad(&[&prepare[..], format].concat()));
    place
}

/// Returns the number of products that read floats of a report.
fn products(verdict: &str) -> u64 {
    let found = verdict.split("; ").find_map(|part| {
        part.split_once(" products that read floats")?
            .0
            .rsplit_once(": ")
    });
    found.map_or(0, |(_, count)| count.parse().unwrap())
}

/// The beginning of a run of the package.
const RUN: [&str; 7] = [
    "run",
    "-m",
    "package",
    "-p",
    "Hello Hello Hello",
    "--temperature",
    "0",
];
const VERIFY: [&str; 4] = ["verify", "package", "--prefill-chunk", "4"];

#[test]
fn a_package_in_w4a16_is_verified_next_to_a_gpu_which_multiplies_all_products_or_its_parts() {
    if !has_gpu() {
        return;
    }
    let place = prepared(&["--weights", "int4"]);
    let verify = [&VERIFY[..], &["--processors", "cpu,gpu"]].concat();
    let verdict = succeed(&place.triad(&verify));
    let within = "have logits within";
    assert!(verdict.contains(within), "{verdict}");
    let of_block = POLICIES * CHUNKS * PRODUCTS;
    let whole = products(&verdict);
    assert!(whole > 0 && whole.is_multiple_of(of_block), "{verdict}");
    // The GPU has a part of each cut product, but perhaps none of one row that is cut into rows.
    let rows = whole / (CHUNKS * PRODUCTS) * CHUNKS_OF_ONE_ROW;
    for (cuts, least) in [
        (&["--tensor-split", "down=columns:1:1"][..], whole),
        (
            &[
                "--tensor-split",
                "gate-up=rows:1:1",
                "--tensor-split",
                "query-key-value=columns:1:1",
            ],
            whole - rows,
        ),
    ] {
        let verdict = succeed(&place.triad(&[&verify[..], cuts].concat()));
        assert!(verdict.contains(within), "{verdict}");
        let found = products(&verdict);
        assert!((least..=whole).contains(&found), "{verdict}");
    }
}

#[test]
fn an_answer_in_w4a16_or_in_float_is_the_same_next_to_a_gpu() {
    if !has_gpu() {
        return;
    }
    let place = prepared(&["--weights", "int4"]);
    for model in [
        &["-m", "package"][..],
        &["--no-quantize", "-m", "model.gguf"],
    ] {
        let ask = [
            "-p",
            "Hello Hello Hello",
            "--temperature",
            "0",
            "-n",
            "8",
            "--prefill-chunk",
            "4",
            "--json",
        ];
        let ask = [&["run"][..], model, &ask].concat();
        let alone = json(&place.triad(&ask));
        let found = json(&place.triad(&[&ask[..], &["--processors", "cpu,gpu"]].concat()));
        assert_eq!(found["text"], alone["text"], "{model:?}");
        let busy = found["executed"]["processors"][1]["busy_seconds"].as_f64();
        assert!(busy.unwrap() > 0.0, "{found}");
    }
}

#[test]
fn products_in_w4a16_are_measured_and_divided_between_a_cpu_and_a_gpu() {
    if !has_gpu() {
        return;
    }
    let place = prepared(&["--weights", "int4"]);
    let list = ["--processors", "cpu,gpu", "--prefill-chunk", "32"];
    let run = [&RUN[..], &["-n", "2", "--json"]].concat();
    let run = [&run[..], &list].concat();
    let refused = place.triad(&[&run[..], &["--partition", "tensor"]].concat());
    assert!(
        stderr(&refused).contains("triad profile"),
        "{}",
        stderr(&refused)
    );
    let alone = json(&place.triad(&run));
    succeed(&place.triad(&[&["profile", "-m", "package", "--repeat", "1"][..], &list].concat()));
    for how in ["layer", "tensor", "auto"] {
        let found = json(&place.triad(&[&run[..], &["--partition", how]].concat()));
        assert_eq!(found["text"], alone["text"], "{how}");
    }
}

#[test]
fn a_list_with_an_npu_refuses_a_package_in_w4a16_with_the_npu_and_what_would_work() {
    let place = prepared(&["--weights", "int4"]);
    let run = [&RUN[..], &["-n", "1", "--processors"]].concat();
    for list in ["cpu,npu", "gpu,npu", "cpu,gpu,npu"] {
        let output = place.triad(&[&run[..], &[list]].concat());
        assert_eq!(output.status.code(), Some(1));
        let text = stderr(&output);
        assert!(
            text.contains("which the INT8 kernels as NPU cannot multiply")
                && text.contains("expected a package in INT8, or only cpu and gpu in --processors"),
            "{text}"
        );
    }
}

/// Returns the arguments of each NPU that is here.
fn npus() -> Vec<Vec<&'static str>> {
    let mut npus = vec![vec![]];
    if cfg!(feature = "npu") && std::env::var_os("TRIAD_ONNXRUNTIME").is_some() {
        npus.push(vec!["--npu", "cpu"]);
    }
    if cfg!(feature = "hexagon") && std::env::var_os("TRIAD_HEXAGON").is_some() {
        npus.push(vec!["--npu", "hexagon"]);
    }
    npus
}

#[test]
fn a_gpu_runs_a_model_whose_products_an_npu_computes_and_the_cpu_computes_no_layer() {
    if !has_gpu() {
        return;
    }
    for format in [&["--prune", "0.5"][..], &["--decode-weights", "int4"]] {
        let place = prepared(format);
        // The emulator of Hexagon is searched for in PATH.
        let path = std::env::var_os("PATH").unwrap_or_default();
        let triad = |arguments: &[&str]| {
            let mut command = place.command(arguments);
            command.env("PATH", &path).output().unwrap()
        };
        let ask = [&RUN[..], &["-n", "8"]].concat();
        let ask = [&ask[..], &["--prefill-chunk", "4", "--json"]].concat();
        let on_gpu = json(&triad(&[&ask[..], &["--processors", "gpu"]].concat()));
        let operations = |report: &Json, of: &str| report["executed"]["operations"][of].as_u64();
        let on_cpu = |report: &Json| report["executed"]["operations"]["cpu_seconds"].as_f64();
        assert_eq!(operations(&on_gpu, "multiplier"), Some(0));
        for npu in npus() {
            let with = [&["--processors", "gpu,npu"][..], &npu].concat();
            let found = json(&triad(&[&ask[..], &with].concat()));
            assert_eq!(found["text"], on_gpu["text"], "{npu:?}");
            assert_eq!(on_cpu(&found), Some(0.0), "{found}");
            assert!(operations(&found, "multiplier") > Some(0), "{found}");
            assert!(
                operations(&found, "device") < operations(&on_gpu, "device"),
                "{found}"
            );
            // Rows are cut at multiples of 32.
            let cuts = [
                "--tensor-split",
                "query-key-value=rows:1:1",
                "--tensor-split",
                "gate-up=columns:1:1",
                "--tensor-split",
                "down=columns:2:1",
            ];
            for (chunk, cuts) in [("4", &[][..]), ("48", &cuts)] {
                let verify = ["verify", "package", "--prefill-chunk", chunk];
                let verdict = succeed(&triad(&[&verify[..], &with, cuts].concat()));
                assert!(
                    verdict.contains("and a token after each, have logits within")
                        && verdict.contains("operators on the CPU: 0.0 ms"),
                    "{npu:?}: {verdict}"
                );
            }
        }
    }
}

#[test]
fn what_a_gpu_with_an_npu_can_not_do_is_refused_by_name() {
    if !has_gpu() {
        return;
    }
    let place = prepared(&["--prune", "0.5"]);
    let run = [&RUN[..], &["-n", "1", "--processors", "gpu,npu"]].concat();
    for (more, expected) in [
        (
            &["--tensor-split", "down=columns:1"][..],
            "1 shares for 2 processors",
        ),
        (
            &["--partition", "tensor"],
            "run `triad profile -m package --processors gpu,npu` first",
        ),
        (
            &["--gpu-slice", "1"],
            "expected no --gpu-slice with gpu,npu",
        ),
        (
            &["--npu-memory", "1"],
            "expected another --npu with gpu,npu",
        ),
    ] {
        let text = stderr(&place.triad(&[&run[..], more].concat()));
        assert!(text.contains(expected), "{more:?}: {text}");
    }
}

#[test]
fn products_of_a_gpu_and_an_npu_are_measured_and_divided_by_what_was_measured() {
    if !has_gpu() {
        return;
    }
    let place = prepared(&["--prune", "0.5"]);
    let list = ["--processors", "gpu,npu", "--prefill-chunk", "32"];
    let run = [&RUN[..], &["-n", "2", "--json"], &list].concat();
    let alone = json(&place.triad(&run));
    let profile = ["profile", "-m", "package", "--repeat", "1", "--json"];
    let measured = json(&place.triad(&[&profile[..], &list].concat()));
    let products = measured["products"]["products"].as_array().unwrap();
    for processor in [0, 1] {
        assert!(products.iter().any(|one| one["processor"] == processor));
    }
    for how in ["blocking", "flag", "queue", "read", "write"] {
        let microseconds = measured["joins"][how].as_f64().unwrap();
        assert!(microseconds >= 0.0, "{how}: {microseconds}");
    }
    for how in ["layer", "tensor", "auto"] {
        let found = json(&place.triad(&[&run[..], &["--partition", how]].concat()));
        assert_eq!(found["text"], alone["text"], "{how}");
    }
    let plan = [
        "plan",
        "-m",
        "package",
        "--processors",
        "gpu,npu",
        "--partition",
        "auto",
    ];
    let plan = [&plan[..], &["--prompt", "40", "--prefill-chunk", "32"]].concat();
    let shown = succeed(&place.triad(&plan));
    assert!(
        shown.contains("gate-up") && shown.contains("NPU alone"),
        "{shown}"
    );
    // Powers that the system does not report are not assumed.
    if measured["products"]["powers"].is_null() {
        let energy = ["--partition", "auto", "--objective", "energy"];
        let refused = stderr(&place.triad(&[&run[..], &energy].concat()));
        assert!(
            refused.contains("powers of the processors were not measured"),
            "{refused}"
        );
    }
    let bench = [
        "bench",
        "-m",
        "package",
        "--prompt",
        "16",
        "--decode",
        "2",
        "--context",
        "16",
    ];
    let bench = [&bench[..], &["--repeat", "1", "--json"], &list].concat();
    let copied =
        |report: &Json, test: usize| report["results"][test]["copied"]["per_token"].as_f64();
    let found = json(&place.triad(&bench));
    let on_gpu = json(
        &place.triad(&[&bench[..bench.len() - 3], &["gpu", "--prefill-chunk", "32"]].concat()),
    );
    // The products of a prompt go through the CPU's memory, those of an answer do not.
    assert!(copied(&found, 0) > copied(&on_gpu, 0), "{found}");
    assert_eq!(copied(&found, 1), copied(&on_gpu, 1), "{found}");
}
