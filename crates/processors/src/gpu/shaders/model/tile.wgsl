// Matmuls of many rows. A workgroup computes a tile of TILE rows by TILE columns, four units at a time. Each of its
// invocations sums 4 × 4 outputs, which are SIDE apart, in f32.
//
// These precede this file: `tile_loads.wgsl`; SIDE = TILE / 4, with THREADS = SIDE²; Kept, the type of four numbers of
// rows and columns in workgroup memory; and the factor SHRINK on rows, a power of two.

// [QUADS, TILE].
var<workgroup> of_rows: array<Kept, QUADS * TILE>;
var<workgroup> of_columns: array<Kept, QUADS * TILE>;

// Sums of an invocation: four columns in each of four rows.
var<private> sums0: vec4<f32>;
var<private> sums1: vec4<f32>;
var<private> sums2: vec4<f32>;
var<private> sums3: vec4<f32>;

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) tile: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let first_row = tile.y * TILE;
    let first_column = tile.x * TILE;
    let x = thread % SIDE;
    let y = thread / SIDE;
    for (var at = 0u; at < product.units; at += 4u) {
        load(thread, first_row, first_column, at);
        workgroupBarrier();
        for (var quad = 0u; quad < QUADS; quad += 2u) {
            multiply(quad * TILE + y, quad * TILE + x);
            multiply((quad + 1u) * TILE + y, (quad + 1u) * TILE + x);
        }
        workgroupBarrier();
    }
    store_row(first_row + y, first_column + x, sums0);
    store_row(first_row + y + SIDE, first_column + x, sums1);
    store_row(first_row + y + 2u * SIDE, first_column + x, sums2);
    store_row(first_row + y + 3u * SIDE, first_column + x, sums3);
}

fn keep_row(row: u32, quad: u32, value: vec4<f32>) {
    of_rows[quad * TILE + row] = Kept(value * SHRINK);
}

fn keep_column(column: u32, quad: u32, value: vec4<f32>) {
    of_columns[quad * TILE + column] = Kept(value);
}

// Adds the products of one quad, given its offsets in workgroup memory.
fn multiply(row: u32, column: u32) {
    let w0 = vec4<f32>(of_columns[column]);
    let w1 = vec4<f32>(of_columns[column + SIDE]);
    let w2 = vec4<f32>(of_columns[column + 2u * SIDE]);
    let w3 = vec4<f32>(of_columns[column + 3u * SIDE]);
    let x0 = vec4<f32>(of_rows[row]);
    let x1 = vec4<f32>(of_rows[row + SIDE]);
    let x2 = vec4<f32>(of_rows[row + 2u * SIDE]);
    let x3 = vec4<f32>(of_rows[row + 3u * SIDE]);
    sums0 += vec4<f32>(dot(x0, w0), dot(x0, w1), dot(x0, w2), dot(x0, w3));
    sums1 += vec4<f32>(dot(x1, w0), dot(x1, w1), dot(x1, w2), dot(x1, w3));
    sums2 += vec4<f32>(dot(x2, w0), dot(x2, w1), dot(x2, w2), dot(x2, w3));
    sums3 += vec4<f32>(dot(x3, w0), dot(x3, w1), dot(x3, w2), dot(x3, w3));
}

fn store_row(row: u32, column: u32, sums: vec4<f32>) {
    let values = sums / SHRINK;
    store(row, column, values.x);
    store(row, column + SIDE, values.y);
    store(row, column + 2u * SIDE, values.z);
    store(row, column + 3u * SIDE, values.w);
}
