"""Requests of all APIs whose answers are determined, and what of an answer is the same each time."""

import json
import re
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "clients/packages"))

import answers

RANKS = "ranks"
MODEL = "smollm2-135m"
TOPICS = ["the sea", "a clock", "bread", "the moon", "rain", "a violin", "iron", "a letter"]
SCHEMA = {
    "type": "object", "properties": {"city": {"type": "string", "enum": ["Oslo", "Rome"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"], "additionalProperties": False,
}
WEATHER = {"name": "weather", "description": "The weather of the next days", "parameters": SCHEMA}
# Names, times, and what was found in caches: the fields of an answer that differ from one time to the next.
VARIES = re.compile(
    r"id|.*_id|.*created.*|completed_at|expires_at|.*duration|.*timings|cached_tokens|cache_.*|tokens_cached|tokens_evaluated|input_tokens|id_slot|seed"
)


def fixed(value):
    """A value without the fields that differ."""
    if isinstance(value, dict):
        return {name: fixed(field) for name, field in value.items() if not VARIES.fullmatch(name)}
    return [fixed(one) for one in value] if isinstance(value, list) else value


def of_whole(data):
    return fixed(json.loads(data))


def of_stream(kind, data):
    """The text of a stream, the arguments of its calls, and why it ended."""
    text = data.decode()
    events = answers.events(text)
    calls, reasons = [], []
    for event in events:
        choice = (event.get("choices") or [{}])[0]
        delta = choice.get("delta") or {}
        calls += [call["function"].get("arguments") or "" for call in delta.get("tool_calls") or []]
        calls += [json.dumps(call["function"]) for call in (event.get("message") or {}).get("tool_calls") or []]
        inner = event.get("delta") if isinstance(event.get("delta"), dict) else {}
        calls.append(inner.get("partial_json") or "")
        if event.get("type") == "response.function_call_arguments.delta":
            calls.append(event["delta"])
        found = (choice.get("finish_reason"), event.get("done_reason"), inner.get("stop_reason"), event.get("stop_type"))
        reasons += [reason for reason in found if reason and reason != "none"]
        if event.get("type") == "response.completed":
            reasons.append(event["response"]["status"])
    ends = text.rstrip().endswith("[DONE]") or any(event.get("done") or event.get("stop") for event in events)
    ends |= any(event.get("type") in ("message_stop", "response.completed", "response.incomplete") for event in events)
    return {"text": answers.said({"kind": kind, "answer": text}), "calls": "".join(calls), "ends": ends, "reasons": reasons}


def requests():
    """Paths and bodies, and whether they may be streamed."""
    for index in range(16):
        topic, tokens = TOPICS[index % len(TOPICS)], 8 + 5 * (index % 5)
        text = f"Number {index} of a list of sentences about {topic}. " * (1 + index % 7)
        messages = [{"role": "user", "content": text}]
        bounded = {"model": MODEL, "temperature": 0, "max_tokens": tokens}
        options = {"temperature": 0, "num_predict": tokens}
        yield "/v1/chat/completions", bounded | {"messages": messages}, True
        yield "/v1/completions", bounded | {"prompt": text}, True
        if index % 2:
            yield "/v1/messages", bounded | {"messages": messages}, True
            yield "/v1/responses", {"model": MODEL, "temperature": 0, "max_output_tokens": tokens, "input": text, "store": False}, True
            yield "/api/chat", {"model": MODEL, "messages": messages, "options": options}, True
            yield "/api/generate", {"model": MODEL, "prompt": text, "options": options}, True
            yield "/completion", {"model": MODEL, "prompt": text, "temperature": 0, "n_predict": tokens, "repeat_penalty": 1}, True
        if index % 4 == 0:
            yield from vectors(index, text)
        if index % 4 == 2:
            yield from formed(messages)


def vectors(index, text):
    yield "/v1/embeddings", {"model": MODEL, "input": [text, "A cat sleeps."]}, False
    # A list of tokens, as LangChain sends it.
    yield "/v1/embeddings", {"model": MODEL, "input": [[100 + index, 200, 300], [400, 500 + index]]}, False
    yield "/api/embed", {"model": MODEL, "input": text}, False
    yield "/embedding", {"model": MODEL, "content": text}, False
    yield "/v1/rerank", {"model": RANKS, "query": f"q{index}", "documents": ["a b c", f"d{index}", "e"]}, False
    yield "/v1/completions", {"model": MODEL, "prompt": [100 + index, 200, 300], "temperature": 0, "max_tokens": 8}, True
    yield "/tokenize", {"model": MODEL, "content": text}, False
    yield "/apply-template", {"model": MODEL, "messages": [{"role": "user", "content": text}]}, False
    yield "/v1/messages/count_tokens", {"model": MODEL, "messages": [{"role": "user", "content": text}]}, False
    yield "/v1/responses/input_tokens", {"model": MODEL, "input": text}, False


def formed(messages):
    """Calls of a tool, and answers in a form."""
    asked = {"model": MODEL, "messages": messages, "temperature": 0, "max_tokens": 64}
    tool = {"type": "function", "function": WEATHER}
    named = {"name": "weather", "description": WEATHER["description"], "input_schema": SCHEMA}
    schema = {"type": "json_schema", "json_schema": {"name": "city", "schema": SCHEMA, "strict": True}}
    yield "/v1/chat/completions", asked | {"tools": [tool], "tool_choice": "required", "parallel_tool_calls": False}, True
    yield "/v1/chat/completions", asked | {"response_format": schema}, True
    yield "/v1/messages", asked | {"tools": [named], "tool_choice": {"type": "any", "disable_parallel_tool_use": True}}, True
    yield "/api/chat", {"model": MODEL, "messages": messages, "format": SCHEMA, "options": {"temperature": 0, "num_predict": 64}}, True
