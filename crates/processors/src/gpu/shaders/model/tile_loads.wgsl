// Loads for matmuls of many rows: four units of TILE rows and of TILE columns at a time go to workgroup memory.
//
// TILE, THREADS and `float.wgsl` precede this file. `keep_row` and `keep_column`, which write four numbers of a row and
// of a column to workgroup memory, follow it.

// Quads per row or column: eight for four units.
const QUADS = 8u;

// Loads units starting at `at`, with zeros where there are none.
fn load(thread: u32, first_row: u32, first_column: u32, at: u32) {
    for (var index = thread; index < QUADS * TILE; index += THREADS) {
        load_row(index / QUADS, index % QUADS, first_row, at);
    }
    for (var index = thread; index < 4u * TILE; index += THREADS) {
        load_column(index / 4u, at + index % 4u, first_column);
    }
}

fn load_row(row: u32, quad: u32, first_row: u32, at: u32) {
    var value = vec4<f32>();
    let of_input = 2u * at + quad;
    if first_row + row < rows() && of_input < 2u * product.units {
        value = input[(first_row + row) * 2u * product.units + of_input];
    }
    keep_row(row, quad, value);
}

fn load_column(column: u32, at: u32, first_column: u32) {
    var value = Unit(vec4<f32>(), vec4<f32>());
    if first_column + column < product.columns && at < product.units {
        value = unit(first_column + column, at);
    }
    keep_column(column, first_quad(at) % QUADS, value.first);
    keep_column(column, second_quad(at) % QUADS, value.second);
}
