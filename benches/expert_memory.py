#!/usr/bin/env python3
"""Measures a mixture of experts that is larger than memory: benches/expert_memory.py TRIAD [FOLDER]

Makes a GGUF file in the shape of OLMoE-1B-7B with half of its blocks and random weights in Q4_0 (1.9 GB), and measures decoding
with memory limited by the system (a memory cgroup, which needs root) to half of the file: as the system pages, with
--expert-memory and --no-read-ahead, and with --expert-memory. Experts that random routers choose have no habits, so that a
real model reads less. Prints tokens per second, and bytes that the process read from the disk for each token.
"""

import json
import os
import random
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

HIDDEN, BLOCKS, HEADS, EXPERTS, USED, WIDTH, VOCAB = 2048, 8, 16, 64, 8, 1024, 4096
TOKENS = 64
GROUP = Path("/sys/fs/cgroup/memory/triad-expert-memory")


def string(text):
    return struct.pack("<Q", len(text)) + text.encode()


def field(name, value):
    kind, packed = {
        str: lambda: (8, string(value)),
        int: lambda: (4, struct.pack("<I", value)),
        float: lambda: (6, struct.pack("<f", value)),
    }[type(value)]()
    return string(name) + struct.pack("<I", kind) + packed


def q4_0(numbers, generator):
    """Returns random blocks of 32 numbers: a scale in f16, and 16 bytes."""
    block = lambda: struct.pack("<e", 0.01) + generator.randbytes(16)
    tile = b"".join(block() for _ in range(1 << 12))
    size = numbers // 32 * 18
    # Another part of the tile for each matrix.
    start = generator.randrange(len(tile) // 18) * 18
    return (tile[start:] + tile * (size // len(tile) + 1))[:size]


def f32(numbers, generator):
    return struct.pack(f"<{numbers}f", *(generator.gauss(0, 1) for _ in range(numbers)))


def ones(numbers, _):
    return struct.pack("<f", 1.0) * numbers


def tensors():
    """Yields names, shapes with the columns first, types, and writers."""
    yield "token_embd.weight", [HIDDEN, VOCAB], 0, f32
    yield "output.weight", [HIDDEN, VOCAB], 2, q4_0
    yield "output_norm.weight", [HIDDEN], 0, ones
    for block in range(BLOCKS):
        for name in ("attn_norm", "ffn_norm", "attn_q_norm", "attn_k_norm"):
            yield f"blk.{block}.{name}.weight", [HIDDEN], 0, ones
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            yield f"blk.{block}.{name}.weight", [HIDDEN, HIDDEN], 2, q4_0
        yield f"blk.{block}.ffn_gate_inp.weight", [HIDDEN, EXPERTS], 0, f32
        yield f"blk.{block}.ffn_gate_exps.weight", [HIDDEN, WIDTH, EXPERTS], 2, q4_0
        yield f"blk.{block}.ffn_up_exps.weight", [HIDDEN, WIDTH, EXPERTS], 2, q4_0
        yield f"blk.{block}.ffn_down_exps.weight", [WIDTH, HIDDEN, EXPERTS], 2, q4_0


def write(path):
    fields = {
        "general.architecture": "olmoe",
        "olmoe.embedding_length": HIDDEN,
        "olmoe.block_count": BLOCKS,
        "olmoe.feed_forward_length": WIDTH,
        "olmoe.context_length": 4096,
        "olmoe.attention.head_count": HEADS,
        "olmoe.attention.head_count_kv": HEADS,
        "olmoe.attention.layer_norm_rms_epsilon": 1e-5,
        "olmoe.expert_count": EXPERTS,
        "olmoe.expert_used_count": USED,
        "olmoe.rope.freq_base": 10000.0,
    }
    generator, infos, at = random.Random(1), b"", 0
    for name, shape, kind, _ in tensors():
        numbers = 1
        for size in shape:
            numbers *= size
        infos += string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, at)
        at += (numbers * 4 if kind == 0 else numbers // 32 * 18) + 31 & ~31
    head = b"GGUF" + struct.pack("<IQQ", 3, sum(1 for _ in tensors()), len(fields))
    head += b"".join(field(*pair) for pair in fields.items()) + infos
    with open(path, "wb") as file:
        file.write(head + bytes(-len(head) % 32))
        for _, shape, _, content in tensors():
            numbers = 1
            for size in shape:
                numbers *= size
            data = content(numbers, generator)
            file.write(data + bytes(-len(data) % 32))


def measure(triad, model, limit, *arguments):
    """Returns tokens per second, bytes read for each token, and the report, of a process in the group."""

    def enter():
        (GROUP / "cgroup.procs").write_text(str(os.getpid()))

    (GROUP / "memory.limit_in_bytes").write_text(str(limit))
    with open(model, "rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    command = [triad, "bench", "-m", model, "--no-quantize", "--prompt", "1", "--decode", str(TOKENS), "--repeat", "1", "--json"]
    # A copy of the file would not fit.
    environment = os.environ | {"TRIAD_HUGE_PAGES": "off"}
    process = subprocess.Popen(
        [*command, *arguments], stdout=subprocess.PIPE, text=True, preexec_fn=enter, env=environment
    )
    report = json.loads(process.stdout.read())
    _, status, usage = os.wait4(process.pid, 0)
    if status != 0:
        sys.exit(f"{' '.join(map(str, command))} failed")
    rate = next(it for it in report["results"] if it["test"] == "decode")["tokens_per_second"]["median"]
    return rate, usage.ru_inblock * 512, report


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    triad = Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as folder:
        # Kept in FOLDER, if one is given.
        model = Path(sys.argv[2] if len(sys.argv) == 3 else folder) / "experts.gguf"
        if not model.exists():
            write(model)
        limit = model.stat().st_size // 2
        try:
            GROUP.mkdir(exist_ok=True)
        except OSError as error:
            sys.exit(f"cannot limit memory: {error}")
        # What is not of experts, keys and values, and the program, take the rest.
        experts = str((limit - (400 << 20)) / (1 << 30))
        ways = {
            "the system pages": (),
            "experts in memory, read when chosen": ("--expert-memory", experts, "--no-read-ahead"),
            "experts in memory, read ahead": ("--expert-memory", experts),
        }
        print(f"{model.stat().st_size / 1e9:.2f} GB of weights, {limit / 1e9:.2f} GB of memory, random weights")
        for name, arguments in ways.items():
            rate, read, report = measure(triad, model, limit, *arguments)
            print(f"{name}: {rate:.2f} tokens/s, {read / 1e6:.0f} MB read from the disk; {report.get('expert_use', '')}", flush=True)
        GROUP.rmdir()


if __name__ == "__main__":
    main()
