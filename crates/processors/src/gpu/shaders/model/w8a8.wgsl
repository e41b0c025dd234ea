// INT8 matmuls with i32 sums, which are exact, and their shadow products (llm.npu, §3.3): the clipped part of the input
// times the same weights. `product.wgsl` and `shadow.wgsl` precede this file.

// [rows, units], four numbers per word.
@group(0) @binding(2) var<storage, read> input: array<u32>;

fn quads() -> u32 {
    return product.units;
}

fn columns() -> u32 {
    return product.columns;
}

fn input_word(index: u32) -> u32 {
    return input[index];
}

fn store(row: u32, column: u32, sum: i32) {
    if row >= rows() || column >= product.columns {
        return;
    }
    let scale = parameters[product.scales_at + column];
    let row_scale = bitcast<f32>(outliers[row * (1u + 4u * product.units)].x);
    var value = f32(sum) * (row_scale * scale);
    if has_outliers(row, product.units) {
        value += scale * shadow(row, column, product.units);
    }
    finish(row, column, value);
}
