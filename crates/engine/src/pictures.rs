//! Pictures of an engine: the rows that its encoder made of them, and the tokens that stand for the rows.
//!
//! A row of a picture is a token of its own, whose number is above those of every vocabulary. An engine gives each
//! picture other numbers, and the same picture the same ones. So all that compares tokens, prefixes above all, tells
//! pictures apart, and a picture in a prompt is `rows` tokens like any others.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError,
};
use std::time::Duration;

use triad_model::vision::VisionDescription;

use crate::cancel::Cancel;
use crate::error::{Error, Result};
use crate::kv::PrefixSalt;

/// The first token that stands for a row of a picture.
const FIRST: u32 = 1 << 31;
/// Maximum bytes of rows of pictures that no one holds.
const MAX_BYTES: usize = 256 << 20;
/// Maximum pictures whose tokens are kept though their rows are not.
const MAX_KNOWN: usize = 1 << 16;
/// Time between two looks whether another request still encodes.
const TURN: Duration = Duration::from_millis(2);

/// Returns whether a token stands for a row of a picture.
pub fn is_of_picture(token: u32) -> bool {
    token >= FIRST
}

/// Whether the rows of a picture read each other in attention, also later ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Together {
    /// They read only earlier ones.
    #[default]
    No,
    /// They do in all blocks, also beyond a sliding window.
    Everywhere,
    /// They do in blocks with a sliding window, earlier ones within it.
    InWindows,
}

impl Together {
    pub(crate) fn new(description: &VisionDescription) -> Self {
        match (description.together, description.together_in_windows) {
            (false, _) => Self::No,
            (true, false) => Self::Everywhere,
            (true, true) => Self::InWindows,
        }
    }
}

/// A picture, or a tile of one, that an engine has encoded. As long as it is held, by this handle or by a session, its
/// tokens can be computed. Clones are handles to the same rows.
#[derive(Clone, Debug)]
pub struct Picture(Arc<PictureRows>);

/// The rows of a picture.
#[derive(Debug)]
pub(crate) struct PictureRows {
    /// The token of the first row.
    first: u32,
    /// Rows and columns of rows.
    pub(crate) cells: [usize; 2],
    /// Numbers of a row: the width of the residual stream, once for the input and once for each block after which numbers
    /// are added.
    row_len: usize,
    /// `[rows, row_len]`.
    values: Vec<f32>,
    /// Whether the rows read each other.
    pub(crate) together: Together,
    /// The hash of the pixels.
    id: PictureId,
}

impl PictureRows {
    /// Returns the number of rows.
    pub(crate) fn rows(&self) -> usize {
        self.cells[0] * self.cells[1]
    }

    /// Returns all numbers of the row that `token` stands for.
    pub(crate) fn row(&self, token: u32) -> &[f32] {
        let row = (token - self.first) as usize;
        &self.values[row * self.row_len..][..self.row_len]
    }

    fn tokens(&self) -> Range<u32> {
        self.first..self.first + self.rows() as u32
    }
}

impl Picture {
    /// Returns the tokens of its rows, which a prompt has all of and in order.
    pub fn tokens(&self) -> Range<u32> {
        self.0.tokens()
    }

    /// Returns its rows, `[rows, width]`. With an encoder that adds more after the first blocks, each row is followed by
    /// these, one after the other.
    pub fn values(&self) -> &[f32] {
        &self.0.values
    }

    /// Returns the identity of the view that was encoded.
    pub fn id(&self) -> PictureId {
        self.0.id
    }

    pub(crate) fn rows(&self) -> &Arc<PictureRows> {
        &self.0
    }
}

/// The identity of a view: a hash of its pixels and their sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PictureId(pub(crate) [u8; 32]);

/// The identity of a picture: a hash of its pixels, and the salt of those who may find it.
pub(crate) type Key = (PrefixSalt, [u8; 32]);

/// The pictures of an engine.
#[derive(Debug, Default)]
pub(crate) struct Pictures {
    known: RwLock<Known>,
    /// Held by the request that encodes: several encodings at once would take as many times the memory.
    encoding: Mutex<()>,
}

#[derive(Debug, Default)]
struct Known {
    /// The first token of each picture.
    firsts: BTreeMap<Key, u32>,
    /// The rows by first token, with the time of their last use.
    rows: BTreeMap<u32, (Arc<PictureRows>, u64)>,
    /// The number of tokens given so far.
    given: u32,
    now: u64,
}

impl Pictures {
    /// Waits until no other request encodes.
    pub(crate) fn turn(&self, cancel: &Cancel) -> Result<MutexGuard<'_, ()>> {
        loop {
            cancel.check()?;
            match self.encoding.try_lock() {
                Ok(turn) => return Ok(turn),
                Err(TryLockError::Poisoned(poisoned)) => return Ok(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) => std::thread::sleep(TURN),
            }
        }
    }

    /// Returns the rows that a token is one of.
    pub(crate) fn rows_with(&self, token: u32) -> Option<Arc<PictureRows>> {
        let known = self.read();
        let (_, (rows, _)) = known.rows.range(..=token).next_back()?;
        rows.tokens().contains(&token).then(|| Arc::clone(rows))
    }

    /// Returns a picture whose rows are still there.
    pub(crate) fn find(&self, key: &Key) -> Option<Picture> {
        let mut known = self.write();
        known.now += 1;
        let (now, first) = (known.now, *known.firsts.get(key)?);
        let (rows, used) = known.rows.get_mut(&first)?;
        *used = now;
        Some(Picture(Arc::clone(rows)))
    }

    /// Adds the rows of a picture, with the tokens that it had before, if it had some.
    pub(crate) fn add(
        &self,
        key: Key,
        (cells, row_len): ([usize; 2], usize),
        values: Vec<f32>,
        together: Together,
    ) -> Result<Picture> {
        let mut known = self.write();
        known.now += 1;
        let now = known.now;
        let count = values.len() / row_len;
        let first = match known.firsts.get(&key) {
            Some(first) => *first,
            None => {
                let given = u32::try_from(count).ok();
                let given = given.and_then(|count| known.given.checked_add(count));
                let given = given.filter(|given| *given <= u32::MAX - FIRST);
                let given = given.ok_or_else(|| {
                    Error::Picture(
                        "the engine has seen too many pictures: load the model again".into(),
                    )
                })?;
                FIRST + std::mem::replace(&mut known.given, given)
            }
        };
        known.firsts.insert(key, first);
        let rows = known.rows.entry(first).or_insert_with(|| {
            let rows = PictureRows {
                first,
                cells,
                row_len,
                values,
                together,
                id: PictureId(key.1),
            };
            (Arc::new(rows), now)
        });
        rows.1 = now;
        let picture = Picture(Arc::clone(&rows.0));
        known.evict();
        Ok(picture)
    }

    fn read(&self) -> RwLockReadGuard<'_, Known> {
        self.known.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Known> {
        self.known.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    /// Forgets the rows that were used least recently and that no one holds, until the others fit.
    fn evict(&mut self) {
        let bytes = |rows: &PictureRows| size_of_val(&rows.values[..]);
        let free = |(_, (rows, _)): &(&u32, &(Arc<PictureRows>, u64))| Arc::strong_count(rows) == 1;
        let mut unheld: Vec<_> = self.rows.iter().filter(free).collect();
        let mut total: usize = unheld.iter().map(|(_, (rows, _))| bytes(rows)).sum();
        unheld.sort_by_key(|(_, (_, used))| *used);
        let mut gone = Vec::new();
        for (first, (rows, _)) in unheld {
            if total <= MAX_BYTES {
                break;
            }
            total -= bytes(rows);
            gone.push(*first);
        }
        for first in gone {
            self.rows.remove(&first);
        }
        if self.firsts.len() > MAX_KNOWN {
            let rows = &self.rows;
            self.firsts.retain(|_, first| rows.contains_key(first));
        }
    }
}

/// Pictures that a session holds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Held {
    /// The pictures, in the order of their tokens.
    pictures: Vec<Arc<PictureRows>>,
    /// A place up to which the session's tokens need not be read again.
    known: Place,
}

/// A place in the tokens of a session that is not within a picture.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Place {
    /// Tokens before it.
    tokens: usize,
    /// The position of RoPE there.
    position: usize,
}

/// Where the rows of a request are, as far as pictures change it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Positions of RoPE by axis, one for each token of the request; empty: those in the sequence.
    pub(crate) axes: Vec<[usize; 3]>,
    /// Positions in the sequence of the rows that read each other, of each picture.
    pub(crate) together: Vec<Range<usize>>,
    /// Whether they do so only in blocks with a sliding window, and within it.
    pub(crate) in_windows: bool,
}

impl Held {
    /// Adds a picture.
    pub(crate) fn add(&mut self, picture: &Picture) {
        let rows = picture.rows();
        let place = self
            .pictures
            .binary_search_by_key(&rows.first, |it| it.first);
        if let Err(place) = place {
            self.pictures.insert(place, Arc::clone(rows));
        }
    }

    /// Forgets the pictures that `tokens` have no rows of.
    pub(crate) fn retain(&mut self, tokens: &[u32]) {
        if self.pictures.is_empty() {
            return;
        }
        let of_pictures = tokens.iter().filter(|token| is_of_picture(**token));
        let used: BTreeSet<u32> = of_pictures
            .filter_map(|token| Some(self.rows_with(*token)?.first))
            .collect();
        self.pictures.retain(|rows| used.contains(&rows.first));
    }

    /// Takes note that the session has forgotten everything after the first `length` tokens.
    pub(crate) fn truncate(&mut self, length: usize) {
        if self.known.tokens > length {
            self.known = Place::default();
        }
    }

    fn rows_with(&self, token: u32) -> Option<&PictureRows> {
        if !is_of_picture(token) {
            return None;
        }
        let next = self.pictures.partition_point(|rows| rows.first <= token);
        let rows = &**self.pictures.get(next.checked_sub(1)?)?;
        rows.tokens().contains(&token).then_some(rows)
    }

    /// Returns the number of leading tokens that are of text, or of pictures that are held.
    pub(crate) fn known(&self, tokens: &[u32]) -> usize {
        let is_known = |token: &&u32| !is_of_picture(**token) || self.rows_with(**token).is_some();
        tokens.iter().take_while(is_known).count()
    }

    /// Checks that the pictures among `tokens`, which follow the token `before`, are held and whole.
    pub(crate) fn check(&self, before: Option<u32>, tokens: &[u32]) -> Result<()> {
        let mut expected = before.and_then(|token| self.next(token));
        for token in tokens {
            let begins = self.rows_with(*token).map(|rows| rows.first);
            if expected.is_some_and(|expected| expected != *token)
                || expected.is_none() && is_of_picture(*token) && begins != Some(*token)
            {
                return Err(Error::Picture(
                    "a prompt has some rows of a picture, expected all of them in order, of a picture that the session holds"
                        .into(),
                ));
            }
            expected = self.next(*token);
        }
        match expected {
            None => Ok(()),
            Some(_) => Err(Error::Picture(
                "a prompt ends within a picture, expected all of its rows".into(),
            )),
        }
    }

    /// Returns the token that has to follow one in a picture.
    fn next(&self, token: u32) -> Option<u32> {
        let rows = self.rows_with(token)?;
        Some(token + 1).filter(|next| rows.tokens().contains(next))
    }

    /// Returns where `tokens` are that follow the session's, `before`. Of these it reads only those that are new since the
    /// latest call.
    pub(crate) fn layout(&mut self, before: &[u32], tokens: &[u32], has_axes: bool) -> Layout {
        if self.pictures.is_empty() {
            return Layout::default();
        }
        while let Some(token) = before.get(self.known.tokens) {
            let (count, positions) = self.extent(*token);
            if self.known.tokens + count > before.len() {
                break;
            }
            self.known.tokens += count;
            self.known.position += positions;
        }
        self.layout_from(self.known, (before, tokens), has_axes)
    }

    /// Returns where the `tokens` are that the session computes again after `before`.
    pub(crate) fn layout_again(&self, before: &[u32], tokens: &[u32], has_axes: bool) -> Layout {
        match self.pictures.is_empty() {
            true => Layout::default(),
            false => self.layout_from(Place::default(), (before, tokens), has_axes),
        }
    }

    /// Returns the tokens and the positions of RoPE of the picture that begins with `token`, or of a token of text.
    fn extent(&self, token: u32) -> (usize, usize) {
        match self.rows_with(token) {
            Some(rows) => (rows.rows(), rows.cells[0].max(rows.cells[1])),
            None => (1, 1),
        }
    }

    fn layout_from(
        &self,
        place: Place,
        (before, tokens): (&[u32], &[u32]),
        has_axes: bool,
    ) -> Layout {
        let mut layout = Layout::default();
        let (first, end) = (before.len(), before.len() + tokens.len());
        let (mut at, mut next) = (place.tokens, place.position);
        while at < end {
            let token = before.get(at).unwrap_or_else(|| &tokens[at - first]);
            let (count, positions) = self.extent(*token);
            let count = count.min(end - at);
            let Some(rows) = self.rows_with(*token) else {
                if has_axes && at >= first {
                    layout.axes.push([next; 3]);
                }
                (at, next) = (at + count, next + positions);
                continue;
            };
            if rows.together != Together::No && at + count > first {
                layout.together.push(at..at + count);
                layout.in_windows = rows.together == Together::InWindows;
            }
            if has_axes {
                let wide = rows.cells[1];
                let of_rows = (0..count).skip(first.saturating_sub(at));
                let place = |row: usize| [next, next + row / wide, next + row % wide];
                layout.axes.extend(of_rows.map(place));
            }
            (at, next) = (at + count, next + positions);
        }
        layout
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a session's pictures with one of 2 × 3 rows from `FIRST` on.
    fn held(together: Together) -> Held {
        let mut held = Held::default();
        held.add(&Picture(Arc::new(PictureRows {
            first: FIRST,
            cells: [2, 3],
            row_len: 1,
            values: vec![0.0; 6],
            together,
            id: PictureId([0; 32]),
        })));
        held
    }

    /// Text, the picture, text.
    fn prompt() -> Vec<u32> {
        let picture = FIRST..FIRST + 6;
        [1, 2].into_iter().chain(picture).chain([3; 20]).collect()
    }

    #[test]
    fn steps_get_the_layout_of_one_request_and_read_no_token_twice() {
        let tokens = prompt();
        let whole = held(Together::Everywhere).layout(&[], &tokens, true);
        assert_eq!(whole.axes.len(), tokens.len());
        assert_eq!(
            whole.axes[2..9],
            [
                [2, 2, 2],
                [2, 2, 3],
                [2, 2, 4],
                [2, 3, 2],
                [2, 3, 3],
                [2, 3, 4],
                [5; 3]
            ]
        );
        for split in [2, 5, 8, 9] {
            let mut held = held(Together::Everywhere);
            let mut axes = held.layout(&[], &tokens[..split], true).axes;
            let rest = held.layout(&tokens[..split], &tokens[split..], true);
            axes.extend(&rest.axes);
            assert_eq!(axes, whole.axes, "{split}");
            let expected: Vec<_> = (split < 8).then_some(2..8).into_iter().collect();
            assert_eq!(rest.together, expected, "{split}");
            let again = held.layout_again(&tokens[..split], &tokens[split..], true);
            assert_eq!(again, rest);
        }
        let mut held = held(Together::Everywhere);
        for at in 8..tokens.len() {
            let step = held.layout(&tokens[..at], &tokens[at..=at], true);
            assert_eq!(step.axes, [whole.axes[at]]);
            assert_eq!(held.known.tokens, at);
        }
        // Other tokens take the place of those that the session forgets.
        held.truncate(1);
        let other = [1; 9];
        let step = held.layout(&other[..8], &other[8..], true);
        assert_eq!(step.axes, [[8; 3]]);
    }

    #[test]
    fn a_session_drops_the_pictures_that_its_prompt_does_not_have() {
        let mut held = held(Together::No);
        held.retain(&prompt());
        assert_eq!(held.known(&prompt()), prompt().len());
        held.retain(&[1, 2]);
        assert_eq!(held.known(&prompt()), 2);
    }
}
