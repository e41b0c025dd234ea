"""Three reference tokenizers for one GGUF file: llama.cpp, the `tokenizers` library and, where there is one, the
SentencePiece model that it was made of.

Each is a function `encode(text, parsed)` that answers with ids, or None if it cannot: `parsed` false gives a raw prompt with BOS and EOS as the file
says, true gives the text alone with the names of control tokens taken for the tokens.
"""

import json
import tempfile
import urllib.error
import urllib.request
from pathlib import Path

import gguf
import numpy as np
import tokenizers
import xllamacpp
from tokenizers import decoders, models, normalizers, pre_tokenizers

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)

# As the models' own tokenizer.json has them.
CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
LLAMA3 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = LLAMA3.replace("{1,3}", "")
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
TEKKEN = rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
GPT4O = rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{CONTRACTIONS}?|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{CONTRACTIONS}?|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def split_by(pattern):
    split = pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


GPT2 = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
PRE_TOKENIZERS = {
    "gpt-2": (GPT2, False),
    "smollm": (pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), GPT2]), False),
    "qwen2": (split_by(QWEN2), False),
    "llama-bpe": (split_by(LLAMA3), True),
    "dbrx": (split_by(LLAMA3), False),
    "tekken": (split_by(TEKKEN), True),
    "gpt-4o": (split_by(GPT4O), False),
}


class Vocabulary:
    """The tokenizer that a GGUF file states."""

    def __init__(self, path):
        self.fields = gguf.GGUFReader(path).fields
        self.model = self.get("model")
        self.pre = self.get("pre")
        self.tokens = self.get("tokens")
        self.types = self.get("token_type")

    def get(self, name, default=None):
        field = self.fields.get(f"tokenizer.ggml.{name}")
        return default if field is None else field.contents()

    def around(self):
        """Returns the tokens at the beginning and the end of a raw prompt."""
        byte_level = self.model == "gpt2"
        add_bos = self.get("add_bos_token", self.model == "llama" or self.pre in ("llama-bpe", "tekken"))
        add_eos = self.get("add_eos_token", self.model == "t5")
        bos, eos = (self.get(f"{name}_token_id", None if byte_level else default) for name, default in (("bos", 1), ("eos", 2)))
        return [bos] * add_bos, [eos] * add_eos


def llama_cpp(path):
    """llama.cpp's tokenizer. A file without weights gets some."""
    reader = gguf.GGUFReader(path)
    with tempfile.TemporaryDirectory() as folder:
        if not reader.tensors:
            path = with_weights(reader, Path(folder) / "model.gguf")
        parameters = xllamacpp.CommonParams()
        parameters.model.path = str(path)
        parameters.n_ctx = 64
        parameters.warmup = False
        parameters.verbosity = -1
        server = xllamacpp.Server(parameters)

    def encode(text, parsed):
        body = {"content": text, "add_special": not parsed, "parse_special": parsed}
        request = urllib.request.Request(
            f"{server.listening_address}/tokenize", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request) as response:
                return json.load(response)["tokens"]
        except urllib.error.HTTPError:
            # It gives up on characters that the vocabulary cannot spell.
            return None

    return encode


def with_weights(reader, path, **changed):
    """Copies a vocabulary into a model of one small block, since llama.cpp's server wants one. Fields of the tokenizer
    may have other texts."""
    writer = gguf.GGUFWriter(path, "llama")
    for key, field in reader.fields.items():
        if key.startswith("tokenizer."):
            (kind, *of) = field.types
            value = changed.get(key.removeprefix("tokenizer.ggml."), field.contents())
            writer.add_key_value(key, value, kind, of[-1] if of else None)
    size, hidden = len(reader.fields["tokenizer.ggml.tokens"].data), 32
    writer.add_context_length(64)
    writer.add_embedding_length(hidden)
    writer.add_block_count(1)
    writer.add_feed_forward_length(hidden)
    writer.add_head_count(1)
    writer.add_layer_norm_rms_eps(1e-5)
    square = ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"]
    shapes = {f"blk.0.{name}.weight": (hidden, hidden) for name in square}
    shapes |= {f"blk.0.{name}.weight": (hidden,) for name in ("attn_norm", "ffn_norm")}
    shapes |= {"token_embd.weight": (size, hidden), "output.weight": (size, hidden), "output_norm.weight": (hidden,)}
    for name, shape in shapes.items():
        writer.add_tensor(name, np.zeros(shape, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def hugging_face(vocabulary):
    """The same vocabulary in the `tokenizers` library, put together as a tokenizer.json would; None if it has no
    such pre-tokenizer."""
    tokens, types = vocabulary.tokens, vocabulary.types
    if vocabulary.model == "gpt2":
        if vocabulary.pre not in PRE_TOKENIZERS:
            return None
        pre_tokenizer, ignore_merges = PRE_TOKENIZERS[vocabulary.pre]
        pieces = {token: id for id, token in enumerate(tokens) if types[id] != UNUSED}
        merges = [tuple(merge.split(" ")) for merge in vocabulary.get("merges")]
        tokenizer = tokenizers.Tokenizer(models.BPE(pieces, merges, ignore_merges=ignore_merges))
        tokenizer.pre_tokenizer = pre_tokenizer
        tokenizer.decoder = decoders.ByteLevel()
    else:
        prefix = vocabulary.get("add_space_prefix", True)
        if vocabulary.model == "llama":
            model = sentence_piece_bpe(vocabulary)
        else:
            scores = list(zip(tokens, map(float, vocabulary.get("scores"))))
            model = models.Unigram(scores, vocabulary.get("unknown_token_id"), BYTE in types)
        tokenizer = tokenizers.Tokenizer(model)
        steps = [normalizers.Prepend("▁")] * prefix + [normalizers.Replace(" ", "▁")]
        tokenizer.normalizer = normalizers.Sequence(steps)
        steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
        tokenizer.decoder = decoders.Sequence(steps + [decoders.Strip(" ", 1, 0)] * prefix)
    # A marker is found in the text as it was written, before spaces are replaced.
    markers = [(token, kind) for token, kind in zip(tokens, types) if kind in (UNKNOWN, CONTROL, USER_DEFINED)]
    tokenizer.add_special_tokens([added(token, True) for token, kind in markers if kind != USER_DEFINED])
    tokenizer.add_tokens([added(token, False) for token, kind in markers if kind == USER_DEFINED])
    return tokenizer


def added(token, special):
    return tokenizers.AddedToken(token, special=special, normalized=False)


def sentence_piece_bpe(vocabulary):
    """SentencePiece merges any two neighbours whose joint text is a piece, the highest score first."""
    tokens, types, scores = vocabulary.tokens, vocabulary.types, vocabulary.get("scores")
    pieces = {token: id for id, token in enumerate(tokens)}
    mergeable = {token for token, kind in zip(tokens, types) if kind in (NORMAL, USER_DEFINED)}
    merges = []
    for token in mergeable:
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in mergeable and right in mergeable:
                merges.append((-scores[pieces[token]], -len(left), left, right))
    merges = [(left, right) for _, _, left, right in sorted(merges)]
    unknown = tokens[vocabulary.get("unknown_token_id", 0)]
    return models.BPE(pieces, merges, unk_token=unknown, fuse_unk=True, byte_fallback=BYTE in types)


def encode_with(tokenizer, around):
    """`encode` of a tokenizer of the `tokenizers` library."""
    prefix, suffix = around

    def encode(text, parsed):
        tokenizer.encode_special_tokens = not parsed
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        return ids if parsed else prefix + ids + suffix

    return encode
