"""Conversations as agents send them: what they were given comes back."""

from asking import HI, PARAMETERS, case

NAMED = [{"name": "fun", "description": "Does it", "input_schema": PARAMETERS}]


@case
def a_system_prompt_is_a_text_or_blocks(s):
    for system in ("Be brief.", [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]):
        reply = s.messages("plain", system=system)
        assert reply.status == 200 and reply.json["content"][0]["text"] == "fine thing", reply.text


@case
def an_answer_without_bound_is_refused_in_anthropics_form(s):
    reply = s.ask("/v1/messages", {"model": "plain", "messages": HI})
    reply.refuses("max_tokens")
    assert reply.json["type"] == "error" and reply.json["error"]["type"] == "invalid_request_error"


@case
def the_stop_text_that_ended_an_answer_is_named(s):
    reply = s.messages("plain", stop_sequences=["zzz", "thing"])
    assert (reply.json["stop_reason"], reply.json["stop_sequence"]) == ("stop_sequence", "thing")
    assert reply.json["content"][0]["text"] == "fine "
    assert s.messages("plain", max_tokens=1).json["stop_reason"] == "max_tokens"
    assert s.messages("plain").json["stop_reason"] == "end_turn"


@case
def tokens_are_counted_as_a_request_counts_them(s):
    bare = s.ask("/v1/messages/count_tokens", {"model": "c-hermes", "messages": HI}).json["input_tokens"]
    tools = s.ask("/v1/messages/count_tokens", {"model": "c-hermes", "messages": HI, "tools": NAMED}).json["input_tokens"]
    assert tools > bare
    usage = s.messages("c-hermes", tools=NAMED).json["usage"]
    assert usage["input_tokens"] + usage.get("cache_read_input_tokens", 0) == tools, (usage, tools)
    counted = s.ask("/v1/responses/input_tokens", {"model": "plain", "input": "Hi"}).json["input_tokens"]
    assert s.responses("plain").json["usage"]["input_tokens"] == counted


@case
def blocks_of_thinking_come_back(s):
    blocks = [
        {"type": "thinking", "thinking": "hm", "signature": "x"}, {"type": "redacted_thinking", "data": "AAAA"}, {"type": "text", "text": "Yo"},
    ]
    messages = [*HI, {"role": "assistant", "content": blocks}, *HI]
    assert s.messages("plain", messages=messages).status == 200
    s.messages("plain", messages=[*HI, {"role": "assistant", "content": [{"type": "hologram"}]}, *HI]).refuses("hologram")


@case
def a_prefill_is_continued_and_not_repeated(s):
    reply = s.messages("continues", messages=[*HI, {"role": "assistant", "content": "The answer is ("}])
    assert reply.json["content"][0]["text"].strip() == "42", reply.text
    blocks = [{"type": "text", "text": "The answer is ("}]
    reply = s.messages("continues", messages=[*HI, {"role": "assistant", "content": blocks}])
    assert reply.json["content"][0]["text"].strip() == "42", reply.text


@case
def metadata_and_tiers_change_nothing(s):
    assert s.messages("plain", metadata={"user_id": "u"}, service_tier="auto").status == 200
    assert s.chat("plain", user="u", metadata={"a": "b"}, store=False, service_tier="auto").status == 200


@case
def versions_and_betas_in_headers_change_nothing(s):
    ask = {"model": "plain", "messages": HI, "max_tokens": 8}
    assert s.ask("/v1/messages", ask, anthropic_version="2023-06-01", anthropic_beta="tools-2024", x_api_key="k").status == 200


@case
def a_stream_in_anthropics_form_has_its_events_in_order(s):
    kinds = [event["type"] for event in s.messages("plain", stream=True).events() if event["type"] != "ping"]
    assert kinds[0] == "message_start" and kinds[-2:] == ["message_delta", "message_stop"]
    assert kinds.index("content_block_start") < kinds.index("content_block_delta") < kinds.index("content_block_stop")


@case
def a_stored_response_is_continued(s):
    first = s.responses("plain").json
    second = s.responses("plain", previous_response_id=first["id"], input="Bye")
    assert second.json["usage"]["input_tokens"] > first["usage"]["input_tokens"]
    assert s.ask(f"/v1/responses/{first['id']}").json["id"] == first["id"]
    assert s.ask(f"/v1/responses/{first['id']}", method="DELETE").status == 200
    reply = s.responses("plain", previous_response_id=first["id"])
    assert reply.status in (400, 404) and first["id"] in reply.text, reply.text


@case
def a_response_that_is_not_kept_cannot_be_continued(s):
    first = s.responses("plain", store=False).json
    assert s.responses("plain", previous_response_id=first["id"]).status in (400, 404)


@case
def an_item_is_named_instead_of_sent(s):
    item = s.responses("plain").json["output"][0]["id"]
    reply = s.responses("plain", input=[{"role": "user", "content": "Hi"}, {"type": "item_reference", "id": item}, {"role": "user", "content": "Bye"}])
    assert reply.status == 200, reply.text
    s.responses("plain", input=[{"type": "item_reference", "id": "msg_none"}]).refuses("msg_none")


@case
def a_conversation_is_kept_on_the_server(s):
    made = s.ask("/v1/conversations", {}).json["id"]
    counts = [s.responses("plain", conversation=made, input=text).json["usage"]["input_tokens"] for text in ("Hi", "Bye")]
    assert counts[1] > counts[0]
    assert s.ask(f"/v1/conversations/{made}", method="DELETE").status == 200
    assert s.responses("plain", conversation=made).status in (400, 404)


@case
def instructions_come_before_the_input(s):
    bare = s.responses("plain").json["usage"]["input_tokens"]
    assert s.responses("plain", instructions="Be brief.").json["usage"]["input_tokens"] > bare


@case
def events_of_responses_are_numbered_and_end_with_the_response(s):
    events = s.responses("plain", stream=True).events()
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert events[0]["type"] == "response.created" and events[-1]["type"] == "response.completed"
    text = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
    assert text == "fine thing"


@case
def a_response_that_is_cut_off_is_incomplete(s):
    reply = s.responses("plain", max_output_tokens=1).json
    assert reply["status"] == "incomplete" and reply["incomplete_details"]["reason"] == "max_output_tokens"


@case
def inputs_of_responses_have_typed_parts(s):
    parts = [{"type": "input_text", "text": "Hi"}]
    assert s.responses("plain", input=[{"type": "message", "role": "user", "content": parts}]).status == 200
    s.responses("plain", input=[{"role": "user", "content": [{"type": "input_smell", "text": "x"}]}]).refuses("input_smell")
