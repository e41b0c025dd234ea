#!/usr/bin/env python3
"""Compares the greedy answers of `triad run` with those of llama.cpp on the same model files.

    cargo build --release
    python tests/reference/compare.py --models FOLDER [--triad target/release/triad]

FOLDER holds the files that tests/golden/greedy/*.json were made from: NAME.gguf for NAME.json; those that are
not there are left out. Needs no package; to make llama.cpp's answers again, see tests/golden/greedy/make.py.
Prints two Markdown tables; `triad-lab record` keeps the first. Exits with 1 if an answer
differs where llama.cpp's two likeliest tokens are not nearly a tie.
"""

import argparse
import hashlib
import json
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
LENGTH = 64
# Two likeliest tokens whose logits are closer than this are nearly a tie. Written out in the table's head.
TIE = 0.1


def triad_answer(triad, model, prompt):
    """Tokens of the answer, an end token last if there was one."""
    command = [
        triad, "run", "-m", model, "-p", prompt["text"], "-n", str(LENGTH), "--temperature", "0",
        "--repetition-penalty", "1", "--no-quantize", "--f32", "--json",
    ]
    run = subprocess.run(command + (["--raw"] if prompt["kind"] == "raw" else []), stdout=subprocess.PIPE, check=True)
    report = json.loads(run.stdout)
    assert report["prompt_tokens"] == len(prompt["tokens"]), f"{prompt['text']!r}: another number of prompt tokens"
    return report["tokens"]


def first_difference(ours, theirs):
    """The first step at which two answers differ; None if they don't."""
    for step, (one, other) in enumerate(zip(ours, theirs)):
        if one != other:
            return step
    return None if len(ours) == len(theirs) else min(len(ours), len(theirs))


def compare(triad, golden, float_golden, model):
    """How many answers there are and how many are the same, and a row for each of Triad's that is not llama.cpp's."""
    same = same_float = same_own = 0
    rows = []
    for number, (prompt, wide) in enumerate(zip(golden["prompts"], float_golden["prompts"]), 1):
        ours = triad_answer(triad, model, prompt)
        same_float += first_difference(ours, wide["greedy"]) is None
        same_own += first_difference(prompt["greedy"], wide["greedy"]) is None
        step = first_difference(ours, prompt["greedy"])
        if step is None:
            same += 1
            continue
        gap = prompt["gaps"][step]
        agrees = first_difference(ours[: step + 1], wide["greedy"][: step + 1]) is None
        rows.append({
            "model": golden["model"], "number": number, "kind": prompt["kind"], "text": prompt["text"], "step": step,
            "gap": gap, "second": ours[step] == prompt["second"][step], "agrees": agrees,
        })
        print(f"{golden['model']} {number}: differs at step {step}, gap {gap}", file=sys.stderr)
    change = f"{own_change(golden, float_golden):.2f}"
    return [len(golden["prompts"]), same_float, same, same_own, change], rows


def own_change(golden, wide):
    """How far apart llama.cpp's two likeliest tokens are on the file as stored, less how far the same two are in
    float32: the median size of that change over all steps until the two answers part."""
    changes = []
    for stored, wide in zip(golden["prompts"], wide["prompts"]):
        for step, (one, other) in enumerate(zip(stored["greedy"], wide["greedy"])):
            pairs = (one, stored["second"][step]), (other, wide["second"][step])
            if pairs[0] == pairs[1]:
                changes.append(abs(stored["gaps"][step] - wide["gaps"][step]))
            elif pairs[0] == pairs[1][::-1]:
                changes.append(stored["gaps"][step] + wide["gaps"][step])
            if one != other:
                break
    return statistics.median(changes)


def tables(results):
    lines = [
        "| model | answers | Triad = llama.cpp in float32 | Triad = llama.cpp | llama.cpp = llama.cpp in float32 "
        "| llama.cpp's gap moves by (median) | Triad parts at a gap under 0.1 | at 0.1 or more | largest gap |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, counts, rows in results:
        gaps = [row["gap"] for row in rows]
        wide = sum(gap >= TIE for gap in gaps)
        cells = [name, *counts, len(gaps) - wide, wide, f"{max(gaps):.3f}" if gaps else "none"]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    lines += [
        "",
        "| model | prompt | parts at step | gap of llama.cpp's two likeliest | Triad takes | llama.cpp in float32 takes |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row in (row for *_, rows in results for row in rows):
        text = row["text"].replace("\n", " ").replace("|", "\\|")
        text = text if len(text) <= 40 else text[:39] + "…"
        lines.append(
            f"| {row['model']} | {row['number']} {row['kind']}: {text} | {row['step'] + 1} | {row['gap']:.3f} "
            f"| {'the second' if row['second'] else 'another'} | {'the same as Triad' if row['agrees'] else 'another'} |"
        )
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--triad", type=Path, default=ROOT / "target/release/triad")
    arguments = parser.parse_args()
    results = []
    for path in sorted((ROOT / "tests/golden/greedy").glob("*.json")):
        model = arguments.models / f"{path.stem}.gguf"
        if not model.exists():
            continue
        pair = (path, path.with_stem(f"{path.stem}-float"))
        golden, wide = (json.loads(file.read_text(encoding="utf-8")) for file in pair)
        assert hashlib.sha256(model.read_bytes()).hexdigest() == golden["sha256"], f"{model} is not the file compared"
        results.append((golden["model"], *compare(arguments.triad, golden, wide, model)))
    print(tables(results))
    apart = [row for *_, rows in results for row in rows if row["gap"] >= TIE or not row["second"]]
    return 1 if apart else 0


if __name__ == "__main__":
    sys.exit(main())
