"""Drives the server with the packages `ollama` of PyPI and npm: chats, prompts, streams, tools, forms, vectors, lists."""

import asyncio
import json
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import ollama

QUESTION = [{"role": "user", "content": "Name three colours."}]
GREEDY = {"temperature": 0, "num_predict": 24}
# The version of npm's package.
JAVASCRIPT = "ollama@0.6.4"

PROGRAM = """
import { Ollama } from "ollama";
const client = new Ollama({ host: process.env.HOST, headers: { Authorization: `Bearer ${process.env.KEY}` } });
const options = { temperature: 0, num_predict: 24 };
const ask = { model: process.env.MODEL, messages: [{ role: "user", content: "Name three colours." }], options };
const whole = await client.chat(ask);
let streamed = "", last;
for await (const part of await client.chat({ ...ask, stream: true })) { streamed += part.message.content; last = part; }
const vector = await client.embed({ model: ask.model, input: ["a", "b"] });
const raw = await client.generate({ model: ask.model, prompt: "One, two,", raw: true, options });
const models = (await client.list()).models.map((model) => model.name);
const running = (await client.ps()).models.length;
const shown = (await client.show({ model: ask.model })).capabilities;
let refused = "";
try { await client.chat({ ...ask, model: "another" }); } catch (error) { refused = error.message; }
const told = { whole: whole.message.content, streamed, reason: last.done_reason, vectors: vector.embeddings.length };
console.log(JSON.stringify({ ...told, raw: raw.response, models, running, shown, refused }));
"""


def tools(client, model):
    def weather(city: str) -> str:
        """Returns the weather.

        Args:
            city: The city.
        """
        return f"It is warm in {city}."

    # The package makes a schema of the function. A small model need not call it.
    reply = client.chat(model=model, messages=QUESTION, tools=[weather], options=GREEDY)
    assert reply.message.content or reply.message.tool_calls, reply
    call = {"function": {"name": "weather", "arguments": {"city": "Oslo"}}}
    history = [
        {"role": "user", "content": "How warm is Oslo?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "It is 20 degrees.", "tool_name": "weather"},
    ]
    assert client.chat(model=model, messages=history, tools=[weather], options=GREEDY).message.content


def python(address, key, model, answer):
    client = ollama.Client(host=address, headers={"Authorization": f"Bearer {key}"})
    whole = client.chat(model=model, messages=QUESTION, options=GREEDY)
    assert whole.message.content == answer and whole.done, whole
    assert whole.eval_count <= 24 and whole.prompt_eval_count > 0 and whole.total_duration > 0
    parts = list(client.chat(model=model, messages=QUESTION, options=GREEDY, stream=True))
    assert "".join(part.message.content or "" for part in parts) == answer
    assert parts[-1].done and parts[-1].done_reason == whole.done_reason
    prompt = QUESTION[0]["content"]
    assert client.generate(model=model, prompt=prompt, options=GREEDY).response == answer
    parts = client.generate(model=model, prompt=prompt, options=GREEDY, stream=True)
    assert "".join(part.response for part in parts) == answer
    schema = {"type": "object", "properties": {"colour": {"enum": ["red", "blue"]}}, "required": ["colour"]}
    formed = client.chat(model=model, messages=QUESTION, format=schema, options={"temperature": 0})
    assert json.loads(formed.message.content)["colour"] in ("red", "blue"), formed
    tools(client, model)
    one, two = client.embed(model=model, input=["A cat sleeps.", "3 + 4 = 7"]).embeddings
    assert len(one) == len(two) and abs(sum(value * value for value in one) - 1) < 1e-4
    assert len(client.embeddings(model=model, prompt="A cat sleeps.").embedding) == len(one)
    assert model in [listed.model for listed in client.list().models]
    assert client.ps().models[0].context_length == 2048
    shown = client.show(model)
    assert "completion" in shown.capabilities and shown.template and shown.modelinfo["general.architecture"] == "llama"
    assert client.pull(model).status == "success"
    assert [part.status for part in client.pull(model, stream=True)][-1] == "success"
    for refused, status in [
        (lambda: client.chat(model="another", messages=QUESTION), 404),
        (lambda: client.chat(model=model, messages=QUESTION, options={"temperature": -1}), 400),
        (lambda: client.pull("another"), 403),
        (lambda: client.delete(model), 403),
        (lambda: ollama.Client(host=address).list(), 401),
    ]:
        try:
            refused()
            raise AssertionError(f"expected status {status}")
        except ollama.ResponseError as error:
            assert error.status_code == status and error.error and "{" not in error.error, error

    async def several():
        client = ollama.AsyncClient(host=address, headers={"Authorization": f"Bearer {key}"})
        asked = [client.chat(model=model, messages=QUESTION, options=GREEDY) for _ in range(4)]
        return [reply.message.content for reply in await asyncio.gather(*asked)]

    assert asyncio.run(several()) == [answer] * 4
    return client


def javascript(address, key, model, answer):
    if not (shutil.which("node") and shutil.which("npm")):
        print("npm's ollama: not tested, since there is no node here")
        return
    with tempfile.TemporaryDirectory() as folder:
        install = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", folder, JAVASCRIPT]
        subprocess.run(install, check=True, stdout=subprocess.DEVNULL)
        program = Path(folder, "client.mjs")
        program.write_text(PROGRAM)
        environment = {**os.environ, "HOST": address, "KEY": key, "MODEL": model}
        printed = subprocess.run(["node", program], check=True, capture_output=True, text=True, env=environment).stdout
    told = json.loads(printed)
    assert told["whole"] == told["streamed"] == answer, told
    assert told["vectors"] == 2 and told["raw"] and told["running"] == 1 and model in told["models"], told
    assert "completion" in told["shown"] and "another" in told["refused"], told


def all_of_them(address, key, model, answer):
    client = python(address, key, model, answer)
    javascript(address, key, model, answer)
    # At last, the model leaves the memory and comes back.
    assert client.generate(model=model, keep_alive=0).done_reason == "unload"
    for _ in range(200):
        if not client.ps().models:
            break
        time.sleep(0.05)
    else:
        raise AssertionError("the model stays in memory")
    assert client.chat(model=model, messages=QUESTION, options=GREEDY).message.content == answer
