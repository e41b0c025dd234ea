"""Writes a GGUF file with all matrices in one format: `make_gguf.py OUTPUT [SOURCE] [--shape 1.8b|7b|tiny] [--type F16|Q4_K]`.

With SOURCE, a copy of that file with all matrices widened or rounded to F16: every engine's weights are converted from
it. Without, random weights in the shape of Qwen1.5, or of one small block, the same ones every time; in Q4_K they are
blocks of random numbers. Its tokenizer knows single bytes only: enough to read any text.
"""

import argparse

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


# Hidden, blocks, heads, width of the feed-forward.
SHAPES = {"1.8b": (2048, 24, 16, 5504), "7b": (4096, 32, 32, 11008), "tiny": (256, 1, 4, 512)}
VOCABULARY = 151936


def random(output, shape, kind):
    (hidden, blocks, heads, width), vocab = SHAPES[shape], VOCABULARY
    writer = gguf.GGUFWriter(output, "qwen2")
    writer.add_name(f"random weights in the shape of Qwen1.5-{shape.upper()}")
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
        name = f"{name}.weight"
        if kind == "Q4_K":
            writer.add_tensor(name, q4_k(generator, rows, columns), raw_dtype=gguf.GGMLQuantizationType.Q4_K)
        else:
            values = generator.standard_normal((rows, columns), dtype=numpy.float32) * 0.02
            writer.add_tensor(name, values.astype(numpy.float16))

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


def q4_k(generator, rows, columns):
    """Blocks of 256 weights from about -0.04 to 0.04: scale and minimum, 12 bytes of scales of 32 weights, 128 of weights."""
    blocks = rows * columns // 256
    values = numpy.empty((blocks, 144), numpy.uint8)
    # Scales of 32 weights and minima have six bits: all are 33 here, so that a weight of 7.5 is 0.
    values[:, 0:4] = numpy.array([0.005 / 33, 7.5 * 0.005 / 33], numpy.float16).view(numpy.uint8)
    values[:, 4:12], values[:, 12:16] = 0b10_100001, 0b0001_0001
    values[:, 16:] = generator.integers(0, 256, (blocks, 128), dtype=numpy.uint8)
    return values.reshape(rows, -1)


def tokenizer(writer, vocab):
    # Byte-level BPE writes a byte as a printable character: itself if it is printable, else one from 256 on.
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


parser = argparse.ArgumentParser()
parser.add_argument("output")
parser.add_argument("source", nargs="?")
parser.add_argument("--shape", choices=SHAPES, default="1.8b")
parser.add_argument("--type", choices=["F16", "Q4_K"], default="F16")
arguments = parser.parse_args()
if arguments.source:
    writer = copy(arguments.output, arguments.source)
else:
    writer = random(arguments.output, arguments.shape, arguments.type)
q4_k_file = not arguments.source and arguments.type == "Q4_K"
writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_K_M if q4_k_file else gguf.LlamaFileType.MOSTLY_F16)
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()
