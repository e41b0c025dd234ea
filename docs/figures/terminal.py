#!/usr/bin/env python3
"""Draws a terminal with the transcript of a command as an SVG image.

    docs/figures/terminal.py TRANSCRIPT IMAGE
    docs/figures/terminal.py docs/figures/run.txt docs/figures/run.svg

The transcript is a text file. Lines that begin with `$ ` are commands, lines that begin with `# ` are what a program wrote to
standard error (without the `# `), all others are its output. Long lines are wrapped at words.
"""

import argparse
import textwrap
from html import escape
from pathlib import Path

COLUMNS = 92
CHARACTER = 8.4  # the width of a character at FONT_SIZE in common monospaced fonts
FONT_SIZE = 14
LINE = 20
MARGIN = 20
BAR = 36
BACKGROUND, TITLE, OUTPUT, PROMPT, COMMAND, ERROR = "#1e2229", "#2b313b", "#d8dee9", "#8fbf7f", "#ffffff", "#8b95a5"
FONTS = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', 'Liberation Mono', monospace"


def spans(transcript):
    """Yields each line of the terminal as a list of (color, text)."""
    for line in transcript.splitlines():
        color, text = (ERROR, line[2:]) if line.startswith("# ") else (OUTPUT, line)
        if line.startswith("$ "):
            yield [(PROMPT, "$ "), (COMMAND, line[2:])]
            continue
        for part in textwrap.wrap(text, COLUMNS, break_on_hyphens=False) or [""]:
            yield [(color, part)]


def image(transcript):
    lines = list(spans(transcript))
    width = round(COLUMNS * CHARACTER + 2 * MARGIN)
    height = BAR + 2 * MARGIN + len(lines) * LINE
    title = next((line[2:] for line in transcript.splitlines() if line.startswith("$ ")), "")
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" font-family="{FONTS}" font-size="{FONT_SIZE}">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{width}" height="{height}" rx="8" fill="{BACKGROUND}"/>',
        f'<path d="M0 {BAR}V8a8 8 0 0 1 8-8H{width - 8}a8 8 0 0 1 8 8V{BAR}z" fill="{TITLE}"/>',
    ]
    for index, color in enumerate(("#e06c60", "#e0b85a", "#7fb86a")):
        parts.append(f'<circle cx="{MARGIN + 20 * index}" cy="{BAR // 2}" r="6" fill="{color}"/>')
    for number, line in enumerate(lines):
        y = BAR + MARGIN + FONT_SIZE + number * LINE
        content = "".join(f'<tspan fill="{color}">{escape(text)}</tspan>' for color, text in line if text)
        if content:
            parts.append(f'<text x="{MARGIN}" y="{y}" xml:space="preserve">{content}</text>')
    return "\n".join([*parts, "</svg>", ""])


def main():
    parser = argparse.ArgumentParser(description="Draws a terminal with the transcript of a command as an SVG image.")
    parser.add_argument("transcript", type=Path)
    parser.add_argument("image", type=Path)
    arguments = parser.parse_args()
    arguments.image.write_text(image(arguments.transcript.read_text()))


if __name__ == "__main__":
    main()
