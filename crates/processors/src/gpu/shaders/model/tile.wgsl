// Products of many rows: a workgroup computes a tile of TILE rows by TILE columns. It brings four units of both into its
// memory at a time, and each of its invocations sums 4 × 4 outputs, SIDE apart, in f32.
//
// Before this come TILE, SIDE = TILE / 4, THREADS = SIDE², `float.wgsl`, and in which numbers rows and columns are in that
// memory: Kept, four of them, and the factor SHRINK on rows, a power of two.

const QUADS = 8u;

// [QUADS, TILE].
var<workgroup> of_rows: array<Kept, QUADS * TILE>;
var<workgroup> of_columns: array<Kept, QUADS * TILE>;

// Of an invocation, four columns in each of four rows.
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
        for (var index = thread; index < QUADS * TILE; index += THREADS) {
            load_row(index / QUADS, index % QUADS, first_row, at);
        }
        for (var index = thread; index < 4u * TILE; index += THREADS) {
            load_column(index / 4u, at + index % 4u, first_column);
        }
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

// Brings a quad of a row into the workgroup's memory: zero where there is none.
fn load_row(row: u32, quad: u32, first_row: u32, at: u32) {
    var value = vec4<f32>();
    let of_input = 2u * at + quad;
    if first_row + row < rows() && of_input < 2u * product.units {
        value = input[(first_row + row) * 2u * product.units + of_input];
    }
    of_rows[quad * TILE + row] = Kept(value * SHRINK);
}

// The same of a unit of a column.
fn load_column(column: u32, at: u32, first_column: u32) {
    var value = Unit(vec4<f32>(), vec4<f32>());
    if first_column + column < product.columns && at < product.units {
        value = unit(first_column + column, at);
    }
    of_columns[first_quad(at) % QUADS * TILE + column] = Kept(value.first);
    of_columns[second_quad(at) % QUADS * TILE + column] = Kept(value.second);
}

// Adds the products of one quad, which begins at these places of the workgroup's memory.
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
