//! Decodes tokens to text, one at a time.

use super::{TokenKind, Tokenizer};

/// Decodes tokens as they arrive, character by character: the concatenation of the texts of [`push`](Self::push) and
/// [`finish`](Self::finish) is the result of [`Tokenizer::decode`] for all tokens.
pub struct DecodeStream<'a> {
    tokenizer: &'a Tokenizer,
    /// Bytes of an incomplete character.
    pending: Vec<u8>,
    /// Whether the next space is the one that encoding put before the text.
    drops_space: bool,
    /// Control tokens whose names are a part of the text.
    spelled: &'a [u32],
    /// Whether the names of all control tokens are a part of the text.
    spells_all: bool,
}

impl<'a> DecodeStream<'a> {
    pub(super) fn new(tokenizer: &'a Tokenizer, drops_space: bool) -> Self {
        Self {
            tokenizer,
            pending: Vec::new(),
            drops_space,
            spelled: &[],
            spells_all: false,
        }
    }

    /// Makes the names of all control tokens a part of the text.
    #[must_use]
    pub(super) fn spelling_all(self) -> Self {
        Self {
            spells_all: true,
            ..self
        }
    }

    /// Makes the names of these control tokens a part of the text.
    #[must_use]
    pub fn spelling(self, tokens: &'a [u32]) -> Self {
        Self {
            spelled: tokens,
            ..self
        }
    }

    /// Returns the characters that `token` completes, if there are any. Bytes that can't become a character are U+FFFD.
    pub fn push(&mut self, token: u32) -> Option<String> {
        self.append(token);
        let complete = complete_length(&self.pending);
        if complete == 0 {
            return None;
        }
        let text = String::from_utf8_lossy(&self.pending[..complete]).into_owned();
        self.pending.drain(..complete);
        Some(text)
    }

    /// Returns the rest: empty, or U+FFFD for an incomplete character.
    pub fn finish(self) -> String {
        String::from_utf8_lossy(&self.pending).into_owned()
    }

    /// Adds `token` without looking for characters, for callers that decode everything at once.
    pub(super) fn append(&mut self, token: u32) {
        let start = self.pending.len();
        let is_spelled = self.spells_all || self.spelled.contains(&token);
        if is_spelled && self.tokenizer.token_kind(token) == TokenKind::Control {
            let name = self.tokenizer.piece(token).unwrap_or_default();
            self.pending.extend_from_slice(name.as_bytes());
            return;
        }
        self.tokenizer
            .vocabulary
            .append_bytes(token, &mut self.pending);
        if self.drops_space && self.pending.len() > start {
            self.drops_space = false;
            // A user-defined token gets no space before it: one at its start is part of the text.
            if self.pending[start] == b' ' && self.tokenizer.token_kind(token) == TokenKind::Normal
            {
                self.pending.remove(start);
            }
        }
    }
}

/// Returns how many leading bytes can be decoded now: all except a character that is incomplete at the end.
fn complete_length(bytes: &[u8]) -> usize {
    let last = bytes.utf8_chunks().last();
    let invalid = last.map_or(&[][..], |chunk| chunk.invalid());
    let valid = bytes.len() - invalid.len();
    match std::str::from_utf8(invalid) {
        // No error length: the bytes end before it is clear whether they are a character.
        Err(error) if error.error_len().is_none() => valid,
        _ => bytes.len(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_beginning_of_a_character_waits() {
        let emoji = "🙂".as_bytes();
        for length in 1..4 {
            assert_eq!(complete_length(&emoji[..length]), 0);
        }
        assert_eq!(complete_length(emoji), 4);
        assert_eq!(complete_length(b"ab\xf0\x9f"), 2);
        assert_eq!(complete_length(b"\x80"), 1);
        assert_eq!(complete_length(b"\xf0\x9fa"), 3);
        assert_eq!(complete_length(b""), 0);
    }
}
