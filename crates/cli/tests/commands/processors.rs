//! Prompts on several processors, from end to end on a tiny model.

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

/// Writes the tiny model and a package of it.
pub(super) fn packaged() -> Place {
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

/// Returns the arguments for ONNX Runtime's CPU provider as NPU, or `None` where the environment names no library.
#[cfg(feature = "npu")]
fn onnx_runtime() -> Option<[&'static str; 4]> {
    let is_named = std::env::var_os("TRIAD_ONNXRUNTIME").is_some();
    if !is_named {
        crate::skip::skip("TRIAD_ONNXRUNTIME names no library");
    }
    is_named.then_some(["--processors", "cpu,npu", "--npu", "cpu"])
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

#[test]
#[cfg(feature = "npu")]
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
#[cfg(feature = "npu")]
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
#[cfg(feature = "npu")]
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

#[test]
#[cfg(feature = "hexagon")]
fn a_package_is_verified_with_hexagon_bit_for_bit() {
    if std::env::var_os("TRIAD_HEXAGON").is_none() {
        crate::skip::skip("TRIAD_HEXAGON names no device program");
        return;
    }
    let place = packaged();
    let on = ["--processors", "cpu,npu", "--npu", "hexagon"];
    // The emulator is searched for in PATH.
    let path = std::env::var_os("PATH").unwrap_or_default();
    let triad = |arguments: &[&str]| {
        place
            .command(arguments)
            .env("PATH", &path)
            .output()
            .unwrap()
    };
    for cuts in [&CUTS[..0], &CUTS] {
        let verdict = succeed(&triad(
            &[
                &["verify", "package", "--prefill-chunk", "4"][..],
                &on,
                cuts,
            ]
            .concat(),
        ));
        assert!(
            verdict.contains("have the same logits, bit for bit, with Hexagon NPU")
                && verdict.contains("; npu:hexagon on HMX (a model"),
            "{verdict}"
        );
    }
    let verdict = succeed(&triad(
        &[
            &["verify", "package", "--prefill-chunk", "4"][..],
            &on,
            &["--npu-option", "unit=hvx"],
        ]
        .concat(),
    ));
    assert!(verdict.contains("; npu:hexagon on HVX: "), "{verdict}");
    // Subgraphs that do not fit run on the CPU, with a note.
    let run = [
        "run",
        "-m",
        "package",
        "-p",
        "Hello",
        "-n",
        "1",
        "--npu-memory",
        "0.00001",
    ];
    let output = triad(&[&run[..], &on].concat());
    succeed(&output);
    assert!(
        stderr(&output).contains("INT8 subgraphs do not fit into the memory of the NPU"),
        "{}",
        stderr(&output)
    );
}

#[test]
#[cfg(feature = "hexagon")]
fn hexagon_without_its_program_or_emulator_is_an_error_that_says_what_to_do() {
    let place = packaged();
    let ask = [
        "run",
        "-m",
        "package",
        "-p",
        "Hello",
        "-n",
        "1",
        "--processors",
        "cpu,npu",
        "--npu",
        "hexagon",
    ];
    let unnamed = place
        .command(&ask)
        .env_remove("TRIAD_HEXAGON")
        .output()
        .unwrap();
    assert_eq!(unnamed.status.code(), Some(1));
    assert!(
        stderr(&unnamed).contains("run hexagon/build and set TRIAD_HEXAGON"),
        "{}",
        stderr(&unnamed)
    );
    let missing = place
        .command(&ask)
        .env("TRIAD_HEXAGON", "nothing")
        .output()
        .unwrap();
    assert!(
        stderr(&missing).contains("nothing: ") && stderr(&missing).contains("hexagon/build"),
        "{}",
        stderr(&missing)
    );
    let mut command = place.command(&ask);
    let without = command
        .env("TRIAD_HEXAGON", place.path("model.gguf"))
        .env("TRIAD_QEMU_HEXAGON", "no-emulator");
    let without = without.output().unwrap();
    assert!(
        stderr(&without).contains("no-emulator")
            && stderr(&without).contains("install qemu-user-static")
    );
}

/// Returns the arguments for a CPU and the GPU that the environment names, or `None` where it names none.
#[cfg(feature = "gpu")]
fn with_gpu() -> Option<[&'static str; 2]> {
    let is_named = std::env::var_os("TRIAD_GPU").is_some();
    if !is_named {
        crate::skip::skip("TRIAD_GPU names no GPU");
    }
    is_named.then_some(["--processors", "cpu,gpu"])
}

#[test]
#[cfg(feature = "gpu")]
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
#[cfg(feature = "gpu")]
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
#[cfg(feature = "gpu")]
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
#[cfg(feature = "gpu")]
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
#[cfg(feature = "gpu")]
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

/// Returns the files of compiled graphs in the package, with the times of their last change.
#[cfg(feature = "npu")]
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
#[cfg(feature = "npu")]
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
#[cfg(feature = "npu")]
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
