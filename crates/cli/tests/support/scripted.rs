//! A model that says a script: attention and feed-forward are zero, so each token has one successor.

use crate::support::gguf::{Gguf, Tensor, Value, byte_letter};

/// A token of a script.
#[derive(Clone, Copy)]
pub enum Word<'a> {
    /// A piece of text.
    Text(&'a str),
    /// A control token of this name.
    Control(&'a str),
}

/// Returns a model that has the bytes and these words as tokens, and follows each first word of `next` by the second one.
/// Its answers end at the word `end`.
pub fn scripted(words: &[Word], next: &[(usize, usize)], end: usize, template: &str) -> Gguf {
    const BYTES: usize = 256;
    let mut tokens: Vec<String> = (0..=255).map(byte_letter).collect();
    tokens.extend(words.iter().map(|word| match word {
        Word::Text(text) => text.bytes().map(byte_letter).collect(),
        Word::Control(name) => (*name).to_owned(),
    }));
    let kinds = words.iter().map(|word| match word {
        Word::Text(_) => 1,
        Word::Control(_) => 3,
    });
    let types = std::iter::repeat_n(1, BYTES).chain(kinds).collect();
    let (count, hidden) = (tokens.len(), tokens.len().next_multiple_of(32));
    let heads = hidden as u32 / 32;
    let mut gguf = Gguf::tiny();
    for (key, value) in [
        ("llama.context_length", Value::U32(4096)),
        ("llama.embedding_length", Value::U32(hidden as u32)),
        ("llama.feed_forward_length", Value::U32(64)),
        ("llama.attention.head_count", Value::U32(heads)),
        ("llama.attention.head_count_kv", Value::U32(heads)),
        ("tokenizer.ggml.tokens", Value::Texts(tokens)),
        ("tokenizer.ggml.token_type", Value::Integers(types)),
        ("tokenizer.ggml.merges", Value::Texts(Vec::new())),
        (
            "tokenizer.ggml.eos_token_id",
            Value::U32((BYTES + end) as u32),
        ),
        ("tokenizer.chat_template", Value::Text(template.into())),
    ] {
        gguf = gguf.with(key, value);
    }
    let matrix = |rows: usize, columns: usize, ones: &[(usize, usize)]| {
        let mut values = vec![0.0; rows * columns];
        ones.iter()
            .for_each(|(row, column)| values[row * columns + column] = 1.0);
        (vec![rows as u64, columns as u64], values)
    };
    let identity: Vec<_> = (0..count).map(|token| (token, token)).collect();
    let successors = next.iter().map(|(from, to)| (BYTES + to, BYTES + from));
    let successors: Vec<_> = successors.collect();
    let square = || matrix(hidden, hidden, &[]);
    let ones = || (vec![hidden as u64], vec![1.0; hidden]);
    let all = [
        ("token_embd.weight", matrix(count, hidden, &identity)),
        ("output.weight", matrix(count, hidden, &successors)),
        ("output_norm.weight", ones()),
        ("blk.0.attn_norm.weight", ones()),
        ("blk.0.attn_q.weight", square()),
        ("blk.0.attn_k.weight", square()),
        ("blk.0.attn_v.weight", square()),
        ("blk.0.attn_output.weight", square()),
        ("blk.0.ffn_norm.weight", ones()),
        ("blk.0.ffn_gate.weight", matrix(64, hidden, &[])),
        ("blk.0.ffn_up.weight", matrix(64, hidden, &[])),
        ("blk.0.ffn_down.weight", matrix(hidden, 64, &[])),
    ];
    gguf.tensors = all
        .into_iter()
        .map(|(name, (shape, values))| Tensor {
            name: name.into(),
            shape,
            values,
            format: 0,
            offset: None,
        })
        .collect();
    gguf
}
