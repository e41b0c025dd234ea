//! Folders of safetensors with a mistake.

use serde_json::json;

use super::support::{Place, checkpoint};
use super::{Case, case};

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

pub fn cases() -> Vec<Case> {
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
