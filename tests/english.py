"""Counts the words and the summaries that the rules of English in CONTRIBUTING.md forbid, file by file.

`tests/english.txt` lists the files that still have some: path, words, summaries. A file may not get worse, and one that got
better is written down by `tests/repository --write`.
"""

import re
from pathlib import Path

BASELINE = Path(__file__).parent / "english.txt"
WORDS = re.compile(
    r"\b(?:behind|beside|whoever|nobody|anew|to no avail|whose turn|(?:tokens?|bytes|operations|GB|Gop|GiB|times) an? (?:second|token))\b",
    re.IGNORECASE,
)
DOCUMENTATION = re.compile(r"^[ \t]*//[/!]")
# A summary that does not begin with a verb or with what the thing is.
SUMMARY = re.compile(r"^[ \t]*//[/!] (?:What|Of|Those|Whose)\b")
READ = (".c", ".h", ".html", ".js", ".md", ".py", ".rs", ".toml", ".wgsl")
# It names the words.
EXEMPT = {"CONTRIBUTING.md", "tests/english.py"}


def counts(text):
    """(words, summaries)."""
    lines = text.splitlines()
    first = (line for before, line in zip(["", *lines], lines) if not DOCUMENTATION.match(before))
    return len(WORDS.findall(text)), sum(bool(SUMMARY.match(line)) for line in first)


def found(files, root):
    """The counts of each file that has some, by its path."""
    all_counts = {}
    for file in files:
        name = str(file.relative_to(root))
        if file.suffix in READ and name not in EXEMPT:
            words, summaries = counts(file.read_text(errors="replace"))
            if words or summaries:
                all_counts[name] = words, summaries
    return all_counts


def write(files, root):
    lines = [f"{name} {words} {summaries}\n" for name, (words, summaries) in sorted(found(files, root).items())]
    BASELINE.write_text("".join(lines))


def broken(files, root):
    """Sentences about files whose counts are not those of the baseline."""
    rows = (line.split() for line in BASELINE.read_text().splitlines())
    allowed = {name: (int(words), int(summaries)) for name, words, summaries in rows}
    now = found(files, root)
    for name in sorted({*now, *allowed}):
        have, may = now.get(name, (0, 0)), allowed.get(name, (0, 0))
        for count, most, what in zip(have, may, ("words", "summaries")):
            if count > most:
                yield f"{name}: {count} {what} against the rules of English in CONTRIBUTING.md: expected at most {most}"
            elif count < most:
                yield f"{name}: better English than tests/english.txt says: run tests/repository --write"
                break


def test():
    assert counts("/// What it is.\n/// Of it.\nfn a() {}\n//! Of all.\n") == (0, 2)
    assert counts("fn b() {} // beside it, 3 tokens a second\n/// Returns it.\n") == (2, 0)
