// What both ways to multiply share: input rows in f32 with a weight in the format in which it is stored, summed in f32.
//
// Eight weights of a row are a unit, which `unit` makes of the weight's words: eight neighbours, or in INT4, whose bytes
// have elements that are 16 apart, two times four. `first_quad` and `second_quad` are where in a row their inputs are, four
// numbers in a quad. Before this come `Word`, `unit`, `first_quad`, `second_quad` and `scaled` of the format.

struct Product {
    // Of a row of the weight; a row of the input has twice as many quads.
    units: u32,
    // Of this part of the weight.
    columns: u32,
    // Where in a row of the output they begin.
    first: u32,
    // Of a row of the output.
    stride: u32,
    // Of the first column.
    bias_at: u32,
    // 1 where the product is added to what the output has.
    adds: u32,
    // 1 where the rows are those whose logits are wanted.
    of_outputs: u32,
    unused: u32,
}

@group(0) @binding(1) var<uniform> product: Product;
// [rows, quads].
@group(0) @binding(2) var<storage, read> input: array<vec4<f32>>;
// [columns, units].
@group(0) @binding(3) var<storage, read> weight: array<Word>;
// In INT8 [columns] in f32; in INT4 [columns, units / 4] in f16, two in a word.
@group(0) @binding(4) var<storage, read> scales: array<u32>;
@group(0) @binding(5) var<storage, read> parameters: array<f32>;
@group(0) @binding(6) var<storage, read_write> out: array<f32>;

struct Unit {
    first: vec4<f32>,
    second: vec4<f32>,
}

fn rows() -> u32 {
    return select(call.rows, call.outputs, product.of_outputs == 1u);
}

fn store(row: u32, column: u32, sum: f32) {
    if row >= rows() || column >= product.columns {
        return;
    }
    var value = scaled(sum, column);
    if product.bias_at != NONE {
        value += parameters[product.bias_at + column];
    }
    let index = row * product.stride + product.first + column;
    if product.adds == 1u {
        value += out[index];
    }
    out[index] = value;
}
