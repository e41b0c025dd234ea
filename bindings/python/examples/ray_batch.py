"""Answers the prompts of a Parquet file on all machines of a Ray cluster.

    pip install triad "ray[data]"
    python ray_batch.py prompts.parquet answers.parquet [--workers 2] [--model smollm2-135m]

The file has the columns `id` and `prompt`; the answers have `id`, `prompt` and `answer`. Each worker holds the model. If a
worker or its machine is lost, Ray starts another, which computes the lost batches again. Answers are greedy, so they are the same
on any number of workers, and after any loss.
"""

import argparse
import os

import ray

import triad


class Answers:
    """A worker: one model, which stays in memory from batch to batch."""

    def __init__(self, model: str, threads: int, max_tokens: int):
        self.model = triad.Model(model, threads=threads)
        self.max_tokens = max_tokens

    def __call__(self, batch):
        def answer(prompt):
            messages = [{"role": "user", "content": str(prompt)}]
            return self.model.chat(messages, max_tokens=self.max_tokens, temperature=0).text

        return {**batch, "answer": [answer(prompt) for prompt in batch["prompt"]]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompts")
    parser.add_argument("answers")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1, help="of each worker")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--batch", type=int, default=4, help="prompts that a lost worker computes again, at most")
    options = parser.parse_args()

    if "RAY_ADDRESS" not in os.environ:
        # A cluster of this machine alone. Ray's own tasks read and write files: without CPUs of theirs nothing begins.
        ray.init(num_cpus=options.workers * options.threads + 2)
    ray.data.read_parquet(options.prompts).repartition(target_num_rows_per_block=options.batch).map_batches(
        Answers,
        fn_constructor_args=(options.model, options.threads, options.max_tokens),
        batch_size=options.batch,
        concurrency=options.workers,
        num_cpus=options.threads,
        # Of a worker that is lost: as often as it takes.
        max_restarts=-1,
        max_task_retries=-1,
    ).write_parquet(options.answers)


if __name__ == "__main__":
    main()
