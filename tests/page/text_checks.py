"""The page's Markdown and LaTeX, and many conversations."""

import json

from playwright.sync_api import expect

from driving import Page

FORMS = r"""One line
and the next, with $e^{i\pi} + 1 = 0$, \(a_1 * b_1 * c\) and a price of $5 or $6.

| left | middle | right |
| :--- | :---: | ---: |
| 1 | 2 | 3 |

- [x] written
- [ ] read

The root is
$$
x = \frac{-b \pm \sqrt{b^2 - 4ac}}{2a}
$$
and
\[ \begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix} \]

```python
print("$not a formula$")
```
"""
# Formulas that do harm where they may, and how many of them are MathML.
HOSTILE = [
    r"\href{javascript:window.hurt=1}{a}", r"\url{javascript:window.hurt=1}", r"\includegraphics{https://example.org/a.png}",
    r"\class{wrong}{a}", r"\style{position:fixed;inset:0}{a}", r"\label{prompt} a", r"\text{<img src=x onerror=window.hurt=1>}",
    r"\def\a{\a\a}\a", r"\def\a#1{#1#1}\a{\a{\a{\a{\a{\a{\a{\a{\a{\a{\a{\a{\a{\a{x}}}}}}}}}}}}}}", r"\rule{9999em}{9999em}", "{" * 1900, r"\frac" * 400,
]


def markdown_has_breaks_alignment_tasks_and_formulas(browser):
    one = Page(browser, viewport={"width": 1200, "height": 900})
    page = one.page
    one.open({"role": "user", "content": "Forms"}, {"role": "assistant", "content": FORMS, "model": "test"})
    body = page.locator(".message.assistant .body")
    expect(body.locator("p").first.locator("br")).to_have_count(1)
    expect(body.locator("math")).to_have_count(4)
    expect(body.locator("div.formula math")).to_have_count(2)
    expect(body.locator("p").first).to_contain_text("a price of $5 or $6.")
    for column, side in enumerate(["left", "center", "right"]):
        expect(body.locator("td").nth(column)).to_have_css("text-align", side)
    boxes = body.get_by_role("checkbox")
    expect(boxes).to_have_count(2)
    expect(boxes.first).to_be_checked()
    expect(boxes.last).not_to_be_checked()
    expect(body.locator("pre math")).to_have_count(0)
    assert page.evaluate("document.querySelector('math').getBoundingClientRect().height") > 5
    one.picture("forms")
    page.emulate_media(color_scheme="dark")
    one.picture("forms-dark")
    one.close()


def formulas_do_no_harm(browser):
    one = Page(browser)
    page = one.page
    text = "\n\n".join(f"${formula}$" for formula in HOSTILE)
    one.open({"role": "user", "content": "Formulas"}, {"role": "assistant", "content": f"$x$\n\n{text}", "model": "test"})
    body = page.locator(".message.assistant .body")
    expect(body.locator("math").first).to_be_visible()
    for selector in ["a", "[href]", "img", "[src]", "[id]", ".wrong", "[style*=position]"]:
        assert body.locator(selector).count() == 0, body.locator(selector).first.evaluate("one => one.outerHTML")
    assert page.evaluate("window.hurt") is None
    largest = body.locator("math").evaluate_all("all => Math.max(...all.map((one) => one.getBoundingClientRect().height))")
    assert largest < 500, largest
    expect(page.locator("#prompt")).to_be_focused()
    one.close()


def conversations_are_searched_and_saved_one_by_one(browser):
    one = Page(browser)
    page = one.page
    named = [("Cats", "They purr."), ("Dogs", "They bark at cats."), ("Fish", "Silent ÄPFEL")]
    all_of_them = [{"id": title, "title": title, "system": "", "messages": [{"role": "user", "content": text}]} for title, text in named]
    page.evaluate("text => localStorage.setItem('triad.conversations', text)", json.dumps(all_of_them))
    page.reload()
    titles = page.locator("#conversations .open")
    expect(titles).to_have_count(3)
    page.keyboard.press("Alt+f")
    for words, found in [("cats", ["Cats", "Dogs"]), ("CATS bark", ["Dogs"]), ("äpfel", ["Fish"]), ("none", [])]:
        page.fill("#search", words)
        expect(titles).to_have_text(found)
    expect(page.locator("#status")).to_have_text("0 conversations found.")
    page.keyboard.press("Escape")
    expect(titles).to_have_count(3)
    with page.expect_download() as download:
        page.get_by_role("button", name="Save Dogs as a file").click()
    saved = json.loads(download.value.path().read_text())
    assert [each["title"] for each in saved["conversations"]] == ["Dogs"], saved
    one.close()


def files_of_others_open_with_what_is_right_in_them(browser):
    one = Page(browser)
    page = one.page
    answer = {"role": "assistant", "content": "a", "usage": {"completion_tokens": "<b>"}, "timings": {"predicted_per_second": "x"},
              "calls": "no", "reasoning": 5, "seconds": "9", "files": [{"name": 1}], "error": {}}
    wrong = {"triad": 1, "conversations": [
        {"title": "Kept", "hasTools": True, "sampling": {"temperature": "hot", "top_p": 0.5, "else": 1}, "messages": [{"role": "user", "content": "q"}, answer]},
        {"title": "Dropped", "messages": [{"role": "system", "content": "q"}]}, {"title": 5, "messages": []}, None]}
    page.set_input_files("#import-file", files=[{"name": "c.json", "mimeType": "application/json", "buffer": json.dumps(wrong).encode()}])
    expect(page.locator("#status")).to_have_text("1 conversation added.")
    expect(page.locator(".message.assistant .body")).to_have_text("a")
    kept = page.evaluate("JSON.parse(localStorage['triad.conversations'])[0]")
    assert kept["messages"][1] == {"role": "assistant", "content": "a"} and kept["sampling"] == {"top_p": 0.5}, kept
    assert "hasTools" not in kept, "a file of others turns tools on"
    one.close()


def settings_belong_to_a_conversation(browser):
    one = Page(browser)
    page = one.page
    scope, done = page.locator("#scope"), page.locator("#settings").get_by_role("button", name="Done")
    page.keyboard.press("Alt+s")
    expect(scope).to_have_text("New conversations")
    page.fill("[data-number=top_p]", "0.9")
    done.click()
    one.ask("First")
    page.keyboard.press("Alt+s")
    expect(scope).to_have_text("This conversation")
    one.picture("settings")
    page.fill("[data-number=top_p]", "0.5")
    page.select_option("#reasoning", "off")
    page.fill("#system", "Be brief.")
    done.click()
    one.ask("Second")
    page.get_by_role("button", name="New chat", exact=True).click()
    one.ask("Third")
    first, second, third = one.bodies()
    assert [body["top_p"] for body in (first, second, third)] == [0.9, 0.5, 0.9]
    assert [body.get("enable_thinking") for body in (first, second, third)] == [None, False, None]
    assert [body["messages"][0]["role"] for body in (first, second, third)] == ["user", "system", "user"]
    one.close()


def models_leave_the_memory_and_come_back(browser):
    one = Page(browser, viewport={"width": 390, "height": 780})
    page = one.page
    page.get_by_role("button", name="Models of the server").click()
    name = page.locator("#model").input_value()
    item = page.locator("#model-list li")
    expect(item).to_contain_text(name)
    expect(item).to_contain_text("in memory")
    one.picture("models")
    page.get_by_role("button", name=f"Unload {name}").click()
    expect(item).to_contain_text("not in memory")
    page.get_by_role("button", name=f"Load {name}", exact=True).click()
    expect(page.get_by_role("button", name=f"Unload {name}")).to_be_visible()
    page.keyboard.press("Escape")
    one.ask("Hello")
    expect(page.locator(".wrong")).to_have_count(0)
    one.close()


def a_full_storage_keeps_the_words_of_all_conversations(browser):
    one = Page(browser)
    page = one.page
    files = [{"name": "a.txt", "text": "a" * 1_000_000}]
    said = [{"title": f"{number}", "messages": [{"role": "user", "content": f"Words {number}", "files": files}]} for number in range(8)]
    given = json.dumps({"triad": 1, "conversations": said}).encode()
    page.set_input_files("#import-file", files=[{"name": "c.json", "mimeType": "application/json", "buffer": given}])
    expect(page.locator("#status")).to_contain_text("no room left")
    page.reload()
    expect(page.locator("#conversations .open")).to_have_count(8)
    kept = page.evaluate("JSON.parse(localStorage['triad.conversations']).map(({ messages: [{ content, files }] }) => [content, files[0].text.length])")
    assert [words for words, _ in kept] == [f"Words {number}" for number in range(8)], kept
    assert kept[0][1] == 1_000_000 and kept[7][1] == 0, kept
    one.close()
