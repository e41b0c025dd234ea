// Products of INT8 rows with INT8 weights, summed in i32, which is exact.
//
// A workgroup computes a tile of TILE rows by TILE columns: it brings DEPTH quads (four numbers in a word) of both into its
// memory at a time, and each of its invocations sums 4 × 4 outputs, SIDE apart, so that neighbours write neighbouring columns.
//
// Before this come the constants TILE, SIDE = TILE / 4, THREADS = SIDE², DEPTH, and `dot4`.

struct Product {
    rows: u32,
    // Words of a row of the input.
    quads: u32,
    columns: u32,
    // Where the sums begin.
    first: u32,
    // Is added to each byte of the input by exclusive or: bytes of the CPU are 128 too large on some machines.
    flip: u32,
}

@group(0) @binding(0) var<uniform> product: Product;
// [rows, quads].
@group(0) @binding(1) var<storage, read> input: array<u32>;
// [columns / 16][quads][16], as the CPU's kernels read it.
@group(0) @binding(2) var<storage, read> weight: array<u32>;
// [rows, columns], from `first` on.
@group(0) @binding(3) var<storage, read_write> sums: array<i32>;

// [DEPTH, TILE].
var<workgroup> rows: array<u32, DEPTH * TILE>;
var<workgroup> columns: array<u32, DEPTH * TILE>;

// Of an invocation, four columns in each of four rows.
var<private> sums0: vec4<i32>;
var<private> sums1: vec4<i32>;
var<private> sums2: vec4<i32>;
var<private> sums3: vec4<i32>;

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) tile: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let first_row = tile.y * TILE;
    let first_column = tile.x * TILE;
    let x = thread % SIDE;
    let y = thread / SIDE;
    // Loops take four steps at once: llvmpipe ends all loops of an invocation after 65,535 iterations together.
    for (var depth = 0u; depth < product.quads; depth += DEPTH) {
        for (var index = thread; index < DEPTH * TILE; index += 4u * THREADS) {
            load(index, first_row, first_column, depth);
            load(index + THREADS, first_row, first_column, depth);
            load(index + 2u * THREADS, first_row, first_column, depth);
            load(index + 3u * THREADS, first_row, first_column, depth);
        }
        workgroupBarrier();
        for (var quad = 0u; quad < DEPTH; quad += 4u) {
            multiply(quad * TILE + y, quad * TILE + x);
            multiply((quad + 1u) * TILE + y, (quad + 1u) * TILE + x);
            multiply((quad + 2u) * TILE + y, (quad + 2u) * TILE + x);
            multiply((quad + 3u) * TILE + y, (quad + 3u) * TILE + x);
        }
        workgroupBarrier();
    }
    store(first_row + y, first_column + x, sums0);
    store(first_row + y + SIDE, first_column + x, sums1);
    store(first_row + y + 2u * SIDE, first_column + x, sums2);
    store(first_row + y + 3u * SIDE, first_column + x, sums3);
}

// Brings a word of both into the workgroup's memory: zero where there is none.
fn load(index: u32, first_row: u32, first_column: u32, depth: u32) {
    let row = index / DEPTH;
    let of_input = depth + index % DEPTH;
    var word = 0u;
    if first_row + row < product.rows && of_input < product.quads {
        word = input[(first_row + row) * product.quads + of_input] ^ product.flip;
    }
    rows[index % DEPTH * TILE + row] = word;
    let lane = index % 16u;
    let quad = index / 16u % DEPTH;
    let block = index / (16u * DEPTH);
    let of_weight = depth + quad;
    word = 0u;
    if first_column / 16u + block < (product.columns + 15u) / 16u && of_weight < product.quads {
        word = weight[((first_column / 16u + block) * product.quads + of_weight) * 16u + lane];
    }
    columns[quad * TILE + block * 16u + lane] = word;
}

// Adds the products of one quad, which begins at these places of the workgroup's memory.
fn multiply(of_rows: u32, of_columns: u32) {
    let w0 = columns[of_columns];
    let w1 = columns[of_columns + SIDE];
    let w2 = columns[of_columns + 2u * SIDE];
    let w3 = columns[of_columns + 3u * SIDE];
    let x0 = rows[of_rows];
    let x1 = rows[of_rows + SIDE];
    let x2 = rows[of_rows + 2u * SIDE];
    let x3 = rows[of_rows + 3u * SIDE];
    sums0 += vec4<i32>(dot4(x0, w0), dot4(x0, w1), dot4(x0, w2), dot4(x0, w3));
    sums1 += vec4<i32>(dot4(x1, w0), dot4(x1, w1), dot4(x1, w2), dot4(x1, w3));
    sums2 += vec4<i32>(dot4(x2, w0), dot4(x2, w1), dot4(x2, w2), dot4(x2, w3));
    sums3 += vec4<i32>(dot4(x3, w0), dot4(x3, w1), dot4(x3, w2), dot4(x3, w3));
}

fn store(row: u32, column: u32, values: vec4<i32>) {
    if row >= product.rows {
        return;
    }
    let first = product.first + row * product.columns;
    if column < product.columns {
        sums[first + column] = values.x;
    }
    if column + SIDE < product.columns {
        sums[first + column + SIDE] = values.y;
    }
    if column + 2u * SIDE < product.columns {
        sums[first + column + 2u * SIDE] = values.z;
    }
    if column + 3u * SIDE < product.columns {
        sums[first + column + 3u * SIDE] = values.w;
    }
}
