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
    // The order of the CPU's kernels, and of `join.wgsl`: the shadow is added after the bias.
    var value = biased(column, f32(sum) * (row_scale * scale));
    if has_outliers(row, product.units) {
        value += scale * shadow(row, column, product.units);
    }
    put(row, column, value);
}
