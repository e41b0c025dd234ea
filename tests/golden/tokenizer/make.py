"""Writes what the tokenizer tests need.

    lines.bin           1,000 lines of mixed text (lines.py), separated by the byte 0x1E
    NAME.gguf           vocabularies without weights, trained on those lines; bpe.gguf stands for all bpe-PRE
    NAME/               a vocabulary as tokenizer.json and tokenizer_config.json
    NAME.expected       a line for each of lines.bin: a hash of its ids as a raw prompt, and as a rendered template

The ids come from llama.cpp and from the `tokenizers` library, put together from the same file (engines.py), and
from SentencePiece for raw prompts of the vocabularies that it trained. Where they differ the script says so, and
`tokenizers` counts, since models are published with it. All differences are understood:

- llama.cpp cuts words at combining marks otherwise than the patterns of tekken and gpt-4o, takes `</s>` for a control
  token in vocabularies where it is HTML, and has no byte fallback for unigram.
- SentencePiece and `tokenizers` round the scores of unigram pieces differently, which shows in runs of one character.
- The unigram model of `tokenizers` takes the names of control and byte tokens in a raw prompt for the tokens. There
  SentencePiece counts for GGUF, and unigram-json.expected is for tokenizer.json. `-` is where it has no answer.

    python make.py [MODEL.gguf ...]         # everything; the real models are those given
    python make.py --show NAME LINE         # the ids of one line by each engine; NAME may be a path

Needs tokenizers, sentencepiece, gguf and xllamacpp. Written with tokenizers 0.22, sentencepiece 0.2, gguf 0.19 and
xllamacpp 2026.10.
"""

import hashlib
import json
import struct
import sys
import tempfile
from pathlib import Path

import gguf
import sentencepiece
import tokenizers
from engines import (
    BYTE, CONTROL, GPT2, NORMAL, UNKNOWN, UNUSED, USER_DEFINED,
    Vocabulary, encode_with, hugging_face, llama_cpp,
)
from lines import CODE, SEPARATOR, TEXTS, lines
from tokenizers import models, trainers

FOLDER = Path(__file__).parent
SIZE = 1000
CONTROLS = ["<|im_start|>", "<|im_end|>"]
USER_DEFINEDS = ["<tool>", "\t\t", "  \n"]
# One byte-level vocabulary serves for all pre-tokenizers: they differ in where words end.
PRE = ["gpt-2", "smollm", "qwen2", "llama-bpe", "dbrx", "tekken", "gpt-4o", "default"]
SENTENCE_PIECE = {
    "spm": {"model_type": "bpe", "byte_fallback": True, "add_dummy_prefix": True},
    "spm-no-prefix": {"model_type": "bpe", "byte_fallback": True, "add_dummy_prefix": False},
    "spm-unknown": {"model_type": "bpe", "byte_fallback": False, "add_dummy_prefix": True},
    "unigram": {"model_type": "unigram", "byte_fallback": True, "add_dummy_prefix": True},
}

# Vocabularies that are also there as tokenizer.json.
FOLDERS = ["bpe-gpt-2", "bpe-llama-bpe", "spm", "spm-no-prefix", "unigram"]


def texts():
    return [line.decode("utf-8", errors="replace") for line in lines()]


def write_gguf(path, model, pieces, types, fields):
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model(model)
    writer.add_token_list(pieces)
    writer.add_token_types(types)
    for key, value in fields.items():
        writer.add_key_value(f"tokenizer.ggml.{key}", *value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def make_byte_level(folder):
    """bpe.gguf, and in `folder` a bpe-PRE.gguf for every pre-tokenizer. Answers with their paths."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = GPT2
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=SIZE, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(texts(), trainer)
    model = json.loads(tokenizer.to_str())["model"]
    pieces = sorted(model["vocab"], key=model["vocab"].get)
    types = [NORMAL] * len(pieces)
    for kind, markers in [(CONTROL, ["<s>", "</s>", *CONTROLS]), (USER_DEFINED, USER_DEFINEDS), (UNUSED, ["[PAD0]"])]:
        pieces += markers
        types += [kind] * len(markers)
    strings, number = gguf.GGUFValueType.ARRAY, gguf.GGUFValueType.UINT32
    fields = {
        "merges": ([" ".join(merge) for merge in model["merges"]], strings, gguf.GGUFValueType.STRING),
        "bos_token_id": (pieces.index("<s>"), number),
        "eos_token_id": (pieces.index("</s>"), number),
    }
    paths = []
    for pre in PRE:
        fields["pre"] = (pre, gguf.GGUFValueType.STRING)
        paths.append(folder / f"bpe-{pre}.gguf")
        write_gguf(paths[-1], "gpt2", pieces, types, fields)
    (FOLDER / "bpe.gguf").write_bytes(paths[0].read_bytes())
    return paths


def make_sentence_piece(name, options):
    prefix = FOLDER / name
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS + CODE),
        model_prefix=str(prefix), vocab_size=SIZE, hard_vocab_limit=False, character_coverage=0.98,
        normalization_rule_name="identity", remove_extra_whitespaces=False, max_sentence_length=10**6,
        control_symbols=CONTROLS, user_defined_symbols=[text.replace(" ", "▁") for text in USER_DEFINEDS], minloglevel=2, num_threads=1, **options,
    )
    prefix.with_suffix(".vocab").unlink()
    processor = sentencepiece.SentencePieceProcessor(model_file=f"{prefix}.model")
    pieces, scores, types = [], [], []
    for id in range(len(processor)):
        piece = processor.id_to_piece(id)
        kind = (
            UNKNOWN if processor.is_unknown(id) else CONTROL if processor.is_control(id) else BYTE if processor.is_byte(id)
            else USER_DEFINED if piece.replace("▁", " ") in USER_DEFINEDS else NORMAL
        )
        # As converters to GGUF do.
        pieces.append(piece.replace("▁", " ") if kind == USER_DEFINED else piece)
        scores.append(processor.get_score(id))
        types.append(kind)
    boolean, number = gguf.GGUFValueType.BOOL, gguf.GGUFValueType.UINT32
    fields = {
        "scores": (scores, gguf.GGUFValueType.ARRAY, gguf.GGUFValueType.FLOAT32),
        "add_space_prefix": (options["add_dummy_prefix"], boolean),
        "unknown_token_id": (0, number), "bos_token_id": (1, number), "eos_token_id": (2, number),
    }
    path = prefix.with_suffix(".gguf")
    write_gguf(path, "t5" if options["model_type"] == "unigram" else "llama", pieces, types, fields)
    return path


def make_folder(path):
    """The vocabulary of a GGUF file as a folder of the same name with tokenizer.json."""
    folder = FOLDER / path.stem
    folder.mkdir(exist_ok=True)
    vocabulary = Vocabulary(path)
    hugging_face(vocabulary).save(str(folder / "tokenizer.json"), pretty=False)
    prefix, suffix = vocabulary.around()
    config = {"bos_token": "<s>", "eos_token": {"__type": "AddedToken", "content": "</s>"}}
    config |= {"add_bos_token": bool(prefix), "add_eos_token": bool(suffix)}
    (folder / "tokenizer_config.json").write_text(json.dumps(config) + "\n")


def engines(path):
    """Name and `encode` of every engine for the GGUF file at `path`; the first one counts."""
    vocabulary = Vocabulary(path)
    prefix, suffix = vocabulary.around()
    engines = {}
    if tokenizer := hugging_face(vocabulary):
        engines["tokenizers"] = encode_with(tokenizer, (prefix, suffix))
    engines["llama.cpp"] = llama_cpp(path)
    model = path.with_suffix(".model")
    if model.exists():
        processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
        # SentencePiece takes names of control tokens for text always. It puts no space after a user-defined token, where
        # the other two put one as at the beginning, and finds one that begins in the space before the text.
        comparable = lambda text: not any(marker in " " + text.replace("▁", " ") for marker in USER_DEFINEDS)
        engines["sentencepiece"] = lambda text, parsed: (
            prefix + processor.encode(text) + suffix if not parsed and comparable(text) else None
        )
    return engines


def digest(ids):
    return hashlib.sha256(struct.pack(f"<{len(ids)}I", *ids)).hexdigest()[:8]


def make_expected(path, name, counts):
    """NAME.expected for a GGUF file, from the first engine of `counts` that it has."""
    by_engine = engines(path)
    by = next(engine for engine in counts if engine in by_engine)
    hashes, differences = [], {}
    for number, text in enumerate(texts()):
        of_line = []
        for parsed in (False, True):
            ids = {engine: encode(text, parsed) for engine, encode in by_engine.items()}
            of_line.append("-" if ids[by] is None else digest(ids[by]))
            for other in by_engine:
                if None not in (ids[other], ids[by]) and ids[other] != ids[by]:
                    differences.setdefault(other, []).append(number)
        hashes.append(" ".join(of_line))
    (FOLDER / f"{name}.expected").write_text("\n".join(hashes) + "\n")
    print(name, "by", by)
    for other, numbers in differences.items():
        print(f"  {other} differs on {len(set(numbers))} lines: {sorted(set(numbers))[:12]}")


def show(path, number):
    text = texts()[number]
    vocabulary = Vocabulary(path)
    print(repr(text))
    for name, encode in engines(path).items():
        for parsed in (False, True):
            ids = encode(text, parsed)
            print(name, "as template" if parsed else "as prompt", ids, ids and [vocabulary.tokens[id] for id in ids])


def main():
    if sys.argv[1:2] == ["--show"]:
        path = Path(sys.argv[2])
        return show(path if path.exists() else FOLDER / f"{path}.gguf", int(sys.argv[3]))
    (FOLDER / "lines.bin").write_bytes(SEPARATOR.join(lines()))
    with tempfile.TemporaryDirectory() as folder:
        paths = make_byte_level(Path(folder))
        paths += [make_sentence_piece(name, options) for name, options in SENTENCE_PIECE.items()]
        for path in paths:
            if path.stem in FOLDERS:
                make_folder(path)
        for path in paths + [Path(model) for model in sys.argv[1:]]:
            make_expected(path, path.stem, ["sentencepiece"] if path.stem == "unigram" else ["tokenizers", "llama.cpp"])
            if path.stem == "unigram":
                make_expected(path, "unigram-json", ["tokenizers"])
    for model in FOLDER.glob("*.model"):
        model.unlink()


if __name__ == "__main__":
    main()
