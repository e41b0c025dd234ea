// Stores the outputs of an invocation of `multiply.wgsl`.

fn store_row(row: u32, column: u32, sums: vec4<i32>) {
    store(row, column, sums.x);
    store(row, column + SIDE, sums.y);
    store(row, column + 2u * SIDE, sums.z);
    store(row, column + 3u * SIDE, sums.w);
}
