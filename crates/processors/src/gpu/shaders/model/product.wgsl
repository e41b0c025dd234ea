// Definitions that all matmul shaders share. A matmul multiplies rows of the input by a weight.

struct Product {
    // Units per row of the weight: eight weights each, in W8A8 four.
    units: u32,
    // Columns of this slab of the weight.
    columns: u32,
    // First column of the slab in a row of the output.
    first: u32,
    // Columns of a row of the output.
    stride: u32,
    // Offset of the bias of the first column, or NONE.
    bias_at: u32,
    // 1 if the result is added to the output.
    adds: u32,
    // 1 if only the rows whose logits are requested are computed.
    of_outputs: u32,
    // For W8A8: offset of the first column's scale in the parameters.
    scales_at: u32,
}

@group(0) @binding(1) var<uniform> product: Product;
@group(0) @binding(5) var<storage, read> parameters: array<f32>;
@group(0) @binding(6) var<storage, read_write> out: array<f32>;

fn rows() -> u32 {
    return select(call.rows, call.outputs, product.of_outputs == 1u);
}

// Writes one output: the matmul's sum plus bias and previous output, if they are added.
fn finish(row: u32, column: u32, found: f32) {
    put(row, column, biased(column, found));
}

fn biased(column: u32, found: f32) -> f32 {
    if product.bias_at == NONE {
        return found;
    }
    return found + parameters[product.bias_at + column];
}

fn put(row: u32, column: u32, found: f32) {
    var value = found;
    let index = row * product.stride + product.first + column;
    if product.adds == 1u {
        value += out[index];
    }
    out[index] = value;
}
