//! Partitions on a phone, and kernels compared with peaks.

use crate::outcome::{json, keys, succeed};
use crate::support::Place;
use crate::support::gguf::{Gguf, Value};

#[test]
fn plan_cuts_each_product_of_a_block_where_a_device_is_faster_so() {
    let place = Place::new();
    let model = Gguf::tiny().with("llama.context_length", Value::U32(1024));
    place.write("model.gguf", model.bytes());
    let plan = |how: &str, prompt: &str| {
        let shape = [
            "triad-lab",
            "plan",
            "--shape",
            "llama-2-7b",
            "--floats",
            "gpu",
            "--json",
        ];
        json(&place.triad(&[&shape[..], &["--partition", how, "--prompt", prompt]].concat()))
    };
    let seconds = |object: &serde_json::Value| -> Vec<f64> {
        let products = object["products"].as_array().unwrap().iter();
        products
            .map(|product| product["best"]["seconds"].as_f64().unwrap())
            .collect()
    };
    let [layer, tensor, auto] = ["layer", "tensor", "auto"].map(|how| plan(how, "600"));
    assert_eq!(
        (&auto["simulated"], &auto["float"], &auto["processors"][2]),
        (&true.into(), &1.into(), &"npu".into())
    );
    // Four matmuls in prefill and four in decode.
    let all = [seconds(&layer), seconds(&tensor), seconds(&auto)];
    assert!(all.iter().all(|seconds| seconds.len() == 8));
    for product in 0..8 {
        assert_eq!(
            all[2][product],
            all[0][product].min(all[1][product]),
            "{}",
            auto["products"][product]
        );
    }
    // A longer prompt has chunks of 1024 tokens and a remainder.
    let rows = |product: &serde_json::Value| {
        [&product["chunks"], &product["shape"]["rows"]].map(serde_json::Value::as_u64)
    };
    let long = plan("auto", "3100");
    assert_eq!(rows(&long["products"][0]), [Some(2), Some(1024)]);
    assert_eq!(rows(&long["products"][1]), [Some(1), Some(1052)]);
    let table = succeed(&place.triad(&[
        "triad-lab",
        "plan",
        "-m",
        "model.gguf",
        "--prompt",
        "100",
        "--partition",
        "auto",
    ]));
    assert!(
        table.starts_with("simulated: ")
            && table.contains("gate-up")
            && table.contains("NPU alone"),
        "{table}"
    );
}

#[test]
fn hwbench_compares_every_kernel_with_the_peak_that_binds_it() {
    let object = json(&Place::new().triad(&[
        "triad-lab",
        "hwbench",
        "--rows",
        "8",
        "--threads",
        "1",
        "--json",
    ]));
    assert_eq!(keys(&object), ["shape", "peaks", "kernels"]);
    let peaks = &object["peaks"][0];
    let memory = peaks["levels"].as_array().unwrap().last().unwrap();
    assert_eq!(
        (&peaks["threads"], &memory["name"]),
        (&1.into(), &"memory".into())
    );
    let rate = memory["bytes_read_per_second"].as_f64().unwrap();
    let kernels = object["kernels"].as_array().unwrap();
    let of = |operator: &'static str| {
        kernels
            .iter()
            .filter(move |kernel| kernel["operator"] == operator)
    };
    for operator in [
        "INT8 matmul",
        "f32 matmul",
        "attention",
        "RMS norm",
        "quantize",
        "INT8 matvec",
        "matvec of INT4 weights",
    ] {
        assert!(of(operator).count() > 0, "{operator}");
    }
    for kernel in of("INT8 matvec").filter(|kernel| kernel["shape"] == "1 × 576 × 1536") {
        let share = 576.0 * 1536.0 / rate / kernel["seconds"].as_f64().unwrap();
        assert!(
            (share - kernel["share_of_limit"].as_f64().unwrap()).abs() < 1e-9,
            "{kernel}"
        );
    }
}
