//! Reasoning is separated however the text is split, and its form bounds it.

use std::path::Path;

use triad_model::tokenizer::Tokenizer;

use super::ReasoningDelta::{Answer, Reasoning as Thought};
use super::*;

fn tokenizer() -> Tokenizer {
    let folder =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/tokenizer/bpe-gpt-2");
    Tokenizer::from_folder(&folder, None, &[1001]).unwrap()
}

fn think() -> Reasoning {
    Reasoning::of_model(Some("</think>"), &tokenizer()).unwrap()
}

/// Returns the merged pieces of `answer`, which arrives in pieces of `size` characters.
fn pieces(is_open: bool, answer: &str, size: usize) -> Vec<ReasoningDelta> {
    let mut reader = ReasoningReader::new(think(), is_open);
    let letters: Vec<char> = answer.chars().collect();
    let pieces = letters
        .chunks(size)
        .map(|piece| piece.iter().collect::<String>());
    let mut all: Vec<_> = pieces.flat_map(|piece| reader.push(&piece)).collect();
    all.extend(reader.finish());
    let mut merged = Vec::<ReasoningDelta>::new();
    for piece in all {
        match (merged.last_mut(), piece) {
            (Some(Thought(before)), Thought(more)) | (Some(Answer(before)), Answer(more)) => {
                *before += &more;
            }
            (_, piece) => merged.push(piece),
        }
    }
    merged
}

#[test]
fn reasoning_is_apart_from_the_answer_and_white_space_around_it_is_dropped() {
    let thought = || Thought("hm\n\n< so".into());
    for size in [1, 2, 3, 7, 1000] {
        let both = [thought(), Answer("Yes.\n".into())];
        for answer in [
            "<think>\nhm\n\n< so\n</think>\n\nYes.\n",
            "\n<think>hm\n\n< so</think>Yes.\n",
        ] {
            assert_eq!(pieces(false, answer, size), both, "{answer}");
        }
        // The prompt has opened it; some models repeat the word.
        assert_eq!(pieces(true, "hm\n\n< so</think>\n\nYes.\n", size), both);
        assert_eq!(
            pieces(true, "\n<think>\nhm\n\n< so</think>\n\nYes.\n", size),
            both
        );
        // Reasoning that is cut off, and none.
        assert_eq!(
            pieces(true, "hm\n\n< so\n</thi", size),
            [Thought("hm\n\n< so\n</thi".into())]
        );
        assert_eq!(
            pieces(false, "<think>\n\n</think>\n\nYes.", size),
            [Answer("Yes.".into())]
        );
        assert_eq!(
            pieces(false, " Yes <think>", size),
            [Answer(" Yes <think>".into())]
        );
        assert_eq!(pieces(false, "<thin", size), [Answer("<thin".into())]);
    }
}

#[test]
fn the_words_are_those_of_the_template_or_the_vocabulary() {
    let tokenizer = tokenizer();
    let of = |template: Option<&str>| Reasoning::of_model(template, &tokenizer);
    assert_eq!(of(Some("{{ messages }}")), None);
    assert_eq!(of(None), None);
    for (open, close) in WORDS {
        let template = format!("{{% if '{close}' in content %}}");
        let words = of(Some(&template)).unwrap();
        assert_eq!((words.open, words.close), (open, close));
    }
    assert!(
        of(Some("<|channel|>analysis<|message|>"))
            .unwrap()
            .has_channels()
    );
}

#[test]
fn a_prompt_tells_whether_the_answer_begins_within_reasoning() {
    let words = think();
    assert!(words.opens_at_end_of("<|assistant|><think>\n"));
    assert!(!words.opens_at_end_of("<think>\n\n</think>\n\n"));
    assert!(words.closes_at_end_of("<think>\n\n</think>\n\n"));
    assert!(words.is_open_after("<think>\nhm") && !words.is_open_after("<think>hm</think>Y"));
    assert!(!words.is_open_after("Yes"));
}
