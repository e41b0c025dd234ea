// What a GPU does at most: multiply-adds in registers, and reading a large buffer.

const THREADS = 256u;
const STEPS = 512u;

struct Work {
    // How often the buffer is read.
    rounds: u32,
    // Of the buffer.
    quads: u32,
    // All that read it.
    invocations: u32,
    factor: f32,
}

@group(0) @binding(0) var<uniform> work: Work;
@group(0) @binding(1) var<storage, read_write> out: array<vec4<f32>>;
// [quads], a multiple of four times the invocations.
@group(0) @binding(2) var<storage, read> data: array<vec4<f32>>;

// Stores what nothing ever equals, so that no compiler leaves out what it is computed from.
fn keep(value: vec4<f32>, thread: u32) {
    if value.x == 12345.678 {
        out[thread] = value;
    }
}

// Eight independent sums of four numbers hide the latency of an instruction.
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
        a = a * factor + factor;
        b = b * factor + factor;
        c = c * factor + factor;
        d = d * factor + factor;
        e = e * factor + factor;
        f = f * factor + factor;
        g = g * factor + factor;
        h = h * factor + factor;
    }
    keep(a + b + c + d + e + f + g + h, thread);
}

// The same by the function that must not round in between, which some compilers do better with.
@compute @workgroup_size(THREADS)
fn multiply_fused(@builtin(local_invocation_index) thread: u32) {
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
        a = fma(a, factor, factor);
        b = fma(b, factor, factor);
        c = fma(c, factor, factor);
        d = fma(d, factor, factor);
        e = fma(e, factor, factor);
        f = fma(f, factor, factor);
        g = fma(g, factor, factor);
        h = fma(h, factor, factor);
    }
    keep(a + b + c + d + e + f + g + h, thread);
}

// Products of four pairs in INT8, each added to a sum on which the next one depends.
@compute @workgroup_size(THREADS)
fn multiply_packed(@builtin(local_invocation_index) thread: u32) {
    let factor = bitcast<u32>(work.factor);
    var a = vec4<i32>(0, 1, 2, 3) + i32(thread);
    var b = a + 4;
    var c = a + 8;
    var d = a + 12;
    var e = a + 16;
    var f = a + 20;
    var g = a + 24;
    var h = a + 28;
    for (var step = 0u; step < STEPS; step++) {
        a = add_products(a, factor);
        b = add_products(b, factor);
        c = add_products(c, factor);
        d = add_products(d, factor);
        e = add_products(e, factor);
        f = add_products(f, factor);
        g = add_products(g, factor);
        h = add_products(h, factor);
    }
    keep(vec4<f32>(a + b + c + d + e + f + g + h), thread);
}

fn add_products(sums: vec4<i32>, factor: u32) -> vec4<i32> {
    let words = bitcast<vec4<u32>>(sums);
    return sums + vec4<i32>(
        dot4I8Packed(words.x, factor),
        dot4I8Packed(words.y, factor),
        dot4I8Packed(words.z, factor),
        dot4I8Packed(words.w, factor),
    );
}

// Neighbours read neighbours, all of the buffer in each round.
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

// Numbers that are not all the same: memory that was never written, or is compressed, would be read faster.
@compute @workgroup_size(THREADS)
fn fill(@builtin(global_invocation_id) at: vec3<u32>) {
    for (var quad = at.x; quad < work.quads; quad += work.invocations) {
        out[quad] = vec4<f32>(vec4<u32>(quad) * vec4<u32>(2654435761u, 40503u, 69069u, 1664525u)) * 1e-9;
    }
}
