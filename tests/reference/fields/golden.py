"""What `cargo test` compares with: tests/golden/fields/cases.json.

A case is the fields that are changed, the names of those that are dropped, and a number: files of one base with the same
number have the same logits by the reference. Where the references disagree, a word stands in place of the number.
"""

import json

import numpy as np

import cases

# Logits closer than this, relative to the largest, are the same.
SAME = 1e-6
DISAGREE = "disagree"


def write(folder, golden):
    """`golden`: base and `[(case, logits of the references, None or "disagree")]` by the base's name."""
    folder.mkdir(exist_ok=True)
    described = []
    for name, (base, found) in golden.items():
        rows, lines = [], []
        for case, reference in found:
            # What no reference takes has no right answer.
            if reference is None:
                continue
            number = DISAGREE if isinstance(reference, str) else index(rows, reference[-1].astype(np.float32))
            changes = {key: value for key, value in case.changes.items() if value is not cases.DROP}
            dropped = [key for key, value in case.changes.items() if value is cases.DROP]
            lines.append(json.dumps([changes, dropped, number]))
        head = json.dumps({"name": name, "tokens": len(base.tokens), **base.described()})
        described.append(head[:-1] + ', "cases": [\n' + ",\n".join(lines) + "\n]}")
    (folder / "cases.json").write_text('{"bases": [\n' + ",\n".join(described) + "\n]}\n")


def index(rows, row):
    """Where `row` is in `rows`; it is added if it isn't."""
    for place, other in enumerate(rows):
        if np.abs(row - other).max() < SAME * np.abs(other).max():
            return place
    rows.append(row)
    return len(rows) - 1
