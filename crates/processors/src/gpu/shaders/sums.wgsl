// What programs of subgraphs multiply, and where the sums go. `multiply.wgsl` comes behind this.

struct Product {
    rows: u32,
    // Words of a row of the input.
    quads: u32,
    columns: u32,
    // Where the sums begin.
    first: u32,
    // Is added to each byte of the input by exclusive or: bytes of the CPU are 128 too large on some machines.
    flip: u32,
}

@group(0) @binding(0) var<uniform> product: Product;
// [rows, quads].
@group(0) @binding(1) var<storage, read> input: array<u32>;
// [columns / 16][quads][16], as the CPU's kernels read it.
@group(0) @binding(2) var<storage, read> weight: array<u32>;
// [rows, columns], from `first` on.
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
