//! The numbers of the paper's text that are compared, each with its surrounding words.

use crate::papers::quotes::{Quote, quotes};

quotes! {
    /// Hetero-tensor, Llama-8B at 256 tokens, tokens/s.
    TENSOR_SPEED = 236.92, "5.4", "increases from 196.44 tokens/s to 236.92 tokens/s";
    /// Hetero-tensor without fast synchronization, Llama-8B at 256 tokens, tokens/s.
    BLOCKING_TENSOR_SPEED = 196.44, "5.4", "increases from 196.44 tokens/s to 236.92 tokens/s";
    /// Hetero-tensor over Hetero-layer, Llama-8B at 256 tokens, %.
    TENSOR_OVER_LAYER = 24.4, "5.6", "24.4% faster than Hetero-layer";
    /// Hetero-layer over PPL-OpenCL, Llama-8B at 256 tokens: the last of four frameworks.
    LAYER_OVER_GPU = 2.99, "5.2.1", "2.99× speedup compared to above frameworks";
    /// Hetero-tensor over PPL-OpenCL, Llama-8B at 256 tokens.
    TENSOR_OVER_GPU = 2.72, "5.6", "2.72× faster than PPL-OpenCL";
    /// Power of Hetero-layer, W.
    LAYER_WATTS = 2.23, "5.6", "lowest power consumption at 2.23W";
    /// Power of Hetero-tensor over that of Hetero-layer, %.
    TENSOR_WATTS_OVER_LAYER = 23.2, "5.6", "only 23.2% higher than that of Hetero-layer";
    /// Power of Hetero-tensor below that of PPL-OpenCL, %.
    TENSOR_WATTS_BELOW_GPU = 36.7, "5.6", "reduced by 36.7% compared to PPL-OpenCL";
    /// Slowdown of Hetero-layer by a game, %.
    LAYER_LOSS_WITH_GAME = 9.57, "5.5", "decreases by 9.57% and 7.26% respectively";
    /// Slowdown of Hetero-tensor by a game, %.
    TENSOR_LOSS_WITH_GAME = 7.26, "5.5", "decreases by 9.57% and 7.26% respectively";
    /// Time to build graphs of Llama-8B at 135 tokens, ms.
    GRAPHS_AT_135 = 408.4, "5.2.2", "Under sequence length 135, preparation time is 408.4 ms";
    /// Time to build graphs of Llama-8B at 1000 tokens, ms.
    GRAPHS_AT_1000 = 2050.0, "5.2.2", "increases to 2050 ms as the sequence length extends to 1000";
    /// Speed of a matmul relative to the reverse order.
    ORDER = 6.0, "3.2", "achieves 6× performance improvement";
    /// Bandwidth of one processor, lower end of the range, GB/s.
    BANDWIDTH_FROM = 40.0, "3.3", "can only achieve 40 to 45 GB/s under decoding workloads";
    /// Upper end of this range.
    BANDWIDTH_TO = 45.0, "3.3", "can only achieve 40 to 45 GB/s under decoding workloads";
    /// Bandwidth of the GPU alone, GB/s.
    BANDWIDTH_GPU = 43.3, "5.3", "increases from 43.3 GB/s (only GPU) to 59.1 GB/s";
    /// Bandwidth of GPU and NPU together, GB/s.
    BANDWIDTH_TOGETHER = 59.1, "5.3", "increases from 43.3 GB/s (only GPU) to 59.1 GB/s";
    /// Hetero-tensor at its fastest, Llama-8B, tokens/s.
    TENSOR_FASTEST = 247.9, "5.2.1", "reaches 247.9 tokens per second on Llama-8B";
    /// Hetero-tensor, InternLM-1.8B at 256 tokens, tokens/s.
    INTERNLM_SPEED = 1092.0, "5.2.1", "Hetero-tensor achieves 1092 tokens/s during the prefill phase";
    /// Prefill speed that is exceeded, tokens/s.
    SURPASSED = 1000.0, "1", "surpass 1000 tokens per second in prefill phase";
    /// Hetero-tensor over Hetero-layer, mean, %.
    TENSOR_OVER_LAYER_MEAN = 30.2, "5.2.1", "outperforms Hetero-layer by 30.2% on average";
    /// Hetero-tensor over Hetero-layer at 32 tokens, %.
    TENSOR_OVER_LAYER_AT_32 = 40.8, "5.2.1", "up to 40.8% when sequence length is 32";
    /// Hetero-layer over four engines, Llama-8B at 64 tokens, lower end of the range.
    LAYER_AT_64_FROM = 3.67, "5.2.1", "can speed up 3.67-14.36× and 3.17-25.12× respectively";
    /// Upper end of this range.
    LAYER_AT_64_TO = 14.36, "5.2.1", "can speed up 3.67-14.36× and 3.17-25.12× respectively";
    /// Hetero-layer over four engines, Llama-8B at 1024 tokens, lower end of the range.
    LAYER_AT_1024_FROM = 3.17, "5.2.1", "can speed up 3.67-14.36× and 3.17-25.12× respectively";
    /// Upper end of this range (llama.cpp).
    LAYER_AT_1024_TO = 25.12, "5.2.1", "can speed up 3.67-14.36× and 3.17-25.12× respectively";
    /// Hetero-tensor over PPL-OpenCL, Llama-3B, mean.
    LLAMA_3B_TENSOR_OVER_GPU = 3.51, "5.2.1", "and 3.51× over PPL-OpenCL";
    /// Hetero-layer over MNN-OpenCL, Llama-8B at 256 tokens.
    LAYER_OVER_MNN = 5.85, "5.2.1", "Hetero-layer achieves 5.85×, 24.9×, 5.64×, 2.99×";
    /// Hetero-layer over llama.cpp, Llama-8B at 256 tokens.
    LAYER_OVER_LLAMA_CPP = 24.9, "5.2.1", "Hetero-layer achieves 5.85×, 24.9×, 5.64×, 2.99×";
    /// Hetero-layer over MLC, Llama-8B at 256 tokens.
    LAYER_OVER_MLC = 5.64, "5.2.1", "Hetero-layer achieves 5.85×, 24.9×, 5.64×, 2.99×";
    /// Hetero-tensor over llama.cpp, Llama-8B at 1024 tokens.
    LLAMA_CPP_TENSOR_AT_1024 = 34.5, "5.2.1", "Hetero-tensor achieves 34.5×, 9.99× and 4.36×";
    /// Hetero-tensor over MLC, Llama-8B at 1024 tokens.
    MLC_TENSOR_AT_1024 = 9.99, "5.2.1", "Hetero-tensor achieves 34.5×, 9.99× and 4.36×";
    /// Hetero-tensor over MNN-OpenCL, Llama-8B at 1024 tokens.
    MNN_TENSOR_AT_1024 = 4.36, "5.2.1", "Hetero-tensor achieves 34.5×, 9.99× and 4.36×";
    /// Hetero-tensor over MNN-OpenCL, Llama-7B, mean.
    LLAMA_7B_OVER_MNN = 6.05, "5.2.1", "averagely 6.05× faster than MNN-OpenCL";
    /// Hetero-tensor over MLC, Llama-7B, mean.
    LLAMA_7B_OVER_MLC = 6.63, "5.2.1", "and 6.63× faster than MLC";
    /// Hetero-tensor over MNN-OpenCL, Llama-3B, mean.
    LLAMA_3B_OVER_MNN = 10.2, "5.2.1", "an average speed-up of 10.2× over MNN-OpenCL";
    /// MLLM-NPU with a model of 1.8B, tokens/s.
    MLLM_NPU_SPEED = 564.0, "5.2.1", "attains only 564 tokens/s under the same model size";
    /// Hetero-tensor over Online-prepare at 525 tokens.
    ONLINE_AT_525 = 2.24, "5.2.2", "achieves 2.24×, 2.21× and 1.35× speedup";
    /// Hetero-tensor over Padding at 525 tokens.
    PADDING_AT_525 = 2.21, "5.2.2", "achieves 2.24×, 2.21× and 1.35× speedup";
    /// Hetero-tensor over Pipe at 525 tokens.
    PIPE_AT_525 = 1.35, "5.2.2", "achieves 2.24×, 2.21× and 1.35× speedup";
    /// Hetero-tensor over Padding, maximum.
    PADDING_MOST = 2.12, "1", "up to 2.12× improvement than padding approach";
    /// Hetero-tensor over Padding, mean where a standard length is slightly exceeded.
    PADDING_MEAN = 1.91, "5.2.2", "is on average 1.91× longer than that of Hetero-tensor";
    /// Share of graphs in Online-prepare at 135 tokens, %.
    GRAPHS_SHARE_AT_135 = 34.6, "5.2.2", "accounts for 34.6% of the total latency";
    /// Latency of Hetero-tensor below Pipe, %, lower end of the range.
    BELOW_PIPE_FROM = 13.2, "5.2.2", "reducing the latency by 13.2%-30.1%";
    /// Upper end of this range.
    BELOW_PIPE_TO = 30.1, "5.2.2", "reducing the latency by 13.2%-30.1%";
    /// Gain by fast synchronization, Llama-8B, Hetero-layer, %.
    FAST_LLAMA_8B_LAYER = 15.8, "5.4", "Hetero-layer and Hetero-tensor by 15.8% and 24.3% on average";
    /// Gain by fast synchronization, Llama-8B, Hetero-tensor, %.
    FAST_LLAMA_8B_TENSOR = 24.3, "5.4", "Hetero-layer and Hetero-tensor by 15.8% and 24.3% on average";
    /// Gain by fast synchronization, Llama-7B, Hetero-layer, %.
    FAST_LLAMA_7B_LAYER = 31.7, "5.4", "31.7% and 26.7% with Hetero-layer, respectively";
    /// Gain by fast synchronization, Llama-7B, Hetero-tensor, %.
    FAST_LLAMA_7B_TENSOR = 49.0, "5.4", "49.0% and 34.5% with Hetero-tensor";
    /// Gain by fast synchronization, InternLM-1.8B, Hetero-layer, %.
    FAST_INTERNLM_LAYER = 26.7, "5.4", "31.7% and 26.7% with Hetero-layer, respectively";
    /// Gain by fast synchronization, InternLM-1.8B, Hetero-tensor, %.
    FAST_INTERNLM_TENSOR = 34.5, "5.4", "49.0% and 34.5% with Hetero-tensor";
    /// Decode by Hetero-tensor, Llama-8B, tokens/s.
    DECODE_LLAMA_8B = 14.01, "5.3", "up to 14.01 tokens/s on Llama-8B, 29.9 tokens/s on Llama-3B";
    /// Decode by Hetero-tensor, Llama-3B, tokens/s.
    DECODE_LLAMA_3B = 29.9, "5.3", "up to 14.01 tokens/s on Llama-8B, 29.9 tokens/s on Llama-3B";
    /// Decode by Hetero-tensor, InternLM-1.8B, tokens/s.
    DECODE_INTERNLM = 51.12, "5.3", "51.12 tokens/s on InternLM-1.8B";
    /// Decode over PPL-OpenCL, Llama-8B, %.
    DECODE_LLAMA_8B_OVER_GPU = 23.4, "5.3", "23.4% faster than PPL-OpenCL on Llama-8B, 8.52% faster on Llama-3B";
    /// Decode over PPL-OpenCL, Llama-3B, %.
    DECODE_LLAMA_3B_OVER_GPU = 8.52, "5.3", "23.4% faster than PPL-OpenCL on Llama-8B, 8.52% faster on Llama-3B";
    /// Decode over PPL-OpenCL, InternLM-1.8B, %.
    DECODE_INTERNLM_OVER_GPU = 13.38, "5.3", "13.38% faster on InternLM-1.8B";
    /// Decode over MNN-OpenCL, Llama-8B.
    DECODE_OVER_MNN = 1.50, "5.3", "achieves 1.50×, 2.53× and 1.52× speedup";
    /// Decode over llama.cpp, Llama-8B.
    DECODE_OVER_LLAMA_CPP = 2.53, "5.3", "achieves 1.50×, 2.53× and 1.52× speedup";
    /// Decode over MLC, Llama-8B.
    DECODE_OVER_MLC = 1.52, "5.3", "achieves 1.50×, 2.53× and 1.52× speedup";
    /// Decode over MNN-OpenCL, InternLM-1.8B.
    DECODE_INTERNLM_OVER_MNN = 1.94, "5.3", "achieves 1.94× speedup compared to MNN-OpenCL and 2.62× speedup compared to MLC";
    /// Decode over MLC, InternLM-1.8B.
    DECODE_INTERNLM_OVER_MLC = 2.62, "5.3", "achieves 1.94× speedup compared to MNN-OpenCL and 2.62× speedup compared to MLC";
    /// Speedup of decode by fast synchronization, Llama-8B.
    FAST_DECODE_LLAMA_8B = 4.01, "5.4", "speedups to 4.01× with fast synchronization";
    /// Speedup of decode by fast synchronization, other models.
    FAST_DECODE_OTHERS = 2.2, "5.4", "comparable improvements of 2.2× speedup";
    /// Hetero-tensor with a game over Hetero-layer without, %.
    TENSOR_WITH_GAME_OVER_LAYER = 15.3, "5.5", "still 15.3% faster even compared to Hetero-layer (w/o game)";
    /// Frames per second of the game.
    FRAMES = 60.0, "5.5", "keeping steady at 60 FPS";
    /// Energy of Hetero-tensor over Hetero-layer, %.
    ENERGY_OVER_LAYER = 3.3, "5.6", "consumes only 3.3% more energy than Hetero-layer";
    /// Energy efficiency of Hetero-tensor over PPL-OpenCL.
    EFFICIENCY_OVER_GPU = 5.87, "5.6", "an energy efficiency that is 5.87× better than PPL-OpenCL";
}

/// Returns Hetero-layer's speed with Llama-8B at 256 tokens, in tokens/s.
pub fn layer_speed() -> f64 {
    TENSOR_SPEED.value / TENSOR_OVER_LAYER.more()
}

/// Returns the speed of GPU only, in tokens/s.
pub fn gpu_only_speed() -> f64 {
    layer_speed() / LAYER_OVER_GPU.value
}

/// Returns the power of GPU only, in W.
pub fn gpu_only_watts() -> f64 {
    LAYER_WATTS.value * TENSOR_WATTS_OVER_LAYER.more() / TENSOR_WATTS_BELOW_GPU.less()
}

/// Returns the power of Hetero-tensor, in W.
pub fn tensor_watts() -> f64 {
    LAYER_WATTS.value * TENSOR_WATTS_OVER_LAYER.more()
}
