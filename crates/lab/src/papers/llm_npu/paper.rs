//! The numbers of the paper's text that are compared, each with its surrounding words, and the paper's table 4.

use crate::papers::heterollm;
use crate::papers::quotes::{Quote, quotes};

quotes! {
    /// Share of prefill in the latency of Qwen1.5-1.8B on llama.cpp, lower end of the range, %.
    PREFILL_SHARE_FROM = 94.4, "2.1", "accounting for 94.4% to 98.8% of the total latency";
    /// Upper end of this range.
    PREFILL_SHARE_TO = 98.8, "2.1", "accounting for 94.4% to 98.8% of the total latency";
    /// INT8 matmuls on the NPU over those on the CPU, lower end of the range.
    INT8_OVER_CPU_FROM = 4.5, "2.2", "achieved a 4.5–5.8× speedup compared to CPU INT8";
    /// Upper end of this range.
    INT8_OVER_CPU_TO = 5.8, "2.2", "achieved a 4.5–5.8× speedup compared to CPU INT8";
    /// Slowdown of FP16 matmuls on the NPU compared with INT8 on the CPU, maximum.
    FP16_BELOW_CPU = 159.0, "2.2", "in performance up to 159× slower than CPU INT8";
    /// Slowdown of quantization by groups compared with tensors on the NPU, lower end of the range.
    PER_GROUP_FROM = 8.1, "2.3", "significant inference overhead by 8.1×–10.7×";
    /// Upper end of this range.
    PER_GROUP_TO = 10.7, "2.3", "significant inference overhead by 8.1×–10.7×";
    /// Building the graph of Gemma-2B, ms.
    BUILD_GEMMA = 360.0, "2.3", "using QNN framework takes 360 ms, and graph optimization requires 11.54 seconds";
    /// Optimizing it, s.
    OPTIMIZE_GEMMA = 11.54, "2.3", "using QNN framework takes 360 ms, and graph optimization requires 11.54 seconds";
    /// Subgraphs of Qwen1.5-1.8B that chunks share.
    SHARED = 120.0, "3.2", "120 out of 144 subgraphs can be shared in Qwen1.5-1.8B models";
    /// All subgraphs of Qwen1.5-1.8B.
    SUBGRAPHS = 144.0, "3.2", "120 out of 144 subgraphs can be shared in Qwen1.5-1.8B models";
    /// Saving by sharing them, %.
    SHARING_PERCENT = 75.0, "3.2", "reducing memory consumption by up to 75% (7.2GB)";
    /// Saving by sharing them, GB.
    SHARING_GIGABYTES = 7.2, "3.2", "reducing memory consumption by up to 75% (7.2GB)";
    /// Chunk length.
    CHUNK = 256.0, "3.2", "empirically chooses a chunk length of 256 for Xiaomi 14 device";
    /// Latency of joining all shadows of Qwen1.5-1.8B, % of the prefill.
    SHADOWS_LATENCY = 29.7, "3.3", "29.7% end-to-end latency and 20.1% energy consumption on Qwen1.5-1.8B";
    /// Energy of all shadows of Qwen1.5-1.8B, % of the prefill.
    SHADOWS_ENERGY = 20.1, "3.3", "29.7% end-to-end latency and 20.1% energy consumption on Qwen1.5-1.8B";
    /// Saving by keeping only hot channels for shadows, %.
    HOT_ROWS = 34.3, "3.3", "reduces the memory overhead of shadow execution by 34.3% with negligible latency";
    /// Bubbles of the NPU in order, %.
    BUBBLES = 37.0, "3.4", "large execution bubbles (37% bubble rate in critical path)";
    /// Qwen1.5-1.8B at 256 tokens on the NPU, ms.
    NPU_AT_256 = 315.0, "3.4", "NPU execution takes 315ms, about twice that of the CPU";
    /// Speedup of matmuls by the best shape of rows.
    EQUIVALENT_SHAPES = 1.62, "4", "reduces execution latency by 1.62 ×";
    /// Lower bound of the prefill speed of Qwen1.5-1.8B, tokens/s.
    SPEED = 1000.0, "abstract", "achieves more than 1,000 tokens/sec prefilling for a billion-sized model (Qwen1.5-1.8B)";
    /// Prefill over other engines, mean.
    FASTER = 22.4, "abstract", "achieves 22.4× faster prefill speed and 30.7× energy savings on average";
    /// Energy savings over other engines, mean.
    FRUGAL = 30.7, "abstract", "achieves 22.4× faster prefill speed and 30.7× energy savings on average";
    /// Prefill over llama.cpp, 1024 tokens, Xiaomi 14, lower end of the range.
    LLAMA_CPP_FROM = 18.17, "4.2", "by 18.17–38.4×, 7.3×, 32.5–43.6×, and 1.27–2.34× on Xiaomi 14";
    /// Upper end of this range.
    LLAMA_CPP_TO = 38.4, "4.2", "by 18.17–38.4×, 7.3×, 32.5–43.6×, and 1.27–2.34× on Xiaomi 14";
    /// Prefill over MNN, 1024 tokens, Xiaomi 14.
    MNN = 7.3, "4.2", "by 18.17–38.4×, 7.3×, 32.5–43.6×, and 1.27–2.34× on Xiaomi 14";
    /// Prefill over MLC, 1024 tokens, Xiaomi 14, lower end of the range.
    MLC_FROM = 32.5, "4.2", "by 18.17–38.4×, 7.3×, 32.5–43.6×, and 1.27–2.34× on Xiaomi 14";
    /// Upper end of this range.
    MLC_TO = 43.6, "4.2", "by 18.17–38.4×, 7.3×, 32.5–43.6×, and 1.27–2.34× on Xiaomi 14";
    /// Prefill over TFLite, 1024 tokens, Xiaomi 14, lower end of the range.
    TFLITE_FROM = 1.27, "4.2", "by 18.17–38.4×, 7.3×, 32.5–43.6×, and 1.27–2.34× on Xiaomi 14";
    /// Upper end of this range.
    TFLITE_TO = 2.34, "4.2", "by 18.17–38.4×, 7.3×, 32.5–43.6×, and 1.27–2.34× on Xiaomi 14";
    /// Prefill over PowerInfer-v2, 1024 tokens, Xiaomi 14, lower end of the range.
    POWERINFER_FROM = 3.28, "4.2", "can achieve 3.28–5.32× and 3.4–5.6× speedup on two devices";
    /// Upper end of this range.
    POWERINFER_TO = 5.32, "4.2", "can achieve 3.28–5.32× and 3.4–5.6× speedup on two devices";
    /// Prefill over llama.cpp, 1024 tokens, Redmi K60 Pro, lower end of the range.
    REDMI_LLAMA_CPP_FROM = 21.3, "4.2", "these improvements are 21.3–41.3×, 7.43×, 37.2–69.3×, and 1.3–2.6×";
    /// Upper end of this range.
    REDMI_LLAMA_CPP_TO = 41.3, "4.2", "these improvements are 21.3–41.3×, 7.43×, 37.2–69.3×, and 1.3–2.6×";
    /// Prefill over MNN, 1024 tokens, Redmi K60 Pro.
    REDMI_MNN = 7.43, "4.2", "these improvements are 21.3–41.3×, 7.43×, 37.2–69.3×, and 1.3–2.6×";
    /// Prefill over MLC, 1024 tokens, Redmi K60 Pro, lower end of the range.
    REDMI_MLC_FROM = 37.2, "4.2", "these improvements are 21.3–41.3×, 7.43×, 37.2–69.3×, and 1.3–2.6×";
    /// Upper end of this range.
    REDMI_MLC_TO = 69.3, "4.2", "these improvements are 21.3–41.3×, 7.43×, 37.2–69.3×, and 1.3–2.6×";
    /// Prefill over TFLite, 1024 tokens, Redmi K60 Pro, lower end of the range.
    REDMI_TFLITE_FROM = 1.3, "4.2", "these improvements are 21.3–41.3×, 7.43×, 37.2–69.3×, and 1.3–2.6×";
    /// Upper end of this range.
    REDMI_TFLITE_TO = 2.6, "4.2", "these improvements are 21.3–41.3×, 7.43×, 37.2–69.3×, and 1.3–2.6×";
    /// Prefill over PowerInfer-v2, 1024 tokens, Redmi K60 Pro, lower end of the range.
    REDMI_POWERINFER_FROM = 3.4, "4.2", "can achieve 3.28–5.32× and 3.4–5.6× speedup on two devices";
    /// Upper end of this range.
    REDMI_POWERINFER_TO = 5.6, "4.2", "can achieve 3.28–5.32× and 3.4–5.6× speedup on two devices";
    /// Prefill over llama.cpp, 64 tokens, lower end of the range.
    SHORT_LLAMA_CPP_FROM = 7.10, "4.2", "is 14.86–7.10×, 1.69×, 10.91–17.32×, 1.48×, and 1.81–2.51× faster";
    /// Upper end of this range.
    SHORT_LLAMA_CPP_TO = 14.86, "4.2", "is 14.86–7.10×, 1.69×, 10.91–17.32×, 1.48×, and 1.81–2.51× faster";
    /// Prefill over MNN, 64 tokens.
    SHORT_MNN = 1.69, "4.2", "is 14.86–7.10×, 1.69×, 10.91–17.32×, 1.48×, and 1.81–2.51× faster";
    /// Prefill over MLC, 64 tokens, lower end of the range.
    SHORT_MLC_FROM = 10.91, "4.2", "is 14.86–7.10×, 1.69×, 10.91–17.32×, 1.48×, and 1.81–2.51× faster";
    /// Upper end of this range.
    SHORT_MLC_TO = 17.32, "4.2", "is 14.86–7.10×, 1.69×, 10.91–17.32×, 1.48×, and 1.81–2.51× faster";
    /// Prefill over TFLite, 64 tokens.
    SHORT_TFLITE = 1.48, "4.2", "is 14.86–7.10×, 1.69×, 10.91–17.32×, 1.48×, and 1.81–2.51× faster";
    /// Prefill over PowerInfer-v2, 64 tokens, lower end of the range.
    SHORT_POWERINFER_FROM = 1.81, "4.2", "is 14.86–7.10×, 1.69×, 10.91–17.32×, 1.48×, and 1.81–2.51× faster";
    /// Upper end of this range.
    SHORT_POWERINFER_TO = 2.51, "4.2", "is 14.86–7.10×, 1.69×, 10.91–17.32×, 1.48×, and 1.81–2.51× faster";
    /// Energy of llama.cpp over it, 1024 tokens, lower end of the range.
    ENERGY_LLAMA_CPP_FROM = 35.63, "4.2", "by 35.63–59.52×, 35.21–59.25×, and 1.85–4.32× compared to";
    /// Upper end of this range.
    ENERGY_LLAMA_CPP_TO = 59.52, "4.2", "by 35.63–59.52×, 35.21–59.25×, and 1.85–4.32× compared to";
    /// Energy of MLC over it, 1024 tokens, lower end of the range.
    ENERGY_MLC_FROM = 35.21, "4.2", "by 35.63–59.52×, 35.21–59.25×, and 1.85–4.32× compared to";
    /// Upper end of this range.
    ENERGY_MLC_TO = 59.25, "4.2", "by 35.63–59.52×, 35.21–59.25×, and 1.85–4.32× compared to";
    /// Energy of TFLite over it, 1024 tokens, lower end of the range.
    ENERGY_TFLITE_FROM = 1.85, "4.2", "by 35.63–59.52×, 35.21–59.25×, and 1.85–4.32× compared to";
    /// Upper end of this range.
    ENERGY_TFLITE_TO = 4.32, "4.2", "by 35.63–59.52×, 35.21–59.25×, and 1.85–4.32× compared to";
    /// Energy of llama.cpp over it, 64 tokens, lower end of the range.
    SHORT_ENERGY_LLAMA_CPP_FROM = 10.38, "4.2", "the savings are 10.38–14.12×, 10.38–17.79×, and 3.22–3.67×";
    /// Upper end of this range.
    SHORT_ENERGY_LLAMA_CPP_TO = 14.12, "4.2", "the savings are 10.38–14.12×, 10.38–17.79×, and 3.22–3.67×";
    /// Energy of MLC over it, 64 tokens, lower end of the range.
    SHORT_ENERGY_MLC_FROM = 10.38, "4.2", "the savings are 10.38–14.12×, 10.38–17.79×, and 3.22–3.67×";
    /// Upper end of this range.
    SHORT_ENERGY_MLC_TO = 17.79, "4.2", "the savings are 10.38–14.12×, 10.38–17.79×, and 3.22–3.67×";
    /// Energy of TFLite over it, 64 tokens, lower end of the range.
    SHORT_ENERGY_TFLITE_FROM = 3.22, "4.2", "the savings are 10.38–14.12×, 10.38–17.79×, and 3.22–3.67×";
    /// Upper end of this range.
    SHORT_ENERGY_TFLITE_TO = 3.67, "4.2", "the savings are 10.38–14.12×, 10.38–17.79×, and 3.22–3.67×";
    /// Memory relative to llama.cpp and TFLite, maximum.
    MEMORY_MOST = 1.32, "4.5", "consumes up to 1.32× more memory than llama.cpp and TFLite";
    /// Share of shadows in all memory, lower end of the range, %.
    SHADOWS_MEMORY_FROM = 0.6, "4.5", "accounting for only 0.6%–1% of the total memory";
    /// Upper end of this range.
    SHADOWS_MEMORY_TO = 1.0, "4.5", "accounting for only 0.6%–1% of the total memory";
    /// Slowdown of the naive port compared with llama.cpp, lower end of the range.
    NAIVE_FROM = 2.55, "4.6", "results in 2.55–2.68× delays";
    /// Upper end of this range.
    NAIVE_TO = 2.68, "4.6", "results in 2.55–2.68× delays";
    /// Speedup by chunk-sharing, lower end of the range.
    CHUNK_SHARING_FROM = 1.46, "4.6", "improves prefill speed by 1.46–5.09×";
    /// Upper end of this range (Gemma-2B, which "achieves the highest speedup").
    CHUNK_SHARING_GEMMA = 5.09, "4.6", "improves prefill speed by 1.46–5.09×";
    /// Speedup by shadows, lower end of the range.
    SHADOW_FROM = 3.91, "4.6", "reduces prefill latency by 3.91–8.68×";
    /// Upper end of this range.
    SHADOW_TO = 8.68, "4.6", "reduces prefill latency by 3.91–8.68×";
    /// Reduction of latency by out-of-order execution, %, lower end of the range.
    OUT_OF_ORDER_FROM = 18.0, "4.6", "reduces prefill latency by 18%–44%";
    /// Upper end of this range.
    OUT_OF_ORDER_TO = 44.0, "4.6", "reduces prefill latency by 18%–44%";
}

/// Returns the prefill speed of Qwen1.5-1.8B at 1024 tokens, in tokens/s, by HeteroLLM's text: 564 at 256 tokens (its
/// §5.2.1), and "its performance is degraded to half when the sequence length is shortened to 256" from 1024 (its
/// §5.2.2). The paper's own text states only [`SPEED`].
pub fn speed_at_1024() -> f64 {
    2.0 * heterollm::paper::MLLM_NPU_SPEED.value
}

/// Names of the shapes of the paper's models.
pub const MODELS: [&str; 5] = [
    "qwen1.5-1.8b",
    "gemma-2b",
    "phi-2",
    "llama-2-7b",
    "mistral-7b",
];

/// The other engines of table 4, in the order of its columns.
pub const ENGINES: [&str; 5] = ["MLC", "llama.cpp", "MNN", "PowerInfer-v2", "TFLite"];

/// Index of llama.cpp in [`ENGINES`].
pub const LLAMA_CPP: usize = 1;

/// A workload of table 4: end-to-end latency on the Xiaomi 14.
#[derive(Clone, Copy, Debug)]
pub struct Workload {
    /// Name of the workload.
    pub name: &'static str,
    /// Tokens of the prompt.
    pub prompt: usize,
    /// Seconds of the paper's system on each of [`MODELS`].
    pub seconds: [f64; 5],
    /// Seconds of each of [`ENGINES`], on each of [`MODELS`] that it runs.
    pub engines: [[Option<f64>; 5]; 5],
    /// Geometric means of the system's speedup over each of [`ENGINES`].
    pub faster: [f64; 5],
}

/// Table 4.
pub const TABLE_4: [Workload; 4] = [
    Workload {
        name: "2wiki",
        prompt: 1500,
        seconds: [1.7, 1.9, 3.1, 5.3, 5.5],
        engines: [
            [Some(45.6), Some(78.4), Some(87.0), Some(184.7), Some(254.2)],
            [Some(26.7), Some(34.6), Some(53.3), Some(146.0), Some(200.2)],
            [Some(10.6), None, Some(13.0), Some(22.4), None],
            [None, None, None, Some(19.8), Some(20.0)],
            [None, Some(2.6), Some(6.3), None, None],
        ],
        faster: [34.7, 21.8, 4.8, 3.7, 1.7],
    },
    Workload {
        name: "TriviaQA",
        prompt: 1500,
        seconds: [2.0, 2.2, 3.6, 6.2, 6.4],
        engines: [
            [Some(46.0), Some(81.8), Some(91.4), Some(197.3), Some(266.2)],
            [Some(27.0), Some(36.2), Some(56.3), Some(156.2), Some(210.0)],
            [Some(11.2), None, Some(14.7), Some(23.8), None],
            [None, None, None, Some(21.8), Some(21.5)],
            [None, Some(2.8), Some(6.8), None, None],
        ],
        faster: [31.0, 19.6, 4.4, 3.4, 1.6],
    },
    Workload {
        name: "clock",
        prompt: 800,
        seconds: [1.4, 1.2, 3.1, 4.8, 4.9],
        engines: [
            [Some(21.0), Some(39.4), Some(46.6), Some(87.7), Some(122.3)],
            [Some(10.4), Some(16.5), Some(25.0), Some(60.4), Some(68.6)],
            [Some(3.9), None, Some(7.4), Some(10.6), None],
            [None, None, None, Some(11.1), Some(12.0)],
            [None, Some(2.5), Some(4.2), None, None],
        ],
        faster: [20.2, 10.8, 2.4, 2.4, 1.7],
    },
    Workload {
        name: "applauncher",
        prompt: 600,
        seconds: [1.1, 0.9, 2.4, 3.6, 3.8],
        engines: [
            [Some(16.2), Some(29.4), Some(35.4), Some(63.7), Some(90.1)],
            [Some(8.1), Some(12.3), Some(19.0), Some(43.9), Some(50.6)],
            [Some(3.1), None, Some(5.9), Some(7.7), None],
            [None, None, None, Some(8.2), Some(8.9)],
            [None, Some(1.9), Some(3.2), None, None],
        ],
        faster: [19.7, 10.5, 2.5, 2.3, 1.7],
    },
];

/// Returns the end-to-end seconds of an engine (an index of [`ENGINES`]) on a model (an index of [`MODELS`]) with a
/// prompt of `prompt` tokens, interpolated linearly between two workloads of table 4. `None` if the engine does not run
/// the model.
pub fn engine_seconds(engine: usize, model: usize, prompt: usize) -> Option<f64> {
    let [long, _, middle, short] = &TABLE_4;
    let (from, to) = if prompt < middle.prompt {
        (short, middle)
    } else {
        (middle, long)
    };
    let of = |workload: &Workload| workload.engines[engine][model];
    let share = (prompt as f64 - from.prompt as f64) / (to.prompt - from.prompt) as f64;
    Some(of(from)? + share * (of(to)? - of(from)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::papers::llm_npu::geometric_mean;

    #[test]
    fn table_4_has_68_values_of_other_engines() {
        let values = TABLE_4
            .iter()
            .flat_map(|workload| workload.engines.iter().flatten().flatten());
        assert_eq!(values.count(), 68);
    }

    #[test]
    fn the_geometric_means_of_table_4_are_those_of_its_values() {
        for workload in &TABLE_4 {
            for (engine, printed) in workload.engines.iter().zip(workload.faster) {
                let ratios = engine
                    .iter()
                    .zip(workload.seconds)
                    .filter_map(|(other, ours)| Some((*other)? / ours));
                let mean = geometric_mean(ratios).unwrap();
                assert!(
                    (mean - printed).abs() < 0.0505,
                    "{}: {mean}, not {printed}",
                    workload.name
                );
            }
        }
    }

    #[test]
    fn between_two_workloads_an_engine_takes_what_is_on_their_line() {
        for (prompt, seconds) in [
            (600, 8.1),
            (700, 9.25),
            (800, 10.4),
            (1150, 18.55),
            (1500, 26.7),
        ] {
            let found = engine_seconds(1, 0, prompt).unwrap();
            assert!((found - seconds).abs() < 1e-9, "{prompt} tokens: {found}");
        }
        assert_eq!(engine_seconds(3, 0, 1024), None);
    }
}
