"""Writes what the tests of `tokenizer.model` need: folders as models are published with, and the ids of each line.

    model/NAME/             tokenizer.model, and the files that add tokens to it
    model/NAME.expected     a line for each of lines.bin: a hash of its ids as a raw prompt, and as a rendered template

The ids are those of the slow tokenizers of `transformers`, which call `sentencepiece`; `-` stands for a raw prompt that
names a control token, which they always take for the token. Where the fast tokenizers differ the script counts it: they
put a space before user-defined pieces, and ignore the rules of normalization in the file.

    python model.py                         # everything
    python model.py --nfkc FOLDER           # only a folder with the map nmt_nfkc, which is too large for the tree

Needs transformers, sentencepiece and protobuf. Written with transformers 4.57, sentencepiece 0.2 and protobuf 7.
"""

import hashlib
import json
import struct
import sys
from pathlib import Path

import sentencepiece
from lines import CODE, TEXTS, lines
from transformers import GemmaTokenizer, LlamaTokenizer, LlamaTokenizerFast

FOLDER = Path(__file__).parent / "model"
USER_DEFINED = ["<tool>", "\t\t", "▁▁\n", "▁▁▁▁", "ab", "<h1>"]
# Rules of a map of characters: sequences of code points, and what they become.
RULES = {
    "ﬁ": "fi", "ﬂ": "fl", "①": "1", "½": "1/2", "e\u0301": "\u00e9", "u\u0308": "\u00fc", "A\u030a": "\u00c5", "\u00a0": " ",
    "\u3000": " ", "\t": " ", "\n": " ", "\u200b": "", "\ufeff": "", "Ａ": "A", "！": "!", "，": ",", "e\u0301\u0323": "\u1eb9\u0301",
    "™": "TM", "…": "...", "ｶ": "カ", "\u1112\u1161\u11ab": "\ud55c", "\u200d": " ", "２": "2", "ſ": "s",
}
TOKEN = {"lstrip": False, "rstrip": False, "normalized": False, "single_word": False, "special": True}
STANDARD = {"0": {**TOKEN, "content": "<unk>"}, "1": {**TOKEN, "content": "<s>"}, "2": {**TOKEN, "content": "</s>"}}
BPE = {"model_type": "bpe", "byte_fallback": True, "normalization_rule_name": "identity", "remove_extra_whitespaces": False}
UNIGRAM = {**BPE, "model_type": "unigram"}


def decoder(size):
    """Added tokens of every kind after `size` pieces."""
    return {
        **STANDARD,
        str(size): {**TOKEN, "content": "<|im_start|>"},
        str(size + 1): {**TOKEN, "content": "<|im_end|>", "rstrip": True},
        str(size + 2): {**TOKEN, "content": "<repo_name>", "lstrip": True, "special": False},
        str(size + 4): {**TOKEN, "content": "<tool_call>", "rstrip": True, "lstrip": True, "special": False},
    }


def cases(size):
    """Options of the trainer, and the other files of the folder."""
    config = {"tokenizer_class": "LlamaTokenizer", "added_tokens_decoder": decoder(size), "eos_token": "</s>", "bos_token": "<s>"}
    # Those that this list lacks are no special tokens to the slow tokenizers, in spite of `special`.
    config["additional_special_tokens"] = ["<|im_start|>", "<|im_end|>"]
    return {
        "bpe": ({**BPE, "add_dummy_prefix": True}, {"tokenizer_config": config}),
        "bpe-first": ({**BPE, "add_dummy_prefix": True}, {"tokenizer_config": {**config, "legacy": False, "add_eos_token": True}}),
        "gemma": (
            {**BPE, "add_dummy_prefix": False, "bos_piece": "<bos>", "eos_piece": "<eos>", "pad_id": 3, "pad_piece": "<pad>"},
            {
                "tokenizer_config": {"tokenizer_class": "GemmaTokenizer", "add_bos_token": True},
                "added_tokens": {"<|im_start|>": size, "<|im_end|>": size + 1, "<repo_name>": size + 2},
                "special_tokens_map": {
                    "bos_token": "<bos>", "eos_token": {**TOKEN, "content": "<eos>"}, "unk_token": "<unk>",
                    "additional_special_tokens": ["<|im_start|>", "<|im_end|>"],
                },
            },
        ),
        "unigram": ({**UNIGRAM, "add_dummy_prefix": True}, {"tokenizer_config": {**config, "add_bos_token": False}}),
        "unigram-map": ({"model_type": "unigram", "byte_fallback": False, "normalization_rule_tsv": None}, {}),
        "bpe-map": ({"model_type": "bpe", "byte_fallback": True, "normalization_rule_tsv": None}, {}),
    }


def train(folder, options):
    folder.mkdir(parents=True, exist_ok=True)
    if "normalization_rule_tsv" in options:
        rules = folder / "rules.tsv"
        codes = lambda text: " ".join(f"{ord(character):X}" for character in text)
        rules.write_text("".join(f"{codes(source)}\t{codes(target)}\n" for source, target in RULES.items()))
        options = {**options, "normalization_rule_tsv": str(rules)}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS + CODE), model_prefix=str(folder / "tokenizer"), vocab_size=1000, hard_vocab_limit=False,
        character_coverage=0.98, max_sentence_length=10**6, minloglevel=2,
        user_defined_symbols=USER_DEFINED if options["model_type"] == "bpe" else [], num_threads=1, **options,
    )
    (folder / "tokenizer.vocab").unlink()
    (folder / "rules.tsv").unlink(missing_ok=True)
    return len(sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model")))


def digest(ids):
    return hashlib.sha256(struct.pack(f"<{len(ids)}I", *ids)).hexdigest()[:8]


def write_expected(folder, config):
    kind = GemmaTokenizer if config.get("tokenizer_class") == "GemmaTokenizer" else LlamaTokenizer
    slow = kind.from_pretrained(folder)
    controls = [str(token) for token in slow.added_tokens_decoder.values() if token.special]
    before = [slow.bos_token_id] * config.get("add_bos_token", True)
    after = [slow.eos_token_id] * config.get("add_eos_token", False)
    hashes, differ = [], 0
    fast = None
    if kind is LlamaTokenizer:
        fast = LlamaTokenizerFast.from_pretrained(folder, from_slow=True)
    for line in lines():
        text = line.decode("utf-8", errors="replace")
        ids = slow.encode(text, add_special_tokens=False)
        raw = "-" if any(control in text for control in controls) else digest(before + ids + after)
        hashes.append(f"{raw} {digest(ids)}")
        differ += fast is not None and fast.encode(text, add_special_tokens=False) != ids
    folder.with_suffix(".expected").write_text("\n".join(hashes) + "\n")
    print(f"{folder.name}: {len(slow)} tokens; the fast tokenizer differs on {differ} lines")


def main():
    if sys.argv[1:2] == ["--nfkc"]:
        folder = Path(sys.argv[2])
        train(folder, {"model_type": "unigram", "byte_fallback": True, "normalization_rule_name": "nmt_nfkc"})
        return write_expected(folder, {})
    for name, (options, _) in cases(0).items():
        folder = FOLDER / name
        files = cases(train(folder, options))[name][1]
        for file, content in files.items():
            (folder / f"{file}.json").write_text(json.dumps(content, ensure_ascii=False) + "\n")
        write_expected(folder, files.get("tokenizer_config", {}))


if __name__ == "__main__":
    main()
