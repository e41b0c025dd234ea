"""Reasoning is apart from the answer, in all APIs and all marks."""

import json

from asking import HI, case

MODELS = ("reasons", "reasons-in-text", "reasons-opened")


def apart(name):
    def is_apart(s):
        message = s.chat(name).message
        assert message["content"] == "Yes." and message["reasoning_content"].strip().startswith("hm"), message
        events = s.chat(name, stream=True).events()
        deltas = [event["choices"][0]["delta"] for event in events if event["choices"]]
        assert "".join(delta.get("content") or "" for delta in deltas) == "Yes."
        assert "".join(delta.get("reasoning_content") or "" for delta in deltas) == message["reasoning_content"]
        assert not any("think>" in json.dumps(delta) for delta in deltas)

    is_apart.__name__ = f"reasoning_of_{name}_is_apart_whole_and_streamed"
    case(is_apart)


for name in MODELS:
    apart(name)


@case
def reasoning_is_a_block_in_anthropics_form(s):
    blocks = s.messages("reasons").json["content"]
    assert [block["type"] for block in blocks] == ["thinking", "text"] and blocks[1]["text"] == "Yes."
    events = s.messages("reasons", stream=True).events()
    kinds = [event["content_block"]["type"] for event in events if event["type"] == "content_block_start"]
    assert kinds == ["thinking", "text"]
    assert any(event.get("delta", {}).get("type") == "signature_delta" for event in events)


@case
def reasoning_is_an_item_of_responses(s):
    output = s.responses("reasons").json["output"]
    assert [item["type"] for item in output] == ["reasoning", "message"]
    again = s.responses("reasons", input=[{"role": "user", "content": "Hi"}, *output, {"role": "user", "content": "Bye"}])
    assert again.status == 200, again.text


@case
def reasoning_is_a_field_in_ollamas_form(s):
    reply = s.ask("/api/chat", {"model": "reasons", "messages": HI, "stream": False, "think": True})
    assert reply.json["message"]["content"] == "Yes." and "hm" in reply.json["message"]["thinking"], reply.text
    s.ask("/api/chat", {"model": "plain", "messages": HI, "stream": False, "think": True}).refuses("think")


@case
def reasoning_stays_in_the_content_or_away_if_asked(s):
    assert "<think>" in s.chat("reasons", reasoning_format="none").content
    message = s.chat("reasons", include_reasoning=False).message
    assert message["content"] == "Yes." and not message.get("reasoning_content")


@case
def tokens_of_reasoning_are_counted(s):
    usage = s.chat("reasons").json["usage"]
    assert 0 < usage["completion_tokens_details"]["reasoning_tokens"] < usage["completion_tokens"]


@case
def a_budget_ends_the_reasoning(s):
    reply = s.chat("reasons-long", reasoning_budget=5)
    assert reply.content == "Yes." and reply.json["usage"]["completion_tokens_details"]["reasoning_tokens"] <= 8, reply.text
    reply = s.messages("reasons-long", thinking={"type": "enabled", "budget_tokens": 5})
    assert reply.json["content"][-1]["text"] == "Yes.", reply.text
    s.chat("plain", reasoning_budget=5).refuses("reasoning_budget")


@case
def reasoning_that_is_cut_off_is_no_answer(s):
    reply = s.chat("reasons-long", max_tokens=6)
    assert reply.content == "" and reply.json["choices"][0]["finish_reason"] == "length" and reply.message["reasoning_content"]


@case
def a_form_is_for_the_answer_after_the_reasoning(s):
    message = s.chat("reasons", structured_outputs={"choice": ["Yes."]}).message
    assert message["content"] == "Yes." and "hm" in message["reasoning_content"]


@case
def a_stop_text_within_the_reasoning_does_what_is_documented(s):
    reply = s.chat("reasons", stop=["Yes"])
    assert reply.content == "" and "hm" in reply.message["reasoning_content"]
