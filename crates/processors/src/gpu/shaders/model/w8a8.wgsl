// INT8 matmuls with i32 sums, which are exact, and their shadow products (llm.npu, §3.3): the clipped part of the input
// times the same weights. `product.wgsl` precedes this file.

// [rows, units], four numbers per word.
@group(0) @binding(2) var<storage, read> input: array<u32>;
// [columns / 16][units][16], the layout of the CPU's kernels.
@group(0) @binding(3) var<storage, read> weight: array<u32>;
// [rows, 1 + 4 · units], written by `quantize.wgsl`.
@group(0) @binding(4) var<storage, read> outliers: array<vec2<u32>>;

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
    let first = row * (1u + 4u * product.units);
    let of_row = outliers[first];
    var value = f32(sum) * (bitcast<f32>(of_row.x) * scale);
    if of_row.y > 0u {
        var shadow = 0.0;
        for (var index = 1u; index <= of_row.y; index++) {
            let outlier = outliers[first + index];
            let word = weight[(column / 16u * product.units + outlier.x / 4u) * 16u + column % 16u];
            let number = bitcast<i32>(word << (24u - 8u * (outlier.x % 4u))) >> 24u;
            shadow += bitcast<f32>(outlier.y) * f32(number);
        }
        value += scale * shadow;
    }
    finish(row, column, value);
}
