// Sums over the invocations of a workgroup: first within each subgroup, of any width.

@compute @workgroup_size(THREADS)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(num_subgroups) subgroups: u32,
    @builtin(subgroup_invocation_id) lane: u32,
) {
    let row = group.y * ROWS;
    let column = group.x * 4u;
    let sums = sums_of_thread(row, column, thread);
    // Invocations leave the preceding loop at different times. The barrier makes them converge.
    workgroupBarrier();
    for (var index = 0u; index < ROWS; index++) {
        let sum = subgroupAdd(sums[index]);
        if lane == 0u {
            partial[index * THREADS + subgroup] = sum;
        }
    }
    workgroupBarrier();
    if thread < 4u * ROWS {
        var sum = 0.0;
        for (var index = 0u; index < subgroups; index++) {
            sum += partial[thread / 4u * THREADS + index][thread % 4u];
        }
        store(row + thread / 4u, column + thread % 4u, sum);
    }
}
