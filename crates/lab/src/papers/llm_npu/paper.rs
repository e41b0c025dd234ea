//! The numbers of the paper's text that ours are compared with, each with the words in which it stands there, and its
//! table 4.

use crate::papers::heterollm;
use crate::papers::quotes::{Quote, quotes};

quotes! {
    /// Share of prefill in the latency of Qwen1.5-1.8B on llama.cpp, from, %.
    PREFILL_SHARE_FROM = 94.4, "2.1", "accounting for 94.4% to 98.8% of the total latency";
    /// To.
    PREFILL_SHARE_TO = 98.8, "2.1", "accounting for 94.4% to 98.8% of the total latency";
    /// INT8 products on the NPU over those on the CPU, from.
    INT8_OVER_CPU_FROM = 4.5, "2.2", "achieved a 4.5–5.8× speedup compared to CPU INT8";
    /// To.
    INT8_OVER_CPU_TO = 5.8, "2.2", "achieved a 4.5–5.8× speedup compared to CPU INT8";
    /// FP16 products on the NPU, how much slower than INT8 on the CPU, at most.
    FP16_BELOW_CPU = 159.0, "2.2", "in performance up to 159× slower than CPU INT8";
    /// Quantization by groups, how much slower than by tensors on the NPU, from.
    PER_GROUP_FROM = 8.1, "2.3", "significant inference overhead by 8.1×–10.7×";
    /// To.
    PER_GROUP_TO = 10.7, "2.3", "significant inference overhead by 8.1×–10.7×";
    /// Building the graph of Gemma-2B, ms.
    BUILD_GEMMA = 360.0, "2.3", "using QNN framework takes 360 ms, and graph optimization requires 11.54 seconds";
    /// Optimizing it, s.
    OPTIMIZE_GEMMA = 11.54, "2.3", "using QNN framework takes 360 ms, and graph optimization requires 11.54 seconds";
    /// Subgraphs of Qwen1.5-1.8B that chunks share.
    SHARED = 120.0, "3.2", "120 out of 144 subgraphs can be shared in Qwen1.5-1.8B models";
    /// All of them.
    SUBGRAPHS = 144.0, "3.2", "120 out of 144 subgraphs can be shared in Qwen1.5-1.8B models";
    /// What sharing them saves, %.
    SHARING_PERCENT = 75.0, "3.2", "reducing memory consumption by up to 75% (7.2GB)";
    /// The same in GB.
    SHARING_GIGABYTES = 7.2, "3.2", "reducing memory consumption by up to 75% (7.2GB)";
    /// The length of a chunk.
    CHUNK = 256.0, "3.2", "empirically chooses a chunk length of 256 for Xiaomi 14 device";
    /// Latency of joining all shadows of Qwen1.5-1.8B, % of the prefill.
    SHADOWS_LATENCY = 29.7, "3.3", "29.7% end-to-end latency and 20.1% energy consumption on Qwen1.5-1.8B";
    /// Energy of the same.
    SHADOWS_ENERGY = 20.1, "3.3", "29.7% end-to-end latency and 20.1% energy consumption on Qwen1.5-1.8B";
    /// What keeping only hot channels for shadows saves, %.
    HOT_ROWS = 34.3, "3.3", "reduces the memory overhead of shadow execution by 34.3% with negligible latency";
    /// Bubbles of the NPU in order, %.
    BUBBLES = 37.0, "3.4", "large execution bubbles (37% bubble rate in critical path)";
    /// Qwen1.5-1.8B at 256 tokens on the NPU, ms.
    NPU_AT_256 = 315.0, "3.4", "NPU execution takes 315ms, about twice that of the CPU";
    /// How much faster products are where rows are in the best shape.
    EQUIVALENT_SHAPES = 1.62, "4", "reduces execution latency by 1.62 ×";
    /// Prefill of Qwen1.5-1.8B, more than, tokens/s.
    SPEED = 1000.0, "abstract", "achieves more than 1,000 tokens/sec prefilling for a billion-sized model (Qwen1.5-1.8B)";
    /// Prefill over other engines, mean.
    FASTER = 22.4, "abstract", "achieves 22.4× faster prefill speed and 30.7× energy savings on average";
    /// Energy, the same.
    FRUGAL = 30.7, "abstract", "achieves 22.4× faster prefill speed and 30.7× energy savings on average";
    /// Prefill over llama.cpp, 1024 tokens, Xiaomi 14, from.
    LLAMA_CPP_FROM = 18.17, "4.2", "by 18.17–38.4×, 7.3×, 32.5–43.6×, and 1.27–2.34× on Xiaomi 14";
    /// To.
    LLAMA_CPP_TO = 38.4, "4.2", "by 18.17–38.4×, 7.3×, 32.5–43.6×, and 1.27–2.34× on Xiaomi 14";
    /// Over MNN.
    MNN = 7.3, "4.2", "by 18.17–38.4×, 7.3×, 32.5–43.6×, and 1.27–2.34× on Xiaomi 14";
    /// Over MLC, from.
    MLC_FROM = 32.5, "4.2", "by 18.17–38.4×, 7.3×, 32.5–43.6×, and 1.27–2.34× on Xiaomi 14";
    /// To.
    MLC_TO = 43.6, "4.2", "by 18.17–38.4×, 7.3×, 32.5–43.6×, and 1.27–2.34× on Xiaomi 14";
    /// Over TFLite, from.
    TFLITE_FROM = 1.27, "4.2", "by 18.17–38.4×, 7.3×, 32.5–43.6×, and 1.27–2.34× on Xiaomi 14";
    /// To.
    TFLITE_TO = 2.34, "4.2", "by 18.17–38.4×, 7.3×, 32.5–43.6×, and 1.27–2.34× on Xiaomi 14";
    /// Over PowerInfer-v2, from.
    POWERINFER_FROM = 3.28, "4.2", "can achieve 3.28–5.32× and 3.4–5.6× speedup on two devices";
    /// To.
    POWERINFER_TO = 5.32, "4.2", "can achieve 3.28–5.32× and 3.4–5.6× speedup on two devices";
    /// Over llama.cpp, 1024 tokens, Redmi K60 Pro, from.
    REDMI_LLAMA_CPP_FROM = 21.3, "4.2", "these improvements are 21.3–41.3×, 7.43×, 37.2–69.3×, and 1.3–2.6×";
    /// To.
    REDMI_LLAMA_CPP_TO = 41.3, "4.2", "these improvements are 21.3–41.3×, 7.43×, 37.2–69.3×, and 1.3–2.6×";
    /// Over MNN.
    REDMI_MNN = 7.43, "4.2", "these improvements are 21.3–41.3×, 7.43×, 37.2–69.3×, and 1.3–2.6×";
    /// Over MLC, from.
    REDMI_MLC_FROM = 37.2, "4.2", "these improvements are 21.3–41.3×, 7.43×, 37.2–69.3×, and 1.3–2.6×";
    /// To.
    REDMI_MLC_TO = 69.3, "4.2", "these improvements are 21.3–41.3×, 7.43×, 37.2–69.3×, and 1.3–2.6×";
    /// Over TFLite, from.
    REDMI_TFLITE_FROM = 1.3, "4.2", "these improvements are 21.3–41.3×, 7.43×, 37.2–69.3×, and 1.3–2.6×";
    /// To.
    REDMI_TFLITE_TO = 2.6, "4.2", "these improvements are 21.3–41.3×, 7.43×, 37.2–69.3×, and 1.3–2.6×";
    /// Over PowerInfer-v2, from.
    REDMI_POWERINFER_FROM = 3.4, "4.2", "can achieve 3.28–5.32× and 3.4–5.6× speedup on two devices";
    /// To.
    REDMI_POWERINFER_TO = 5.6, "4.2", "can achieve 3.28–5.32× and 3.4–5.6× speedup on two devices";
    /// Over llama.cpp, 64 tokens, from.
    SHORT_LLAMA_CPP_FROM = 7.10, "4.2", "is 14.86–7.10×, 1.69×, 10.91–17.32×, 1.48×, and 1.81–2.51× faster";
    /// To.
    SHORT_LLAMA_CPP_TO = 14.86, "4.2", "is 14.86–7.10×, 1.69×, 10.91–17.32×, 1.48×, and 1.81–2.51× faster";
    /// Over MNN.
    SHORT_MNN = 1.69, "4.2", "is 14.86–7.10×, 1.69×, 10.91–17.32×, 1.48×, and 1.81–2.51× faster";
    /// Over MLC, from.
    SHORT_MLC_FROM = 10.91, "4.2", "is 14.86–7.10×, 1.69×, 10.91–17.32×, 1.48×, and 1.81–2.51× faster";
    /// To.
    SHORT_MLC_TO = 17.32, "4.2", "is 14.86–7.10×, 1.69×, 10.91–17.32×, 1.48×, and 1.81–2.51× faster";
    /// Over TFLite.
    SHORT_TFLITE = 1.48, "4.2", "is 14.86–7.10×, 1.69×, 10.91–17.32×, 1.48×, and 1.81–2.51× faster";
    /// Over PowerInfer-v2, from.
    SHORT_POWERINFER_FROM = 1.81, "4.2", "is 14.86–7.10×, 1.69×, 10.91–17.32×, 1.48×, and 1.81–2.51× faster";
    /// To.
    SHORT_POWERINFER_TO = 2.51, "4.2", "is 14.86–7.10×, 1.69×, 10.91–17.32×, 1.48×, and 1.81–2.51× faster";
    /// Energy of llama.cpp over it, 1024 tokens, from.
    ENERGY_LLAMA_CPP_FROM = 35.63, "4.2", "by 35.63–59.52×, 35.21–59.25×, and 1.85–4.32× compared to";
    /// To.
    ENERGY_LLAMA_CPP_TO = 59.52, "4.2", "by 35.63–59.52×, 35.21–59.25×, and 1.85–4.32× compared to";
    /// Of MLC, from.
    ENERGY_MLC_FROM = 35.21, "4.2", "by 35.63–59.52×, 35.21–59.25×, and 1.85–4.32× compared to";
    /// To.
    ENERGY_MLC_TO = 59.25, "4.2", "by 35.63–59.52×, 35.21–59.25×, and 1.85–4.32× compared to";
    /// Of TFLite, from.
    ENERGY_TFLITE_FROM = 1.85, "4.2", "by 35.63–59.52×, 35.21–59.25×, and 1.85–4.32× compared to";
    /// To.
    ENERGY_TFLITE_TO = 4.32, "4.2", "by 35.63–59.52×, 35.21–59.25×, and 1.85–4.32× compared to";
    /// Energy of llama.cpp over it, 64 tokens, from.
    SHORT_ENERGY_LLAMA_CPP_FROM = 10.38, "4.2", "the savings are 10.38–14.12×, 10.38–17.79×, and 3.22–3.67×";
    /// To.
    SHORT_ENERGY_LLAMA_CPP_TO = 14.12, "4.2", "the savings are 10.38–14.12×, 10.38–17.79×, and 3.22–3.67×";
    /// Of MLC, from.
    SHORT_ENERGY_MLC_FROM = 10.38, "4.2", "the savings are 10.38–14.12×, 10.38–17.79×, and 3.22–3.67×";
    /// To.
    SHORT_ENERGY_MLC_TO = 17.79, "4.2", "the savings are 10.38–14.12×, 10.38–17.79×, and 3.22–3.67×";
    /// Of TFLite, from.
    SHORT_ENERGY_TFLITE_FROM = 3.22, "4.2", "the savings are 10.38–14.12×, 10.38–17.79×, and 3.22–3.67×";
    /// To.
    SHORT_ENERGY_TFLITE_TO = 3.67, "4.2", "the savings are 10.38–14.12×, 10.38–17.79×, and 3.22–3.67×";
    /// Memory over llama.cpp and TFLite, at most.
    MEMORY_MOST = 1.32, "4.5", "consumes up to 1.32× more memory than llama.cpp and TFLite";
    /// Shadows, of all memory, from, %.
    SHADOWS_MEMORY_FROM = 0.6, "4.5", "accounting for only 0.6%–1% of the total memory";
    /// To.
    SHADOWS_MEMORY_TO = 1.0, "4.5", "accounting for only 0.6%–1% of the total memory";
    /// The naive port, how much slower than llama.cpp, from.
    NAIVE_FROM = 2.55, "4.6", "results in 2.55–2.68× delays";
    /// To.
    NAIVE_TO = 2.68, "4.6", "results in 2.55–2.68× delays";
    /// Chunk-sharing, times faster, from.
    CHUNK_SHARING_FROM = 1.46, "4.6", "improves prefill speed by 1.46–5.09×";
    /// To: Gemma-2B, which "achieves the highest speedup".
    CHUNK_SHARING_GEMMA = 5.09, "4.6", "improves prefill speed by 1.46–5.09×";
    /// Shadows, times faster, from.
    SHADOW_FROM = 3.91, "4.6", "reduces prefill latency by 3.91–8.68×";
    /// To.
    SHADOW_TO = 8.68, "4.6", "reduces prefill latency by 3.91–8.68×";
    /// Out of order, % less, from.
    OUT_OF_ORDER_FROM = 18.0, "4.6", "reduces prefill latency by 18%–44%";
    /// To.
    OUT_OF_ORDER_TO = 44.0, "4.6", "reduces prefill latency by 18%–44%";
}

/// Prefill of Qwen1.5-1.8B at 1024 tokens, in tokens/s, by HeteroLLM's text: 564 at 256 tokens (its §5.2.1), and "its
/// performance is degraded to half when the sequence length is shortened to 256" from 1024 (its §5.2.2). The paper's own
/// text has [`SPEED`] alone.
pub fn speed_at_1024() -> f64 {
    2.0 * heterollm::paper::MLLM_NPU_SPEED.value
}

/// The paper's models, by the names of our shapes.
pub const MODELS: [&str; 5] = [
    "qwen1.5-1.8b",
    "gemma-2b",
    "phi-2",
    "llama-2-7b",
    "mistral-7b",
];

/// The other engines of table 4, in the order of its columns.
pub const ENGINES: [&str; 5] = ["MLC", "llama.cpp", "MNN", "PowerInfer-v2", "TFLite"];

/// llama.cpp among [`ENGINES`].
pub const LLAMA_CPP: usize = 1;

/// A workload of table 4: end-to-end latency on the Xiaomi 14.
#[derive(Clone, Copy, Debug)]
pub struct Workload {
    /// Its name.
    pub name: &'static str,
    /// Tokens of the prompt.
    pub prompt: usize,
    /// Seconds of the paper's system on each of [`MODELS`].
    pub seconds: [f64; 5],
    /// Seconds of each of [`ENGINES`], on each of [`MODELS`] that it runs.
    pub engines: [[Option<f64>; 5]; 5],
    /// The geometric means of how much faster than each of [`ENGINES`] the system is.
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

/// Seconds of an engine, an index of [`ENGINES`], on a model, an index of [`MODELS`], end to end with a prompt of so many
/// tokens: on the line through two workloads of table 4. `None` where the engine does not run the model.
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
