//! The state of one sequence in one block whose mixer keeps one, at the latest position and at earlier ones.
//!
//! A state cannot be cut back as rows of keys and values can. A sequence therefore has, next to its latest state, earlier
//! ones (the bases) and the rows that came after the last of them, from which it recomputes the states after it: when
//! proposed tokens are rejected, or when a task runs again whose chunk was lost. Later chunks may have passed the block
//! then, so the latest state stays. Pages have [checkpoints](super::page::Checkpoint):
//! at the end of each page, and one token before the end of each prompt. A sequence that goes on elsewhere begins at the
//! last checkpoint before that place, and its tokens from there on are computed again.

use std::collections::VecDeque;
use std::sync::Arc;

use triad_kernels::Phase;
use triad_kernels::attention::PAGE;
use triad_model::description::StateSize;

use super::page::{BlockPage, Counted};

/// Rows after the last base from which states are recomputed. A step of decode may have more.
const LOGGED: usize = 16;
/// The maximum number of a sequence's chunks that may be computed at a time: the states at their beginnings are kept.
pub const MAX_IN_FLIGHT: usize = 4;

/// A function that brings a state from before some rows to after them. It computes the outputs of the rows, too, if it
/// gets the number of the first one among all rows that are new.
pub type Update<'a> = &'a mut dyn FnMut(&mut [f32], &[f32], Option<usize>);

/// A state after a number of positions.
#[derive(Clone, Default)]
struct State {
    /// `None`: the values are arbitrary.
    position: Option<usize>,
    values: Vec<f32>,
}

impl State {
    fn copy_from(&mut self, other: &Self) {
        self.position = other.position;
        self.values.copy_from_slice(&other.values);
    }

    fn forget_after(&mut self, position: usize) {
        self.position = self.position.filter(|own| *own <= position);
    }
}

/// The states of one sequence in one block.
#[derive(Clone)]
pub(super) struct SequenceState {
    size: StateSize,
    latest: State,
    /// Ascending positions.
    bases: VecDeque<State>,
    /// The rows after the last base, up to the latest state unless a computation was interrupted.
    log: Vec<f32>,
    /// A state, and rows after it, that stay, whatever is computed, until they are removed.
    mark: Option<(State, Vec<f32>)>,
    /// `None` if the states have no memory yet.
    counted: Option<Counted>,
}

impl SequenceState {
    pub(super) fn new(size: StateSize) -> Self {
        Self {
            size,
            latest: State::default(),
            bases: VecDeque::new(),
            log: Vec::new(),
            mark: None,
            counted: None,
        }
    }

    /// Returns the bytes of the states of one sequence in a block.
    pub(super) fn bytes_of(size: StateSize) -> usize {
        ((1 + MAX_IN_FLIGHT) * size.state + LOGGED * size.row) * size_of::<f32>()
    }

    /// Returns the bytes that [`SequenceState::allocate`] would allocate, on a copy if others share the states.
    pub(super) fn missing_bytes(&self, is_shared: bool) -> usize {
        match self.counted {
            Some(_) if !is_shared => 0,
            _ => Self::bytes_of(self.size),
        }
    }

    /// Gives the states memory, which `count` counts, unless they have some.
    pub(super) fn allocate(&mut self, count: impl FnOnce(usize) -> Counted) {
        if self.counted.is_none() {
            self.counted = Some(count(Self::bytes_of(self.size)));
            self.latest.values = vec![0.0; self.size.state];
            self.log.reserve_exact(LOGGED * self.size.row);
        }
    }

    /// Returns the number of rows after the last base.
    fn logged(&self) -> usize {
        self.log.len() / self.size.row
    }

    fn base(&self) -> Option<usize> {
        self.bases.back()?.position
    }

    /// Forgets the states after `position`: other tokens may follow.
    pub(super) fn forget_after(&mut self, position: usize) {
        self.latest.forget_after(position);
        let is_known = |base: &State| base.position <= Some(position);
        if self.bases.back().is_some_and(|base| !is_known(base)) {
            self.bases.retain(is_known);
            self.log.clear();
        }
        let rows = self.base().map_or(0, |base| position - base);
        self.log.truncate(rows * self.size.row);
        if self.marked() > Some(position) {
            self.mark = None;
        }
    }

    /// Returns the last position up to `position` whose state is known: in `pages`, or here up to `end`.
    pub(super) fn last_known(
        &self,
        position: usize,
        end: usize,
        pages: &[Arc<BlockPage>],
    ) -> usize {
        let end = end.min(position);
        let up_to = |known: Option<usize>| known.filter(|known| *known <= end);
        let bases = self.bases.iter().filter_map(|base| base.position);
        let base = bases.filter(|base| *base <= end).max();
        let logged = up_to(self.base()).map(|base| end.min(base + self.logged()));
        let in_pages = pages.iter().enumerate().rev();
        let in_pages = in_pages
            .filter_map(|(page, of_block)| position_of(page, of_block))
            .find(|known| *known <= position);
        [
            up_to(self.latest.position),
            base,
            logged,
            up_to(self.marked()),
            in_pages,
        ]
        .into_iter()
        .flatten()
        .max()
        .unwrap_or(0)
    }

    /// Keeps the state at `position`, which must be known, until [`SequenceState::unmark`].
    pub(super) fn mark(&mut self, position: usize, pages: &[Arc<BlockPage>]) {
        let state = |values: &[f32]| State {
            position: Some(position),
            values: values.to_vec(),
        };
        self.mark = match self.bases.back() {
            _ if self.latest.position == Some(position) => Some((self.latest.clone(), Vec::new())),
            Some(base) if self.is_end_of_log(position) => Some((base.clone(), self.log.clone())),
            _ => checkpoint_at(position, pages).map(|values| (state(values), Vec::new())),
        };
    }

    /// Goes back to the marked state at `position`.
    pub(super) fn unmark(&mut self, position: usize) {
        self.forget_after(position);
        if let Some((state, log)) = self.mark.take() {
            self.latest.position = None;
            self.bases.clear();
            self.bases.push_back(state);
            self.log = log;
        }
    }

    /// Returns whether the rows after the last base end at `position`.
    fn is_end_of_log(&self, position: usize) -> bool {
        let end = self.base().map(|base| base + self.logged());
        end == Some(position)
    }

    /// Returns the position after the mark.
    fn marked(&self) -> Option<usize> {
        let (state, log) = self.mark.as_ref()?;
        Some(state.position? + log.len() / self.size.row)
    }

    /// Runs `rows`, which follow the first `position` positions, through `update`, and keeps the states that
    /// may be needed again. If the latest state is after `position`, the same rows run again, and only their outputs are
    /// computed. Returns false if the state at `position` is not known.
    pub(super) fn advance(
        &mut self,
        position: usize,
        rows: &[f32],
        phase: Phase,
        pages: &mut [Arc<BlockPage>],
        update: Update,
    ) -> bool {
        if self.latest.position > Some(position) {
            return self.run_again(position, rows, pages, update);
        }
        if !self.go_to(position, pages, &mut *update) {
            return false;
        }
        let width = self.size.row;
        let end = position + rows.len() / width;
        if phase == Phase::Prefill || self.logged() >= LOGGED || !self.is_end_of_log(position) {
            self.push_base();
        }
        let (mut at, mut rest) = (position, rows);
        while at < end {
            self.keep(at, (at + 1 == end, phase), pages);
            let mut next = end.min((at / PAGE + 1) * PAGE);
            if phase == Phase::Prefill && at + 1 < end {
                // The state before the last row is kept.
                next = next.min(end - 1);
            }
            let piece = rest
                .split_off(..(next - at) * width)
                .expect("rows of all positions");
            // If the update is interrupted, the base is left.
            self.latest.position = None;
            update(&mut self.latest.values, piece, Some(at - position));
            self.latest.position = Some(next);
            at = next;
        }
        if phase == Phase::Decode {
            self.log.extend_from_slice(rows);
        }
        true
    }

    /// Writes the latest state, at position `at`, to its page if the page is to have it.
    fn keep(
        &self,
        at: usize,
        (is_before_last, phase): (bool, Phase),
        pages: &mut [Arc<BlockPage>],
    ) {
        let Some(page) = at.checked_sub(1).map(|last| last / PAGE) else {
            return;
        };
        let positions = at - page * PAGE;
        let is_wanted = match phase {
            Phase::Prefill => positions == PAGE || is_before_last,
            // The state near the end of a prompt is more useful.
            Phase::Decode => positions == PAGE && pages[page].checkpoint.positions == 0,
        };
        // Others may hold the page, and need its checkpoint.
        if is_wanted && let Some(page) = Arc::get_mut(&mut pages[page]) {
            page.checkpoint.positions = positions;
            page.checkpoint.values.copy_from_slice(&self.latest.values);
        }
    }

    /// Makes the latest state the last base.
    fn push_base(&mut self) {
        if self.base() == self.latest.position {
            self.log.clear();
            return;
        }
        let mut base = if self.bases.len() < MAX_IN_FLIGHT {
            self.latest.clone()
        } else {
            self.bases.pop_front().unwrap_or_default()
        };
        base.copy_from(&self.latest);
        self.bases.push_back(base);
        self.log.clear();
    }

    /// Computes the outputs of rows again, from the state at `position`. Returns false if it is not known.
    fn run_again(
        &self,
        position: usize,
        rows: &[f32],
        pages: &[Arc<BlockPage>],
        update: Update,
    ) -> bool {
        let mut state = vec![0.0; self.size.state];
        let mut bases = self.bases.iter();
        let log_of =
            |position: usize, from: usize| self.log.get(..(position - from) * self.size.row);
        if let Some(base) = bases.find(|base| base.position == Some(position)) {
            state.copy_from_slice(&base.values);
        } else if let Some((base, log)) = self.bases.back().and_then(|base| {
            let from = base.position.filter(|from| *from < position)?;
            Some((base, log_of(position, from)?))
        }) {
            state.copy_from_slice(&base.values);
            update(&mut state, log, None);
        } else if let Some(checkpoint) = checkpoint_at(position, pages) {
            state.copy_from_slice(checkpoint);
        } else if position > 0 {
            return false;
        }
        update(&mut state, rows, Some(0));
        true
    }

    /// Makes the latest state that at `position`, and forgets all later ones. Returns false if it is not known.
    fn go_to(&mut self, position: usize, pages: &mut [Arc<BlockPage>], update: Update) -> bool {
        self.forget_after(position);
        let first = position / PAGE;
        for (page, of_block) in pages.iter_mut().enumerate().skip(first) {
            if position_of(page, of_block).is_some_and(|known| known > position) {
                Arc::make_mut(of_block).checkpoint.positions = 0;
            }
        }
        if self.latest.position == Some(position) {
            return true;
        }
        if self.marked() == Some(position)
            && !self.is_end_of_log(position)
            && let Some((state, log)) = self.mark.clone()
        {
            self.bases.clear();
            self.bases.push_back(state);
            self.log = log;
        }
        let is_end_of_log = self.is_end_of_log(position);
        match self.bases.back().filter(|_| is_end_of_log) {
            Some(base) => {
                self.latest.values.copy_from_slice(&base.values);
                if !self.log.is_empty() {
                    update(&mut self.latest.values, &self.log, None);
                }
            }
            None => {
                match checkpoint_at(position, pages) {
                    Some(values) => self.latest.values.copy_from_slice(values),
                    None if position == 0 => self.latest.values.fill(0.0),
                    None => return false,
                }
                // The rows between the two are not known.
                self.bases.clear();
                self.log.clear();
            }
        }
        self.latest.position = Some(position);
        true
    }

    /// Calls `visit` with the position and the values of the latest state, or of the last base, that is not after `end`.
    ///
    /// # Errors
    /// The first error of `visit`.
    pub(super) fn read<E>(
        &self,
        end: usize,
        visit: &mut impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let is_known = |state: &&State| state.position.is_some_and(|known| known <= end);
        let state = Some(&self.latest).filter(is_known);
        let state = state.or_else(|| self.bases.iter().rfind(is_known));
        let position = state.and_then(|state| state.position);
        let state = state.unwrap_or(&self.latest);
        visit(&number(position))?;
        if state.values.is_empty() {
            return visit(bytemuck::cast_slice(&vec![0.0f32; self.size.state]));
        }
        visit(bytemuck::cast_slice(&state.values))
    }

    /// Calls `visit` as [`SequenceState::read`] does, with mutable bytes. A position after `tokens` means that the state
    /// is not known.
    ///
    /// # Errors
    /// The first error of `visit`.
    pub(super) fn fill<E>(
        &mut self,
        tokens: usize,
        visit: &mut impl FnMut(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut position = [0; 8];
        visit(&mut position)?;
        visit(bytemuck::cast_slice_mut(&mut self.latest.values))?;
        self.latest.position = position_from(position).filter(|own| *own <= tokens);
        Ok(())
    }
}

/// Returns the state at `position` from its page, if the page has it.
fn checkpoint_at(position: usize, pages: &[Arc<BlockPage>]) -> Option<&Vec<f32>> {
    let page = position.checked_sub(1)? / PAGE;
    let of_block = pages.get(page)?;
    (position_of(page, of_block) == Some(position)).then_some(&of_block.checkpoint.values)
}

/// Returns the position of a page's checkpoint, if it has one.
pub(super) fn position_of(page: usize, of_block: &BlockPage) -> Option<usize> {
    let positions = of_block.checkpoint.positions;
    (positions > 0).then_some(page * PAGE + positions)
}

/// Returns the bytes of a position in a file.
pub(super) fn number(position: Option<usize>) -> [u8; 8] {
    position
        .map_or(u64::MAX, |position| position as u64)
        .to_ne_bytes()
}

/// Returns the position that [`number`] gave these bytes.
pub(super) fn position_from(bytes: [u8; 8]) -> Option<usize> {
    usize::try_from(u64::from_ne_bytes(bytes)).ok()
}
