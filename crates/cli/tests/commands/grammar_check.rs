//! Grammars that a server first compiles in a separate process, and the cleanup after refused ones.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value as Json, json};
use triad_engine::constraint::Constraint;
use triad_grammar::{Checker, Error, GrammarSource, Grammars};
use triad_model::tokenizer::Tokenizer;

use super::place;
use crate::support::Place;

/// Longer than any test; limits a test that would hang.
const LONG: Duration = Duration::from_secs(120);
/// A grammar that takes minutes.
const SLOW: &str = "start: A\nA: /(.*a.{30})/ & ~/(.*b.{31})/ & /(.*c.{29})/ & ~/.*d.{28}/\n";

/// A server with two keys, which is stopped when this is dropped.
struct Served {
    child: Child,
    address: String,
    _place: Place,
}

impl Served {
    fn start() -> Self {
        let place = place();
        let arguments =
            "serve --no-quantize -m model.gguf --port 0 --api-key first --api-key second";
        let mut child = place
            .command(&arguments.split(' ').collect::<Vec<_>>())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let address = lines.find_map(|line| {
            let line = line.unwrap();
            let (_, address) = line.split_once("http://")?;
            Some(address.split(';').next()?.to_owned())
        });
        thread::spawn(move || lines.for_each(drop));
        Self {
            child,
            address: address.unwrap(),
            _place: place,
        }
    }

    /// Sends a request for an answer with a constraint, and returns its connection.
    fn send(&self, key: &str, form: &Json) -> TcpStream {
        let mut body = json!({"prompt": "a", "max_tokens": 20});
        body.as_object_mut()
            .unwrap()
            .extend(form.as_object().unwrap().clone());
        let body = body.to_string();
        let mut stream = TcpStream::connect(&self.address).unwrap();
        write!(
            stream,
            "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAuthorization: Bearer {key}\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )
        .unwrap();
        stream
    }

    fn post(&self, key: &str, form: &Json) -> (u16, Json) {
        let mut reply = String::new();
        self.send(key, form).read_to_string(&mut reply).unwrap();
        let (head, body) = reply.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        (status, serde_json::from_str(body).unwrap())
    }

    /// Returns the number of processes and threads that compile.
    fn compilers(&self) -> usize {
        let id = self.child.id().to_string();
        let is_child = |stat: &str| {
            let after_name = stat.rsplit(") ").next().unwrap_or_default();
            after_name.split(' ').nth(1) == Some(&*id)
        };
        let count = |folder: &str, file: &str, is_one: &dyn Fn(&str) -> bool| {
            let entries = std::fs::read_dir(folder).unwrap().flatten();
            let texts = entries
                .map(|entry| std::fs::read_to_string(entry.path().join(file)).unwrap_or_default());
            texts.filter(|text| is_one(text)).count()
        };
        let threads = count(&format!("/proc/{id}/task"), "comm", &|name| {
            name == "grammar\n"
        });
        threads + count("/proc", "stat", &is_child)
    }

    /// Returns the number of requests that wait or are prepared.
    fn waiting(&self) -> u64 {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let head = "GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n";
        write!(stream, "{head}Authorization: Bearer first\r\n\r\n").unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        let (_, body) = reply.split_once("\r\n\r\n").unwrap();
        serde_json::from_str::<Json>(body).unwrap()["waiting"]
            .as_u64()
            .unwrap_or(0)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns constraints that take minutes to compile, each with its field.
fn slow_forms() -> [(Json, &'static str); 2] {
    let schema = json!({"allOf": [{"type": "integer", "multipleOf": 9973}, {"multipleOf": 9967}]});
    [
        (json!({"guided_json": schema}), "guided_json"),
        (json!({"guided_grammar": SLOW}), "guided_grammar"),
    ]
}

#[test]
fn a_grammar_that_takes_too_long_is_refused_by_its_field_and_nothing_compiles_it_any_more() {
    let server = Served::start();
    thread::scope(|scope| {
        for (form, field) in slow_forms() {
            let server = &server;
            scope.spawn(move || {
                let (status, body) = server.post("first", &form);
                assert_eq!((status, &body["error"]["param"]), (400, &json!(field)));
                let message = body["error"]["message"].as_str().unwrap();
                assert!(
                    message.contains("takes too much time or memory to compile"),
                    "{message}"
                );
            });
        }
    });
    assert_eq!(server.compilers(), 0);
    let (status, body) = server.post("first", &json!({"guided_regex": "b{3}"}));
    assert_eq!((status, &body["choices"][0]["text"]), (200, &json!("bbb")));
}

#[test]
fn another_owners_grammar_is_compiled_while_one_has_many_refused() {
    let server = Served::start();
    let refused = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                assert_eq!(server.post("first", &slow_forms()[1].0).0, 400);
                refused.fetch_add(1, Ordering::Relaxed);
            });
        }
        let start = Instant::now();
        while server.waiting() < 8 {
            assert!(start.elapsed() < LONG, "they do not come");
        }
        let schema = json!({"guided_json": {"enum": [1, 2]}});
        assert_eq!(server.post("second", &schema).0, 200);
        // Each takes five seconds. The client with all slots would have four of them refused before.
        let refused = refused.load(Ordering::Relaxed);
        assert!(refused < 4, "{refused} were refused before");
    });
    assert_eq!(server.compilers(), 0);
}

fn tokenizer() -> Arc<Tokenizer> {
    let folder = "../../tests/golden/tokenizer/bpe-gpt-2";
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    Arc::new(Tokenizer::from_folder(&folder, None, &[1001]).unwrap())
}

fn checker() -> Checker {
    Checker::new(env!("CARGO_BIN_EXE_triad"), ["grammar-check"])
}

/// Returns a grammar in which each term doubles the number of states.
fn large() -> String {
    let terms: Vec<_> = (30..54).map(|count| format!("/.*a.{{{count}}}/")).collect();
    format!("start: A\nA: {}\n", terms.join(" & "))
}

#[test]
fn a_grammar_that_takes_too_much_memory_is_refused_and_its_asker_lives() {
    let checker = checker().with_memory(220 << 20).with_time(LONG);
    let grammars = Grammars::new(tokenizer()).unwrap().with_checker(checker);
    let error = grammars.compile(&GrammarSource::Lark(large())).unwrap_err();
    assert!(matches!(error, Error::TooCostly { .. }), "{error}");
    grammars.compile(&GrammarSource::Regex("a".into())).unwrap();
}

/// Returns the exit code of `triad grammar-check` with a grammar and limits, and whether the grammar passes.
fn checked(text: &str, memory: u64, seconds: u64) -> (Option<i32>, bool) {
    let bytes: Vec<_> = (0..256).map(|byte| json!([byte, byte])).collect();
    let question = json!({
        "source": {"lark": text},
        "vocabulary": {"count": 257, "ends": [256], "names": [], "bytes": bytes},
        "memory": memory,
        "seconds": seconds,
    });
    let output = Place::on_a_new_machine()
        .triad_with_input(&["grammar-check"], question.to_string().as_bytes());
    let answer = serde_json::from_slice::<Json>(&output.stdout).unwrap_or_default();
    (output.status.code(), answer["passes"] == true)
}

#[test]
fn a_process_has_the_memory_and_the_time_that_it_is_told_and_no_more() {
    let plain = "start: /a/";
    assert_eq!(checked(plain, 512 << 20, 600), (Some(0), true));
    // The stack of a compilation does not fit into this memory.
    assert!(!checked(plain, 64 << 20, 600).1);
    // The system ends the process. A process that ends by itself has an exit code, as after the ten seconds of a
    // compilation.
    assert_eq!(checked(&large(), 8 << 30, 1), (None, false));
}

#[test]
fn a_grammar_that_passes_gives_the_masks_that_it_gives_unchecked_and_a_wrong_one_the_same_error() {
    let schema = json!({"type": "object", "properties": {"city": {"enum": ["Oslo", "Rome"]}, "day": {"format": "date", "type": "string"}},
        "required": ["city"]});
    let passing = [
        GrammarSource::JsonSchema(schema.to_string()),
        GrammarSource::JsonObject,
        GrammarSource::Regex("[a-z]{2,40}(, [a-z]+)*".into()),
        GrammarSource::Lark("start: <|im_start|> /[0-9]+/ <|im_start|>".into()),
        GrammarSource::Lark("start: <[1000-1003]> \"a\"".into()),
        GrammarSource::Lark(format!(
            "start: \"<tool_call>\\n\" call \"\\n</tool_call>\"\ncall: %json {schema}\n"
        )),
    ];
    let wrong = [
        GrammarSource::Lark("start: <|im_nothing|>".into()),
        GrammarSource::Lark("start: <[5000]>".into()),
        GrammarSource::Lark("start: missing".into()),
        GrammarSource::Regex("a(b".into()),
        GrammarSource::JsonSchema(r#"{"not": {"type": "null"}}"#.into()),
        GrammarSource::JsonSchema("{".into()),
    ];
    let plain = Grammars::new(tokenizer()).unwrap();
    let checked = Grammars::new(tokenizer()).unwrap().with_checker(checker());
    let outcome = |grammars: &Grammars, source: &GrammarSource| -> Result<Vec<Vec<u32>>, String> {
        let grammar = grammars
            .compile(source)
            .map_err(|error| error.to_string())?;
        let mut constraint = grammar.begin();
        let mut masks = Vec::new();
        for step in 0..12 {
            if constraint.is_complete() {
                break;
            }
            let mask = constraint.mask().unwrap();
            let allowed: Vec<_> = (0..1008).filter(|token| mask.allows(*token)).collect();
            constraint
                .accept(allowed[step * 7 % allowed.len()])
                .unwrap();
            masks.push(allowed);
        }
        Ok(masks)
    };
    for (sources, passes) in [(&passing[..], true), (&wrong[..], false)] {
        for source in sources {
            let (of_plain, of_checked) = (outcome(&plain, source), outcome(&checked, source));
            assert_eq!(of_plain, of_checked, "{}", source.text());
            assert_eq!(of_plain.is_ok(), passes, "{of_plain:?}");
        }
    }
}

#[test]
fn what_is_no_question_is_an_error() {
    let output = Command::new(env!("CARGO_BIN_EXE_triad"))
        .arg("grammar-check")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
}
