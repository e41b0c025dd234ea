"""What the clients of the soak test send: HTTP over plain sockets, so that they can misbehave."""

import json
import socket
import struct
import time

KEY = "a-key-of-this-test"
TIME_OUT = 120
TOPICS = ["the sea", "a clock", "bread", "the moon", "rain", "a violin", "iron", "a letter"]


class Wrong(Exception):
    """A reply that is not as it should be."""


def bodies():
    """Paths and bodies of greedy requests, of different lengths: texts and conversations with common beginnings."""
    for index in range(32):
        topic, tokens = TOPICS[index % len(TOPICS)], 8 + 5 * (index % 5)
        text = f"Number {index} of a list of sentences about {topic}. " * (1 + index % 7)
        common = {"max_tokens": tokens, "temperature": 0}
        if index % 2:
            yield "/v1/completions", {"prompt": text} | common
        else:
            yield "/v1/chat/completions", {"messages": [{"role": "user", "content": text}]} | common


def wrong_requests():
    """Bytes of requests that have to be refused, and the statuses that are right."""
    chat = "/v1/chat/completions"
    hello = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
    yield message(chat, b"{"), {400}
    yield message(chat, b"\xff\xfe" * 40), {400}
    yield message(chat, b"[" * 5000), {400}
    yield message(chat, encode({"messages": "Hello"})), {400}
    yield message(chat, encode(hello | {"temperature": "hot"})), {400}
    yield message(chat, encode(hello | {"n": -1})), {400}
    yield message(chat, encode(hello | {"model": "another"})), {404}
    yield message(chat, encode({"messages": [{"role": "user", "content": "x " * 5000}]})), {400}
    yield message(chat, encode(hello), key="wrong"), {401}
    yield message(chat, encode(hello), kind="text/plain"), {415}
    yield message(chat, encode(hello), host="example.org"), {403}
    yield message(chat, encode(hello), length=1 << 40), {413}
    yield message("/v1/nothing", encode(hello)), {404}
    yield message("/v1/models", encode(hello)), {405}
    yield b"NONSENSE\r\n\r\n", {400}
    yield b"GET / HTTP/1.1\r\nX: " + b"y" * 200_000 + b"\r\n\r\n", {400, 431}


def encode(body):
    return json.dumps(body).encode()


def message(path, body, key=KEY, kind="application/json", host="localhost", length=None):
    """The bytes of a POST request."""
    head = [
        f"POST {path} HTTP/1.1",
        f"Host: {host}",
        f"Authorization: Bearer {key}",
        f"Content-Type: {kind}",
        f"Content-Length: {len(body) if length is None else length}",
        "Connection: close",
    ]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


def connect(address):
    return socket.create_connection(address, timeout=TIME_OUT)


def reset(connection):
    """Closes with RST in place of FIN, as a client whose machine or process is gone."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def dechunk(data):
    """The body of a reply in chunks."""
    body = b""
    while True:
        size, found, data = data.partition(b"\r\n")
        if not found or len(data) < int(size, 16) + 2:
            raise Wrong("the reply ends in the middle of a chunk")
        if int(size, 16) == 0:
            return body
        body, data = body + data[: int(size, 16)], data[int(size, 16) + 2 :]


def reply(connection, pause=None):
    """Status and body of a reply, whose connection the server closes. `pause` is the time to wait before each small part."""
    data = b""
    while part := connection.recv(65536 if pause is None else 64):
        data += part
        if pause is not None:
            time.sleep(pause)
    head, found, body = data.partition(b"\r\n\r\n")
    if not found:
        raise Wrong(f"no reply, but {data[:100]!r}")
    status = int(head.split(maxsplit=2)[1])
    return status, dechunk(body) if b"transfer-encoding: chunked" in head.lower() else body


def post(address, path, body, pause=None):
    """The answer's text and why it ended, of a request that must be answered; streamed where the body says so."""
    with connect(address) as connection:
        if pause is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.sendall(message(path, encode(body)))
        status, data = reply(connection, pause)
    if status != 200:
        raise Wrong(f"status {status}: {data[:300]!r}")
    if not body.get("stream"):
        return content(json.loads(data)["choices"][0])
    events = [line.removeprefix(b"data: ") for line in data.splitlines() if line.startswith(b"data: ")]
    if not events or events[-1] != b"[DONE]":
        raise Wrong(f"a stream without its end: {events[-1:]}")
    parts = [content(choice) for event in events[:-1] for choice in json.loads(event)["choices"]]
    return "".join(text for text, _ in parts), parts[-1][1]


def content(choice):
    told = choice.get("message") or choice.get("delta") or choice
    return told.get("content") or told.get("text") or "", choice.get("finish_reason")


def get(address, path):
    """Status and body of what `GET` returns."""
    with connect(address) as connection:
        head = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {KEY}\r\nConnection: close\r\n\r\n"
        connection.sendall(head.encode())
        return reply(connection)
