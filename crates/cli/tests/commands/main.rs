//! Every command from end to end, on a tiny model.

mod adapters;
mod distribution;
mod eval;
mod eval_processors;
#[cfg(unix)]
mod first_run;
mod fit;
mod form;
#[cfg(feature = "gpu")]
mod gpu_lists;
#[cfg(all(feature = "server", target_os = "linux"))]
mod grammar_check;
mod heads;
#[cfg(feature = "mcp")]
#[path = "../../../mcp/tests/support/mod.rs"]
mod mcp_server;
mod models;
mod operators;
#[path = "../support/outcome.rs"]
mod outcome;
mod packages;
mod pictures;
mod processors;
#[cfg(feature = "server")]
mod pull_bounds;
#[cfg(feature = "server")]
mod pulls;
#[cfg(feature = "mcp")]
#[path = "../support/scripted.rs"]
mod scripted;
mod session;
#[path = "../../../processors/tests/skip/mod.rs"]
mod skip;
mod streams;
#[path = "../support/mod.rs"]
mod support;
mod sustained;
#[cfg(feature = "mcp")]
mod tools;

use std::io::Read;
use std::process::Stdio;

use outcome::{json, keys, succeed};
use safetensors::SafeTensors;
use serde_json::Value as Json;
use support::gguf::{CONTEXT, Gguf, VOCAB, Value};
use support::{Place, checkpoint, stderr};

const COMMANDS: [&str; 15] = [
    "run",
    "pull",
    "list",
    "remove",
    "ps",
    "prepare",
    "verify",
    "info",
    "fit",
    "bench",
    "eval",
    "logits",
    "tokenize",
    "devices",
    "completions",
];

fn place() -> Place {
    let place = Place::new();
    place.write("model.gguf", Gguf::tiny().bytes());
    place
}

const RUN: [&str; 8] = [
    "run",
    "--no-quantize",
    "-m",
    "model.gguf",
    "-n",
    "12",
    "--temperature",
    "0.8",
];

#[test]
fn an_answer_is_shown_and_one_line_reports_how_fast_it_was() {
    let output = place().triad(&[&RUN[..], &["-p", "Hello"]].concat());
    let answer = succeed(&output);
    assert!(answer.ends_with('\n') && answer.len() > 1);
    let printed = stderr(&output);
    assert_eq!(printed.lines().count(), 1, "{printed}");
    for words in [
        "prefill ",
        "decode ",
        "tokens/s",
        "first token after",
        "peak memory",
    ] {
        assert!(printed.contains(words), "{printed}");
    }
}

#[test]
fn a_prompt_gives_the_same_answer_from_wherever_it_comes() {
    let place = place();
    place.write("prompt.txt", "Hello\n");
    let given = succeed(&place.triad(&[&RUN[..], &["-p", "Hello"]].concat()));
    assert_eq!(
        succeed(&place.triad(&[&RUN[..], &["-f", "prompt.txt"]].concat())),
        given
    );
    assert_eq!(succeed(&place.triad_with_input(&RUN, b"Hello\r\n")), given);
    // Some editors write a byte order mark.
    place.write("marked.txt", "\u{feff}Hello\n");
    let marked = [&RUN[..], &["-f", "marked.txt"]].concat();
    assert_eq!(succeed(&place.triad(&marked)), given);
    place.write("schema.json", "\u{feff}{\"enum\": [\"yes\"]}");
    let formed = [&RUN[..], &["-p", "Hello", "--schema", "schema.json"]].concat();
    assert_eq!(succeed(&place.triad(&formed)), "\"yes\"\n");
    let other = [&RUN[..], &["-p", "Hello", "--seed", "1"]].concat();
    assert_ne!(succeed(&place.triad(&other)), given);
}

#[test]
fn as_json_an_answer_is_one_object() {
    let place = place();
    let arguments = [&RUN[..], &["-p", "Hello"]].concat();
    let object = json(&place.triad(&[&arguments[..], &["--json"]].concat()));
    assert_eq!(object["prompt_tokens"], "user: Hello\n".len());
    assert_eq!(
        succeed(&place.triad(&arguments)),
        format!("{}\n", object["text"].as_str().unwrap())
    );
    assert_eq!(object["timing"]["prefill_tokens"], object["prompt_tokens"]);
    assert!(object["decode_tokens_per_second"].as_f64().is_some());
    assert!(object["tokens"].as_array().unwrap().len() <= 12);
}

#[test]
fn several_tokens_a_step_give_the_answer_of_one() {
    let place = place();
    let run = |speculate: &str, temperature| {
        let arguments = [
            "run",
            "--no-quantize",
            "-m",
            "model.gguf",
            "-n",
            "40",
            "--json",
            "-p",
            "Hello hello hello",
        ];
        let how = ["--speculate", speculate, "--temperature", temperature];
        json(&place.triad(&[&arguments[..], &how].concat()))
    };
    for temperature in ["0", "0.8"] {
        let plain = run("off", temperature);
        assert!(plain.get("speculation").is_none());
        for speculate in ["lookup", "model.gguf"] {
            let several = run(speculate, temperature);
            assert_eq!(several["tokens"], plain["tokens"], "{speculate}");
            let speculation = &several["speculation"];
            let [steps, proposed, accepted] =
                ["steps", "proposed", "accepted"].map(|key| speculation[key].as_u64());
            assert!(accepted <= proposed, "{speculation}");
            let decoded = several["timing"]["decode_tokens"].as_u64();
            assert_eq!(
                decoded,
                steps
                    .zip(accepted)
                    .map(|(steps, accepted)| steps + accepted)
            );
            assert_eq!(several.get("acceptance").is_some(), proposed > Some(0));
        }
    }
    let end = format!("<|end|>{VOCAB}");
    let tokens = Gguf::tiny()
        .metadata
        .into_iter()
        .find_map(|(key, value)| match value {
            Value::Texts(tokens) if key == "tokenizer.ggml.tokens" => Some(tokens),
            _ => None,
        });
    let mut tokens = tokens.unwrap();
    *tokens.last_mut().unwrap() = end.clone();
    place.write(
        "other.gguf",
        Gguf::tiny()
            .with("tokenizer.ggml.tokens", Value::Texts(tokens))
            .bytes(),
    );
    let refused = place.triad(&[&RUN[..], &["-p", "Hello", "--speculate", "other.gguf"]].concat());
    assert_eq!(refused.status.code(), Some(1));
    let expected = format!(
        "error: other.gguf cannot propose tokens to model.gguf: the draft model has {end:?} as token {}, the model has \
         \"<|end|>\": take a draft model with the same tokenizer\n",
        VOCAB - 1
    );
    assert_eq!(stderr(&refused), expected);
}

#[test]
fn raw_prompts_pass_the_template_by_and_a_model_without_one_prints_a_note() {
    let place = place();
    place.write(
        "plain.gguf",
        Gguf::tiny().without("tokenizer.chat_template").bytes(),
    );
    let raw = place.triad(&[
        "run",
        "--no-quantize",
        "-m",
        "model.gguf",
        "--raw",
        "-p",
        "Hello",
        "--json",
    ]);
    assert_eq!(json(&raw)["prompt_tokens"], 5);
    assert!(!stderr(&raw).contains("note:"));
    let plain = place.triad(&[
        "run",
        "--no-quantize",
        "-m",
        "plain.gguf",
        "-p",
        "Hello",
        "--json",
    ]);
    assert_eq!(json(&plain)["prompt_tokens"], 5);
    assert!(stderr(&plain).contains("note: this model has no chat template"));
    let system = place.triad(&[
        "run",
        "--no-quantize",
        "-m",
        "model.gguf",
        "--system",
        "Be brief.",
        "-p",
        "Hello",
        "--json",
    ]);
    assert_eq!(
        json(&system)["prompt_tokens"],
        "system: Be brief.\nuser: Hello\n".len()
    );
}

#[test]
fn a_stop_string_ends_the_answer_and_is_not_shown() {
    let place = place();
    let arguments = [
        "run",
        "--no-quantize",
        "-m",
        "model.gguf",
        "--raw",
        "-p",
        "Hello",
        "-n",
        "20",
        "--json",
        "--temperature",
        "1",
    ];
    let whole = json(&place.triad(&arguments));
    let text = whole["text"].as_str().unwrap().to_owned();
    let stop: String = text.chars().skip(3).take(2).collect();
    let stopped = json(&place.triad(&[&arguments[..], &["--stop", &stop]].concat()));
    assert_eq!(stopped["finish"], "stop-string");
    assert_eq!(stopped["text"], text.split(&stop).next().unwrap());
}

#[test]
fn a_model_without_tokenizer_runs_on_token_ids() {
    let place = Place::new();
    let (header, data) = checkpoint::header();
    checkpoint::write(&place, &checkpoint::config(), &header, data);
    succeed(&place.triad(&[
        "logits",
        "-m",
        "model",
        "--tokens",
        "1,2",
        "-o",
        "out.safetensors",
    ]));
}

#[test]
fn logits_are_the_same_for_text_and_token_ids_and_every_chunk_length() {
    let place = place();
    let logits = |arguments: &[&str]| {
        succeed(
            &place.triad(
                &[
                    &["logits", "-m", "model.gguf", "-o", "out.safetensors"],
                    arguments,
                ]
                .concat(),
            ),
        );
        let bytes = std::fs::read(place.path("out.safetensors")).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let (logits, tokens) = (
            file.tensor("logits").unwrap(),
            file.tensor("tokens").unwrap(),
        );
        assert_eq!(
            (logits.shape(), tokens.shape()),
            (&[5, VOCAB][..], &[5][..])
        );
        let floats = logits
            .data()
            .chunks_exact(4)
            .map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap()));
        (tokens.data().to_vec(), floats.collect::<Vec<_>>())
    };
    let (tokens, whole) = logits(&["-p", "Hello"]);
    let ids: Vec<_> = tokens
        .chunks_exact(4)
        .map(|bytes| u32::from_le_bytes(bytes.try_into().unwrap()).to_string())
        .collect();
    assert_eq!(
        logits(&["--tokens", &ids.join(",")]),
        (tokens, whole.clone())
    );
    let (_, chunked) = logits(&["-p", "Hello", "--prefill-chunk", "2"]);
    let difference = whole
        .iter()
        .zip(&chunked)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, f32::max);
    assert!(difference < 1e-4, "{difference}");
    let left: Vec<_> = std::fs::read_dir(place.path(""))
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert!(
        !left
            .iter()
            .any(|name| name.to_string_lossy().ends_with(".part")),
        "{left:?}"
    );
}

#[test]
fn bench_prints_the_object_that_later_versions_keep() {
    let arguments = [
        "bench",
        "--no-quantize",
        "-m",
        "model.gguf",
        "--prompt",
        "8,16",
        "--decode",
        "4",
        "--context",
        "0,32",
        "--sequences",
        "1,3",
        "--svg",
        "times.svg",
        "--threads",
        "1,2",
        "--repeat",
        "3",
        "--json",
    ];
    let place = place_with_context(1024);
    let object = json(&place.triad(&arguments));
    assert_eq!(
        keys(&object),
        [
            "model",
            "arithmetic",
            "results",
            "limits",
            "load_seconds",
            "peak_resident_bytes"
        ]
    );
    assert_eq!(object["model"], "model.gguf");
    let results = object["results"].as_array().unwrap();
    let tests: Vec<_> = results
        .iter()
        .map(|result| {
            (
                result["test"].as_str().unwrap(),
                ["threads", "tokens", "context", "sequences"]
                    .map(|key| result[key].as_u64().unwrap()),
            )
        })
        .collect();
    let of_threads = |threads| {
        let decode = [(0, 1), (0, 3), (32, 1), (32, 3)]
            .map(|(context, sequences)| ("decode", 4, context, sequences));
        let all = [("prefill", 8, 0, 1), ("prefill", 16, 0, 1)]
            .into_iter()
            .chain(decode);
        all.map(|(test, tokens, context, sequences)| (test, [threads, tokens, context, sequences]))
            .collect::<Vec<_>>()
    };
    assert_eq!(tests, [of_threads(1), of_threads(2)].concat());
    for result in results {
        let names = ["threads", "test", "tokens", "context", "sequences"];
        let measured = ["tokens_per_second", "limit_seconds", "share_of_limit"];
        assert_eq!(keys(result), [&names[..], &measured].concat());
        let rates = &result["tokens_per_second"];
        let least = result["limit_seconds"].as_f64().unwrap();
        let share = least * rates["median"].as_f64().unwrap()
            / (result["tokens"].as_f64().unwrap() * result["sequences"].as_f64().unwrap());
        assert!(share > 0.0 && (share - result["share_of_limit"].as_f64().unwrap()).abs() < 1e-9);
        assert_eq!(keys(rates), ["min", "median", "max"]);
        let [min, median, max] = ["min", "median", "max"].map(|key| rates[key].as_f64().unwrap());
        assert!(0.0 < min && min <= median && median <= max);
    }
    let limits = object["limits"].as_array().unwrap();
    assert_eq!(
        limits
            .iter()
            .map(|limit| limit["threads"].as_u64().unwrap())
            .collect::<Vec<_>>(),
        [1, 2]
    );
    let figure = std::fs::read_to_string(place.path("times.svg")).unwrap();
    for text in ["Prefill", "Decode", "1 thread", "limit, 2 threads"] {
        assert!(figure.contains(text), "{text} in the figure");
    }
    for key in ["f32_operations_per_second", "bytes_read_per_second"] {
        assert!(
            limits
                .iter()
                .all(|limit| limit[key].as_f64().unwrap() > 0.0),
            "{key}: {limits:?}"
        );
    }
}

#[test]
fn bench_for_people_shows_the_share_of_the_limit() {
    let arguments = [
        "bench",
        "--no-quantize",
        "-m",
        "model.gguf",
        "--prompt",
        "8",
        "--decode",
        "0",
        "--repeat",
        "1",
        "--threads",
        "1",
    ];
    let table = succeed(&place_with_context(1024).triad(&arguments));
    assert!(
        table.contains("of the limit")
            && table.contains("limit on 1 threads: INT8 ")
            && table.contains("peak memory"),
        "{table}"
    );
}

#[test]
fn plan_counts_the_subgraphs_of_a_model_and_where_they_would_run() {
    let place = place_with_context(1024);
    let object = json(&place.triad(&["plan", "--shape", "qwen1.5-1.8b", "--json"]));
    assert_eq!(
        ["subgraphs", "static_subgraphs", "tasks"].map(|key| object[key].as_u64().unwrap()),
        [144, 120, 4 * 144]
    );
    let memory = |key: &str| object["memory"][key].as_u64().unwrap();
    assert!(
        memory("one_chunk_bytes") < memory("shared_bytes")
            && 4 * memory("one_chunk_bytes") == memory("separate_bytes")
    );
    let on_npu = object["places"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|place| place["processor"] == "npu");
    assert_eq!(
        on_npu
            .map(|place| place["count"].as_u64().unwrap())
            .sum::<u64>(),
        72
    );
    let table = succeed(&place.triad(&[
        "plan",
        "-m",
        "model.gguf",
        "--prompt",
        "100",
        "--npu-memory",
        "0",
    ]));
    assert!(
        table.contains("window full") && !table.contains("NPU  "),
        "{table}"
    );
}

fn place_with_context(context: u32) -> Place {
    let place = Place::new();
    place.write(
        "model.gguf",
        Gguf::tiny()
            .with("llama.context_length", Value::U32(context))
            .bytes(),
    );
    place
}

#[test]
fn info_shows_what_a_model_is_and_needs() {
    let place = place();
    let object = json(&place.triad(&["info", "model.gguf", "--json"]));
    assert_eq!(
        (&object["family"], &object["name"]),
        (&Json::from("llama"), &Json::from("tiny"))
    );
    assert_eq!(
        (&object["vocab"], &object["context"]),
        (&Json::from(VOCAB), &Json::from(CONTEXT))
    );
    assert_eq!(object["chat_template"], true);
    assert_eq!(object["tokenizer"]["tokens"], VOCAB);
    let parameters = Gguf::tiny()
        .tensors
        .iter()
        .map(|tensor| tensor.values.len())
        .sum::<usize>();
    assert_eq!(object["parameters"], parameters);
    assert_eq!(object["stored_bytes"]["F32"], 4 * parameters);
    let kv = |context: &str| {
        json(&place.triad(&["info", "model.gguf", "--context", context, "--json"]))["run"]["kv_cache_bytes"]
            .as_u64()
            .unwrap()
    };
    assert_eq!(kv("64"), 2 * kv("32"));
    let text = succeed(&place.triad(&["info", "model.gguf"]));
    assert!(
        text.contains("llama") && text.contains("memory of a run"),
        "{text}"
    );
}

#[test]
fn tokenize_prints_ids() {
    let place = place();
    // The tokens of a byte-level vocabulary of bytes are the bytes.
    assert_eq!(
        succeed(&place.triad(&["tokenize", "-m", "model.gguf", "-p", "Hi ab"])),
        "72 105 32 256\n"
    );
    let special = [
        "tokenize",
        "-m",
        "model.gguf",
        "--special",
        "-p",
        "Hi<|end|>",
        "--json",
    ];
    assert_eq!(
        json(&place.triad(&special)),
        serde_json::json!({"count": 3, "tokens": [72, 105, 257]})
    );
}

#[test]
fn tokenize_has_bos_and_eos_with_special_tokens_as_without() {
    let place = place();
    let mut gguf = Gguf::tiny();
    for (key, value) in [
        ("tokenizer.ggml.bos_token_id", Value::U32(1)),
        ("tokenizer.ggml.add_bos_token", Value::Bool(true)),
        ("tokenizer.ggml.add_eos_token", Value::Bool(true)),
    ] {
        gguf = gguf.with(key, value);
    }
    place.write("ends.gguf", gguf.bytes());
    for (text, plain, special) in [
        ("Hi", "1 72 105 257", "1 72 105 257"),
        (
            "Hi<|end|>",
            "1 72 105 60 124 101 110 100 124 62 257",
            "1 72 105 257 257",
        ),
    ] {
        let tokenize = ["tokenize", "-m", "ends.gguf", "-p", text];
        let lines = |more: &[&str]| succeed(&place.triad(&[&tokenize[..], more].concat()));
        assert_eq!(lines(&[]), format!("{plain}\n"));
        assert_eq!(lines(&["--special"]), format!("{special}\n"));
    }
}

#[test]
fn devices_shows_what_the_machine_has() {
    let object = json(&Place::new().triad(&["devices", "--json"]));
    assert_eq!(object["architecture"], std::env::consts::ARCH);
    assert!(object["threads"].as_u64().unwrap() > 0);
    assert!(
        object["kernels"]["int8"].is_string() && object["kernels"]["f32"].is_string(),
        "{object}"
    );
    // Each GPU is usable, or has a reason why it is not.
    let gpus = object["gpus"].as_array().unwrap();
    let is_explained = |gpu: &Json| {
        let of = |variant: &str, refused: &str| {
            gpu[variant].is_string() || !gpu[refused].as_array().unwrap().is_empty()
        };
        let is_usable = gpu["variant"].is_string();
        of("variant", "refused") && (!is_usable || of("model_variant", "model_refused"))
    };
    assert!(gpus.iter().all(is_explained), "{object}");
    let npus = object["npus"].as_array().unwrap();
    assert!(
        npus.iter()
            .all(|npu| npu["usable"].is_boolean() && npu["found"].is_string()),
        "{object}"
    );
    #[cfg(feature = "hexagon")]
    assert!(npus.iter().any(|npu| npu["npu"] == "hexagon"), "{object}");
}

#[test]
fn the_fastest_kernels_are_chosen_once_and_again_for_another_machine() {
    let place = Place::on_a_new_machine();
    let choices = || json(&place.triad(&["devices", "--json"]))["kernel_choices"].clone();
    let first = choices();
    let products = first["products"].as_array().unwrap();
    let is_complete = |product: &Json| {
        let timed = product["timed"].as_array().unwrap();
        let of_chosen = timed
            .iter()
            .find(|timed| timed["kernel"] == product["chosen"])
            .unwrap();
        product["gain"].as_f64().unwrap() >= 1.0
            && of_chosen["operations_per_second"].as_f64().unwrap() > 0.0
    };
    assert!(
        products.len() == 5 && products.iter().all(is_complete),
        "{first}"
    );
    let shown = succeed(&place.triad(&["devices"]));
    assert_eq!(
        shown
            .lines()
            .filter(|line| line.starts_with("kernel chosen"))
            .count(),
        products.len(),
        "{shown}"
    );
    // Times differ between measurements, so equal times were read from the file.
    assert_eq!(choices(), first);
    let file = place.path("cache/kernels.json");
    let mut kept: Json = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    assert_eq!(kept, first);
    kept["machine"]["processor"] = "another one".into();
    std::fs::write(&file, kept.to_string()).unwrap();
    let again = choices();
    assert_eq!(again["machine"], first["machine"]);
    assert_ne!(again["products"], first["products"]);
    assert_eq!(
        json(&place.triad(&["devices", "--choose", "--json"]))["machine"],
        first["machine"]
    );
    let requested = place
        .command(&["devices", "--json"])
        .env("TRIAD_KERNELS", "reference")
        .output()
        .unwrap();
    assert!(
        json(&requested)["kernel_choices"].is_null(),
        "those that TRIAD_KERNELS names are not timed"
    );
}

#[test]
fn weights_read_into_huge_pages_and_mapped_ones_give_the_same_answer() {
    let place = place();
    let run = |pages: &str| {
        place
            .command(&RUN)
            .args(["--seed", "1", "-p", "Hello"])
            .env("TRIAD_HUGE_PAGES", pages)
            .output()
            .unwrap()
    };
    let mapped = succeed(&run("off"));
    assert!(!mapped.is_empty());
    assert_eq!(
        (succeed(&run("on")), succeed(&run(""))),
        (mapped.clone(), mapped)
    );
    let refused = run("2M");
    assert_eq!(refused.status.code(), Some(1));
    assert!(
        stderr(&refused).contains("TRIAD_HUGE_PAGES is \"2M\": expected on or off"),
        "{}",
        stderr(&refused)
    );
}

#[test]
fn kernels_use_no_better_instructions_than_asked_for() {
    let place = Place::new();
    let devices = |tier: &str| {
        place
            .command(&["devices", "--json"])
            .env("TRIAD_KERNELS", tier)
            .output()
            .unwrap()
    };
    let kernels = |tier: &str| json(&devices(tier))["kernels"].clone();
    let plain = serde_json::json!({"int8": "reference", "f32": "portable", "rounded": "portable", "rounded_to": "f32", "refused": []});
    assert_eq!(kernels("reference"), plain);
    assert_eq!(
        kernels(""),
        json(&place.triad(&["devices", "--json"]))["kernels"]
    );
    let unknown = devices("sse9");
    assert_eq!(unknown.status.code(), Some(1));
    let printed = stderr(&unknown);
    assert!(
        printed.contains("TRIAD_KERNELS is \"sse9\"") && printed.contains("reference"),
        "{printed}"
    );
}

#[test]
fn every_command_has_help_with_examples() {
    for command in COMMANDS {
        let help = succeed(&Place::new().triad(&[command, "--help"]));
        assert!(
            help.contains("Examples:") && help.contains(&format!("triad {command}")),
            "{help}"
        );
    }
    let help = succeed(&Place::new().triad(&["--help"]));
    assert!(
        COMMANDS.iter().all(|command| help.contains(command)),
        "{help}"
    );
}

#[test]
fn every_shell_gets_completions_that_name_the_commands() {
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let script = succeed(&Place::new().triad(&["completions", shell]));
        assert!(script.contains("tokenize"), "{shell}");
    }
}

/// Starts an answer without an end. Returns the child process and its output, after the first byte of the answer.
#[cfg(unix)]
fn endless(place: &Place) -> (std::process::Child, std::process::ChildStdout) {
    let model = Gguf::tiny()
        .without("tokenizer.ggml.eos")
        .with("llama.context_length", Value::U32(200_000));
    let types: Vec<i32> = vec![1; VOCAB];
    place.write(
        "endless.gguf",
        model
            .with("tokenizer.ggml.token_type", Value::Integers(types))
            .bytes(),
    );
    let arguments = [
        "run",
        "--no-quantize",
        "-m",
        "endless.gguf",
        "--raw",
        "-p",
        "Hello",
        "-n",
        "150000",
        "--temperature",
        "0",
        "--threads",
        "1",
    ];
    let mut child = place
        .command(&arguments)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut answer = child.stdout.take().unwrap();
    answer.read_exact(&mut [0]).unwrap();
    (child, answer)
}

/// Sends a signal.
#[cfg(unix)]
fn signal(child: &std::process::Child, name: &str) {
    let signalled = std::process::Command::new("sh")
        .args(["-c", &format!("kill -{name} {}", child.id())])
        .status()
        .unwrap();
    assert!(signalled.success());
}

#[test]
#[cfg(unix)]
fn ctrl_c_and_the_signals_to_terminate_end_the_answer_with_exit_code_130() {
    for name in ["INT", "TERM", "HUP"] {
        let place = Place::new();
        let (child, mut answer) = endless(&place);
        signal(&child, name);
        answer.read_to_end(&mut Vec::new()).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(130), "{name}");
        let printed = stderr(&output);
        assert!(printed.contains("; interrupted"), "{printed}");
    }
}

/// Starts a server of models that begins to send a large file and then stalls.
#[cfg(unix)]
fn stalled_hub() -> std::net::SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut kept = Vec::new();
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                head.push(byte[0]);
            }
            let reply = "HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\nETag: \"x\"\r\n\r\nGGUF";
            std::io::Write::write_all(&mut stream, reply.as_bytes()).unwrap();
            kept.push(stream);
        }
    });
    address
}

#[test]
#[cfg(target_os = "linux")]
fn a_hangup_that_nohup_ignores_stays_ignored() {
    let place = Place::new();
    let hub = stalled_hub();
    let triad = env!("CARGO_BIN_EXE_triad");
    let script = format!("trap '' HUP; exec {triad} pull hf:owner/name:model.gguf");
    let mut child = place
        .command(&[])
        .stderr(Stdio::null())
        .get_envs()
        .fold(
            std::process::Command::new("/bin/sh"),
            |mut shell, (name, value)| {
                match value {
                    Some(value) => shell.env(name, value),
                    None => shell.env_remove(name),
                };
                shell
            },
        )
        .args(["-c", &script])
        .env("HF_ENDPOINT", format!("http://{hub}"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // The handlers are installed when another signal would end the process cleanly: the signal masks of its threads
    // show that.
    let status = format!("/proc/{}/status", child.id());
    let start = std::time::Instant::now();
    let blocks = || {
        let text = std::fs::read_to_string(&status).unwrap_or_default();
        let mask = text.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        mask.is_some_and(|mask| u64::from_str_radix(mask.trim(), 16).unwrap() & (1 << 14) != 0)
    };
    while !blocks() {
        assert!(start.elapsed().as_secs() < 60);
    }
    signal(&child, "HUP");
    std::thread::sleep(std::time::Duration::from_millis(200));
    assert!(child.try_wait().unwrap().is_none(), "the hangup ended it");
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
#[cfg(unix)]
fn a_reader_that_leaves_is_not_an_error() {
    let place = Place::new();
    let (child, answer) = endless(&place);
    drop(answer);
    let output = child.wait_with_output().unwrap();
    assert_eq!(
        (output.status.code(), stderr(&output).as_str()),
        (Some(0), "")
    );
}

#[test]
#[cfg(target_os = "linux")]
fn a_full_disk_is_an_error() {
    let full = std::fs::OpenOptions::new()
        .write(true)
        .open("/dev/full")
        .unwrap();
    let output = Place::new()
        .command(&["devices"])
        .stdout(full)
        .output()
        .unwrap();
    assert_eq!(
        (
            output.status.code(),
            stderr(&output).contains("No space left")
        ),
        (Some(1), true)
    );
}

#[test]
fn info_names_tensors_that_the_model_does_not_use() {
    let families = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/golden/families/qwen3_5-images"
    );
    let text = succeed(&place().triad(&["info", families]));
    assert!(
        text.contains("not used") && text.contains("such as model.visual."),
        "{text}"
    );
}
