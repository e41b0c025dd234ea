//! `bench --sustained`: speed over time.

use super::support::stderr;
use super::{json, keys, place, succeed};

const SUSTAINED: [&str; 12] = [
    "bench",
    "--no-quantize",
    "-m",
    "model.gguf",
    "--threads",
    "1",
    "--prompt",
    "16",
    "--decode",
    "4",
    "--sustained",
    "0.2s",
];

#[test]
fn a_sustained_run_reports_each_round_and_draws_them() {
    let place = place();
    let report = json(&place.triad(&[&SUSTAINED[..], &["--json", "--svg", "speed.svg"]].concat()));
    assert_eq!(
        (&report["prompt"], &report["decode"], &report["interrupted"]),
        (&16.into(), &4.into(), &false.into())
    );
    let rounds = report["rounds"].as_array().unwrap();
    let ends: Vec<_> = rounds
        .iter()
        .map(|round| round["at_seconds"].as_f64().unwrap())
        .collect();
    assert!(
        ends.windows(2).all(|pair| pair[0] < pair[1]) && *ends.last().unwrap() >= 0.2,
        "{ends:?}"
    );
    assert_eq!(
        keys(&rounds[0])[..3],
        [
            "at_seconds",
            "prefill_tokens_per_second",
            "decode_tokens_per_second"
        ]
    );
    let figure = std::fs::read_to_string(place.path("speed.svg")).unwrap();
    assert!(
        figure.contains("Prefill") && figure.contains("Decode") && figure.contains("minutes"),
        "{figure}"
    );
    let text = succeed(&place.triad(&SUSTAINED));
    assert!(
        text.contains("rounds of a prompt of 16 tokens and 4 more")
            && text.contains("last over first"),
        "{text}"
    );
}

#[test]
fn a_sustained_run_needs_a_prompt_and_an_answer_and_a_time() {
    let place = place();
    for (options, message) in [
        (&["--decode", "0"][..], "above 0"),
        (&["--sustained", "1"], "90s, 10m or 1h"),
    ] {
        let arguments = [
            "bench",
            "--no-quantize",
            "-m",
            "model.gguf",
            "--prompt",
            "16",
            "--sustained",
            "1s",
        ];
        let kept = if options[0] == "--sustained" {
            &arguments[..6]
        } else {
            &arguments[..]
        };
        let output = place.triad(&[kept, options].concat());
        assert!(
            !output.status.success() && stderr(&output).contains(message),
            "{}",
            stderr(&output)
        );
    }
}

#[test]
#[cfg(unix)]
fn ctrl_c_ends_a_sustained_run_with_what_is_measured() {
    let place = place();
    let arguments = [
        "bench",
        "--no-quantize",
        "-m",
        "model.gguf",
        "--threads",
        "1",
        "--prompt",
        "16",
        "--decode",
        "4",
    ];
    let mut command = place.command(&[&arguments[..], &["--sustained", "1h", "--json"]].concat());
    let child = command
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    // Rounds of this model take about a millisecond. If the signal came before the end of the first round, the exit
    // code would be another.
    std::thread::sleep(std::time::Duration::from_secs(2));
    let kill = format!("kill -INT {}", child.id());
    assert!(
        std::process::Command::new("sh")
            .args(["-c", &kill])
            .status()
            .unwrap()
            .success()
    );
    let report = json(&child.wait_with_output().unwrap());
    assert_eq!(report["interrupted"], true);
    assert!(!report["rounds"].as_array().unwrap().is_empty());
}
