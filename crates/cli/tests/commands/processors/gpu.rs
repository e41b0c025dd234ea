//! A GPU in software.

use super::{CUTS, packaged};
use crate::support::stderr;
use crate::{json, succeed};

/// Returns the arguments for a CPU and the GPU that the environment names, or `None` where it names none.
fn with_gpu() -> Option<[&'static str; 2]> {
    let is_named = std::env::var_os("TRIAD_GPU").is_some();
    if !is_named {
        crate::skip::skip("TRIAD_GPU names no GPU");
    }
    is_named.then_some(["--processors", "cpu,gpu"])
}

#[test]
fn a_package_is_verified_with_a_gpu_whose_products_are_exact() {
    let Some(with_gpu) = with_gpu() else { return };
    let place = packaged();
    let verify = ["verify", "package", "--prefill-chunk", "4"];
    let verdict = succeed(&place.triad(&[&verify[..], &with_gpu].concat()));
    assert!(
        verdict.contains("on cpu,gpu by all 6 policies"),
        "{verdict}"
    );
    let verdict = succeed(&place.triad(&[&verify[..], &with_gpu, &CUTS].concat()));
    assert!(
        verdict.contains("have the same logits, bit for bit, with"),
        "{verdict}"
    );
}

#[test]
fn a_model_runs_whole_on_a_gpu_with_the_answers_of_the_cpu() {
    if with_gpu().is_none() {
        return;
    }
    let place = packaged();
    for model in [
        &["--no-quantize", "-m", "model.gguf"][..],
        &["-m", "package"],
    ] {
        let ask = [
            &["run"][..],
            model,
            &[
                "-p",
                "Hello Hello Hello",
                "-n",
                "12",
                "--prefill-chunk",
                "4",
                "--json",
            ],
        ]
        .concat();
        for more in [&[][..], &["--speculate", "lookup"]] {
            let on_cpu = json(&place.triad(&[&ask[..], more].concat()));
            let on_gpu = json(&place.triad(&[&ask[..], more, &["--processors", "gpu"]].concat()));
            assert_eq!(on_gpu["text"], on_cpu["text"], "{model:?}");
        }
        let refused =
            place.triad(&[&ask[..], &["--processors", "gpu", "--cache-type", "int8"]].concat());
        assert!(
            stderr(&refused).contains("the format of keys and values"),
            "{}",
            stderr(&refused)
        );
    }
}

#[test]
fn bench_measures_a_gpu_alone_on_the_gpu_and_compares_it_with_what_the_gpu_can_do() {
    if with_gpu().is_none() {
        return;
    }
    let place = packaged();
    for model in [
        &["--no-quantize", "-m", "model.gguf"][..],
        &["-m", "package"],
    ] {
        let bench = [
            &["bench"][..],
            model,
            &["--prompt", "8", "--decode", "2", "--context", "4"],
        ]
        .concat();
        let bench = [
            &bench[..],
            &[
                "--repeat",
                "1",
                "--processors",
                "gpu",
                "--prefill-chunk",
                "4",
                "--svg",
                "bench.svg",
            ],
        ]
        .concat();
        let report = json(&place.triad(&[&bench[..], &["--json"]].concat()));
        let (results, limits) = (
            report["results"].as_array().unwrap(),
            report["limits"].as_array().unwrap(),
        );
        assert!(
            report["processor"].as_str().unwrap().contains("GPU"),
            "{report}"
        );
        let tests: Vec<_> = results
            .iter()
            .map(|result| result["test"].as_str().unwrap())
            .collect();
        assert_eq!(tests, ["prefill", "decode"], "each once, and nowhere else");
        assert!(
            results
                .iter()
                .all(|result| result["limit_seconds"].as_f64().unwrap() > 0.0),
            "{report}"
        );
        let [limit] = &limits[..] else {
            panic!("{report}")
        };
        assert!(limit["processor"].is_string(), "{limit}");
        for rate in [
            "int8_operations_per_second",
            "f32_operations_per_second",
            "bytes_read_per_second",
        ] {
            assert!(limit[rate].as_f64().unwrap() > 1e8, "{limit}");
        }
        let table = succeed(&place.triad(&bench));
        assert!(
            table.contains("; all on GPU") && table.contains("limit of "),
            "{table}"
        );
        assert!(!table.contains("threads:"), "no limit of the CPU: {table}");
    }
}

#[test]
fn a_gpu_alone_is_verified_with_packages_of_every_format() {
    if with_gpu().is_none() {
        return;
    }
    let place = packaged();
    for (package, format) in [
        ("w4a16", &["--weights", "int4"][..]),
        ("int4-decode", &["--decode-weights", "int4"]),
    ] {
        let prepare = ["prepare", "model.gguf", "-o", package, "--tokens", "100"];
        succeed(&place.triad(&[&prepare[..], format].concat()));
    }
    for package in ["w4a16", "package", "int4-decode"] {
        let verdict = succeed(&place.triad(&[
            "verify",
            package,
            "--prefill-chunk",
            "4",
            "--processors",
            "gpu",
        ]));
        assert!(
            verdict.contains("and a token after each, have logits within"),
            "{verdict}"
        );
        assert!(
            verdict
                .lines()
                .next()
                .is_some_and(|line| line.ends_with("on gpu")),
            "{verdict}"
        );
    }
    let profile = place.triad(&["profile", "-m", "w4a16", "--processors", "gpu"]);
    assert!(
        stderr(&profile).contains("runs the whole model"),
        "{}",
        stderr(&profile)
    );
}

#[test]
fn a_gpu_that_is_not_there_is_an_error_that_lists_those_that_are() {
    let place = packaged();
    let run = [
        "run",
        "-m",
        "package",
        "-p",
        "Hello",
        "--processors",
        "cpu,gpu",
        "--gpu",
        "no such GPU",
    ];
    let output = place.triad(&run);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains("no GPU is called no such GPU: expected a part of the name"),
        "{}",
        stderr(&output)
    );
}
