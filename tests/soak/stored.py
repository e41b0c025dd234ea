"""Data that the server keeps for a key: responses, conversations and sessions. All of it is deleted, and is not there for others."""

import json
import threading

import endpoints
import wire

WORDS = ["harbour", "lantern", "meadow"]
NUMBERS = iter(range(1 << 60))
LOCK = threading.Lock()


def asked(text):
    return {"model": endpoints.MODEL, "input": text, "temperature": 0, "max_output_tokens": 12}


def first(number):
    return f"My word is {WORDS[number]}. Tell about it."


def got(address, method, path, key, body=None, right=200):
    status, data = wire.ask(address, method, path, body, key)
    if status != right:
        raise wire.Wrong(f"{method} {path}: status {status}, expected {right}: {data[:300]!r}")
    return json.loads(data) if data and right == 200 else None


def text(response):
    return endpoints.answers.whole(response)


def alone(address, key, number):
    """The texts of a conversation of a key: two answers, the second without and with what the server kept."""
    one = got(address, "POST", "/v1/responses", key, asked(first(number)) | {"store": False})
    history = [
        {"role": "user", "content": first(number)}, {"role": "assistant", "content": text(one)}, {"role": "user", "content": "And then?"},
    ]
    two = got(address, "POST", "/v1/responses", key, asked(history) | {"store": False})
    return {"number": number, "one": text(one), "two": text(two)}


def same(found, expected, name):
    if found != expected:
        raise wire.Wrong(f"{name}: {found!r} among others, {expected!r} alone")


def responses(address, key, other, expected):
    """A stored response that is continued."""
    one = got(address, "POST", "/v1/responses", key, asked(first(expected["number"])))
    same(text(one), expected["one"], "a stored response")
    path = f"/v1/responses/{one['id']}"
    got(address, "GET", path, other, right=404)
    same(text(got(address, "GET", path, key)), expected["one"], "a response that is read again")
    two = got(address, "POST", "/v1/responses", key, asked("And then?") | {"previous_response_id": one["id"]})
    same(text(two), expected["two"], "a continued response")
    got(address, "POST", "/v1/responses", other, asked("And then?") | {"previous_response_id": one["id"]}, right=400)
    got(address, "DELETE", path, other, right=404)
    for response in (one, two):
        got(address, "DELETE", f"/v1/responses/{response['id']}", key)
    got(address, "GET", path, key, right=404)


def conversations(address, key, other, expected):
    path = "/v1/conversations"
    made = got(address, "POST", path, key, {})["id"]
    kept = []
    for question, name in ((first(expected["number"]), "one"), ("And then?", "two")):
        answer = got(address, "POST", "/v1/responses", key, asked(question) | {"conversation": made})
        same(text(answer), expected[name], "an answer in a conversation")
        kept.append(answer["id"])
    items = got(address, "GET", f"{path}/{made}/items?order=asc", key)["data"]
    same([item["role"] for item in items], ["user", "assistant"] * 2, "the items of a conversation")
    got(address, "GET", f"{path}/{made}", other, right=404)
    got(address, "DELETE", f"{path}/{made}", key)
    got(address, "GET", f"{path}/{made}", key, right=404)
    for response in kept:
        got(address, "DELETE", f"/v1/responses/{response}", key)


def sessions(address, key, other, expected):
    """A prompt that is kept in a file."""
    with LOCK:
        name = f"soak-{next(NUMBERS)}"
    messages = [{"role": "user", "content": first(expected["number"])}]
    got(address, "POST", f"/sessions/{name}/save", key, {"model": endpoints.MODEL, "messages": messages})
    got(address, "POST", f"/sessions/{name}/restore", other, {"model": endpoints.MODEL}, right=404)
    got(address, "POST", f"/sessions/{name}/restore", key, {"model": endpoints.MODEL})
    ask = {"model": endpoints.MODEL, "messages": messages, "temperature": 0, "max_tokens": 12}
    same(text(got(address, "POST", "/v1/chat/completions", key, ask)), expected["one"], "a restored session")
    got(address, "DELETE", f"/sessions/{name}", key, right=204)


def left(address):
    """The number of saved sessions."""
    return sum(len(got(address, "GET", "/sessions", key).get("sessions", [])) for key in wire.KEYS)


KINDS = [responses, conversations, sessions]
