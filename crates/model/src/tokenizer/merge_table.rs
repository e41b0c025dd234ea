//! The merges of a vocabulary that states them in order, as `merges` of GPT-2 and Gemma 4 do.

use hashbrown::HashMap;

use super::limit::Limit;
use super::merge::{Merge, Merger, Symbol};
use crate::error::{Error, ErrorKind, Result};

/// The result of merging each pair of tokens.
pub(super) struct MergeTable {
    merges: HashMap<(u32, u32), Merge>,
}

impl MergeTable {
    /// Creates the table. `merges` are pairs of pieces separated by a space, best first; `id` returns the token of a
    /// piece; errors use `field` as the name of `merges`.
    pub(super) fn new(
        merges: &[String],
        id: impl Fn(&str) -> Option<u32>,
        field: &str,
    ) -> Result<Self> {
        let mut table = HashMap::with_capacity(merges.len());
        let mut merged = String::new();
        for (priority, merge) in (0u32..).zip(merges) {
            let malformed = |what: &str| {
                Error::new(
                    ErrorKind::Malformed,
                    format!("{field}[{priority}] is {merge:?}, {what}"),
                )
            };
            let (left, right) = merge
                .split_once(' ')
                .filter(|(left, right)| {
                    !left.is_empty() && !right.is_empty() && !right.contains(' ')
                })
                .ok_or_else(|| malformed("expected two pieces separated by one space"))?;
            merged.clear();
            merged.push_str(left);
            merged.push_str(right);
            let known =
                |piece| id(piece).ok_or_else(|| malformed(&format!("but no token is {piece:?}")));
            let merge = Merge {
                priority,
                id: known(&merged)?,
            };
            table.entry((known(left)?, known(right)?)).or_insert(merge);
        }
        Ok(Self { merges: table })
    }

    /// Merges the symbols in `merger`, unless `limit` stops it; returns the remaining ones, first to last.
    pub(super) fn merge<'a>(
        &'a self,
        merger: &'a mut Merger,
        limit: &Limit,
    ) -> impl Iterator<Item = &'a Symbol> {
        let find = |left: &Symbol, right: &Symbol| self.merges.get(&(left.id, right.id)).copied();
        merger.merge(find, limit)
    }
}
