"""The essentials of the page, in Firefox and WebKitGTK: it has its styles, an answer comes as it is computed, a
formula has its form, and a model is downloaded and deleted. Called by `run`."""

import json
import os
import sys
import time

from drivers import PATIENCE, Firefox, WebKit, until
from hub import Hub

URL, PULLS = sys.argv[1:]
SETTINGS = {"sampling": {"temperature": 0, "max_tokens": 100}}
STATE = """return {
    isRunning: !document.getElementById('stop').hidden,
    answer: document.querySelector('.message.assistant .body')?.textContent ?? '',
    isComplete: document.querySelector('.message.assistant .tools') !== null,
    wrong: document.querySelector('.wrong')?.textContent ?? null,
}"""


def has_its_styles(browser):
    style = browser.run("""const style = getComputedStyle(document.body);
        return [style.display, style.gridTemplateColumns.split(' ')[0], document.styleSheets.length]""")
    assert style == ["grid", "256px", 1], f"{browser.name} has no styles: {style}"


def streams_an_answer(browser):
    browser.run("""const prompt = document.getElementById('prompt');
        prompt.value = arguments[0];
        prompt.dispatchEvent(new Event('input', { bubbles: true }));
        document.getElementById('send').click()""", "Tell me a long story about a fox.")
    seen, end = [], time.monotonic() + PATIENCE
    while not (state := browser.run(STATE))["isComplete"]:
        assert time.monotonic() < end, f"{browser.name}: {state}"
        if state["isRunning"] and state["answer"] not in seen:
            seen.append(state["answer"])
        time.sleep(0.01)
    assert state["wrong"] is None and state["answer"], f"{browser.name}: {state}"
    grown = [answer for answer in seen if answer]
    assert len(grown) > 1, f"{browser.name} shows an answer when it is whole: {seen}"


FORMULA = [{"id": "x", "title": "Formula", "system": "", "messages": [{"role": "assistant", "content": r"It is $\frac{a}{b}$."}]}]


def shows_a_formula(browser):
    browser.run("localStorage.setItem('triad.conversations', arguments[0])", json.dumps(FORMULA))
    browser.go(browser.url)
    until("a formula", lambda: browser.run("return document.querySelectorAll('math mfrac').length"))
    height, line = browser.run("""const height = (one) => document.querySelector(one).getBoundingClientRect().height;
        return [height('math mfrac'), parseFloat(getComputedStyle(document.querySelector('.markdown')).fontSize)]""")
    assert height > line, f"{browser.name} shows a fraction of {height} pixels in letters of {line}"


MODEL = "hf:here/tiny:tiny.gguf"
MODELS = "return [...document.querySelectorAll('#model-list li')].map((one) => one.textContent)"


def downloads_and_deletes_a_model(browser):
    browser.go(PULLS)
    browser.run("localStorage.setItem('triad.settings', arguments[0])", json.dumps({"key": os.environ["PAGE_KEY"]}))
    browser.go(PULLS)
    browser.run("window.confirm = () => true; document.getElementById('models-open').click()")
    until("the dialog", lambda: len(browser.run(MODELS)) == 1)
    with Hub(int(os.environ["PAGE_HUB"])) as hub:
        hub.go.clear()
        browser.run("document.getElementById('pull-name').value = arguments[0]; document.getElementById('pull').requestSubmit()", MODEL)
        until("half of a file", lambda: 0.4 < browser.run("return document.getElementById('pull-bar').value") < 0.6)
        hub.go.set()
        until("the model", lambda: any(MODEL in each for each in browser.run(MODELS)))
    browser.run("document.querySelector(`[aria-label='Delete ${arguments[0]}']`).click()", MODEL)
    until("the end of the model", lambda: len(browser.run(MODELS)) == 1)


def main():
    for kind in [Firefox, WebKit]:
        with kind() as browser:
            browser.url = URL
            browser.go(URL)
            browser.run("localStorage.setItem('triad.settings', arguments[0])", json.dumps(SETTINGS))
            browser.go(URL)
            has_its_styles(browser)
            until("models", lambda: browser.run("return document.querySelectorAll('#model option').length"))
            streams_an_answer(browser)
            problems = browser.problems()
            assert not problems, f"{browser.name}: {problems}"
            shows_a_formula(browser)
            problems = browser.problems()
            assert not problems, f"{browser.name}: {problems}"
            browser.url = PULLS
            downloads_and_deletes_a_model(browser)
            problems = browser.problems()
            assert not problems, f"{browser.name}: {problems}"
        print(f"styles, an answer, a formula and a download in {kind.name}", flush=True)


main()
