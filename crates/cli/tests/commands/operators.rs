//! `bench --operators`: times, bytes read and bytes written of each operator of a block.

use super::support::stderr;
use super::{json, keys, place, succeed};

const BENCH: [&str; 12] = [
    "bench",
    "-m",
    "package",
    "--prompt",
    "8,16",
    "--decode",
    "4",
    "--context",
    "8",
    "--repeat",
    "3",
    "--operators",
];

#[test]
fn every_operator_of_a_package_has_its_time_and_bytes() {
    let place = place();
    succeed(&place.triad(&["prepare", "model.gguf", "--tokens", "100", "-o", "package"]));
    let report = json(&place.triad(&[&BENCH[..], &["--threads", "1,2", "--json"]].concat()));
    assert_eq!(keys(&report), ["model", "blocks", "tests"]);
    let blocks = report["blocks"].as_u64().unwrap();
    let tests = report["tests"].as_array().unwrap();
    let of = |test: &serde_json::Value| {
        let numbers =
            ["threads", "tokens", "context", "sequences"].map(|key| test[key].as_u64().unwrap());
        (test["test"].as_str().unwrap().to_owned(), numbers)
    };
    let of_threads = |threads| {
        [
            ("prefill", [8, 0]),
            ("prefill", [16, 0]),
            ("decode", [4, 8]),
        ]
        .map(|(test, [tokens, context])| (test.to_owned(), [threads, tokens, context, 1]))
    };
    assert_eq!(
        tests.iter().map(of).collect::<Vec<_>>(),
        [of_threads(1), of_threads(2)].concat()
    );
    let mut of_down = None;
    for test in tests {
        let operators = test["operators"].as_array().unwrap();
        let number = |object: &serde_json::Value, key: &str| object[key].as_f64().unwrap();
        let whole = number(test, "microseconds_per_token");
        let sum: f64 = operators
            .iter()
            .map(|operator| number(operator, "microseconds_per_token"))
            .sum();
        assert!(0.0 < sum && sum <= whole, "{sum} of {whole} µs");
        let of = |name: &str| {
            operators
                .iter()
                .find(|operator| operator["operator"] == name)
                .expect(name)
        };
        for operator in operators {
            let share = number(operator, "microseconds_per_token") / whole;
            assert!(
                (number(operator, "share") - share).abs() < 1e-9,
                "{operator}"
            );
        }
        // The sum after the last block reads two rows and writes one; the embedding writes one.
        let bytes = |name: &str, key: &str| of(name)["bytes_per_token"][key].as_f64().unwrap();
        let row = bytes("embedding", "written");
        let residual = ["read", "written"].map(|key| bytes("residual", key) * blocks as f64);
        assert!(
            residual
                .iter()
                .zip([2.0 * row, row])
                .all(|(found, wanted)| (found - wanted).abs() < 1e-6),
            "{residual:?}"
        );
        // A prompt reads the weights once; in decode each token reads them.
        let tokens = if test["test"] == "prefill" {
            number(test, "tokens")
        } else {
            1.0
        };
        let matrix = bytes("down", "weights") * tokens;
        assert!(
            (matrix - *of_down.get_or_insert(matrix)).abs() < 1e-6 * matrix,
            "{test}"
        );
        assert!(
            !of("output")["in_blocks"].as_bool().unwrap()
                && of("norm")["in_blocks"].as_bool().unwrap()
        );
    }
    let text = succeed(&place.triad(&[&BENCH[..], &["--threads", "1"]].concat()));
    for words in [
        &format!("in all {blocks} blocks"),
        "prefill of 16 tokens, 1 thread",
        "decode of 4 tokens after 8",
    ] {
        assert!(text.contains(words), "{text}");
    }
    for operator in [
        "residual, norm, quantize",
        "quantize",
        "RoPE",
        "cache write",
        "down product",
        "all blocks",
        "between operators",
    ] {
        assert!(
            text.lines().any(|line| line.starts_with(operator)),
            "{operator}: {text}"
        );
    }
}

#[test]
fn operators_are_counted_on_the_cpu_alone() {
    let place = place();
    let bench = [
        "bench",
        "--no-quantize",
        "-m",
        "model.gguf",
        "--operators",
        "--processors",
        "cpu,npu",
    ];
    let output = place.triad(&bench);
    assert!(
        !output.status.success() && stderr(&output).contains("cannot be used with"),
        "{}",
        stderr(&output)
    );
}
