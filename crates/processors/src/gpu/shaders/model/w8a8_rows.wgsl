// W8A8 matmuls of few rows. A workgroup computes the sixteen columns of a block for ROWS rows. Adjacent invocations
// read adjacent columns. Each slice of sixteen invocations takes every SLICES-th step.
//
// ROWS, `dot4` and `w8a8.wgsl` precede this file.

const THREADS = 128u;
const SLICES = THREADS / 16u;

// [SLICES, ROWS, 16].
var<workgroup> partial: array<i32, THREADS * ROWS>;

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let lane = thread % 16u;
    let slice = thread / 16u;
    let first_row = group.y * ROWS;
    // Rows beyond the last one repeat it, and are not stored.
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
