#!/usr/bin/env python3
"""Changes each field of each family's `config.json` and GGUF header one by one, and compares `triad logits` with
transformers (5.24 and 4.57) and llama.cpp: the same logits, or a refusal.

    python -m venv VENV
    VENV/bin/pip install torch gguf xllamacpp safetensors
    VENV/bin/pip install --target VENV/transformers-4 transformers==4.57.6
    VENV/bin/pip install --target VENV/transformers-5 transformers==5.24.0
    cargo build -p triad-cli
    VENV/bin/python tests/reference/fields/sweep.py --venv VENV [--triad target/debug/triad] [--write] [BASE ...]

The bases are the checkpoints of tests/golden/families; "BASE (4)" is one style of a configuration alone. Which fields there are is read off the references: see `fields` in
oracles.py and `known_keys` in cases.py. A case is

    same                  Triad's logits are those of every reference that takes the file
    refused               Triad refuses the file
    refused by reference  no reference takes the file, Triad does
    WRONG                 Triad's logits differ from a reference's

A file that has `rope_parameters` and no `rope_scaling` is not shown to transformers 4, which knows only the latter; nor is
a Gemma whose `hidden_act` is `gelu`.
llama.cpp is not asked about Phi-3's window, which it leaves out with a warning, nor about LongRoPE's context between the
prompt's length and its own context, nor about Qwen2-VL's epsilon, which it does not read.
Prints how many cases are which and what is wrong; the exit code is 1 if anything is. What the references answer is kept in
--cache. With --write, `tests/golden/fields` gets what `cargo test` compares with. It takes half an hour.
"""

import argparse
import collections
import concurrent.futures
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

import cases
import golden
from oracles import Worker, prefixes

ROOT = Path(__file__).resolve().parents[3]
# Largest difference relative to the largest logit. llama.cpp's CPU reads GELU from a table in float16.
TOLERANCE, TOLERANCE_COARSE = 1e-4, 1e-3
# The many blocks of a Gemma 3n that llama.cpp takes enlarge the errors of the table.
TOLERANCE_GEMMA3N = 4e-2


class HuggingFace:
    """A base in the style of one version of transformers."""

    def __init__(self, name, style, config, checkpoint, count):
        self.name, self.style, self.config, self.checkpoint = f"{name} ({style})", style, config, checkpoint
        self.tokens, self.tolerance = cases.tokens(count), TOLERANCE
        self.key = json.dumps([name, checkpoint, count])
        self.within = cases.TEXT if cases.TEXT in config else None

    def changed(self, case):
        return cases.changed(self.config, case.changes, self.within)

    def content(self, case):
        return json.dumps(self.changed(case), sort_keys=True)

    def write(self, case, folder):
        for file in (cases.FAMILIES / self.checkpoint).glob("*.safetensors*"):
            (folder / file.name).symlink_to(file)
        (folder / "config.json").write_text(self.content(case))
        return folder

    def references(self, case):
        config = self.changed(case)
        config = (config.get(self.within) if self.within else None) or config
        old = config.get("rope_parameters") is None or config.get("rope_scaling") is not None
        # 4.57 lost what 5 has again: the first Gemmas say `gelu` for its tanh form.
        old = old and (config.get("model_type"), config.get("hidden_act")) != ("gemma", "gelu")
        return ("transformers-4", "transformers-5") if old else ("transformers-5",)

    def comparable(self, logits):
        return logits

    def described(self):
        return {"checkpoint": self.checkpoint, "config": self.config} | ({"within": self.within} if self.within else {})


class Gguf:
    def __init__(self, name, file, without, count):
        self.name, self.base, self.tokens = name, cases.GgufBase(file, without), cases.tokens(count)
        coarse = self.base.architecture.startswith(("gemma", "phi2"))
        self.tolerance = TOLERANCE_COARSE if coarse else TOLERANCE
        self.tolerance = TOLERANCE_GEMMA3N if self.base.architecture == "gemma3n" else self.tolerance
        self.key, self.file, self.without = name, file, without

    def has_reference(self, case):
        """Whether llama.cpp computes what the field means. It leaves Phi-3's window out and warns that answers suffer, where
        transformers follow it; it chooses LongRoPE's divisors by its own context, 256 tokens here, not the prompt's; and
        it computes Qwen2-VL's norms with an epsilon of 0, whatever the file states."""
        if self.base.architecture == "qwen2vl":
            return "qwen2vl.attention.layer_norm_rms_epsilon" not in case.changes
        if self.base.architecture != "phi3":
            return True
        window = case.changes.get("phi3.attention.sliding_window", cases.DROP)
        original = case.changes.get("phi3.rope.scaling.original_context_length")
        context = original[1] if isinstance(original, (list, tuple)) and isinstance(original[1], int) else 0
        return window is cases.DROP and not len(self.tokens) <= context < 256

    def described(self):
        return {"file": self.file, "without": self.without}

    def content(self, case):
        return self.base.bytes(case.changes)

    def write(self, case, folder):
        path = folder / "model.gguf"
        path.write_bytes(self.content(case))
        return path

    def references(self, case):
        return ("llama.cpp",)

    def comparable(self, logits):
        rows = logits[[end - 1 for end in prefixes(len(self.tokens))]].astype(np.float64)
        rows -= rows.max(axis=1, keepdims=True)
        return rows - np.log(np.exp(rows).sum(axis=1, keepdims=True))


class Oracles:
    """Workers of one thread, with what they have answered before."""

    def __init__(self, venv, cache):
        self.cache = cache
        self.workers = {name: Worker("transformers", venv / name) for name in ("transformers-4", "transformers-5")}
        self.workers["llama.cpp"] = Worker("llama.cpp")

    def logits(self, name, base, case):
        content = base.content(case)
        content = content if isinstance(content, bytes) else content.encode()
        key = hashlib.sha256(f"{name} {base.key} {len(base.tokens)} ".encode() + content).hexdigest()
        file = self.cache / f"{key}.npz"
        if file.exists():
            kept = np.load(file)
            return (kept["logits"], None) if "logits" in kept else (None, str(kept["refused"]))
        with tempfile.TemporaryDirectory() as folder:
            logits, refused = self.workers[name].logits(base.write(case, Path(folder)), base.tokens)
        np.savez(file, **({"refused": np.array(refused)} if logits is None else {"logits": logits.astype(np.float32)}))
        return logits, refused


def difference(one, other):
    if one.shape != other.shape:
        return np.inf
    apart = np.abs(one - other).max()
    # Not equal if one has numbers that aren't.
    return float(apart / max(np.abs(other).max(), 1e-30)) if np.isfinite(apart) else np.inf


def by_triad(triad, base, case):
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        (folder / "model").mkdir()
        model, output = base.write(case, folder / "model"), folder / "logits.safetensors"
        command = [triad, "logits", "-m", str(model), "--cache-type", "f32", "--tokens", ",".join(map(str, base.tokens)), "-o", str(output)]
        run = subprocess.run(command, capture_output=True, text=True)
        if run.returncode:
            assert run.returncode == 1 and "error: " in run.stderr, f"{base.name}, {case.name}: {run.returncode} {run.stderr}"
            return None, run.stderr.strip().splitlines()[-1]
        return base.comparable(load_file(output)["logits"]), None


def judge(base, triad, case, oracles):
    """(verdict, explanation, answer of the references)."""
    answers = {name: oracles.logits(name, base, case) for name in base.references(case)}
    given = {name: logits for name, (logits, _) in answers.items() if logits is not None}
    first = next(iter(given.values()), None)
    agree = all(difference(first, other) < base.tolerance for other in given.values())
    reference = first if agree else "disagree"
    if triad is None:
        return None, "", reference
    ours, refused = by_triad(triad, base, case)
    if ours is None:
        return "refused", refused, reference
    if not given:
        return "refused by reference", next(refused for _, refused in answers.values()), None
    apart = {name: difference(ours, logits) for name, logits in given.items()}
    if max(apart.values()) < base.tolerance:
        return "same", "", reference
    return "WRONG", ", ".join(f"{name} {value:.1e}" for name, value in apart.items()), reference


def bases(oracles, wanted):
    """Every base with its cases."""
    new, old = oracles.workers["transformers-5"], oracles.workers["transformers-4"]
    for name, (checkpoint, changes, count) in cases.HUGGING_FACE.items():
        if wanted and not any(one.split()[0] == name for one in wanted):
            continue
        config = json.loads((cases.FAMILIES / checkpoint / "config.json").read_text())
        within = cases.TEXT if cases.TEXT in config else None
        config = cases.changed(config, changes, within)
        text = lambda config: config.get(within, config)
        fields = [worker.ask({"fields": text(config)["model_type"]}) for worker in (old, new)]
        assert "refused" not in fields[1], fields
        is_new = "refused" in fields[0]
        fields = fields[is_new:]
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "config.json").write_text(json.dumps(config))
            # A family that only version 5 has is in its style.
            styles = {} if is_new else {"4": config}
            styles |= {"5": new.ask({"style": folder})} if name not in cases.IN_ONE_STYLE else {}
        for style, config in styles.items():
            if wanted and not {name, f"{name} ({style})"} & set(wanted):
                continue
            base = HuggingFace(name, style, config, checkpoint, count)
            outer = config if within else None
            yield base, list(cases.hugging_face(base.name, text(config), style, fields, outer))
    # llama.cpp's own code, with the strings of its keys.
    import xllamacpp

    library = max(Path(xllamacpp.__file__).parent.glob("xllamacpp*.so"), key=lambda path: path.stat().st_size)
    keys = cases.known_keys(library)
    assert "rope.scaling.attn_factor" in keys and len(keys) > 100, keys
    for name, (file, without, count) in cases.GGUF.items():
        if not wanted or name in wanted:
            base = Gguf(name, file, without, count)
            is_read = lambda case: oracles.logits("llama.cpp", base, case)[0] is None
            yield base, list(filter(base.has_reference, cases.gguf_cases(name, base.base, keys, is_read)))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--venv", type=Path, required=True)
    parser.add_argument("--triad", default=str(ROOT / "target/debug/triad"))
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "triad-fields")
    parser.add_argument("--references-only", action="store_true", help="ask the references, not Triad")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--jobs", type=int, default=2, help="cases at a time")
    parser.add_argument("--verbose", action="store_true", help="print every case")
    parser.add_argument("bases", nargs="*", metavar="BASE")
    options = parser.parse_args()
    options.cache.mkdir(parents=True, exist_ok=True)
    triad = None if options.references_only else options.triad
    here = threading.local()

    def one(base, case):
        if not hasattr(here, "oracles"):
            here.oracles = Oracles(options.venv, options.cache)
        return judge(base, triad, case, here.oracles)

    totals, wrong, found = collections.Counter(), [], {}
    first = Oracles(options.venv, options.cache)
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for base, changed in bases(first, options.bases):
            counts, rows = collections.Counter(), []
            for case, (verdict, why, reference) in zip(changed, pool.map(lambda case: one(base, case), changed)):
                counts[verdict] += 1
                rows.append((case, reference))
                if verdict == "WRONG":
                    wrong.append(f"{base.name}: {case.name}: {why}")
                if options.verbose or verdict == "WRONG" or (case.name == "as it is" and verdict not in ("same", None)):
                    print(f"  {verdict}: {base.name}: {case.name[:300]}: {why}")
            totals += counts
            found[base.name] = (base, rows)
            print(f"{base.name}: {dict(counts)}", flush=True)
    print(f"all: {dict(totals)}\n{len(wrong)} wrong")
    if options.write:
        golden.write(ROOT / "tests/golden/fields", found)
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
