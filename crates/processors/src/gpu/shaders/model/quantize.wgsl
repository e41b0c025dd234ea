// Quantizes the input rows of INT8 layers with a static scale, and extracts the outliers that clipping cuts off. A
// workgroup computes one row.

const THREADS = 64u;

struct Quantize {
    // Quads (of four numbers) per row.
    quads: u32,
    // Offset of the smoothing factors of the activations, or NONE.
    smoothing_at: u32,
    // Quantization step, and its inverse.
    scale: f32,
    inverse_scale: f32,
    // 1 if outliers are kept.
    has_shadow: u32,
    unused0: u32,
    unused1: u32,
    unused2: u32,
}

@group(0) @binding(1) var<uniform> quantize: Quantize;
// [rows, quads].
@group(0) @binding(2) var<storage, read> input: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> parameters: array<vec4<f32>>;
// [rows, quads], four numbers per word; then the scale of each row of the call, for another processor.
@group(0) @binding(4) var<storage, read_write> quantized: array<u32>;
// [rows, 1 + 4 · quads]: scale of the row (NaN if an activation is NaN or infinite) and number of its outliers; then
// the channel and the clipped part of each outlier, in ascending order of channels.
@group(0) @binding(5) var<storage, read_write> outliers: array<vec2<u32>>;

// Outliers of each invocation.
var<workgroup> counts: array<u32, THREADS>;
// 1 if an activation of the invocation is not finite.
var<workgroup> broken: array<u32, THREADS>;

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let row = group.x;
    // Each invocation takes adjacent quads, so that outliers are in the order of their channels.
    let share = (quantize.quads + THREADS - 1u) / THREADS;
    let first = min(thread * share, quantize.quads);
    let end = min(first + share, quantize.quads);
    var count = 0u;
    var is_broken = 0u;
    for (var quad = first; quad < end; quad++) {
        let x = smoothed(row, quad);
        let numbers = vec4<i32>(clamp(round(x * quantize.inverse_scale), vec4<f32>(-127.0), vec4<f32>(127.0)));
        let bytes = bitcast<vec4<u32>>(numbers) & vec4<u32>(255u);
        quantized[row * quantize.quads + quad] = bytes.x | bytes.y << 8u | bytes.z << 16u | bytes.w << 24u;
        let exponents = bitcast<vec4<u32>>(x) & vec4<u32>(0x7f800000u);
        if any(exponents == vec4<u32>(0x7f800000u)) {
            is_broken = 1u;
        }
        if quantize.has_shadow == 1u {
            for (var lane = 0u; lane < 4u; lane++) {
                count += u32(abs(x[lane]) > clip());
            }
        }
    }
    counts[thread] = count;
    broken[thread] = is_broken;
    workgroupBarrier();
    var before = 0u;
    var all = 0u;
    var any_broken = 0u;
    for (var other = 0u; other < THREADS; other++) {
        before += select(0u, counts[other], other < thread);
        all += counts[other];
        any_broken |= broken[other];
    }
    let at = row * (1u + 4u * quantize.quads);
    if any_broken == 1u {
        all = 0u;
        count = 0u;
    }
    if thread == 0u {
        let scale = select(bitcast<u32>(quantize.scale), 0x7fc00000u, any_broken == 1u);
        outliers[at] = vec2<u32>(scale, all);
        quantized[call.rows * quantize.quads + row] = scale;
    }
    if count == 0u {
        return;
    }
    var next = at + 1u + before;
    for (var quad = first; quad < end; quad++) {
        let x = smoothed(row, quad);
        for (var lane = 0u; lane < 4u; lane++) {
            if abs(x[lane]) > clip() {
                let left = x[lane] - select(-clip(), clip(), x[lane] > 0.0);
                outliers[next] = vec2<u32>(4u * quad + lane, bitcast<u32>(left));
                next++;
            }
        }
    }
}

fn clip() -> f32 {
    return 127.0 * quantize.scale;
}

fn smoothed(row: u32, quad: u32) -> vec4<f32> {
    let x = input[row * quantize.quads + quad];
    if quantize.smoothing_at == NONE {
        return x;
    }
    return x * parameters[quantize.smoothing_at + quad];
}
