// Measures a GPU's limits: multiply-adds in registers, and reading a large buffer.

const THREADS = 256u;
const STEPS = 512u;

struct Work {
    // Number of times that the buffer is read.
    rounds: u32,
    // Quads in the buffer.
    quads: u32,
    // Total number of invocations that read it.
    invocations: u32,
    factor: f32,
}

@group(0) @binding(0) var<uniform> work: Work;
@group(0) @binding(1) var<storage, read_write> out: array<vec4<f32>>;
// [quads], a multiple of four times the invocations.
@group(0) @binding(2) var<storage, read> data: array<vec4<f32>>;

// Stores the value if it equals a number that never occurs, so that no compiler removes the computation.
fn keep(value: vec4<f32>, thread: u32) {
    if value.x == 12345.678 {
        out[thread] = value;
    }
}

// Eight independent sums of four numbers hide the latency of an instruction. One of several functions `next` precedes
// this file.
@compute @workgroup_size(THREADS)
fn multiply(@builtin(local_invocation_index) thread: u32) {
    let factor = vec4<f32>(work.factor);
    var a = factor + f32(thread);
    var b = a + 1.0;
    var c = a + 2.0;
    var d = a + 3.0;
    var e = a + 4.0;
    var f = a + 5.0;
    var g = a + 6.0;
    var h = a + 7.0;
    for (var step = 0u; step < STEPS; step++) {
        a = next(a, factor);
        b = next(b, factor);
        c = next(c, factor);
        d = next(d, factor);
        e = next(e, factor);
        f = next(f, factor);
        g = next(g, factor);
        h = next(h, factor);
    }
    keep(a + b + c + d + e + f + g + h, thread);
}

// Adjacent invocations read adjacent quads. Each round reads the whole buffer.
@compute @workgroup_size(THREADS)
fn read_memory(@builtin(global_invocation_id) at: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let stride = work.invocations;
    var a = vec4<f32>();
    var b = vec4<f32>();
    var c = vec4<f32>();
    var d = vec4<f32>();
    for (var round = 0u; round < work.rounds; round++) {
        for (var quad = at.x; quad < work.quads; quad += 4u * stride) {
            a += data[quad];
            b += data[quad + stride];
            c += data[quad + 2u * stride];
            d += data[quad + 3u * stride];
        }
    }
    keep(a + b + c + d, thread);
}

// Fills the buffer with different numbers: memory that was never written, or is compressed, would be read faster.
@compute @workgroup_size(THREADS)
fn fill(@builtin(global_invocation_id) at: vec3<u32>) {
    for (var quad = at.x; quad < work.quads; quad += work.invocations) {
        out[quad] = vec4<f32>(vec4<u32>(quad) * vec4<u32>(2654435761u, 40503u, 69069u, 1664525u)) * 1e-9;
    }
}
