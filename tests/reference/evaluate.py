#!/usr/bin/env python3
"""Compares the log-likelihoods of `triad eval` with those that transformers computes on the same GGUF file.

    pip install gguf torch transformers
    cargo build --release
    python tests/reference/evaluate.py --model MODEL.gguf --data FOLDER [--limit N] [--triad target/release/triad]

FOLDER holds TASK_dev.jsonl for the tasks of docs/measurements/accuracy.md, mmlu_fewshot.jsonl, and wikitext2_dev.txt; what is not
there is left out. Texts are put together here once more, as lm-evaluation-harness does it, and every one is run alone,
in float32. Prints a Markdown table of the largest differences. For models whose tokenizer adds no BOS.
"""

import argparse
import json
import re
import subprocess
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

WINDOW = 256
LETTERS = "ABCD"


class Reference:
    """A model that scores one text at a time."""

    def __init__(self, path):
        where = {"pretrained_model_name_or_path": path.parent, "gguf_file": path.name}
        self.tokenizer = AutoTokenizer.from_pretrained(**where)
        self.model = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32).eval()

    def encode(self, text):
        # transformers takes the tokenizer for a Llama's and would add BOS, which the file does not ask for.
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    @torch.no_grad()
    def log_probabilities(self, tokens, scored_from):
        logits = self.model(torch.tensor([tokens[:-1]])).logits[0].log_softmax(-1)
        return [logits[i - 1, tokens[i]].item() for i in range(scored_from, len(tokens))]

    def log_likelihood(self, context, continuation):
        spaces = len(context) - len(context.rstrip())
        whole = self.encode(context + continuation)
        scored_from = len(self.encode(context[: len(context) - spaces]))
        return sum(self.log_probabilities(whole, scored_from))

    def losses(self, text, limit):
        tokens = self.encode(text)
        start = self.tokenizer.bos_token_id
        before = [start if start is not None else self.tokenizer.eos_token_id] + tokens[WINDOW - 1 :: WINDOW]
        windows = [[first] + tokens[i * WINDOW : (i + 1) * WINDOW] for i, first in enumerate(before)]
        chosen = some([window for window in windows if len(window) > 1], limit)
        return [-sum(values) / len(values) for values in (self.log_probabilities(window, 1) for window in chosen)]


def lambada(row):
    words = row["text"].split(" ")
    return [(" ".join(words[:-1]), " " + words[-1])]


def hellaswag(row):
    def clean(text):
        return re.sub(r"\[.*?\]", "", text.strip().replace(" [title]", ". ")).replace("  ", " ")

    context = clean(f"{row['activity_label']}: {row['ctx']}")
    return [(context, " " + clean(ending)) for ending in row["endings"]]


def winogrande(row):
    before, after = row["sentence"].split("_", 1)
    return [(before + row[option], " " + after.strip()) for option in ("option1", "option2")]


def openbookqa(row):
    choices = re.match(r"\(A\) (.*) \(B\) (.*) \(C\) (.*) \(D\) (.*)$", row["Choices"]).groups()
    return [(row["Question Stem"], " " + choice) for choice in choices]


def mmlu(row, examples):
    def ask(row):
        choices = "".join(f"\n{letter}. {row[f'choice{i}']}" for i, letter in enumerate(LETTERS))
        return f"{row['question'].strip()}{choices}\nAnswer:"

    subject = row["subject"]
    text = f"The following are multiple choice questions (with answers) about {subject.replace('_', ' ')}.\n\n"
    for example in [example for example in examples if example["subject"] == subject][:5]:
        text += f"{ask(example)} {LETTERS[example['answer']]}\n\n"
    return [(text + ask(row), " " + letter) for letter in LETTERS]


def some(rows, limit):
    count = min(limit, len(rows))
    return [rows[i * len(rows) // count] for i in range(count)]


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def triad_rows(arguments, task, file):
    command = [arguments.triad, "eval", "-m", arguments.model, "--task", task, "--data", file, "--json"]
    command += ["--limit", str(arguments.limit), "--window", str(WINDOW)]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)["results"][0]["rows"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--limit", type=int, default=10)
    parser.add_argument("--triad", default="target/release/triad")
    arguments = parser.parse_args()
    reference = Reference(arguments.model)
    examples = read(arguments.data / "mmlu_fewshot.jsonl")
    tasks = {
        "lambada": lambada,
        "hellaswag": hellaswag,
        "winogrande": winogrande,
        "openbookqa": openbookqa,
        "mmlu": lambda row: mmlu(row, examples),
    }
    print("| task | rows | numbers | largest difference | the largest number |\n| --- | --- | --- | --- | --- |")

    def compare(task, ours, theirs, rows):
        difference = max(abs(one - other) for one, other in zip(ours, theirs, strict=True))
        largest = max(abs(number) for number in theirs)
        print(f"| {task} | {rows} | {len(ours)} | {difference:.4f} | {largest:.1f} |", flush=True)

    for task, texts in tasks.items():
        file = arguments.data / f"{task}_dev.jsonl"
        rows = some(read(file), arguments.limit) if file.exists() else []
        if rows:
            ours = sum(triad_rows(arguments, task, file)["log_likelihoods"], [])
            theirs = [reference.log_likelihood(*pair) for row in rows for pair in texts(row)]
            compare(task, ours, theirs, len(rows))
    file = arguments.data / "wikitext2_dev.txt"
    if file.exists():
        ours = triad_rows(arguments, "perplexity", file)["losses"]
        compare("perplexity", ours, reference.losses(file.read_text(), arguments.limit), len(ours))


if __name__ == "__main__":
    main()
