//! GGUF files with a mistake.

use super::support::gguf::{Gguf, HIDDEN, Tensor, Value};
use super::{Case, case};

pub(super) const RUN: &[&str] = &["run", "-m", "model.gguf", "-p", "Hello"];

/// Returns a case of a GGUF file that `triad run` refuses.
pub(super) fn file(
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

pub fn cases() -> Vec<Case> {
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
