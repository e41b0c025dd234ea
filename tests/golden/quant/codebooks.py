"""Writes crates/blocks/src/codebooks/tables.rs: the codebooks of the types IQ1, IQ2 and IQ3.

An entry of a codebook is eight numbers of three values (IQ1, IQ2) or four of eight values (IQ3). The tables hold the
places of the values, two or three bits each, the first number in the lowest bits. They are part of the file format; the
numbers come from the `gguf` package.

    python codebooks.py             # needs gguf (written with gguf 0.19)
"""

from pathlib import Path

from gguf import quants

NAMES = ["IQ1_S", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"]
HEAD = """//! The entries of the codebooks, written by `tests/golden/quant/codebooks.py`: the places of the values of each number, two
//! bits (IQ1, IQ2) or three bits (IQ3) each, the first number in the lowest bits.
//!
//! The codebooks are part of the formats and come from ggml (MIT licence, copyright (c) 2023-2026 The ggml authors).
"""


def packed(name):
    kind = getattr(quants, name)
    kind.init_grid()
    values = [float(value) for value in kind.grid_map]
    bits = 2 if len(values) == 3 else 3
    entries = kind.grid.reshape(kind.grid_shape)
    return [sum(values.index(float(x)) << bits * place for place, x in enumerate(entry)) for entry in entries]


def main():
    text = HEAD
    for name in NAMES:
        entries = packed(name)
        text += f"\npub(super) const {name}: [u16; {len(entries)}] = [\n"
        for first in range(0, len(entries), 12):
            text += "    " + " ".join(f"{entry:#06x}," for entry in entries[first : first + 12]) + "\n"
        text += "];\n"
    path = Path(__file__).resolve().parents[3] / "crates/blocks/src/codebooks/tables.rs"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)


if __name__ == "__main__":
    main()
