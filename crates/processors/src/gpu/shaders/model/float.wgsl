// Products of input rows in f32 with a weight in the format in which it is stored, summed in f32.
//
// Eight weights of a row are a unit, which `unit` makes of the weight's words: eight neighbours, or in INT4, whose bytes
// have elements that are 16 apart, two times four. `first_quad` and `second_quad` are where in a row their inputs are, four
// numbers in a quad. Before this come `product.wgsl`, and `Word`, `unit`, `first_quad`, `second_quad` and `scaled` of the
// format.

// [rows, quads]: twice as many quads as units.
@group(0) @binding(2) var<storage, read> input: array<vec4<f32>>;
// [columns, units].
@group(0) @binding(3) var<storage, read> weight: array<Word>;
// In INT8 [columns] in f32; in INT4 [columns, units / 4] in f16, two in a word.
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
