//! Synthetic weights and KV caches that are larger than the processor's caches, so that kernels read memory as in a
//! run.

use std::ops::Range;

use triad_engine::KvFormat;
use triad_kernels::attention::{PAGE, Shape, Slab};
use triad_kernels::{BlockArithmetic, Blocks, Matrix, int4};

use super::forms::Numbers;

/// Minimum and maximum bytes of the arena.
const MIN: usize = 32 << 20;
const MAX: usize = 128 << 20;

/// A buffer from which weights and KV caches are taken in turn. Its bytes are small numbers in every format.
pub struct Arena {
    words: Vec<u64>,
    next: usize,
}

impl Arena {
    /// Creates an arena of `bytes` bytes, but of at least 32 MiB and at most 128 MiB.
    pub fn new(bytes: usize) -> Self {
        let bytes = bytes.clamp(MIN, MAX);
        // Bytes from 0x30 to 0x3f: read as f16, bf16 or f32 they are numbers from 6e-10 to 2.
        let word = |index: u64| {
            (index.wrapping_mul(0x9e37_79b9_7f4a_7c15) & 0x0f0f_0f0f_0f0f_0f0f)
                | 0x3030_3030_3030_3030
        };
        Self {
            words: (0..bytes as u64 / 8).map(word).collect(),
            next: 0,
        }
    }

    /// Returns the place of the next `bytes` bytes. It starts at the front again where they do not fit after the
    /// latest.
    pub fn take(&mut self, bytes: usize) -> Range<usize> {
        let bytes = bytes.next_multiple_of(64);
        if self.words.len() * 8 < bytes {
            self.words.resize(bytes / 8, 0x3030_3030_3030_3030);
        }
        if self.next + bytes > self.words.len() * 8 {
            self.next = 0;
        }
        let place = self.next..self.next + bytes;
        self.next = place.end;
        place
    }

    pub fn bytes(&self, place: &Range<usize>) -> &[u8] {
        &bytemuck::cast_slice(&self.words)[place.clone()]
    }

    /// Returns the places of a matrix's values, and of its scales in INT4.
    pub fn matrix(&mut self, numbers: Numbers, elements: usize) -> (Range<usize>, Range<usize>) {
        let bytes = match numbers {
            Numbers::F32 => 4 * elements,
            Numbers::F16 | Numbers::Bf16 => 2 * elements,
            Numbers::Int8 => elements,
            Numbers::Int4 => elements / 2,
            Numbers::Blocks(format) => format.bytes_for(elements),
        };
        let scales = if numbers == Numbers::Int4 {
            elements / int4::GROUP * 2
        } else {
            0
        };
        let exact = |place: Range<usize>, bytes: usize| place.start..place.start + bytes;
        (
            exact(self.take(bytes), bytes),
            exact(self.take(scales), scales),
        )
    }

    /// Returns the matrix at `places`. INT8 has `scales`, one for each row.
    pub fn view<'a>(
        &'a self,
        numbers: Numbers,
        places: &(Range<usize>, Range<usize>),
        scales: &'a [f32],
    ) -> Matrix<'a> {
        let (values, groups) = (self.bytes(&places.0), self.bytes(&places.1));
        match numbers {
            Numbers::F32 => Matrix::F32(bytemuck::cast_slice(values)),
            Numbers::F16 => Matrix::F16(bytemuck::cast_slice(values)),
            Numbers::Bf16 => Matrix::Bf16(bytemuck::cast_slice(values)),
            Numbers::Int8 => Matrix::Int8 {
                values: bytemuck::cast_slice(values),
                scales,
            },
            Numbers::Int4 => Matrix::Int4 {
                values,
                scales: bytemuck::cast_slice(groups),
            },
            Numbers::Blocks(format) => Matrix::Blocks(Blocks {
                format,
                bytes: values,
                arithmetic: BlockArithmetic::Rounded,
            }),
        }
    }
}

/// Keys and values of a block.
pub struct Cache {
    numbers: Numbers,
    /// Elements of the keys, and of the values.
    elements: usize,
    scales: Vec<f32>,
}

impl Cache {
    pub fn new(context: usize, format: KvFormat, shape: &Shape) -> Self {
        let numbers = match format {
            KvFormat::F16 => Numbers::F16,
            KvFormat::F32 => Numbers::F32,
            KvFormat::Int8 => Numbers::Int8,
        };
        let rows = context.div_ceil(PAGE) * PAGE * shape.kv_heads;
        let scales = if numbers == Numbers::Int8 {
            vec![0.01; rows]
        } else {
            Vec::new()
        };
        Self {
            numbers,
            elements: rows * shape.head_dim,
            scales,
        }
    }

    pub fn take(&self, arena: &mut Arena) -> [(Range<usize>, Range<usize>); 2] {
        [(); 2].map(|()| arena.matrix(self.numbers, self.elements))
    }

    pub fn slab<'a>(
        &'a self,
        arena: &'a Arena,
        places: &[(Range<usize>, Range<usize>); 2],
        shape: &Shape,
    ) -> Slab<'a> {
        let [keys, values] = places
            .each_ref()
            .map(|place| arena.view(self.numbers, place, &self.scales));
        Slab {
            keys,
            values,
            kv_heads: shape.kv_heads,
            head_dim: shape.head_dim,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_arena_hands_out_places_within_it_that_differ_from_one_run_to_the_next() {
        let mut arena = Arena::new(0);
        let all = arena.words.len() * 8;
        let (first, second) = (arena.take(all / 2), arena.take(all / 2));
        assert!(first.end <= second.start && second.end <= all);
        assert_eq!(arena.take(64).start, 0);
        let place = arena.matrix(Numbers::F16, 1024);
        let Matrix::F16(values) = arena.view(Numbers::F16, &place, &[]) else {
            panic!("another format")
        };
        assert!(values.iter().all(|value| value.is_normal()));
        // A place that is larger than the arena makes the arena grow.
        assert_eq!(arena.take(2 * all).len(), 2 * all);
    }
}
