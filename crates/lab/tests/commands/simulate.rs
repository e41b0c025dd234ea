//! Tests that the output of `triad-lab simulate`, `triad-lab reproduce` and the studies of schedules is consistent with
//! the simulations.

use roxmltree::Document;
use serde_json::Value as Json;

use crate::outcome::{json, succeed};
use crate::support::Place;

fn simulate(more: &[&str]) -> Json {
    json(
        &Place::new().triad(
            &[
                &[
                    "triad-lab",
                    "simulate",
                    "--shape",
                    "smollm2-135m",
                    "--prompt",
                    "600",
                    "--json",
                ],
                more,
            ]
            .concat(),
        ),
    )
}

fn number(value: &Json) -> f64 {
    value
        .as_f64()
        .unwrap_or_else(|| panic!("{value} is no number"))
}

#[test]
fn every_policy_is_simulated_above_its_bound() {
    for policy in [
        "in-order",
        "fifo",
        "npu-first",
        "paper",
        "critical-path",
        "planned",
    ] {
        let simulated = simulate(&["--policy", policy]);
        assert_eq!(
            (&simulated["simulated"], &simulated["policy"]),
            (&true.into(), &policy.into())
        );
        assert!(
            number(&simulated["seconds"]) >= number(&simulated["bound_seconds"]),
            "{simulated}"
        );
        let speed = 600.0 / number(&simulated["seconds"]);
        assert!((number(&simulated["tokens_per_second"]) / speed - 1.0).abs() < 1e-9);
        assert_eq!(simulated["summary"]["source"], "simulated");
    }
}

#[test]
fn without_techniques_and_with_other_apps_it_takes_longer() {
    let seconds = |more: &[&str]| number(&simulate(more)["seconds"]);
    let alone = seconds(&[]);
    assert!(seconds(&["--contend", "npu:0.5@0-1000ms"]) > alone);
    assert!(
        seconds(&["--without", "shadow,out-of-order"]) > seconds(&["--without", "out-of-order"])
    );
    let without = simulate(&["--without", "chunk-sharing"]);
    assert!(number(&without["prepare_seconds"]) > 0.0 && number(&without["seconds"]) > alone);
    assert!(seconds(&["--device", "snapdragon-8gen2"]) > alone);
    assert!(seconds(&["--floats", "gpu"]) > 0.0);
}

#[test]
fn a_timeline_is_a_picture_or_a_trace_with_every_task() {
    let place = Place::new();
    let arguments = [
        "triad-lab",
        "simulate",
        "--shape",
        "smollm2-135m",
        "--prompt",
        "600",
        "--timeline",
    ];
    let text = succeed(&place.triad(&[&arguments[..], &["run.svg"]].concat()));
    assert!(
        text.starts_with(
            "simulated: smollm2-135m, 600 tokens in chunks of 256 on Snapdragon 8 Gen 3"
        ),
        "{text}"
    );
    succeed(&place.triad(&[&arguments[..], &["run.json"]].concat()));
    let tasks = simulate(&[])["tasks"].as_u64().unwrap() as usize;
    let svg = std::fs::read_to_string(place.path("run.svg")).unwrap();
    let document = Document::parse(&svg).unwrap();
    assert_eq!(
        document
            .descendants()
            .filter(|node| node.attribute("class") == Some("task"))
            .count(),
        tasks
    );
    let trace: Json =
        serde_json::from_slice(&std::fs::read(place.path("run.json")).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    assert_eq!(
        events.iter().filter(|event| event["ph"] == "X").count(),
        tasks
    );
    assert!(
        trace["otherData"]["title"]
            .as_str()
            .unwrap()
            .contains("planned")
    );
}

/// Returns the values of a section that `triad-lab reproduce --json` printed.
fn values<'a>(found: &'a Json, name: &str) -> &'a [Json] {
    let sections = found["sections"].as_array().unwrap();
    let section = sections
        .iter()
        .find(|section| section["name"] == name)
        .unwrap_or_else(|| panic!("{name}"));
    section["values"].as_array().unwrap()
}

#[test]
fn reproduce_marks_what_informed_a_choice_and_gives_the_mean_error_of_predictions_alone() {
    let found = json(&Place::new().triad(&["triad-lab", "reproduce", "llm.npu", "--json"]));
    let sharing = values(&found, "sharing");
    assert_eq!(
        (&sharing[1]["ours"], &sharing[1]["kind"]),
        (&120.0.into(), &"counted".into())
    );
    let of_kind = |name: &str, kind: &str| {
        values(&found, name)
            .iter()
            .filter(|value| value["kind"] == kind)
            .count()
    };
    let table = ["fitted", "seen", "held out"].map(|kind| of_kind("table-4", kind));
    assert_eq!(
        table,
        [4, 4 * 4 + 4 * 5, 0],
        "a choice was made in sight of it"
    );
    let sections = found["sections"].as_array().unwrap();
    let all = sections
        .iter()
        .flat_map(|section| section["values"].as_array().unwrap());
    let held_out = all.filter(|value| value["kind"] == "held out");
    let errors: Vec<_> = held_out
        .filter_map(|value| value["error"].as_f64())
        .map(f64::abs)
        .collect();
    let nearness = &found["papers"][0]["nearness"][0];
    assert_eq!(
        (&nearness["kind"], &nearness["numbers"]),
        (&"held out".into(), &errors.len().into())
    );
    assert!(
        (number(&nearness["mean_error"]) - errors.iter().sum::<f64>() / errors.len() as f64).abs()
            < 1e-9
    );
}

#[test]
fn next_to_a_range_a_value_is_inside_or_outside_with_its_distance_from_the_middle() {
    let found =
        json(&Place::new().triad(&["triad-lab", "reproduce", "micro-benchmarks", "--json"]));
    let of_group = values(&found, "micro-benchmarks")
        .iter()
        .find(|value| value["paper"][0] == 8.1)
        .unwrap();
    let (ours, error, inside) = (
        number(&of_group["ours"]),
        &of_group["error"],
        &of_group["inside"],
    );
    assert_eq!((error, inside), (&Json::Null, &true.into()));
    assert!(
        (number(&of_group["from_middle"]) - (ours / 9.4 - 1.0)).abs() < 1e-9,
        "{of_group}"
    );
    let text = succeed(&Place::new().triad(&["triad-lab", "reproduce", "micro-benchmarks"]));
    assert!(
        text.contains("8.10-10.7") && text.contains("inside, -1.1 % from the middle"),
        "{text}"
    );
    assert!(
        text.contains("the paper alone, not simulated (llm.npu runs no float on the NPU"),
        "{text}"
    );
    let text = succeed(&Place::new().triad(&["triad-lab", "reproduce", "table-4"]));
    assert!(
        text.contains("phi-2, TriviaQA, TFLite, s: 6.80") && !text.contains("held out: "),
        "{text}"
    );
    let text = succeed(&Place::new().triad(&["triad-lab", "reproduce", "figure-14"]));
    assert!(text.contains("> 1000"), "{text}");
}

#[test]
fn a_paper_ends_with_how_near_its_values_come_by_kind() {
    let found = json(&Place::new().triad(&["triad-lab", "reproduce", "heterollm", "--json"]));
    let sections = found["sections"].as_array().unwrap();
    assert!(
        sections
            .iter()
            .all(|section| section["name"].as_str().unwrap().starts_with("heterollm/"))
    );
    let paper = &found["papers"][0];
    let nearness = paper["nearness"].as_array().unwrap();
    let kinds: Vec<_> = nearness
        .iter()
        .map(|nearness| nearness["kind"].as_str().unwrap())
        .collect();
    assert_eq!(
        (&paper["paper"], &kinds[..]),
        (&"heterollm".into(), &["held out", "seen", "fitted"][..])
    );
    let text = succeed(&Place::new().triad(&["triad-lab", "reproduce", "heterollm"]));
    let start = |of: &Json| {
        let mean = 100.0 * number(&of["mean_error"]);
        format!(
            "heterollm, all of it, {}: {} with one number, mean error {mean:.1} %",
            of["kind"].as_str().unwrap(),
            of["numbers"]
        )
    };
    let last: Vec<_> = text.trim_end().lines().rev().take(3).collect();
    assert!(
        nearness
            .iter()
            .rev()
            .zip(&last)
            .all(|(of, line)| line.starts_with(&start(of))),
        "{last:?}"
    );
    assert!(
        text.contains("  Llama-8B, 256 tokens, Hetero-layer over MLC (§5.2.1): 5.64"),
        "{text}"
    );
    let one = succeed(&Place::new().triad(&["triad-lab", "reproduce", "heterollm/figure-16"]));
    assert!(one.contains("14.0") && !one.contains("all of it"), "{one}");
}

/// Runs a study on the smallest shape, and checks that it draws a figure.
fn study(name: &str, more: &[&str]) -> Json {
    let place = Place::new();
    let arguments = [
        &[
            "triad-lab",
            "study",
            name,
            "--shape",
            "smollm2-135m",
            "--svg",
            "figure.svg",
            "--json",
        ],
        more,
    ]
    .concat();
    let found = json(&place.triad(&arguments));
    assert_eq!(found["simulated"], true);
    let svg = std::fs::read_to_string(place.path("figure.svg")).unwrap();
    assert!(
        Document::parse(&svg)
            .unwrap()
            .descendants()
            .any(|node| node.attribute("class") == Some("plot"))
    );
    found
}

#[test]
fn no_policy_is_below_the_bound_and_small_instances_are_solved() {
    let found = study("policy", &["--partials", "20000"]);
    let names = found["names"].as_array().unwrap().len();
    for case in found["cases"].as_array().unwrap() {
        let seconds: Vec<_> = case["seconds"]
            .as_array()
            .unwrap()
            .iter()
            .map(number)
            .collect();
        assert_eq!(seconds.len(), names);
        assert!(
            seconds
                .iter()
                .all(|seconds| *seconds >= number(&case["bound_seconds"]) - 1e-9),
            "{case}"
        );
    }
    let small = found["small"].as_array().unwrap();
    assert!(small.iter().any(|small| small["is_proven"] == true));
    let is_between =
        |small: &Json| number(&small["bound_seconds"]) <= number(&small["optimum_seconds"]) + 1e-9;
    assert!(small.iter().all(is_between));
}

#[test]
fn an_ablation_has_all_combinations_and_their_factors() {
    let found = study("ablation", &["--prompt", "600"]);
    let model = &found["models"][0];
    let seconds: Vec<_> = (0..8)
        .map(|place| number(&model["combinations"][place]["seconds"]))
        .collect();
    let last = &model["factors"][2][3];
    assert!(
        (number(last) - seconds[3] / seconds[7]).abs() < 1e-9,
        "out of order on top of both others: {last}"
    );
    let table = succeed(&Place::new().triad(&[
        "triad-lab",
        "study",
        "ablation",
        "--shape",
        "smollm2-135m",
    ]));
    assert!(
        table.starts_with("simulated: 512 tokens")
            && table.contains("chunk-sharing + shadow + out-of-order"),
        "{table}"
    );
}

#[test]
fn other_apps_and_outliers_are_studied() {
    let found = study("contention", &["--moments", "3"]);
    let costs = found["models"][0]["costs"].as_array().unwrap();
    assert_eq!(costs.len(), 6 * 4);
    assert!(
        costs
            .iter()
            .all(|cost| cost["delays"].as_array().unwrap().len() == 3)
    );
    let found = study("outlier-rate", &["--prompt", "512"]);
    assert_eq!(found["models"][0]["points"].as_array().unwrap().len(), 12);
    assert!(number(&found["models"][0]["cpu_seconds"]) > 0.0);
}
