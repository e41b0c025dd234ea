"""Writes stated.json: ids of texts where `tokenizer_config.json` states what `tokenizer.json` has not, or has otherwise.
The tokenizer is that of bpe-gpt-2.

    pip install transformers==4.57.6 && python tests/golden/tokenizer/stated.py
    pip install transformers==5.24.0 && python tests/golden/tokenizer/stated.py --check
"""

import json
import shutil
import sys
import tempfile
from pathlib import Path

from transformers import AutoTokenizer

FOLDER = Path(__file__).parent
BASE = FOLDER / "bpe-gpt-2"
CONFIG = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
TEXTS = ["Hi <x> there", "  a <y> b ", "x<x><y>y", "<x>x <yy> z<y>"]


def token(content, **rules):
    return {"content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True, **rules}


def cases(size):
    x, y = str(size), str(size + 1)
    yield "none", {}
    yield "one", {x: token("<x>")}
    yield "two", {y: token("<y>", special=False), x: token("<x>")}
    yield "left", {x: token("<x>", lstrip=True), y: token("<y>", lstrip=True)}
    yield "right", {x: token("<x>", rstrip=True), y: token("<y>", special=False, rstrip=True)}
    yield "single word", {x: token("<x>", single_word=True), y: token("y", special=False, single_word=True)}
    yield "defaults", {x: {"content": "<x>"}, y: {"content": "<y>", "special": True}}


def main():
    known = json.loads((BASE / "tokenizer.json").read_text())
    size = max([*known["model"]["vocab"].values(), *(added["id"] for added in known["added_tokens"])]) + 1
    first = known["added_tokens"][0]
    rules = {"lstrip": True, "rstrip": True}
    changes = {name: {"added_tokens_decoder": stated} for name, stated in cases(size)}
    changes["known"] = {"added_tokens_decoder": {str(first["id"]): token(first["content"], **rules)}}
    rules = {"special": False, "normalized": True, "single_word": True}
    after = str(size + 2)
    changes["gap"] = {"added_tokens_decoder": {str(size): token("<x>"), after: token("<y>")}}
    changes["known, of words"] = {"added_tokens_decoder": {str(first["id"]): token(first["content"], **rules)}}
    for name in ("GPT2Tokenizer", "GPT2TokenizerFast", "GPTNeoXTokenizerFast"):
        for adds in (True, False):
            changes[f"{name} {adds}"] = {"tokenizer_class": name, "pad_token": "</s>", "add_prefix_space": adds}
    rows = []
    for name, change in changes.items():
        texts = [*TEXTS, f" a {first['content']} b"]
        config = {**CONFIG, **change}
        with tempfile.TemporaryDirectory() as folder:
            shutil.copy(BASE / "tokenizer.json", folder)
            (Path(folder) / "tokenizer_config.json").write_text(json.dumps(config))
            (Path(folder) / "config.json").write_text(json.dumps({"model_type": "llama"}))
            tokenizer = AutoTokenizer.from_pretrained(folder)
            ids = [tokenizer(text, add_special_tokens=False).input_ids for text in texts]
        rows.append({"name": name, "config": config, "texts": texts, "ids": ids})
    path = FOLDER / "stated.json"
    if "--check" in sys.argv:
        assert json.loads(path.read_text()) == rows, "this version of transformers has other ids"
    else:
        path.write_text(json.dumps(rows, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
