"""Tries one client in its own environment: trial.py MODULE NAME. What was tried is printed, a JSON object on a line each."""

import asyncio
import importlib
import inspect
import json
import os
import re
import sys
import traceback
import urllib.request
from enum import Enum
from pathlib import Path
from typing import Literal

import answers

QUESTION = "Name three colours."
WEATHER_QUESTION = "What is the weather in Oslo?"
CITIES = ["Oslo", "Rome"]
# After a line with this word comes a result.
MARK = "tried: "
SHOWN = 300


class Trial:
    """The server, what is asked, and what has to hold for the answers. An attempt is a function whose name says what is tried."""

    def __init__(self):
        # By way of the recorder; and the server itself.
        self.address, self.server = os.environ["RECORDER"], os.environ["SERVER"]
        self.base, self.key = f"{self.address}/v1", os.environ["KEY"]
        # The default model, and one that says a script: it calls the tool `weather`, then tells the weather.
        self.model, self.scripted = os.environ["MODEL"], "scripted"
        self.middle = "middle"
        self.messages = [{"role": "user", "content": QUESTION}]
        self.weather_messages = [{"role": "user", "content": WEATHER_QUESTION}]
        self.schema = {
            "type": "object", "properties": {"city": {"type": "string", "enum": CITIES}},
            "required": ["city"], "additionalProperties": False,
        }
        self.function = {"name": "weather", "description": "The weather in a city", "parameters": self.schema}
        self.tool = {"type": "function", "function": self.function}
        # The cities that a tool was called with.
        self.cities = []

    def tries(self, attempt):
        """Decorates an attempt: makes it at once."""
        error = None
        try:
            done = attempt()
            if inspect.isawaitable(done):
                asyncio.run(done)
        except BaseException as failure:  # a client may end its process
            traceback.print_exc()
            error = f"{type(failure).__name__}: {failure}"[:SHOWN]
        print("\n" + MARK + json.dumps({"name": attempt.__name__, "error": error}), flush=True)
        return attempt

    def leaves_out(self, name, reason):
        """A client does not have it, or needs what is not here."""
        print("\n" + MARK + json.dumps({"name": name, "left_out": reason}), flush=True)

    def recorded(self):
        """The exchanges with generated answers."""
        with urllib.request.urlopen(f"{self.address}/recorded", timeout=60) as reply:
            exchanges = json.load(reply)
        return [it for it in exchanges if it["method"] == "POST" and not it["path"].endswith(("/show", "count_tokens"))]

    def alone(self, exchange):
        """The text of the same request, asked again, whole and without the client."""
        asked = {name: value for name, value in exchange["asked"].items() if name not in ("stream", "stream_options")}
        headers = {"content-type": "application/json", "authorization": f"Bearer {self.key}"}
        body = json.dumps(asked | {"stream": False}).encode()
        request = urllib.request.Request(self.server + exchange["path"], body, headers)
        with urllib.request.urlopen(request, timeout=300) as reply:
            return answers.said({"kind": "application/json", "answer": reply.read().decode()})

    def said(self, text, streams=False):
        """The client shows the text that the server sent, and the server sends the same when asked again without a stream."""
        exchange = self.recorded()[-1]
        assert exchange["status"] == 200, exchange
        assert answers.is_stream(exchange) == streams, f"the answer is {exchange['kind']}"
        sent = answers.said(exchange)
        assert text and text.strip() == sent.strip(), f"the client has {text!r}, the server sent {sent!r}"
        again = self.alone(exchange)
        assert again == sent, f"{sent!r}, but alone {again!r}"

    def streamed(self, pieces):
        """The same of a stream, which has to come in pieces."""
        pieces = [piece for piece in pieces if piece]
        assert len(pieces) > 2, pieces
        self.said("".join(pieces), streams=True)

    def weather(self, city: Literal["Oslo", "Rome"]) -> str:
        """Tells the weather in a city."""
        self.cities.append(city)
        return f"It is 21 degrees in {city}."

    def called(self, name, arguments):
        """A call with arguments of the schema; they may be text."""
        arguments = json.loads(arguments) if isinstance(arguments, str) else dict(arguments)
        assert name == "weather" and arguments.keys() == {"city"} and arguments["city"] in CITIES, (name, arguments)

    def ran(self, text, cities=("Oslo",), streams=False):
        """The client has called the tool as the script has it, has given the result back, and shows the answer to it."""
        assert tuple(self.cities) == tuple(cities), self.cities
        self.cities.clear()
        asked = json.dumps(self.recorded()[-1]["asked"])
        assert "It is 21 degrees in Oslo." in asked, f"no result in {asked}"
        self.said(text, streams)
        assert text.strip() == "It is sunny in Oslo.", text

    def formed(self, value):
        """An answer in the form of `City`, as an object or as text."""
        value = json.loads(value) if isinstance(value, str) else value
        value = value.model_dump() if hasattr(value, "model_dump") else dict(value)
        city = value["city"].value if isinstance(value["city"], Enum) else value["city"]
        assert value.keys() == {"city"} and city in CITIES, value


def main():
    module, name = sys.argv[1:]
    # Packages whose names are names of files here must be found first.
    sys.path = [entry for entry in sys.path if Path(entry or ".").resolve() != Path(__file__).resolve().parent] + [str(Path(__file__).parent)]
    getattr(importlib.import_module(module), re.sub("[-.]", "_", name))(Trial())


if __name__ == "__main__":
    main()
