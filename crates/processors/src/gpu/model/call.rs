//! The checked arguments of a call, as the shaders read them.

use bytemuck::{Pod, Zeroable};
use triad_kernels::attention::PAGE;

use super::description::attention_of;
use super::gpu_model::{GpuModel, GpuSegment};
use crate::error::{Error, Result};
use crate::model::OutputRows;

/// Workgroups that keep a GPU busy. Attention splits pages among workgroups until there are this many.
const BUSY: usize = 256;
/// Pages per workgroup on software: llvmpipe ends all loops of an invocation after 65,535 iterations in total.
const PAGES_OF_SOFTWARE: usize = 4;

/// Matches `Call` in `call.wgsl`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
pub(super) struct Call {
    pub rows: u32,
    pub outputs: u32,
    pub splits: u32,
    pub pages_of_split: u32,
    pub tiles_at: u32,
    pub outputs_at: u32,
    pub returns: u32,
    pub unused: u32,
}

impl GpuModel {
    /// Checks that a chunk can be run, and returns its number of rows.
    pub(super) fn check(
        &self,
        x: &[f32],
        segments: &[GpuSegment],
        wanted: &OutputRows,
    ) -> Result<usize> {
        let hidden = self.description.hidden;
        let rows: usize = segments.iter().map(|segment| segment.rows).sum();
        if rows == 0 || rows > self.rows {
            return Err(Error::Rows {
                rows,
                prepared: self.rows,
            });
        }
        let outputs = if wanted.logits {
            self.outputs
        } else {
            self.rows
        };
        if wanted.rows.len() > outputs {
            return Err(Error::Rows {
                rows: wanted.rows.len(),
                prepared: outputs,
            });
        }
        let refused = |reason: String| {
            Err(Error::GpuModel {
                gpu: self.context.name.clone(),
                reason,
            })
        };
        if x.len() != rows * hidden {
            return refused(format!(
                "{} numbers were given for {rows} rows of {hidden}",
                x.len()
            ));
        }
        if let Some(row) = wanted.rows.iter().find(|row| **row >= rows) {
            return refused(format!("row {row} is wanted of {rows}"));
        }
        if segments
            .iter()
            .any(|segment| segment.rows == 0 || !segment.sequence.is_of(&self.pages))
        {
            return refused(
                "a segment has no rows, or its sequence is of another model".to_owned(),
            );
        }
        Ok(rows)
    }

    /// Returns the uniforms and the table of a call.
    pub(super) fn table(
        &self,
        rows: usize,
        segments: &[GpuSegment],
        wanted: &OutputRows,
    ) -> (Call, Vec<u32>) {
        let mut tiles: Vec<[usize; 4]> = Vec::new();
        let tiles_of = |segment: &GpuSegment| segment.rows.div_ceil(self.tile_rows);
        let (tiles_at, count) = (2 * rows, segments.iter().map(tiles_of).sum::<usize>());
        let outputs_at = tiles_at + 4 * count;
        let mut pages_at = outputs_at + wanted.rows.len();
        let (mut table, mut pages, mut row, mut most_pages) = (Vec::new(), Vec::new(), 0, 0);
        for GpuSegment { sequence, rows } in segments {
            let first = sequence.length();
            for position in first..first + rows {
                table.extend([position as u32, pages_at as u32]);
            }
            for before in (0..*rows).step_by(self.tile_rows) {
                tiles.push([
                    row + before,
                    (rows - before).min(self.tile_rows),
                    pages_at,
                    first + before,
                ]);
            }
            let used = &sequence.pages()[..(first + rows).div_ceil(PAGE)];
            pages.extend_from_slice(used);
            (row, pages_at, most_pages) = (
                row + rows,
                pages_at + used.len(),
                most_pages.max(used.len()),
            );
        }
        table.extend(tiles.as_flattened().iter().map(|value| *value as u32));
        table.extend(wanted.rows.iter().map(|row| *row as u32));
        table.extend(pages);
        let blocks = self.description.blocks.iter();
        let kv_heads = blocks.map(|block| attention_of(block).kv_heads).min();
        let kv_heads = kv_heads.unwrap_or(1);
        let wanted_splits = BUSY.div_ceil(tiles.len() * kv_heads).clamp(1, most_pages);
        let most = if self.context.is_software {
            PAGES_OF_SOFTWARE
        } else {
            most_pages
        };
        let pages_of_split = most_pages.div_ceil(wanted_splits).min(most);
        let call = Call {
            rows: rows as u32,
            outputs: wanted.rows.len() as u32,
            splits: most_pages.div_ceil(pages_of_split) as u32,
            pages_of_split: pages_of_split as u32,
            tiles_at: tiles_at as u32,
            outputs_at: outputs_at as u32,
            returns: u32::from(wanted.keys_and_values),
            unused: 0,
        };
        (call, table)
    }
}
