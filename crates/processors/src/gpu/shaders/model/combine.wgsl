// Combines the attention results of all splits. A workgroup computes one head of one row.
//
// DIM and `functions.wgsl` precede this file.

const THREADS = 64u;
const QUADS = DIM / 4u;

struct Combine {
    heads: u32,
    unused0: u32,
    unused1: u32,
    unused2: u32,
}

@group(0) @binding(1) var<uniform> combine: Combine;
// [rows, heads, splits, QUADS + 1], written by `attention.wgsl`.
@group(0) @binding(2) var<storage, read> parts: array<vec4<f32>>;
// [rows, heads, QUADS].
@group(0) @binding(3) var<storage, read_write> out: array<vec4<f32>>;

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let place = group.y * combine.heads + group.x;
    let first = place * call.splits * (QUADS + 1u);
    var top = parts[first + QUADS].x;
    for (var split = 1u; split < call.splits; split++) {
        top = max(top, parts[first + split * (QUADS + 1u) + QUADS].x);
    }
    for (var quad = thread; quad < QUADS; quad += THREADS) {
        var sum = vec4<f32>();
        var total = 0.0;
        for (var split = 0u; split < call.splits; split++) {
            let part = first + split * (QUADS + 1u);
            let of_split = parts[part + QUADS];
            let factor = exponential(of_split.x - top);
            sum += factor * parts[part + quad];
            total += factor * of_split.y;
        }
        out[place * QUADS + quad] = sum / total;
    }
}
