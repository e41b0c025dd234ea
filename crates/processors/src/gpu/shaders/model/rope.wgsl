// Computes the steps between the query, key and value layers and attention: norms of heads, RoPE, and writing keys and
// values to the cache in f16. A workgroup computes one head of one row. Heads are ordered queries (computed in place),
// keys, values.
//
// DIM (the width of a head) and PAGE (the positions of a page) precede this file.

const THREADS = 64u;

struct Rope {
    heads: u32,
    kv_heads: u32,
    // Rotated pairs of a head.
    pairs: u32,
    // 1 if pairs are adjacent dimensions, 0 if they are split between the two halves of the rotated dimensions.
    adjacent: u32,
    // Offset of the first row's angles.
    angles_at: u32,
    // Offsets of the norms of query and key heads, or NONE.
    query_norm_at: u32,
    key_norm_at: u32,
    query_epsilon: f32,
    key_epsilon: f32,
    // Words of one row's keys and values in all preceding layers.
    words_before: u32,
    unused0: u32,
    unused1: u32,
}

@group(0) @binding(1) var<uniform> rope: Rope;
// [rows, pairs], starting at `angles_at`: cosine and sine.
@group(0) @binding(2) var<storage, read> angles: array<vec2<f32>>;
@group(0) @binding(3) var<storage, read> parameters: array<f32>;
@group(0) @binding(4) var<storage, read> table: array<u32>;
// [rows, heads + 2 · kv_heads, DIM].
@group(0) @binding(5) var<storage, read_write> heads: array<f32>;
// [pages, keys and values, kv_heads, PAGE, DIM / 2], two numbers per word.
@group(0) @binding(6) var<storage, read_write> cache: array<u32>;
// For each layer, [keys and values, rows, kv_heads, DIM / 2].
@group(0) @binding(7) var<storage, read_write> returned: array<u32>;

var<workgroup> head: array<f32, DIM>;
var<workgroup> partial: array<f32, THREADS>;

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let index = group.x;
    let row = group.y;
    let all = rope.heads + 2u * rope.kv_heads;
    let first = (row * all + index) * DIM;
    var squares = 0.0;
    for (var dim = thread; dim < DIM; dim += THREADS) {
        let x = heads[first + dim];
        head[dim] = x;
        squares += x * x;
    }
    workgroupBarrier();
    let is_query = index < rope.heads;
    let is_value = index >= rope.heads + rope.kv_heads;
    let norm_at = select(rope.key_norm_at, rope.query_norm_at, is_query);
    if !is_value && norm_at != NONE {
        partial[thread] = squares;
        workgroupBarrier();
        for (var half = THREADS / 2u; half > 0u; half /= 2u) {
            if thread < half {
                partial[thread] += partial[thread + half];
            }
            workgroupBarrier();
        }
        let epsilon = select(rope.key_epsilon, rope.query_epsilon, is_query);
        let factor = 1.0 / sqrt(partial[0] / f32(DIM) + epsilon);
        for (var dim = thread; dim < DIM; dim += THREADS) {
            head[dim] = head[dim] * factor * parameters[norm_at + dim];
        }
        workgroupBarrier();
    }
    for (var word = thread; word < DIM / 2u; word += THREADS) {
        var pair = vec2<f32>(head[2u * word], head[2u * word + 1u]);
        if !is_value {
            pair = vec2<f32>(rotated(2u * word, row), rotated(2u * word + 1u, row));
        }
        if is_query {
            heads[first + 2u * word] = pair.x;
            heads[first + 2u * word + 1u] = pair.y;
        } else {
            keep(row, index - rope.heads, word, pack2x16float(pair));
        }
    }
}

fn rotated(dim: u32, row: u32) -> f32 {
    if dim >= 2u * rope.pairs {
        return head[dim];
    }
    let at = rope.angles_at + row * rope.pairs;
    if rope.adjacent == 1u {
        let angle = angles[at + dim / 2u];
        let a = head[dim & ~1u];
        let b = head[dim | 1u];
        return select(a * angle.x - b * angle.y, b * angle.x + a * angle.y, (dim & 1u) == 1u);
    }
    let pair = dim % rope.pairs;
    let angle = angles[at + pair];
    let a = head[pair];
    let b = head[pair + rope.pairs];
    return select(a * angle.x - b * angle.y, b * angle.x + a * angle.y, dim >= rope.pairs);
}

// Writes a word of a key head or of a value head. Value heads follow the key heads.
fn keep(row: u32, index: u32, word: u32, packed: u32) {
    let position = table[2u * row];
    let page = table[table[2u * row + 1u] + position / PAGE];
    let plane = index / rope.kv_heads;
    let kv_head = index % rope.kv_heads;
    let place = ((page * 2u + plane) * rope.kv_heads + kv_head) * PAGE + position % PAGE;
    cache[place * (DIM / 2u) + word] = packed;
    if call.returns == 1u {
        let words = rope.kv_heads * (DIM / 2u);
        let at = rope.words_before * call.rows + (plane * call.rows + row) * words;
        returned[at + kv_head * (DIM / 2u) + word] = packed;
    }
}
