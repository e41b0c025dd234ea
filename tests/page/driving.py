"""A page of a running `triad serve` in Chromium, as the tests drive it."""

import json
import os
import sys
from pathlib import Path

from playwright.sync_api import expect

from hub import Hub

URL, PICTURES = sys.argv[1], Path(sys.argv[2])
# A server that allows downloads from the hub, with its key.
PULLS, KEY = sys.argv[3], os.environ["PAGE_KEY"]
# Greedy and short, so that answers are the same each time.
SETTINGS = {"sampling": {"temperature": 0, "max_tokens": 24}}
# Answers that a test gives in place of the server, which `window.script` has as lists of events. `hold` waits for
# `window.release()`. The bodies of requests are in `window.bodies`.
SCRIPT = r"""(() => {
    const real = window.fetch;
    const bytes = new TextEncoder();
    Object.assign(window, { script: [], bodies: [], waiting: [], release: () => window.waiting.shift()() });
    window.fetch = (url, options) => {
        if (!String(url).endsWith('v1/chat/completions')) return real(url, options);
        window.bodies.push(JSON.parse(options.body));
        const events = window.script.shift();
        if (!events) return real(url, options);
        const stream = new ReadableStream({ async start(sink) {
            options.signal.addEventListener('abort', () => sink.error(new DOMException('ended', 'AbortError')));
            for (const event of events) {
                if (event === 'hold') await new Promise((resolve) => window.waiting.push(resolve));
                else sink.enqueue(bytes.encode(`data: ${JSON.stringify(event)}\n\n`));
            }
            sink.enqueue(bytes.encode('data: [DONE]\n\n'));
            sink.close();
        } });
        return Promise.resolve(new Response(stream));
    };
})()"""
# An answer on a busy machine.
expect.set_options(timeout=120_000)


def hub():
    return Hub(int(os.environ["PAGE_HUB"]))


def part(finish=None, **delta):
    """An event of a scripted answer."""
    return {"id": "scripted", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


class Page:
    def __init__(self, browser, url=URL, key=None, has_models=True, **options):
        self.url = url
        settings = json.dumps({**SETTINGS, **({"key": key} if key else {})})
        self.context = browser.new_context(permissions=["clipboard-read", "clipboard-write"], **options)
        self.page = self.context.new_page()
        self.problems, self.foreign = [], []
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("console", self.console)
        self.page.on("request", self.request)
        self.page.on("dialog", lambda dialog: dialog.accept())
        self.page.add_init_script(
            f"if (!localStorage.getItem('triad.settings')) localStorage.setItem('triad.settings', {json.dumps(settings)})"
        )
        self.page.add_init_script(SCRIPT)
        self.page.goto(url)
        if has_models:
            expect(self.page.locator("#model option")).not_to_have_count(0)

    def console(self, message):
        if message.type == "error":
            self.problems.append(message.text)

    def request(self, request):
        if not request.url.startswith((self.url, "blob:", "data:")):
            self.foreign.append(request.url)

    def ask(self, text):
        self.page.fill("#prompt", text)
        self.page.press("#prompt", "Enter")
        self.complete()

    def complete(self):
        expect(self.page.locator("#stop")).to_be_hidden()
        expect(self.page.locator(".message.assistant .tools").last).to_be_visible()

    def messages(self):
        return self.page.locator(".message")

    def close(self):
        assert not self.problems, self.problems
        assert not self.foreign, f"requests to other hosts: {self.foreign}"
        self.context.close()

    def picture(self, name):
        self.page.screenshot(path=PICTURES / f"{name}.png")

    def script(self, *answers):
        self.page.evaluate("answers => window.script.push(...answers)", list(answers))

    def release(self):
        self.page.wait_for_function("window.waiting.length > 0")
        self.page.evaluate("window.release()")

    def bodies(self):
        return self.page.evaluate("window.bodies")

    def open(self, *messages, **more):
        """Opens a conversation with these messages."""
        one = {"id": "x", "title": "Opened", "system": "", "messages": messages, **more}
        self.page.evaluate("text => localStorage.setItem('triad.conversations', text)", json.dumps([one]))
        self.page.reload()
        expect(self.page.locator("#model option")).not_to_have_count(0)
