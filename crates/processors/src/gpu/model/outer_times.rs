//! Times of a GPU's parts of products, and of joining the parts of another processor.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use triad_kernels::timing::median;

use super::buffers::Place;
use super::call::Call;
use super::divided::Divided;
use super::gpu_model::GpuModel;
use super::item::Item;
use super::slices::Chunk;
use crate::error::{Error, Result};
use crate::model::JoinTimes;
use crate::multiplier::ProductPart;

/// Measured runs.
const RUNS: usize = 9;
/// Minimum seconds of the submission by which a part is timed, and the maximum of its dispatches.
const MIN_SECONDS: f64 = 2e-3;
const MAX_TOGETHER: usize = 64;

impl GpuModel {
    /// Returns the median seconds of a part of a product on the GPU, within a submission.
    ///
    /// # Errors
    /// If there is no such product or part, or the GPU fails.
    pub fn time_part(&mut self, product: usize, part: &ProductPart) -> Result<f64> {
        let (own, _) = self.timed(product, part)?;
        let empty = self.seconds(&[], RUNS)?;
        let mut together = 1;
        loop {
            let items: Vec<_> = std::iter::repeat_n(&own, together)
                .flatten()
                .cloned()
                .collect();
            let seconds = self.seconds(&items, 1)?;
            if seconds >= MIN_SECONDS || together == MAX_TOGETHER {
                let seconds = self.seconds(&items, 3)?;
                return Ok(((seconds - empty) / together as f64).max(1e-9));
            }
            together *= 2;
        }
    }

    /// Returns the times of joining a part of a product that another processor computes.
    ///
    /// # Errors
    /// If there is no such product or part, or the GPU fails.
    pub fn time_join(&mut self, product: usize, part: &ProductPart) -> Result<JoinTimes> {
        let (_, divided) = self.timed(product, part)?;
        let joins: Vec<_> = divided.joins.iter().cloned().map(Item::Piece).collect();
        let blocking = self.seconds(&[], RUNS)?;
        let polling = self.median(|model| model.poll())?;
        let one = self.median(|model| model.submit_empty(1))?;
        let many = self.median(|model| model.submit_empty(1 + MAX_TOGETHER))?;
        let call = Call {
            rows: part.rows.end as u32,
            ..bytemuck::Zeroable::zeroed()
        };
        let chunk = Chunk {
            call,
            table: &[],
            tiles: 1,
            tile_rows: 1,
        };
        let read = self.median(|model| {
            let encoder = model.encode_rows(product, &divided, &[], &chunk)?;
            model.read_rows(product, &divided, encoder)
        })?;
        let zeros = vec![0.0f32; divided.outputs()];
        let write = self.median(|model| {
            let buffer = model.buffers.get(Place::Computed);
            model
                .context
                .queue
                .write_buffer(buffer, 0, bytemuck::cast_slice(&zeros));
            let encoder = model.encode(joins.iter().cloned(), &chunk)?;
            model.context.run_without_outputs(encoder)
        })?;
        Ok(JoinTimes {
            blocking,
            polling,
            queued: ((many - one) / MAX_TOGETHER as f64).max(0.0),
            read,
            write,
        })
    }

    /// Returns the dispatches of a part on the GPU, and the part as one of the other processor.
    fn timed(&mut self, product: usize, part: &ProductPart) -> Result<(Vec<Item>, Divided)> {
        let Some(outer) = self.outers.list.get(product) else {
            return Err(Error::GpuModel {
                gpu: self.context.name.clone(),
                reason: format!("there is no product {product}"),
            });
        };
        if part.rows.is_empty()
            || part.columns.is_empty()
            || part.rows.end > self.rows
            || part.columns.end > outer.columns()
        {
            let reason = format!(
                "{part:?} is no part of {} rows by {} columns",
                self.rows,
                outer.columns()
            );
            return Err(outer.refused(&self.context, &reason));
        }
        let (staged, _) = self.outers.words(self.rows);
        self.buffers
            .reserve(&self.context, Place::Staging, staged)?;
        self.bind();
        let own = self.divide_into(product, std::slice::from_ref(part), Vec::new())?;
        let other = self.divide_into(product, &[], vec![(part.clone(), 0)])?;
        let items = own.own.iter().cloned().map(Item::Piece).collect();
        Ok((items, other))
    }

    /// Returns the median seconds of a submission of `items`, after one that does not count.
    fn seconds(&mut self, items: &[Item], runs: usize) -> Result<f64> {
        let chunk = Chunk {
            call: bytemuck::Zeroable::zeroed(),
            table: &[],
            tiles: 1,
            tile_rows: 1,
        };
        let mut seconds = Vec::with_capacity(runs);
        for run in 0..=runs {
            let encoder = self.encode(items.iter().cloned(), &chunk)?;
            let start = Instant::now();
            self.context.run_without_outputs(encoder)?;
            if run > 0 {
                seconds.push(start.elapsed().as_secs_f64());
            }
        }
        Ok(median(&seconds))
    }

    fn median(&mut self, run: impl Fn(&mut Self) -> Result<()>) -> Result<f64> {
        run(self)?;
        let mut seconds = Vec::with_capacity(RUNS);
        for _ in 0..RUNS {
            let start = Instant::now();
            run(self)?;
            seconds.push(start.elapsed().as_secs_f64());
        }
        Ok(median(&seconds))
    }

    fn empty(&self) -> wgpu::CommandEncoder {
        let descriptor = wgpu::CommandEncoderDescriptor::default();
        self.context.device.create_command_encoder(&descriptor)
    }

    /// Submits nothing, and polls a flag that the driver's callback sets when it is complete.
    fn poll(&self) -> Result<()> {
        self.context.submit(self.empty());
        let flag = Arc::new(AtomicBool::new(false));
        let set = Arc::clone(&flag);
        self.context
            .queue
            .on_submitted_work_done(move || set.store(true, Ordering::Release));
        while !flag.load(Ordering::Acquire) {
            self.context.look()?;
            std::hint::spin_loop();
        }
        Ok(())
    }

    /// Submits nothing `count` times, and waits for the last one.
    fn submit_empty(&self, count: usize) -> Result<()> {
        for _ in 1..count {
            self.context.submit(self.empty());
        }
        self.context.run_without_outputs(self.empty())
    }
}
