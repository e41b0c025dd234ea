//! Experts of a model that is larger than memory: those that are chosen often stay in memory, the others are read from
//! the file when they are chosen, and read ahead when the router of the next block is likely to choose them.
//!
//! Weights stay mapped. To keep an expert is to leave its pages to the system; to drop it is to tell the system that
//! they are not needed ([`MappedBytes::forget`]). An expert that must be read is requested as a whole, since a thread
//! that multiplies would wait at each of its pages.

use std::sync::Mutex;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use serde::Serialize;
use triad_kernels::lock;
use triad_model::mapped::MappedBytes;

use super::Block;
use crate::error::{Error, Result};

/// The number of experts of a block that are requested before they are computed.
const REQUESTED: usize = 8;
/// Experts that were requested or computed within so many choices are kept: they may be computed next.
const KEPT: usize = 3 * REQUESTED;
/// The number of choices after which counts of earlier ones are halved.
const HALVED_AFTER: u64 = 4096;
/// Experts that are chosen before any are read ahead.
const TRIED: f32 = 64.0;
/// Chosen experts after which those before count half as much.
const FORGOTTEN_AFTER: f32 = 1024.0;

/// The experts of a model, of which a limited number of bytes stay in memory.
pub struct ExpertMemory {
    /// The maximum bytes of experts in memory.
    limit: usize,
    /// The parts of the file with each expert, by block.
    experts: Vec<Vec<Expert>>,
    state: Mutex<State>,
    reads_ahead: bool,
    requests: Option<Sender<Vec<MappedBytes>>>,
    reader: Option<JoinHandle<()>>,
}

struct Expert {
    parts: Vec<MappedBytes>,
    bytes: usize,
}

/// Counts of the experts of a model that do not all stay in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ExpertUse {
    /// Experts that were computed, one for each block and chunk.
    pub computed: u64,
    /// Experts that were neither in memory nor requested ahead.
    pub awaited: u64,
    /// Experts that were requested ahead.
    pub requested_ahead: u64,
    /// Experts that were requested ahead and computed before they were dropped.
    pub foreseen: u64,
    /// Bytes of the experts that were requested, ahead or not.
    pub bytes_read: u64,
}

#[derive(Default)]
struct State {
    entries: Vec<Vec<Entry>>,
    /// Bytes of the experts in memory.
    bytes: usize,
    /// Number of choices so far.
    choices: u64,
    foresight: Foresight,
    usage: ExpertUse,
}

/// The experts that were foreseen, and how often that was right.
#[derive(Default)]
struct Foresight {
    /// The block whose experts were foreseen, until it has chosen.
    block: Option<usize>,
    experts: Vec<usize>,
    /// Experts that were chosen after some were foreseen, recent ones counted more.
    chosen: f32,
    /// Chosen experts that were foreseen.
    right: f32,
}

impl Foresight {
    /// Returns whether more is gained than lost by reading what is foreseen: it takes the place of other experts, and
    /// the time of the disk.
    fn is_trusted(&self) -> bool {
        self.chosen >= TRIED && 2.0 * self.right >= self.chosen
    }
}

#[derive(Clone, Copy, Default)]
struct Entry {
    is_in_memory: bool,
    /// It was requested ahead and not computed since.
    is_ahead: bool,
    /// Rows that chose it, recent ones counted more.
    rows: u32,
    /// The number of the latest choice.
    latest: u64,
}

impl ExpertMemory {
    /// Creates the memory of the experts in `blocks`, none of which is in memory yet. `reads_ahead` is whether experts
    /// are requested before their block is reached.
    ///
    /// # Errors
    /// If the model has no experts, they are not in a mapped file, or `limit` is too little for those that are requested
    /// at once; if no thread can be started.
    pub(crate) fn new(blocks: &[Block], limit: u64, reads_ahead: bool) -> Result<Self> {
        Self::with_experts(blocks.iter().map(experts).collect(), limit, reads_ahead)
    }

    fn with_experts(experts: Vec<Vec<Expert>>, limit: u64, reads_ahead: bool) -> Result<Self> {
        let largest = experts.iter().flatten().map(|expert| expert.bytes).max();
        let refused = |expected: &'static str| Error::Option {
            name: "the memory of experts",
            value: limit.to_string(),
            expected,
        };
        let Some(largest) = largest.filter(|bytes| *bytes > 0) else {
            return Err(refused(
                "none, since the model has no experts that are used in place",
            ));
        };
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        if limit < (KEPT + REQUESTED) * largest {
            return Err(refused(
                "at least the bytes of 32 experts, which are in memory at once",
            ));
        }
        let (requests, requested) = channel::<Vec<MappedBytes>>();
        let reader = std::thread::Builder::new().name("triad-experts".into());
        let reader = reader.spawn(move || {
            for parts in requested {
                parts.iter().for_each(MappedBytes::request);
            }
        });
        let reader = reader.map_err(|source| Error::Threads { threads: 1, source })?;
        let entries = experts
            .iter()
            .map(|of_block| vec![Entry::default(); of_block.len()]);
        let state = State {
            entries: entries.collect(),
            ..State::default()
        };
        // The pages of a model that was just opened are dropped as well, so that they count.
        let parts = experts.iter().flatten().flat_map(|expert| &expert.parts);
        parts.for_each(MappedBytes::forget);
        Ok(Self {
            limit,
            experts,
            state: Mutex::new(state),
            reads_ahead,
            requests: Some(requests),
            reader: Some(reader),
        })
    }

    /// Returns whether experts are to be foreseen.
    pub(crate) fn reads_ahead(&self) -> bool {
        self.reads_ahead
    }

    /// Requests the experts that a block computes next, each with the number of its rows. The first is computed now.
    pub(crate) fn compute(&self, block: usize, next: impl Iterator<Item = (usize, usize)>) {
        let (mut state, mut parts) = (lock(&self.state), Vec::new());
        state.choices += 1;
        for (place, (expert, rows)) in next.take(REQUESTED).enumerate() {
            let entry = &mut state.entries[block][expert];
            let is_awaited = !entry.is_in_memory;
            if place == 0 {
                entry.rows = entry.rows.saturating_add(rows as u32);
                let is_foreseen = std::mem::take(&mut entry.is_ahead);
                state.usage.computed += 1;
                state.usage.foreseen += u64::from(is_foreseen);
            }
            state.usage.awaited += u64::from(is_awaited);
            self.take(&mut state, (block, expert), &mut parts);
        }
        self.make_room(&mut state);
        drop(state);
        parts.iter().for_each(|part| part.request());
    }

    /// Compares the experts that `block` has chosen with those that were foreseen.
    pub(crate) fn chosen(&self, block: usize, experts: impl Iterator<Item = usize>) {
        let foresight = &mut lock(&self.state).foresight;
        if foresight.block != Some(block) {
            return;
        }
        foresight.block = None;
        for expert in experts {
            foresight.chosen += 1.0;
            if foresight.experts.contains(&expert) {
                foresight.right += 1.0;
            }
        }
        if foresight.chosen > FORGOTTEN_AFTER {
            foresight.chosen /= 2.0;
            foresight.right /= 2.0;
        }
    }

    /// Foresees the experts that `block` will choose: requests them if most of those before were right.
    pub(crate) fn foresee(&self, block: usize, experts: impl Iterator<Item = usize>) {
        let (mut state, mut parts) = (lock(&self.state), Vec::new());
        let foresight = &mut state.foresight;
        foresight.block = Some(block);
        foresight.experts.clear();
        foresight.experts.extend(experts);
        if !foresight.is_trusted() {
            return;
        }
        let experts = std::mem::take(&mut foresight.experts);
        for expert in experts.iter().copied() {
            let is_new = !state.entries[block][expert].is_in_memory;
            self.take(&mut state, (block, expert), &mut parts);
            state.entries[block][expert].is_ahead |= is_new;
            state.usage.requested_ahead += u64::from(is_new);
        }
        state.foresight.experts = experts;
        self.make_room(&mut state);
        drop(state);
        if let Some(requests) = self.requests.as_ref().filter(|_| !parts.is_empty()) {
            // The reader runs as long as the sender exists.
            let _ = requests.send(parts.into_iter().cloned().collect());
        }
    }

    /// Returns what was read so far.
    pub fn usage(&self) -> ExpertUse {
        lock(&self.state).usage
    }

    /// Counts an expert as in memory. Adds its parts to `parts` if it was not.
    fn take<'a>(
        &'a self,
        state: &mut State,
        (block, expert): (usize, usize),
        parts: &mut Vec<&'a MappedBytes>,
    ) {
        let of_file = &self.experts[block][expert];
        let choices = state.choices;
        let entry = &mut state.entries[block][expert];
        entry.latest = choices;
        if !std::mem::replace(&mut entry.is_in_memory, true) {
            state.bytes += of_file.bytes;
            state.usage.bytes_read += of_file.bytes as u64;
            parts.extend(&of_file.parts);
        }
    }

    /// Drops the experts that the fewest rows chose, until the others fit.
    fn make_room(&self, state: &mut State) {
        if state.choices.is_multiple_of(HALVED_AFTER) {
            let entries = state.entries.iter_mut().flatten();
            entries.for_each(|entry| entry.rows /= 2);
        }
        if state.bytes <= self.limit {
            return;
        }
        let kept_since = state.choices.saturating_sub(KEPT as u64);
        let mut idle = Vec::new();
        for (block, entries) in state.entries.iter().enumerate() {
            for (expert, entry) in entries.iter().enumerate() {
                if entry.is_in_memory && entry.latest < kept_since {
                    idle.push(((entry.rows, entry.latest), (block, expert)));
                }
            }
        }
        idle.sort_unstable();
        for (_, (block, expert)) in idle {
            if state.bytes <= self.limit {
                break;
            }
            let of_file = &self.experts[block][expert];
            of_file.parts.iter().for_each(MappedBytes::forget);
            let entry = &mut state.entries[block][expert];
            (entry.is_in_memory, entry.is_ahead) = (false, false);
            state.bytes -= of_file.bytes;
        }
    }
}

impl Drop for ExpertMemory {
    fn drop(&mut self) {
        drop(self.requests.take());
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
    }
}

/// Returns the parts of the file with each expert of a block.
fn experts(block: &Block) -> Vec<Expert> {
    let count = block.router.as_ref().map_or(0, |it| it.experts.count);
    let mut parts = vec![Vec::new(); count];
    for (name, linear) in &block.linears {
        if let Some(parts) = name.expert().and_then(|expert| parts.get_mut(expert)) {
            parts.extend(linear.in_files().cloned());
        }
    }
    let expert = |parts: Vec<MappedBytes>| Expert {
        bytes: parts.iter().map(|part| part.len()).sum(),
        parts,
    };
    parts.into_iter().map(expert).collect()
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use triad_model::mapped::MappedFile;

    use super::*;

    /// Returns the memory of `limit` experts of two blocks with 64 experts each of 64 KiB.
    fn memory(limit: usize) -> ExpertMemory {
        const BYTES: usize = 64 << 10;
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&vec![7; 2 * 64 * BYTES]).unwrap();
        let file = MappedFile::open(file.path()).unwrap();
        let expert = |index: usize| Expert {
            parts: vec![file.part(index * BYTES..(index + 1) * BYTES)],
            bytes: BYTES,
        };
        let of_block = |block: usize| (0..64).map(|index| expert(64 * block + index)).collect();
        ExpertMemory::with_experts(vec![of_block(0), of_block(1)], (limit * BYTES) as u64, true)
            .unwrap()
    }

    fn in_memory(memory: &ExpertMemory, block: usize) -> Vec<usize> {
        let state = lock(&memory.state);
        let entries = state.entries[block].iter().enumerate();
        let there = entries.filter(|(_, entry)| entry.is_in_memory);
        there.map(|(expert, _)| expert).collect()
    }

    #[test]
    fn experts_that_many_rows_chose_stay_and_the_limit_holds() {
        let memory = memory(40);
        for round in 0..20 {
            memory.compute(0, [(5, 9)].into_iter());
            for expert in 6..64 {
                memory.compute(usize::from(round % 2 == 1), [(expert, 1)].into_iter());
                assert!(in_memory(&memory, 0).contains(&5), "{round} {expert}");
                assert!(lock(&memory.state).bytes <= 40 * (64 << 10));
            }
        }
        let usage = memory.usage();
        assert_eq!(usage.computed, 20 * 59);
        assert!(usage.awaited < usage.computed && usage.awaited > 40);
        assert_eq!(usage.bytes_read, usage.awaited * (64 << 10));
    }

    #[test]
    fn experts_are_read_ahead_once_they_were_foreseen_often_enough() {
        let memory = memory(64);
        let token = |seen: [usize; 4], chosen: [usize; 4]| {
            memory.foresee(1, seen.into_iter());
            memory.chosen(1, chosen.into_iter());
            for place in 0..4 {
                memory.compute(1, chosen[place..].iter().map(|expert| (*expert, 1)));
            }
        };
        (0..16).for_each(|_| token([1, 2, 3, 4], [1, 2, 3, 5]));
        assert_eq!(memory.usage().requested_ahead, 0);
        token([8, 9, 10, 11], [8, 9, 10, 12]);
        let usage = memory.usage();
        assert_eq!((usage.requested_ahead, usage.foreseen), (4, 3));
        // From now on, none is right.
        (0..64).for_each(|_| token([20, 21, 22, 23], [30, 31, 32, 33]));
        let before = memory.usage().requested_ahead;
        token([40, 41, 42, 43], [50, 51, 52, 53]);
        assert_eq!(memory.usage().requested_ahead, before);
    }

    #[test]
    fn a_limit_of_less_than_the_experts_that_are_needed_at_once_is_refused() {
        let refused = ExpertMemory::new(&[], 1 << 30, true).err().unwrap();
        assert!(refused.to_string().contains("no experts"), "{refused}");
        assert!(std::panic::catch_unwind(|| memory(31)).is_err());
        memory(32);
    }
}
