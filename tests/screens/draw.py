#!/usr/bin/env python3
"""Draws screens of a phone from their descriptions as PNG files.

    pip install pillow
    python tests/screens/draw.py SCREENS.jsonl FOLDER [--count N] [--size WIDTHxHEIGHT]

SCREENS.jsonl has one screen a line, as DroidTask describes it:

    {"app": "gallery", "elements": ["<div id=4>Settings</div>", "<button id=9 class=\\"label\\">Customize colors</button>", ...]}

Elements with a text become rows of a list in their order: a bar with the first text, buttons as cards with an icon, inputs as
fields with a line, others as plain text. Screens are chosen evenly from the file, without repeated ones, and drawn in light and
dark colors in turn. The same input gives the same pixels with the same Pillow.

The pictures calibrate encoders (`triad prepare --calibrate-images`, `triad-lab study encoder`).
"""

import argparse
import html
import json
import re
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

ELEMENT = re.compile(r"<(?P<tag>\w+)[^>]*?(?:alt=\"(?P<alt>[^\"]*)\")?[^>]*>(?P<text>.*?)</(?P=tag)>", re.DOTALL)
LIGHT = {"back": (250, 250, 252), "bar": (63, 81, 181), "card": (255, 255, 255), "line": (208, 208, 214), "text": (33, 33, 38)}
DARK = {"back": (18, 18, 20), "bar": (40, 44, 72), "card": (36, 36, 40), "line": (80, 80, 88), "text": (230, 230, 235)}
ICONS = [(229, 57, 53), (67, 160, 71), (30, 136, 229), (251, 140, 0), (142, 36, 170)]


def texts(screen):
    """Returns tag and text of each element that has a text, or a description in place of it."""
    found = []
    for element in screen["elements"]:
        match = ELEMENT.match(element)
        if not match:
            continue
        text = re.sub(r"<[^>]*>", " ", match["text"]).strip() or (match["alt"] or "")
        if text:
            found.append((match["tag"], " ".join(html.unescape(text).split())))
    return found


def chosen(path, count):
    """Returns `count` screens of the file, evenly spread and without repeated ones."""
    screens = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        screen = json.loads(line)
        screens.setdefault(json.dumps(texts(screen)), screen)
    screens = [screen for screen in screens.values() if len(texts(screen)) > 2]
    count = min(count, len(screens))
    return [screens[index * len(screens) // count] for index in range(count)]


def fitted(draw, text, font, width):
    """Returns the beginning of a text that fits into a width."""
    while text and draw.textlength(text, font=font) > width:
        text = text[:-2]
    return text


def drawn(screen, size, colors):
    """Returns the picture of a screen."""
    width, height = size
    unit = height // 24
    fonts = [ImageFont.load_default(unit * part // 8) for part in (3, 4, 5)]
    picture = Image.new("RGB", size, colors["back"])
    draw = ImageDraw.Draw(picture)
    draw.rectangle((0, 0, width, 2 * unit), fill=colors["bar"])
    draw.text((unit, unit * 7 // 8), "9:41", font=fonts[0], fill=(255, 255, 255), anchor="ls")
    top = 0
    for index, (tag, text) in enumerate(texts(screen)):
        if index == 0:
            title = fitted(draw, text, fonts[2], width - 2 * unit)
            draw.text((unit, unit * 7 // 4), title, font=fonts[2], fill=(255, 255, 255), anchor="ls")
            top = 2 * unit + unit // 2
            continue
        if top + 2 * unit > height - unit:
            break
        middle = top + unit * 3 // 4
        left = unit
        if tag == "button":
            box = (unit // 2, top, width - unit // 2, top + unit * 3 // 2)
            draw.rounded_rectangle(box, radius=unit // 4, fill=colors["card"], outline=colors["line"])
            color = ICONS[sum(text.encode()) % len(ICONS)]
            draw.ellipse((unit * 3 // 4, top + unit // 4, unit * 7 // 4, top + unit * 5 // 4), fill=color)
            left = 2 * unit + unit // 4
        elif tag == "input":
            draw.line((unit, top + unit * 3 // 2, width - unit, top + unit * 3 // 2), fill=colors["line"], width=2)
        shown = fitted(draw, text, fonts[1], width - left - unit)
        draw.text((left, middle), shown, font=fonts[1], fill=colors["text"], anchor="lm")
        top += unit * 7 // 4
    draw.rectangle((0, height - unit, width, height), fill=colors["card"])
    draw.polygon([(width // 4, height - unit * 3 // 4), (width // 4, height - unit // 4), (width // 4 - unit // 2, height - unit // 2)],
                 fill=colors["text"])
    draw.ellipse((width // 2 - unit // 4, height - unit * 3 // 4, width // 2 + unit // 4, height - unit // 4), fill=colors["text"])
    return picture


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("screens", type=Path, help="file with one screen a line")
    parser.add_argument("folder", type=Path, help="folder to write, which is made")
    parser.add_argument("--count", type=int, default=20, help="number of screens [20]")
    parser.add_argument("--size", default="540x1200", help="pixels [540x1200]")
    arguments = parser.parse_args()
    size = tuple(int(side) for side in arguments.size.split("x"))
    if len(size) != 2 or min(size) < 48 or arguments.count < 1:
        parser.error("expected at least one screen of at least 48x48 pixels")
    arguments.folder.mkdir(parents=True, exist_ok=True)
    screens = chosen(arguments.screens, arguments.count)
    for index, screen in enumerate(screens):
        name = f"{index:03}-{re.sub(r'[^a-z0-9]+', '-', screen['app'].lower())}.png"
        drawn(screen, size, DARK if index % 3 == 2 else LIGHT).save(arguments.folder / name, optimize=True)
    print(f"{len(screens)} screens of {size[0]} × {size[1]} pixels in {arguments.folder}")


if __name__ == "__main__":
    main()
