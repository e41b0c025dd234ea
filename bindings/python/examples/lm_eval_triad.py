"""Triad as a model of lm-evaluation-harness.

    pip install lm_eval triad
    python lm_eval_triad.py --model smollm2-135m --tasks lambada_openai,hellaswag --limit 100
    python lm_eval_triad.py --model model.gguf --float --data FOLDER

With --data, LAMBADA's rows come from FOLDER/lambada_dev.jsonl, and the scores are compared with those of `Model.evaluate`,
which is `triad eval`; the exit code is 1 where they differ.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import lm_eval
from lm_eval.api.model import LM

import triad


class Triad(LM):
    """Scores continuations and generates answers, one request after the other."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def loglikelihood(self, requests):
        return [self._continuation(*request.args) for request in requests]

    def _continuation(self, context, continuation):
        # Spaces at the end of a context belong to what follows, as the harness has it for other models.
        stripped = context.rstrip()
        continuation = context[len(stripped) :] + continuation
        before = self.model.tokenize(stripped) if stripped else self.model.end_tokens[:1]
        tokens = self.model.tokenize(stripped + continuation) if stripped else before + self.model.tokenize(continuation)
        [(scores, greedy)] = self.model.session().score([(tokens, len(before))])
        return sum(scores), greedy

    def loglikelihood_rolling(self, requests):
        return [self._continuation("", request.args[0])[0] for request in requests]

    def generate_until(self, requests):
        answers = []
        for request in requests:
            prompt, options = request.args
            stop = options.get("until") or []
            answer = self.model.generate(
                prompt,
                stop=stop,
                max_tokens=options.get("max_gen_toks", 256),
                temperature=options.get("temperature", 0.0) if options.get("do_sample") else 0.0,
            )
            answers.append(answer.text)
        return answers


def lambada(file):
    """The harness's task `lambada_openai`, with rows of a file."""
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


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--float", action="store_true")
    parser.add_argument("--tasks", default="lambada_openai")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--limit", type=int, default=100)
    arguments = parser.parse_args()
    model = triad.Model(arguments.model, float=arguments.float, context=1024)
    file = arguments.data and arguments.data / "lambada_dev.jsonl"
    tasks = [lambada(file)] if file else arguments.tasks.split(",")
    results = lm_eval.simple_evaluate(Triad(model), tasks=tasks, limit=arguments.limit, log_samples=bool(file))
    for task, scores in results["results"].items():
        print(task, {name: value for name, value in scores.items() if isinstance(value, float)})
    if file:
        # The harness takes the first rows, Triad takes rows evenly over a file.
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as head:
            head.write("".join(line + "\n" for line in file.read_text().splitlines()[: arguments.limit]))
            head.flush()
            ours = model.evaluate("lambada", head.name)["rows"]
        theirs = [sample["resps"][0][0] for sample in results["samples"]["lambada"]]
        alike = sum(bool(their[1]) == our for their, our in zip(theirs, ours["correct"]))
        largest = max(abs(float(their[0]) - our[0]) for their, our in zip(theirs, ours["log_likelihoods"]))
        print(f"{alike} of {len(theirs)} rows are judged alike; largest difference of a log-likelihood {largest:.2g}")
        sys.exit(alike != len(theirs))


if __name__ == "__main__":
    main()
