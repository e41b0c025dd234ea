"""Models that are downloaded and deleted on the page: by a server that allows it, and not by another."""

import re

from playwright.sync_api import expect

from driving import KEY, PULLS, Page, hub
from languages_checks import MARKED, UNMARKED

MODEL = "hf:here/tiny:tiny.gguf"


def opened(browser, **options):
    """The page of a server that allows downloads, with the dialog of models open."""
    one = Page(browser, url=PULLS, key=KEY, **options)
    one.page.locator("#models-open").click()
    expect(one.page.locator("#pull-name")).to_be_visible()
    return one


def download(page, name):
    page.fill("#pull-name", name)
    page.press("#pull-name", "Enter")


def models_are_downloaded_used_and_deleted(browser):
    with hub() as source:
        one = opened(browser, viewport={"width": 1200, "height": 760})
        page = one.page
        items, status, bar = page.locator("#model-list li"), page.locator("#model-status"), page.locator("#pull-bar")
        expect(items).to_have_count(1)
        expect(items).to_contain_text(re.compile(r"qwen2 · .* · gguf · \d+ kB"))
        # The model that the server was started with stays.
        expect(items.get_by_role("button", name=re.compile("^Delete"))).to_have_count(0)
        source.go.clear()
        download(page, MODEL)
        expect(page.locator("#pull-text")).to_have_text("tiny.gguf: 84 kB of 168 kB")
        assert 0.4 < bar.evaluate("one => one.value") < 0.6
        expect(page.get_by_role("progressbar", name="Progress of the download")).to_be_visible()
        expect(status).to_have_text(f"{MODEL} is being downloaded.")
        expect(page.locator("#pull")).to_be_hidden()
        expect(page.locator("#pull-cancel")).to_be_focused()
        one.picture("download")
        # It goes on while the dialog is closed.
        page.keyboard.press("Escape")
        page.locator("#models-open").click()
        expect(bar).to_be_visible()
        page.locator("#pull-cancel").focus()
        page.keyboard.press("Enter")
        expect(status).to_have_text(f"The download of {MODEL} was cancelled. The next one continues it.")
        expect(page.locator("#pull-name")).to_be_focused()
        expect(page.locator("#pull-name")).to_have_value(MODEL)
        expect(items).to_have_count(1)
        page.locator("#pull").get_by_role("button", name="Download").click()
        expect(page.locator("#pull-text")).to_have_text("tiny.gguf: 84 kB of 168 kB")
        assert source.begins[0] == 0 and source.begins[-1] > 0, source.begins
        source.go.set()
        expect(status).to_have_text(f"{MODEL} is there.")
        expect(items).to_have_count(2)
        expect(items.last).to_contain_text("not in memory")
        one.picture("downloaded")
        page.keyboard.press("Escape")
        page.select_option("#model", MODEL)
        one.ask("abc")
        expect(page.locator(".wrong")).to_have_count(0)
        page.locator("#models-open").click()
        expect(items.last).to_contain_text("in memory")
        with page.expect_event("dialog") as asked:
            page.get_by_role("button", name=f"Delete {MODEL}").click()
        assert asked.value.message == f"Delete {MODEL} (168 kB) from the server’s machine?", asked.value.message
        expect(items).to_have_count(1)
        expect(page.locator("#model option")).to_have_count(1)
        page.keyboard.press("Escape")
        one.close()


def a_download_that_fails_says_why_in_a_sentence(browser):
    with hub():
        one = opened(browser, viewport={"width": 390, "height": 780}, color_scheme="dark")
        page = one.page
        status = page.locator("#model-status")
        download(page, "hf:here/none")
        expect(status).to_contain_text("there is no model here/none")
        download(page, "/etc/passwd")
        expect(status).to_contain_text("expected hf:owner/name")
        # The browser notes the status of what is refused before a download begins.
        assert all("404" in each for each in one.problems), one.problems
        one.problems.clear()
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        one.picture("download-failed-dark-phone")
        one.close()


def a_download_has_no_text_outside_of_the_tables(browser):
    with hub() as source:
        one = opened(browser)
        page = one.page
        page.evaluate(MARKED)
        page.keyboard.press("Escape")
        page.locator("#new").click()
        page.locator("#models-open").click()
        expect(page.locator("#model-list li")).to_have_count(1)
        source.go.clear()
        download(page, MODEL)
        expect(page.locator("#pull-text")).to_contain_text("⟦tiny.gguf: ")
        assert not (unmarked := page.evaluate(UNMARKED)), unmarked
        page.locator("#pull-cancel").click()
        expect(page.locator("#model-status")).to_contain_text("was cancelled")
        assert not (unmarked := page.evaluate(UNMARKED)), unmarked
        one.close()


def without_a_key_or_without_leave_there_is_no_download(browser):
    one = Page(browser)
    page = one.page
    page.locator("#models-open").click()
    expect(page.locator("#model-list li")).to_have_count(1)
    expect(page.locator("#models-note")).to_contain_text("--allow-pull")
    expect(page.locator("#pull")).to_be_hidden()
    expect(page.get_by_role("button", name=re.compile("^Delete"))).to_have_count(0)
    one.close()
    one = Page(browser, url=PULLS, key="wrong", has_models=False)
    page = one.page
    # It asks for the key first.
    expect(page.locator("#key")).to_be_focused()
    expect(page.locator("#status")).to_contain_text("key")
    expect(page.locator("#model option")).to_have_count(0)
    one.problems.clear()
    one.close()
