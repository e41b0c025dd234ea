#!/usr/bin/env python3
"""Compares how fast Triad and llama.cpp's mtmd encode a picture and compute the prompt with it, on the same files, in turns.

    pip install xllamacpp gguf numpy pillow
    cargo build --release -p triad-prepare --example picture
    python benches/pictures.py --shape smolvlm2-256m --rounds 5

Models have random weights in the true shapes of SmolVLM2-256M, Qwen3-VL-2B and Gemma 3 4B, with a vocabulary of 32,768: the
encoder in F16, the text model in Q8_0. Each round runs both engines one after the other in a process of its own, on --threads
threads, with one view: 512 × 512, 544 × 1,216 (a screen of 540 × 1,200 as Qwen resizes it) and 896 × 896 pixels. Triad's time
is also that of the encoder in W8A8, calibrated on the view itself, with 85 % of the shadows pruned. llama.cpp's times are those
that it logs. Its side has not worked yet: xllamacpp refuses the request with "Invalid token", so no ratio was measured. The
table has medians over the rounds, and the median of the ratios of one round.
"""

import argparse
import base64
import io
import json
import re
import subprocess
import sys
from pathlib import Path
from statistics import median

import gguf
import numpy as np

VOCABULARY = 32768
SHAPES = {
    "smolvlm2-256m": dict(
        text=dict(arch="llama", hidden=576, blocks=30, heads=9, kv=3, dim=64, inner=1536, base=1e5),
        vision=dict(projector="idefics3", image=512, patch=16, hidden=768, heads=12, blocks=12, inner=3072, merge=4),
        view=(512, 512),
    ),
    "qwen3-vl-2b": dict(
        text=dict(arch="qwen3vl", hidden=2048, blocks=28, heads=16, kv=8, dim=128, inner=6144, base=5e6),
        vision=dict(
            projector="qwen3vl_merger", image=768, patch=16, hidden=1024, heads=16, blocks=24, inner=4096, merge=2,
            deepstack=[5, 11, 17],
        ),
        view=(544, 1216),
    ),
    "gemma-3-4b": dict(
        text=dict(arch="gemma3", hidden=2560, blocks=34, heads=8, kv=4, dim=256, inner=10240, base=1e6),
        vision=dict(projector="gemma3", image=896, patch=14, hidden=1152, heads=16, blocks=27, inner=4304, merge=4),
        view=(896, 896),
    ),
}

# The tokens around pictures by text model.
MARKS = {
    "llama": ["<fake_token_around_image>", "<global-img>", "<image>"]
    + [f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)],
    "qwen3vl": ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>"],
    "gemma3": ["<start_of_image>", "<end_of_image>"],
}


class Weights:
    """Random weights, the same ones every time."""

    def __init__(self, path, arch):
        self.writer, self.random = gguf.GGUFWriter(path, arch), np.random.default_rng(3)

    def q8_0(self, name, rows, columns):
        blocks = np.empty((rows, columns // 32, 34), np.uint8)
        blocks[:, :, :2] = np.array([1.7 / 127 / columns**0.5], np.float16).view(np.uint8)
        blocks[:, :, 2:] = self.random.integers(0, 256, (rows, columns // 32, 32), dtype=np.uint8)
        blocks = blocks.reshape(rows, columns // 32 * 34)
        self.writer.add_tensor(f"{name}.weight", blocks, raw_dtype=gguf.GGMLQuantizationType.Q8_0)

    def f16(self, name, *shape, bias=True):
        values = self.random.standard_normal(shape, dtype=np.float32) / np.prod(shape[1:]) ** 0.5
        self.writer.add_tensor(f"{name}.weight", values.astype(np.float16))
        if bias:
            self.writer.add_tensor(f"{name}.bias", np.zeros(shape[0], np.float32))

    def norm(self, name, width, bias=False):
        self.writer.add_tensor(f"{name}.weight", np.ones(width, np.float32))
        if bias:
            self.writer.add_tensor(f"{name}.bias", np.zeros(width, np.float32))

    def close(self):
        self.writer.write_header_to_file()
        self.writer.write_kv_data_to_file()
        self.writer.write_tensors_to_file()
        self.writer.close()


def make_text(path, shape):
    weights, arch, hidden = Weights(path, shape["arch"]), shape["arch"], shape["hidden"]
    writer = weights.writer
    writer.add_context_length(32768)
    writer.add_embedding_length(hidden)
    writer.add_block_count(shape["blocks"])
    writer.add_feed_forward_length(shape["inner"])
    writer.add_head_count(shape["heads"])
    writer.add_head_count_kv(shape["kv"])
    writer.add_key_length(shape["dim"])
    writer.add_value_length(shape["dim"])
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(shape["base"])
    if arch == "qwen3vl":
        writer.add_rope_dimension_sections([24, 20, 20, 0])
        writer.add_uint32("qwen3vl.n_deepstack_layers", 3)
    if arch == "gemma3":
        writer.add_sliding_window(1024)
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    # mtmd looks up the tokens around a picture, and gives it invalid ones if there are none.
    line = chr(256 + others.index(ord("\n")))
    control = ["<|im_end|>", *MARKS[arch]]
    tokens = [chr(byte) for byte in printable] + [chr(256 + index) for index in range(len(others))] + ["th", line * 2]
    types = [gguf.TokenType.NORMAL] * len(tokens) + [gguf.TokenType.CONTROL] * len(control)
    tokens += control
    unused = VOCABULARY - len(tokens)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens + [f"[unused{index}]" for index in range(unused)])
    writer.add_token_types(types + [gguf.TokenType.UNUSED] * unused)
    writer.add_token_merges(["t h", f"{line} {line}"])
    end = tokens.index("<|im_end|>")
    writer.add_bos_token_id(end)
    writer.add_eos_token_id(end)
    weights.q8_0("token_embd", VOCABULARY, hidden)
    weights.norm("output_norm", hidden)
    queries, keys = shape["heads"] * shape["dim"], shape["kv"] * shape["dim"]
    for block in (f"blk.{index}." for index in range(shape["blocks"])):
        for norm in ["attn_norm", "ffn_norm"] + ["post_attention_norm", "post_ffw_norm"] * (arch == "gemma3"):
            weights.norm(block + norm, hidden)
        for norm in ["attn_q_norm", "attn_k_norm"] * (arch != "llama"):
            weights.norm(block + norm, shape["dim"])
        for name, rows, columns in [
            ("attn_q", queries, hidden), ("attn_k", keys, hidden), ("attn_v", keys, hidden), ("attn_output", hidden, queries),
            ("ffn_gate", shape["inner"], hidden), ("ffn_up", shape["inner"], hidden), ("ffn_down", hidden, shape["inner"]),
        ]:
            weights.q8_0(block + name, rows, columns)
    weights.close()


def make_vision(path, shape, width):
    weights, hidden, kind = Weights(path, "clip"), shape["hidden"], shape["projector"]
    writer, is_qwen = weights.writer, kind == "qwen3vl_merger"
    writer.add_bool("clip.has_vision_encoder", True)
    writer.add_string("clip.projector_type", kind)
    for key, value in dict(
        image_size=shape["image"], patch_size=shape["patch"], embedding_length=hidden, feed_forward_length=shape["inner"],
        block_count=shape["blocks"], projection_dim=width,
    ).items():
        writer.add_uint32(f"clip.vision.{key}", value)
    writer.add_uint32("clip.vision.attention.head_count", shape["heads"])
    writer.add_float32("clip.vision.attention.layer_norm_epsilon", 1e-6)
    writer.add_array("clip.vision.image_mean", [0.5, 0.5, 0.5])
    writer.add_array("clip.vision.image_std", [0.5, 0.5, 0.5])
    writer.add_bool("clip.use_gelu", True)
    writer.add_uint32("clip.vision.spatial_merge_size" if is_qwen else "clip.vision.projector.scale_factor", shape["merge"])
    if kind == "idefics3":
        writer.add_uint32("clip.vision.preproc_image_size", 512)
    patch, side = shape["patch"], shape["image"] // shape["patch"]
    weights.f16("v.patch_embd", hidden, 3, patch, patch)
    if is_qwen:
        values = weights.random.standard_normal((hidden, 3, patch, patch), dtype=np.float32) * 0.02
        writer.add_tensor("v.patch_embd.weight.1", values.astype(np.float16))
        writer.add_array("clip.vision.is_deepstack_layers", [block in shape["deepstack"] for block in range(shape["blocks"])])
    table = weights.random.standard_normal((side * side, hidden), dtype=np.float32)
    writer.add_tensor("v.position_embd.weight", table)
    for block in (f"v.blk.{index}." for index in range(shape["blocks"])):
        weights.norm(block + "ln1", hidden, bias=True)
        weights.norm(block + "ln2", hidden, bias=True)
        for name in ["attn_qkv"] if is_qwen else ["attn_q", "attn_k", "attn_v"]:
            weights.f16(block + name, hidden * 3 if is_qwen else hidden, hidden)
        weights.f16(block + "attn_out", hidden, hidden)
        weights.f16(block + "ffn_up", shape["inner"], hidden)
        weights.f16(block + "ffn_down", hidden, shape["inner"])
    weights.norm("v.post_ln", hidden, bias=True)
    merged = hidden * shape["merge"] ** 2
    if kind == "idefics3":
        weights.f16("mm.model.fc", width, merged, bias=False)
    elif kind == "gemma3":
        weights.norm("mm.soft_emb_norm", hidden)
        weights.f16("mm.input_projection", hidden, width, bias=False)
    else:
        weights.f16("mm.0", merged, merged)
        weights.f16("mm.2", width, merged)
        for block in (f"v.deepstack.{index}." for index in shape["deepstack"]):
            weights.norm(block + "norm", merged, bias=True)
            weights.f16(block + "fc1", merged, merged)
            weights.f16(block + "fc2", width, merged)
    weights.close()


def llama(arguments):
    """Runs one picture and prints llama.cpp's log."""
    import xllamacpp
    from PIL import Image

    width, height = SHAPES[arguments.shape]["view"]
    pixels = np.random.default_rng(arguments.seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    picture = io.BytesIO()
    Image.fromarray(pixels).save(picture, "PNG")
    parameters = xllamacpp.CommonParams()
    parameters.model.path, parameters.mmproj.path = map(str, files(arguments))
    parameters.mmproj_use_gpu = False
    parameters.warmup = True
    parameters.n_ctx, parameters.n_batch, parameters.n_ubatch = 4096, 2048, 1024
    parameters.n_gpu_layers, parameters.n_parallel = 0, 1
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = arguments.threads
    server = xllamacpp.Server(parameters)
    url = "data:image/png;base64," + base64.b64encode(picture.getvalue()).decode()
    content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "?"}]
    answer = server.handle_chat_completions({"messages": [{"role": "user", "content": content}], "max_tokens": 1})
    print(json.dumps(answer if isinstance(answer, dict) else json.loads(answer)), flush=True)


def files(arguments):
    return [arguments.folder / f"{arguments.shape}{end}.gguf" for end in ("", "-mmproj")]


def run_llama(arguments, seed):
    command = [
        sys.executable, __file__, "--shape", arguments.shape, "--folder", str(arguments.folder), "--threads",
        str(arguments.threads), "--llama", "--seed", str(seed),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    log = done.stdout + done.stderr
    encoded = [float(ms) for ms in re.findall(r"(?:slice|image|batch) encoded(?: \(batch[^)]*\))? in ([\d.]+) ms", log)]
    decoded = [float(ms) for ms in re.findall(r"decoded \(batch \d+/\d+\) in ([\d.]+) ms", log)]
    if done.returncode or not encoded:
        sys.exit(f"llama.cpp failed:\n{log[-4000:]}")
    return dict(encode=encoded[0] / 1e3, views=len(encoded), prefill=sum(decoded) / len(encoded) / 1e3)


def run_triad(arguments, seed):
    width, height = SHAPES[arguments.shape]["view"]
    model, mmproj = map(str, files(arguments))
    command = [str(arguments.triad), model, mmproj, str(width), str(height), str(arguments.threads), str(seed)]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", choices=SHAPES, default="smolvlm2-256m")
    parser.add_argument("--triad", type=Path, default=Path("target/release/examples/picture"))
    parser.add_argument("--folder", type=Path, default=Path("target/pictures"), help="folder of the models, which is made")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--llama", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--without-llama", action="store_true", help="run Triad alone")
    arguments = parser.parse_args()
    if arguments.llama:
        return llama(arguments)
    shape = SHAPES[arguments.shape]
    arguments.folder.mkdir(parents=True, exist_ok=True)
    model, mmproj = files(arguments)
    if not model.exists():
        make_text(model, shape["text"])
    if not mmproj.exists():
        make_vision(mmproj, shape["vision"], shape["text"]["hidden"])
    rounds = []
    for seed in range(arguments.rounds):
        one = dict(triad=run_triad(arguments, seed))
        if not arguments.without_llama:
            one["llama"] = run_llama(arguments, seed)
        rounds.append(one)
        print(json.dumps(one), file=sys.stderr)
    of = lambda engine, key: median(one[engine][key] for one in rounds)
    print(f"{arguments.shape}, {shape['view'][0]} × {shape['view'][1]} pixels, {arguments.threads} threads, {arguments.rounds} rounds")
    print("| | encoder, F16 (s) | encoder, W8A8 (s) | prefill of its rows (s) | second question (s) |")
    print("| --- | --- | --- | --- | --- |")
    print(f"| Triad | {of('triad', 'encode'):.2f} | {of('triad', 'encode_w8a8'):.2f} | {of('triad', 'prefill'):.2f} | {of('triad', 'again'):.4f} |")
    if not arguments.without_llama:
        print(f"| mtmd | {of('llama', 'encode'):.2f} | - | {of('llama', 'prefill'):.2f} | - |")
        ratio = lambda key, other: median(one["llama"][other] / one["triad"][key] for one in rounds)
        print(f"| ratio | {ratio('encode', 'encode'):.2f} | {ratio('encode_w8a8', 'encode'):.2f} | {ratio('prefill', 'prefill'):.2f} | - |")


if __name__ == "__main__":
    main()
