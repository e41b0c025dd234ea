// Matmuls of many rows with f16 inputs and weights and f32 sums, by cooperative matrices of a subgroup. A workgroup
// computes a tile of TILE rows by TILE columns, four units at a time. Each quarter of the tile has two by two matrices
// and belongs to one subgroup, for any subgroup width. If subgroups are wide, there are fewer than four, and each
// computes several quarters in turn. If they are narrow, several compute the same quarter.
//
// These precede this file: `tile_loads.wgsl`; SIDE = TILE / 4, the rows and columns of a matrix; its types Left, Right
// and Sums; and the factor SHRINK on rows, a power of two.

// Numbers between consecutive rows or columns: eight more than in four units, so that they do not all start in the same
// bank.
const STRIDE = 40u;

// [TILE, STRIDE].
var<workgroup> of_rows: array<f16, TILE * STRIDE>;
var<workgroup> of_columns: array<f16, TILE * STRIDE>;
// One matrix of each quarter.
var<workgroup> stored: array<f32, 4u * SIDE * SIDE>;

struct Quarter {
    index: u32,
    // Whether this subgroup writes the quarter's outputs.
    is_own: bool,
    // First row and column in the output.
    first_row: u32,
    first_column: u32,
    // Index of this invocation in the subgroup, and the subgroup's width.
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

// Writes the outputs of a matrix of the quarter that starts at the given row and column of the quarter.
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
