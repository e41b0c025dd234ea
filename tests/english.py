"""Words and summaries that the rules of English in CONTRIBUTING.md forbid, in files that people read."""

import re

WORDS = re.compile(
    r"\b(?:behind|beside|whoever|nobody|anew|to no avail|whose turn|(?:tokens?|bytes|operations|GB|Gop|GiB|times) an? (?:second|token))\b",
    re.IGNORECASE,
)
DOCUMENTATION = re.compile(r"^[ \t]*//[/!]")
# A summary that does not begin with a verb or with what the thing is.
SUMMARY = re.compile(r"^[ \t]*//[/!] (?:What|Of|Those|Whose)\b")
READ = (".c", ".h", ".html", ".js", ".md", ".py", ".rs", ".toml", ".wgsl")
# They name the words.
EXEMPT = {"CONTRIBUTING.md", "tests/english.py"}


def found(text):
    """(line, what is wrong) for each word and summary."""
    before = ""
    for number, line in enumerate(text.splitlines(), 1):
        for word in WORDS.findall(line):
            yield number, f"`{word}`"
        if SUMMARY.match(line) and not DOCUMENTATION.match(before):
            yield number, "a summary that begins with neither a verb nor a noun"
        before = line


def broken(files, root):
    for file in files:
        name = str(file.relative_to(root))
        if name in EXEMPT or file.suffix not in ("", *READ):
            continue
        text = file.read_text(errors="replace")
        if file.suffix or text.startswith("#!"):
            for number, wrong in found(text):
                yield f"{name}:{number}: {wrong}: see English in CONTRIBUTING.md"


def test():
    assert len([*found("/// What it is.\n/// Of it.\nfn a() {}\n//! Of all.\n")]) == 2
    assert len([*found("fn b() {} // beside it, 3 tokens a second\n/// Returns it.\n")]) == 2
