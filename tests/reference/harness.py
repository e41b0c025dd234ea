#!/usr/bin/env python3
"""Compares `triad eval` with lm-evaluation-harness that asks `triad serve` by `local-completions`, row by row.

    pip install "lm_eval[api]" transformers gguf xllamacpp
    cargo build --release
    python tests/reference/harness.py --data FOLDER --model MODEL.gguf [--limit N] [--triad target/release/triad]

FOLDER holds lambada_dev.jsonl and hellaswag_dev.jsonl, with the fields of docs/measurements/accuracy.md. The tasks are the harness's
`lambada_openai` and `hellaswag`, but for where their rows come from: its first N rows. Both compute in float. Prints, for
each task, the rows, those that both judge alike, the scores, and the largest difference of a log-likelihood; the exit code
is 1 where a row is judged otherwise. The model's tokenizer must add no BOS.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

# Nothing is to be fetched: rows and tokenizer are here.
os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "OPENAI_API_KEY": "none"}

import lm_eval
from lm_eval.tasks.hellaswag.utils import preprocess
from transformers import PreTrainedTokenizerFast

sys.path.append(str(Path(__file__).parents[1] / "golden" / "tokenizer"))
from engines import Vocabulary, hugging_face


def lambada(file):
    return {
        "task": "lambada",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(file)}},
        "output_type": "loglikelihood",
        "test_split": "test",
        "doc_to_text": "{{text.split(' ')[:-1]|join(' ')}}",
        "doc_to_target": "{{' '+text.split(' ')[-1]}}",
        "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
    }


def scenes(rows):
    """`process_docs` of the harness's task, also of rows that have the two parts of a scene joined."""

    def scene(row):
        both = "ctx_a" in row and "ctx_b" in row
        text = row["ctx_a"] + " " + row["ctx_b"].capitalize() if both else row["ctx"]
        return {
            "query": preprocess(row["activity_label"] + ": " + text),
            "choices": [preprocess(ending) for ending in row["endings"]],
            "gold": int(row["label"]),
        }

    return rows.map(scene)


def hellaswag(file):
    metric = {"aggregation": "mean", "higher_is_better": True}
    return {
        "task": "hellaswag",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(file)}},
        "output_type": "multiple_choice",
        "test_split": "test",
        "process_docs": scenes,
        "doc_to_text": "{{query}}",
        "doc_to_target": "{{label}}",
        "doc_to_choice": "choices",
        "metric_list": [{"metric": name} | metric for name in ("acc", "acc_norm")],
    }


TASKS = {"lambada": (lambada, "acc"), "hellaswag": (hellaswag, "acc_norm")}


def save_tokenizer(model, folder):
    """The tokenizer of a GGUF file as a folder that transformers reads."""
    vocabulary = Vocabulary(model)
    bos, eos = (vocabulary.tokens[vocabulary.get(f"{name}_token_id")] for name in ("bos", "eos"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=hugging_face(vocabulary), bos_token=bos, eos_token=eos)
    tokenizer.save_pretrained(folder)
    return str(folder)


def first_rows(file, limit, folder):
    """A file of the first rows, so that both read the same ones."""
    lines = file.read_text().splitlines(keepends=True)
    few = folder / file.name
    few.write_text("".join(lines[:limit]))
    return few


def by_harness(name, file, address, tokenizer):
    make, metric = TASKS[name]
    arguments = {"base_url": f"{address}/v1/completions", "model": "served", "tokenizer": tokenizer, "max_length": 2048}
    arguments |= {"num_concurrent": 4, "batch_size": 1}
    results = lm_eval.simple_evaluate(
        model="local-completions", model_args=arguments, tasks=[make(file)], log_samples=True, bootstrap_iters=0
    )
    samples = sorted(results["samples"][name], key=lambda sample: sample["doc_id"])
    likelihoods = [[float(choice[0]) for choice in sample["filtered_resps"]] for sample in samples]
    return [sample[metric] == 1 for sample in samples], likelihoods


def by_eval(name, file, options):
    command = [options.triad, "eval", "-m", options.model, "--task", name, "--data", str(file), "--json"]
    (result,) = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)["results"]
    return result["rows"]["correct"], result["rows"]["log_likelihoods"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--triad", default="target/release/triad")
    options = parser.parse_args()
    differs = False
    serve = [options.triad, "serve", "-m", options.model, "--no-quantize", "--f32", "--port", "0", "--context", "2048", "--alias", "served"]
    with tempfile.TemporaryDirectory() as folder, subprocess.Popen(serve, stderr=subprocess.PIPE, text=True) as server:
        folder = Path(folder)
        try:
            tokenizer = save_tokenizer(options.model, folder / "tokenizer")
            address = next(found[0] for line in server.stderr if (found := re.search(r"http://[\d.]+:\d+", line)))
            for name, (_, metric) in TASKS.items():
                file = first_rows(options.data / f"{name}_dev.jsonl", options.limit, folder)
                correct, likelihoods = by_harness(name, file, address, tokenizer)
                expected, of_eval = by_eval(name, file, options)
                alike = sum(a == b for a, b in zip(correct, expected, strict=True))
                pairs = zip(sum(likelihoods, []), sum(of_eval, []), strict=True)
                largest = max(abs(a - b) for a, b in pairs)
                print(
                    f"{name}: {len(correct)} rows, {alike} judged alike; {metric} {sum(correct) / len(correct):.4f} by the "
                    f"harness, {sum(expected) / len(expected):.4f} by triad eval; log-likelihoods differ by {largest:.1e} at most"
                )
                differs |= alike != len(correct)
        finally:
            server.terminate()
    sys.exit(differs)


if __name__ == "__main__":
    main()
