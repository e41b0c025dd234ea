#!/usr/bin/env python3
"""Compares the vectors per second of Triad's server with those of llama.cpp's, on the same file, cores and texts, in turns.

    pip install xllamacpp gguf numpy
    python benches/embeddings.py --triad target/release/triad

The model has random weights in the shape of all-MiniLM-L6-v2 (6 layers, width 384, vocabulary 30,522), in F32 or F16. Both
servers run on --threads threads. Round after round, each is sent the same requests of --texts texts; the other waits. The
first request of each round does not count. The table has medians over the rounds, and the median of the ratios of one
round. The vectors of both are compared first.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from statistics import median

import gguf
import numpy as np

HIDDEN, LAYERS, HEADS, WIDTH, VOCABULARY, POSITIONS = 384, 6, 12, 1536, 30522, 512
WORDS = 20000


def make(path, half):
    """Writes the model: words `w0` to `w19999` are tokens."""
    random = np.random.default_rng(5)
    writer = gguf.GGUFWriter(path, "bert")
    for key, value in [
        ("context_length", POSITIONS), ("embedding_length", HIDDEN), ("feed_forward_length", WIDTH), ("block_count", LAYERS),
        ("attention.head_count", HEADS), ("pooling_type", 1),
    ]:
        writer.add_uint32(f"bert.{key}", value)
    writer.add_float32("bert.attention.layer_norm_epsilon", 1e-12)
    writer.add_bool("bert.attention.causal", False)
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokens = special + [f"▁w{index}" for index in range(WORDS)]
    tokens += [f"▁unused{index}" for index in range(VOCABULARY - len(tokens))]
    writer.add_tokenizer_model("bert")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_types([3] * len(special) + [1] * (VOCABULARY - len(special)))
    writer.add_pad_token_id(0)
    writer.add_unk_token_id(1)
    writer.add_bos_token_id(2)
    writer.add_eos_token_id(3)
    writer.add_sep_token_id(3)
    writer.add_mask_token_id(4)
    writer.add_token_type_count(2)

    def matrix(name, rows, columns, scale):
        values = random.standard_normal((rows, columns), dtype=np.float32) * scale
        writer.add_tensor(f"{name}.weight", values.astype(np.float16) if half else values)

    def norm(name):
        writer.add_tensor(f"{name}.weight", np.ones(HIDDEN, np.float32))
        writer.add_tensor(f"{name}.bias", np.zeros(HIDDEN, np.float32))

    matrix("token_embd", VOCABULARY, HIDDEN, 0.5)
    writer.add_tensor("position_embd.weight", random.standard_normal((POSITIONS, HIDDEN), dtype=np.float32) * 0.1)
    writer.add_tensor("token_types.weight", random.standard_normal((2, HIDDEN), dtype=np.float32) * 0.1)
    norm("token_embd_norm")
    for layer in range(LAYERS):
        for name, rows, columns in [
            ("attn_q", HIDDEN, HIDDEN), ("attn_k", HIDDEN, HIDDEN), ("attn_v", HIDDEN, HIDDEN), ("attn_output", HIDDEN, HIDDEN),
            ("ffn_up", WIDTH, HIDDEN), ("ffn_down", HIDDEN, WIDTH),
        ]:
            matrix(f"blk.{layer}.{name}", rows, columns, columns**-0.5)
            writer.add_tensor(f"blk.{layer}.{name}.bias", random.standard_normal(rows).astype(np.float32) * 0.02)
        norm(f"blk.{layer}.attn_output_norm")
        norm(f"blk.{layer}.layer_output_norm")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


LLAMA = """
import sys, time, xllamacpp
params = xllamacpp.CommonParams()
params.model.path, params.port, params.embedding = sys.argv[1], int(sys.argv[2]), True
params.n_parallel, params.n_ctx, params.n_batch, params.n_ubatch = 16, 16 * 512, 2048, 2048
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = int(sys.argv[3])
params.verbosity = -1
server = xllamacpp.Server(params)
print(server.listening_address, flush=True)
time.sleep(1e6)
"""


def start(command, port):
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    for _ in range(600):
        if server.poll() is not None:
            sys.exit(f"{command[0]} ended with {server.returncode}")
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).read()
            return server
        except OSError:
            time.sleep(0.1)
    sys.exit(f"{command[0]} does not answer")


def vectors(port, texts):
    body = json.dumps({"input": texts}).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/embeddings", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as reply:
        data = json.load(reply)["data"]
    return [one["embedding"] for one in sorted(data, key=lambda one: one["index"])]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--triad", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--texts", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--words", type=int, nargs="+", default=[8, 32, 128, 500])
    parser.add_argument("--half", action="store_true", help="matrices in F16")
    options = parser.parse_args()
    random = np.random.default_rng(7)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "minilm.gguf"
        make(path, options.half)
        ports = {"triad": free_port(), "llama.cpp": free_port()}
        threads = str(options.threads)
        commands = {
            "triad": [str(options.triad), "serve", "-m", str(path), "--threads", threads, "--port", str(ports["triad"])],
            "llama.cpp": [sys.executable, "-c", LLAMA, str(path), str(ports["llama.cpp"]), threads],
        }
        servers = [start(commands[name], ports[name]) for name in commands]
        try:
            measure(options, ports, random)
        finally:
            for server in servers:
                server.terminate()


def measure(options, ports, random):
    kind = "F16" if options.half else "F32"
    print(f"MiniLM's shape in {kind}, {options.texts} texts a request, {options.threads} threads\n")
    print("| tokens of a text | Triad: texts/s | llama.cpp: texts/s | ratio | largest difference |")
    print("| --- | --- | --- | --- | --- |")
    for words in options.words:
        texts = [" ".join(f"w{word}" for word in random.integers(0, WORDS, words)) for _ in range(options.texts)]
        found = {name: np.array(vectors(port, texts)) for name, port in ports.items()}
        scaled = [values / np.linalg.norm(values, axis=1, keepdims=True) for values in found.values()]
        difference = np.abs(scaled[0] - scaled[1]).max()
        rates = {name: [] for name in ports}
        for _ in range(options.rounds):
            for name, port in ports.items():
                vectors(port, texts)
                begun, count = time.perf_counter(), 0
                while time.perf_counter() - begun < options.seconds:
                    vectors(port, texts)
                    count += len(texts)
                rates[name].append(count / (time.perf_counter() - begun))
        ratio = median(one / other for one, other in zip(*rates.values()))
        triad, llama = (median(rates[name]) for name in ports)
        print(f"| {words + 2} | {triad:.0f} | {llama:.0f} | {ratio:.2f} | {difference:.0e} |", flush=True)


if __name__ == "__main__":
    main()
