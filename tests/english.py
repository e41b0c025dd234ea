"""Words and summaries that the rules of English in CONTRIBUTING.md forbid, in files that people read."""

import re

# Also as a part of a name, such as that of a test. "Ahead of time" is a term of the field.
WORDS = re.compile(
    r"(?<![A-Za-z])(?i:behind|beside|whoever|nobody|anew|ahead[ _]of(?![ _]time))(?![a-z])"
    r"|(?<=[a-z])(?:Behind|Beside|Whoever|Nobody|Anew)(?![a-z])"
    r"|(?i:\b(?:to no avail|whose turn|(?:tokens?|bytes|operations|GB|Gop|GiB|times) an? (?:second|token))\b)"
)
DOCUMENTATION = re.compile(r"^[ \t]*//[/!]")
# A summary that does not begin with a verb or with what the thing is.
SUMMARY = re.compile(r"""^[ \t]*(?://[/!] |\"{3}|/\*\* ?)(?:What|Of|Those|Whose|Who)\b""")
# The name of a field in files that earlier versions wrote.
EARLIER = re.compile(r"\balias = \"\w+\"")
READ = (".c", ".cpp", ".h", ".html", ".js", ".kt", ".md", ".mjs", ".py", ".pyi", ".rs", ".sh", ".toml", ".ts", ".wgsl", ".yaml")
# They name the words.
EXEMPT = {"CONTRIBUTING.md", "tests/english.py"}


def found(text):
    """(line, what is wrong) for each word and summary."""
    before = ""
    for number, line in enumerate(text.splitlines(), 1):
        for word in WORDS.findall(EARLIER.sub("", line)):
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
    assert len([*found("fn a_row_beside_others() {}\nlet nobodyElse = rows_ahead_of_it;\n")]) == 3
    assert not [*found("fn ahead_of_time() {}\n#[serde(alias = \"beside_it\")]\nlet basideous = 1;\n")]
    assert len([*found('"""What it is."""\n/** Of it. */\n')]) == 2
