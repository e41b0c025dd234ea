//! Compiles a grammar in a process that can be ended, before this process does.
//!
//! A compiler can't be ended, and its memory isn't bounded: some grammars of a hundred bytes take minutes and gigabytes. So a
//! server gives a grammar that a client sent to a program first, which is [`answer`] as a process. That process has limits of
//! its own, and is killed when it takes too long or when the client leaves. What passes takes as long and as much here, since
//! compiling never goes through the tokens of a vocabulary: it only looks up names and numbers of tokens, which the process is
//! told.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use toktrie::{TokEnv, TokTrie};
use triad_engine::Cancel;

use crate::compile;
use crate::error::{Error, Result};
use crate::source::GrammarSource;
use crate::tokens;

/// Address space of a process in bytes. 165 MiB of it are reserved and not used; the largest grammars in use take 50 MiB more.
const MEMORY: u64 = 512 << 20;
/// A grammar in use takes milliseconds, the largest a second.
const TIME: Duration = Duration::from_secs(5);
/// Time between two looks at a process. It is shorter than the start of one.
const LOOK: Duration = Duration::from_millis(2);
/// The longest question: a source, which has at most 1 MiB and may double as JSON, and the names of tokens.
const MAX_QUESTION: u64 = 1 << 26;
/// The longest answer in bytes. A pipe holds so many, so that a process never waits for its reader.
const MAX_ANSWER: usize = 4096;

/// A program that compiles a grammar on its own, as [`answer`] does.
#[derive(Clone, Debug)]
pub struct Checker {
    program: PathBuf,
    arguments: Vec<OsString>,
    memory: u64,
    time: Duration,
}

impl Checker {
    /// Returns one that starts `program` with `arguments`.
    pub fn new(
        program: impl Into<PathBuf>,
        arguments: impl IntoIterator<Item = impl Into<OsString>>,
    ) -> Self {
        Self {
            program: program.into(),
            arguments: arguments.into_iter().map(Into::into).collect(),
            memory: MEMORY,
            time: TIME,
        }
    }

    /// Lets a process have `bytes` of address space, instead of 512 MiB.
    #[must_use]
    pub fn with_memory(self, bytes: u64) -> Self {
        Self {
            memory: bytes,
            ..self
        }
    }

    /// Lets a process take `time`, instead of five seconds.
    #[must_use]
    pub fn with_time(self, time: Duration) -> Self {
        Self { time, ..self }
    }

    /// Returns when `source` has been compiled by a process that knows the tokens of `vocabulary`.
    ///
    /// # Errors
    /// If it can't be compiled, takes too long or too much memory, or `cancel` is set; if there is no such process.
    pub(crate) fn check(
        &self,
        source: &GrammarSource,
        vocabulary: &Value,
        cancel: &Cancel,
    ) -> Result<()> {
        let kind = source.kind();
        let failed = |problem: String| Error::Checker { problem };
        let question = json!({
            "source": source.to_json(),
            "vocabulary": vocabulary,
            "memory": self.memory,
            "seconds": self.time.as_secs() + 1,
        });
        let mut child = self
            .start()
            .map_err(|error| failed(format!("it can't be started: {error}")))?;
        let (status, answer) = child
            .run(&question.to_string(), self.time, cancel)
            .map_err(|error| failed(error.to_string()))?;
        if cancel.is_cancelled() {
            return Err(Error::Cancelled);
        }
        let Some(status) = status.filter(|status| !is_crash(*status)) else {
            return Err(Error::TooCostly { kind });
        };
        // An answer that is not one of these passes nothing.
        match serde_json::from_slice::<Value>(&answer) {
            Ok(answer) if status.success() && answer["passes"] == true => Ok(()),
            Ok(answer) if status.success() && answer["is_costly"] == true => {
                Err(Error::TooCostly { kind })
            }
            Ok(answer) if status.success() && answer["problem"].is_string() => {
                let problem = answer["problem"].as_str().unwrap_or_default().to_owned();
                Err(Error::Unsupported { kind, problem })
            }
            _ => Err(failed(format!("it ended with {status}"))),
        }
    }

    fn start(&self) -> io::Result<Running> {
        let child = Command::new(&self.program)
            .args(&self.arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        child.map(Running)
    }
}

/// Whether a process was ended by the system, as one is that exceeds a limit, and not by itself.
fn is_crash(status: ExitStatus) -> bool {
    // An exception of Windows is a code with more than a byte.
    status.code().is_none_or(|code| !(0..256).contains(&code))
}

/// A process, which never outlives this value.
struct Running(Child);

impl Running {
    /// Asks `question`, and returns how the process ended and its answer; no end where it took longer than `time` or `cancel`
    /// was set.
    fn run(
        &mut self,
        question: &str,
        time: Duration,
        cancel: &Cancel,
    ) -> io::Result<(Option<ExitStatus>, Vec<u8>)> {
        let start = Instant::now();
        let (input, output) = (self.0.stdin.take(), self.0.stdout.take());
        thread::scope(|scope| {
            // A process that does not read would hold the writer: killing it ends the writer, too.
            let write = move || {
                let _ = input.map(|mut input| input.write_all(question.as_bytes()));
            };
            thread::Builder::new()
                .name("grammar question".into())
                .stack_size(64 << 10)
                .spawn_scoped(scope, write)
                .inspect_err(|_| self.end())?;
            let status = loop {
                match self.0.try_wait() {
                    Ok(None) if start.elapsed() < time && !cancel.is_cancelled() => {
                        thread::sleep(LOOK);
                    }
                    Ok(None) => {
                        self.end();
                        return Ok((None, Vec::new()));
                    }
                    Ok(Some(status)) => break status,
                    Err(error) => {
                        self.end();
                        return Err(error);
                    }
                }
            };
            let mut answer = Vec::new();
            if let Some(output) = output {
                output.take(MAX_ANSWER as u64).read_to_end(&mut answer)?;
            }
            Ok((Some(status), answer))
        })
    }

    /// Kills the process if it runs, and frees its place in the system's table.
    fn end(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}

/// Reads one question of a [`Checker`], limits this process as it says, compiles the grammar, and writes the answer. A
/// program does this alone in its process, which ends where a limit is exceeded.
///
/// # Errors
/// If `input` has no question, or `output` can't be written.
pub fn answer(input: impl Read, mut output: impl Write) -> io::Result<()> {
    let question: Value = serde_json::from_reader(input.take(MAX_QUESTION))?;
    let no_question = || io::Error::new(io::ErrorKind::InvalidData, "expected a grammar to check");
    let limit = |name: &str| question[name].as_u64().ok_or_else(no_question);
    limit_process(limit("memory")?, limit("seconds")?)?;
    let source = GrammarSource::from_json(&question["source"]).ok_or_else(no_question)?;
    let environment = tokens::told(&question["vocabulary"]).ok_or_else(no_question)?;
    let answer = match compile_alone(&environment, &source) {
        Ok(()) => json!({ "passes": true }),
        Err(Error::Unsupported { problem, .. }) => {
            // A letter takes at most six bytes as JSON.
            json!({ "problem": problem.chars().take(MAX_ANSWER / 8).collect::<String>() })
        }
        Err(_) => json!({ "is_costly": true }),
    };
    output.write_all(answer.to_string().as_bytes())?;
    output.flush()
}

fn compile_alone(environment: &TokEnv, source: &GrammarSource) -> Result<()> {
    let factory = compile::factory(environment)?;
    let grammar = compile::read(source)?;
    let owner = [0; 32];
    compile::compile(&factory, (source.kind(), grammar), owner, &Cancel::new()).map(drop)
}

/// Limits the address space and the time of this process. Systems without such limits have the time of the [`Checker`].
fn limit_process(memory: u64, seconds: u64) -> io::Result<()> {
    #[cfg(unix)]
    {
        use rustix::process::{Resource, Rlimit, setrlimit};
        let limits = [
            // A dump would hold a client's text.
            (Resource::Core, 0),
            (Resource::Cpu, seconds),
            #[cfg(not(target_os = "macos"))]
            (Resource::As, memory),
        ];
        for (resource, limit) in limits {
            setrlimit(
                resource,
                Rlimit {
                    current: Some(limit),
                    maximum: Some(limit),
                },
            )?;
        }
    }
    let _ = (memory, seconds);
    Ok(())
}

/// Returns what a process is told of the vocabulary in `trie`: how many tokens it has, which of them end an answer, the names
/// of control tokens, and the tokens of one byte.
pub(crate) fn vocabulary(trie: &TokTrie) -> Value {
    let count = trie.vocab_size() as u32;
    let (mut names, mut bytes) = (Vec::new(), Vec::new());
    for token in 0..count {
        match trie.token(token) {
            [byte] => bytes.push(json!([token, byte])),
            [TokTrie::SPECIAL_TOKEN_MARKER, name @ ..] => {
                names.push(json!([token, String::from_utf8_lossy(name)]));
            }
            _ => {}
        }
    }
    json!({ "count": count, "ends": trie.eos_tokens(), "names": names, "bytes": bytes })
}
