"""Sixteen clients with three keys for some minutes, on all endpoints: whole and streamed requests, slow readers, cancels,
malformed requests, connections that are killed, stored responses and conversations, saved sessions. Holds if every greedy
answer is the one computed alone, no key sees what another one stored, every malformed request is refused with the right
status, the server's memory, open files and threads of the last quarter are as those of the first quarter after warming up,
and it ends as told. Prints counts and these numbers; the exit code is 1 where something did not hold."""

import argparse
import json
import os
import random
import re
import signal
import statistics
import subprocess
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import endpoints
import stored
import wire

CLIENTS = 16
# What the allocator may keep beyond the pages that the server had in the first quarter after warming up, in MiB.
MOST_GROWTH = 24
# Connections come and go: by how much the medians of open files and of threads may differ.
MOST_FILES, MOST_THREADS = 4, 4
# Of the time, until the numbers count: caches fill.
WARM_UP = 0.2
# Prompts of 1,500 tokens that need more memory for keys and values than the server has.
FILLING = 10
RERANKER = Path(__file__).resolve().parents[1] / "golden/encoders/rerank-bert"


def start(triad, folder):
    """The server, its address, and the thread that empties its output."""
    command = [triad, "serve", "--port", "0", "--parallel", "8", "--kv-memory", "0.25", "--metrics-key", wire.METRICS_KEY]
    command += ["-m", endpoints.MODEL, "--alias", endpoints.MODEL, "-m", str(RERANKER), "--alias", endpoints.RANKS]
    command += ["--sessions", folder, "--session-storage", "1"]
    for key in wire.KEYS:
        command += ["--api-key", key]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    for line in server.stderr:
        if found := re.search(r"http://([\d.]+):(\d+)", line):
            threading.Thread(target=server.stderr.read, daemon=True).start()
            return server, (found[1], int(found[2]))
    raise SystemExit(f"{' '.join(command)} ended with {server.wait()}")


class Usage:
    """The resources of the server's process, once per second."""

    def __init__(self, pid):
        self.process = Path(f"/proc/{pid}")
        self.samples = []

    def sample(self):
        status = dict(re.findall(r"(\w+):\s+(\d+)", (self.process / "status").read_text()))
        self.samples.append((int(status["VmRSS"]) / 1024, len(os.listdir(self.process / "fd")), int(status["Threads"])))

    def quarter(self, last):
        """The medians of memory in MiB, of files and of threads in the first or the last quarter after warming up."""
        warm = self.samples[int(WARM_UP * len(self.samples)) :]
        size = max(len(warm) // 4, 1)
        return [statistics.median(column) for column in zip(*(warm[-size:] if last else warm[:size]))]


def whole(body, streams):
    """A request for an answer in one piece, of an endpoint that may stream or never does."""
    return body | {"stream": False} if streams else body


def endless(path, body):
    """A request whose answer takes long: somewhat more than the client waits for."""
    if path.startswith("/api/"):
        return body | {"options": {"temperature": 0, "num_predict": 300}}
    length = {"/v1/responses": "max_output_tokens", "/completion": "n_predict"}.get(path, "max_tokens")
    return body | {length: 300}


class Soak:
    def __init__(self, address, seed):
        self.address, self.seed = address, seed
        self.requests = list(endpoints.requests())
        self.wrong_requests = list(wire.wrong_requests())
        self.alone = [wire.post(address, path, whole(body, streams)) for path, body, streams in self.requests]
        # Of a stream, what it tells is compared with the same stream alone, whose text is that of the whole answer.
        self.streams = [index for index, (_, _, streams) in enumerate(self.requests) if streams]
        self.streamed_alone = {index: self.stream_alone(index) for index in self.streams}
        self.stored_alone = [stored.alone(address, key, number) for number, key in enumerate(wire.KEYS)]
        self.counts, self.failures, self.lock = Counter(), [], threading.Lock()
        self.end = None

    def stream_alone(self, index):
        path, body, _ = self.requests[index]
        told = wire.post(self.address, path, body | {"stream": True})
        text = endpoints.answers.whole(self.alone[index])
        if told["text"] != text:
            raise wire.Wrong(f"{path}: streamed {told['text']!r}, whole {text!r}")
        return told

    def compare(self, expected, index, key, body, pause=None):
        path = self.requests[index][0]
        got = wire.post(self.address, path, body, pause, key)
        if got != expected[index]:
            raise wire.Wrong(f"request {index}, {path}: {got!r} among others, {expected[index]!r} alone")

    def whole(self, source, index, key):
        _, body, streams = self.requests[index]
        self.compare(self.alone, index, key, whole(body, streams))

    def streamed(self, source, _, key, pause=None):
        index = source.choice(self.streams)
        self.compare(self.streamed_alone, index, key, self.requests[index][1] | {"stream": True}, pause)

    def slow(self, source, index, key):
        self.streamed(source, index, key, pause=source.uniform(0.005, 0.03))

    def stored(self, source, _, key):
        """Responses, conversations and sessions of one key, which no other key sees."""
        number = wire.KEYS.index(key)
        source.choice(stored.KINDS)(self.address, key, source.choice([it for it in wire.KEYS if it != key]), self.stored_alone[number])

    def status(self, source, _, key):
        """Requests an endpoint that describes the server."""
        path = source.choice(["/health", "/v1/models", "/api/tags", "/api/ps", "/slots", "/props", "/metrics", "/openapi.json"])
        status, data = wire.get(self.address, path, wire.METRICS_KEY if path == "/metrics" else key)
        if status != 200 or not data:
            raise wire.Wrong(f"{path}: status {status}")

    def cancelled(self, source, _, key):
        """Reads some of a stream, or waits some of the time of a whole answer, and goes away."""
        path, body, _ = self.requests[source.choice(self.streams)]
        with wire.connect(self.address) as connection:
            streams = source.random() < 0.7
            connection.sendall(wire.message(path, wire.encode(endless(path, body) | {"stream": streams}), key))
            if streams:
                for _ in range(source.randint(1, 6)):
                    connection.recv(512)
            else:
                time.sleep(source.uniform(0, 1))

    def killed(self, source, _, key):
        """Ends with RST, in the middle of a request or of a reply."""
        path, body, _ = self.requests[source.choice(self.streams)]
        message = wire.message(path, wire.encode(endless(path, body) | {"stream": True}), key)
        connection = wire.connect(self.address)
        connection.sendall(message if source.random() < 0.5 else message[: source.randrange(len(message))])
        time.sleep(source.uniform(0, 0.5))
        wire.reset(connection)

    def malformed(self, source, *_):
        message, right = source.choice(self.wrong_requests)
        with wire.connect(self.address) as connection:
            try:
                connection.sendall(message)
                status, _ = wire.reply(connection)
            except (BrokenPipeError, ConnectionResetError):
                # The server may close before all of a message that it refuses has arrived.
                if len(message) < 100_000:
                    raise
                return
        if status not in right:
            raise wire.Wrong(f"{message[:200]!r}: status {status}, expected one of {sorted(right)}")

    def client(self, number):
        source = random.Random(f"{self.seed} {number}")
        key = wire.KEYS[number % len(wire.KEYS)]
        kinds = [self.whole, self.streamed, self.slow, self.cancelled, self.killed, self.malformed, self.stored, self.status]
        while time.monotonic() < self.end:
            kind = source.choices(kinds, [26, 26, 6, 10, 8, 8, 10, 6])[0]
            try:
                kind(source, source.randrange(len(self.requests)), key)
            except Exception as error:
                with self.lock:
                    self.failures.append(f"client {number}, {kind.__name__}: {type(error).__name__}: {error}")
            with self.lock:
                self.counts[kind.__name__] += 1

    def run(self, seconds, usage):
        self.end = time.monotonic() + seconds
        clients = [threading.Thread(target=self.client, args=(number,), daemon=True) for number in range(CLIENTS)]
        for client in clients:
            client.start()
        while time.monotonic() < self.end:
            usage.sample()
            time.sleep(1)
        last = time.monotonic() + 2 * wire.TIME_OUT
        for client in clients:
            client.join(max(last - time.monotonic(), 0))
        self.failures += [f"client {number} has no reply" for number, client in enumerate(clients) if client.is_alive()]

    def becomes_idle(self):
        """Whether the server stops to compute for clients that are gone."""
        until = time.monotonic() + 30
        while time.monotonic() < until:
            health = json.loads(wire.get(self.address, "/health")[1])
            if health["answering"] == 0 and health["waiting"] == 0:
                return True
            time.sleep(0.2)
        return False


def grown(usage):
    """Prints how memory, files and threads were first and last, and returns what has grown."""
    first, last = usage.quarter(last=False), usage.quarter(last=True)
    for name, before, after, most in zip(("memory in MiB", "files", "threads"), first, last, (MOST_GROWTH, MOST_FILES, MOST_THREADS)):
        print(f"{name}: {before:.1f} in the first quarter after warming up, {after:.1f} in the last; may grow by {most}")
        if after - before > most:
            yield f"{name}: grown from {before:.1f} to {after:.1f}, expected at most {most} more"
    print(f"memory: at most {max(usage.samples)[0]:.1f} MiB")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--triad", required=True, help="the program")
    parser.add_argument("--minutes", type=float, default=2)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="triad-soak-") as folder:
        server, address = start(options.triad, folder)
        try:
            failures = soak(server, address, options)
        finally:
            server.kill()
    for failure in failures[:20]:
        print(failure)
    print(f"{len(failures)} failures")
    raise SystemExit(1 if failures else 0)


def fill(address):
    """Fills the memory for keys and values, which would otherwise grow for as long as prompts differ."""
    for number in range(FILLING):
        prompt = [100 + number] + [200 + index % 1000 for index in range(1500)]
        wire.post(address, "/v1/completions", {"model": endpoints.MODEL, "prompt": prompt, "max_tokens": 1, "temperature": 0})


def soak(server, address, options):
    fill(address)
    usage = Usage(server.pid)
    soak = Soak(address, options.seed)
    soak.run(60 * options.minutes, usage)
    failures = soak.failures
    if not soak.becomes_idle():
        failures.append("the server still computes for clients that are gone")
    for index in range(len(soak.requests)):
        try:
            soak.whole(None, index, wire.KEY)
        except wire.Wrong as error:
            failures.append(f"in the end: {error}")
    left = stored.left(address)
    print(f"requests: {soak.counts.total()}:", ", ".join(f"{kind} {n}" for kind, n in sorted(soak.counts.items())))
    print(f"sessions that are left: {left}")
    if left:
        failures.append(f"{left} sessions are left, though each was deleted")
    failures += grown(usage)
    server.send_signal(signal.SIGINT)
    if code := server.wait(timeout=60):
        failures.append(f"the server ended with {code}")
    return failures


if __name__ == "__main__":
    main()
