//! Scratch buffers that all programs of a GPU share. One program uses them at a time.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use wgpu::BufferUsages as Usage;

use super::context::Context;
use crate::error::Result;

/// Purpose of a buffer.
#[derive(Clone, Copy, Debug)]
pub(super) enum Place {
    /// INT8 rows, `[rows, quads]` words, or f32 rows.
    Input,
    /// Sums of products in i32 or f32.
    Sums,
    /// Inner activations of a feed-forward in f32.
    Inner,
    /// Inner activations of a feed-forward in INT8.
    Quantized,
    /// Staging buffer from which the CPU reads.
    Staging,
}

/// Number of places.
const PLACES: usize = 5;

impl Place {
    const ALL: [Self; PLACES] = [
        Self::Input,
        Self::Sums,
        Self::Inner,
        Self::Quantized,
        Self::Staging,
    ];

    fn describe(self) -> (&'static str, Usage) {
        match self {
            Self::Input => ("input", Usage::STORAGE | Usage::COPY_DST),
            Self::Sums => ("sums", Usage::STORAGE | Usage::COPY_SRC),
            Self::Inner => ("inner activations", Usage::STORAGE | Usage::COPY_SRC),
            Self::Quantized => ("inner activations in INT8", Usage::STORAGE),
            Self::Staging => ("outputs", Usage::MAP_READ | Usage::COPY_DST),
        }
    }
}

/// Bytes of each buffer.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sizes([u64; PLACES]);

impl Sizes {
    pub fn with(mut self, place: Place, bytes: u64) -> Self {
        self.0[place as usize] = bytes;
        self
    }
}

/// The buffers. They grow as programs are prepared.
#[derive(Debug)]
pub(super) struct Scratch {
    context: Arc<Context>,
    buffers: Mutex<Buffers>,
}

#[derive(Debug)]
pub(super) struct Buffers {
    /// Number of times that the buffers were replaced by larger ones.
    pub generation: u64,
    list: [wgpu::Buffer; PLACES],
}

impl Scratch {
    pub fn new(context: &Arc<Context>) -> Result<Self> {
        let buffers = Mutex::new(Buffers::new(context, 0, Sizes::default())?);
        Ok(Self {
            context: Arc::clone(context),
            buffers,
        })
    }

    /// Grows the buffers to at least `sizes`.
    ///
    /// # Errors
    /// If there is no memory for them. The buffers then stay as they are.
    pub fn reserve(&self, sizes: Sizes) -> Result<()> {
        let mut buffers = self.lock();
        let most = Place::ALL.map(|place| buffers.get(place).size().max(sizes.0[place as usize]));
        if Place::ALL
            .iter()
            .any(|place| buffers.get(*place).size() < most[*place as usize])
        {
            *buffers = Buffers::new(&self.context, buffers.generation + 1, Sizes(most))?;
        }
        Ok(())
    }

    /// Locks the buffers for one program.
    pub fn lock(&self) -> MutexGuard<'_, Buffers> {
        self.buffers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Buffers {
    fn new(context: &Context, generation: u64, sizes: Sizes) -> Result<Self> {
        let buffer = |place: Place| {
            let (what, usage) = place.describe();
            context.buffer(what, sizes.0[place as usize], usage)
        };
        let [input, sums, inner, quantized, staging] = Place::ALL.map(buffer);
        Ok(Self {
            generation,
            list: [input?, sums?, inner?, quantized?, staging?],
        })
    }

    pub fn get(&self, place: Place) -> &wgpu::Buffer {
        &self.list[place as usize]
    }
}
