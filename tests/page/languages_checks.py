"""The languages of the page: the same texts in each, and no text that is in no table."""

import re
from pathlib import Path

from playwright.sync_api import expect

from driving import Page, part

FILES = Path(__file__).resolve().parents[2] / "crates" / "server" / "page"
# Each text in the tables of a test is within these.
MARKED = """async () => {
    const { tables, use } = await import('/text.js');
    const marked = (text) => typeof text === 'string' ? `⟦${text}⟧` : Object.fromEntries(Object.entries(text).map(([form, one]) => [form, marked(one)]));
    use('en', Object.fromEntries(Object.entries(tables.en).map(([key, text]) => [key, marked(text)])));
}"""
# Texts that a reader sees or hears in no mark. Names, keys, signs, numbers and what people and models wrote are the same
# in all languages.
UNMARKED = """() => {
    const own = 'noscript, script, style, kbd, .brand, svg, .markdown, pre, .message.user .body, #model, #conversations .open, #language, #model-list strong, #model-list .facts, .call code, .file, #tool-list, .message.assistant > h2';
    const found = [];
    const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    for (let node = walk.nextNode(); node; node = walk.nextNode()) {
        const isOwn = node.parentElement.closest(own);
        if (!isOwn && /\\p{L}{2}/u.test(node.textContent.replace(/⟦[^]*⟧/, ''))) found.push(node.textContent);
    }
    for (const name of ['aria-label', 'title', 'placeholder', 'alt']) {
        for (const one of document.querySelectorAll(`body [${name}]`)) {
            if (!one.closest('#conversations .open') && /\\p{L}{2}/u.test(one.getAttribute(name).replace(/⟦[^]*⟧/, ''))) found.push(`${name}: ${one.getAttribute(name)}`);
        }
    }
    return found;
}"""


def languages_have_the_same_texts_with_the_same_places(browser):
    one = Page(browser)
    tables = one.page.evaluate("import('/text.js').then(({ tables }) => tables)")
    assert list(tables) == ["en", "de", "es", "zh"], list(tables)

    def places(text):
        texts = text.values() if isinstance(text, dict) else [text]
        return {name for each in texts for name in re.findall(r"\{(\w+)\}", each)}

    for language, table in tables.items():
        assert table.keys() == tables["en"].keys(), f"{language}: {table.keys() ^ tables['en'].keys()}"
        for key, text in table.items():
            assert text and places(text) == places(tables["en"][key]), f"{language}: {key}"
            assert not isinstance(text, dict) or "other" in text, f"{language}: {key}"
    named = set(re.findall(r'data-(?:text|label|title|placeholder)="(\w+)"', (FILES / "index.html").read_text()))
    scripts = "\n".join(file.read_text() for file in FILES.glob("*.js") if not file.name.startswith("text-"))
    literals = set(re.findall(r"'(\w+)'", scripts))
    assert named <= tables["en"].keys(), named - tables["en"].keys()
    assert set(re.findall(r"\bt\('(\w+)'", scripts)) <= tables["en"].keys()
    unused = {key for key in tables["en"].keys() - named - literals if not key.startswith("reasoning_")} - {"languageName"}
    assert not unused, f"texts that nothing shows: {unused}"
    one.close()


def no_text_is_outside_of_the_tables(browser):
    one = Page(browser)
    page = one.page
    tool = {"index": 0, "id": "c", "function": {"name": "f", "arguments": "{}"}}
    one.script([part(reasoning_content="Hm."), part(content="- [x] a\n\n```\ncode\n```\n$x$"), part(tool_calls=[tool]), part("length")])
    page.evaluate(MARKED)
    page.get_by_role("button", name="New chat").click()
    page.set_input_files("#file-file", files=[{"name": "a.txt", "mimeType": "text/plain", "buffer": b"a"}])
    expect(page.locator("#files li")).to_have_count(1)
    assert not (unmarked := page.evaluate(UNMARKED)), unmarked
    one.ask("Go")
    page.set_input_files("#file-file", files=[{"name": "b.txt", "mimeType": "text/plain", "buffer": b"a"}])
    page.keyboard.press("Alt+s")
    assert not (unmarked := page.evaluate(UNMARKED)), unmarked
    expect(page.locator("#scope")).to_have_text("⟦This conversation⟧")
    page.keyboard.press("Escape")
    page.locator("#models-open").click()
    expect(page.locator("#model-list li")).to_have_count(1)
    expect(page.locator("#model-status")).to_be_empty()
    assert not (unmarked := page.evaluate(UNMARKED)), unmarked
    page.keyboard.press("Escape")
    page.locator(".message.user").get_by_role("button", name="Edit").click()
    assert not (unmarked := page.evaluate(UNMARKED)), unmarked
    page.keyboard.press("Escape")
    one.ask("And now?")
    page.locator(".message.assistant").last.get_by_role("button", name="Timeline").click()
    expect(page.locator("#timeline-text")).to_contain_text("busy")
    summary = page.locator("#timeline-text").inner_text()
    # Names of processors are the same in all languages.
    assert re.search(r"⟦Scroll", summary), summary
    page.keyboard.press("Escape")
    one.close()


def the_language_is_the_browsers_or_the_chosen_one(browser):
    for locale, language, new in [("de-AT", "de", "Neuer Chat"), ("es-MX", "es", "Nuevo chat"), ("zh-CN", "zh-Hans", "新对话"),
                                  ("fr-FR", "en", "New chat"), ("en-GB", "en", "New chat")]:
        one = Page(browser, locale=locale, viewport={"width": 390, "height": 780})
        page = one.page
        expect(page.locator("#new")).to_have_text(new)
        assert page.evaluate("document.documentElement.lang") == language
        page.locator("#settings-open").click()
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, language
        one.picture(f"settings-{language}")
        if locale == "fr-FR":
            page.select_option("#language", "de")
            expect(page.locator("#settings-title")).to_have_text("Einstellungen")
            page.keyboard.press("Escape")
            page.reload()
            expect(page.locator("#new")).to_have_text("Neuer Chat")
        one.close()
