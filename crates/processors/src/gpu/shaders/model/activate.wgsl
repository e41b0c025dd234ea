// Activation of a feed-forward. `functions.wgsl` precedes this file.

struct FeedForward {
    // Quads per row of the output.
    quads: u32,
    // 1 if there is a gate.
    gated: u32,
    activation: u32,
    unused: u32,
}

@group(0) @binding(1) var<uniform> feed_forward: FeedForward;
// [rows, quads] of up; if there is a gate, [rows, 2, quads] of gate and up.
@group(0) @binding(2) var<storage, read> input: array<vec4<f32>>;
// [rows, quads].
@group(0) @binding(3) var<storage, read_write> out: array<vec4<f32>>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) at: vec3<u32>) {
    let quads = feed_forward.quads;
    let quad = at.x;
    let row = at.y;
    if quad >= quads {
        return;
    }
    if feed_forward.gated == 1u {
        let gate = activate_quad(input[2u * row * quads + quad]);
        out[row * quads + quad] = gate * input[(2u * row + 1u) * quads + quad];
    } else {
        out[row * quads + quad] = activate_quad(input[row * quads + quad]);
    }
}

fn activate_quad(x: vec4<f32>) -> vec4<f32> {
    let activation = feed_forward.activation;
    return vec4<f32>(
        activate(activation, x.x), activate(activation, x.y), activate(activation, x.z), activate(activation, x.w)
    );
}
