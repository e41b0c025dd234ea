//! From a text to a parser, within bounds of time, memory and stack.

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
use crate::source::{GrammarSource, schema};

/// A grammar in use takes milliseconds, the largest a second.
const LONGEST: Duration = Duration::from_secs(10);
/// Time between two looks at whether a compile was cancelled.
const LOOK: Duration = Duration::from_millis(10);
/// Compilers that run at once. One whose result is no longer waited for goes on, since nothing can end it.
const MAX_COMPILERS: usize = 8;
/// Compilers of one owner that run at once: the others are left to other owners.
const MAX_OF_OWNER: usize = MAX_COMPILERS / 2;
/// Stack of a compiler in bytes: it recurses as deep as the text is, and once for each of a schema's properties. Only what is
/// used of it becomes memory.
const STACK: usize = 1 << 25;

/// Compilers that run, of each owner that has one.
static COMPILERS: Mutex<BTreeMap<[u8; 32], usize>> = Mutex::new(BTreeMap::new());
static ENDED: Condvar = Condvar::new();

fn compilers() -> MutexGuard<'static, BTreeMap<[u8; 32], usize>> {
    COMPILERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Counts a compiler of an owner for as long as it is there.
#[derive(Debug)]
struct Counted([u8; 32]);

impl Counted {
    /// Waits until there are fewer than the most, in all and of `owner`.
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
            let waited = ENDED.wait_timeout(compilers, LOOK);
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

/// Returns the limits of a parser: of a grammar's size, and of each mask in time.
fn limits() -> ParserLimits {
    ParserLimits {
        verbose_errors: false,
        // It would go through all tokens of the vocabulary for each large lexeme, in a compile that can't be ended. Masks go
        // through them as far as they need, and can be cancelled.
        precompute_large_lexemes: false,
        ..ParserLimits::default()
    }
}

/// Returns what compiles grammars for the tokens of `environment`.
///
/// # Errors
/// If there is an odd token among them.
pub(crate) fn factory(environment: &TokEnv) -> Result<Arc<ParserFactory>> {
    let mut factory = ParserFactory::new_simple(environment).map_err(|error| Error::Tokenizer {
        problem: error.to_string(),
    })?;
    factory.quiet();
    *factory.limits_mut() = limits();
    Ok(Arc::new(factory))
}

/// Reads `source`.
///
/// # Errors
/// If the text is too long, too deep or of too many parts, or is no JSON where it should be.
pub(crate) fn read(source: &GrammarSource) -> Result<GrammarWithLexer> {
    source.check()?;
    Ok(match source {
        GrammarSource::JsonSchema(text) => GrammarWithLexer::from_json_schema(schema(text)?),
        GrammarSource::JsonObject => {
            GrammarWithLexer::from_json_schema(schema(r#"{"type": "object"}"#)?)
        }
        GrammarSource::Regex(text) => GrammarWithLexer::from_regex(text),
        GrammarSource::Lark(text) => GrammarWithLexer::from_lark(text.clone()),
    })
}

/// Returns the parser of `grammar` at its beginning, for `owner`.
///
/// # Errors
/// If the text has a mistake, holds what is not supported, or exceeds a limit; if `cancel` is set.
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
        // The receiver may have given up.
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
        match compiled.recv_timeout(LOOK) {
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

/// A message of llguidance as far as it is for people.
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
