"""Access, paths, and errors in the form of their API."""

from asking import HI, case

ORIGIN = "https://app.example"
ASK = {"model": "plain", "messages": HI, "max_tokens": 4}


def lower(reply):
    return {name.lower(): value for name, value in reply.headers.items()}


@case
def a_named_origin_may_send_the_headers_that_it_asks_for(s):
    headers = {"origin": ORIGIN, "access_control_request_method": "POST", "access_control_request_headers": "authorization,content-type,x-stainless-os"}
    reply = s.ask("/v1/chat/completions", method="OPTIONS", **headers)
    assert reply.status in (200, 204), reply
    allowed = lower(reply)["access-control-allow-headers"].lower()
    assert all(word in allowed for word in ("authorization", "content-type", "x-stainless-os")), allowed
    assert lower(reply)["access-control-allow-origin"] == ORIGIN
    answer = s.ask("/v1/chat/completions", ASK, origin=ORIGIN)
    assert answer.status == 200 and lower(answer)["access-control-allow-origin"] == ORIGIN


@case
def errors_too_are_readable_by_a_named_origin(s):
    reply = s.ask("/v1/chat/completions", {"messages": 3}, origin=ORIGIN)
    assert reply.status == 400 and lower(reply)["access-control-allow-origin"] == ORIGIN


@case
def other_origins_get_no_permission(s):
    for origin in ("https://other.example", "null", ORIGIN + ".evil", "http://app.example"):
        reply = s.ask("/v1/chat/completions", method="OPTIONS", origin=origin, access_control_request_method="POST")
        assert "access-control-allow-origin" not in lower(reply), (origin, reply)
        reply = s.ask("/v1/chat/completions", ASK, origin=origin)
        assert "access-control-allow-origin" not in lower(reply), (origin, reply)


@case
def a_host_by_another_name_is_refused(s):
    assert s.ask("/v1/models", host="evil.example").status == 403
    assert s.ask("/v1/models", host="localhost").status == 200


@case
def bodies_of_other_types_are_refused_from_browsers_and_taken_from_programs(s):
    form = "application/x-www-form-urlencoded"
    for kind in (form, "text/plain", "application/octet-stream"):
        assert s.ask("/v1/chat/completions", ASK, content_type=kind, sec_fetch_site="cross-site").status == 415
        assert s.ask("/v1/chat/completions", ASK, content_type=kind).status == 200


@case
def an_unknown_path_and_a_wrong_method_are_said_in_json(s):
    reply = s.ask("/v1/nothing")
    assert reply.status == 404 and "error" in reply.json
    assert s.ask("/v1/chat/completions").status == 405


@case
def slashes_too_many_change_nothing(s):
    assert s.ask("//v1/chat/completions/", ASK).status == 200
    assert s.ask("/v1//models/").status == 200


@case
def errors_have_the_form_of_their_api(s):
    openai = s.ask("/v1/chat/completions", {"model": "plain", "messages": 3}).json["error"]
    assert openai["message"] and openai["type"] == "invalid_request_error"
    anthropic = s.ask("/v1/messages", {"model": "plain", "messages": 3, "max_tokens": 1}).json
    assert anthropic["type"] == "error" and anthropic["error"]["message"]
    assert isinstance(s.ask("/api/chat", {"model": "plain", "messages": 3}).json["error"], str)


@case
def requests_have_names(s):
    assert lower(s.ask("/v1/chat/completions", ASK, x_request_id="mine-1"))["x-request-id"] == "mine-1"
    assert lower(s.ask("/v1/messages", ASK))["request-id"]
    other = lower(s.ask("/v1/chat/completions", ASK, x_request_id="bad name{}"))["x-request-id"]
    assert other != "bad name{}"


@case
def metrics_follow_the_accept_header(s):
    assert "openmetrics" in lower(s.ask("/metrics", accept="application/openmetrics-text"))["content-type"]
    assert lower(s.ask("/metrics"))["content-type"].startswith("text/plain")


@case
def lone_halves_of_characters_are_refused(s):
    body = b'{"model": "plain", "max_tokens": 4, "messages": [{"role": "user", "content": "\\ud800"}]}'
    assert s.ask("/v1/chat/completions", body).status == 400
