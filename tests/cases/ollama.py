"""Ollama's API and llama.cpp's endpoints."""

import time

from asking import HI, case

ASK = {"model": "plain", "stream": False}


@case
def models_are_listed_with_their_tags(s):
    names = [model["name"] for model in s.ask("/api/tags").json["models"]]
    assert any(name.split(":")[0] == "plain" for name in names), names
    assert s.ask("/api/version").json["version"]


@case
def a_model_is_shown(s):
    shown = s.ask("/api/show", {"model": "plain"}).json
    assert "completion" in shown["capabilities"] and shown["template"] and shown["model_info"]["general.architecture"] == "llama"
    assert s.ask("/api/show", {"model": "none"}).status == 404


@case
def a_tag_of_the_latest_is_the_model(s):
    reply = s.ask("/api/chat", ASK | {"model": "plain:latest", "messages": HI})
    assert reply.json["message"]["content"] == "fine thing"


@case
def an_unknown_model_is_404(s):
    assert s.ask("/api/chat", ASK | {"model": "none", "messages": HI}).status == 404
    assert s.ask("/v1/chat/completions", {"model": "none", "messages": HI}).status == 404


@case
def a_stream_is_one_object_on_each_line(s):
    reply = s.ask("/api/chat", {"model": "plain", "messages": HI})
    events = reply.events()
    assert "ndjson" in reply.headers["content-type"] if "content-type" in reply.headers else reply.headers["Content-Type"]
    assert "".join(event["message"]["content"] for event in events) == "fine thing"
    assert [event["done"] for event in events] == [False] * (len(events) - 1) + [True]
    assert events[-1]["done_reason"] == "stop" and events[-1]["eval_count"] == 3


@case
def a_text_is_completed_with_or_without_the_template(s):
    assert s.ask("/api/generate", ASK | {"prompt": "Hi"}).json["response"] == "fine thing"
    raw = s.ask("/api/generate", ASK | {"model": "no-template", "prompt": "Stay", "raw": True, "options": {"num_predict": 4, "temperature": 0}})
    assert raw.json["response"] == "ing", raw.text


@case
def a_context_continues_its_conversation(s):
    first = s.ask("/api/generate", ASK | {"prompt": "Hi"}).json
    more = s.ask("/api/generate", ASK | {"prompt": "More", "context": first["context"]}).json
    messages = [*HI, {"role": "assistant", "content": "fine thing"}, {"role": "user", "content": "More"}]
    chat = s.ask("/api/chat", ASK | {"messages": messages}).json
    assert more["prompt_eval_count"] == chat["prompt_eval_count"] > first["prompt_eval_count"], (more, chat)
    assert more["response"] == chat["message"]["content"]
    s.ask("/api/generate", ASK | {"prompt": "More", "context": [1, 2, 3]}).refuses("context")


@case
def options_are_followed_or_refused(s):
    def answer(**options):
        return s.ask("/api/chat", ASK | {"messages": HI, "options": options})

    assert answer(num_predict=1).json["done_reason"] == "length"
    assert answer(stop=["thing"]).json["message"]["content"].strip() == "fine"
    assert answer(num_predict=-1).json["message"]["content"] == "fine thing"
    answer(temperature="hot").refuses("temperature")
    answer(temprature=1).refuses("temprature")


@case
def forms_hold(s):
    reply = s.ask("/api/chat", ASK | {"messages": HI, "format": {"enum": ["x"]}})
    assert reply.json["message"]["content"] == '"x"'
    s.ask("/api/chat", ASK | {"messages": HI, "format": "yaml"}).refuses("format")


@case
def models_leave_memory_when_asked(s):
    assert s.ask("/api/generate", ASK | {"prompt": ""}).json["done"]
    assert any(model["name"].startswith("plain") for model in s.ask("/api/ps").json["models"])
    assert s.ask("/api/generate", ASK | {"prompt": "", "keep_alive": 0}).json["done_reason"] == "unload"
    for _ in range(100):
        if not any(model["name"].startswith("plain") for model in s.ask("/api/ps").json["models"]):
            break
        time.sleep(0.05)
    else:
        raise AssertionError("the model is in memory after five seconds")
    s.ask("/api/generate", ASK | {"prompt": "Hi", "keep_alive": "soon"}).refuses("keep_alive")
    assert s.ask("/api/generate", ASK | {"prompt": "Hi", "keep_alive": "5m"}).status == 200


@case
def vectors_have_the_newer_and_the_older_form(s):
    vectors = s.ask("/api/embed", {"model": "plain", "input": ["one", "two"]}).json["embeddings"]
    older = s.ask("/api/embeddings", {"model": "plain", "prompt": "one"}).json["embedding"]
    assert len(vectors) == 2 and len(older) == len(vectors[0])
    assert s.ask("/api/embed", {"model": "plain", "input": "one"}).json["embeddings"][0] == vectors[0]


@case
def a_picture_is_refused_in_ollamas_form(s):
    s.ask("/api/chat", ASK | {"messages": [{"role": "user", "content": "Hi", "images": ["AAAA"]}]}).refuses("pictures")


@case
def llama_cpps_completion_has_its_fields(s):
    ask = {"model": "no-template", "prompt": "Stay", "n_predict": 4, "temperature": 0}
    reply = s.ask("/completion", ask).json
    assert reply["content"] == "ing" and reply["stop_type"] == "eos" and reply["tokens_predicted"] == 2
    assert s.ask("/completion", ask | {"prompt": ["St", 97, "y"]}).json["content"] == "ing"
    events = s.ask("/completion", ask | {"stream": True}).events()
    assert "".join(event["content"] for event in events) == "ing" and events[-1]["stop"]


@case
def tokens_are_made_of_texts_and_texts_of_tokens(s):
    ask = {"model": "plain", "content": "ab<|u|>"}
    tokens = s.ask("/tokenize", ask).json["tokens"]
    assert tokens[:2] == [97, 98] and len(tokens) == 3
    assert len(s.ask("/tokenize", ask | {"parse_special": False}).json["tokens"]) > 3
    pieces = s.ask("/tokenize", ask | {"with_pieces": True}).json["tokens"]
    assert [piece["id"] for piece in pieces] == tokens and pieces[0]["piece"] == "a"
    assert s.ask("/detokenize", {"model": "plain", "tokens": [97, 98]}).json["content"] == "ab"


@case
def the_middle_needs_a_model_that_fills_it(s):
    s.ask("/infill", {"model": "plain", "input_prefix": "a", "input_suffix": "b"}).refuses("fim")
    s.ask("/v1/completions", {"model": "plain", "prompt": "a", "suffix": "b"}).refuses("suffix")


@case
def the_server_describes_itself(s):
    assert s.ask("/health").json["status"] == "ok"
    assert s.ask("/props").json["default_generation_settings"]
    assert isinstance(s.ask("/slots").json, list)
    ids = [model["id"] for model in s.ask("/v1/models").json["data"]]
    assert "plain" in ids and s.ask("/v1/models/plain").json["id"] == "plain"
