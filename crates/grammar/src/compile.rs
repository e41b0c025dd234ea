//! From a text to a parser, within bounds of time, memory and stack.

use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use llguidance::api::{GrammarWithLexer, ParserLimits, TopLevelGrammar};
use llguidance::{Matcher, ParserFactory};

use crate::error::{Error, Result};
use crate::kind::Kind;
use crate::source::{GrammarSource, schema};

/// A grammar in use takes milliseconds, the largest a second.
const LONGEST: Duration = Duration::from_secs(10);
/// Compilers that run at once. One that nobody waits for any more goes on, since nothing can end it.
const MOST_COMPILERS: usize = 8;
/// Stack of a compiler in bytes: it recurses as deep as the text is, and once for each of a schema's properties. Only what is
/// used of it becomes memory.
const STACK: usize = 1 << 25;

/// Compilers that run.
static COMPILERS: Mutex<usize> = Mutex::new(0);
static ENDED: Condvar = Condvar::new();

/// Counts a compiler for as long as it is there.
struct Counted;

impl Counted {
    /// Waits until there are fewer than the most.
    fn new() -> Result<Self> {
        let compilers = COMPILERS.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = ENDED.wait_timeout_while(compilers, LONGEST, |count| *count >= MOST_COMPILERS);
        let (mut compilers, waited) = waited.unwrap_or_else(PoisonError::into_inner);
        if waited.timed_out() {
            return Err(Error::Busy { count: *compilers });
        }
        *compilers += 1;
        Ok(Self)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        *COMPILERS.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        ENDED.notify_one();
    }
}

/// What a parser may take: of a grammar's size, and of each mask in time.
pub(crate) fn limits() -> ParserLimits {
    ParserLimits {
        verbose_errors: false,
        ..ParserLimits::default()
    }
}

/// The parser of `source` at its beginning.
///
/// # Errors
/// If the text has a mistake, holds what is not supported, or exceeds a limit.
pub(crate) fn compile(factory: &Arc<ParserFactory>, source: &GrammarSource) -> Result<Matcher> {
    source.check()?;
    let kind = source.kind();
    let failed = |problem: String| Error::Unsupported { kind, problem };
    let grammar = match source {
        GrammarSource::JsonSchema(text) => GrammarWithLexer::from_json_schema(schema(text)?),
        GrammarSource::JsonObject => {
            GrammarWithLexer::from_json_schema(schema(r#"{"type": "object"}"#)?)
        }
        GrammarSource::Regex(text) => GrammarWithLexer::from_regex(text),
        GrammarSource::Lark(text) => GrammarWithLexer::from_lark(text.clone()),
    };
    let counted = Counted::new()?;
    let (result, compiled) = sync_channel(1);
    let factory = Arc::clone(factory);
    let run = move || {
        let parser = factory.create_parser(TopLevelGrammar::from_grammar(grammar));
        let matcher = parser.map(|parser| Matcher::new(Ok(parser)));
        drop(counted);
        // Nobody may wait for it any more.
        let _ = result.send(matcher);
    };
    let thread = thread::Builder::new()
        .name("grammar".into())
        .stack_size(STACK)
        .spawn(run);
    thread.map_err(|error| Error::NoThread {
        problem: error.to_string(),
    })?;
    let matcher = match compiled.recv_timeout(LONGEST) {
        Ok(matcher) => matcher.map_err(|error| failed(problem(kind, &format!("{error:#}"))))?,
        Err(RecvTimeoutError::Timeout) => {
            return Err(Error::TooSlow {
                kind,
                limit: LONGEST,
            });
        }
        Err(RecvTimeoutError::Disconnected) => {
            return Err(failed("the compiler cannot process it".into()));
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
