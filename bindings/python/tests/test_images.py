"""Pictures in conversations, compared with the answers of `transformers`, which tests/golden/pictures/chat.py wrote."""

import json
from pathlib import Path

import numpy as np
import pytest
import triad
from PIL import Image

GOLDEN = Path(__file__).parents[3] / "tests/golden/pictures"


@pytest.fixture(scope="module")
def reader():
    return triad.Model(GOLDEN / "chat", float=True, threads=1)


def talks():
    return [json.loads(line) for line in (GOLDEN / "chat.json").read_text().splitlines()]


def shown(talk, images):
    """Returns the messages of a talk with its pictures."""
    images = iter(images)

    def part(part):
        return {**part, "image": next(images)} if part["type"] == "image" else part

    return [{**message, "content": [part(it) for it in message["content"]]} for message in talk["messages"]]


def forms(path):
    upright = Image.open(path).convert("RGB")
    return [path, str(path), path.read_bytes(), Image.open(path), np.asarray(upright)]


@pytest.mark.parametrize("talk", talks())
def test_answers_are_those_of_transformers_in_all_forms_of_pictures(reader, talk):
    files = [GOLDEN / "files" / name for name in talk["files"]]
    for images in zip(*map(forms, files)) if files else [()]:
        answer = reader.chat(shown(talk, images), temperature=0, max_tokens=len(talk["answer"]))
        assert answer.tokens == talk["answer"]


def test_arrays_may_have_any_strides(reader):
    path = GOLDEN / "files/31x33.png"
    colors = np.asarray(Image.open(path).convert("RGB"))
    other = np.asfortranarray(colors)
    texts = [
        reader.chat(shown(talks()[0], [image]), temperature=0, max_tokens=8).tokens for image in (path, colors, other)
    ]
    assert texts[0] == texts[1] == texts[2]


@pytest.mark.parametrize(
    "image, error, message",
    [
        (b"hello", triad.Error, "messages[0].content[0].image: this is not a picture"),
        ("nowhere.png", triad.Error, "nowhere.png"),
        (np.zeros((4, 4), np.uint8), ValueError, "shape [4, 4], expected [height, width, 3]"),
        (np.zeros((4, 4, 3), np.float32), TypeError, "expected a path, bytes, a Pillow image or an array of uint8"),
        (7, TypeError, "int, expected a path"),
        (None, TypeError, "NoneType, expected a path"),
    ],
)
def test_what_is_no_picture_is_refused_by_name(reader, image, error, message):
    with pytest.raises(error) as raised:
        reader.chat(shown(talks()[0], [image]))
    assert message in str(raised.value)


def test_a_model_that_reads_only_text_says_so(model):
    with pytest.raises(triad.Error, match="reads no pictures"):
        model.chat(shown(talks()[0], [GOLDEN / "files/28x28.png"]))
