"""Writes small GGUF models that say a fixed script. Attention and feed-forward are zero, so that the residual stream is the
one-hot embedding of the last token; the output matrix maps each token to the one that follows it."""

import struct
from array import array

FEED_FORWARD = 32
END, USER, ASSISTANT = "<|end|>", "<|u|>", "<|a|>"
CHATML = (
    "{% for m in messages %}<|u|>{{ m.role }}\n{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<|a|>{% endif %}"
)
CONTROL, USER_DEFINED, NORMAL = 3, 4, 1
U32, F32, STRING, ARRAY, I32 = 4, 6, 8, 9, 5


def letters():
    """GPT-2's printable letter of each byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + index) for index, byte in enumerate(others)}


LETTERS = letters()


class Model:
    """A vocabulary of all bytes, words as control tokens, and the pieces of scripts."""

    def __init__(self, *words, kind=CONTROL):
        self.tokens = [LETTERS[byte] for byte in range(256)]
        self.kinds = [NORMAL] * 256
        self.next = {}
        self.words = {}
        for word in (END, USER, ASSISTANT):
            self.words[word] = self.add(word, CONTROL)
        for word in words:
            self.words[word] = self.add(word, kind)

    def add(self, spelling, kind):
        self.tokens.append(spelling)
        self.kinds.append(kind)
        return len(self.tokens) - 1

    def piece(self, text):
        """The token of a text; one that a script has said before gets another token, if it has several bytes."""
        if text in self.words:
            return self.words[text]
        data = text.encode()
        if len(data) == 1 and data[0] not in self.next:
            return data[0]
        spelling = "".join(LETTERS[byte] for byte in data)
        return self.tokens.index(spelling) if spelling in self.tokens[256:] else self.add(spelling, NORMAL)

    def says(self, *pieces, after=ASSISTANT, end=END):
        """After the word `after` the model says these pieces."""
        token = self.words[after] if after in self.words else self.piece(after)
        for piece in (*pieces, *([end] if end else [])):
            following = self.piece(piece)
            assert token not in self.next, f"{piece!r} follows two things"
            self.next[token] = following
            token = following
        return self

    def save(self, path, template=CHATML, context=1024, extra=()):
        """Writes the file. `extra` has further metadata: names, kinds and values."""
        size = -(-len(self.tokens) // 32) * 32
        metadata = [
            ("general.architecture", STRING, "llama"),
            ("llama.embedding_length", U32, size),
            ("llama.block_count", U32, 1),
            ("llama.feed_forward_length", U32, FEED_FORWARD),
            ("llama.context_length", U32, context),
            ("llama.attention.head_count", U32, size // 32),
            ("llama.attention.head_count_kv", U32, size // 32),
            ("llama.attention.layer_norm_rms_epsilon", F32, 1e-5),
            ("llama.rope.freq_base", F32, 10000.0),
            ("tokenizer.ggml.model", STRING, "gpt2"),
            ("tokenizer.ggml.pre", STRING, "gpt-2"),
            ("tokenizer.ggml.tokens", ARRAY, (STRING, self.tokens)),
            ("tokenizer.ggml.token_type", ARRAY, (I32, self.kinds)),
            ("tokenizer.ggml.merges", ARRAY, (STRING, [])),
            ("tokenizer.ggml.eos_token_id", U32, self.words[END]),
            *([("tokenizer.chat_template", STRING, template)] if template is not None else []),
            *extra,
        ]
        count = len(self.tokens)
        # Where a form leaves several tokens, white space is the last choice: it may go on without end.
        follows = {(byte, column): -1.0 for byte in b"\t\n\r " for column in range(size)}
        follows |= {(following, token): 3.0 for token, following in self.next.items()}
        square = {name: (size, size, {}) for name in ("attn_q", "attn_k", "attn_v", "attn_output")}
        wide = {"ffn_gate": (FEED_FORWARD, size, {}), "ffn_up": (FEED_FORWARD, size, {}), "ffn_down": (size, FEED_FORWARD, {})}
        ones = {(0, column): 1.0 for column in range(size)}
        tensors = {
            "token_embd.weight": (count, size, {(token, token): 1.0 for token in range(count)}),
            "output.weight": (count, size, follows),
            "output_norm.weight": (1, size, ones),
            "blk.0.attn_norm.weight": (1, size, ones),
            "blk.0.ffn_norm.weight": (1, size, ones),
            **{f"blk.0.{name}.weight": tensor for name, tensor in (square | wide).items()},
        }
        path.write_bytes(encoded(metadata, tensors))


def text(value):
    return struct.pack("<Q", len(value.encode())) + value.encode()


def encoded_value(kind, value):
    if kind == STRING:
        return text(value)
    if kind == ARRAY:
        inner, values = value
        return struct.pack("<IQ", inner, len(values)) + b"".join(encoded_value(inner, one) for one in values)
    return struct.pack({U32: "<I", I32: "<i", F32: "<f"}[kind], value)


def encoded(metadata, tensors):
    header = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    for name, kind, value in metadata:
        header += text(name) + struct.pack("<I", kind) + encoded_value(kind, value)
    data = b""
    for name, (rows, columns, values) in tensors.items():
        dimensions = [columns] if rows == 1 else [columns, rows]
        header += text(name) + struct.pack("<I", len(dimensions)) + struct.pack(f"<{len(dimensions)}Q", *dimensions)
        header += struct.pack("<IQ", 0, len(data))
        matrix = array("f", bytes(4 * rows * columns))
        for (row, column), value in values.items():
            matrix[row * columns + column] = value
        data += matrix.tobytes()
        data += bytes(-len(data) % 32)
    return header + bytes(-len(header) % 32) + data
