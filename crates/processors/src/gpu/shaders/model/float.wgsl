// Matmuls of f32 input rows with a weight in its storage format, summed in f32.
//
// A unit is eight weights of a row. `unit` unpacks it from the weight's words: eight adjacent weights, or two times
// four in INT4, whose bytes hold elements that are 16 apart. `first_quad` and `second_quad` are the indices of the
// unit's two input quads (four numbers each) in a row. `product.wgsl` and the format's `Word`, `unit`, `first_quad`,
// `second_quad` and `scaled` precede this file.

// [rows, quads]: two quads per unit.
@group(0) @binding(2) var<storage, read> input: array<vec4<f32>>;
// [columns, units].
@group(0) @binding(3) var<storage, read> weight: array<Word>;
// For INT8, [columns] in f32. For INT4, [columns, units / 4] in f16, two per word.
@group(0) @binding(4) var<storage, read> scales: array<u32>;

struct Unit {
    first: vec4<f32>,
    second: vec4<f32>,
}

fn store(row: u32, column: u32, sum: f32) {
    if row < rows() && column < product.columns {
        finish(row, column, scaled(sum, column));
    }
}
