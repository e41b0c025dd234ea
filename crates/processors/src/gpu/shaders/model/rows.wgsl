// Matmuls of few rows. A workgroup computes four columns of ROWS rows. Adjacent invocations read adjacent weights.
//
// ROWS, `float.wgsl`, and either `sum_plain.wgsl` or `sum_subgroups.wgsl`, which has `main`, precede this file.

const THREADS = 64u;

var<workgroup> partial: array<vec4<f32>, THREADS * ROWS>;

fn sums_of_thread(row: u32, column: u32, thread: u32) -> array<vec4<f32>, ROWS> {
    var sums: array<vec4<f32>, ROWS>;
    // Columns beyond the last one repeat it, and are not stored.
    let columns = min(vec4<u32>(0u, 1u, 2u, 3u) + column, vec4<u32>(product.columns - 1u));
    let last_row = rows() - 1u;
    for (var at = thread; at < product.units; at += THREADS) {
        let w0 = unit(columns.x, at);
        let w1 = unit(columns.y, at);
        let w2 = unit(columns.z, at);
        let w3 = unit(columns.w, at);
        for (var index = 0u; index < ROWS; index++) {
            let of_row = min(row + index, last_row) * 2u * product.units;
            let a = input[of_row + first_quad(at)];
            let b = input[of_row + second_quad(at)];
            sums[index] += vec4<f32>(
                dot(a, w0.first) + dot(b, w0.second),
                dot(a, w1.first) + dot(b, w1.second),
                dot(a, w2.first) + dot(b, w2.second),
                dot(a, w3.first) + dot(b, w3.second),
            );
        }
    }
    return sums;
}
