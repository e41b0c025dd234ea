"""Drives `triad serve` with the packages `openai`, `anthropic`, `openai-agents` and `ollama`: each endpoint, whole and streamed, alone
and many at once, right requests and wrong ones. Prints what it did; fails at the first thing that is not as it should be."""

import re
import signal
import subprocess
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import anthropic
import openai

import ollama_api
import tools

KEY = "a-key-of-this-test"
QUESTION = [{"role": "user", "content": "Name three colours."}]


def start(triad):
    """The server, on a port of the system's choosing, and its address."""
    command = [triad, "serve", "--port", "0", "--api-key", KEY, "--parallel", "4", "--context", "2048"]
    command.append("--strict-models")
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    for line in server.stderr:
        if found := re.search(r"http://[\d.:]+", line):
            return server, found[0]
    raise SystemExit(f"{' '.join(command)} ended with {server.wait()}")


def chat(client, model):
    ask = {"model": model, "messages": QUESTION, "max_tokens": 24, "temperature": 0}
    whole = client.chat.completions.create(**ask, logprobs=True, top_logprobs=3)
    answer = whole.choices[0].message.content
    assert answer and whole.usage.completion_tokens <= 24, whole
    assert "".join(token.token for token in whole.choices[0].logprobs.content) == answer
    chunks = list(client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True}))
    streamed = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert streamed == answer, (streamed, answer)
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert chunks[-1].usage.prompt_tokens_details.cached_tokens > 0
    several = client.chat.completions.create(**ask | {"temperature": 1.0}, n=3, seed=5)
    assert len({choice.message.content for choice in several.choices}) == 3, several
    stop = answer.split()[1]
    stopped = client.chat.completions.create(**ask, stop=[stop])
    assert stopped.choices[0].finish_reason == "stop" and stop not in stopped.choices[0].message.content
    return answer


def completions(client, model):
    text = "The capital of France is Paris"
    scored = client.completions.create(model=model, prompt=text, echo=True, logprobs=1, max_tokens=1)
    told = scored.choices[0].logprobs
    assert told.token_logprobs[0] is None and all(value <= 0 for value in told.token_logprobs[1:]), told
    assert scored.choices[0].text.startswith(text) and "".join(told.tokens[:-1]) == text
    many = client.completions.create(model=model, prompt=[text, "One, two,"], max_tokens=8, temperature=0)
    assert [choice.index for choice in many.choices] == [0, 1]
    parts = client.completions.create(model=model, prompt="One, two,", max_tokens=8, temperature=0, stream=True)
    assert "".join(part.choices[0].text for part in parts if part.choices) == many.choices[1].text


def responses(client, model, answer):
    ask = {"model": model, "input": QUESTION[0]["content"], "max_output_tokens": 24, "temperature": 0}
    whole = client.responses.create(**ask)
    assert whole.output_text == answer, (whole.output_text, answer)
    with client.responses.stream(**ask) as stream:
        streamed = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
    assert streamed == answer, streamed


def messages(client, model, answer):
    ask = {"model": model, "messages": QUESTION, "max_tokens": 24, "extra_body": {"temperature": 0}}
    whole = client.messages.create(**ask)
    assert whole.content[0].text == answer and whole.usage.output_tokens <= 24, whole
    with client.messages.stream(**ask) as stream:
        assert "".join(stream.text_stream) == answer
        assert stream.get_final_message().stop_reason == whole.stop_reason
    try:
        client.messages.create(**ask | {"model": "another"})
        raise AssertionError("a model that is not there answers")
    except anthropic.NotFoundError as error:
        assert error.body["error"]["type"] == "not_found_error", error.body


def errors(client, address, model):
    def refused(kind, **more):
        try:
            client.chat.completions.create(**{"model": model, "messages": QUESTION} | more)
        except kind as error:
            return error
        raise AssertionError(f"{more} is not refused")

    assert refused(openai.BadRequestError, temperature=-1).param == "temperature"
    assert refused(openai.NotFoundError, model="another").code == "model_not_found"
    assert refused(openai.BadRequestError, messages=[{"role": "user", "content": "x " * 9000}]).code == "context_length_exceeded"
    stranger = openai.OpenAI(base_url=f"{address}/v1", api_key="wrong", max_retries=0)
    try:
        stranger.models.list()
        raise AssertionError("a wrong key is taken")
    except openai.AuthenticationError:
        pass


def many(client, model):
    """Sixteen clients get what each gets alone."""
    def ask(number):
        question = [{"role": "user", "content": f"Write a sentence about the number {number}."}]
        reply = client.chat.completions.create(model=model, messages=question, max_tokens=16, temperature=0)
        return reply.choices[0].message.content

    alone = [ask(number) for number in range(16)]
    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(ask, range(16))) == alone


def main():
    server, address = start(sys.argv[1])
    try:
        client = openai.OpenAI(base_url=f"{address}/v1", api_key=KEY, max_retries=0)
        other = anthropic.Anthropic(base_url=address, api_key=KEY, max_retries=0)
        model = client.models.list().data[0].id
        answer = chat(client, model)
        print(f"chat: {answer!r}")
        completions(client, model)
        responses(client, model, answer)
        messages(other, model, answer)
        errors(client, address, model)
        many(client, model)
        tools.all_of_them(client, other, address, KEY, model)
        ollama_api.all_of_them(address, KEY, model, answer)
        headers = {"Authorization": f"Bearer {KEY}", "Accept": "application/openmetrics-text"}
        asked = urllib.request.Request(f"{address}/metrics", headers=headers)
        with urllib.request.urlopen(asked) as reply:
            metrics = reply.read().decode()
        assert "triad_first_token_seconds_count" in metrics and metrics.endswith("# EOF\n")
        server.send_signal(signal.SIGINT)
        assert server.wait(timeout=60) == 0, server.returncode
        print("chat, completions, responses, messages, Ollama's API, errors, sixteen at once, metrics, end: as they should be")
    finally:
        server.kill()


if __name__ == "__main__":
    main()
