"""Answers on the page: reasoning, calls of tools, answers that are cut off, and files of messages."""

import json
import re

from playwright.sync_api import expect

from driving import Page, part

USER = {"role": "user", "content": "What is 6 times 7?"}
TOOL = {"server": "clock", "name": "time", "description": "Tells the time", "parameters": {"type": "object"}}


def reasoning_is_folded_when_the_answer_begins(browser):
    one = Page(browser, viewport={"width": 1200, "height": 760})
    page = one.page
    one.script([part(reasoning_content="Six times seven: **42**"), "hold", part(content="It is"), "hold", part(content=" 42."), part("stop")])
    page.fill("#prompt", USER["content"])
    page.press("#prompt", "Enter")
    thoughts = page.locator(".reasoning")
    expect(thoughts).to_have_js_property("open", True)
    expect(thoughts.locator("strong")).to_have_text("42")
    expect(thoughts.locator("summary")).to_have_text("Reasoning …")
    one.picture("reasoning-open")
    one.release()
    expect(page.locator(".message.assistant .body")).to_have_text("It is")
    expect(thoughts).to_have_js_property("open", False)
    expect(thoughts.locator("summary")).to_have_text(re.compile(r"^Reasoned for \d+\.\d s$"))
    # Opened by the user, it stays open.
    thoughts.locator("summary").click()
    one.release()
    one.complete()
    expect(page.locator(".message.assistant .body")).to_have_text("It is 42.")
    expect(thoughts).to_have_js_property("open", True)
    page.reload()
    expect(thoughts).to_have_js_property("open", False)
    expect(thoughts.locator("summary")).to_have_text(re.compile(r"^Reasoned for \d"))
    # The server gets the reasoning back, which this model's template does not read.
    expect(page.locator("#model option")).not_to_have_count(0)
    one.ask("And 6 times 8?")
    expect(page.locator(".wrong")).to_have_count(0)
    assert one.bodies()[0]["messages"][1]["reasoning_content"] == "Six times seven: **42**", one.bodies()
    one.close()


def calls_are_shown_and_those_without_a_tool_are_not_made(browser):
    one = Page(browser)
    page = one.page
    name = "<img src=x onerror=hurt=1>"
    one.script([
        part(tool_calls=[{"index": 0, "id": "c1", "type": "function", "function": {"name": name, "arguments": '{"a":'}}]),
        part(tool_calls=[{"index": 0, "function": {"arguments": ' "<b>"}'}}]), part("tool_calls")])
    one.ask("Call it.")
    call = page.locator(".call")
    expect(call.locator("summary")).to_contain_text(f"Call of {name} was not made")
    call.locator("summary").click()
    expect(call.locator("pre")).to_have_text('{\n  "a": "<b>"\n}')
    assert page.locator("img, .call b").count() == 0 and page.evaluate("window.hurt") is None
    assert "tools" not in one.bodies()[0]
    # The model is told, by the real server.
    one.ask("And now?")
    expect(page.locator(".wrong")).to_have_count(0)
    told = one.bodies()[1]["messages"]
    assert [each["role"] for each in told] == ["user", "assistant", "tool", "user"] and told[2]["tool_call_id"] == "c1", told
    one.close()


def calls_are_made_after_consent_and_results_go_back(browser):
    one = Page(browser, viewport={"width": 1200, "height": 760})
    page = one.page
    made = []

    def call(route):
        made.append(route.request.post_data_json)
        route.fulfill(json={"text": f"result <b>{len(made)}</b>", "is_error": False})

    page.route("**/mcp/tools", lambda route: route.fulfill(json={"tools": [TOOL]}))
    page.route("**/mcp/call", call)
    page.reload()
    page.keyboard.press("Alt+s")
    expect(page.locator("#tool-list")).to_contain_text("clock: time Tells the time")
    page.locator("#has-tools").check()
    page.locator("#settings").get_by_role("button", name="Done").click()

    def wants(number, zone="x"):
        function = {"name": "time", "arguments": json.dumps({"zone": zone})}
        return [part(tool_calls=[{"index": 0, "id": f"c{number}", "type": "function", "function": function}]), part("tool_calls")]

    one.script(wants(1), wants(2), wants(3), [part(content="Done."), part("stop")])
    page.fill("#prompt", "What time is it?")
    page.press("#prompt", "Enter")
    question = page.locator(".consent")
    expect(question).to_contain_text("Let the server clock do this?")
    expect(page.locator(".call pre").first).to_have_text('{\n  "zone": "x"\n}')
    assert not made
    one.picture("consent")
    question.get_by_role("button", name="Decline").click()
    expect(page.locator(".call")).to_have_count(2)
    assert not made
    question.get_by_role("button", name="Always allow this tool").click()
    one.complete()
    expect(page.locator(".message.assistant .body").last).to_have_text("Done.")
    assert made == [{"name": "time", "arguments": {"zone": "x"}}] * 2, made
    bodies = one.bodies()
    assert bodies[0]["tools"] == [{"type": "function", "function": {key: TOOL[key] for key in ("name", "description", "parameters")}}]
    results = [each["content"] for each in bodies[3]["messages"] if each["role"] == "tool"]
    assert results == ["error: the user declined this call", "result <b>1</b>", "result <b>2</b>"], results
    expect(page.locator(".call summary").first).to_have_text("Call of time was declined")
    page.locator(".call summary").nth(1).click()
    expect(page.locator(".call").nth(1)).to_contain_text("result <b>1</b>")
    one.picture("calls")
    # Another conversation asks again.
    page.get_by_role("button", name="New chat", exact=True).click()
    one.script(wants(3))
    page.fill("#prompt", "And here?")
    page.press("#prompt", "Enter")
    expect(question).to_be_visible()
    page.keyboard.press("Escape")
    one.complete()
    # A closed page forgets what it waited for, and a call that is stopped is not made.
    one.script(wants(4, "y"))
    page.reload()
    one.script(wants(4, "y"))
    expect(page.locator("#tool-list code")).to_have_count(1)
    page.fill("#prompt", "Again")
    page.press("#prompt", "Enter")
    expect(question).to_be_visible()
    page.keyboard.press("Escape")
    one.complete()
    expect(question).to_have_count(0)
    assert len(made) == 2
    one.close()


def a_cut_answer_is_said_and_continued(browser):
    one = Page(browser)
    page = one.page
    page.evaluate("localStorage.setItem('triad.settings', JSON.stringify({sampling: {temperature: 0, max_tokens: 5}}))")
    page.reload()
    expect(page.locator("#model option")).not_to_have_count(0)
    one.ask("What is the capital of France?")
    expect(page.locator(".note")).to_contain_text("Cut off: there were no tokens left.")
    expect(page.locator("#status")).to_have_text("The answer is cut off.")
    body = page.locator(".message.assistant .body")
    first = body.inner_text()
    page.get_by_role("button", name="Continue").click()
    one.complete()
    expect(page.locator(".message")).to_have_count(2)
    whole = body.inner_text()
    assert whole.startswith(first) and len(whole) > len(first), [first, whole]
    assert one.bodies()[1]["continue_final_message"] is True
    # The figures are of the whole answer.
    expect(page.locator(".figures")).to_have_text(re.compile(r"^([6-9]|10) tokens"))
    one.close()


def text_files_are_attached_shown_and_bounded(browser):
    one = Page(browser, viewport={"width": 1200, "height": 760})
    page = one.page
    name = '<img src=x onerror="hurt=1">.md'
    text = "Fences: ```` and <b>\nend"

    def give(*files):
        given = [{"name": each, "mimeType": kind, "buffer": content} for each, kind, content in files]
        page.set_input_files("#file-file", files=given)

    items, status = page.locator("#files li"), page.locator("#status")
    give((name, "text/markdown", text.encode()), ("b.py", "", b"print(1)\r\n"))
    expect(items).to_have_count(2)
    give(("large.txt", "text/plain", b"a" * (256 * 1024 + 1)))
    expect(status).to_have_text("large.txt is too large: at most 256 KiB.")
    for content in [b"\xff\xfe", b"a\0b"]:
        give(("c.bin", "application/octet-stream", content))
        expect(status).to_have_text("c.bin is no text in UTF-8.")
    expect(items).to_have_count(2)
    items.last.get_by_text("b.py").click()
    expect(items.last.locator("pre")).to_have_text("print(1)\n")
    for kind, data in [("drop", "dataTransfer"), ("paste", "clipboardData")]:
        page.evaluate("""([kind, data]) => {
            const transfer = new DataTransfer();
            transfer.items.add(new File(['by ' + kind], kind + '.txt', { type: 'text/plain' }));
            const event = kind === 'drop' ? new DragEvent(kind, { dataTransfer: transfer, bubbles: true, cancelable: true })
                : new ClipboardEvent(kind, { clipboardData: transfer, bubbles: true, cancelable: true });
            document.getElementById('prompt').dispatchEvent(event);
        }""", [kind, data])
        expect(items.last).to_contain_text(f"{kind}.txt")
    expect(items).to_have_count(4)
    one.picture("files")
    page.get_by_role("button", name="Remove drop.txt").click()
    page.get_by_role("button", name="Remove paste.txt").click()
    one.ask("What is this?")
    expect(items).to_have_count(0)
    sent = one.bodies()[0]["messages"][0]["content"]
    assert sent == f"{name}\n`````\n{text}\n`````\n\nb.py\n```\nprint(1)\n```\n\nWhat is this?", sent
    expect(page.locator(".message.user .file")).to_have_count(2)
    page.locator(".message.user .file summary").first.click()
    expect(page.locator(".message.user .file pre").first).to_have_text(text)
    assert page.locator("img, .file b").count() == 0 and page.evaluate("window.hurt") is None
    # A file is a message.
    page.get_by_role("button", name="New chat", exact=True).click()
    give(("alone.txt", "text/plain", b"Hello"))
    expect(items).to_have_count(1)
    one.ask("")
    assert one.bodies()[1]["messages"][0]["content"] == "alone.txt\n```\nHello\n```\n\n", one.bodies()
    expect(page.locator("#conversations .open").first).to_have_text("alone.txt")
    give(*((f"{number}.txt", "text/plain", b"a" * 200_000) for number in range(6)))
    expect(status).to_have_text("5.txt does not fit: at most 16 files of 1024 KiB together.")
    expect(items).to_have_count(5)
    one.close()


def a_missing_key_is_asked_for(browser):
    one = Page(browser)
    page = one.page
    keys = []

    def models(route):
        keys.append(route.request.headers.get("authorization"))
        if keys[-1] == "Bearer secret":
            route.continue_()
        else:
            route.fulfill(status=401, json={"error": {"message": "expected a key"}})

    page.route("**/v1/models", models)
    page.reload()
    expect(page.locator("#settings")).to_be_visible()
    expect(page.locator("#key")).to_be_focused()
    page.keyboard.type("secret")
    page.keyboard.press("Enter")
    expect(page.locator("#settings")).to_be_hidden()
    expect(page.locator("#model option")).not_to_have_count(0)
    assert keys == [None, "Bearer secret"], keys
    # Chromium notes the response.
    one.problems = [each for each in one.problems if "401" not in each]
    one.close()
