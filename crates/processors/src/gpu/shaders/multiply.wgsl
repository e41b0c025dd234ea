// INT8 matmuls with i32 sums, which are exact.
//
// A workgroup computes a tile of TILE rows by TILE columns. It loads DEPTH quads (four numbers in a word) of both
// inputs into its memory at a time. Each invocation sums 4 × 4 outputs, which are SIDE apart, so that adjacent
// invocations write adjacent columns.
//
// These precede this file: the constants TILE, SIDE = TILE / 4, THREADS = SIDE² and DEPTH; `dot4`; the counts `rows`,
// `columns` and `quads`; `input_word`, which returns a word of [rows, quads]; `weight`, words in [columns /
// 16][quads][16]; and `store_row`, which is called with four columns of a row that are SIDE apart.

// [DEPTH, TILE].
var<workgroup> of_rows: array<u32, DEPTH * TILE>;
var<workgroup> of_columns: array<u32, DEPTH * TILE>;

// Sums of an invocation: four columns in each of four rows.
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
    // Loops take four steps at once: llvmpipe ends all loops of an invocation after 65,535 iterations in total.
    for (var depth = 0u; depth < quads(); depth += DEPTH) {
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
    store_row(first_row + y, first_column + x, sums0);
    store_row(first_row + y + SIDE, first_column + x, sums1);
    store_row(first_row + y + 2u * SIDE, first_column + x, sums2);
    store_row(first_row + y + 3u * SIDE, first_column + x, sums3);
}

// Loads a word of both inputs into workgroup memory; zero if it is out of range.
fn load(index: u32, first_row: u32, first_column: u32, depth: u32) {
    let row = index / DEPTH;
    let of_input = depth + index % DEPTH;
    var word = 0u;
    if first_row + row < rows() && of_input < quads() {
        word = input_word((first_row + row) * quads() + of_input);
    }
    of_rows[index % DEPTH * TILE + row] = word;
    let lane = index % 16u;
    let quad = index / 16u % DEPTH;
    let block = index / (16u * DEPTH);
    let of_weight = depth + quad;
    word = 0u;
    if first_column / 16u + block < (columns() + 15u) / 16u && of_weight < quads() {
        word = weight[((first_column / 16u + block) * quads() + of_weight) * 16u + lane];
    }
    of_columns[quad * TILE + block * 16u + lane] = word;
}

// Adds the products of one quad, given its offsets in workgroup memory.
fn multiply(row: u32, column: u32) {
    let w0 = of_columns[column];
    let w1 = of_columns[column + SIDE];
    let w2 = of_columns[column + 2u * SIDE];
    let w3 = of_columns[column + 3u * SIDE];
    let x0 = of_rows[row];
    let x1 = of_rows[row + SIDE];
    let x2 = of_rows[row + 2u * SIDE];
    let x3 = of_rows[row + 3u * SIDE];
    sums0 += vec4<i32>(dot4(x0, w0), dot4(x0, w1), dot4(x0, w2), dot4(x0, w3));
    sums1 += vec4<i32>(dot4(x1, w0), dot4(x1, w1), dot4(x1, w2), dot4(x1, w3));
    sums2 += vec4<i32>(dot4(x2, w0), dot4(x2, w1), dot4(x2, w2), dot4(x2, w3));
    sums3 += vec4<i32>(dot4(x3, w0), dot4(x3, w1), dot4(x3, w2), dot4(x3, w3));
}
