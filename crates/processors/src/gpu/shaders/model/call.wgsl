// What all dispatches of a forward pass have in common. It comes before every shader of a model.

// Where there is no norm and no bias.
const NONE = 0xffffffffu;

struct Call {
    rows: u32,
    // Rows whose logits are wanted.
    outputs: u32,
    // The pages of a sequence are read by so many workgroups, each of which reads so many of them.
    splits: u32,
    pages_of_split: u32,
    // Where in the table tiles and outputs are.
    tiles_at: u32,
    outputs_at: u32,
    // 1 where keys and values are returned.
    returns: u32,
    unused: u32,
}

// The table of a call is an array of u32:
// - [rows, 2]: the position of each row, and where in the table the pages of its sequence are.
// - [tiles, 4] from `tiles_at` on: of a tile of attention, its first row, how many, where the pages are, the first position.
// - [outputs] from `outputs_at` on: rows.
// - Pages of all sequences.
@group(0) @binding(0) var<uniform> call: Call;
