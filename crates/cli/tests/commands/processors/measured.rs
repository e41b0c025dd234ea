//! Measured times: benchmarks, profiles and cuts.

use serde_json::Value as Json;

use super::{POLICIES, PROCESSORS, packaged};
use crate::support::stderr;
use crate::{json, succeed};

#[test]
fn bench_measures_every_policy_and_reports_how_long_processors_waited() {
    let place = packaged();
    let bench = [
        "bench",
        "-m",
        "package",
        "--prompt",
        "12",
        "--decode",
        "0",
        "--repeat",
        "2",
        "--prefill-chunk",
        "4",
    ];
    let policies = POLICIES.join(",");
    let report =
        json(&place.triad(&[&bench[..], &PROCESSORS, &["--policy", &policies, "--json"]].concat()));
    let results = report["results"].as_array().unwrap();
    let executed: Vec<_> = results
        .iter()
        .filter_map(|result| result["executed"]["policy"].as_str())
        .collect();
    assert_eq!(executed, POLICIES);
    assert_eq!(
        results.len(),
        POLICIES.len() + 1,
        "and one chunk after the other"
    );
    let table =
        succeed(&place.triad(&[&bench[..], &PROCESSORS, &["--timeline", "bench.json"]].concat()));
    assert!(
        table.contains("planned") && table.contains("bubbles"),
        "{table}"
    );
    assert!(place.path("bench.json").is_file());
}

#[test]
fn what_is_expected_is_measured_as_asked_and_a_simulation_is_the_same_each_time_and_never_below_its_bound()
 {
    let place = packaged();
    let how = [&["-m", "package", "--prefill-chunk", "4"][..], &PROCESSORS].concat();
    let policies = POLICIES.join(",");
    let bench = |more: &[&str]| {
        let bench = [
            "bench", "--prompt", "12", "--decode", "0", "--repeat", "1", "--policy", &policies,
            "--json",
        ];
        json(&place.triad(&[&bench[..], &how, more].concat()))
    };
    let expected = |report: &Json, policy: &str| {
        let of_policy = |result: &&Json| result["executed"]["policy"] == policy;
        report["results"]
            .as_array()
            .unwrap()
            .iter()
            .find(of_policy)
            .unwrap()["expected"]
            .clone()
    };
    let seconds = |of: &Json, field: &str| of[field].as_f64().unwrap();
    let unmeasured = bench(&[]);
    let in_rounds = bench(&["--profile"]);
    succeed(&place.triad(&[&["profile", "--repeat", "1", "--no-products"][..], &how].concat()));
    let profiled = bench(&[]);
    for policy in POLICIES {
        let [before, between, afterwards] =
            [&unmeasured, &in_rounds, &profiled].map(|report| expected(report, policy));
        assert_eq!(
            [&before, &between, &afterwards].map(|expected| &expected["by"]),
            ["first-runs", "rounds", "package"]
        );
        for expected in [&before, &between, &afterwards] {
            assert!(
                seconds(expected, "bound_seconds") > 0.0
                    && seconds(expected, "outside_seconds") > 0.0
            );
            assert!(
                seconds(expected, "simulated_seconds")
                    >= seconds(expected, "bound_seconds") * (1.0 - 1e-9)
            );
        }
        let simulate = [
            "triad-lab",
            "simulate",
            "--prompt",
            "12",
            "--policy",
            policy,
            "--json",
        ];
        let simulated = || json(&place.triad(&[&simulate[..], &how].concat()));
        let [simulated, again] = [simulated(), simulated()];
        assert_eq!(
            (&simulated["simulated"], &simulated["policy"]),
            (&true.into(), &policy.into())
        );
        // The search for a plan ends when the prompt begins. The simulation in `bench` also uses the costs of its own
        // runs.
        if policy != "planned" {
            assert_eq!(simulated["seconds"], again["seconds"], "{policy}");
        }
        assert!(
            seconds(&simulated, "bound_seconds") <= seconds(&simulated, "seconds") * (1.0 + 1e-9)
        );
    }
    let text = succeed(
        &place.triad(
            &[
                &[
                    "triad-lab",
                    "simulate",
                    "--prompt",
                    "12",
                    "--timeline",
                    "run.svg",
                ][..],
                &how,
            ]
            .concat(),
        ),
    );
    assert!(
        text.starts_with(
            "simulated as measured by triad profile: package, 12 tokens in chunks of 4"
        ),
        "{text}"
    );
    assert!(
        std::fs::read_to_string(place.path("run.svg"))
            .unwrap()
            .contains("simulated")
    );
}

#[test]
fn bench_measures_decode_on_several_processors_and_on_the_cpu_alone() {
    let place = packaged();
    let several = ["--processors", "cpu,cpu", "--prefill-chunk", "20"];
    succeed(&place.triad(&[&["profile", "-m", "package", "--repeat", "1"][..], &several].concat()));
    let bench = [
        "bench",
        "-m",
        "package",
        "--prompt",
        "0",
        "--decode",
        "3",
        "--context",
        "5",
        "--sequences",
        "1,3",
    ];
    let how = ["--repeat", "1", "--partition", "tensor"];
    let report = json(&place.triad(&[&bench[..], &several, &how, &["--json"]].concat()));
    let results = report["results"].as_array().unwrap().iter();
    let results: Vec<_> = results
        .map(|result| (&result["test"], &result["sequences"], &result["processors"]))
        .collect();
    let (decode, on, none) = (Json::from("decode"), Json::from("cpu,cpu"), Json::Null);
    let [one, three] = [Json::from(1), Json::from(3)];
    let expected = [(&one, &on), (&three, &on), (&one, &none), (&three, &none)];
    assert_eq!(
        results,
        expected.map(|(sequences, on)| (&decode, sequences, on))
    );
    let table = succeed(&place.triad(&[&bench[..], &several, &how].concat()));
    assert!(
        table.contains("cpu,cpu") && table.contains("the CPU"),
        "{table}"
    );
}

/// Rounds numbers to twelve digits: each reading of a JSON file may change the last digit.
fn rounded(json: &Json) -> Json {
    match json {
        Json::Number(number) => format!("{:.11e}", number.as_f64().unwrap()).into(),
        Json::Array(values) => values.iter().map(rounded).collect(),
        Json::Object(fields) => fields
            .iter()
            .map(|(name, value)| (name.clone(), rounded(value)))
            .collect(),
        other => other.clone(),
    }
}

#[test]
fn a_profile_is_kept_in_the_package_for_its_processors_alone() {
    let place = packaged();
    let profile = [
        "profile",
        "-m",
        "package",
        "--prefill-chunk",
        "4",
        "--repeat",
        "2",
    ];
    let report = json(&place.triad(&[&profile[..], &PROCESSORS, &["--json"]].concat()));
    let mut seen: Vec<_> = report["costs"].as_array().unwrap().iter().collect();
    let on = |processor: &str| {
        let seen = seen.iter().filter(|seen| seen["processor"] == processor);
        seen.map(|seen| {
            (
                seen["role"].as_str().unwrap(),
                seen["operation"] == "shadow",
            )
        })
        .collect::<Vec<_>>()
    };
    // The costs of all subgraphs on the CPU, which takes over when the NPU fails, and of the shadows; those of INT8
    // subgraphs on the NPU.
    let block = [
        "attention-norm",
        "query-key-value",
        "attention",
        "attention-output",
        "feed-forward-norm",
        "feed-forward",
    ];
    assert!(
        block.iter().all(|role| on("cpu").contains(&(*role, false))),
        "{seen:?}"
    );
    assert!(on("cpu").iter().any(|(_, is_shadow)| *is_shadow));
    let is_int8 =
        |role: &str| !role.contains("norm") && !["attention", "activation"].contains(&role);
    assert!(
        on("npu")
            .iter()
            .all(|(role, is_shadow)| is_int8(role) && !is_shadow)
            && on("npu").len() >= 3
    );
    seen.retain(|seen| seen["role"] == "feed-forward");
    assert!(
        seen.iter()
            .all(|seen| seen["cost"]["seconds_per_token"].as_f64().unwrap() >= 0.0)
    );
    assert!(
        !report["products"]["products"]
            .as_array()
            .unwrap()
            .is_empty()
            && report.get("predictions").is_none()
    );
    // A file of another version of the program is replaced, with a note.
    std::fs::write(
        place.path("package/products.json"),
        "{\"cpu\": {\"of\": \"another version\"}}",
    )
    .unwrap();
    let output = place.triad(&[
        "profile",
        "-m",
        "package",
        "--prefill-chunk",
        "4",
        "--processors",
        "cpu",
        "--json",
    ]);
    assert!(
        stderr(&output).contains("products.json was damaged or of another version"),
        "{}",
        stderr(&output)
    );
    let alone = json(&output);
    assert!(
        alone.get("products").is_none(),
        "nothing is cut on one processor"
    );
    let kept: Json =
        serde_json::from_str(&std::fs::read_to_string(place.path("package/costs.json")).unwrap())
            .unwrap();
    let kept = kept.as_object().unwrap();
    assert_eq!(kept.len(), 2, "{kept:?}");
    let kept = &kept["CPU (any core), INT8 kernels as NPU (any core)"];
    assert_eq!(rounded(kept), rounded(&report["costs"]));
    // The file is part of no hash, so `verify` still succeeds.
    succeed(&place.triad(&["verify", "package"]));
}

#[test]
fn products_are_cut_by_what_was_measured_and_nothing_is_cut_without() {
    let place = packaged();
    for processors in ["cpu,npu", "cpu,cpu"] {
        let on = ["--processors", processors, "--prefill-chunk", "20"];
        let run = [
            "run",
            "-m",
            "package",
            "-p",
            "Hello Hello Hello",
            "-n",
            "4",
            "--json",
        ];
        let alone = json(&place.triad(&run));
        let unmeasured = place.triad(&[&run[..], &on, &["--partition", "auto"]].concat());
        let command = format!("run `triad profile -m package --processors {processors}` first");
        assert!(
            stderr(&unmeasured).contains(&command),
            "{}",
            stderr(&unmeasured)
        );
        let profile = succeed(
            &place.triad(&[&["profile", "-m", "package", "--repeat", "1"][..], &on].concat()),
        );
        assert!(
            profile.contains("µs alone / with the others") && profile.contains("products.json"),
            "{profile}"
        );
        for how in ["layer", "tensor", "auto"] {
            let planned = json(&place.triad(&[&run[..], &on, &["--partition", how]].concat()));
            assert_eq!(planned["text"], alone["text"], "{how}");
            let plan = [
                "plan",
                "-m",
                "package",
                "--prompt",
                "50",
                "--partition",
                how,
                "--json",
            ];
            let plan = json(&place.triad(&[&plan[..], &on].concat()));
            assert_eq!(
                (&plan["simulated"], &plan["restriction"]),
                (&Json::from(false), &Json::from(how))
            );
            // Two chunks and a rest of each product, cut as chunks of 32 tokens.
            let rows: Vec<_> = plan["products"]
                .as_array()
                .unwrap()
                .iter()
                .map(|product| {
                    (
                        product["chunks"].as_u64().unwrap(),
                        product["shape"]["rows"].as_u64().unwrap(),
                    )
                })
                .collect();
            assert!(
                rows.contains(&(2, 32)) && rows.contains(&(1, 32)) && rows.len() >= 8,
                "{rows:?}"
            );
            // A token of decode.
            let products = plan["products"].as_array().unwrap();
            let steps = || {
                products
                    .iter()
                    .filter(|product| product["phase"] == "decode")
            };
            assert_eq!(steps().count(), products.len() - 8, "{plan}");
            assert!(steps().all(|product| product["shape"]["rows"] == 1 && product["chunks"] == 1));
            let output = &plan["output"];
            assert_eq!(
                (&output["phase"], &output["shape"]["rows"]),
                (&"decode".into(), &1.into()),
                "{plan}"
            );
            let pieces = |choice: &Json| choice["best"]["pieces"].as_array().unwrap().len();
            match how {
                "layer" => {
                    assert!(steps().all(|product| pieces(product) == 1) && pieces(output) == 1);
                }
                "tensor" => assert!(steps().any(|product| pieces(product) == 2)),
                _ => {
                    let never_slower = |choice: &Json| {
                        let alone = choice["alone"].as_array().unwrap().iter();
                        let best = choice["best"]["seconds"].as_f64().unwrap();
                        alone
                            .map(|alone| alone["seconds"].as_f64().unwrap())
                            .all(|seconds| best <= seconds)
                    };
                    assert!(steps().chain([output]).all(never_slower), "{plan}");
                }
            }
        }
        let plan = [
            "plan",
            "-m",
            "package",
            "--prompt",
            "50",
            "--partition",
            "auto",
        ];
        let plan = succeed(&place.triad(&[&plan[..], &on].concat()));
        assert!(
            plan.contains("and one of decode") && plan.contains("output matrix"),
            "{plan}"
        );
        let verify = [&["verify", "package"][..], &on, &["--partition", "tensor"]].concat();
        let verdict = succeed(&place.triad(&verify));
        assert!(
            verdict.contains("have the same logits, bit for bit, on"),
            "{verdict}"
        );
        let longer = [
            "verify",
            "package",
            "--processors",
            processors,
            "--prefill-chunk",
            "40",
            "--partition",
            "auto",
        ];
        let longer = place.triad(&longer);
        assert!(
            stderr(&longer).contains("run `triad profile --prefill-chunk"),
            "{}",
            stderr(&longer)
        );
    }
    let both = [
        "run",
        "-m",
        "package",
        "-p",
        "Hello",
        "--processors",
        "cpu,cpu",
        "--partition",
        "auto",
        "--tensor-split",
        "down=rows:1:1",
    ];
    assert_eq!(place.triad(&both).status.code(), Some(2));
    std::fs::write(place.path("package/products.json"), "{\"a\": {}}").unwrap();
    let damaged = place.triad(&[
        "run",
        "-m",
        "package",
        "-p",
        "Hello",
        "--processors",
        "cpu,cpu",
        "--partition",
        "auto",
    ]);
    assert!(
        stderr(&damaged).contains("products.json: not what `triad profile` writes"),
        "{}",
        stderr(&damaged)
    );
}
