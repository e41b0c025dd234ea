"""Compares two outputs of `triad eval --json` row by row: python tests/reference/paired.py ONE OTHER

Both have the same tasks with the same rows. Prints each metric of both, and the differences of the rows: of the losses of
windows, or of the log-likelihoods of choices. A difference is that of the other from the one.
"""

import json
import math
import sys


def outcome(path):
    """Returns the results in a file by task. Qualcomm's emulator prints a line of its own after them."""
    with open(path) as file:
        report, _ = json.JSONDecoder().raw_decode(file.read())
    return {result["task"]: result for result in report["results"]}


def numbers(rows):
    """Returns the numbers of each row: its loss, or the log-likelihoods of its choices."""
    if "losses" in rows:
        return [[loss] for loss in rows["losses"]]
    return rows["log_likelihoods"]


def main():
    one, other = (outcome(path) for path in sys.argv[1:3])
    if one.keys() != other.keys():
        sys.exit(f"the tasks differ: {sorted(one)} and {sorted(other)}")
    for task, first in one.items():
        second = other[task]
        if first["count"] != second["count"]:
            sys.exit(f"{task}: {first['count']} rows and {second['count']} rows")
        print(f"{task}, {first['count']} rows")
        for a, b in zip(first["metrics"], second["metrics"]):
            print(f"  {a['name']}: {a['value']:.4f} ± {a['standard_error']:.4f}, {b['value']:.4f}")
        pairs = list(zip(numbers(first["rows"]), numbers(second["rows"])))
        means = [sum(b) / len(b) - sum(a) / len(a) for a, b in pairs]
        mean = sum(means) / len(means)
        deviation = sum((x - mean) ** 2 for x in means) / max(len(means) - 1, 1)
        largest = max(abs(x - y) for a, b in pairs for x, y in zip(a, b))
        error = math.sqrt(deviation / len(means))
        print(f"  differences: {mean:+.4f} ± {error:.4f} on average, {largest:.4f} at most")
        if "correct" in first["rows"]:
            judged = zip(first["rows"]["correct"], second["rows"]["correct"])
            print(f"  judged differently: {sum(a != b for a, b in judged)}")
        for work in second.get("processors", []):
            share = 100 * work["share"]
            print(f"  {work['processor']}: {work['products']} products, {share:.1f} % of the operations")
        print(f"  seconds: {first['seconds']:.1f}, {second['seconds']:.1f}; tokens: {first['tokens']}")


if __name__ == "__main__":
    main()
