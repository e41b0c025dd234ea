// Input, weight and output of the matmuls of subgraphs. `multiply.wgsl` follows this file.

struct Product {
    rows: u32,
    // Words per row of the input.
    quads: u32,
    columns: u32,
    // Offset of the sums.
    first: u32,
    // Exclusive-or mask for each word of the input: on some machines, the CPU's bytes are 128 too large.
    flip: u32,
}

@group(0) @binding(0) var<uniform> product: Product;
// [rows, quads].
@group(0) @binding(1) var<storage, read> input: array<u32>;
// [columns / 16][quads][16], the layout of the CPU's kernels.
@group(0) @binding(2) var<storage, read> weight: array<u32>;
// [rows, columns], starting at `first`.
@group(0) @binding(3) var<storage, read_write> sums: array<i32>;

fn rows() -> u32 {
    return product.rows;
}

fn columns() -> u32 {
    return product.columns;
}

fn quads() -> u32 {
    return product.quads;
}

fn input_word(index: u32) -> u32 {
    return input[index] ^ product.flip;
}

fn store_row(row: u32, column: u32, values: vec4<i32>) {
    if row >= product.rows {
        return;
    }
    let first = product.first + row * product.columns;
    if column < product.columns {
        sums[first + column] = values.x;
    }
    if column + SIDE < product.columns {
        sums[first + column + SIDE] = values.y;
    }
    if column + 2u * SIDE < product.columns {
        sums[first + column + 2u * SIDE] = values.z;
    }
    if column + 3u * SIDE < product.columns {
        sums[first + column + 3u * SIDE] = values.w;
    }
}
