// Joins a rectangle of outputs that another processor computed: adds their shadow products, and adds them to the output
// or writes them there. Outliers and output begin at the rectangle's first row. `shadow.wgsl` precedes this file.

struct Join {
    // Units per row of the weight: four weights each.
    units: u32,
    // Columns of this slab of the weight.
    columns: u32,
    // First column of the slab in a row of the output.
    first: u32,
    // Columns of a row of the output.
    stride: u32,
    // First column of the rectangle in a row of the output, and its number of columns.
    computed_from: u32,
    computed_columns: u32,
    // Offset of the rectangle among what the other processor computed.
    computed_at: u32,
    // 1 if the result is added to the output.
    adds: u32,
    // Offset of the scale of the slab's first column in the parameters.
    scales_at: u32,
    unused0: u32,
    unused1: u32,
    unused2: u32,
}

@group(0) @binding(1) var<uniform> join: Join;
// Rectangles [rows, columns], with biases.
@group(0) @binding(2) var<storage, read> computed: array<f32>;
@group(0) @binding(5) var<storage, read> parameters: array<f32>;
@group(0) @binding(6) var<storage, read_write> out: array<f32>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) at: vec3<u32>) {
    let column = at.x;
    let row = at.y;
    let of_output = join.first + column;
    let end = join.computed_from + join.computed_columns;
    if column >= join.columns || of_output < join.computed_from || of_output >= end {
        return;
    }
    let at_row = join.computed_at + row * join.computed_columns;
    var value = computed[at_row + of_output - join.computed_from];
    if has_outliers(row, join.units) {
        value += parameters[join.scales_at + column] * shadow(row, column, join.units);
    }
    let index = row * join.stride + of_output;
    if join.adds == 1u {
        value += out[index];
    }
    out[index] = value;
}
