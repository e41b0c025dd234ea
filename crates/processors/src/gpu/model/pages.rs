//! The KV cache on a GPU. Sequences take pages and return them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use triad_kernels::Matrix;
use triad_kernels::attention::{Cache, PAGE};
use triad_model::description::ModelDescription;

use super::super::context::Context;
use super::description::attention_of;
use crate::error::{Error, Result};

/// Bytes of an f16 number.
const HALF: usize = 2;

/// Keys and values of one sequence on a GPU. Dropping it returns its pages.
#[derive(Debug)]
pub struct GpuSequence {
    pages: Arc<Pages>,
    /// Indices of its pages.
    list: Vec<u32>,
    length: usize,
}

/// All pages of a model. Each layer has a buffer `[pages, keys and values, kv_heads, PAGE, head_dim]` in f16.
#[derive(Debug)]
pub(super) struct Pages {
    context: Arc<Context>,
    /// Bytes of a page in each layer.
    bytes: Vec<u64>,
    /// Maximum number of pages.
    most: usize,
    state: Mutex<State>,
}

#[derive(Debug)]
pub(super) struct State {
    /// Number of times that the buffers were replaced by larger ones.
    pub generation: u64,
    /// One buffer per layer.
    pub buffers: Vec<wgpu::Buffer>,
    /// Pages in the buffers.
    capacity: usize,
    /// Pages that no sequence has.
    free: Vec<u32>,
}

impl Pages {
    pub fn new(context: &Arc<Context>, description: &ModelDescription) -> Result<Self> {
        let of_block = |attention: &triad_model::description::Attention| {
            (2 * attention.kv_heads * PAGE * attention.head_dim * HALF) as u64
        };
        let bytes: Vec<_> = description
            .blocks
            .iter()
            .map(|block| of_block(attention_of(block)))
            .collect();
        let most = bytes
            .iter()
            .map(|bytes| context.most_bytes() / bytes)
            .min()
            .unwrap_or(0) as usize;
        let buffers = buffers(context, &bytes, 0)?;
        let state = State {
            generation: 0,
            buffers,
            capacity: 0,
            free: Vec::new(),
        };
        Ok(Self {
            context: Arc::clone(context),
            bytes,
            most,
            state: Mutex::new(state),
        })
    }

    pub fn sequence(self: &Arc<Self>) -> GpuSequence {
        GpuSequence {
            pages: Arc::clone(self),
            list: Vec::new(),
            length: 0,
        }
    }

    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Grows the buffers until `more` pages are free.
    fn grow(&self, state: &mut State, more: usize) -> Result<()> {
        let needed = state.capacity - state.free.len() + more;
        if needed <= state.capacity {
            return Ok(());
        }
        if needed > self.most {
            return Err(Error::GpuMemory {
                gpu: self.context.name.clone(),
                what: "keys and values",
                bytes: self
                    .bytes
                    .iter()
                    .max()
                    .map_or(0, |bytes| bytes * needed as u64),
                reason: format!("its buffers have {} at most", self.context.most_bytes()),
            });
        }
        // Doubles the capacity, so that growing is rare. Takes only the needed pages if there is no memory for more.
        let doubled = needed.max(2 * state.capacity).min(self.most);
        let (capacity, grown) = match buffers(&self.context, &self.bytes, doubled) {
            Err(_) if doubled > needed => (needed, buffers(&self.context, &self.bytes, needed)?),
            grown => (doubled, grown?),
        };
        let mut encoder = self
            .context
            .device
            .create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        for ((from, to), bytes) in state.buffers.iter().zip(&grown).zip(&self.bytes) {
            let used = bytes * state.capacity as u64;
            if used > 0 {
                encoder.copy_buffer_to_buffer(from, 0, to, 0, used);
            }
        }
        self.context.run_without_outputs(encoder)?;
        state
            .free
            .extend((state.capacity as u32..capacity as u32).rev());
        (state.buffers, state.capacity) = (grown, capacity);
        state.generation += 1;
        Ok(())
    }
}

fn buffers(context: &Context, bytes: &[u64], pages: usize) -> Result<Vec<wgpu::Buffer>> {
    let usage =
        wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST;
    bytes
        .iter()
        .map(|bytes| context.buffer("keys and values", bytes * pages as u64, usage))
        .collect()
}

impl GpuSequence {
    /// Returns the number of positions that the sequence holds.
    pub fn length(&self) -> usize {
        self.length
    }

    /// Drops all positions after the first `length`.
    pub fn truncate(&mut self, length: usize) {
        self.length = self.length.min(length);
        let kept = self.length.div_ceil(PAGE);
        let given_back = self.list.split_off(kept.min(self.list.len()));
        self.pages.lock().free.extend(given_back);
    }

    /// Takes pages until the sequence has room for `positions` positions in total.
    ///
    /// # Errors
    /// If there is no memory for them. The sequence then keeps the pages that it had.
    pub(super) fn reserve(&mut self, positions: usize) -> Result<()> {
        let more = positions.div_ceil(PAGE).saturating_sub(self.list.len());
        if more > 0 {
            let mut state = self.pages.lock();
            self.pages.grow(&mut state, more)?;
            let from = state.free.len() - more;
            self.list.extend(state.free.drain(from..).rev());
        }
        Ok(())
    }

    /// Replaces the contents of the sequence by `length` positions: keys and values of all layers from the CPU, in f16.
    ///
    /// # Errors
    /// If there is no memory for them, or they are not in f16 or don't have the model's shapes.
    pub fn fill(&mut self, length: usize, blocks: &[&dyn Cache]) -> Result<()> {
        self.truncate(0);
        self.reserve(length)?;
        let context = &self.pages.context;
        let refused = |reason: String| Error::GpuModel {
            gpu: context.name.clone(),
            reason,
        };
        let state = self.pages.lock();
        if blocks.len() != state.buffers.len() {
            return Err(refused(format!(
                "keys and values of {} blocks, of {}",
                blocks.len(),
                state.buffers.len()
            )));
        }
        for ((cache, buffer), bytes) in blocks.iter().zip(&state.buffers).zip(&self.pages.bytes) {
            for (page, number) in self.list.iter().enumerate() {
                for (plane, values) in [cache.keys(page), cache.values(page)]
                    .into_iter()
                    .enumerate()
                {
                    let Matrix::F16(values) = values else {
                        return Err(refused("keys and values that are not in f16".to_owned()));
                    };
                    let values: &[u8] = bytemuck::cast_slice(values);
                    if values.len() as u64 != bytes / 2 {
                        return Err(refused(format!(
                            "{} bytes of a page, expected {}",
                            values.len(),
                            bytes / 2
                        )));
                    }
                    context.queue.write_buffer(
                        buffer,
                        u64::from(*number) * bytes + plane as u64 * bytes / 2,
                        values,
                    );
                }
            }
        }
        drop(state);
        context.flush()?;
        self.length = length;
        Ok(())
    }

    pub(super) fn pages(&self) -> &[u32] {
        &self.list
    }

    /// Records that `rows` more positions were written.
    pub(super) fn advance(&mut self, rows: usize) {
        self.length += rows;
    }

    pub(super) fn is_of(&self, pages: &Arc<Pages>) -> bool {
        Arc::ptr_eq(&self.pages, pages)
    }
}

impl Drop for GpuSequence {
    fn drop(&mut self) {
        self.truncate(0);
    }
}
