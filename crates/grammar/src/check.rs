//! Compilation of a grammar in a separate process that can be killed, before this process compiles it.
//!
//! A compilation can't be cancelled and its memory is not limited: some grammars of a hundred bytes take minutes and
//! gigabytes. A server therefore passes a client's grammar first to a program that runs [`answer`] in a separate
//! process. That process has its own limits. It is killed if it takes too long, or if the client disconnects. A grammar
//! that passes takes the same time and memory in this process, because compilation never iterates over the vocabulary:
//! it only looks up names and numbers of tokens, which the process receives with the grammar.

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

/// Address space limit of a process in bytes. 165 MiB of it are reserved but unused. The largest known grammars take 50
/// MiB more.
const MEMORY: u64 = 512 << 20;
/// Time limit of a process. Typical grammars take milliseconds, the largest ones a second.
const TIME: Duration = Duration::from_secs(5);
/// Number of these times that a process may wait for a core of a busy machine, where the system limits the time that it
/// computes.
const PATIENCE: u32 = if cfg!(unix) { 4 } else { 1 };
/// Polling interval of a process. It is shorter than the start of a process.
const POLL_INTERVAL: Duration = Duration::from_millis(2);
/// Maximum size of a question in bytes: the names of tokens, and a source of at most 1 MiB, which JSON escapes may
/// double.
const MAX_QUESTION: u64 = 1 << 26;
/// Maximum size of an answer in bytes. It fits in a pipe's buffer, so that the process never waits for its reader.
const MAX_ANSWER: usize = 4096;

/// A program that compiles a grammar in a separate process, as [`answer`] does.
#[derive(Clone, Debug)]
pub struct Checker {
    program: PathBuf,
    arguments: Vec<OsString>,
    memory: u64,
    time: Duration,
}

impl Checker {
    /// Creates a checker that starts `program` with `arguments`.
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

    /// Sets the address space limit of a process in bytes. The default is 512 MiB.
    #[must_use]
    pub fn with_memory(self, bytes: u64) -> Self {
        Self {
            memory: bytes,
            ..self
        }
    }

    /// Sets the limit of the time that a process computes, in whole seconds of at least one. The default is five seconds.
    /// A process that had no core for that long is ended after four times as long, and its grammar is not judged.
    #[must_use]
    pub fn with_time(self, time: Duration) -> Self {
        Self { time, ..self }
    }

    /// Compiles `source` in a separate process that has the tokens of `vocabulary`. Returns how many bytes of memory the
    /// grammar takes, if the system reports them.
    ///
    /// # Errors
    /// If `source` can't be compiled or exceeds a limit, `cancel` is set, or the process can't be started.
    pub(crate) fn check(
        &self,
        source: &GrammarSource,
        vocabulary: &Value,
        cancel: &Cancel,
    ) -> Result<Option<usize>> {
        let kind = source.kind();
        let failed = |problem: String| Error::Checker { problem };
        let question = json!({
            "source": source.to_json(),
            "vocabulary": vocabulary,
            "memory": self.memory,
            "seconds": self.time.as_secs().max(1),
        });
        let mut child = self
            .start()
            .map_err(|error| failed(format!("it can't be started: {error}")))?;
        let (status, answer) = child
            .run(&question.to_string(), self.time * PATIENCE, cancel)
            .map_err(|error| failed(error.to_string()))?;
        if cancel.is_cancelled() {
            return Err(Error::Cancelled);
        }
        let status = match status {
            Some(status) if !is_crash(status) => status,
            // On a busy machine, nothing is known about the grammar.
            None if PATIENCE > 1 => return Err(Error::Starved),
            _ => return Err(Error::TooCostly { kind }),
        };
        // Any other answer is an error.
        match serde_json::from_slice::<Value>(&answer) {
            Ok(answer) if status.success() && answer["passes"] == true => Ok(answer["bytes"]
                .as_u64()
                .and_then(|bytes| bytes.try_into().ok())),
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

/// Returns whether the system terminated the process, for example because it exceeded a limit.
fn is_crash(status: ExitStatus) -> bool {
    // On Windows, the exit code of an exception has more than 8 bits.
    status.code().is_none_or(|code| !(0..256).contains(&code))
}

/// A running process. Dropping it kills the process.
struct Running(Child);

impl Running {
    /// Writes `question` to the process and returns its exit status and its answer. The status is `None` if the process
    /// took longer than `time` or `cancel` was set.
    fn run(
        &mut self,
        question: &str,
        time: Duration,
        cancel: &Cancel,
    ) -> io::Result<(Option<ExitStatus>, Vec<u8>)> {
        let start = Instant::now();
        let (input, output) = (self.0.stdin.take(), self.0.stdout.take());
        thread::scope(|scope| {
            // A process that does not read blocks this thread. Killing the process unblocks it.
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
                        thread::sleep(POLL_INTERVAL);
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

    /// Kills the process if it is running, and reaps it.
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

/// Reads one question of a [`Checker`], sets the question's limits for this process, compiles the grammar, and writes
/// the answer. The program must do nothing else: the process may be killed when it exceeds a limit.
///
/// # Errors
/// If `input` has no valid question, or `output` can't be written.
pub fn answer(input: impl Read, mut output: impl Write) -> io::Result<()> {
    let question: Value = serde_json::from_reader(input.take(MAX_QUESTION))?;
    let no_question = || io::Error::new(io::ErrorKind::InvalidData, "expected a grammar to check");
    let limit = |name: &str| question[name].as_u64().ok_or_else(no_question);
    limit_process(limit("memory")?, limit("seconds")?)?;
    let source = GrammarSource::from_json(&question["source"]).ok_or_else(no_question)?;
    let environment = tokens::told(&question["vocabulary"]).ok_or_else(no_question)?;
    let answer = match compile_alone(&environment, &source) {
        Ok(bytes) => json!({ "passes": true, "bytes": bytes }),
        Err(Error::Unsupported { problem, .. }) => {
            // A character takes at most six bytes in JSON.
            json!({ "problem": problem.chars().take(MAX_ANSWER / 8).collect::<String>() })
        }
        Err(_) => json!({ "is_costly": true }),
    };
    output.write_all(answer.to_string().as_bytes())?;
    output.flush()
}

/// Compiles `source`, and returns how many bytes of memory the result takes, if the system reports them.
fn compile_alone(environment: &TokEnv, source: &GrammarSource) -> Result<Option<usize>> {
    let factory = compile::factory(environment)?;
    let grammar = compile::read(source)?;
    let owner = [0; 32];
    let before = memory();
    let _compiled = compile::compile(&factory, (source.kind(), grammar), owner, &Cancel::new())?;
    let bytes = memory().zip(before);
    Ok(bytes.map(|(after, before)| after.saturating_sub(before)))
}

/// Returns the memory of this process in bytes, on Linux.
fn memory() -> Option<usize> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"))?;
    let kibibytes: usize = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kibibytes << 10)
}

/// Limits the address space and the CPU time of this process. On systems without such limits, only the time limit of
/// the [`Checker`] applies.
fn limit_process(memory: u64, seconds: u64) -> io::Result<()> {
    #[cfg(unix)]
    {
        use rustix::process::{Resource, Rlimit, setrlimit};
        let limits = [
            // A core dump would contain a client's text.
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

/// Returns the part of the vocabulary in `trie` that compilation needs: the number of tokens, the end tokens, the names
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

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn the_memory_of_a_compiled_schema_is_measured() {
        let vocabulary = json!({"count": 256, "ends": [0], "names": [], "bytes": []});
        let environment = tokens::told(&vocabulary).unwrap();
        let properties = (0..800).map(|index| {
            let number = json!({"type": "number", "minimum": index, "maximum": 100 + index});
            (format!("property{index}"), number)
        });
        let schema = json!({"type": "object", "properties": Value::from_iter(properties)});
        let source = GrammarSource::JsonSchema(schema.to_string());
        let bytes = compile_alone(&environment, &source).unwrap().unwrap();
        assert!(bytes > 1 << 20, "{bytes}");
    }
}
