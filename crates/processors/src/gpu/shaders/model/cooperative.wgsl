// Products of many rows with inputs and weights in f16 and sums in f32, by matrices that a subgroup multiplies together. A
// workgroup computes a tile of TILE rows by TILE columns, four units at a time. Each quarter of it, two matrices by two, is
// one subgroup's, whatever its width: of wide subgroups, of which there are fewer than four, each computes several quarters,
// one after the other, and of narrow ones several compute the same.
//
// Before this come `tile_loads.wgsl`, SIDE = TILE / 4, rows and columns of a matrix; Left, Right and Sums, its types; and the
// factor SHRINK on rows, a power of two.

// Numbers from one row or column to the next: eight more than four units have, so that they do not all begin in one bank.
const STRIDE = 40u;

// [TILE, STRIDE].
var<workgroup> of_rows: array<f16, TILE * STRIDE>;
var<workgroup> of_columns: array<f16, TILE * STRIDE>;
// A matrix of each quarter.
var<workgroup> stored: array<f32, 4u * SIDE * SIDE>;

struct Quarter {
    index: u32,
    // Whether this subgroup writes its outputs.
    is_own: bool,
    // Of the output.
    first_row: u32,
    first_column: u32,
    // Of the subgroup.
    lane: u32,
    width: u32,
}

@compute @workgroup_size(THREADS)
fn main(
    @builtin(workgroup_id) tile: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(num_subgroups) subgroups: u32,
    @builtin(subgroup_invocation_id) lane: u32,
    @builtin(subgroup_size) width: u32,
) {
    let first_row = tile.y * TILE;
    let first_column = tile.x * TILE;
    for (var before = 0u; before < 4u; before += subgroups) {
        let index = (before + subgroup) % 4u;
        let row = index / 2u * 2u * SIDE;
        let column = index % 2u * 2u * SIDE;
        var sums00 = Sums();
        var sums01 = Sums();
        var sums10 = Sums();
        var sums11 = Sums();
        for (var at = 0u; at < product.units; at += 4u) {
            load(thread, first_row, first_column, at);
            workgroupBarrier();
            for (var depth = 0u; depth < 4u * QUADS; depth += SIDE) {
                let x0 = coopLoadT<Left>(&of_rows[row * STRIDE + depth], STRIDE);
                let x1 = coopLoadT<Left>(&of_rows[(row + SIDE) * STRIDE + depth], STRIDE);
                let w0 = coopLoad<Right>(&of_columns[column * STRIDE + depth], STRIDE);
                let w1 = coopLoad<Right>(&of_columns[(column + SIDE) * STRIDE + depth], STRIDE);
                sums00 = coopMultiplyAdd(x0, w0, sums00);
                sums01 = coopMultiplyAdd(x0, w1, sums01);
                sums10 = coopMultiplyAdd(x1, w0, sums10);
                sums11 = coopMultiplyAdd(x1, w1, sums11);
            }
            workgroupBarrier();
        }
        let quarter = Quarter(index, before + subgroup < 4u, first_row + row, first_column + column, lane, width);
        let place = index * SIDE * SIDE;
        coopStoreT(sums00, &stored[place], SIDE);
        store_matrix(quarter, 0u, 0u);
        coopStoreT(sums01, &stored[place], SIDE);
        store_matrix(quarter, 0u, SIDE);
        coopStoreT(sums10, &stored[place], SIDE);
        store_matrix(quarter, SIDE, 0u);
        coopStoreT(sums11, &stored[place], SIDE);
        store_matrix(quarter, SIDE, SIDE);
    }
}

fn keep_row(row: u32, quad: u32, value: vec4<f32>) {
    let numbers = vec4<f16>(value * SHRINK);
    for (var index = 0u; index < 4u; index++) {
        of_rows[row * STRIDE + 4u * quad + index] = numbers[index];
    }
}

fn keep_column(column: u32, quad: u32, value: vec4<f32>) {
    let numbers = vec4<f16>(value);
    for (var index = 0u; index < 4u; index++) {
        of_columns[column * STRIDE + 4u * quad + index] = numbers[index];
    }
}

// Writes the outputs of a matrix of the quarter, which begins there in it.
fn store_matrix(quarter: Quarter, row: u32, column: u32) {
    workgroupBarrier();
    if quarter.is_own {
        for (var index = quarter.lane; index < SIDE * SIDE; index += quarter.width) {
            let sum = stored[quarter.index * SIDE * SIDE + index] / SHRINK;
            store(quarter.first_row + row + index / SIDE, quarter.first_column + column + index % SIDE, sum);
        }
    }
    workgroupBarrier();
}
