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
    """`golden`: base and `[(case, logits of the references, None or "disagree")]` by the base's name. Other bases that the
    file has are kept."""
    folder.mkdir(exist_ok=True)
    path, described = folder / "cases.json", []
    for base in json.loads(path.read_text())["bases"] if path.exists() else []:
        if base["name"] not in golden:
            lines = map(json.dumps, base.pop("cases"))
            described.append(block(base, lines))
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
        head = {"name": name, "tokens": len(base.tokens), **base.described()}
        described.append(block(head, lines))
    path.write_text('{"bases": [\n' + ",\n".join(described) + "\n]}\n")


def block(head, lines):
    """The text of a base with its cases, one a line."""
    return json.dumps(head)[:-1] + ', "cases": [\n' + ",\n".join(lines) + "\n]}"


def index(rows, row):
    """Where `row` is in `rows`; it is added if it isn't."""
    for place, other in enumerate(rows):
        if np.abs(row - other).max() < SAME * np.abs(other).max():
            return place
    rows.append(row)
    return len(rows) - 1
