"""Drives the page of a running `triad serve` in Chromium: each thing that it can do. Called by `run`."""

import json
import os
import re
from pathlib import Path

from playwright.sync_api import expect, sync_playwright

import answers_checks
import downloads_checks
import languages_checks
import text_checks
from driving import PICTURES, Page

HOSTILE = """# <img src=x onerror="window.hurt=1">
<script>window.hurt=1</script> **bold** *slanted* `code <b>` [bad](javascript:window.hurt=1) [good](https://example.org/a)

- one
- two
  - inner

1. first
2. second

| a | b |
| --- | --- |
| 1 | <i>2</i> |

> quoted

```rust
fn main() { println!("<b>"); }
```
"""


def chats_stream_and_are_kept(browser):
    one = Page(browser, viewport={"width": 1200, "height": 760})
    page = one.page
    one.ask("What is the capital of France?")
    answer = page.locator(".message.assistant .body")
    expect(answer).not_to_be_empty()
    first = answer.inner_text()
    figures = page.locator(".figures").inner_text()
    assert re.search(r"^\d+ tokens, [\d.]+ tokens/s · prompt of \d+", figures), figures
    one.ask("And of Italy?")
    expect(one.messages()).to_have_count(4)
    assert "cached" in page.locator(".figures").last.inner_text()
    one.picture("light")
    page.reload()
    expect(one.messages()).to_have_count(4)
    assert page.locator(".message.assistant .body").first.inner_text() == first
    # Regenerated greedily it is the same; edited, what follows is gone.
    page.locator(".message.assistant").first.get_by_role("button", name="Regenerate").click()
    one.complete()
    expect(one.messages()).to_have_count(2)
    assert page.locator(".message.assistant .body").inner_text() == first
    page.keyboard.press("Alt+e")
    page.get_by_label("Edit the message").fill("What is the capital of Spain?")
    page.keyboard.press("Enter")
    one.complete()
    expect(one.messages()).to_have_count(2)
    expect(page.locator(".message.user .body")).to_have_text("What is the capital of Spain?")
    page.locator(".message.assistant").get_by_role("button", name="Copy").first.click()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied and copied[:10] in page.evaluate("JSON.parse(localStorage['triad.conversations'])[0].messages[1].content")
    one.close()


def answers_stop(browser):
    one = Page(browser)
    page = one.page
    page.evaluate("localStorage.setItem('triad.settings', JSON.stringify({sampling: {temperature: 0, max_tokens: 4000}}))")
    page.reload()
    page.fill("#prompt", "Write a long story about a fox and a river.")
    page.press("#prompt", "Enter")
    expect(page.locator(".message.assistant .body")).not_to_be_empty()
    page.keyboard.press("Escape")
    one.complete()
    kept = page.evaluate("JSON.parse(localStorage['triad.conversations'])[0].messages[1]")
    assert kept["finish"] == "stopped" and kept["content"], kept
    one.close()


def conversations_are_renamed_deleted_exported_and_imported(browser):
    one = Page(browser)
    page = one.page
    one.ask("Say hello.")
    page.get_by_role("button", name="New chat", exact=True).click()
    expect(one.messages()).to_have_count(0)
    one.ask("Say goodbye.")
    rows = page.locator("#conversations li")
    expect(rows).to_have_count(2)
    page.get_by_role("button", name="Rename Say hello.").click()
    page.get_by_label("Title").fill("Greetings")
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Greetings", exact=True)).to_be_visible()
    with page.expect_download() as download:
        page.click("#export")
    saved = download.value.path()
    page.get_by_role("button", name="Delete Greetings").click()
    expect(rows).to_have_count(1)
    page.set_input_files("#import-file", files=[{"name": "c.json", "mimeType": "application/json", "buffer": Path(saved).read_bytes()}])
    expect(rows).to_have_count(3)
    page.set_input_files("#import-file", files=[{"name": "c.json", "mimeType": "application/json", "buffer": b"{}"}])
    expect(page.locator("#status")).to_contain_text("no conversations of Triad")
    one.close()


def settings_reach_the_server(browser):
    one = Page(browser)
    page = one.page
    page.keyboard.press("Alt+s")
    page.fill("#system", "You answer in French.")
    page.fill("[data-number=max_tokens]", "3")
    page.fill("[data-number=seed]", "7")
    page.locator("#settings").get_by_role("button", name="Done").click()
    with page.expect_request("**/v1/chat/completions") as sent:
        one.ask("Hello")
    body = sent.value.post_data_json
    assert body["messages"][0] == {"role": "system", "content": "You answer in French."}, body
    assert body["max_tokens"] == 3 and body["seed"] == 7 and body["temperature"] == 0, body
    assert body["model"] == page.locator("#model").input_value()
    expect(page.locator(".note")).to_contain_text("Cut off")
    one.close()


def what_a_model_writes_is_never_html(browser):
    one = Page(browser)
    page = one.page
    one.open({"role": "user", "content": "<b>mine</b>"}, {"role": "assistant", "content": HOSTILE, "model": "test"})
    body = page.locator(".message.assistant .body")
    expect(body.locator("h1")).to_have_text('<img src=x onerror="window.hurt=1">')
    for selector, count in {"strong": 1, "em": 1, "p code": 1, "a": 1, "ul": 2, "ol": 1, "table td": 2, "blockquote": 1,
                            "pre code": 1, "img": 0, "script": 0, "i": 0, "b": 0}.items():
        expect(body.locator(selector)).to_have_count(count)
    expect(body.locator("a")).to_have_attribute("href", "https://example.org/a")
    assert page.evaluate("window.hurt") is None
    expect(page.locator(".message.user .body")).to_have_text("<b>mine</b>")
    page.get_by_role("button", name="Copy the code").click()
    assert "println" in page.evaluate("navigator.clipboard.readText()")
    one.picture("markdown")
    one.close()


def markdown_takes_linear_time_whatever_it_is(browser):
    one = Page(browser)
    find = Path(__file__).with_name("linear.js").read_text()
    slow = one.page.evaluate(find, {"module": "/markdown.js", "letters": 125_000})
    assert not slow, f"so many times as long: {slow}"
    one.close()


def the_timeline_zooms(browser):
    one = Page(browser, viewport={"width": 1200, "height": 760})
    page = one.page
    one.ask("How does a computer add two numbers? Tell me about it in a few words, please.")
    page.get_by_role("button", name="Timeline").click()
    tasks = page.locator("#timeline-picture .task")
    expect(tasks.first).to_be_visible()
    expect(page.locator("#timeline-text")).to_contain_text("busy")
    whole = tasks.count()
    assert whole > 10, whole
    one.picture("timeline")
    page.get_by_role("button", name="Zoom in").click()
    page.keyboard.press("+")
    assert tasks.count() < whole
    page.locator("#timeline-picture").hover()
    page.mouse.wheel(0, -300)
    page.keyboard.press("ArrowRight")
    page.get_by_role("button", name="All").click()
    expect(tasks).to_have_count(whole)
    page.keyboard.press("Escape")
    expect(page.locator("#timeline")).to_be_hidden()
    one.close()


def it_is_dark_and_narrow_and_runs_by_keyboard(browser):
    dark = Page(browser, color_scheme="dark", viewport={"width": 1200, "height": 760})
    dark.ask("What is the capital of France?")
    assert dark.page.evaluate("document.documentElement.dataset.theme") == "dark"
    dark.picture("dark")
    dark.page.click("#theme")
    assert dark.page.evaluate("document.documentElement.dataset.theme") == "light"
    dark.close()
    phone = Page(browser, viewport={"width": 390, "height": 780}, has_touch=True, is_mobile=True)
    page = phone.page
    phone.ask("What is the capital of France?")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    phone.picture("phone")
    page.get_by_role("button", name="Timeline").click()
    expect(page.locator("#timeline-picture text").first).to_be_visible()
    # Of the names and the axis: as high as letters elsewhere, and no two on each other.
    letters = page.locator("#timeline-picture text").evaluate_all("all => all.map((one) => one.getBoundingClientRect().toJSON())")
    assert all(box["height"] > 11 for box in letters), letters
    lowest = max(box["bottom"] for box in letters)
    axis = sorted((box for box in letters if box["bottom"] > lowest - 2), key=lambda box: box["left"])
    assert len(axis) > 1 and all(one["right"] <= two["left"] for one, two in zip(axis, axis[1:])), axis
    phone.picture("phone-timeline")
    page.keyboard.press("Escape")
    page.click("#menu")
    expect(page.get_by_role("button", name="New chat", exact=True)).to_be_visible()
    phone.close()
    keyboard = Page(browser)
    page = keyboard.page
    page.locator("body").click(position={"x": 700, "y": 5})
    page.locator("#menu").evaluate("() => document.activeElement.blur()")
    page.keyboard.press("?")
    expect(page.locator("#shortcuts")).to_be_visible()
    page.keyboard.press("Escape")
    for control in page.locator("button:visible, select:visible, textarea:visible, input:visible").all():
        name = control.evaluate("one => one.getAttribute('aria-label') || one.labels?.[0]?.textContent || one.textContent")
        assert name.strip(), control.evaluate("one => one.outerHTML")
    keyboard.close()


def checks():
    """The functions of a browser, in the order in which they are written."""
    for space in (globals(), *(vars(module) for module in (answers_checks, text_checks, languages_checks, downloads_checks))):
        for value in space.values():
            if getattr(value, "__code__", None) and value.__code__.co_varnames[:1] == ("browser",):
                yield value


def main():
    PICTURES.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        # As root a sandbox of its own is refused.
        browser = playwright.chromium.launch(executable_path=os.environ["CHROMIUM"], args=["--no-sandbox"])
        # All, or those whose names contain a word of the environment.
        for check in [check for check in checks() if os.environ.get("CHECKS", "") in check.__name__]:
            check(browser)
            print(check.__name__.replace("_", " "), flush=True)
        browser.close()


main()
