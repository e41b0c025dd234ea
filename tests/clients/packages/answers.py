"""Requests and their answers, read from the bytes, without any client's code."""

import json


def events(text):
    """The JSON objects of a stream: of server-sent events, or one on each line."""
    lines = [line.removeprefix("data:").strip() for line in text.splitlines() if line[:1] in ("d", "{")]
    return [json.loads(line) for line in lines if line not in ("", "[DONE]") and line[0] == "{"]


def is_stream(exchange):
    return exchange["kind"].startswith(("text/event-stream", "application/x-ndjson"))


def said(exchange):
    """The text of an answer, of any of the APIs, whole or streamed."""
    if not is_stream(exchange):
        return whole(json.loads(exchange["answer"]))
    return "".join(part(event) for event in events(exchange["answer"]))


def whole(answer):
    if "choices" in answer:
        choice = answer["choices"][0]
        return choice["message"]["content"] or "" if "message" in choice else choice["text"]
    if "output" in answer:
        contents = [content for item in answer["output"] if item["type"] == "message" for content in item["content"]]
        return "".join(content.get("text", "") for content in contents)
    if isinstance(answer.get("content"), list):
        return "".join(block.get("text", "") for block in answer["content"])
    return native(answer)


def part(event):
    if event.get("choices"):
        choice = event["choices"][0]
        return (choice["delta"].get("content") or "") if "delta" in choice else choice["text"]
    kind = event.get("type", "")
    if kind == "response.output_text.delta":
        return event["delta"]
    if kind == "content_block_delta":
        return event["delta"].get("text", "")
    return "" if kind or "choices" in event else native(event)


def native(answer):
    """Ollama's and llama.cpp's forms."""
    if "message" in answer:
        return answer["message"].get("content") or ""
    return answer.get("response") or answer.get("content") or ""
