#!/usr/bin/env python3
"""Compares Triad with llama.cpp on a tiny random model in every quantized type of GGUF.

    pip install gguf safetensors xllamacpp
    cargo build --release
    python tests/reference/tensor_types.py [--triad target/release/triad] [TYPE ...]

The model's matrices, embedding and output matrix among them, are quantized by llama.cpp. Prints for each type the largest
difference of a log-probability relative to the largest logit:

- exact: `triad logits` on the quantized file and llama.cpp on the dequantized matrices in F32;
- Triad: `triad logits` on both files, which must be 0;
- rounded: `triad logits` and llama.cpp on the quantized file, where llama.cpp rounds activations to INT8;
- decode: how many of 24 tokens `triad run` takes alike on both files, greedily and with activations in INT16.
"""

import argparse
import ctypes
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import gguf
import numpy as np
import xllamacpp
from safetensors.numpy import load_file

sys.path.append(str(Path(__file__).parent / "fields"))
from oracles import Worker, prefixes

VOCAB, HIDDEN, WIDTH, BLOCKS, HEADS, KV_HEADS = 128, 256, 512, 2, 8, 4
TYPES = {
    "Q4_0": 2, "Q4_1": 3, "Q5_0": 6, "Q5_1": 7, "Q8_0": 8, "Q2_K": 10, "Q3_K": 11, "Q4_K": 12, "Q5_K": 13, "Q6_K": 14,
    "IQ4_NL": 20, "IQ4_XS": 23, "MXFP4": 39, "Q1_0": 41, "Q2_0": 42, "IQ3_S": 21, "IQ3_XXS": 18, "IQ2_XXS": 16,
    "IQ2_XS": 17, "IQ2_S": 22, "NVFP4": 40, "TQ1_0": 34, "TQ2_0": 35, "IQ1_S": 19, "IQ1_M": 29,
}
LIBRARY = ctypes.CDLL(str(next(Path(xllamacpp.__file__).parent.glob("*.so"))))
# The package lacks this type.
gguf.GGML_QUANT_SIZES[42] = (64, 18)


def quantize(values, number):
    elements, size = gguf.GGML_QUANT_SIZES[number]
    stored = np.zeros((values.shape[0], values.shape[1] // elements * size), np.uint8)
    function = LIBRARY.ggml_quantize_chunk
    function.restype = ctypes.c_size_t
    function.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, *[ctypes.c_int64] * 3, ctypes.c_void_p]
    importance = np.ones(values.shape[1], np.float32)
    rows, columns = values.shape
    written = function(number, values.ctypes.data, stored.ctypes.data, 0, rows, columns, importance.ctypes.data)
    assert written == stored.size, (written, stored.size)
    return stored


def dequantize(stored, name, shape):
    function = getattr(LIBRARY, "dequantize_row_" + name.lower().replace("_k", "_K"))
    function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64]
    values = np.empty(shape, np.float32)
    function(stored.ctypes.data, values.ctypes.data, values.size)
    return values


def tensors():
    generator = np.random.default_rng(1)
    matrix = lambda rows, columns, scale=1.0: (
        generator.standard_normal((rows, columns)) * scale / np.sqrt(columns)
    ).astype(np.float32)
    norm = lambda: generator.uniform(0.8, 1.2, HIDDEN).astype(np.float32)
    yield "token_embd.weight", matrix(VOCAB, HIDDEN, 8.0)
    yield "output.weight", matrix(VOCAB, HIDDEN, 4.0)
    yield "output_norm.weight", norm()
    kv = HIDDEN // HEADS * KV_HEADS
    for block in range(BLOCKS):
        for name in "attn_norm", "ffn_norm":
            yield f"blk.{block}.{name}.weight", norm()
        for name, rows, columns in [
            ("attn_q", HIDDEN, HIDDEN), ("attn_k", kv, HIDDEN), ("attn_v", kv, HIDDEN), ("attn_output", HIDDEN, HIDDEN),
            ("ffn_gate", WIDTH, HIDDEN), ("ffn_up", WIDTH, HIDDEN), ("ffn_down", HIDDEN, WIDTH),
        ]:
            yield f"blk.{block}.{name}.weight", matrix(rows, columns)


def write(path, convert):
    """Writes the model; `convert` returns the stored form and the type of a matrix."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("random")
    writer.add_context_length(256)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(BLOCKS)
    writer.add_feed_forward_length(WIDTH)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    special = ["<unk>", "<s>", "</s>", "<0x0A>"]
    writer.add_token_list(special + [f"t{token}" for token in range(len(special), VOCAB)])
    writer.add_token_scores([0.0] * VOCAB)
    types = [gguf.TokenType.UNKNOWN, gguf.TokenType.CONTROL, gguf.TokenType.CONTROL, gguf.TokenType.BYTE]
    writer.add_token_types(types + [gguf.TokenType.NORMAL] * (VOCAB - len(types)))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    for name, values in tensors():
        if values.ndim == 2:
            stored, number = convert(values)
            writer.add_tensor(name, stored, raw_dtype=number)
        else:
            writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def triad_logits(triad, model, tokens, output):
    command = [triad, "logits", "-m", model, "--tokens", ",".join(map(str, tokens)), "--cache-type", "f32", "-o", output]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    logits = load_file(output)["logits"].astype(np.float64)
    return logits[[end - 1 for end in prefixes(len(tokens))]]


def log_softmax(logits):
    logits = logits - logits.max(axis=-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))


def greedy(triad, model, tokens):
    """The tokens of a greedy answer, which decode computes with rounded activations."""
    text = "".join(f"t{token}" for token in tokens)
    command = [triad, "run", "-m", model, "--raw", "-p", text, "-n", "24", "--temperature", "0", "--no-quantize", "--json"]
    run = subprocess.run(command + ["--repetition-penalty", "1"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    return json.loads(run.stdout)["tokens"] if run.returncode == 0 else None


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--triad", default="target/release/triad")
    parser.add_argument("types", nargs="*", default=list(TYPES))
    options = parser.parse_args()
    tokens = [1] + [int(token) for token in np.random.default_rng(2).integers(4, VOCAB - 1, 39)]
    peer = Worker("llama.cpp")
    wrong = False
    print("| type | exact | Triad | rounded | decode |\n| --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder:
        stored_path, wide_path, output = (Path(folder) / name for name in ("stored.gguf", "wide.gguf", "logits"))
        for name in options.types:
            number = TYPES[name]
            write(stored_path, lambda values: (quantize(values, number), number))
            wide = lambda values: dequantize(quantize(values, number), name, values.shape)
            write(wide_path, lambda values: (wide(values), gguf.GGMLQuantizationType.F32))
            ours, ours_wide = (triad_logits(options.triad, path, tokens, output) for path in (stored_path, wide_path))
            largest = np.abs(ours).max()
            cells = []
            for path in wide_path, stored_path:
                theirs, refusal = peer.logits(path, tokens)
                difference = np.nan if theirs is None else np.abs(log_softmax(ours) - log_softmax(theirs)).max() / largest
                cells.append(refusal or f"{difference:.1e}")
            own = np.abs(ours - ours_wide).max() / largest
            answers = [greedy(options.triad, path, tokens[1:]) for path in (stored_path, wide_path)]
            same = "none" if None in answers else sum(a == b for a, b in zip(*answers))
            print(f"| {name} | {cells[0]} | {own:.1e} | {cells[1]} | {same} |", flush=True)
            wrong |= own != 0
    peer.close()
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
