// RMS norm or layer norm. A workgroup computes one row.

const THREADS = 256u;

struct Norm {
    // Quads per row.
    quads: u32,
    // Offset of the weight in the parameters, in quads.
    weight_at: u32,
    // Offset of a layer norm's bias; NONE for RMS norm.
    bias_at: u32,
    epsilon: f32,
    // 1 if only the rows whose logits are requested are computed.
    of_outputs: u32,
    // 1 if the result is added to the output.
    adds: u32,
    unused0: u32,
    unused1: u32,
}

@group(0) @binding(1) var<uniform> norm: Norm;
// [rows, quads].
@group(0) @binding(2) var<storage, read> input: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> parameters: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read> table: array<u32>;
// [rows, quads].
@group(0) @binding(5) var<storage, read_write> out: array<vec4<f32>>;

var<workgroup> partial: array<f32, THREADS>;

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    var row = group.x;
    if norm.of_outputs == 1u {
        row = table[call.outputs_at + row];
    }
    let from_row = row * norm.quads;
    let to_row = group.x * norm.quads;
    let features = f32(4u * norm.quads);
    var mean = 0.0;
    if norm.bias_at != NONE {
        var total = 0.0;
        for (var quad = thread; quad < norm.quads; quad += THREADS) {
            total += dot(input[from_row + quad], vec4<f32>(1.0));
        }
        mean = sum(total, thread) / features;
    }
    var squares = 0.0;
    for (var quad = thread; quad < norm.quads; quad += THREADS) {
        let x = input[from_row + quad] - mean;
        squares += dot(x, x);
    }
    let factor = 1.0 / sqrt(sum(squares, thread) / features + norm.epsilon);
    for (var quad = thread; quad < norm.quads; quad += THREADS) {
        var value = (input[from_row + quad] - mean) * factor * parameters[norm.weight_at + quad];
        if norm.bias_at != NONE {
            value += parameters[norm.bias_at + quad];
        }
        if norm.adds == 1u {
            value += out[to_row + quad];
        }
        out[to_row + quad] = value;
    }
}

// Returns the sum over all invocations.
fn sum(of_thread: f32, thread: u32) -> f32 {
    partial[thread] = of_thread;
    workgroupBarrier();
    for (var half = THREADS / 2u; half > 0u; half /= 2u) {
        if thread < half {
            partial[thread] += partial[thread + half];
        }
        workgroupBarrier();
    }
    let total = partial[0];
    workgroupBarrier();
    return total;
}
