"""A load generator for servers that speak OpenAI's API: clients that each send one request after another and read streams.

The loop is closed: a client sends its next request when its last one is answered, so that there are always as many
requests under way as there are clients, but for the end.
"""

import asyncio
import json
import random
import time
from dataclasses import dataclass

# Some common words; the topic of a prompt does not matter for speed.
WORDS = (
    "time year people way day man thing woman life child world school state family student group country problem hand part "
    "place case week company system program question work government number night point home water room mother area money "
    "story fact month lot right study book eye job word business issue side kind head house service friend father power"
).split()


class Failed(Exception):
    """A request that did not receive its complete answer."""


@dataclass(frozen=True)
class Request:
    prompt: str
    max_tokens: int


@dataclass(frozen=True)
class Answered:
    # Seconds on the clock of this process: when the request was sent, and when each part of the answer with text arrived.
    sent: float
    parts: tuple
    prompt_tokens: int
    tokens: int


def requests(count, words, tokens, seed):
    """Requests with prompts and answers of different lengths, from half to one and a half times as long as given. No two
    prompts begin alike, so that none can be had from a cache."""
    source = random.Random(seed)

    def around(middle):
        return source.randint(max(middle // 2, 1), max(3 * middle // 2, 1))

    for number in range(count):
        text = " ".join(source.choices(WORDS, k=around(words)))
        yield Request(f"{source.getrandbits(40)} {number} {text}", around(tokens))


def run(port, model, asked, clients):
    """Returns the result of each request, and the seconds for all of them."""
    return asyncio.run(all_of(port, model, list(asked), clients))


async def all_of(port, model, asked, clients):
    waiting, answered = iter(asked), []

    async def client():
        for request in waiting:
            answered.append(await answer(port, model, request))

    started = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(clients):
            group.create_task(client())
    return answered, time.perf_counter() - started


async def answer(port, model, request):
    body = {
        "model": model,
        "prompt": request.prompt,
        "max_tokens": request.max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    sent, parts, usage, over = time.perf_counter(), [], None, False
    async for event in events(port, "/v1/completions", json.dumps(body).encode()):
        over = event == b"[DONE]"
        if over:
            break
        told = json.loads(event)
        if "choices" not in told:
            raise Failed(f"a stream with {event[:300].decode(errors='replace')}")
        if any(choice.get("text") for choice in told["choices"]):
            parts.append(time.perf_counter())
        usage = told.get("usage") or usage
    if not over or not usage or not parts:
        raise Failed("a stream without its end, its usage or any text")
    if usage["completion_tokens"] != request.max_tokens:
        raise Failed(f"{usage['completion_tokens']} tokens in place of {request.max_tokens}")
    return Answered(sent, tuple(parts), usage["prompt_tokens"], usage["completion_tokens"])


async def events(port, path, body):
    """Yields the data of a stream of server-sent events as it arrives."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    try:
        head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body)
        status = await reader.readline()
        while (await reader.readline()).strip():
            pass
        if b" 200 " not in status:
            raise Failed(f"{status.decode(errors='replace').strip()}: {(await reader.read(2000)).decode(errors='replace')}")
        pending = b""
        while size := int(await reader.readline(), 16):
            *lines, pending = (pending + await reader.readexactly(size)).split(b"\n")
            await reader.readexactly(2)
            for line in lines:
                if line.startswith(b"data: "):
                    yield line.removeprefix(b"data: ").strip()
    finally:
        writer.close()
