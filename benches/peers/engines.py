"""The engines that are compared: how each is started for one measurement, and what it prints.

A measurement is one process: it loads the model, runs the test once unmeasured, then once measured, on the same cores
as all others.
"""

import json
import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Callable

from install import LLAMA, PYTHON, ROOT, SCRIPTS, Missing, reason

# Tokens that decode starts behind.
CONTEXT = 64
# The best dynamic quantization group of OpenVINO for each model: as wide as its rows allow.
OPENVINO_GROUP = {"smollm2": 192, "1.8b": 2048}
# Our own names of the tests.
TRIAD_TEST = {"prefill": "--prompt", "decode": "--decode"}


@dataclass(frozen=True)
class Engine:
    name: str
    # What has to be installed for it; "triad" for our own.
    needs: str
    # Bits of a weight in decode.
    bits: int
    tests: tuple
    # (model's weights) -> path, made when first asked for
    weights: Callable
    # (model, path, threads, test, tokens) -> command
    command: Callable
    # (what the command printed, as JSON) -> tokens a second
    rate: Callable


def triad(binary, bits, tests):
    def command(_model, package, threads, test, tokens):
        other = ["--decode", 0] if test == "prefill" else ["--prompt", 0, "--context", CONTEXT]
        return [binary, "bench", "-m", package, TRIAD_TEST[test], tokens, *other, "--threads", threads, "--repeat", 1, "--json"]

    return Engine(
        name=f"Triad int{bits}",
        needs="triad",
        bits=bits,
        tests=tests,
        weights=lambda weights: weights.package(f"int{bits}"),
        command=command,
        rate=lambda printed: printed["results"][0]["tokens_per_second"]["median"],
    )


def llama(kind, bits, tests):
    def command(_model, file, threads, test, tokens):
        counts = ["-p", tokens, "-n", 0] if test == "prefill" else ["-p", 0, "-n", tokens, "-d", CONTEXT]
        return [LLAMA / "llama-bench", "-m", file, *counts, "-t", threads, "-r", 1, "-fa", 1, "-o", "json"]

    return Engine(
        name=f"llama.cpp {kind}",
        needs="llama.cpp",
        bits=bits,
        tests=tests,
        weights=lambda weights: weights.gguf(kind),
        command=command,
        rate=lambda printed: printed[0]["avg_ts"],
    )


def openvino():
    def command(model, folder, threads, test, tokens):
        return [PYTHON, SCRIPTS / "openvino_bench.py", folder, threads, OPENVINO_GROUP[model], test, tokens, CONTEXT]

    return Engine(
        name="OpenVINO int8",
        needs="openvino",
        bits=8,
        tests=("prefill", "decode"),
        weights=lambda weights: weights.openvino(),
        command=command,
        rate=lambda printed: printed["tokens_per_second"],
    )


def engines(binary):
    both = ("prefill", "decode")
    return [
        triad(binary, 8, both),
        triad(binary, 4, ("decode",)),  # prefill is the same in both
        openvino(),
        llama("Q4_0", 4, both),
        llama("Q8_0", 8, both),
        llama("BF16", 16, ("prefill",)),
    ]


def cores(count):
    """The first `count` cores that this process may use, one of each pair of hyperthreads before the others."""
    allowed = sorted(os.sched_getaffinity(0))

    def is_second_thread(core):
        try:
            siblings = Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list").read_text()
        except OSError:
            return False
        return int(siblings.replace("-", ",").split(",")[0]) != core

    return sorted(sorted(allowed, key=is_second_thread)[:count])


def run(command, threads):
    """Runs a command on `threads` cores; gives the JSON that it prints and its peak resident memory in bytes."""
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
        # Instead of wait(): it alone says how much memory the process took.
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        errors.seek(0)
        message = reason(errors.read().decode(errors="replace"))
    if process.returncode:
        raise Missing(f"`{' '.join(command)}` ended with exit code {process.returncode}: {message}")
    try:
        return json.loads(printed), usage.ru_maxrss * 1024
    except json.JSONDecodeError as error:
        raise Missing(f"`{' '.join(command)}` printed no JSON: {error}") from error
