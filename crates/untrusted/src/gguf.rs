//! Reads arbitrary bytes as a GGUF file: an accepted file can be described, dequantized and used for tokenization, or
//! is refused.

use triad_model::dequantize::dequantize;
use triad_model::tensor::TensorInfo;
use triad_model::tokenizer::{EncodeOptions, Tokenizer};
use triad_model::{family, gguf};

/// Reads one input.
pub fn read(bytes: &[u8]) {
    let Ok(file) = gguf::read(bytes) else { return };
    let read_f32 = |tensor: &TensorInfo| {
        let mut elements = vec![0.0; tensor.elements()];
        dequantize(tensor.format, &bytes[tensor.bytes.clone()], &mut elements);
        Ok(elements)
    };
    for tensor in file.tensors.values() {
        read_f32(tensor).expect("tensors are inside the file");
    }
    let _ = family::from_gguf(&file.metadata, &file.tensors, &read_f32);
    if let Ok(tokenizer) = Tokenizer::from_gguf(&file.metadata) {
        for options in [EncodeOptions::TEMPLATE, EncodeOptions::TEXT] {
            if let Ok(tokens) =
                tokenizer.encode("<s>Hello, wörld! 你好 <|im_end|>\n  12345", options)
            {
                tokenizer.decode(&tokens);
            }
        }
    }
}
