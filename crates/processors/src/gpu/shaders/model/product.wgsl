// What all ways to multiply share: rows of the input with a weight, to rows of the output.

struct Product {
    // Of a row of the weight: eight weights each, in W8A8 four.
    units: u32,
    // Of this part of the weight.
    columns: u32,
    // Where in a row of the output they begin.
    first: u32,
    // Of a row of the output.
    stride: u32,
    // Of the first column, or NONE.
    bias_at: u32,
    // 1 where the product is added to what the output has.
    adds: u32,
    // 1 where the rows are those whose logits are wanted.
    of_outputs: u32,
    // In W8A8: of the first column, in the parameters.
    scales_at: u32,
}

@group(0) @binding(1) var<uniform> product: Product;
@group(0) @binding(5) var<storage, read> parameters: array<f32>;
@group(0) @binding(6) var<storage, read_write> out: array<f32>;

fn rows() -> u32 {
    return select(call.rows, call.outputs, product.of_outputs == 1u);
}

// Writes an output that is there: the product, and what is added to it.
fn finish(row: u32, column: u32, found: f32) {
    var value = found;
    if product.bias_at != NONE {
        value += parameters[product.bias_at + column];
    }
    let index = row * product.stride + product.first + column;
    if product.adds == 1u {
        value += out[index];
    }
    out[index] = value;
}
