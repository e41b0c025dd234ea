#!/usr/bin/env python3
"""Compares how fast Triad and llama.cpp's mtmd answer a question about a picture, on the same files, in turns.

    pip install xllamacpp gguf numpy pillow
    cargo build --release
    python benches/pictures.py --shape smolvlm2-256m --rounds 3

Models have random weights in the true shapes of SmolVLM2-256M, Qwen3-VL-2B and Gemma 3 4B, with a vocabulary of 32,768: the
encoder in F16, the text model in Q8_0. --package adds a package of the same model, which `triad prepare --calibrate-images`
wrote, with the encoder in W8A8.

Each round starts the server of each engine, one after the other, on --threads threads, and asks it over HTTP:

1. about a picture whose pixels are random and others in each round: 1,024 × 512 (three views of 512 × 512), 544 × 1,216 (a screen of 540 ×
   1,200 as Qwen resizes it) or 896 × 896;
2. another question about it;
3. a text alone, of as many tokens as the first prompt.

Each answer has one token. The encoder's time is that of 1 less that of 3. The table has medians over the rounds of seconds by
the clock and of seconds of all threads of the server, which other programs on the machine change less, the largest memory, and
the median of the ratios of one round.
"""

import argparse
import base64
import io
import json
import os
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from statistics import median

import gguf
import numpy as np

VOCABULARY = 32768
SHAPES = {
    "smolvlm2-256m": dict(
        text=dict(arch="llama", hidden=576, blocks=30, heads=9, kv=3, dim=64, inner=1536, base=1e5),
        vision=dict(projector="idefics3", image=512, patch=16, hidden=768, heads=12, blocks=12, inner=3072, merge=4),
        view=(1024, 512),
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

# The text that stands for a picture in a chat template.
PLACES = {"llama": "<image>", "qwen3vl": "<|vision_start|><|image_pad|><|vision_end|>", "gemma3": "<start_of_image>"}
TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {% for part in message['content'] %}{% if part['type'] == 'text' %}"
    "{{ part['text'] }}{% else %}{{ 'IMAGE' }}{% endif %}{% endfor %}<|im_end|>\n{% endfor %}assistant:"
)


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
    writer.add_chat_template(TEMPLATE.replace("IMAGE", PLACES[arch]))
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
        writer.add_uint32("clip.vision.preproc_image_size", 1024)
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


def serve_llama(arguments):
    """Serves the files with llama.cpp until it is killed."""
    import xllamacpp

    parameters = xllamacpp.CommonParams()
    parameters.model.path, parameters.mmproj.path = map(str, files(arguments))
    parameters.mmproj_use_gpu = False
    parameters.warmup = True
    parameters.port = arguments.port
    parameters.n_ctx, parameters.n_batch, parameters.n_ubatch = 4096, 2048, 1024
    parameters.n_gpu_layers, parameters.n_parallel = 0, 1
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = arguments.threads
    server = xllamacpp.Server(parameters)
    while server:
        time.sleep(1)


def files(arguments):
    return [arguments.folder / f"{arguments.shape}{end}.gguf" for end in ("", "-mmproj")]


def commands(arguments):
    """Returns the command of each server."""
    model, mmproj = map(str, files(arguments))
    options = ["--threads", str(arguments.threads), "--port", str(arguments.port)]
    triad = [str(arguments.triad), "serve", "--context", "4096", "--mmproj", mmproj, *options]
    found = {"Triad, F16": [*triad, "--no-quantize", "-m", model]}
    if arguments.package:
        found["Triad, W8A8"] = [str(arguments.triad), "serve", "--context", "4096", *options, "-m", str(arguments.package)]
    if not arguments.without_llama:
        here = [sys.executable, __file__, "--llama", "--shape", arguments.shape, "--folder", str(arguments.folder)]
        found["mtmd, F16"] = here + options
    return found


def ask(arguments, content):
    """Returns the tokens of a prompt whose answer has one token."""
    order = {"messages": [{"role": "user", "content": content}], "max_tokens": 1, "temperature": 0}
    request = urllib.request.Request(
        f"http://127.0.0.1:{arguments.port}/v1/chat/completions", json.dumps(order).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=3600) as answer:
        return json.load(answer)["usage"]["prompt_tokens"]


def wait(arguments, server):
    for _ in range(6000):
        if server.poll() is not None:
            sys.exit(f"the server ended: {server.args}")
        try:
            return urllib.request.urlopen(f"http://127.0.0.1:{arguments.port}/health", timeout=60).read()
        except OSError:
            time.sleep(0.1)
    sys.exit("the server does not answer")


def processor_seconds(server):
    fields = Path(f"/proc/{server.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(arguments, command, seed):
    """Returns the seconds of each question, by the clock and of all threads, and the largest memory in MiB."""
    from PIL import Image

    width, height = SHAPES[arguments.shape]["view"]
    random = np.random.default_rng(seed)
    pixels = random.integers(0, 256, (height, width, 3), dtype=np.uint8)
    picture = io.BytesIO()
    Image.fromarray(pixels).save(picture, "PNG")
    url = "data:image/png;base64," + base64.b64encode(picture.getvalue()).decode()
    image = {"type": "image_url", "image_url": {"url": url}}
    text = lambda count: "".join(chr(97 + letter) for letter in random.integers(0, 26, count))
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait(arguments, server)
        parts = lambda text: [{"type": "text", "text": text}]
        # Threads start, and pages of the weights are read.
        around = ask(arguments, parts(text(64))) - 64
        result, rows = {}, 0
        for name in ["first", "second", "text"]:
            content = [image, *parts(name)] if name != "text" else parts(text(rows - around))
            begin, used = time.perf_counter(), processor_seconds(server)
            tokens = ask(arguments, content)
            result[name] = [time.perf_counter() - begin, processor_seconds(server) - used]
            rows = rows or tokens
        status = Path(f"/proc/{server.pid}/status").read_text()
        result["memory"] = int(status.split("VmHWM:")[1].split()[0]) / 1024
        result["tokens"] = rows
        result["encoder"] = [of_first - of_text for of_first, of_text in zip(result["first"], result["text"])]
        return result
    finally:
        server.kill()
        server.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", choices=SHAPES, default="smolvlm2-256m")
    parser.add_argument("--triad", type=Path, default=Path("target/release/triad"))
    parser.add_argument("--package", type=Path, help="package of the text model and the encoder, with --calibrate-images")
    parser.add_argument("--folder", type=Path, default=Path("target/pictures"), help="folder of the models, which is made")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--port", type=int, default=8197)
    parser.add_argument("--llama", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--make", action="store_true", help="make the models alone")
    parser.add_argument("--without-llama", action="store_true", help="run Triad alone")
    arguments = parser.parse_args()
    if arguments.llama:
        return serve_llama(arguments)
    shape = SHAPES[arguments.shape]
    arguments.folder.mkdir(parents=True, exist_ok=True)
    model, mmproj = files(arguments)
    if not model.exists():
        make_text(model, shape["text"])
    if not mmproj.exists():
        make_vision(mmproj, shape["vision"], shape["text"]["hidden"])
    if arguments.make:
        return
    rounds = []
    for seed in range(arguments.rounds):
        one = {name: measure(arguments, command, seed) for name, command in commands(arguments).items()}
        rounds.append(one)
        print(json.dumps(one), file=sys.stderr, flush=True)
    print(f"{arguments.shape}, {shape['view'][0]} × {shape['view'][1]} pixels, {arguments.threads} threads, {arguments.rounds} rounds")
    names = ["first", "encoder", "text", "second"]
    print("| | tokens | picture (s) | encoder (s) | text (s) | second question (s) | memory (MiB) |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for engine in rounds[0]:
        of = lambda key, place: median(one[engine][key][place] for one in rounds)
        times = [f"{of(name, 0):.2f}, threads {of(name, 1):.2f}" for name in names]
        memory = median(one[engine]["memory"] for one in rounds)
        print(f"| {engine} | {rounds[0][engine]['tokens']} | {' | '.join(times)} | {memory:.0f} |")
    for engine in rounds[0]:
        if arguments.without_llama or engine.startswith("mtmd"):
            continue
        ratio = lambda key, place: median(one["mtmd, F16"][key][place] / max(one[engine][key][place], 1e-3) for one in rounds)
        times = [f"{ratio(name, 0):.2f}, threads {ratio(name, 1):.2f}" for name in names]
        print(f"| mtmd / {engine} | | {' | '.join(times)} | |")


if __name__ == "__main__":
    main()
