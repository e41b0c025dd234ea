"""An option that changes the answer is followed or refused, never dropped."""

import base64
import json
import struct

from asking import HI, case


@case
def the_newer_name_of_the_bound_holds(s):
    reply = s.chat("plain", max_tokens=None, max_completion_tokens=1)
    assert reply.json["choices"][0]["finish_reason"] == "length" and reply.json["usage"]["completion_tokens"] == 1


@case
def no_bound_is_minus_one(s):
    assert s.chat("plain", max_tokens=-1).content == "fine thing"


@case
def a_bound_that_is_no_number_is_refused(s):
    s.chat("plain", max_tokens="many").refuses("max_tokens")


@case
def a_misspelled_option_is_refused(s):
    s.chat("plain", temprature=0).refuses("temprature")


@case
def a_form_of_no_known_type_is_refused(s):
    s.chat("plain", response_format={"type": "yaml"}).refuses("response_format")


@case
def a_bias_bans_a_token(s):
    token = s.ask("/tokenize", {"model": "plain", "content": "f"}).json["tokens"][0]
    word = next(piece for piece in range(256, 300) if s.ask("/detokenize", {"model": "plain", "tokens": [piece]}).json["content"] == "fine")
    assert "fine" not in s.chat("plain", logit_bias={str(word): -100}, max_tokens=4).content
    assert s.chat("plain", logit_bias={str(token): 100}, max_tokens=1).content == "f"


@case
def a_bias_of_no_token_is_refused(s):
    s.chat("plain", logit_bias={"999999": 1}).refuses("vocabulary")


@case
def a_stop_text_across_tokens_ends_the_answer_before_it(s):
    reply = s.chat("plain", stop="ne th")
    assert reply.content == "fi" and reply.json["choices"][0]["finish_reason"] == "stop"


@case
def the_first_of_several_stop_texts_ends_the_answer(s):
    assert s.chat("plain", stop=["thing", "e", "zzz"]).content == "fin"


@case
def a_stop_text_is_no_part_of_a_stream(s):
    events = s.chat("plain", stop=["th"], stream=True).events()
    assert "".join(event["choices"][0]["delta"].get("content") or "" for event in events if event["choices"]) == "fine "


@case
def the_end_token_is_ignored_if_asked(s):
    reply = s.chat("plain", ignore_eos=True, max_tokens=8)
    assert reply.json["choices"][0]["finish_reason"] == "length" and reply.json["usage"]["completion_tokens"] == 8


@case
def one_of_several_texts_is_chosen(s):
    assert s.chat("plain", guided_choice=["alpha", "beta"]).content in ("alpha", "beta")
    assert s.chat("plain", structured_outputs={"choice": ["alpha"]}).content == "alpha"


@case
def a_regular_expression_holds_for_the_whole_answer(s):
    assert s.chat("plain", guided_regex="[0-9]{3}").content.isdigit()


@case
def two_forms_at_once_are_refused(s):
    s.chat("plain", structured_outputs={"choice": ["a"], "regex": "b"}).refuses("structured_outputs")


@case
def a_grammar_of_another_kind_is_refused(s):
    s.chat("plain", grammar='root ::= "a"').refuses("grammar")


@case
def several_answers_have_their_numbers(s):
    choices = s.chat("plain", n=2).json["choices"]
    assert [choice["index"] for choice in choices] == [0, 1]
    s.chat("plain", n=0).refuses("n")


@case
def usage_is_the_last_event_and_has_no_choice(s):
    events = s.chat("plain", stream=True, stream_options={"include_usage": True}).events()
    assert events[-1]["choices"] == [] and events[-1]["usage"]["completion_tokens"] == 3
    assert all(event.get("usage") is None for event in events[:-1])


@case
def each_token_has_its_probability_and_the_likeliest(s):
    told = s.chat("plain", logprobs=True, top_logprobs=2).json["choices"][0]["logprobs"]["content"]
    assert [token["token"] for token in told][:2] == ["fine", " thing"]
    assert all(len(token["top_logprobs"]) == 2 and token["logprob"] <= 0 for token in told)
    s.chat("plain", top_logprobs=2).refuses("logprobs")


@case
def a_number_as_text_is_refused(s):
    s.chat("plain", temperature="0.5").refuses("temperature")
    s.chat("plain", temperature=-0.5).refuses("temperature")


@case
def lists_of_tokens_are_prompts(s):
    tokens = s.ask("/tokenize", {"model": "no-template", "content": "Stay"}).json["tokens"]
    ask = {"model": "no-template", "max_tokens": 8, "temperature": 0}
    one = s.ask("/v1/completions", ask | {"prompt": tokens})
    assert one.status == 200 and one.json["choices"][0]["text"] == "ing", one.text
    two = s.ask("/v1/completions", ask | {"prompt": [tokens, tokens]})
    assert [choice["text"] for choice in two.json["choices"]] == ["ing", "ing"]


@case
def tokens_of_another_vocabulary_are_refused(s):
    s.ask("/v1/completions", {"model": "plain", "prompt": [99999], "max_tokens": 1}).refuses("99999")
    s.ask("/v1/embeddings", {"model": "plain", "input": [99999]}).refuses("99999")


@case
def an_empty_prompt_of_the_echo_is_scored_or_refused(s):
    reply = s.ask("/v1/completions", {"model": "plain", "prompt": [], "max_tokens": 1})
    assert reply.status == 400, reply.text


@case
def the_prompt_is_repeated_before_the_answer_if_asked(s):
    reply = s.ask("/v1/completions", {"model": "no-template", "prompt": "Stay", "echo": True, "max_tokens": 4, "temperature": 0})
    assert reply.json["choices"][0]["text"] == "Staying"


@case
def characters_of_several_bytes_are_whole_in_a_stream(s):
    events = s.chat("several-bytes", stream=True).events()
    pieces = [event["choices"][0]["delta"].get("content") or "" for event in events if event["choices"]]
    assert "".join(pieces) == "\N{GRINNING FACE} ok" and not any("\ufffd" in piece for piece in pieces)


@case
def vectors_come_as_numbers_or_as_base64(s):
    ask = {"model": "plain", "input": ["one", "two"]}
    plain = s.ask("/v1/embeddings", ask).json["data"]
    packed = s.ask("/v1/embeddings", ask | {"encoding_format": "base64"}).json["data"]
    values = [struct.unpack(f"<{len(one['embedding'])}f", base64.b64decode(two["embedding"])) for one, two in zip(plain, packed)]
    assert [one["index"] for one in plain] == [0, 1]
    assert all(abs(a - b) < 1e-6 for one, two in zip(plain, values) for a, b in zip(one["embedding"], two))
    s.ask("/v1/embeddings", ask | {"encoding_format": "hex"}).refuses("encoding_format")
    s.ask("/v1/embeddings", ask | {"input": []}).refuses("input")


@case
def a_role_that_is_none_and_no_messages_are_refused(s):
    s.chat("plain", messages=[{"role": "robot", "content": "Hi"}]).refuses("role")
    s.chat("plain", messages=[]).refuses("messages")
    s.chat("plain", messages="Hi").refuses("messages")


@case
def a_picture_for_a_model_of_text_is_refused(s):
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    s.chat("plain", messages=[{"role": "user", "content": [picture]}]).refuses("pictures")
    source = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
    s.messages("plain", messages=[{"role": "user", "content": [{"type": "image", "source": source}]}]).refuses("pictures")


@case
def sound_is_refused(s):
    sound = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}
    s.chat("plain", messages=[{"role": "user", "content": [sound]}]).refuses("audio")
    s.chat("plain", modalities=["text", "audio"]).refuses("modalities")


@case
def a_conversation_that_is_too_long_says_so_in_the_words_that_clients_look_for(s):
    long = [{"role": "user", "content": "word " * 2000}]
    s.chat("plain", messages=long).refuses("maximum context length is")
    s.messages("plain", messages=long).refuses("prompt is too long")


@case
def a_last_message_of_the_assistant_is_continued_if_asked(s):
    conversation = [*HI, {"role": "assistant", "content": "It is ("}]
    reply = s.chat("continues", messages=conversation, continue_final_message=True, add_generation_prompt=False)
    assert reply.content.strip() == "42"
    parts = [*HI, {"role": "assistant", "content": [{"type": "text", "text": "It is ("}]}]
    reply = s.chat("continues", messages=parts, continue_final_message=True, add_generation_prompt=False)
    assert reply.content.strip() == "42"
    s.chat("continues", messages=conversation, continue_final_message=True, add_generation_prompt=True).refuses("add_generation_prompt")


@case
def a_body_that_is_no_object_is_refused(s):
    for body in (b"[]", b'"a"', b"{", b"\xff", b""):
        reply = s.ask("/v1/chat/completions", body)
        assert reply.status == 400 and "error" in json.loads(reply.text), (body, reply.text)
