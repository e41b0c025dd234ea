"""Templates render as `transformers` renders them."""

import json
import time

from asking import HI, TOOLS, case

TWO = [{"role": "user", "content": "a b"}, {"role": "assistant", "content": "stop"}, {"role": "user", "content": "c"}]


@case
def json_is_written_as_python_writes_it(s):
    value = {"b": "<天>", "a": [1.5, True, None]}
    prompt = s.prompt("t-json", chat_template_kwargs={"value": value})
    expected = [
        json.dumps(value, ensure_ascii=False), json.dumps(value, ensure_ascii=False, indent=2),
        json.dumps(value, ensure_ascii=False, sort_keys=True), json.dumps(value, ensure_ascii=False, separators=(",", ":")),
    ]
    assert prompt == "|".join(expected), prompt


@case
def methods_of_texts_are_pythons(s):
    prompt = s.prompt("t-methods", messages=[{"role": "user", "content": " xa b "}])
    assert prompt == "xa b|| XA B |False| xo b |True|xa", prompt


@case
def lists_are_sliced(s):
    assert s.prompt("t-last", messages=TWO) == "user|c|2"


@case
def loops_continue_and_break(s):
    assert s.prompt("t-loop", messages=TWO) == "a b,c"
    stop = [{"role": "user", "content": text} for text in ("a", "b", "stop", "d")]
    assert s.prompt("t-loop", messages=stop) == "a,"


@case
def lists_are_filtered_and_namespaces_kept(s):
    assert s.prompt("t-filters", messages=TWO) == "2|user+assistant+user|1"


@case
def macros_strip_their_space(s):
    assert s.prompt("t-macro", messages=TWO[:1]) == "<user>a b"


@case
def unknown_names_are_empty_and_undefined(s):
    prompt = s.prompt("t-words")
    assert prompt == "Hi<|end|>||False", prompt


@case
def blocks_take_their_lines_with_them(s):
    assert s.prompt("t-space", messages=HI) == "Hi\n", repr(s.prompt("t-space", messages=HI))


@case
def the_mark_of_training_changes_nothing(s):
    assert s.prompt("t-generation", messages=TWO) == "a bstopc"


@case
def templates_have_the_date(s):
    assert s.prompt("t-date") == time.strftime("%Y")


@case
def the_reason_of_a_template_is_in_the_error(s):
    assert s.prompt("t-raises") == "Hi"
    s.chat("t-raises", messages=TWO).refuses("Only one message, please")


@case
def documents_reach_their_template(s):
    documents = [{"title": "One", "text": "first"}]
    assert s.prompt("t-documents", documents=documents) == "[One: first]Hi"


@case
def arguments_of_calls_are_objects_for_templates_that_read_them(s):
    call = {"id": "1", "type": "function", "function": {"name": "fun", "arguments": '{"a": "b"}'}}
    messages = [*HI, {"role": "assistant", "content": None, "tool_calls": [call]}, {"role": "tool", "tool_call_id": "1", "content": "done"}]
    assert s.prompt("t-arguments", messages=messages, tools=TOOLS) == "Hifun a=bdone"


@case
def a_content_that_is_null_is_an_empty_text(s):
    assert s.prompt("t-sum", messages=[*HI, {"role": "assistant", "content": None}, *HI]) == "<Hi><><Hi>"


@case
def parts_are_one_text_for_a_template_of_texts(s):
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    prompt = s.prompt("t-sum", messages=[{"role": "user", "content": parts}])
    assert "one" in prompt and "two" in prompt and prompt.count("<") == 1, prompt


@case
def a_text_is_a_part_for_a_template_of_parts(s):
    assert s.prompt("typed") == "<Hi>"
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert s.prompt("typed", messages=[{"role": "user", "content": parts}]) == "<one><two>"


@case
def arguments_of_a_request_are_variables(s):
    assert s.prompt("t-custom", chat_template_kwargs={"colour": "red"}) == "red"


@case
def an_effort_reaches_the_template_that_reads_it_and_is_named_elsewhere(s):
    assert s.prompt("t-effort", reasoning_effort="low") == "low"
    assert s.prompt("t-effort") == "none given"
    reply = s.chat("plain", reasoning_effort="low")
    assert reply.status == 200
    assert reply.headers["x-triad-fields-left-out"] == "reasoning_effort", reply.headers


@case
def a_template_for_tools_is_used_for_them_alone(s):
    assert s.prompt("named", tools=TOOLS) == "TOOLS1"
    assert s.prompt("named") == "DEFAULTHi"


@case
def reasoning_that_comes_back_reaches_the_template(s):
    for name in ("reasoning_content", "reasoning"):
        messages = [*HI, {"role": "assistant", "content": "Yes", name: "hm"}, *HI]
        assert s.prompt("t-kept", messages=messages) == "Hi<think>hm</think>YesHi", name


@case
def a_conversation_for_a_model_without_template_is_said(s):
    s.chat("no-template", tools=TOOLS).refuses("template")


@case
def the_developer_is_the_system_for_templates_that_do_not_know_it(s):
    prompt = s.prompt("plain", messages=[{"role": "developer", "content": "Be brief."}, *HI])
    assert prompt.startswith("<|u|>system\nBe brief.") or prompt.startswith("<|u|>developer\nBe brief."), prompt
