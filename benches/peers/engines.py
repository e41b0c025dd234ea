"""The engines that are compared: how each is started for one measurement, and what it prints.

A measurement is one process: it loads the model, runs the test once unmeasured, then once measured, on the same cores
as all others. Tests are prefill, decode, and batched: decode of several sequences at once.
"""

import json
import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Callable

from install import LLAMA, MNN, PYTHON, ROOT, SCRIPTS, Missing, reason

# Tokens of context before decode.
CONTEXT = 64
# The best dynamic quantization group of OpenVINO for each model: as wide as its rows allow.
OPENVINO_GROUP = {"smollm2": 192, "1.8b": 2048}

# MNN's attention option for prompts of at least this length, and for shorter ones and decode: the fastest for each.
MNN_LONG, MNN_ATTENTION_LONG, MNN_ATTENTION = 512, 9, 8


@dataclass(frozen=True)
class Test:
    kind: str
    # Tokens of prefill or decode in each sequence.
    tokens: int
    sequences: int = 1

    def __str__(self):
        together = f"{self.sequences} × " if self.kind == "batched" else ""
        return f"{self.kind} {together}{self.tokens}"

    def positions(self):
        """Returns the tokens of all sequences at the end."""
        return self.sequences * (self.tokens + (0 if self.kind == "prefill" else CONTEXT))


@dataclass(frozen=True)
class Engine:
    name: str
    # The package that must be installed for it; "triad" for our own.
    needs: str
    # Bits per weight in decode.
    bits: int
    kinds: tuple
    # (model's weights) -> path, created at the first request
    weights: Callable
    # (model, path, threads, test) -> command
    command: Callable
    # (the command's output, parsed as JSON) -> tokens per second, of all sequences together
    rate: Callable


def triad(binary, bits, kinds):
    def command(_model, package, threads, test):
        if test.kind == "prefill":
            counts = ["--prompt", test.tokens, "--decode", 0]
        else:
            counts = ["--prompt", 0, "--decode", test.tokens, "--context", CONTEXT, "--sequences", test.sequences]
        return [binary, "bench", "-m", package, *counts, "--threads", threads, "--repeat", 1, "--json"]

    return Engine(
        name=f"Triad int{bits}",
        needs="triad",
        bits=bits,
        kinds=kinds,
        weights=lambda weights: weights.package(f"int{bits}"),
        command=command,
        rate=lambda printed: printed["results"][0]["tokens_per_second"]["median"],
    )


def llama(quantized, bits, kinds):
    def command(_model, file, threads, test):
        if test.kind == "batched":
            return batched(file, threads, test)
        counts = ["-p", test.tokens, "-n", 0] if test.kind == "prefill" else ["-p", 0, "-n", test.tokens, "-d", CONTEXT]
        return [LLAMA / "llama-bench", "-m", file, *counts, "-t", threads, "-r", 1, "-fa", 1, "-o", "json"]

    def batched(file, threads, test):
        # Named twice, so that the batch runs once unmeasured: the program's own warm-up is one small prompt.
        counts = ["-npp", CONTEXT, "-ntg", test.tokens, "-npl", f"{test.sequences},{test.sequences}"]
        # Each sequence has its own cache: in a unified one, the default for servers, every sequence reads all of it.
        cache = ["-c", test.positions(), "--no-kv-unified", "-fa", "on"]
        return [LLAMA / "llama-batched-bench", "-m", file, *counts, *cache, "-t", threads, "--output-format", "jsonl"]

    def rate(printed):
        # `tg` tokens in each of `pl` sequences divided by the seconds of these steps, without prompts.
        return printed[-1]["speed_tg" if "speed_tg" in printed[-1] else "avg_ts"]

    return Engine(
        name=f"llama.cpp {quantized}",
        needs="llama.cpp",
        bits=bits,
        kinds=kinds,
        weights=lambda weights: weights.gguf(quantized),
        command=command,
        rate=rate,
    )


def openvino():
    def command(model, folder, threads, test):
        group = OPENVINO_GROUP[model]
        return [PYTHON, SCRIPTS / "openvino_bench.py", folder, threads, group, test.kind, test.tokens, CONTEXT]

    return Engine(
        name="OpenVINO int8",
        needs="openvino",
        bits=8,
        kinds=("prefill", "decode"),
        weights=lambda weights: weights.openvino(),
        command=command,
        rate=lambda printed: printed["tokens_per_second"],
    )


def mnn(bits, options, kinds):
    def command(_model, folder, threads, test):
        long = test.kind == "prefill" and test.tokens >= MNN_LONG
        attention = MNN_ATTENTION_LONG if long else MNN_ATTENTION
        return [MNN / "mnn_bench", folder, threads, attention, test.kind, test.tokens, CONTEXT]

    return Engine(
        name=f"MNN int{bits}",
        needs="mnn",
        bits=bits,
        kinds=kinds,
        weights=lambda weights: weights.mnn(bits, options),
        command=command,
        # After a line of MNN about the processor.
        rate=lambda printed: printed[-1]["tokens_per_second"],
    )


def engines(binary):
    every = ("prefill", "decode", "batched")
    return [
        triad(binary, 8, every),
        triad(binary, 4, ("decode", "batched")),  # prefill is the same in both
        openvino(),
        mnn(8, ["--symmetric"], ("prefill", "decode")),
        mnn(4, ["--block", 64], ("decode",)),  # prefill is slower than with INT8
        llama("Q4_0", 4, every),
        llama("Q8_0", 8, every),
        llama("BF16", 16, ("prefill",)),
    ]


def cores(count):
    """Returns the first `count` cores that this process may use, one of each pair of hyperthreads before the others."""
    allowed = sorted(os.sched_getaffinity(0))

    def is_second_thread(core):
        try:
            siblings = Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list").read_text()
        except OSError:
            return False
        return int(siblings.replace("-", ",").split(",")[0]) != core

    return sorted(sorted(allowed, key=is_second_thread)[:count])


def run(command, threads):
    """Runs a command on `threads` cores; returns its output, JSON or lines of JSON, and its peak resident memory in bytes."""
    command = [str(word) for word in command]
    chosen = cores(threads)
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            preexec_fn=lambda: os.sched_setaffinity(0, chosen),
        )
        printed = process.stdout.read()
        process.stdout.close()
        # Instead of wait(), since only this call returns the memory of the process.
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        errors.seek(0)
        message = reason(errors.read().decode(errors="replace"))
    if process.returncode:
        raise Missing(f"`{' '.join(command)}` ended with exit code {process.returncode}: {message}")
    try:
        return values(printed), usage.ru_maxrss * 1024
    except json.JSONDecodeError as error:
        raise Missing(f"`{' '.join(command)}` printed no JSON: {error}") from error


def values(printed):
    """Parses JSON, or a list of the lines that are JSON among others."""
    try:
        return json.loads(printed)
    except json.JSONDecodeError:
        lines = [json.loads(line) for line in printed.splitlines() if line.startswith(b"{")]
        if not lines:
            raise
        return lines
