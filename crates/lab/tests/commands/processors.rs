//! Studies on several processors of this machine.

use crate::outcome::{json, succeed};
use crate::place;
use crate::support::{Place, stderr};
use serde_json::Value as Json;

const PROCESSORS: [&str; 2] = ["--processors", "cpu,npu"];
const POLICIES: [&str; 6] = [
    "in-order",
    "fifo",
    "npu-first",
    "paper",
    "critical-path",
    "planned",
];

fn packaged() -> Place {
    let place = place();
    succeed(&place.triad(&[
        "prepare",
        "model.gguf",
        "-o",
        "package",
        "--tokens",
        "100",
        "--prune",
        "0.5",
    ]));
    place
}

/// Returns a CPU and the GPU that the environment names, or `None` if it names none.
#[cfg(feature = "gpu")]
fn with_gpu() -> Option<[&'static str; 2]> {
    let is_named = std::env::var_os("TRIAD_GPU").is_some();
    if !is_named {
        crate::skip::skip("TRIAD_GPU names no GPU");
    }
    is_named.then_some(["--processors", "cpu,gpu"])
}

#[test]
fn other_programs_are_measured_by_every_policy_and_what_they_took_is_counted() {
    let place = packaged();
    let study = [
        "triad-lab",
        "study",
        "interference",
        "-m",
        "package",
        "--prompt",
        "12",
        "--prefill-chunk",
        "4",
        "--repeat",
        "1",
        "--json",
    ];
    let on = ["--processors", "cpu=0,npu=1"];
    let found = json(&place.triad(&[&study[..], &on].concat()));
    let outcomes = found["outcomes"].as_array().unwrap();
    let kinds = ["busy", "half", "bursts", "busy", "half", "bursts", "memory"];
    assert_eq!(outcomes.len(), kinds.len() * POLICIES.len());
    for (outcomes, policy) in outcomes.chunks(kinds.len()).zip(POLICIES) {
        let of: Vec<_> = outcomes
            .iter()
            .map(|outcome| outcome["disturbance"]["kind"].as_str().unwrap())
            .collect();
        assert_eq!(of, kinds);
        for outcome in outcomes {
            assert_eq!(outcome["policy"], policy);
            let seconds = |field: &str| outcome[field].as_f64().unwrap();
            assert!(
                seconds("alone_seconds") > 0.0
                    && seconds("concurrent_seconds") > 0.0
                    && seconds("taken_seconds") > 0.0
            );
        }
    }
    let refused = place.triad(&[&study[..], &on, &["--freeze", "--policy", "fifo"]].concat());
    assert!(
        stderr(&refused).contains("no device is a process of its own"),
        "{}",
        stderr(&refused)
    );
    let anywhere = place.triad(&[&study[..], &PROCESSORS].concat());
    assert!(
        stderr(&anywhere).contains("expected --processors with cores"),
        "{}",
        stderr(&anywhere)
    );
}

#[test]
fn waits_are_measured_blocked_and_by_predicted_times() {
    let place = packaged();
    let study = [
        "triad-lab",
        "study",
        "synchronization",
        "-m",
        "package",
        "--prefill-chunk",
        "8,16",
        "--repeat",
        "2",
        "--json",
    ];
    let study = json(
        &place.triad(
            &[
                &study[..],
                &["--processors", "cpu,cpu", "--svg", "waits.svg"],
            ]
            .concat(),
        ),
    );
    let results = study["results"].as_array().unwrap();
    let of = |result: &Json| {
        (
            result["tokens"].as_u64().unwrap(),
            result["wait"].as_str().unwrap().to_owned(),
        )
    };
    let expected = [8, 16]
        .map(|tokens| ["blocking", "predicted"].map(|wait| (tokens, wait.to_owned())))
        .concat();
    assert_eq!(results.iter().map(of).collect::<Vec<_>>(), expected);
    for result in results {
        let waits = result["waits"].as_array().unwrap();
        assert_eq!(waits.len(), 2);
        let polls = waits
            .iter()
            .any(|waits| waits["polled_seconds"].as_f64().unwrap() > 0.0);
        assert!(!polls || result["wait"] == "predicted", "{result}");
    }
    roxmltree::Document::parse(&std::fs::read_to_string(place.path("waits.svg")).unwrap()).unwrap();
    let run = [
        "run",
        "-m",
        "package",
        "-p",
        "Hello Hello",
        "-n",
        "4",
        "--prefill-chunk",
        "4",
        "--json",
    ];
    let answers = ["blocking", "predicted"].map(|wait| {
        let run = json(&place.triad(&[&run[..], &PROCESSORS, &["--sync", wait]].concat()));
        assert_eq!(run["executed"]["waits"].as_array().unwrap().len(), 2);
        run["text"].clone()
    });
    assert_eq!(answers[0], answers[1]);
}

#[test]
fn lists_of_processors_are_compared_with_the_first_in_every_test() {
    let place = packaged();
    let study = [
        "triad-lab",
        "study",
        "processors",
        "-m",
        "package",
        "--prefill-chunk",
        "4",
        "--repeat",
        "3",
        "--json",
        "--svg",
        "lists.svg",
    ];
    let tests = ["--prompt", "12", "--decode", "2", "--context", "8"];
    let lists = ["cpu", "cpu,npu", "cpu"];
    let on = lists.map(|list| ["--processors", list]).concat();
    let found = json(&place.triad(&[&study[..], &tests, &on].concat()));
    let results = found["results"].as_array().unwrap();
    let expected = ["prefill", "decode"]
        .map(|test| lists.map(|list| [test, list]))
        .concat();
    let of = |result: &Json| {
        [&result["test"], &result["processors"]].map(|field| field.as_str().unwrap().to_owned())
    };
    assert_eq!(results.iter().map(of).collect::<Vec<_>>(), expected);
    for result in results {
        let ratio = |part: &str| result["times_as_fast"][part].as_f64().unwrap();
        assert!(
            0.0 < ratio("min")
                && ratio("min") <= ratio("median")
                && ratio("median") <= ratio("max"),
            "{result}"
        );
        assert!(
            result["tokens_per_second"]["median"].as_f64().unwrap() > 0.0,
            "{result}"
        );
    }
    for first in [&results[0], &results[3]] {
        assert_eq!(
            first["times_as_fast"]["max"], 1.0,
            "the first is as fast as itself"
        );
    }
    roxmltree::Document::parse(&std::fs::read_to_string(place.path("lists.svg")).unwrap()).unwrap();
    let nothing = [
        "triad-lab",
        "study",
        "processors",
        "-m",
        "package",
        "--processors",
        "cpu",
        "--prompt",
        "0",
        "--decode",
        "0",
    ];
    let nothing = place.triad(&nothing);
    assert!(
        stderr(&nothing).contains("expected --prompt or --decode above 0"),
        "{}",
        stderr(&nothing)
    );
}

#[test]
#[cfg(feature = "gpu")]
fn slices_of_a_gpu_change_no_answer_and_concurrent_frames_are_counted() {
    if with_gpu().is_none() {
        return;
    }
    let place = place();
    let ask = [
        "run",
        "--no-quantize",
        "-m",
        "model.gguf",
        "-p",
        "Hello Hello Hello",
        "-n",
        "8",
        "--processors",
        "gpu",
    ];
    let ask = [&ask[..], &["--json"]].concat();
    let whole = json(&place.triad(&ask));
    let sliced = json(&place.triad(&[&ask[..], &["--gpu-slice", "0.001"]].concat()));
    assert_eq!(sliced["text"], whole["text"]);
    let study = [
        "triad-lab",
        "study",
        "rendering",
        "-m",
        "model.gguf",
        "--prompt",
        "16",
        "--slice",
        "0,0.001",
        "--frame",
        "0.1",
    ];
    let study = [
        &study[..],
        &[
            "--repeat",
            "1",
            "--frames-per-second",
            "500",
            "--svg",
            "rendering.svg",
        ],
    ]
    .concat();
    let found = json(&place.triad(&[&study[..], &["--json"]].concat()));
    assert!(
        found["gpu"]
            .as_str()
            .unwrap()
            .contains("software on the CPU"),
        "{found}"
    );
    let [whole, sliced] = &found["results"].as_array().unwrap()[..] else {
        panic!("{found}")
    };
    // The chunk, and the logits of its last token.
    assert_eq!(whole["submissions"], 2);
    assert!(sliced["submissions"].as_u64().unwrap() > 5, "{sliced}");
    for result in [whole, sliced] {
        let [due, in_time] = ["due", "in_time"].map(|name| result[name].as_u64().unwrap());
        assert!(
            due >= in_time && due >= 1 && result["frame_seconds"].as_f64().unwrap() > 0.0,
            "{result}"
        );
    }
    let table = succeed(&place.triad(&[&study[..], &["--own-queue"]].concat()));
    assert!(
        table.contains("their own queue") && table.contains("a chunk"),
        "{table}"
    );
    let refused = place.triad(&["run", "-p", "Hello", "--gpu-slice", "4"]);
    assert!(
        stderr(&refused).contains("--gpu-slice"),
        "{}",
        stderr(&refused)
    );
}
