//! Writes tiny GGUF models, valid or with a single mistake.

/// Metadata values that the tests need.
#[derive(Clone)]
pub enum Value {
    U32(u32),
    F32(f32),
    #[allow(dead_code, reason = "not every test has one")]
    Bool(bool),
    Text(String),
    Texts(Vec<String>),
    Integers(Vec<i32>),
}

#[derive(Clone)]
pub struct Tensor {
    pub name: String,
    /// Outermost dimension first.
    pub shape: Vec<u64>,
    pub values: Vec<f32>,
    /// Number of the format; 0 is f32.
    pub format: u32,
    /// The offset of the data in the header, if it is wrong.
    pub offset: Option<u64>,
}

/// The content of a GGUF file, which tests change before it is written.
#[derive(Clone)]
pub struct Gguf {
    pub magic: [u8; 4],
    pub version: u32,
    /// The number in the header instead of the true one.
    pub tensor_count: Option<u64>,
    /// The number in the header instead of the true one.
    pub metadata_count: Option<u64>,
    pub metadata: Vec<(String, Value)>,
    pub tensors: Vec<Tensor>,
}

pub const HIDDEN: u64 = 32;
pub const VOCAB: usize = 258;
pub const CONTEXT: u32 = 64;
const WIDTH: u64 = 48;
const END: &str = "<|end|>";

/// Each message, ended by a newline.
const TEMPLATE: &str =
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}";

impl Gguf {
    /// Returns a llama with one block and random weights. Its tokens are the 256 bytes, `ab` and an end token:
    /// [`VOCAB`].
    pub fn tiny() -> Self {
        let tokens: Vec<String> = (0..=255)
            .map(byte_letter)
            .chain(["ab".to_owned(), END.to_owned()])
            .collect();
        let vocab = VOCAB as u64;
        let end = vocab as u32 - 1;
        let types = (0..=end)
            .map(|token| if token == end { 3 } else { 1 })
            .collect();
        let text = |text: &str| Value::Text(text.into());
        let metadata = [
            ("general.architecture", text("llama")),
            ("general.name", text("tiny")),
            ("llama.context_length", Value::U32(CONTEXT)),
            ("llama.embedding_length", Value::U32(HIDDEN as u32)),
            ("llama.block_count", Value::U32(1)),
            ("llama.feed_forward_length", Value::U32(WIDTH as u32)),
            ("llama.attention.head_count", Value::U32(2)),
            ("llama.attention.head_count_kv", Value::U32(1)),
            ("llama.attention.layer_norm_rms_epsilon", Value::F32(1e-5)),
            ("tokenizer.ggml.model", text("gpt2")),
            ("tokenizer.ggml.pre", text("gpt-2")),
            ("tokenizer.ggml.tokens", Value::Texts(tokens)),
            ("tokenizer.ggml.token_type", Value::Integers(types)),
            ("tokenizer.ggml.merges", Value::Texts(vec!["a b".into()])),
            ("tokenizer.ggml.eos_token_id", Value::U32(end)),
            ("tokenizer.chat_template", text(TEMPLATE)),
        ];
        let key_value = HIDDEN / 2;
        let tensors = [
            ("token_embd.weight", vec![vocab, HIDDEN]),
            ("output_norm.weight", vec![HIDDEN]),
            ("blk.0.attn_norm.weight", vec![HIDDEN]),
            ("blk.0.attn_q.weight", vec![HIDDEN, HIDDEN]),
            ("blk.0.attn_k.weight", vec![key_value, HIDDEN]),
            ("blk.0.attn_v.weight", vec![key_value, HIDDEN]),
            ("blk.0.attn_output.weight", vec![HIDDEN, HIDDEN]),
            ("blk.0.ffn_norm.weight", vec![HIDDEN]),
            ("blk.0.ffn_gate.weight", vec![WIDTH, HIDDEN]),
            ("blk.0.ffn_up.weight", vec![WIDTH, HIDDEN]),
            ("blk.0.ffn_down.weight", vec![HIDDEN, WIDTH]),
        ];
        let mut random = 1_u32;
        let mut next = || {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (random >> 16) as f32 / 65_536.0 - 0.5
        };
        let mut gguf = Self {
            magic: *b"GGUF",
            version: 3,
            tensor_count: None,
            metadata_count: None,
            metadata: metadata.map(|(key, value)| (key.to_owned(), value)).into(),
            tensors: Vec::new(),
        };
        for (name, shape) in tensors {
            let values = (0..shape.iter().product()).map(|_| next()).collect();
            gguf.tensors.push(Tensor {
                name: name.into(),
                shape,
                values,
                format: 0,
                offset: None,
            });
        }
        gguf
    }

    /// Returns a LoRA adapter of [`Gguf::tiny`]: rank 2 on its value layers, with all numbers equal to `value`.
    pub fn adapter(value: f32) -> Self {
        let text = |text: &str| Value::Text(text.into());
        let metadata = [
            ("general.type", text("adapter")),
            ("adapter.type", text("lora")),
            ("general.architecture", text("llama")),
            ("adapter.lora.alpha", Value::F32(2.0)),
        ];
        let tensor = |end: &str, shape: [u64; 2]| Tensor {
            name: format!("blk.0.attn_v.weight.lora_{end}"),
            shape: shape.to_vec(),
            values: vec![value; (shape[0] * shape[1]) as usize],
            format: 0,
            offset: None,
        };
        Self {
            metadata: metadata.map(|(key, value)| (key.to_owned(), value)).into(),
            tensors: vec![tensor("a", [2, HIDDEN]), tensor("b", [HIDDEN / 2, 2])],
            ..Self::tiny()
        }
    }

    /// Returns the file with one metadata field changed or added.
    pub fn with(mut self, key: &str, value: Value) -> Self {
        match self.metadata.iter_mut().find(|(name, _)| name == key) {
            Some((_, old)) => *old = value,
            None => self.metadata.push((key.into(), value)),
        }
        self
    }

    /// Returns the file without the metadata fields that begin with `prefix`.
    pub fn without(mut self, prefix: &str) -> Self {
        self.metadata.retain(|(key, _)| !key.starts_with(prefix));
        self
    }

    /// Returns the bytes of the file.
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend(self.magic);
        out.extend(self.version.to_le_bytes());
        out.extend(
            self.tensor_count
                .unwrap_or(self.tensors.len() as u64)
                .to_le_bytes(),
        );
        out.extend(
            self.metadata_count
                .unwrap_or(self.metadata.len() as u64)
                .to_le_bytes(),
        );
        for (key, value) in &self.metadata {
            text(&mut out, key);
            write_value(&mut out, value);
        }
        let mut offset = 0;
        for tensor in &self.tensors {
            text(&mut out, &tensor.name);
            out.extend((tensor.shape.len() as u32).to_le_bytes());
            for size in tensor.shape.iter().rev() {
                out.extend(size.to_le_bytes());
            }
            out.extend(tensor.format.to_le_bytes());
            out.extend(tensor.offset.unwrap_or(offset).to_le_bytes());
            offset = (offset + 4 * tensor.values.len() as u64).next_multiple_of(32);
        }
        for tensor in &self.tensors {
            out.resize(out.len().next_multiple_of(32), 0);
            out.extend(tensor.values.iter().flat_map(|value| value.to_le_bytes()));
        }
        out
    }
}

fn text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

/// Numbers of the types in the file.
mod kind {
    pub const U32: u32 = 4;
    pub const I32: u32 = 5;
    pub const F32: u32 = 6;
    pub const BOOL: u32 = 7;
    pub const TEXT: u32 = 8;
    pub const ARRAY: u32 = 9;
}

fn write_value(out: &mut Vec<u8>, value: &Value) {
    let mut number = |number: u32| out.extend(number.to_le_bytes());
    match value {
        Value::U32(value) => [kind::U32, *value].into_iter().for_each(number),
        Value::F32(value) => [kind::F32, value.to_bits()].into_iter().for_each(number),
        Value::Bool(value) => {
            number(kind::BOOL);
            out.push(u8::from(*value));
        }
        Value::Text(value) => {
            number(kind::TEXT);
            text(out, value);
        }
        Value::Texts(values) => {
            [kind::ARRAY, kind::TEXT].into_iter().for_each(number);
            out.extend((values.len() as u64).to_le_bytes());
            values.iter().for_each(|value| text(out, value));
        }
        Value::Integers(values) => {
            [kind::ARRAY, kind::I32].into_iter().for_each(number);
            out.extend((values.len() as u64).to_le_bytes());
            out.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        }
    }
}

/// Returns the character of a byte in byte-level vocabularies: the byte itself if it is visible, otherwise the next
/// free character from U+0100 on.
pub fn byte_letter(byte: u8) -> String {
    let visible = |byte: u8| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let code = if visible(byte) {
        u32::from(byte)
    } else {
        0x100 + (0..byte).filter(|earlier| !visible(*earlier)).count() as u32
    };
    char::from_u32(code).unwrap().to_string()
}
