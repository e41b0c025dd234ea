"""A server of `triad`, requests to it, and the table of cases."""

import json
import re
import subprocess
import threading
import urllib.error
import urllib.request
from dataclasses import dataclass

HI = [{"role": "user", "content": "Hi"}]
PARAMETERS = {"type": "object", "properties": {"a": {"type": "string"}}}
TOOLS = [{"type": "function", "function": {"name": "fun", "description": "Does it", "parameters": PARAMETERS}}]
CASES = {}


def case(function):
    """Puts a function into the table. It gets the server, and asserts."""
    assert function.__name__ not in CASES, function.__name__
    CASES[function.__name__] = function
    return function


@dataclass
class Reply:
    status: int
    headers: dict
    text: str

    @property
    def json(self):
        return json.loads(self.text)

    @property
    def message(self):
        """The message of a chat completion."""
        assert self.status == 200, self.text
        return self.json["choices"][0]["message"]

    @property
    def content(self):
        return self.message["content"] or ""

    def events(self):
        """The JSON objects of a stream: of server-sent events, or one on each line."""
        lines = [line.removeprefix("data:").strip() for line in self.text.splitlines() if line[:1] in ("d", "{")]
        return [json.loads(line) for line in lines if line != "[DONE]"]

    def refuses(self, *words):
        """Asserts that the request is refused, with these words in its error."""
        assert self.status == 400, (self.status, self.text)
        assert all(word.lower() in self.text.lower() for word in words), self.text


class Server:
    def __init__(self, triad, *options):
        command = [triad, "serve", "--port", "0", *options]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        for line in self.process.stderr:
            if found := re.search(r"http://[\d.:]+", line):
                self.address = found[0]
                # A pipe that no one reads would fill up and stop the server.
                threading.Thread(target=self.process.stderr.read, daemon=True).start()
                return
        raise SystemExit(f"{' '.join(command)} ended with {self.process.wait()}")

    def end(self):
        self.process.terminate()
        self.process.wait(30)

    def ask(self, path, body=None, method=None, **headers):
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        if data is not None:
            names.setdefault("content-type", "application/json")
        request = urllib.request.Request(self.address + path, data, names, method=method)
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return Reply(answer.status, dict(answer.headers), answer.read().decode())
        except urllib.error.HTTPError as error:
            return Reply(error.code, dict(error.headers), error.read().decode())

    def chat(self, model, **fields):
        return self.ask("/v1/chat/completions", {"model": model, "messages": HI, "max_tokens": 64} | fields)

    def messages(self, model, **fields):
        return self.ask("/v1/messages", {"model": model, "messages": HI, "max_tokens": 64} | fields)

    def responses(self, model, **fields):
        return self.ask("/v1/responses", {"model": model, "input": "Hi", "max_output_tokens": 64} | fields)

    def prompt(self, model, **fields):
        """The prompt of a conversation."""
        reply = self.ask("/apply-template", {"model": model, "messages": HI} | fields)
        assert reply.status == 200, reply.text
        return reply.json["prompt"]

    def calls(self, model, tools=TOOLS, **fields):
        """The names and arguments of the calls of an answer."""
        calls = self.chat(model, tools=tools, **fields).message.get("tool_calls") or []
        return [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in calls]
