//! Masks are compared with an independent automaton, for every token.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use regex_automata::dfa::{Automaton, StartKind, dense};
use regex_automata::util::primitives::StateID;
use regex_automata::util::syntax;
use regex_automata::{Anchored, Input, MatchKind};
use triad_engine::constraint::Constraint;
use triad_grammar::GrammarSource;

use crate::{byte_level, golden, grammars};

struct Reference {
    automaton: dense::DFA<Vec<u32>>,
}

impl Reference {
    fn new(regex: &str) -> Self {
        let config = dense::Config::new()
            .match_kind(MatchKind::All)
            .start_kind(StartKind::Anchored);
        let syntax = syntax::Config::new().dot_matches_new_line(false);
        Self {
            automaton: dense::Builder::new()
                .configure(config)
                .syntax(syntax)
                .build(regex)
                .unwrap(),
        }
    }

    fn start(&self) -> StateID {
        self.automaton
            .start_state_forward(&Input::new("").anchored(Anchored::Yes))
            .unwrap()
    }

    /// Returns the state after `bytes`, or `None` if no matching text starts with them.
    fn follow(&self, state: StateID, bytes: &[u8]) -> Option<StateID> {
        let end = bytes
            .iter()
            .fold(state, |state, byte| self.automaton.next_state(state, *byte));
        // A match is visible one byte later: a state that only matches leads to the dead state.
        (!self.automaton.is_dead_state(end) && self.may_match(end)).then_some(end)
    }

    fn matches(&self, state: StateID) -> bool {
        self.automaton
            .is_match_state(self.automaton.next_eoi_state(state))
    }

    /// Returns whether any continuation of `state` matches.
    fn may_match(&self, state: StateID) -> bool {
        let (mut seen, mut open) = (vec![state], vec![state]);
        while let Some(state) = open.pop() {
            if self.matches(state) {
                return true;
            }
            for byte in 0..=255 {
                let next = self.automaton.next_state(state, byte);
                if !self.automaton.is_dead_state(next) && !seen.contains(&next) {
                    seen.push(next);
                    open.push(next);
                }
            }
        }
        false
    }
}

const REGEXES: [&str; 12] = [
    "a",
    "(a|ab|abc){1,3}d?",
    "[ab]{0,4}c",
    "x(yz?)*w",
    "[0-9]{1,3}(\\.[0-9]{1,3}){3}",
    "(true|false|null)?",
    "-?(0|[1-9][0-9]*)(\\.[0-9]+)?",
    "[^a-z]{2}",
    "[α-ω]+!?",
    "the (cat|dog|catalogue) (sat|is)",
    "\"([^\"\\\\]|\\\\.)*\"",
    "(the |of |and ){2,4}end",
];

#[test]
fn a_mask_has_exactly_the_tokens_after_which_the_expression_can_still_match() {
    for tokenizer in [byte_level(), golden("spm-no-prefix")] {
        let grammars = grammars(&tokenizer);
        let ends = tokenizer.end_tokens();
        let (mut compared, mut random) = (0, ChaCha8Rng::seed_from_u64(1));
        for regex in REGEXES {
            // Allow all tokenizations of a text, not only the tokenizer's own.
            let source = GrammarSource::Lark(format!(
                "%llguidance {{\"no_forcing\": true}}\nstart: /{regex}/"
            ));
            let grammar = grammars.compile(&source).unwrap();
            let reference = Reference::new(regex);
            for _ in 0..20 {
                let (mut constraint, mut state) = (grammar.begin(), reference.start());
                for _ in 0..12 {
                    if constraint.is_complete() {
                        assert!(reference.matches(state), "{regex}");
                        break;
                    }
                    let Ok(mask) = constraint.mask() else {
                        // The SentencePiece vocabulary lacks the required character.
                        assert!(tokenizer.id("Ġ").is_none(), "{regex}");
                        break;
                    };
                    let mut allowed = Vec::new();
                    for token in 0..tokenizer.vocab_size() as u32 {
                        let bytes = tokenizer.bytes(token);
                        let expected = if ends.contains(&token) {
                            reference.matches(state)
                        } else {
                            !bytes.is_empty() && reference.follow(state, &bytes).is_some()
                        };
                        assert_eq!(
                            mask.allows(token),
                            expected,
                            "{regex}: token {token}, {:?}",
                            tokenizer.piece(token)
                        );
                        compared += 1;
                        if expected && !ends.contains(&token) {
                            allowed.push(token);
                        }
                    }
                    let Some(next) = allowed.get(random.next_u32() as usize % allowed.len().max(1))
                    else {
                        break;
                    };
                    assert_eq!(constraint.allowed(&[*next]).unwrap(), 1);
                    constraint.accept(*next).unwrap();
                    state = reference.follow(state, &tokenizer.bytes(*next)).unwrap();
                }
            }
        }
        assert!(compared > 100_000, "{compared}");
    }
}

#[test]
fn what_is_taken_back_was_never_there() {
    let tokenizer = byte_level();
    let grammars = grammars(&tokenizer);
    let mut random = ChaCha8Rng::seed_from_u64(2);
    let schema = r#"{"type": "object", "properties": {"a": {"type": "array", "items": {"type": "number"}},
        "b": {"type": "string", "maxLength": 9}}, "required": ["a", "b"]}"#;
    for source in [
        GrammarSource::JsonSchema(schema.into()),
        GrammarSource::Regex("(the |of |and ){2,9}end".into()),
    ] {
        let grammar = grammars.compile(&source).unwrap();
        for _ in 0..60 {
            let (mut one, mut other) = (grammar.begin(), grammar.begin());
            for _ in 0..25 {
                if one.is_complete() {
                    break;
                }
                let count = random.next_u32() as usize % 5;
                let mut taken = 0;
                while taken < count && !one.is_complete() {
                    let token = any(&one.mask().unwrap(), tokenizer.vocab_size(), &mut random);
                    one.accept(token).unwrap();
                    taken += 1;
                }
                one.take_back(taken).unwrap();
                assert_eq!(one.forced().unwrap(), other.forced().unwrap());
                assert_eq!(one.may_end(), other.may_end());
                let mask = one.mask().unwrap();
                assert_eq!(mask, other.mask().unwrap());
                let token = any(&mask, tokenizer.vocab_size(), &mut random);
                one.accept(token).unwrap();
                other.accept(token).unwrap();
            }
        }
    }
}

fn any(mask: &triad_engine::constraint::TokenMask, vocab: usize, random: &mut ChaCha8Rng) -> u32 {
    let allowed: Vec<_> = (0..vocab as u32)
        .filter(|token| mask.allows(*token))
        .collect();
    allowed[random.next_u32() as usize % allowed.len()]
}
