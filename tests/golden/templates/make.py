"""Writes expected.json: conversations as `transformers` renders them.

The templates are the *.jinja files here, written for these tests in the style of well-known models, and those in
the GGUF files given. A template that refuses a conversation is expected to be an error with that message.

tojson.json has values as Python's json.dumps writes them with the arguments of the filter.

    python make.py [MODEL.gguf ...]        # needs transformers and gguf (written with transformers 4.57, gguf 0.19)
"""

import json
import sys
from pathlib import Path

from gguf import GGUFReader
from transformers.utils.chat_template_utils import render_jinja_template

TURNS = {
    "user": [("user", "Hello, who are you?")],
    "system": [("system", "You are a pirate."), ("user", "Hi a there?")],
    "turns": [
        ("user", "  What is 2 + 2?\n"),
        ("assistant", " 4 \n\n"),
        ("user", "And <b>3 & 3</b>?\t\"quoted\" 'too' \\n {{ braces }} {% raw %}"),
    ],
    "long": [
        ("system", "Rules:\n1. none\n"),
        ("user", "你好 👩‍👩‍👧‍👦 é"),
        ("assistant", "<|im_end|></s><end_of_turn>"),
        ("user", "a"),
        ("assistant", ""),
        ("user", "Last one?"),
    ],
    "two users": [("user", "a"), ("user", "b")],
    "system in the middle": [("user", "a"), ("system", "b"), ("user", "c")],
    "assistant last": [("user", "Say x"), ("assistant", "x")],
    "none": [],
}


def templates(models):
    """Name, source (None for a model's own) and texts of BOS and EOS of every template."""
    for path in sorted(Path(__file__).parent.glob("*.jinja")):
        # As a model's file would hold it: without the newline that ends a text file.
        yield path.name, path.read_text().removesuffix("\n"), "<s>", "</s>"
    for path in sorted(map(Path, models)):
        fields = GGUFReader(path).fields
        if template := fields.get("tokenizer.chat_template"):
            bos, eos = (fields[f"tokenizer.ggml.{name}_token_id"].contents() for name in ("bos", "eos"))
            tokens = fields["tokenizer.ggml.tokens"]
            yield path.name, template.contents(), tokens.contents(bos), tokens.contents(eos)


def render(source, messages, **variables):
    try:
        (rendered,), _ = render_jinja_template(conversations=[messages], chat_template=source, **variables)
        return {"text": rendered}
    except Exception as error:
        return {"error": str(error)}


# Arguments of the filter, as Jinja and as Python have them.
VALUE = {
    "b": [1, {"é": "天气", "a": None}],
    "a": {},
    "f": [1.0, 1e16, 1e-5, 0.0001, 1.5e300, -0.0, 123456789.125],
    "s": '\x7f\u2028"\\\n\x01😀',
}
ARGUMENTS = {
    "": {},
    "ensure_ascii=true": {"ensure_ascii": True},
    "false, 2": {"indent": 2},
    "indent='\\t', sort_keys=true": {"indent": "\t", "sort_keys": True},
    "separators=(',', ':')": {"separators": (",", ":")},
    "indent=0, separators=['; ', ' = ']": {"indent": 0, "separators": ("; ", " = ")},
    "false, none, none, true": {"sort_keys": True},
    "indent=none": {},
}


def write_tojson():
    cases = [[words, json.dumps(VALUE, **{"ensure_ascii": False, **given})] for words, given in ARGUMENTS.items()]
    text = json.dumps({"value": VALUE, "cases": cases}, ensure_ascii=False, indent=1)
    (Path(__file__).parent / "tojson.json").write_text(text + "\n")


def main():
    write_tojson()
    cases = []
    for template, source, bos, eos in templates(sys.argv[1:]):
        for name, turns in TURNS.items():
            messages = [{"role": role, "content": content} for role, content in turns]
            for prompt in (True, False):
                variables = {"bos_token": bos, "eos_token": eos, "add_generation_prompt": prompt}
                expected = render(source, messages, **variables)
                cases.append({"template": template, "case": name, "messages": messages, **variables, **expected})
    text = json.dumps(cases, ensure_ascii=False, indent=1)
    (Path(__file__).parent / "expected.json").write_text(text + "\n")
    print(f"{len(cases)} renderings, {sum('error' in case for case in cases)} of them errors")


if __name__ == "__main__":
    main()
