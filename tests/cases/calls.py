"""Calls as models write them, in all APIs."""

import json

from asking import HI, PARAMETERS, TOOLS, case
from models import FORMATS

CALL = ("fun", {"a": "b"})
NAMED = [{"name": "fun", "description": "Does it", "input_schema": PARAMETERS}]


def reads(name):
    def calls_are_read(s):
        assert s.calls(f"c-{name}") == [CALL], s.chat(f"c-{name}", tools=TOOLS).text
        events = s.chat(f"c-{name}", tools=TOOLS, stream=True).events()
        deltas = [call for event in events if event["choices"] for call in event["choices"][0]["delta"].get("tool_calls") or []]
        assert deltas[0]["function"]["name"] == "fun", deltas
        assert json.loads("".join(delta["function"].get("arguments") or "" for delta in deltas)) == {"a": "b"}

    calls_are_read.__name__ = f"calls_of_{name}_are_read_whole_and_streamed"
    case(calls_are_read)


for name in FORMATS:
    reads(name)


@case
def several_calls_have_their_own_names_and_numbers(s):
    assert s.calls("two-calls") == [CALL, ("fun", {"a": "c"})]
    calls = s.chat("two-calls", tools=TOOLS).message["tool_calls"]
    assert len({call["id"] for call in calls}) == 2
    assert s.calls("two-calls", parallel_tool_calls=False) == [CALL]


@case
def a_text_before_a_call_is_the_content(s):
    message = s.chat("text-and-call", tools=TOOLS).message
    assert message["content"].strip() == "I look." and len(message["tool_calls"]) == 1


@case
def json_that_calls_nothing_is_text(s):
    message = s.chat("no-call", tools=TOOLS).message
    assert json.loads(message["content"]) == {"city": "Oslo"} and not message.get("tool_calls")


@case
def without_tools_a_call_is_text(s):
    message = s.chat("c-nemotron").message
    assert message["content"].startswith("<TOOLCALL>") and not message.get("tool_calls")


@case
def a_call_that_is_cut_off_is_said(s):
    reply = s.chat("c-hermes", tools=TOOLS, max_tokens=1)
    assert reply.json["choices"][0]["finish_reason"] == "length", reply.text


@case
def a_call_ends_with_its_reason(s):
    assert s.chat("c-hermes", tools=TOOLS).json["choices"][0]["finish_reason"] == "tool_calls"
    assert s.messages("c-hermes", tools=NAMED).json["stop_reason"] == "tool_use"


@case
def a_call_is_a_block_in_anthropics_form(s):
    blocks = s.messages("text-and-call", tools=NAMED).json["content"]
    assert [block["type"] for block in blocks] == ["text", "tool_use"]
    assert (blocks[1]["name"], blocks[1]["input"]) == CALL
    events = s.messages("c-hermes", tools=NAMED, stream=True).events()
    parts = [event["delta"]["partial_json"] for event in events if event.get("delta", {}).get("type") == "input_json_delta"]
    assert json.loads("".join(parts)) == {"a": "b"}


@case
def a_call_is_an_item_of_responses(s):
    tool = {"type": "function", "name": "fun", "parameters": PARAMETERS}
    output = s.responses("c-hermes", tools=[tool]).json["output"]
    calls = [item for item in output if item["type"] == "function_call"]
    assert [(call["name"], json.loads(call["arguments"])) for call in calls] == [CALL]
    result = {"type": "function_call_output", "call_id": calls[0]["call_id"], "output": "done"}
    again = s.responses("c-hermes", tools=[tool], input=[{"role": "user", "content": "Hi"}, calls[0], result])
    assert again.status == 200, again.text


@case
def a_call_is_an_object_in_ollamas_form(s):
    reply = s.ask("/api/chat", {"model": "c-hermes", "messages": HI, "tools": TOOLS, "stream": False})
    function = reply.json["message"]["tool_calls"][0]["function"]
    assert (function["name"], function["arguments"]) == CALL


@case
def a_demanded_call_is_made_and_an_unknown_one_refused(s):
    demanded = {"type": "function", "function": {"name": "fun"}}
    parameters = {"type": "object", "properties": {"a": {"enum": ["b"]}}, "required": ["a"]}
    tools = [{"type": "function", "function": {"name": "fun", "parameters": parameters}}]
    assert s.calls("plain", tools=tools, tool_choice=demanded, max_tokens=200, temperature=0) == [CALL]
    other = {"type": "function", "function": {"name": "other"}}
    s.chat("plain", tools=TOOLS, tool_choice=other).refuses("other")
    s.chat("plain", tool_choice="required").refuses("tool")


@case
def names_have_up_to_128_letters(s):
    def tools(length):
        return [{"type": "function", "function": {"name": "f" * length, "parameters": PARAMETERS}}]

    assert s.chat("c-hermes", tools=tools(128)).status == 200
    s.chat("c-hermes", tools=tools(129)).refuses("name")
    s.chat("c-hermes", tools=tools(0)).refuses("name")


@case
def functions_without_parameters_are_called(s):
    for function in ({"name": "fun"}, {"name": "fun", "parameters": None}, {"name": "fun", "parameters": {}}):
        reply = s.chat("c-lfm2", tools=[{"type": "function", "function": function}])
        assert reply.status == 200, (function, reply.text)


@case
def results_are_texts_or_parts(s):
    call = {"id": "1", "type": "function", "function": {"name": "fun", "arguments": "{}"}}
    for content in ("done", "", None, [{"type": "text", "text": "done"}]):
        messages = [*HI, {"role": "assistant", "tool_calls": [call]}, {"role": "tool", "tool_call_id": "1", "content": content}]
        reply = s.chat("c-hermes", tools=TOOLS, messages=messages)
        assert reply.status == 200, (content, reply.text)


@case
def results_in_anthropics_form_are_texts_parts_or_errors(s):
    use = {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "fun", "input": {}}]}
    for result in ({"content": "done"}, {"content": [{"type": "text", "text": "done"}]}, {}, {"content": "no", "is_error": True}):
        messages = [*HI, use, {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t"} | result]}]
        reply = s.messages("c-hermes", tools=NAMED, messages=messages)
        assert reply.status == 200, (result, reply.text)


@case
def tools_that_the_server_does_not_run_are_left_out_and_said(s):
    tools = [{"type": "web_search"}, {"type": "function", "name": "fun", "parameters": PARAMETERS}]
    reply = s.responses("c-hermes", tools=tools)
    assert reply.status == 200 and "web_search" in reply.headers.get("x-triad-tools-left-out", ""), reply.text
    s.responses("c-hermes", tools=[{"type": "web_search"}], tool_choice="required").refuses("web_search")


@case
def the_older_names_of_tools_work_or_are_refused(s):
    reply = s.chat("c-hermes", functions=[TOOLS[0]["function"]])
    assert reply.status == 400 or reply.message.get("tool_calls") or reply.message.get("function_call"), reply.text


@case
def reasoning_comes_before_a_call(s):
    message = s.chat("reasons-calls", tools=TOOLS).message
    assert message["reasoning_content"].strip() == "hm" and message["tool_calls"][0]["function"]["name"] == "fun"
    assert not (message["content"] or "").strip()
