"""Packages of crates.io, as programs that tests/clients has."""

import json
import os
import subprocess
from pathlib import Path

LONGEST_SECONDS = 240


def async_openai(t):
    program = Path(os.environ["ENVIRONMENT"]) / "target/debug/async-openai-trial"
    options = {"temperature": 0, "max_completion_tokens": 64}

    def ask(attempt, **ask):
        given = json.dumps({"base": t.base, "key": t.key, "ask": ask})
        done = subprocess.run([program, attempt], input=given, capture_output=True, text=True, timeout=LONGEST_SECONDS, check=False)
        assert done.returncode == 0, f"{attempt} ended with {done.returncode}: {done.stderr[-600:]}"
        return json.loads(done.stdout)

    @t.tries
    def chat():
        t.said(ask("chat", model=t.model, messages=t.messages, **options))

    @t.tries
    def stream():
        t.streamed(ask("stream", model=t.model, messages=t.messages, **options))

    @t.tries
    def tools():
        got = ask("tools", model=t.scripted, messages=t.weather_messages, tools=[t.tool], **options)
        t.cities += got["cities"]
        t.ran(got["text"])

    @t.tries
    def form():
        form = {"type": "json_schema", "json_schema": {"name": "city", "schema": t.schema, "strict": True}}
        t.formed(ask("chat", model=t.model, messages=t.messages, response_format=form, **options))

    @t.tries
    def responses():
        asked = {"model": t.model, "input": t.messages, "temperature": 0, "max_output_tokens": 24}
        t.said(ask("response", **asked))
        t.streamed(ask("response_stream", **asked))

    @t.tries
    def embeddings():
        one, other = ask("embeddings", model=t.model, input=["A cat sleeps.", "A cat sleeps."])
        assert one == other and abs(sum(value * value for value in one) - 1) < 1e-4, one[:4]
