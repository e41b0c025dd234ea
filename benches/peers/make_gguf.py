"""Writes the F16 GGUF file that every engine's weights are converted from: `make_gguf.py OUTPUT [SOURCE]`.

With SOURCE, a copy of that file with all matrices widened or rounded to F16; without, random weights in the shape of
Qwen1.5-1.8B, the same ones every time. Its tokenizer knows single bytes only: enough to read any text.
"""

import sys

import gguf
import numpy


def copy(output, source):
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(output, reader.fields["general.architecture"].contents())
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key in ("general.architecture", "general.file_type", "general.quantization_version"):
            continue
        if field.types[0] == gguf.GGUFValueType.ARRAY:
            writer.add_array(key, field.contents())
        else:
            writer.add_key_value(key, field.contents(), field.types[0])
    for tensor in reader.tensors:
        values = gguf.dequantize(tensor.data, tensor.tensor_type)
        writer.add_tensor(tensor.name, values.astype(numpy.float16) if values.ndim > 1 else values)
    return writer


def random(output):
    hidden, blocks, heads, width, vocab = 2048, 24, 16, 5504, 151936
    writer = gguf.GGUFWriter(output, "qwen2")
    writer.add_name("random weights in the shape of Qwen1.5-1.8B")
    writer.add_context_length(32768)
    writer.add_embedding_length(hidden)
    writer.add_block_count(blocks)
    writer.add_feed_forward_length(width)
    writer.add_head_count(heads)
    writer.add_head_count_kv(heads)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1e6)
    tokenizer(writer, vocab)

    generator = numpy.random.default_rng(1)

    def matrix(name, rows, columns):
        values = generator.standard_normal((rows, columns), dtype=numpy.float32) * 0.02
        writer.add_tensor(f"{name}.weight", values.astype(numpy.float16))

    def norm(name):
        writer.add_tensor(f"{name}.weight", numpy.ones(hidden, numpy.float32))

    matrix("token_embd", vocab, hidden)
    matrix("output", vocab, hidden)
    norm("output_norm")
    for block in (f"blk.{index}." for index in range(blocks)):
        norm(block + "attn_norm")
        norm(block + "ffn_norm")
        for name in ("attn_q", "attn_k", "attn_v"):
            matrix(block + name, hidden, hidden)
            writer.add_tensor(f"{block}{name}.bias", numpy.zeros(hidden, numpy.float32))
        matrix(block + "attn_output", hidden, hidden)
        matrix(block + "ffn_gate", width, hidden)
        matrix(block + "ffn_up", width, hidden)
        matrix(block + "ffn_down", hidden, width)
    return writer


def tokenizer(writer, vocab):
    # Byte-level BPE writes a byte as a printable character: itself where it is one, else one from 256 on.
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    tokens = [chr(byte) for byte in printable] + [chr(256 + index) for index in range(len(others))]
    tokens += ["th", "<|endoftext|>"]
    kinds = [gguf.TokenType.NORMAL] * 257 + [gguf.TokenType.CONTROL]
    unused = vocab - len(tokens)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens + [f"[unused{index}]" for index in range(unused)])
    writer.add_token_types(kinds + [gguf.TokenType.UNUSED] * unused)
    writer.add_token_merges(["t h"])
    writer.add_bos_token_id(257)
    writer.add_eos_token_id(257)
    writer.add_pad_token_id(257)


output, *source = sys.argv[1:]
writer = copy(output, *source) if source else random(output)
writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()
