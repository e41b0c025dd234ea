//! Slices cut into chunks of equal length, which the threads of the installed pool process.

use std::marker::PhantomData;
use std::ops::Range;

use crate::pool;

/// Data in chunks that several threads write concurrently: [`chunks_mut`], and tuples of them.
#[allow(unsafe_code)]
pub trait Chunks: Sync {
    /// One chunk.
    type Chunk;

    /// Returns the number of chunks.
    fn count(&self) -> usize;

    /// Returns the chunk at `index`.
    ///
    /// # Safety
    /// Each index may be passed at most once and must be below the count.
    unsafe fn chunk(&self, index: usize) -> Self::Chunk;
}

/// A slice in chunks.
pub struct ChunksMut<'a, T> {
    pointer: *mut T,
    values: usize,
    length: usize,
    lifetime: PhantomData<&'a mut [T]>,
}

// SAFETY: the pointer comes from an exclusive borrow, and every chunk is returned once.
#[allow(unsafe_code)]
unsafe impl<T: Send> Sync for ChunksMut<'_, T> {}

/// Splits `values` into chunks of `length`; the last one may be shorter.
///
/// # Panics
/// If `length` is zero.
pub fn chunks_mut<T: Send>(values: &mut [T], length: usize) -> ChunksMut<'_, T> {
    assert!(length > 0, "expected a positive chunk length");
    ChunksMut {
        pointer: values.as_mut_ptr(),
        values: values.len(),
        length,
        lifetime: PhantomData,
    }
}

#[allow(unsafe_code)]
impl<'a, T: Send> Chunks for ChunksMut<'a, T> {
    type Chunk = &'a mut [T];

    fn count(&self) -> usize {
        self.values.div_ceil(self.length)
    }

    unsafe fn chunk(&self, index: usize) -> &'a mut [T] {
        assert!(index < self.count());
        let start = index * self.length;
        // SAFETY: in bounds; no other chunk overlaps it, and the caller passes each index once.
        unsafe {
            std::slice::from_raw_parts_mut(
                self.pointer.add(start),
                self.length.min(self.values - start),
            )
        }
    }
}

/// The given number of empty chunks.
pub struct Nothing(pub usize);

#[allow(unsafe_code)]
impl Chunks for Nothing {
    type Chunk = ();

    fn count(&self) -> usize {
        self.0
    }

    unsafe fn chunk(&self, _: usize) {}
}

#[allow(unsafe_code)]
impl<A: Chunks, B: Chunks> Chunks for (A, B) {
    type Chunk = (A::Chunk, B::Chunk);

    fn count(&self) -> usize {
        self.0.count().min(self.1.count())
    }

    unsafe fn chunk(&self, index: usize) -> Self::Chunk {
        // SAFETY: as the caller promises.
        unsafe { (self.0.chunk(index), self.1.chunk(index)) }
    }
}

/// Calls `work` with each chunk's index and the chunk. A thread takes `grain` chunks at a time, as in
/// [`pool::for_each`].
#[allow(
    clippy::needless_pass_by_value,
    reason = "the borrow is handed out in chunks"
)]
pub fn for_each_chunk<C: Chunks>(chunks: C, grain: usize, work: impl Fn(usize, C::Chunk) + Sync) {
    pool::for_each(chunks.count(), grain, |index| {
        // SAFETY: `for_each` calls with each number once.
        #[allow(unsafe_code)]
        let chunk = unsafe { chunks.chunk(index) };
        work(index, chunk);
    });
}

/// Returns the results of `work` for each number below `tasks`, in order.
pub fn map<R: Send>(tasks: usize, work: impl Fn(usize) -> R + Sync) -> Vec<R> {
    let mut results: Vec<Option<R>> = (0..tasks).map(|_| None).collect();
    for_each_chunk(chunks_mut(&mut results, 1), 1, |task, result| {
        result[0] = Some(work(task));
    });
    results
        .into_iter()
        .map(|result| result.expect("every task ran"))
        .collect()
}

/// Cuts `count` into parts of at most `most`, as evenly as possible.
pub(crate) fn parts(count: usize, most: usize) -> impl Iterator<Item = Range<usize>> {
    let parts = count.div_ceil(most);
    (0..parts).map(move |part| part * count / parts..(part + 1) * count / parts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn chunks_cover_a_slice_once(values in 0usize..100, length in 1usize..20, grain in 0usize..4, threads in 1usize..4) {
            let (mut first, mut second) = (vec![0; values], vec![0; values.div_ceil(length)]);
            pool::Pool::new(threads).unwrap().install(|| {
                let chunks = (chunks_mut(&mut first, length), chunks_mut(&mut second, 1));
                for_each_chunk(chunks, grain, |index, (first, second)| {
                    first.iter_mut().enumerate().for_each(|(place, value)| *value += index * length + place);
                    second[0] += index;
                });
            });
            prop_assert_eq!(first, (0..values).collect::<Vec<_>>());
            prop_assert_eq!(second, (0..values.div_ceil(length)).collect::<Vec<_>>());
        }

        #[test]
        fn results_come_in_the_order_of_tasks(tasks in 0usize..100, threads in 1usize..4) {
            let results = pool::Pool::new(threads).unwrap().install(|| map(tasks, |task| task * 3));
            prop_assert_eq!(results, (0..tasks).map(|task| task * 3).collect::<Vec<_>>());
        }

        #[test]
        fn parts_are_even_and_cover_all(count in 0usize..200, most in 1usize..9) {
            let parts: Vec<_> = parts(count, most).collect();
            prop_assert_eq!(parts.iter().cloned().flatten().collect::<Vec<_>>(), (0..count).collect::<Vec<_>>());
            let longest = parts.iter().map(ExactSizeIterator::len).max().unwrap_or(0);
            prop_assert!(longest <= most && parts.iter().all(|part| part.len() + 1 >= longest && !part.is_empty()));
        }
    }
}
