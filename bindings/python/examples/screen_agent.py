"""An agent that reads a phone's screen and acts: for each screen, the model chooses to tap, type or scroll.

    python screen_agent.py --model MODEL [--screens FILE.jsonl] [--count 20] [--draw FOLDER]

Each screen is given twice: as text, one line per element, and as a drawn picture with the numbers of the elements, if
the model reads pictures. The action is JSON by a schema. The times are those of the parts of a step: `decode` reads and
resizes the picture and renders the prompt, `encode` is the vision encoder, `prefill` and `answer` the text model.

FILE has one JSON object per line: `state`, a text, or `elements`, a list, with elements such as
`<button id=3>Save</button>`; and perhaps a `task`. Without --screens, those of screens.json are used.
Needs Pillow."""

import argparse
import html
import json
import re
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import triad
from PIL import Image, ImageDraw, ImageFont

SIZE = (540, 1200)
ELEMENT = re.compile(r"<(\w+) id=(\d+)([^>]*)>(.*?)</\1>|<(input) id=(\d+)([^>]*)/?>", re.DOTALL)
LABEL = re.compile(r"text='([^']*)'")
INSTRUCTION = (
    "You operate a phone. Task: {task}\n{screen}"
    "Answer with one action as JSON: tap an element, type a text into one, or scroll."
)


class Element(NamedTuple):
    """An element of a screen."""

    kind: str
    number: int
    text: str
    checked: bool


class Step(NamedTuple):
    """The seconds of one screen in one form, and the action."""

    screen: int
    form: str
    decode: float
    encode: float
    prefill: float
    answer: float
    tokens: int
    action: dict[str, Any] | None


def elements_of(screen: dict[str, Any]) -> list[Element]:
    """Returns the elements of a screen that show something."""
    state = screen.get("state") or "\n".join(screen["elements"])
    found = []
    for match in ELEMENT.finditer(state):
        kind, number, attributes, inner = (match[1], match[2], match[3], match[4])
        if kind is None:
            kind, number, attributes, inner = match[5], match[6], match[7], ""
        label = LABEL.search(attributes)
        text = re.sub(r"<[^>]*>", " ", inner) or (label[1] if label else "")
        text = " ".join(html.unescape(text).split())
        if text or kind == "input":
            found.append(Element(kind, int(number), text, "checked=True" in attributes))
    return found


def draw(elements: list[Element]) -> Image.Image:
    """Draws a screen: one row per element, with its number."""
    image = Image.new("RGB", SIZE, "white")
    canvas = ImageDraw.Draw(image)
    row = max(16, min(72, SIZE[1] // max(len(elements), 1)))
    font = ImageFont.load_default(size=max(10, min(22, row * 2 // 5)))
    for place, element in enumerate(elements):
        top = place * row
        box = (48, top + 3, SIZE[0] - 8, top + row - 3)
        middle = top + row // 2
        canvas.text((6, middle), str(element.number), "#d00000", font, anchor="lm")
        if element.kind == "button":
            canvas.rounded_rectangle(box, 8, "#dde6f5", "#8090b0")
        elif element.kind == "input":
            canvas.rectangle(box, "white", "#404040")
        elif element.kind == "checkbox":
            side = min(20, row - 8)
            square = (SIZE[0] - 40, middle - side // 2, SIZE[0] - 40 + side, middle + side // 2)
            canvas.rectangle(square, "#2050c0" if element.checked else "white", "#2050c0", 2)
        canvas.text((58, middle), element.text[:44], "black", font, anchor="lm")
    return image


def schema(elements: list[Element]) -> dict[str, Any]:
    """Returns the schema of the actions on a screen."""
    numbers = {"enum": [element.number for element in elements]}

    def action(name: str, **fields: Any) -> dict[str, Any]:
        properties = {"action": {"const": name}, **fields}
        return {
            "type": "object",
            "properties": properties,
            "required": list(properties),
            "additionalProperties": False,
        }

    text = {"type": "string", "maxLength": 40}
    direction = {"enum": ["up", "down"]}
    return {
        "anyOf": [
            action("tap", element=numbers),
            action("type", element=numbers, text=text),
            action("scroll", direction=direction),
        ]
    }


def ask(model: triad.Model, content: Any, elements: list[Element]) -> tuple[triad.Answer, float]:
    """Returns the answer, and the seconds before its computation began."""
    start = time.perf_counter()
    messages = [{"role": "user", "content": content}]
    stream = model.chat_stream(messages, schema=schema(elements), temperature=0, max_tokens=256)
    begun = time.perf_counter() - start
    return stream.answer, begun


def step(model: triad.Model, number: int, screen: dict[str, Any], form: str) -> Step:
    """Asks for the action on a screen."""
    elements = elements_of(screen)
    task = screen.get("task", "Open the settings")
    lines = [f"{element.number}: {element.kind} {element.text}" for element in elements]
    content: Any = INSTRUCTION.format(task=task, screen="The screen:\n" + "\n".join(lines) + "\n")
    if form == "picture":
        text = INSTRUCTION.format(task=task, screen="")
        content = [{"type": "image", "image": draw(elements)}, {"type": "text", "text": text}]
    answer, decode = ask(model, content, elements)
    try:
        action = json.loads(answer.text)
    except json.JSONDecodeError:
        action = None
    return Step(
        number,
        form,
        decode,
        answer.encode_seconds,
        answer.prefill_seconds,
        answer.decode_seconds,
        answer.prompt_tokens,
        action,
    )


def screens_of(path: Path, count: int) -> list[dict[str, Any]]:
    """Returns screens with at least one element."""
    text = path.read_text()
    rows = json.loads(text) if path.suffix == ".json" else map(json.loads, text.splitlines())
    return [row for row in rows if elements_of(row)][:count]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--screens", type=Path, default=Path(__file__).with_name("screens.json"))
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--forms", nargs="+", choices=["text", "picture"], default=["text", "picture"])
    parser.add_argument("--float", action="store_true", help="run the model as it is stored")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--context", type=int)
    parser.add_argument("--draw", type=Path, help="folder for the drawn screens")
    options = parser.parse_args()
    screens = screens_of(options.screens, options.count)
    if options.draw:
        options.draw.mkdir(parents=True, exist_ok=True)
        for number, screen in enumerate(screens):
            draw(elements_of(screen)).save(options.draw / f"{number}.png")
    model = triad.Model(
        options.model,
        float=options.float,
        threads=options.threads,
        context=options.context,
        progress=lambda text: print(text, file=sys.stderr),
    )
    steps = []
    for number, screen in enumerate(screens):
        for form in options.forms:
            steps.append(step(model, number, screen, form))
            print(json.dumps(steps[-1]._asdict()), flush=True)
    for form in options.forms:
        of_form = [one for one in steps if one.form == form]
        means = {
            part: 1000 * sum(getattr(one, part) for one in of_form) / max(len(of_form), 1)
            for part in ("decode", "encode", "prefill", "answer")
        }
        parts = ", ".join(f"{part} {mean:.1f} ms" for part, mean in means.items())
        parsed = sum(one.action is not None for one in of_form)
        print(f"{form}: {parsed} of {len(of_form)} actions parse; means: {parts}", file=sys.stderr)
    return 0 if all(one.action is not None for one in steps) else 1


if __name__ == "__main__":
    sys.exit(main())
