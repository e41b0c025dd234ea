//! Prompts on several processors, from end to end on a tiny model.

#[cfg(feature = "gpu")]
mod gpu;
#[cfg(feature = "hexagon")]
mod hexagon;
mod measured;
#[cfg(feature = "npu")]
mod npu;

use serde_json::Value as Json;

use crate::support::{Place, stderr};
use crate::{json, place, succeed};

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

#[test]
#[cfg(unix)]
fn a_named_pipe_in_the_place_of_measurements_is_noted_and_counts_as_missing() {
    let place = packaged();
    let ask = ["run", "-m", "package", "-p", "Hello", "-n", "2"];
    let ask = [&ask[..], &PROCESSORS].concat();
    let expected = succeed(&place.triad(&ask));
    let pipe = place.path("package/costs.json");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status();
    assert!(made.unwrap().success());
    let output = place.triad(&ask);
    assert_eq!(succeed(&output), expected);
    let printed = stderr(&output);
    assert!(
        printed.contains("costs.json is no regular file, and counts as missing"),
        "{printed}"
    );
}

#[test]
fn an_answer_is_the_same_on_one_and_on_several_processors() {
    let place = packaged();
    let ask = [
        "run",
        "-m",
        "package",
        "-p",
        "Hello Hello Hello",
        "-n",
        "8",
        "--prefill-chunk",
        "4",
        "--json",
    ];
    let alone = json(&place.triad(&ask));
    assert!(alone.get("executed").is_none());
    for policy in POLICIES {
        let several = json(&place.triad(&[&ask[..], &PROCESSORS, &["--policy", policy]].concat()));
        assert_eq!(several["text"], alone["text"]);
        let executed = &several["executed"];
        // The first prompt does not wait for a planned order.
        let policy = if policy == "planned" {
            "critical-path"
        } else {
            policy
        };
        assert_eq!(
            (&executed["policy"], &executed["failures"]),
            (&Json::from(policy), &Json::Array(Vec::new()))
        );
        let processors = executed["processors"].as_array().unwrap();
        assert_eq!(processors.len(), 2, "{executed}");
        assert!(
            processors
                .iter()
                .all(|processor| (0.0..1.0).contains(&processor["bubble_rate"].as_f64().unwrap()))
        );
    }
}

#[test]
fn a_run_leaves_a_trace_or_a_picture() {
    let place = packaged();
    let run = [
        "run",
        "-m",
        "package",
        "-p",
        "Hello Hello",
        "-n",
        "1",
        "--prefill-chunk",
        "4",
    ];
    for file in ["run.json", "run.svg"] {
        succeed(&place.triad(&[&run[..], &PROCESSORS, &["--timeline", file]].concat()));
    }
    let trace: Json =
        serde_json::from_str(&std::fs::read_to_string(place.path("run.json")).unwrap()).unwrap();
    assert!(!trace["traceEvents"].as_array().unwrap().is_empty());
    let picture = std::fs::read_to_string(place.path("run.svg")).unwrap();
    roxmltree::Document::parse(&picture).unwrap();
    assert!(
        picture.contains("measured") && picture.contains("INT8 kernels as NPU"),
        "{picture}"
    );
    let refused = place.triad(&[&run[..], &PROCESSORS, &["--timeline", "run.png"]].concat());
    assert!(
        stderr(&refused).contains("expected a name that ends in .json or .svg"),
        "{}",
        stderr(&refused)
    );
}

#[test]
fn a_package_is_verified_on_several_processors() {
    let place = packaged();
    let verify = ["verify", "package", "--prefill-chunk", "4"];
    let verdict = succeed(&place.triad(&[&verify[..], &PROCESSORS].concat()));
    let same = "have the same logits, bit for bit, on cpu,npu by all 6 policies\n";
    assert!(
        verdict.starts_with(&format!(
            "package: OK, and prompts of 1, 3, 4, 5, 14 tokens {same}"
        )),
        "{verdict}"
    );
}

/// Products that both processors compute together, cut by columns and by rows.
const CUTS: [&str; 6] = [
    "--tensor-split",
    "query-key-value=columns:1:1",
    "--tensor-split",
    "gate-up=columns:3:2",
    "--tensor-split",
    "down=rows:1:1",
];

#[test]
fn a_package_is_verified_with_products_that_two_processors_compute_together() {
    let place = packaged();
    for processors in ["cpu,npu", "cpu,cpu"] {
        let verify = [
            "verify",
            "package",
            "--prefill-chunk",
            "4",
            "--processors",
            processors,
        ];
        let verdict = succeed(&place.triad(&[&verify[..], &CUTS].concat()));
        assert!(
            verdict.contains("have the same logits, bit for bit, on"),
            "{verdict}"
        );
    }
    let wrong = place.triad(&[
        "run",
        "-m",
        "package",
        "-p",
        "Hello",
        "--processors",
        "cpu,npu",
        "--tensor-split",
        "down=rows:1",
    ]);
    assert!(
        stderr(&wrong).contains("--tensor-split down has 1 shares for 2 processors"),
        "{}",
        stderr(&wrong)
    );
}

#[test]
fn what_does_not_fit_into_the_window_is_reported() {
    let place = packaged();
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
    let alone = json(&place.triad(&run))["text"].clone();
    let output = place.triad(&[&run[..], &PROCESSORS, &["--npu-memory", "0.00001"]].concat());
    assert_eq!(json(&output)["text"], alone);
    let printed = stderr(&output);
    assert!(
        printed.contains("INT8 subgraphs do not fit into the memory of the NPU and run on the CPU"),
        "{printed}"
    );
}
