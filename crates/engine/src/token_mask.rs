//! A set of tokens.

/// The number of bits of a word.
const BITS: usize = u32::BITS as usize;

/// The tokens that may come next, one bit each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenMask {
    /// Token `t` is bit `t % 32` of word `t / 32`.
    words: Vec<u32>,
}

impl TokenMask {
    /// Creates a mask from one bit for each token: token `t` is bit `t % 32`, counted from the lowest, of word
    /// `t / 32`. Tokens after the last word are not in the mask.
    pub fn from_words(words: Vec<u32>) -> Self {
        Self { words }
    }

    /// Creates a mask of all tokens below `vocab`.
    pub fn all(vocab: usize) -> Self {
        let mut words = vec![u32::MAX; vocab / BITS];
        words.extend((!vocab.is_multiple_of(BITS)).then(|| (1 << (vocab % BITS)) - 1));
        Self { words }
    }

    /// Adds `token` to the mask.
    pub fn insert(&mut self, token: u32) {
        let word = token as usize / BITS;
        if self.words.len() <= word {
            self.words.resize(word + 1, 0);
        }
        self.words[word] |= 1 << (token as usize % BITS);
    }

    /// Removes `token` from the mask.
    pub fn remove(&mut self, token: u32) {
        if let Some(word) = self.words.get_mut(token as usize / BITS) {
            *word &= !(1 << (token as usize % BITS));
        }
    }

    /// Returns whether `token` is in the mask.
    pub fn allows(&self, token: u32) -> bool {
        let word = self.words.get(token as usize / BITS);
        word.is_some_and(|word| word >> (token as usize % BITS) & 1 == 1)
    }

    /// Returns the number of tokens below `vocab` in the mask.
    pub fn count(&self, vocab: usize) -> usize {
        (0..vocab as u32)
            .filter(|token| self.allows(*token))
            .count()
    }

    /// Returns whether the mask has no token below `vocab`.
    pub(crate) fn is_empty(&self, vocab: usize) -> bool {
        let (whole, rest) = (vocab / BITS, vocab % BITS);
        let is_zero = self.words.iter().take(whole).all(|word| *word == 0);
        is_zero
            && self
                .words
                .get(whole)
                .is_none_or(|word| word & ((1 << rest) - 1) == 0)
    }
}

impl FromIterator<u32> for TokenMask {
    fn from_iter<T: IntoIterator<Item = u32>>(tokens: T) -> Self {
        let mut mask = Self::default();
        tokens.into_iter().for_each(|token| mask.insert(token));
        mask
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_has_the_tokens_that_it_was_made_of_and_no_others() {
        let tokens = [0, 31, 32, 63, 64, 100];
        let mask: TokenMask = tokens.into_iter().collect();
        assert!((0..200).all(|token| mask.allows(token) == tokens.contains(&token)));
        assert_eq!((mask.count(200), mask.count(64), mask.count(63)), (6, 4, 3));
    }

    #[test]
    fn a_mask_of_all_tokens_ends_with_the_vocabulary_and_loses_what_is_removed() {
        for vocab in [0, 1, 31, 32, 33, 64] {
            let mask = TokenMask::all(vocab);
            assert!((0..200).all(|token| mask.allows(token) == ((token as usize) < vocab)));
        }
        let mut mask = TokenMask::all(40);
        mask.remove(33);
        mask.remove(500);
        mask.insert(70);
        assert!(!mask.allows(33) && mask.allows(32) && mask.allows(70) && !mask.allows(69));
    }

    #[test]
    fn a_mask_is_empty_for_a_vocabulary_that_has_none_of_its_tokens() {
        let mask: TokenMask = [40, 64].into_iter().collect();
        for (vocab, is_empty) in [
            (0, true),
            (32, true),
            (40, true),
            (41, false),
            (64, false),
            (1000, false),
        ] {
            assert_eq!(mask.is_empty(vocab), is_empty, "{vocab}");
        }
        assert!(TokenMask::default().is_empty(100));
    }
}
