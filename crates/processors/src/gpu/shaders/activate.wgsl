// The part of a feed-forward between up and down: scales the sums of both matmuls, applies the activation, quantizes to
// INT8.

struct FeedForward {
    rows: u32,
    width: u32,
    // Words per row of the quantized output.
    quads: u32,
    // Activation, as in `activate` of `functions.wgsl`, which precedes this file.
    activation: u32,
    // 1 if there is a gate.
    gated: u32,
    // Inverse of the quantization step of down's input.
    inverse_scale: f32,
}

@group(0) @binding(0) var<uniform> feed_forward: FeedForward;
// [rows, width] of up, then of gate if there is one.
@group(0) @binding(1) var<storage, read> sums: array<i32>;
// [5, width]: scales and biases of up, the same of gate, smoothing. A scale is the product of the scales of input and
// weight.
@group(0) @binding(2) var<storage, read> parameters: array<f32>;
// [rows, width].
@group(0) @binding(3) var<storage, read_write> inner: array<f32>;
// [rows, quads], four numbers per word.
@group(0) @binding(4) var<storage, read_write> quantized: array<u32>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) at: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let quad = at.x;
    if quad >= feed_forward.quads {
        return;
    }
    for (var row = at.y; row < feed_forward.rows; row += groups.y) {
        var word = 0u;
        for (var lane = 0u; lane < 4u; lane++) {
            let channel = quad * 4u + lane;
            if channel < feed_forward.width {
                word |= (bitcast<u32>(number(row, channel)) & 255u) << (8u * lane);
            }
        }
        quantized[row * feed_forward.quads + quad] = word;
    }
}

// Computes one INT8 number of down's input.
fn number(row: u32, channel: u32) -> i32 {
    let width = feed_forward.width;
    let index = row * width + channel;
    let up = f32(sums[index]) * parameters[channel] + parameters[width + channel];
    var value = 0.0;
    if feed_forward.gated == 1u {
        let sum = f32(sums[feed_forward.rows * width + index]);
        let gate = sum * parameters[2u * width + channel] + parameters[3u * width + channel];
        value = activate(feed_forward.activation, gate) * up;
    } else {
        value = activate(feed_forward.activation, up);
    }
    inner[index] = value;
    let smoothed = value * parameters[4u * width + channel];
    return i32(clamp(round(smoothed * feed_forward.inverse_scale), -127.0, 127.0));
}
