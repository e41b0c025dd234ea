//! `triad eval` on several processors.

use serde_json::Value as Json;

use crate::eval::{HELLASWAG, LAMBADA, TEXT};
use crate::processors::packaged;
use crate::support::{Place, stderr};

const TASKS: [(&str, &[&str]); 3] = [
    ("lambada", &["--data", "lambada.jsonl"]),
    ("hellaswag", &["--data", "hellaswag.jsonl"]),
    ("perplexity", &["--data", "text.txt", "--window", "11"]),
];

fn place() -> Place {
    let place = packaged();
    place.write("lambada.jsonl", LAMBADA);
    place.write("hellaswag.jsonl", HELLASWAG);
    place.write("text.txt", TEXT);
    place
}

/// Returns the result of a task.
fn eval(place: &Place, (task, data): (&str, &[&str]), more: &[&str]) -> Json {
    let start = [
        "eval",
        "-m",
        "package",
        "--json",
        "--prefill-chunk",
        "4",
        "--task",
        task,
    ];
    let output = place.triad(&[&start[..], data, more].concat());
    // Qualcomm's emulator prints a line of its own after the report.
    let mut printed = serde_json::Deserializer::from_slice(&output.stdout).into_iter::<Json>();
    let report = printed
        .next()
        .unwrap_or_else(|| panic!("{}", stderr(&output)));
    report.expect("JSON")["results"][0].take()
}

/// Asserts that the NPU, the second processor, has computed every product.
fn assert_on_npu(result: &Json) {
    let processors = &result["processors"];
    assert_eq!(processors[0]["products"], 0, "{processors}");
    assert_eq!(processors[1]["processor"], "NPU");
    assert_eq!(processors[1]["share"], 1.0, "{processors}");
    assert!(processors[1]["products"].as_u64() > Some(0));
}

#[test]
fn texts_on_several_processors_have_the_likelihoods_of_one() {
    let place = place();
    for task in TASKS {
        let alone = eval(&place, task, &[]);
        assert_eq!(alone.get("processors"), None);
        let several = eval(&place, task, &["--processors", "cpu,npu"]);
        assert_eq!(several["rows"], alone["rows"]);
        assert_eq!(several["metrics"], alone["metrics"]);
        assert_eq!(several["tokens"], alone["tokens"]);
        assert_on_npu(&several);
    }
    let printed = crate::succeed(&place.triad(&[
        "eval",
        "-m",
        "package",
        "--task",
        "lambada",
        "--data",
        "lambada.jsonl",
        "--processors",
        "cpu,npu",
    ]));
    assert!(
        printed.contains("CPU 0, 0.0 % of the operations; NPU "),
        "{printed}"
    );
    let refused = stderr(&place.triad(&[
        "eval",
        "-m",
        "model.gguf",
        "--task",
        "lambada",
        "--data",
        "lambada.jsonl",
        "--processors",
        "cpu,npu",
    ]));
    assert!(refused.contains("expected a package in INT8"), "{refused}");
    let refused = stderr(&place.triad(&[
        "eval",
        "-m",
        "package",
        "--task",
        "lambada",
        "--data",
        "lambada.jsonl",
        "--npu-memory",
        "1",
    ]));
    assert!(
        refused.contains("are for --processors: expected it, too"),
        "{refused}"
    );
}

/// The numbers of all rows.
fn numbers(rows: &Json) -> Vec<f64> {
    match rows {
        Json::Array(rows) => rows.iter().flat_map(numbers).collect(),
        Json::Object(rows) => rows.values().flat_map(numbers).collect(),
        Json::Number(number) => vec![number.as_f64().unwrap()],
        _ => Vec::new(),
    }
}

#[test]
#[cfg(feature = "npu")]
fn texts_on_qualcomms_emulator_differ_from_the_cpus_by_the_rounding_of_its_sums_and_no_more() {
    let library = std::env::var_os("TRIAD_QNN").is_some();
    if !library || std::env::var_os("TRIAD_ONNXRUNTIME").is_none() {
        crate::skip::skip("TRIAD_QNN and TRIAD_ONNXRUNTIME name no libraries");
        return;
    }
    let place = place();
    for task in TASKS {
        let alone = eval(&place, task, &[]);
        let npu = eval(&place, task, &["--processors", "cpu,npu", "--npu", "qnn"]);
        assert_on_npu(&npu);
        let (alone, npu) = (numbers(&alone["rows"]), numbers(&npu["rows"]));
        assert_eq!(alone.len(), npu.len());
        let differences = alone
            .iter()
            .zip(&npu)
            .map(|(one, other)| (one - other).abs());
        let largest = differences.fold(0.0, f64::max);
        assert!(largest > 0.0, "the CPU has computed {}", task.0);
        assert!(largest < 0.05, "{}: {largest}", task.0);
    }
}
