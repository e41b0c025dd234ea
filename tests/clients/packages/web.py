"""Web clients of Ollama's API. Their pages are used in Chromium."""

import contextlib
import functools
import http.server
import json
import os
import shutil
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

ANSWER = "Red, green and blue."
WAIT_SECONDS = 120


@contextlib.contextmanager
def page():
    """An empty page."""
    from playwright.sync_api import sync_playwright

    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium")
    assert chromium, "expected Chromium, or its path in the variable CHROMIUM"
    with sync_playwright() as playwright:
        # As root a sandbox of its own is refused.
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        opened = browser.new_page()
        opened.set_default_timeout(WAIT_SECONDS * 1000)
        try:
            yield opened
        finally:
            browser.close()


def ollama_chat(t):
    """The requests of its page to its own program, which asks the server; then the page."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    address = f"http://127.0.0.1:{port}/"

    def ask(action, **fields):
        """Reads with GET and a query, or writes with a body."""
        body = json.dumps(fields).encode() if action.startswith("start") else None
        query = "" if body or not fields else "?" + urllib.parse.urlencode(fields)
        request = urllib.request.Request(f"{address}{action}{query}", body, {"content-type": "application/json"})
        for _ in range(WAIT_SECONDS * 10):
            try:
                with urllib.request.urlopen(request, timeout=60) as reply:
                    return json.load(reply)
            except ConnectionRefusedError:
                time.sleep(0.1)
            except urllib.error.URLError as error:
                if not isinstance(error.reason, ConnectionRefusedError):
                    raise
                time.sleep(0.1)
        raise AssertionError(f"{action}: not within {WAIT_SECONDS} s")

    program = subprocess.Popen(["ollama-chat", "-n", "-q", "-c", "config.json", "-p", str(port)], env=os.environ | {"OLLAMA_HOST": t.address})
    try:

        @t.tries
        def models():
            names = [model["id"] for model in ask("getModels")["models"]]
            assert t.scripted in " ".join(names), names

        @t.tries
        def stream():
            begun = ask("startConversation", user="Name three colours.", model=t.scripted)["id"]
            for _ in range(WAIT_SECONDS * 10):
                found = ask("getConversation", id=begun)["conversation"]
                if not found["generating"]:
                    break
                time.sleep(0.1)
            t.said(found["exchanges"][-1]["model"], streams=True)

        def in_chromium():
            with page() as opened:
                opened.goto(f"{address}#var.vView='models'")
                opened.get_by_text(t.scripted, exact=True).click()
                # It remembers the model and goes to its first page.
                opened.locator("a[href*=\"vView='chat'\"]").first.click()
                box = opened.get_by_placeholder("Type your message...")
                box.fill("Name three colours.")
                box.press("Enter")
                opened.get_by_text(ANSWER).wait_for()
            t.said(ANSWER, streams=True)

        in_chromium.__name__ = "stream in Chromium"
        t.tries(in_chromium)
    finally:
        program.terminate()
        program.wait()


class Files(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


def ollama_ui(t):
    """Files without a program: the page itself asks the server, which is of another origin."""
    origin = os.environ["ORIGIN"]
    files = functools.partial(Files, directory=os.environ["GIVEN"])
    server = http.server.ThreadingHTTPServer(("127.0.0.1", urllib.parse.urlsplit(origin).port), files)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with page() as opened:
        opened.goto(origin)
        # It first looks where Ollama listens.
        opened.locator("#errorModal.show .btn-close").click()
        opened.locator("#errorModal").wait_for(state="hidden")
        opened.fill("#host-address", t.address)
        opened.press("#host-address", "Tab")
        shown = opened.locator(".response-message")

        def send(text):
            count = shown.count()
            opened.fill("#user-input", text)
            opened.click("#send-button")
            # It shows a button as long as it waits.
            done = """count => !document.querySelector("#input-area .btn-danger")
                && document.querySelectorAll(".response-message")[count]?.innerText.trim()"""
            opened.wait_for_function(done, arg=count)

        @t.tries
        def models():
            opened.select_option("#model-select", t.scripted)
            names = opened.locator("#model-select option").all_inner_texts()
            assert t.model in names, names

        @t.tries
        def stream():
            send("Name three colours.")
            t.said(shown.last.inner_text(), streams=True)

        @t.tries
        def conversation():
            """It sends back what the server gave it to go on from."""
            send("Name them once more.")
            t.said(shown.last.inner_text(), streams=True)
            assert t.recorded()[-1]["asked"].get("context"), t.recorded()[-1]["asked"]
