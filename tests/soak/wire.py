"""Requests of the clients of the soak test: HTTP over plain sockets, so that they can misbehave."""

import json
import socket
import struct
import time

import endpoints

KEYS = ["a-key-of-this-test", "another-key-of-this-test", "a-third-key-of-this-test"]
KEY = KEYS[0]
METRICS_KEY = "a-key-for-metrics"
TIME_OUT = 120


class Wrong(Exception):
    """A reply that is not as it should be."""


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
    yield message(chat, encode({"messages": [{"role": "user", "content": "x " * 20_000}]})), {400}
    yield message(chat, encode(hello), key="wrong"), {401}
    yield message(chat, encode(hello), kind="text/plain\r\nOrigin: http://example.org"), {403, 415}
    yield message(chat, encode(hello), host="example.org"), {403}
    yield message(chat, encode(hello), length=1 << 40), {413}
    yield message("/v1/nothing", encode(hello)), {404}
    yield message("/v1/models", encode(hello)), {405}
    yield b"NONSENSE\r\n\r\n", {400}
    yield b"GET / HTTP/1.1\r\nX: " + b"y" * 200_000 + b"\r\n\r\n", {400, 431}


def encode(body):
    return json.dumps(body).encode()


def message(path, body, key=KEY, kind="application/json", host="localhost", length=None, method="POST"):
    """The bytes of a request."""
    head = [
        f"{method} {path} HTTP/1.1",
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


def reply(connection):
    """Status and body of a reply, whose connection the server closes."""
    status, _, body = answer(connection)
    return status, body


def answer(connection, pause=None):
    """Status, kind and body of a reply. `pause` is the time to wait before each small part."""
    data = b""
    while part := connection.recv(65536 if pause is None else 64):
        data += part
        if pause is not None:
            time.sleep(pause)
    head, found, body = data.partition(b"\r\n\r\n")
    if not found:
        raise Wrong(f"no reply, but {data[:100]!r}")
    status = int(head.split(maxsplit=2)[1])
    kind = next((line[13:].decode().strip() for line in head.lower().split(b"\r\n") if line.startswith(b"content-type:")), "")
    return status, kind, dechunk(body) if b"transfer-encoding: chunked" in head.lower() else body


def post(address, path, body, pause=None, key=KEY):
    """Returns the part of an answer that is the same each time, of a request that must be answered; streamed where the body says so."""
    with connect(address) as connection:
        if pause is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.sendall(message(path, encode(body), key=key))
        status, kind, data = answer(connection, pause)
    if status != 200:
        raise Wrong(f"{path}: status {status}: {data[:300]!r}")
    if not body.get("stream"):
        return endpoints.of_whole(data)
    told = endpoints.of_stream(kind, data)
    if not told.pop("ends"):
        raise Wrong(f"{path}: a stream without its end: {data[-200:]!r}")
    return told


def ask(address, method, path, body=None, key=KEY):
    """Status and body of a request that may be refused."""
    with connect(address) as connection:
        connection.sendall(message(path, b"" if body is None else encode(body), key=key, method=method))
        return reply(connection)


def get(address, path, key=KEY):
    """Status and body of what `GET` returns."""
    return ask(address, "GET", path, key=key)
