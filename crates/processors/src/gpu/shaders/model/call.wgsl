// Inputs that all dispatches of a forward pass share. This file precedes every shader of a model.

// Stands for no norm and no bias.
const NONE = 0xffffffffu;

struct Call {
    rows: u32,
    // Rows whose logits are requested.
    outputs: u32,
    // Number of workgroups that read the pages of a sequence, and pages that each of them reads.
    splits: u32,
    pages_of_split: u32,
    // Offsets of tiles and outputs in the table.
    tiles_at: u32,
    outputs_at: u32,
    // 1 if keys and values are returned.
    returns: u32,
    unused: u32,
}

// The table of a call is an array of u32:
// - [rows, 2]: position of each row, and offset of its sequence's pages in the table.
// - [tiles, 4], starting at `tiles_at`: first row, number of rows, offset of the pages and first position of each
//   attention tile.
// - [outputs], starting at `outputs_at`: rows.
// - Pages of all sequences.
@group(0) @binding(0) var<uniform> call: Call;
