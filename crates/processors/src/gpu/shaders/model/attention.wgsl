// Causal attention over pages of keys and values. A workgroup computes a tile of up to QUERIES queries that read one
// key head, over some pages. It loads KEYS keys into its memory at a time, then their values, and weights them by
// online softmax. If pages are split among workgroups, `combine.wgsl` combines their results.
//
// DIM (the width of a head), QUERIES, KEYS, PAGE and `functions.wgsl` precede this file.

const THREADS = 64u;
const QUADS = DIM / 4u;
// Output quads that an invocation sums.
const SUMS = (QUERIES * QUADS + THREADS - 1u) / THREADS;
// Less than any score.
const HIDDEN = -1e30;

struct Attention {
    heads: u32,
    kv_heads: u32,
    // Positions that a query reads; NONE for all.
    window: u32,
    scale: f32,
    // 0 for no soft cap.
    soft_cap: f32,
    unused0: u32,
    unused1: u32,
    unused2: u32,
}

@group(0) @binding(1) var<uniform> attention: Attention;
// [rows, heads + 2 · kv_heads, QUADS].
@group(0) @binding(2) var<storage, read> heads: array<vec4<f32>>;
// [pages, keys and values, kv_heads, PAGE, QUADS], four f16 numbers.
@group(0) @binding(3) var<storage, read> cache: array<vec2<u32>>;
@group(0) @binding(4) var<storage, read> table: array<u32>;
// [rows, heads, QUADS].
@group(0) @binding(5) var<storage, read_write> out: array<vec4<f32>>;
// [rows, heads, splits, QUADS + 1]: weighted values; then their maximum score and the sum of weights.
@group(0) @binding(6) var<storage, read_write> parts: array<vec4<f32>>;

var<workgroup> queries: array<vec4<f32>, QUERIES * QUADS>;
// [KEYS, QUADS + 1]. The padding makes adjacent invocations read different banks.
var<workgroup> keys: array<vec2<u32>, KEYS * (QUADS + 1u)>;
var<workgroup> scores: array<f32, QUERIES * KEYS>;
// Per query: the maximum score so far, the sum of weights, and the factor that rescales earlier weights.
var<workgroup> tops: array<f32, QUERIES>;
var<workgroup> totals: array<f32, QUERIES>;
var<workgroup> factors: array<f32, QUERIES>;

var<private> sums: array<vec4<f32>, SUMS>;

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    // Query heads per key head; a tile has some or all of them.
    let of_key_head = attention.heads / attention.kv_heads;
    let of_tile = min(of_key_head, QUERIES);
    let tiles = (of_key_head + of_tile - 1u) / of_tile;
    let kv_head = group.x / tiles;
    let first_head = group.x % tiles * of_tile;
    let at = call.tiles_at + 4u * group.y;
    let first_row = table[at];
    let rows = table[at + 1u];
    let pages_at = table[at + 2u];
    let first_position = table[at + 3u];
    let split = group.z;

    for (var index = thread; index < QUERIES * QUADS; index += THREADS) {
        let query = index / QUADS;
        var value = vec4<f32>();
        if query / of_tile < rows && first_head + query % of_tile < of_key_head {
            let row = first_row + query / of_tile;
            let head = kv_head * of_key_head + first_head + query % of_tile;
            let all = attention.heads + 2u * attention.kv_heads;
            value = heads[(row * all + head) * QUADS + index % QUADS] * attention.scale;
        }
        queries[index] = value;
    }
    for (var query = thread; query < QUERIES; query += THREADS) {
        tops[query] = HIDDEN;
        totals[query] = 0.0;
    }
    let last = first_position + rows - 1u;
    var first = 0u;
    if first_position + 1u > attention.window {
        first = first_position + 1u - attention.window;
    }
    let end_page = min((split + 1u) * call.pages_of_split, last / PAGE + 1u);
    for (var page = max(split * call.pages_of_split, first / PAGE); page < end_page; page++) {
        let place = table[pages_at + page] * 2u * attention.kv_heads + kv_head;
        for (var key = 0u; key < PAGE; key += KEYS) {
            let position = page * PAGE + key;
            if position > last {
                break;
            }
            if position + KEYS <= first {
                continue;
            }
            workgroupBarrier();
            load(place * PAGE + key, position, last, thread);
            workgroupBarrier();
            for (var index = thread; index < QUERIES * KEYS; index += THREADS) {
                let own = first_position + index / KEYS / of_tile;
                let other = position + index % KEYS;
                var value = HIDDEN;
                if other <= own && own - other < attention.window {
                    value = score(index / KEYS, index % KEYS);
                }
                scores[index] = value;
            }
            workgroupBarrier();
            for (var query = thread; query < QUERIES; query += THREADS) {
                weigh(query);
            }
            load((place + attention.kv_heads) * PAGE + key, position, last, thread);
            workgroupBarrier();
            for (var index = 0u; index < SUMS; index++) {
                add(index, thread);
            }
        }
    }
    workgroupBarrier();
    for (var index = 0u; index < SUMS; index++) {
        let quad = (index * THREADS + thread) % QUADS;
        let query = (index * THREADS + thread) / QUADS;
        if query < QUERIES && query / of_tile < rows && first_head + query % of_tile < of_key_head {
            let head = kv_head * of_key_head + first_head + query % of_tile;
            let place = (first_row + query / of_tile) * attention.heads + head;
            if call.splits == 1u {
                out[place * QUADS + quad] = sums[index] / totals[query];
            } else {
                let part = (place * call.splits + split) * (QUADS + 1u);
                parts[part + quad] = sums[index];
                if quad == 0u {
                    parts[part + QUADS] = vec4<f32>(tops[query], totals[query], 0.0, 0.0);
                }
            }
        }
    }
}

// Loads KEYS keys or values into workgroup memory. After the last position the contents of the cache are undefined.
fn load(first: u32, position: u32, last: u32, thread: u32) {
    for (var index = thread; index < KEYS * QUADS; index += THREADS) {
        let key = index / QUADS;
        var value = vec2<u32>();
        if position + key <= last {
            value = cache[first * QUADS + index];
        }
        keys[key * (QUADS + 1u) + index % QUADS] = value;
    }
}

fn widened(index: u32) -> vec4<f32> {
    let words = keys[index];
    return vec4<f32>(unpack2x16float(words.x), unpack2x16float(words.y));
}

fn score(query: u32, key: u32) -> f32 {
    var sum = 0.0;
    for (var quad = 0u; quad < QUADS; quad += 2u) {
        sum += dot(queries[query * QUADS + quad], widened(key * (QUADS + 1u) + quad))
            + dot(queries[query * QUADS + quad + 1u], widened(key * (QUADS + 1u) + quad + 1u));
    }
    if attention.soft_cap > 0.0 {
        return attention.soft_cap * hyperbolic_tangent(sum / attention.soft_cap);
    }
    return sum;
}

// Replaces the scores of a query by weights.
fn weigh(query: u32) {
    var top = tops[query];
    for (var key = 0u; key < KEYS; key++) {
        top = max(top, scores[query * KEYS + key]);
    }
    let factor = exponential(tops[query] - top);
    var total = totals[query] * factor;
    for (var key = 0u; key < KEYS; key++) {
        let value = scores[query * KEYS + key];
        var weight = 0.0;
        if value > HIDDEN {
            weight = exponential(value - top);
        }
        scores[query * KEYS + key] = weight;
        total += weight;
    }
    tops[query] = top;
    totals[query] = total;
    factors[query] = factor;
}

// Adds the weighted values to a quad of the output.
fn add(index: u32, thread: u32) {
    let query = (index * THREADS + thread) / QUADS;
    let quad = (index * THREADS + thread) % QUADS;
    if query >= QUERIES {
        return;
    }
    var sum = sums[index] * factors[query];
    for (var key = 0u; key < KEYS; key++) {
        sum += scores[query * KEYS + key] * widened(key * (QUADS + 1u) + quad);
    }
    sums[index] = sum;
}
