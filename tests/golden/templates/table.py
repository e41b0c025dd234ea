"""Writes table.json: templates × conversations with tools, thinking, parts and prefill, as `transformers` renders them.

The templates are styles/*.jinja, written for these tests in the style of well-known models. With arguments, templates
that may not be in the tree are rendered instead, and the table goes to another file, with their sources:

    python table.py                             # table.json
    python table.py OUTPUT.json NAME.jinja ...  # for the variable TRIAD_TEMPLATE_TABLE of the test

Needs transformers (written with 4.57).
"""

import json
import sys
from pathlib import Path

from transformers.utils.chat_template_utils import render_jinja_template

FOLDER = Path(__file__).parent
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Returns the weather of a <city> & \"more\".",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "Größe, e.g. 東京"},
                    "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": None},
                    "days": {"type": "integer", "minimum": 1, "nullable": True},
                },
                "required": ["city"],
            },
        },
    },
    {"type": "function", "function": {"name": "now", "description": "Time", "parameters": {"type": "object", "properties": {}}}},
]
CALL = {"id": "abc123def", "type": "function", "function": {"name": "get_weather", "arguments": {"city": "Zürich", "days": 2, "x": [1.5, None]}}}
ASK = {"role": "user", "content": "What is the weather in Zürich?"}
RESULT = {"role": "tool", "name": "get_weather", "tool_call_id": "abc123def", "content": '{"sky": "clear", "t": 21.5}'}
SYSTEM = {"role": "system", "content": "  Be brief.\nAlways. "}
THOUGHT = {"role": "assistant", "content": "4", "reasoning_content": "2 + 2 is\n4."}
INLINE = {"role": "assistant", "content": "<think>\nEasy.\n</think>\n\nIt is 4."}
text = lambda content: [{"type": "text", "text": content}]

# Messages and further variables.
CASES = {
    "user": ([ASK], {}),
    "system": ([SYSTEM, {"role": "user", "content": "Hi\n<b>&</b> 'x' \"y\""}], {}),
    "turns": ([SYSTEM, ASK, {"role": "assistant", "content": " Fine.\n"}, {"role": "user", "content": "你好 👩‍👩‍👧 é"}], {}),
    "tools": ([ASK], {"tools": TOOLS}),
    "tools and system": ([SYSTEM, ASK], {"tools": TOOLS}),
    "call": ([ASK, {"role": "assistant", "content": "", "tool_calls": [CALL]}, RESULT], {"tools": TOOLS}),
    "call with a text": ([ASK, {"role": "assistant", "content": "Wait.", "tool_calls": [CALL]}, RESULT], {"tools": TOOLS}),
    "call without a text": ([ASK, {"role": "assistant", "content": None, "tool_calls": [CALL]}, RESULT], {"tools": TOOLS}),
    "calls": (
        [SYSTEM, ASK, {"role": "assistant", "content": "", "tool_calls": [CALL, CALL]}, RESULT, RESULT,
         {"role": "assistant", "content": "Clear."}, {"role": "user", "content": "Thanks"}],
        {"tools": TOOLS},
    ),
    "thinking": ([ASK], {"enable_thinking": True}),
    "no thinking": ([ASK], {"enable_thinking": False}),
    "thought": ([{"role": "user", "content": "2 + 2?"}, THOUGHT, {"role": "user", "content": "And 3?"}], {}),
    "thought inline": ([{"role": "user", "content": "2 + 2?"}, INLINE, {"role": "user", "content": "And 3?"}], {}),
    "thought before a call": (
        [ASK, {"role": "assistant", "content": "", "reasoning_content": "Call.", "tool_calls": [CALL]}, RESULT],
        {"tools": TOOLS, "enable_thinking": True},
    ),
    "parts": ([{"role": "system", "content": text("S")}, {"role": "user", "content": text("A")}], {}),
    "prefill": ([ASK, {"role": "assistant", "content": "It is ("}], {"continue_final_message": True}),
    "prefill with spaces": ([SYSTEM, ASK, {"role": "assistant", "content": "It is \n"}], {"continue_final_message": True}),
    "two users": ([ASK, ASK], {}),
    "documents": ([ASK], {"documents": [{"title": "T", "text": "One & two"}]}),
}


def render(source, messages, variables):
    try:
        (rendered,), _ = render_jinja_template(conversations=[messages], chat_template=source, **variables)
        return {"text": rendered}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def strings(messages):
    """The same messages with texts instead of parts."""
    plain = lambda content: "\n".join(part["text"] for part in content) if isinstance(content, list) else content
    return [{**message, "content": plain(message["content"])} for message in messages]


def rows(name, source):
    for case, (messages, variables) in CASES.items():
        variables = {"bos_token": "<s>", "eos_token": "</s>", **variables}
        variables["add_generation_prompt"] = not variables.get("continue_final_message", False)
        expected = render(source, messages, variables)
        # A template for texts writes parts as Python does, or fails: Triad gives it texts.
        if case == "parts" and ("error" in expected or "'type'" in expected["text"] or '"type"' in expected["text"]):
            expected = render(source, strings(messages), variables)
        yield {"template": name, "case": case, "messages": messages, "variables": variables, **expected}


def main():
    output, *paths = sys.argv[1:] or [FOLDER / "table.json"]
    table = []
    for path in map(Path, paths or sorted((FOLDER / "styles").glob("*.jinja"))):
        source = path.read_text().removesuffix("\n")
        of_template = list(rows(path.name, source))
        if paths:
            of_template = [{**row, "source": source} for row in of_template]
        table += of_template
    Path(output).write_text(json.dumps(table, ensure_ascii=False, indent=1 if paths else None, separators=None if paths else (",", ":")) + "\n")
    names = {row["template"] for row in table}
    print(f"{len(names)} templates, {len(table)} renderings, {sum('error' in row for row in table)} of them errors")


if __name__ == "__main__":
    main()
