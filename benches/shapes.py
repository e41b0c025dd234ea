#!/usr/bin/env python3
"""Compares Triad with llama.cpp on models that are more than attention and dense layers, on the same files, in turns.

    pip install gguf numpy
    cargo build --release
    python benches/shapes.py --llama target/peers/llama.cpp/bin/llama-bench lfm2-1.2b qwen3.5-2b olmoe-1b-7b

Models have random weights in the true shapes and vocabularies of the models that are named, in Q4_0, embeddings in Q8_0, and
experts of gpt-oss in MXFP4. Both engines compute them as they are stored (Triad with --no-quantize). --prepare adds Triad's
default for the dense ones, a package in W8A8, which `triad prepare` makes of random texts.

A round starts each engine once for each test, one process after the other: prefill of --prompts tokens, and decoding of
--decode tokens. Tables have medians over the rounds of tokens per second and of the ratios of one round, and the largest
memory of a process, mapped files included. `benches/peers/run --parts prefill --models smollm2` builds llama.cpp for this machine.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

import gguf
import numpy as np

ATTENTION_OF_LFM2 = [2, 5, 8, 10, 12, 14]
ATTENTION_OF_LFM2_8B = [2, 6, 10, 14, 18, 21]

# Fields of the header without the architecture's name before them, as llama.cpp's converter writes them.
Q4_0, Q8_0, MXFP4, F32 = (gguf.GGMLQuantizationType[name] for name in ("Q4_0", "Q8_0", "MXFP4", "F32"))
BLOCK_BYTES = {Q4_0: 18, Q8_0: 34, MXFP4: 17}
BLOCK = 32
VALUES_OF_TILE = 1 << 22


class Model:
    """A model's header and tensors, whose values are written one after the other, so that they need not fit in memory."""

    def __init__(self, path, arch, vocabulary, hidden, blocks, heads, dim, inner, epsilon, context=32768):
        self.writer, self.arch, self.hidden = gguf.GGUFWriter(path, arch), arch, hidden
        self.tensors, self.random = [], np.random.default_rng(11)
        self.fields(context_length=context, embedding_length=hidden, block_count=blocks, feed_forward_length=inner)
        self.fields("attention.", head_count=heads, key_length=dim, value_length=dim, layer_norm_rms_epsilon=epsilon)
        self.matrix("token_embd", hidden, vocabulary, kind=Q8_0)
        self.tokenizer(vocabulary)
        self.tiles = {}

    def fields(self, prefix="", **values):
        for name, value in values.items():
            key = f"{self.arch}.{prefix}{name}"
            if isinstance(value, bool):
                self.writer.add_bool(key, value)
            elif isinstance(value, int):
                self.writer.add_uint32(key, value)
            elif isinstance(value, float):
                self.writer.add_float32(key, value)
            elif isinstance(value, str):
                self.writer.add_string(key, value)
            else:
                self.writer.add_array(key, value)

    def tokenizer(self, vocabulary):
        # Byte-level BPE writes a byte as a printable character: itself if it is printable, else one from 256 on.
        printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
        tokens = [chr(byte) for byte in printable] + [chr(256 + index) for index in range(256 - len(printable))]
        tokens += ["th", "<|endoftext|>"]
        kinds = [gguf.TokenType.NORMAL] * 257 + [gguf.TokenType.CONTROL]
        unused = vocabulary - len(tokens)
        self.writer.add_tokenizer_model("gpt2")
        self.writer.add_tokenizer_pre("qwen2")
        self.writer.add_token_list(tokens + [f"[unused{index}]" for index in range(unused)])
        self.writer.add_token_types(kinds + [gguf.TokenType.UNUSED] * unused)
        self.writer.add_token_merges(["t h"])
        self.writer.add_bos_token_id(257)
        self.writer.add_eos_token_id(257)

    def matrix(self, name, columns, *rows, kind=Q4_0):
        self.tensors.append((f"{name}.weight", (*reversed(rows), columns), kind, None))

    def floats(self, name, *shape, fill=None):
        """A tensor of floats, random ones unless `fill` is given. Its shape has the columns last."""
        self.tensors.append((name, shape, F32, fill))

    def norm(self, name, width=None):
        self.floats(f"{name}.weight", width or self.hidden, fill=1.0)

    def dense(self, block, inner):
        self.matrix(f"{block}ffn_gate", self.hidden, inner)
        self.matrix(f"{block}ffn_up", self.hidden, inner)
        self.matrix(f"{block}ffn_down", inner, self.hidden)

    def experts(self, block, count, inner, kind=Q4_0):
        self.floats(f"{block}ffn_gate_inp.weight", count, self.hidden)
        self.matrix(f"{block}ffn_gate_exps", self.hidden, inner, count, kind=kind)
        self.matrix(f"{block}ffn_up_exps", self.hidden, inner, count, kind=kind)
        self.matrix(f"{block}ffn_down_exps", inner, self.hidden, count, kind=kind)

    def attention(self, block, queries, keys, output=None):
        self.matrix(f"{block}attn_q", self.hidden, queries)
        self.matrix(f"{block}attn_k", self.hidden, keys)
        self.matrix(f"{block}attn_v", self.hidden, keys)
        self.matrix(f"{block}attn_output", output or queries, self.hidden)

    def values(self, shape, kind, fill):
        """Returns the bytes of a tensor: another part of one random tile for each."""
        count = int(np.prod(shape))
        if kind == F32:
            return np.full(shape, fill, np.float32) if fill is not None else self.random.standard_normal(shape, np.float32)
        size = BLOCK_BYTES[kind]
        if kind not in self.tiles:
            tile = self.random.integers(0, 256, (VALUES_OF_TILE // BLOCK, size), dtype=np.uint8)
            if kind == MXFP4:
                # A power of two, 2^-8.
                tile[:, 0] = 119
            else:
                tile[:, :2] = np.array([0.003 if kind == Q4_0 else 0.0002], np.float16).view(np.uint8)
            self.tiles[kind] = tile
        start = int(self.random.integers(0, VALUES_OF_TILE // BLOCK))
        blocks = np.resize(np.roll(self.tiles[kind], start, axis=0), (count // BLOCK, size))
        return blocks.reshape(*shape[:-1], shape[-1] // BLOCK * size)

    def close(self):
        sizes = {name: int(np.prod(shape)) * (BLOCK_BYTES[kind] / BLOCK if kind != F32 else 4) for name, shape, kind, _ in self.tensors}
        for name, shape, kind, _ in self.tensors:
            stored = shape if kind == F32 else (*shape[:-1], shape[-1] // BLOCK * BLOCK_BYTES[kind])
            dtype = np.dtype(np.float32 if kind == F32 else np.uint8)
            self.writer.add_tensor_info(name, stored, dtype, int(sizes[name]), None if kind == F32 else kind)
        self.writer.write_header_to_file()
        self.writer.write_kv_data_to_file()
        self.writer.write_ti_data_to_file()
        for _, shape, kind, fill in self.tensors:
            self.writer.write_tensor_data(self.values(shape, kind, fill))
        self.writer.close()


def blocks(count):
    return [(index, f"blk.{index}.") for index in range(count)]


def lfm2_block(model, index, block, attention):
    model.norm(f"{block}attn_norm")
    model.norm(f"{block}ffn_norm")
    if index in attention:
        model.attention(block, 2048, 512)
        model.norm(f"{block}attn_q_norm", 64)
        model.norm(f"{block}attn_k_norm", 64)
    else:
        model.floats(f"{block}shortconv.conv.weight", 2048, 3)
        model.matrix(f"{block}shortconv.in_proj", 2048, 6144)
        model.matrix(f"{block}shortconv.out_proj", 2048, 2048)


def lfm2(path, arch="lfm2", count=16, attention=ATTENTION_OF_LFM2, inner=8192, experts=0):
    model = Model(path, arch, 65536, 2048, count, 32, 64, inner, 1e-5)
    model.fields("attention.", head_count_kv=[8 if index in attention else 0 for index in range(count)])
    model.fields("shortconv.", l_cache=3)
    model.fields("rope.", dimension_count=64, freq_base=1e6)
    model.fields(vocab_size=65536)
    if experts:
        model.fields(expert_count=experts, expert_used_count=4, expert_feed_forward_length=1792)
        model.fields(leading_dense_block_count=2, expert_gating_func=2)
    model.norm("token_embd_norm")
    for index, block in blocks(count):
        lfm2_block(model, index, block, attention)
        if experts and index >= 2:
            model.experts(block, experts, 1792)
            model.floats(f"{block}exp_probs_b.bias", experts, fill=0.0)
        else:
            model.dense(block, inner)
    model.close()


def lfm2_8b_a1b(path):
    lfm2(path, "lfm2moe", 24, ATTENTION_OF_LFM2_8B, 7168, 32)


def olmoe(path):
    model = Model(path, "olmoe", 50304, 2048, 16, 16, 128, 1024, 1e-5, 4096)
    model.fields("attention.", head_count_kv=16)
    model.fields("rope.", dimension_count=128, freq_base=10000.0)
    model.fields(expert_count=64, expert_used_count=8)
    model.norm("output_norm")
    model.matrix("output", 2048, 50304, kind=Q8_0)
    for _, block in blocks(16):
        for name in ("attn_norm", "ffn_norm", "attn_q_norm", "attn_k_norm"):
            model.norm(block + name)
        model.attention(block, 2048, 2048)
        model.experts(block, 64, 1024)
    model.close()


def qwen35(path):
    model = Model(path, "qwen35", 248320, 2048, 24, 8, 256, 6144, 1e-6)
    model.fields("attention.", head_count_kv=2)
    model.fields("rope.", dimension_count=64, freq_base=1e7, dimension_sections=[11, 11, 10, 0])
    model.fields("ssm.", conv_kernel=4, state_size=128, group_count=16, time_step_rank=16, inner_size=2048)
    model.fields(full_attention_interval=4)
    model.norm("output_norm")
    for index, block in blocks(24):
        model.norm(f"{block}attn_norm")
        model.norm(f"{block}post_attention_norm")
        model.dense(block, 6144)
        if index % 4 == 3:
            # Queries and their gates.
            model.attention(block, 4096, 512, 2048)
            model.norm(f"{block}attn_q_norm", 256)
            model.norm(f"{block}attn_k_norm", 256)
            continue
        model.matrix(f"{block}attn_qkv", 2048, 6144)
        model.matrix(f"{block}attn_gate", 2048, 2048)
        model.matrix(f"{block}ssm_beta", 2048, 16)
        model.matrix(f"{block}ssm_alpha", 2048, 16)
        model.matrix(f"{block}ssm_out", 2048, 2048)
        model.floats(f"{block}ssm_conv1d.weight", 6144, 4)
        model.floats(f"{block}ssm_dt.bias", 16, fill=1.0)
        model.floats(f"{block}ssm_a", 16, fill=-1.0)
        model.norm(f"{block}ssm_norm", 128)
    model.close()


def gemma4(path):
    count, shared, layers_of_inputs = 35, 20, 256
    is_window = [index % 5 != 4 for index in range(count)]
    inner = [6144 if index < count - shared else 12288 for index in range(count)]
    model = Model(path, "gemma4", 262144, 1536, count, 8, 512, inner, 1e-6)
    model.fields("attention.", head_count_kv=[1] * count, key_length_swa=256, value_length_swa=256, sliding_window=512)
    model.fields("attention.", sliding_window_pattern=is_window, shared_kv_layers=shared)
    model.fields("rope.", dimension_count=512, dimension_count_swa=256, freq_base=1e6, freq_base_swa=1e4)
    model.fields(embedding_length_per_layer_input=layers_of_inputs, final_logit_softcapping=30.0)
    model.norm("output_norm")
    model.matrix("per_layer_token_embd", layers_of_inputs * count, 262144)
    model.matrix("per_layer_model_proj", 1536, layers_of_inputs * count)
    model.norm("per_layer_proj_norm", layers_of_inputs)
    # A quarter of a head has angles.
    model.tensors.append(("rope_freqs.weight", (256,), F32, np.array([1.0] * 64 + [1e30] * 192, np.float32)))
    for index, block in blocks(count):
        dim = 256 if is_window[index] else 512
        model.matrix(f"{block}attn_q", 1536, 8 * dim)
        model.matrix(f"{block}attn_output", 8 * dim, 1536)
        model.norm(f"{block}attn_q_norm", dim)
        if index < count - shared:
            model.norm(f"{block}attn_k_norm", dim)
            model.matrix(f"{block}attn_k", 1536, dim)
            model.matrix(f"{block}attn_v", 1536, dim)
        model.dense(block, inner[index])
        for name in ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm", "post_norm"):
            model.norm(block + name)
        model.matrix(f"{block}inp_gate", 1536, layers_of_inputs)
        model.matrix(f"{block}proj", layers_of_inputs, 1536)
        model.floats(f"{block}layer_output_scale.weight", 1, fill=1.0)
    model.close()


def gpt_oss(path):
    model = Model(path, "gpt-oss", 201088, 2880, 24, 64, 64, 2880, 1e-5)
    model.fields("attention.", head_count_kv=8, sliding_window=128)
    model.fields("rope.", dimension_count=64, freq_base=150000.0)
    model.fields("rope.scaling.", type="yarn", factor=32.0, original_context_length=4096)
    model.fields(expert_count=32, expert_used_count=4, expert_feed_forward_length=2880)
    model.norm("output_norm")
    model.matrix("output", 2880, 201088, kind=Q8_0)
    for _, block in blocks(24):
        model.norm(f"{block}attn_norm")
        model.norm(f"{block}post_attention_norm")
        model.attention(block, 4096, 512)
        for name, rows in [("q", 4096), ("k", 512), ("v", 512), ("output", 2880)]:
            model.floats(f"{block}attn_{name}.bias", rows, fill=0.0)
        model.floats(f"{block}attn_sinks.weight", 64, fill=0.0)
        model.experts(block, 32, 2880, MXFP4)
        model.floats(f"{block}ffn_gate_inp.bias", 32, fill=0.0)
        for name in ("gate", "up", "down"):
            model.floats(f"{block}ffn_{name}_exps.bias", 32, 2880, fill=0.0)
    model.close()


SHAPES = {
    "lfm2-1.2b": lfm2,
    "qwen3.5-2b": qwen35,
    "olmoe-1b-7b": olmoe,
    "lfm2-8b-a1b": lfm2_8b_a1b,
    "gemma-4-e2b": gemma4,
    "gpt-oss-20b": gpt_oss,
}


def run(command):
    """Returns the output of a command as JSON, and its largest memory in MiB."""
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen([str(word) for word in command], stdout=output, stderr=subprocess.PIPE)
        errors = process.stderr.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            sys.exit(f"{' '.join(map(str, command))} failed:\n{errors.decode(errors='replace')}")
        output.seek(0)
        return json.load(output), usage.ru_maxrss / 1024


def triad(options, model, test, count, *more):
    lengths = ["--prompt", count, "--decode", 0] if test == "prefill" else ["--prompt", 0, "--decode", count]
    report, memory = run([options.triad, "bench", "-m", model, *lengths, "--repeat", 1, "--threads", options.threads, "--json", *more])
    rates = [one["tokens_per_second"]["median"] for one in report["results"] if one["test"] == test]
    return rates[0], memory


def llama(options, model, test, count):
    lengths = ["-p", count, "-n", 0] if test == "prefill" else ["-p", 0, "-n", count, "-d", 64]
    report, memory = run([options.llama, "-m", model, *lengths, "-t", options.threads, "-r", 1, "-fa", 1, "-o", "json"])
    return report[0]["avg_ts"], memory


def compare(options, name, model):
    engines = {"Triad, as stored": lambda *test: triad(options, model, *test, "--no-quantize")}
    if options.prepare:
        engines["Triad, W8A8"] = lambda *test: triad(options, model, *test)
    engines["llama.cpp"] = lambda *test: llama(options, model, *test)
    tests = [("prefill", count) for count in options.prompts] + [("decode", options.decode)]
    rates, memory = {}, {}
    for round in range(options.rounds):
        for test in tests:
            order = list(engines)
            for engine in order[round % len(order) :] + order[: round % len(order)]:
                rate, used = engines[engine](*test)
                rates.setdefault((engine, test), []).append(rate)
                memory[engine] = max(used, memory.get(engine, 0))
                print(f"{name}, {engine}, {test[0]} {test[1]}: {rate:.1f} tokens/s, {used:.0f} MiB", file=sys.stderr, flush=True)
    for engine in engines:
        cells = [name, engine]
        for test in tests:
            ratio = median(ours / theirs for ours, theirs in zip(rates[engine, test], rates["llama.cpp", test]))
            cells.append(f"{median(rates[engine, test]):.1f}" + (f" ({ratio:.2f} ×)" if engine != "llama.cpp" else ""))
        print(f"| {' | '.join(cells)} | {memory[engine]:.0f} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shapes", nargs="+", choices=SHAPES, metavar="SHAPE", help=f"which of {', '.join(SHAPES)}")
    parser.add_argument("--triad", type=Path, default=Path("target/release/triad"))
    parser.add_argument("--llama", type=Path, default=Path("target/peers/llama.cpp/bin/llama-bench"), help="llama.cpp's llama-bench")
    parser.add_argument("--folder", type=Path, default=Path("target/shapes"), help="folder of the models, which is made")
    parser.add_argument("--prompts", type=lambda text: [int(word) for word in text.split(",")], default=[256, 1024])
    parser.add_argument("--decode", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--prepare", action="store_true", help="also compare packages in W8A8 of dense models")
    parser.add_argument("--make", action="store_true", help="make the models alone")
    parser.add_argument("--remove", action="store_true", help="delete each model after it was measured")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    if not options.make:
        prompts = " | ".join(f"prefill {count}" for count in options.prompts)
        print(f"| model | engine | {prompts} | decode {options.decode} | memory (MiB) |")
        print("| --- | --- |" + " ---: |" * (len(options.prompts) + 2), flush=True)
    for name in options.shapes:
        model = options.folder / f"{name}.gguf"
        if not model.exists():
            part = model.with_suffix(".part")
            SHAPES[name](part)
            part.rename(model)
        if not options.make:
            compare(options, name, model)
        if options.remove:
            model.unlink()


if __name__ == "__main__":
    main()
