// Sums over the invocations of a workgroup, through workgroup memory.

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let row = group.y * ROWS;
    let column = group.x * 4u;
    let sums = sums_of_thread(row, column, thread);
    for (var index = 0u; index < ROWS; index++) {
        partial[index * THREADS + thread] = sums[index];
    }
    workgroupBarrier();
    for (var half = THREADS / 2u; half > 0u; half /= 2u) {
        if thread < half {
            for (var index = 0u; index < ROWS; index++) {
                partial[index * THREADS + thread] += partial[index * THREADS + thread + half];
            }
        }
        workgroupBarrier();
    }
    if thread < 4u * ROWS {
        store(row + thread / 4u, column + thread % 4u, partial[thread / 4u * THREADS][thread % 4u]);
    }
}
