"""Writes special.json: ids of texts where `tokenizer_config.json`, `special_tokens_map.json` and `added_tokens.json` name
special tokens, and the tokens around a text. Each row has the result of both versions of transformers; an error is null.

    pip install transformers==4.57.6 && python tests/golden/tokenizer/special.py
    pip install transformers==5.24.0 && python tests/golden/tokenizer/special.py

Each version writes its own column. The first to run also writes the rows.
"""

import itertools
import json
import logging
import sys
import tempfile
from pathlib import Path

import transformers
from transformers import AutoTokenizer

FOLDER = Path(__file__).parent
GENERIC = "PreTrainedTokenizerFast"
TEXTS = [
    "Hi <x> there",
    "  a <y> b ",
    "x<x><y>y",
    "<x>x <z> z<y>",
    " a <s> b",
    "a</s> the <tool> b",
    " the and the",
    "<X> <unk> <s>",
    "<image><|endoftext|> a",
    "<pad> the<mask>  <x>  <y>",
]
AROUND = "the a"
SCALARS = ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token", "image_token"]
LISTS = ["additional_special_tokens", "extra_special_tokens"]
FLAGS = [
    {},
    {"lstrip": True},
    {"rstrip": True},
    {"single_word": True},
    {"normalized": True},
    {"special": True},
    {"special": True, "normalized": False, "lstrip": True, "rstrip": True, "single_word": False},
]


def typed(content, **flags):
    return {"__type": "AddedToken", "content": content, **flags}


def scalars():
    yield from ["<x>", "<s>", "the", "<tool>", "", None, 7, True, ["<x>"], {"image_token": "<x>"}]
    for content in ["<x>", "<s>", "<tool>"]:
        yield from [typed(content, **flags) for flags in FLAGS]
    yield from [{"content": "<x>"}, {"content": "<s>", "lstrip": True}, typed("the", lstrip=True)]


def lists():
    yield from [["<x>"], ["<y>", "<x>"], ["<s>", "<x>"], ["the"], ["<tool>"], ["<x>", "<x>"], ["", "<x>"], [], None]
    yield from [[typed("<x>", **flags)] for flags in FLAGS]
    yield from [[typed("<s>", lstrip=True)], [typed("<tool>", rstrip=True), "<x>"], [{"content": "<x>"}], [7], [None]]
    yield from [{}, {"image_token": "<x>"}, {"a": "<y>", "b": "<x>"}, {"image_token": "<s>"}, {"image_token": None}]
    yield from [{"image_token": typed("<x>", **flags)} for flags in FLAGS]
    yield from [{"image_token": {"content": "<x>"}}, {"image_token": ["<x>"]}, {"pad_token": "<x>"}, "<x>", 7, True]


def combined():
    x, y, z = "<x>", "<y>", "<z>"
    yield {"pad_token": x, "additional_special_tokens": [y, z]}
    yield {"pad_token": x, "unk_token": y, "bos_token": z}
    yield {"mask_token": x, "extra_special_tokens": [y], "additional_special_tokens": [z]}
    yield {"extra_special_tokens": {"b": x, "a": y}, "additional_special_tokens": [z]}
    yield {"extra_special_tokens": {}, "additional_special_tokens": [z]}
    yield {"extra_special_tokens": {"b": x, "a": y}, "image_token": z}
    yield {"image_token": x, "extra_special_tokens": {"image_token": x}}
    yield {"extra_special_tokens": [x, y], "cls_token": x}
    yield {"pad_token": typed(x, lstrip=True), "additional_special_tokens": [x]}
    yield {"pad_token": x, "additional_special_tokens": [typed(x, lstrip=True)]}
    yield {"pad_token": x, "sep_token": typed(x, rstrip=True)}


def plain(content, **flags):
    return {"content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True, **flags}


def fields():
    """Rows of the generic class: (name, files)."""
    for field in SCALARS:
        for value in scalars():
            yield {field: value}, {}
    for field in LISTS:
        for value in lists():
            yield {field: value}, {}
    for config in combined():
        yield config, {}
        # With an added_tokens_decoder.
        for decoder in [{}, {"1007": plain("<x>")}, {"1007": plain("<y>", lstrip=True, special=False)}, {"1000": plain("<s>")}]:
            yield {**config, "added_tokens_decoder": decoder}, {}
    for decoder in [{}, {"1007": plain("<x>", lstrip=True)}, {"1007": plain("<x>", special=False)}]:
        for config in [{"pad_token": "<x>"}, {"pad_token": typed("<x>", rstrip=True)}, {"extra_special_tokens": ["<x>"]}, {"bos_token": "<y>"}]:
            yield {**config, "added_tokens_decoder": decoder}, {}
    # The other files.
    for value in [{"pad_token": "<x>"}, {"bos_token": "<x>"}, {"eos_token": "<tool>"}, {"pad_token": plain("<x>", lstrip=True)}, {"unk_token": {"content": "<x>", "lstrip": True}}, {"bos_token": plain("<s>", lstrip=True)}]:
        for config in [{}, {"pad_token": "<y>"}, {"added_tokens_decoder": {}}]:
            yield config, {"special_tokens_map.json": value}
    for field in LISTS:
        for value in [["<x>"], [plain("<x>", lstrip=True)], [], {"image_token": "<x>"}, ["<s>"]]:
            for config in [{}, {"additional_special_tokens": ["<y>"]}, {"extra_special_tokens": ["<y>"]}, {"added_tokens_decoder": {}}]:
                yield config, {"special_tokens_map.json": {field: value}}
    for tokens in [{"<x>": 1007}, {"<y>": 1007, "<x>": 1008}, {"<x>": 1008, "<y>": 1007}, {"<x>": 1009}, {"<s>": 1000}, {"<s>": 5}, {}]:
        for config in [{}, {"pad_token": "<x>"}, {"added_tokens_decoder": {}}]:
            yield config, {"added_tokens.json": tokens}


METASPACE = {
    "normalizer": None,
    "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False},
}
GEMMA = {
    "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
    "pre_tokenizer": {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False},
    "decoder": {
        "type": "Sequence",
        "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}],
    },
}
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
QWEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = {
    "normalizer": {"type": "NFC"},
    "pre_tokenizer": {
        "type": "Sequence",
        "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": QWEN}, "behavior": "Isolated", "invert": False},
            {**BYTES, "use_regex": False},
        ],
    },
}
COHERE = {
    "normalizer": {"type": "NFC"},
    "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, BYTES]},
}
NEOX = {"normalizer": {"type": "NFC"}}
# The tokenizer.json of each class: a folder, and the fields that its rules need.
CLASSES = {
    GENERIC: ("bpe-gpt-2", {}),
    "TokenizersBackend": ("bpe-gpt-2", {}),
    "GPT2TokenizerFast": ("bpe-gpt-2", {}),
    "GPT2Tokenizer": ("bpe-gpt-2", {}),
    "GPTNeoXTokenizerFast": ("bpe-gpt-2", NEOX),
    "Qwen2TokenizerFast": ("bpe-gpt-2", QWEN2),
    "Qwen2Tokenizer": ("bpe-gpt-2", QWEN2),
    "CohereTokenizerFast": ("bpe-gpt-2", COHERE),
    "LlamaTokenizerFast": ("spm", METASPACE),
    "LlamaTokenizer": ("spm", METASPACE),
    "LlamaTokenizerFast of bytes": ("bpe-gpt-2", {}),
    "GemmaTokenizerFast": ("spm", GEMMA),
    "GemmaTokenizer": ("spm", GEMMA),
}
# The tokens that the classes add by default, as they are in the vocabulary of their models.
ENDS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<s>", "pad_token": "</s>"}
ALL = {**ENDS, "sep_token": "</s>", "cls_token": "<s>", "mask_token": "</s>"}


def around(folder):
    """The post-processors of tokenizer.json."""
    first = 1000 if folder == "bpe-gpt-2" else 1
    tokens = {name: {"id": name, "ids": [id], "tokens": [name]} for name, id in [("<s>", first), ("</s>", first + 1)]}
    bos, eos = ({"SpecialToken": {"id": name, "type_id": 0}} for name in ("<s>", "</s>"))
    text, other = ({"Sequence": {"id": name, "type_id": kind}} for name, kind in (("A", 0), ("B", 1)))
    template = lambda single: {"type": "TemplateProcessing", "single": single, "pair": [*single, other], "special_tokens": tokens}
    return {
        "none": None,
        "bytes": BYTES,
        "bos": template([bos, text]),
        "ends": template([bos, text, eos]),
        "eos": template([text, eos]),
        "bytes, bos": {"type": "Sequence", "processors": [BYTES, template([bos, text])]},
    }


def cases():
    for config, files in fields():
        yield GENERIC, "none", {"bos_token": "<s>", "eos_token": "</s>", **config}, files
    for name in CLASSES:
        # Tokens that the vocabulary lacks, with and without the class's own.
        for config in [{}, ENDS, ALL, {**ALL, "pad_token": "<x>"}, {**ALL, "additional_special_tokens": ["<x>"]}, {**ALL, "unk_token": "<x>"}, {**ALL, "unk_token": None}]:
            yield name, "none", config, {}
        for config in [{"extra_special_tokens": ["<y>", "<x>"]}, {"image_token": "<x>"}, {"pad_token": typed("<x>", lstrip=True)}, {"eos_token": typed("<s>", lstrip=True)}]:
            yield name, "none", {**ALL, **config}, {}
        for config in [{"pad_token": None}, {"mask_token": None, "cls_token": None, "sep_token": None, "pad_token": None}, {"bos_token": None}, {"added_tokens_decoder": {"1007": plain("<x>")}}]:
            yield name, "none", {**ALL, **config}, {}
        adds = [{}, {"add_bos_token": True}, {"add_bos_token": False}]
        if name.endswith("Fast") or " " in name:
            adds += [{"add_eos_token": True}, {"add_bos_token": True, "add_eos_token": True}, {"add_bos_token": False, "add_eos_token": True}, {"add_bos_token": None}]
        for post, state in itertools.product(around("spm"), adds):
            yield name, post, {**ALL, **state}, {}
            if post in ("none", "bos") and state in adds[1:2] + adds[4:5]:
                for bos in ["</s>", "<tool>", "<x>", None]:
                    yield name, post, {**ALL, "bos_token": bos, **state}, {}
                yield name, post, {**ALL, "eos_token": None, **state}, {}


def result(name, post, config, files):
    base, changes = CLASSES[name]
    tokenizer = json.loads((FOLDER / base / "tokenizer.json").read_text())
    tokenizer |= {**changes, "post_processor": around(base)[post]}
    config = {"tokenizer_class": name.removesuffix(" of bytes"), **config}
    with tempfile.TemporaryDirectory() as folder:
        write = lambda file, value: (Path(folder) / file).write_text(json.dumps(value))
        write("tokenizer.json", tokenizer)
        write("tokenizer_config.json", config)
        write("config.json", {"model_type": "llama"})
        for file, value in files.items():
            write(file, value)
        try:
            tokenizer = AutoTokenizer.from_pretrained(folder)
            ids = [tokenizer(text, add_special_tokens=False).input_ids for text in TEXTS]
            return {
                "size": len(tokenizer),
                "ends": [tokenizer.bos_token_id, tokenizer.eos_token_id],
                "around": tokenizer(AROUND).input_ids,
                "ids": ids,
                "texts": [tokenizer.decode(row, skip_special_tokens=True, clean_up_tokenization_spaces=False) for row in ids],
            }
        except Exception as error:
            if "-v" in sys.argv:
                print(name, config, files, repr(error)[:200])
            return None


def main():
    logging.disable(logging.WARNING)
    path = FOLDER / "special.json"
    version = transformers.__version__.split(".")[0]
    rows = list(cases())
    golden = json.loads(path.read_text()) if path.exists() else {}
    if golden.get("rows") != json.loads(json.dumps(rows)):
        golden = {
            "texts": TEXTS,
            "around": AROUND,
            "classes": {name: [base, changes, around(base)] for name, (base, changes) in CLASSES.items()},
            "rows": rows,
            "results": [None],
        }
    results = golden["results"]
    places = {json.dumps(value, sort_keys=True): place for place, value in enumerate(results)}
    column = []
    for row in rows:
        value = result(*row)
        place = places.setdefault(json.dumps(value, sort_keys=True), len(results))
        if place == len(results):
            results.append(value)
        column.append(place)
    golden[version] = column
    path.write_text(json.dumps(golden, separators=(",", ":"), ensure_ascii=False) + "\n")
    print(len(rows), "rows,", sum(place == 0 for place in column), "errors,", len(results), "results")


if __name__ == "__main__":
    main()
