//! A server with a tiny random model, and a plain HTTP client.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::Value;
use triad_engine::{
    Adapter, Engine, EngineOptions, LoadOptions, LowRank, Model, SessionOptions, Threads,
};
use triad_model::description::{BlockDescription, Linear, LinearShape};
use triad_model::gguf;
use triad_model::testing::GgufBuilder;
use triad_server::{HostedModel, LoadedModel, ModelFacts, ServerOptions, Shutdown, serve};

pub const CONTEXT: usize = 1024;
/// The vocabulary: all bytes, `ab`, the end of a turn, and the end token.
pub const VOCAB: usize = 259;
pub const TURN: u32 = 257;
pub const NAME: &str = "tiny";
const END: &str = "<|end|>";

/// The template does not contain the end token, so that completions seldom end with it.
const TEMPLATE: &str = "{% for message in messages %}{{ message.role }}{{ message.name or '' }}: \
                        {{ message.reasoning_content or '' }}{{ message.content }}<|turn|>{% endfor %}\
                        {% if enable_thinking is defined and not enable_thinking %}soon {% endif %}\
                        {{ reasoning_effort or '' }}{% for document in documents or [] %}{{ document.text }}{% endfor %}\
                        {% if add_generation_prompt %}assistant: {% endif %}";

/// Creates a llama of two layers with random weights, which recommends greedy decoding so that completions are
/// reproducible. `turn` is its control token for the end of a turn.
pub fn model(folder: &Path, turn: &str) -> Model {
    let greedy = [("general.sampling.temp", gguf::Value::Float(0.0))];
    model_with(folder, (turn, &[]), &greedy)
}

/// Like [`model`], with `fields` in place of the recommendation, and with control tokens `marks` in place of the bytes
/// from 1 on.
fn model_with(
    folder: &Path,
    (turn, marks): (&str, &[&str]),
    fields: &[(&str, gguf::Value)],
) -> Model {
    let (hidden, width, key_value) = (32, 48, 16);
    let letter = |byte: u8| match marks.get(usize::from(byte).wrapping_sub(1)) {
        Some(mark) => (*mark).to_owned(),
        None => byte_letter(byte),
    };
    let tokens = (0..=255)
        .map(letter)
        .chain(["ab", turn, END].map(str::to_owned))
        .collect();
    let is_control =
        |token: i64| token >= i64::from(TURN) || (1..=marks.len() as i64).contains(&token);
    let types = (0..VOCAB as i64)
        .map(|token| if is_control(token) { 3 } else { 1 })
        .collect();
    let text = |text: &str| gguf::Value::String(text.into());
    let mut builder = GgufBuilder::new()
        .field("general.architecture", text("llama"))
        .field(
            "llama.attention.layer_norm_rms_epsilon",
            gguf::Value::Float(1e-5),
        )
        .field("tokenizer.ggml.model", text("gpt2"))
        .field("tokenizer.ggml.pre", text("gpt-2"))
        .field("tokenizer.ggml.tokens", gguf::Value::Strings(tokens))
        .field("tokenizer.ggml.token_type", gguf::Value::Integers(types))
        .field(
            "tokenizer.ggml.merges",
            gguf::Value::Strings(vec!["a b".into()]),
        )
        .field(
            "tokenizer.ggml.eos_token_id",
            gguf::Value::Integer(VOCAB as i128 - 1),
        )
        .field("tokenizer.chat_template", text(TEMPLATE));
    for (field, value) in fields {
        builder = builder.field(field, value.clone());
    }
    for (field, number) in [
        ("embedding_length", hidden),
        ("block_count", 2),
        ("feed_forward_length", width),
        ("context_length", CONTEXT),
        ("attention.head_count", 2),
        ("attention.head_count_kv", 1),
    ] {
        builder = builder.field(
            &format!("llama.{field}"),
            gguf::Value::Integer(number as i128),
        );
    }
    let mut random = 1_u32;
    let mut values = |count: usize, scale: f32| -> Vec<f32> {
        let next = |_| {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            scale * ((random >> 16) as f32 / 65_536.0 - 0.5)
        };
        (0..count).map(next).collect()
    };
    builder = builder
        .tensor_f32(
            "token_embd.weight",
            &[VOCAB, hidden],
            &values(VOCAB * hidden, 2.0),
        )
        .tensor_f32("output_norm.weight", &[hidden], &[1.0; 32]);
    for block in 0..2 {
        for norm in ["attn_norm", "ffn_norm"] {
            builder =
                builder.tensor_f32(&format!("blk.{block}.{norm}.weight"), &[hidden], &[1.0; 32]);
        }
        for (name, rows, columns) in [
            ("attn_q", hidden, hidden),
            ("attn_k", key_value, hidden),
            ("attn_v", key_value, hidden),
            ("attn_output", hidden, hidden),
            ("ffn_gate", width, hidden),
            ("ffn_up", width, hidden),
            ("ffn_down", hidden, width),
        ] {
            let name = format!("blk.{block}.{name}.weight");
            builder = builder.tensor_f32(&name, &[rows, columns], &values(rows * columns, 1.5));
        }
    }
    let path = folder.join("tiny.gguf");
    std::fs::write(&path, builder.build()).unwrap();
    Model::load(
        &path,
        &LoadOptions {
            threads: Threads::Count(1),
            ..Default::default()
        },
    )
    .unwrap()
}

/// Creates an adapter of rank 1 for the value projections of all layers. All of its numbers are `value`.
fn adapter(model: &Model, value: f32) -> Arc<Adapter> {
    let low_rank = |shape: &LinearShape| {
        let numbers = |count: usize| vec![value.abs().sqrt(); count].into();
        let (a, b) = (numbers(shape.in_features), numbers(shape.out_features));
        (
            shape.linear,
            LowRank {
                rank: 1,
                a,
                b,
                scale: value.signum(),
            },
        )
    };
    let description = model.description();
    let of_block = |block: &BlockDescription| {
        let shapes = block.linears(description.hidden);
        shapes
            .iter()
            .filter(|shape| shape.linear == Linear::Value)
            .map(low_rank)
            .collect()
    };
    Arc::new(
        Adapter::new(
            description,
            description.blocks.iter().map(of_block).collect(),
        )
        .unwrap(),
    )
}

/// Returns the character that byte-level vocabularies use for a byte: the byte itself if it is visible, otherwise the
/// next free one from U+0100 on.
pub fn byte_letter(byte: u8) -> String {
    let visible = |byte: u8| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let code = if visible(byte) {
        u32::from(byte)
    } else {
        0x100 + (0..byte).filter(|earlier| !visible(*earlier)).count() as u32
    };
    char::from_u32(code).unwrap().to_string()
}

/// Returns an engine of the model, and the folder with its file.
pub fn engine(kv_memory: Option<usize>) -> (Engine, tempfile::TempDir) {
    engine_of("<|turn|>", kv_memory)
}

/// Like [`engine`], with `turn` as the model's control token.
pub fn engine_of(turn: &str, kv_memory: Option<usize>) -> (Engine, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let model = model(folder.path(), turn);
    engine_in((model, folder), kv_memory)
}

fn engine_in(
    (model, folder): (Model, tempfile::TempDir),
    kv_memory: Option<usize>,
) -> (Engine, tempfile::TempDir) {
    let model = Arc::new(model);
    let session = SessionOptions {
        context: CONTEXT.min(model.description().context),
        chunk: 64,
        ..SessionOptions::default()
    };
    (
        Engine::new(
            &model,
            &EngineOptions {
                session,
                kv_memory,
                ..EngineOptions::default()
            },
        )
        .unwrap(),
        folder,
    )
}

/// A server in this process, on a free port.
pub struct Server {
    pub address: SocketAddr,
    pub engine: Engine,
    pub adapters: Vec<(String, Arc<Adapter>)>,
    shutdown: Shutdown,
    thread: Option<JoinHandle<()>>,
    _folder: tempfile::TempDir,
}

impl Server {
    pub fn start() -> Self {
        Self::with(|_| {})
    }

    pub fn with(change: impl FnOnce(&mut ServerOptions)) -> Self {
        Self::with_kv_memory(None, change)
    }

    pub fn with_kv_memory(
        kv_memory: Option<usize>,
        change: impl FnOnce(&mut ServerOptions),
    ) -> Self {
        Self::of_engine(engine(kv_memory), change)
    }

    /// Starts a server of a model whose file has these `fields` and no others that recommend how to sample.
    pub fn with_fields(fields: &[(&str, gguf::Value)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let model = model_with(folder.path(), ("<|turn|>", &[]), fields);
        Self::of_engine(engine_in((model, folder), None), |_| {})
    }

    /// Starts a server of a model with tokens for filling in the middle, which answers for its own name alone.
    pub fn for_infill() -> Self {
        Self::for_infill_with(&[("general.sampling.temp", gguf::Value::Float(0.0))])
    }

    /// Like [`for_infill`](Self::for_infill), with `fields` in place of the recommendation.
    pub fn for_infill_with(fields: &[(&str, gguf::Value)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let marks = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"];
        let model = model_with(folder.path(), ("<|turn|>", &marks), fields);
        let engine = engine_in((model, folder), None);
        Self::of_engine(engine, |options| options.strict_models = true)
    }

    /// Starts a server of the model at `path`.
    pub fn of_model(path: &Path) -> Self {
        Self::of_model_with(path, |_| {})
    }

    /// Starts a server of the model at `path` with other options.
    pub fn of_model_with(path: &Path, change: impl FnOnce(&mut ServerOptions)) -> Self {
        let threads = Threads::Count(1);
        let options = LoadOptions {
            threads,
            ..LoadOptions::default()
        };
        let model = Model::load(path, &options).unwrap();
        Self::of_engine(
            engine_in((model, tempfile::tempdir().unwrap()), None),
            change,
        )
    }

    fn of_engine(
        (engine, folder): (Engine, tempfile::TempDir),
        change: impl FnOnce(&mut ServerOptions),
    ) -> Self {
        let adapters = [("one", 0.05), ("other", -0.03)];
        let adapters = Vec::from(
            adapters.map(|(name, value)| (name.to_owned(), adapter(engine.model(), value))),
        );
        let own = (engine.clone(), adapters.clone());
        let load = move || {
            let (engine, adapters) = own.clone();
            Ok(LoadedModel {
                engine,
                adapters,
                is_current: Box::new(|| true),
            })
        };
        let hosted = HostedModel {
            name: NAME.into(),
            aliases: Vec::new(),
            bytes: 0,
            facts: ModelFacts::default(),
            check: Box::new(|| Ok(())),
            load: Box::new(load),
        };
        let mut server = Self::with_models((engine, folder), vec![hosted], change);
        server.adapters = adapters;
        server
    }

    /// Starts a server of `models`. `engine` runs one of them.
    pub fn with_models(
        (engine, folder): (Engine, tempfile::TempDir),
        models: Vec<HostedModel>,
        change: impl FnOnce(&mut ServerOptions),
    ) -> Self {
        let mut options = ServerOptions {
            port: 0,
            ..ServerOptions::default()
        };
        change(&mut options);
        let shutdown = Shutdown::default();
        let (sender, ready) = std::sync::mpsc::channel();
        let ends = shutdown.clone();
        let thread = std::thread::spawn(move || {
            serve(options, models, &ends, |address| {
                sender.send(address).unwrap();
            })
            .unwrap();
        });
        let address = ready.recv().unwrap();
        Self {
            address,
            engine,
            adapters: Vec::new(),
            shutdown,
            thread: Some(thread),
            _folder: folder,
        }
    }

    pub fn get(&self, path: &str) -> Reply {
        self.send(&format!(
            "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        ))
    }

    pub fn post(&self, path: &str, body: &Value) -> Reply {
        self.post_text(path, &body.to_string())
    }

    pub fn post_text(&self, path: &str, body: &str) -> Reply {
        self.send(&post(path, body, ""))
    }

    /// Sends the bytes as they are, and returns the response.
    pub fn send(&self, request: &str) -> Reply {
        let mut stream = self.connect();
        // The server may refuse the request before it is written completely.
        let _ = stream.write_all(request.as_bytes());
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes);
        Reply::parse(&bytes)
    }

    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        stream
    }

    /// Waits until no requests are running or waiting.
    pub fn wait_until_idle(&self) {
        let start = Instant::now();
        while self.get("/health").json()["answering"] != 0 {
            assert!(start.elapsed() < Duration::from_secs(60), "answers go on");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Stops the server, and returns at once.
    pub fn begin_end(&self) {
        self.shutdown.begin();
    }

    /// Stops the server and waits for its end.
    pub fn end(&mut self) {
        self.shutdown.begin();
        self.thread.take().unwrap().join().unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shutdown.begin();
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(
                ended.is_ok() || std::thread::panicking(),
                "the server panicked"
            );
        }
    }
}

/// Adds the fields of `more` to a body.
pub fn add(body: &mut Value, more: Value) {
    let (Value::Object(body), Value::Object(more)) = (body, more) else {
        panic!("expected two objects")
    };
    body.extend(more);
}

/// Returns a request `DELETE` with a body.
pub fn delete(path: &str, body: &str) -> String {
    post(path, body, "").replacen("POST", "DELETE", 1)
}

/// Returns a request with additional `headers`, each with a line end.
pub fn post(path: &str, body: &str, headers: &str) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n{headers}\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// A response.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub headers: String,
    pub body: String,
}

impl Reply {
    fn parse(bytes: &[u8]) -> Self {
        let end = bytes
            .windows(4)
            .position(|window| window == b"\r\n\r\n")
            .expect("the head of a response");
        let (headers, mut rest) = (
            String::from_utf8(bytes[..end].to_vec()).unwrap(),
            &bytes[end + 4..],
        );
        let status = headers.split(' ').nth(1).unwrap().parse().unwrap();
        let mut body = Vec::new();
        if headers
            .to_ascii_lowercase()
            .contains("transfer-encoding: chunked")
        {
            while let Some(line) = rest.windows(2).position(|window| window == b"\r\n") {
                let length =
                    usize::from_str_radix(std::str::from_utf8(&rest[..line]).unwrap(), 16).unwrap();
                body.extend(&rest[line + 2..line + 2 + length]);
                rest = &rest[line + 4 + length..];
            }
        } else {
            body.extend(rest);
        }
        Self {
            status,
            headers,
            // A font is no text.
            body: String::from_utf8_lossy(&body).into_owned(),
        }
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    /// Returns the JSON of a successful response.
    pub fn good(&self) -> Value {
        assert_eq!(self.status, 200, "{}", self.body);
        self.json()
    }

    /// Returns the error of a response with `status`, in OpenAI's format.
    pub fn error(&self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}", self.body);
        let error = self.json()["error"].clone();
        assert!(
            error["message"]
                .as_str()
                .is_some_and(|message| !message.is_empty()),
            "{error}"
        );
        assert!(
            error["type"].is_string()
                && error.get("param").is_some()
                && error.get("code").is_some(),
            "{error}"
        );
        error
    }

    /// Returns the events of a stream that ends with `[DONE]`.
    pub fn events(&self) -> Vec<Value> {
        assert_eq!(self.status, 200, "{}", self.body);
        assert!(
            self.headers.contains("text/event-stream"),
            "{}",
            self.headers
        );
        let mut data: Vec<_> = self
            .body
            .lines()
            .filter_map(|line| line.strip_prefix("data: "))
            .collect();
        assert_eq!(data.pop(), Some("[DONE]"), "{}", self.body);
        data.into_iter()
            .map(|data| serde_json::from_str(data).unwrap())
            .collect()
    }

    /// Returns the events of a stream without errors.
    pub fn chunks(&self) -> Vec<Value> {
        let events = self.events();
        assert!(
            events.iter().all(|event| event.get("error").is_none()),
            "{}",
            self.body
        );
        events
    }
}

/// Returns whether no unread bytes have arrived and the connection is open.
pub fn has_nothing(stream: &TcpStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    let peeked = stream.peek(&mut [0]);
    stream.set_nonblocking(false).unwrap();
    matches!(peeked, Err(error) if error.kind() == ErrorKind::WouldBlock)
}

/// Returns the events of a stream. The name of each event is its type and comes before its data.
pub fn events(reply: &Reply) -> Vec<Value> {
    assert_eq!(reply.status, 200, "{}", reply.body);
    let blocks = reply.body.split_terminator("\n\n");
    for block in blocks.filter(|block| !block.starts_with(':')) {
        assert!(block.starts_with("event: "), "{block}");
    }
    let lines = |start: &'static str| {
        reply
            .body
            .lines()
            .filter_map(move |line| line.strip_prefix(start))
    };
    let events: Vec<Value> = lines("data: ")
        .map(|data| serde_json::from_str(data).unwrap())
        .collect();
    assert!(
        lines("event: ").eq(events.iter().map(|event| event["type"].as_str().unwrap())),
        "{}",
        reply.body
    );
    events
}
