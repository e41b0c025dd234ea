"""Sixteen clients for some minutes: whole and streamed requests, slow readers, cancels, malformed requests, connections that
are killed. Holds if every greedy answer is the one computed alone, every malformed request is refused with the right
status, memory of the server is in the end as after warming up and its open files as before, and it ends as told.
Prints counts, memory and threads; the exit code is 1 where something did not hold."""

import argparse
import json
import os
import random
import re
import signal
import statistics
import subprocess
import threading
import time
from collections import Counter
from pathlib import Path

import wire

CLIENTS = 16
# What the allocator may keep beyond the pages that the server had after warming up, in MiB.
MOST_GROWTH = 24
# Of the time, until memory counts: caches fill.
WARM_UP = 0.4


def start(triad):
    """The server, its address, and the thread that empties its output."""
    command = [triad, "serve", "--port", "0", "--api-key", wire.KEY, "--parallel", "8", "--context", "1024"]
    command += ["--kv-memory", "0.25"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    for line in server.stderr:
        if found := re.search(r"http://([\d.]+):(\d+)", line):
            threading.Thread(target=server.stderr.read, daemon=True).start()
            return server, (found[1], int(found[2]))
    raise SystemExit(f"{' '.join(command)} ended with {server.wait()}")


class Usage:
    """What the server's process has, once a second."""

    def __init__(self, pid):
        self.process = Path(f"/proc/{pid}")
        self.samples = []

    def sample(self):
        status = dict(re.findall(r"(\w+):\s+(\d+)", (self.process / "status").read_text()))
        self.samples.append((int(status["VmRSS"]) / 1024, len(os.listdir(self.process / "fd")), int(status["Threads"])))

    def rss(self, begin, end):
        """The median of a share of the samples, in MiB."""
        count = len(self.samples)
        return statistics.median(sample[0] for sample in self.samples[int(begin * count) : max(int(end * count), 1)])


class Soak:
    def __init__(self, address, seed):
        self.address, self.seed = address, seed
        self.requests = list(wire.bodies())
        self.wrong_requests = list(wire.wrong_requests())
        self.alone = [wire.post(address, *request) for request in self.requests]
        self.counts, self.failures, self.lock = Counter(), [], threading.Lock()
        self.end = None

    def compare(self, index, body, pause=None):
        got = wire.post(self.address, self.requests[index][0], body, pause)
        if got != self.alone[index]:
            raise wire.Wrong(f"request {index}: {got!r} among others, {self.alone[index]!r} alone")

    def whole(self, _, index):
        self.compare(index, self.requests[index][1])

    def streamed(self, _, index):
        self.compare(index, self.requests[index][1] | {"stream": True})

    def slow(self, random, index):
        self.compare(index, self.requests[index][1] | {"stream": True}, pause=random.uniform(0.005, 0.03))

    def cancelled(self, random, index):
        """Reads some of a stream, or waits some of the time of a whole answer, and goes away."""
        path, body = self.requests[index]
        with wire.connect(self.address) as connection:
            endless = body | {"stream": random.random() < 0.7, "max_tokens": 500, "ignore_eos": True, "n": 2}
            connection.sendall(wire.message(path, wire.encode(endless)))
            if endless["stream"]:
                for _ in range(random.randint(1, 6)):
                    connection.recv(512)
            else:
                time.sleep(random.uniform(0, 1))

    def killed(self, random, index):
        """Ends with RST, in the middle of a request or of a reply."""
        path, body = self.requests[index]
        message = wire.message(path, wire.encode(body | {"stream": True, "max_tokens": 500, "ignore_eos": True}))
        connection = wire.connect(self.address)
        connection.sendall(message if random.random() < 0.5 else message[: random.randrange(len(message))])
        time.sleep(random.uniform(0, 0.5))
        wire.reset(connection)

    def malformed(self, random, _):
        message, right = random.choice(self.wrong_requests)
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
        kinds = [self.whole, self.streamed, self.slow, self.cancelled, self.killed, self.malformed]
        while time.monotonic() < self.end:
            kind = source.choices(kinds, [30, 30, 8, 12, 10, 10])[0]
            try:
                kind(source, source.randrange(len(self.requests)))
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


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--triad", required=True, help="the program")
    parser.add_argument("--minutes", type=float, default=2)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    server, address = start(options.triad)
    try:
        usage = Usage(server.pid)
        soak = Soak(address, options.seed)
        usage.sample()
        _, files, threads = usage.samples.pop()
        soak.run(60 * options.minutes, usage)
        failures = soak.failures
        if not soak.becomes_idle():
            failures.append("the server still computes for clients that are gone")
        for index in range(len(soak.requests)):
            soak.whole(None, index)
        warm, end = usage.rss(WARM_UP, WARM_UP + 0.2), usage.rss(0.8, 1)
        usage.sample()
        _, last_files, last_threads = usage.samples[-1]
        print(f"requests: {soak.counts.total()}:", ", ".join(f"{kind} {n}" for kind, n in sorted(soak.counts.items())))
        print(f"memory: {warm:.1f} MiB after warming up, {end:.1f} MiB in the end; most {max(usage.samples)[0]:.1f} MiB")
        print(f"files: {files} before, {last_files} after; threads: {threads} before, {last_threads} after")
        if end - warm > MOST_GROWTH:
            failures.append(f"memory has grown by {end - warm:.1f} MiB, expected at most {MOST_GROWTH}")
        if last_files > files + 4:
            failures.append(f"{last_files} files are open, expected about {files}")
        server.send_signal(signal.SIGINT)
        if code := server.wait(timeout=60):
            failures.append(f"the server ended with {code}")
    finally:
        server.kill()
    for failure in failures[:20]:
        print(failure)
    print(f"{len(failures)} failures")
    raise SystemExit(1 if failures else 0)


if __name__ == "__main__":
    main()
