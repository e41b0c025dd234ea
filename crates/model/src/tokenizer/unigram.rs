//! SentencePiece's unigram model: selects the split of a word into pieces with the highest sum of scores.

use super::limit::{Limit, STEPS};
use super::vocabulary::Vocabulary;

/// An unknown character scores this much less than the worst piece.
const UNKNOWN_PENALTY: f32 = 10.0;

/// The limits of the search, from the vocabulary.
pub(super) struct Limits {
    /// Bytes of the longest piece.
    longest: usize,
    /// Score of a character without a piece.
    unknown_score: f32,
}

impl Limits {
    pub(super) fn new(vocabulary: &Vocabulary, scores: &[f32]) -> Self {
        let pieces = (0u32..).zip(scores).filter(|(_, score)| score.is_finite());
        let (longest, lowest) =
            pieces.fold((0, 0.0), |(longest, lowest): (usize, f32), (id, &score)| {
                (longest.max(vocabulary.piece(id).len()), lowest.min(score))
            });
        Self {
            longest,
            unknown_score: lowest - UNKNOWN_PENALTY,
        }
    }
}

/// The best split of the word up to a position.
#[derive(Clone, Copy)]
struct Path {
    /// The sum, rounded as in SentencePiece: among equally good splits of a run like `_____`, rounding decides.
    score: f32,
    /// Start of the last piece, and the piece; `None` for an unknown character.
    last: (usize, Option<u32>),
}

/// Returns the pieces of `word`, first to last, each with its text; `None` for an unknown character. Returns no list if
/// `limit` stops it. `scores` are negative infinity for tokens that are not pieces.
pub(super) fn best_pieces<'a>(
    vocabulary: &Vocabulary,
    scores: &[f32],
    limits: &Limits,
    (word, limit): (&'a str, &Limit),
) -> Vec<(Option<u32>, &'a str)> {
    let mut paths: Vec<Option<Path>> = vec![None; word.len() + 1];
    paths[0] = Some(Path {
        score: 0.0,
        last: (0, None),
    });
    for (index, (start, character)) in word.char_indices().enumerate() {
        if index % STEPS == STEPS - 1 && limit.stops() {
            return Vec::new();
        }
        let Some(Path { score: before, .. }) = paths[start] else {
            continue;
        };
        let mut offer = |end: usize, score: f32, id| {
            let path = &mut paths[end];
            if path.is_none_or(|path| score > path.score) {
                *path = Some(Path {
                    score,
                    last: (start, id),
                });
            }
        };
        let first_end = start + character.len_utf8();
        let ends = word[start..]
            .char_indices()
            .map(|(offset, character)| start + offset + character.len_utf8());
        let mut is_known = false;
        for end in ends.take_while(|end| end - start <= limits.longest) {
            let id = vocabulary
                .id(&word[start..end])
                .filter(|&id| scores[id as usize].is_finite());
            if let Some(id) = id {
                offer(end, before + scores[id as usize], Some(id));
                is_known |= end == first_end;
            }
        }
        if !is_known {
            offer(first_end, before + limits.unknown_score, None);
        }
    }
    let mut pieces = Vec::new();
    let mut end = word.len();
    while let (Some(path), true) = (paths[end], end > 0) {
        let (start, id) = path.last;
        pieces.push((id, &word[start..end]));
        end = start;
    }
    pieces.reverse();
    pieces
}
