// The shadow product of an output (llm.npu, §3.3): the clipped part of the input times the weights of INT8 layers.

// [columns / 16][units][16], the layout of the CPU's kernels.
@group(0) @binding(3) var<storage, read> weight: array<u32>;
// [rows, 1 + 4 · units], written by `quantize.wgsl`.
@group(0) @binding(4) var<storage, read> outliers: array<vec2<u32>>;

// Returns the sum over the outliers of a row, without the scale of the weights.
fn shadow(row: u32, column: u32, units: u32) -> f32 {
    let first = row * (1u + 4u * units);
    let count = outliers[first].y;
    var sum = 0.0;
    for (var index = 1u; index <= count; index++) {
        let outlier = outliers[first + index];
        let word = weight[(column / 16u * units + outlier.x / 4u) * 16u + column % 16u];
        let number = bitcast<i32>(word << (24u - 8u * (outlier.x % 4u))) >> 24u;
        sum += bitcast<f32>(outlier.y) * f32(number);
    }
    return sum;
}

fn has_outliers(row: u32, units: u32) -> bool {
    return outliers[row * (1u + 4u * units)].y > 0u;
}
