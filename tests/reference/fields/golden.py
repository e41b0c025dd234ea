"""The expected values of `cargo test`: the files of tests/golden/fields.

A case is the fields that are changed, the names of those that are dropped, and a number: files of one base with the same
number have the same logits by the reference. Where the references disagree, a word stands in place of the number.
"""

import json

import numpy as np

import cases

# No file is longer, in characters, unless one base is.
LONGEST = 900_000
# Logits closer than this, relative to the largest, are the same.
SAME = 1e-6
DISAGREE = "disagree"


def write(folder, golden):
    """`golden`: base and `[(case, logits of the references, None or "disagree")]` by the base's name. Other bases that the
    files have are kept."""
    folder.mkdir(exist_ok=True)
    files = []
    # The first file has no number.
    for path in sorted(folder.glob("cases*.json"), key=lambda path: (len(path.name), path.name)):
        bases = json.loads(path.read_text())["bases"]
        files.append([block(base, map(json.dumps, base.pop("cases"))) for base in bases if base["name"] not in golden])
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
        new = block(head, lines)
        if not files or sum(map(len, files[-1])) + len(new) > LONGEST:
            files.append([])
        files[-1].append(new)
    for number, described in enumerate(files, 1):
        name = "cases.json" if number == 1 else f"cases-{number}.json"
        (folder / name).write_text('{"bases": [\n' + ",\n".join(described) + "\n]}\n")


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
