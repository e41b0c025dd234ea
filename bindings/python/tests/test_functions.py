"""Calls of functions, with a model that says a fixed script."""

import json
import sys
from pathlib import Path

import pytest

import triad

sys.path.append(str(Path(__file__).resolve().parents[3] / "tests/cases"))

from scripted import Model  # noqa: E402

ADD = {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": {"type": "object"}}}
QUESTION = {"role": "user", "content": "2 + 3?"}
# The script tells after a result alone; the template reads the call as OpenAI's form has it.
TEMPLATE = (
    "{% set last = messages[-1] %}{% if last.role == 'tool' %}"
    "{{ messages[1].tool_calls[0].function.name }}{{ last.content }}<|tell|>"
    "{% elif tools %}<|u|>{{ tools[0].function.name }}<|a|>{% else %}<|tell|>{% endif %}"
)
GREEDY = {"temperature": 0, "max_tokens": 16}


@pytest.fixture(scope="module")
def speaker(tmp_path_factory):
    path = tmp_path_factory.mktemp("scripted") / "model.gguf"
    model = Model("<tool_call>", "</tool_call>", "<|tell|>")
    model.says("Adding. ", "<tool_call>", json.dumps({"name": "add", "arguments": {"a": 2}}), "</tool_call>")
    model.says("five", after="<|tell|>")
    model.save(path, TEMPLATE)
    return triad.Model(path, float=True, threads=1)


def test_a_call_is_no_text_and_its_result_continues_the_conversation(speaker):
    session = speaker.session()
    answer = session.chat([QUESTION], tools=[ADD], **GREEDY)
    assert answer.text.strip() == "Adding."
    assert [(call.name, call.arguments) for call in answer.calls] == [("add", {"a": 2})]
    assert answer.message["tool_calls"][0]["function"]["name"] == "add"
    result = {"role": "tool", "name": "add", "content": "5"}
    final = session.chat([QUESTION, answer.message, result], tools=[ADD], **GREEDY)
    assert final.text == "five" and final.calls == [] and "tool_calls" not in final.message


def test_a_stream_has_the_text_without_calls(speaker):
    stream = speaker.chat_stream([QUESTION], tools=[ADD], **GREEDY)
    assert "".join(stream).strip() == "Adding."
    assert [call.name for call in stream.answer.calls] == ["add"]


def test_without_tools_the_template_lists_none(speaker):
    assert speaker.apply_template([QUESTION]) == "<|tell|>"
    assert "add" in speaker.apply_template([QUESTION], tools=[ADD])
    assert speaker.chat([QUESTION], **GREEDY).calls == []


def test_tools_that_cannot_be_used_are_refused_by_name(speaker):
    with pytest.raises(ValueError, match=r"tools\[1\].*name"):
        speaker.chat([QUESTION], tools=[ADD, {"function": {}}])
    with pytest.raises(TypeError, match="tools: expected a list"):
        speaker.chat([QUESTION], tools=ADD)
    with pytest.raises(ValueError, match="tools: expected no schema"):
        speaker.chat([QUESTION], tools=[ADD], regex="[a-z]*")
    with pytest.raises(TypeError, match="tools"):
        speaker.generate("2 + 3?", tools=[ADD])
