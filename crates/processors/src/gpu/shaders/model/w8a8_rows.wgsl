// Products of few rows in W8A8: a workgroup computes the sixteen columns of a block, of ROWS rows. Neighbours read
// neighbouring columns; slices of sixteen invocations have every so many-th step.
//
// Before this come ROWS, `dot4` and `w8a8.wgsl`.

const THREADS = 128u;
const SLICES = THREADS / 16u;

// [SLICES, ROWS, 16].
var<workgroup> partial: array<i32, THREADS * ROWS>;

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let lane = thread % 16u;
    let slice = thread / 16u;
    let first_row = group.y * ROWS;
    // Rows beyond the last one are computed as that, and not stored.
    let last_row = rows() - 1u;
    var sums: array<i32, ROWS>;
    for (var at = slice; at < quads(); at += SLICES) {
        let numbers = weight[(group.x * quads() + at) * 16u + lane];
        for (var index = 0u; index < ROWS; index++) {
            sums[index] += dot4(input[min(first_row + index, last_row) * quads() + at], numbers);
        }
    }
    for (var index = 0u; index < ROWS; index++) {
        partial[(slice * ROWS + index) * 16u + lane] = sums[index];
    }
    workgroupBarrier();
    if thread < 16u * ROWS {
        var sum = 0;
        for (var of_slice = 0u; of_slice < SLICES; of_slice++) {
            sum += partial[of_slice * 16u * ROWS + thread];
        }
        store(first_row + thread / 16u, group.x * 16u + lane, sum);
    }
}
