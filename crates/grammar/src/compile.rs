//! Compilation of a source to a parser, within limits of time, memory and stack.

use std::collections::BTreeMap;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use llguidance::api::{GrammarWithLexer, ParserLimits, TopLevelGrammar};
use llguidance::{Matcher, ParserFactory};
use toktrie::TokEnv;
use triad_engine::Cancel;

use crate::error::{Error, Result};
use crate::kind::Kind;
use crate::patterns;
use crate::source::{GrammarSource, exact_lark, schema};

/// Time limit of a compilation. Typical grammars take milliseconds, the largest ones a second.
const LONGEST: Duration = Duration::from_secs(10);
/// Interval at which a compilation checks for cancellation.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Maximum number of concurrent compilers. A compiler whose result is no longer awaited continues, since it can't be
/// stopped.
const MAX_COMPILERS: usize = 8;
/// Maximum number of concurrent compilers per owner, which leaves the others to other owners.
const MAX_OF_OWNER: usize = MAX_COMPILERS / 2;
/// Stack of a compiler thread in bytes. The compiler recurses for each level of nesting, and for each property of a
/// schema. Only the used part of the stack takes memory.
const STACK: usize = 1 << 25;

/// The number of running compilers of each owner.
static COMPILERS: Mutex<BTreeMap<[u8; 32], usize>> = Mutex::new(BTreeMap::new());
static ENDED: Condvar = Condvar::new();

fn compilers() -> MutexGuard<'static, BTreeMap<[u8; 32], usize>> {
    COMPILERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A guard that counts a running compiler of an owner.
#[derive(Debug)]
struct Counted([u8; 32]);

impl Counted {
    /// Waits until the number of compilers is below the limits, in total and for `owner`.
    fn new(owner: [u8; 32], cancel: &Cancel) -> Result<Self> {
        let start = Instant::now();
        let mut compilers = compilers();
        loop {
            let (all, own) = (
                compilers.values().sum(),
                compilers.get(&owner).copied().unwrap_or(0),
            );
            if all < MAX_COMPILERS && own < MAX_OF_OWNER {
                compilers.insert(owner, own + 1);
                return Ok(Self(owner));
            }
            if start.elapsed() > LONGEST {
                return Err(Error::Busy { count: all });
            }
            if cancel.is_cancelled() {
                return Err(Error::Cancelled);
            }
            let waited = ENDED.wait_timeout(compilers, POLL_INTERVAL);
            compilers = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut compilers = compilers();
        match compilers.get_mut(&self.0) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(compilers.remove(&self.0)),
        }
        ENDED.notify_all();
    }
}

/// Returns the parser's limits on the size of grammars and on the work per mask.
fn limits() -> ParserLimits {
    ParserLimits {
        verbose_errors: false,
        // Precomputation would iterate over the vocabulary for each large lexeme, in a compilation that can't be
        // cancelled. Masks do this work on demand and can be cancelled.
        precompute_large_lexemes: false,
        ..ParserLimits::default()
    }
}

/// Returns the compiler of grammars for the tokens of `environment`.
///
/// # Errors
/// If the compiler does not support one of the tokens.
pub(crate) fn factory(environment: &TokEnv) -> Result<Arc<ParserFactory>> {
    let mut factory = ParserFactory::new_simple(environment).map_err(|error| Error::Tokenizer {
        problem: error.to_string(),
    })?;
    factory.quiet();
    *factory.limits_mut() = limits();
    Ok(Arc::new(factory))
}

/// Checks and parses `source`.
///
/// # Errors
/// If the text exceeds a limit of length, depth or number of parts, or is not valid JSON where required.
pub(crate) fn read(source: &GrammarSource) -> Result<GrammarWithLexer> {
    source.check()?;
    Ok(match source {
        GrammarSource::JsonSchema(text) => GrammarWithLexer::from_json_schema(schema(text)?),
        GrammarSource::JsonObject => {
            GrammarWithLexer::from_json_schema(schema(r#"{"type": "object"}"#)?)
        }
        GrammarSource::Regex(text) => {
            GrammarWithLexer::from_regex(&llguidance::regex_to_lark(text, patterns::ASCII))
        }
        GrammarSource::Lark(text) => GrammarWithLexer::from_lark(exact_lark(text)?),
    })
}

/// Compiles `grammar` for `owner` and returns its parser in the initial state.
///
/// # Errors
/// If the grammar is invalid, unsupported, or exceeds a limit, or if `cancel` is set.
pub(crate) fn compile(
    factory: &Arc<ParserFactory>,
    (kind, grammar): (Kind, GrammarWithLexer),
    owner: [u8; 32],
    cancel: &Cancel,
) -> Result<Matcher> {
    let failed = |problem: String| Error::Unsupported { kind, problem };
    let counted = Counted::new(owner, cancel)?;
    let (result, compiled) = sync_channel(1);
    let factory = Arc::clone(factory);
    let run = move || {
        let parser = factory.create_parser(TopLevelGrammar::from_grammar(grammar));
        let matcher = parser.map(|parser| Matcher::new(Ok(parser)));
        drop(counted);
        // The receiver may have timed out.
        let _ = result.send(matcher);
    };
    let thread = thread::Builder::new()
        .name("grammar".into())
        .stack_size(STACK)
        .spawn(run);
    thread.map_err(|error| Error::NoThread {
        problem: error.to_string(),
    })?;
    let start = Instant::now();
    let matcher = loop {
        match compiled.recv_timeout(POLL_INTERVAL) {
            Ok(matcher) => {
                break matcher.map_err(|error| failed(problem(kind, &format!("{error:#}"))))?;
            }
            Err(RecvTimeoutError::Timeout) if cancel.is_cancelled() => {
                return Err(Error::Cancelled);
            }
            Err(RecvTimeoutError::Timeout) if start.elapsed() > LONGEST => {
                let limit = LONGEST;
                return Err(Error::TooSlow { kind, limit });
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                return Err(failed("the compiler cannot process it".into()));
            }
        }
    };
    match matcher.get_error() {
        Some(error) => Err(failed(problem(kind, &error))),
        None => Ok(matcher),
    }
}

/// Returns the user-readable part of one of llguidance's messages.
pub(crate) fn problem(kind: Kind, message: &str) -> String {
    let end = ["\n<", "<backtrace>"]
        .iter()
        .filter_map(|mark| message.find(mark))
        .min();
    let message = message[..end.unwrap_or(message.len())].trim();
    let message = match message.strip_prefix("Unimplemented keys: ") {
        Some(keys) if kind == Kind::JsonSchema => {
            format!("keywords that are not supported: {keys}")
        }
        _ => message.to_owned(),
    };
    let mut lines = message
        .lines()
        .map(str::trim_end)
        .filter(|line| !line.is_empty());
    lines.by_ref().take(6).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_has_half_of_the_places_and_the_rest_is_left_to_others() {
        let none = Cancel::new();
        let place = |owner, cancel: &Cancel| Counted::new([owner; 32], cancel);
        let gone = Cancel::new();
        gone.cancel();
        let _of_first: Vec<_> = (0..MAX_OF_OWNER)
            .map(|_| place(101, &none).unwrap())
            .collect();
        assert!(matches!(place(101, &gone), Err(Error::Cancelled)));
        let of_second = place(102, &none).unwrap();
        drop(of_second);
        assert!(!compilers().contains_key(&[102; 32]));
    }
}
