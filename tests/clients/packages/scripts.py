"""The models of these trials that say fixed scripts. What they say is chosen by their templates, from what a client sent."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "cases"))

from scripted import Model  # noqa: E402

CALL_WORDS = ("<tool_call>", "</tool_call>")
# After these words, which the templates put last, the models say a script.
CALLS, TELLS = "<|calls|>", "<|tells|>"
# Only the beginning of a message is computed: some clients send thousands of words.
TEMPLATE = """{# <tool_call> #}
{%- for m in messages %}<|u|>{{ m.role }}
{{ ((m.content or '') | string)[:200] }}{% endfor %}
{%- set names = (tools or []) | map(attribute='function') | map(attribute='name') | list %}
{%- if '21 degrees' in messages[-1].content | string %}<|tells|>
{%- elif 'weather' in names %}<|calls|>
{%- else %}<|a|>{% endif %}"""


def scripted(path):
    """Names colours. Calls the tool `weather` where it has one, and tells the weather when it has the result."""
    model = Model(*CALL_WORDS, CALLS, TELLS)
    weather = '\n{"name": "weather", "arguments": {"city": "Oslo"}}\n'
    model.says("<tool_call>", weather, "</tool_call>", after=CALLS)
    model.says("Red", ",", " green", " and", " blue", ".")
    model.says(" It", " is", " sunny", " in", " Oslo", ". ", after=TELLS)
    model.save(path, TEMPLATE, context=8192)


def middle(path):
    """Fills in the middle of a function, as models for code do."""
    model = Model("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")
    model.says("a", " + ", "b", after="<|fim_middle|>")
    model.save(path, context=8192)
