"""Writes FORMAT.bin for every quantized format: blocks and the f32 that the `gguf` package makes of them.

A file is a little-endian u32 number of bytes, that many bytes of blocks, then the expected elements as f32.
The bits of the blocks are random; their scales are f16 numbers of the size found in models. llama.cpp must make the
same f32 of every format; it alone makes those of Q1_0 and Q2_0, which the package lacks.

    python make.py [NAME ...]       # needs numpy, gguf (written with gguf 0.19) and xllamacpp (2026.10.11549)
"""

import ctypes
import sys
from pathlib import Path

import numpy as np
import xllamacpp
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants

BLOCKS = 8
# Where the f16 scales and minima lie in a block.
SCALES = {
    "Q4_0": [0],
    "Q4_1": [0, 2],
    "Q5_0": [0],
    "Q5_1": [0, 2],
    "Q8_0": [0],
    "Q2_K": [80, 82],
    "Q3_K": [108],
    "Q4_K": [0, 2],
    "Q5_K": [0, 2],
    "Q6_K": [208],
    "BF16": [],
    "F16": [],
    "IQ4_NL": [0],
    "MXFP4": None,
    "Q1_0": [0],
    "Q2_0": [0],
    "TQ1_0": [52],
    "TQ2_0": [64],
    "NVFP4": None,
    "IQ4_XS": [0],
    "IQ3_S": [0],
    "IQ3_XXS": [0],
    "IQ2_XXS": [0],
    "IQ2_XS": [0],
    "IQ2_S": [0],
    "IQ1_S": [0],
    "IQ1_M": None,
}
# Elements and bytes per block of the types that the package lacks.
NEW_TYPES = {"Q2_0": (64, 18)}


def floats(generator, count):
    """Finite numbers: random bits would hold NaNs, whose payload need not survive a conversion."""
    return (generator.standard_normal(count) * 10.0 ** generator.integers(-6, 4, count)).astype(np.float32)


def f16_scales(generator):
    values = generator.uniform(-0.1, 0.1, BLOCKS).astype(np.float16)
    # The smallest normal, a subnormal and a zero are scales too.
    values[:3] = np.float16(6.104e-05), np.float16(3e-7), np.float16(0)
    return values


def random_blocks(generator, name, block_bytes):
    blocks = generator.integers(0, 256, (BLOCKS, block_bytes), dtype=np.uint8)
    if name == "MXFP4":
        # Exponents, among them the smallest ones and the largest.
        blocks[:, 0] = [0, 1, 2, 3, 120, 125, 127, 250]
    elif name == "NVFP4":
        # Scales that are zero, the largest, the smallest ones, and with a bit that is ignored.
        blocks[0, :4] = [0, 0x7F, 0x7E, 0x01]
        blocks[1, :4] = [0xFF, 0x80, 0x07, 0x08]
    elif name == "IQ1_M":
        # The upper four bits of each of the last four words are those of the f16.
        bits = f16_scales(generator).view(np.uint16)
        words = blocks[:, 48:].view(np.uint16)
        words &= 0x0FFF
        words |= (bits[:, None] >> np.array([0, 4, 8, 12], np.uint16) & 0xF) << 12
    else:
        for offset in SCALES[name]:
            blocks[:, offset : offset + 2] = f16_scales(generator).view(np.uint8).reshape(BLOCKS, 2)
    return blocks.reshape(-1)


def by_llama_cpp(name, stored, count):
    """The elements that llama.cpp makes of some blocks."""
    library = ctypes.CDLL(str(next(Path(xllamacpp.__file__).parent.glob("*.so"))))
    dequantize = getattr(library, "dequantize_row_" + name.lower().replace("_k", "_K"))
    dequantize.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64]
    out = np.empty(count, np.float32)
    dequantize(stored.ctypes.data, out.ctypes.data, count)
    return out


def main():
    folder = Path(__file__).parent
    for index, (name, scales) in enumerate(SCALES.items()):
        if len(sys.argv) > 1 and name not in sys.argv[1:]:
            continue
        generator = np.random.default_rng(index)
        if scales == []:
            kind = GGMLQuantizationType[name]
            stored = quants.quantize(floats(generator, 1000), kind).view(np.uint8).reshape(-1)
            expected = quants.dequantize(stored, kind)
        else:
            known = NEW_TYPES.get(name) or GGML_QUANT_SIZES[GGMLQuantizationType[name]]
            elements, block_bytes = known
            stored = random_blocks(generator, name, block_bytes)
            expected = by_llama_cpp(name, stored, BLOCKS * elements)
            if name not in ("Q1_0", "Q2_0"):
                package = quants.dequantize(stored, GGMLQuantizationType[name]).reshape(-1)
                assert np.array_equal(package, expected), name
                expected = package
        expected = expected.astype("<f4").reshape(-1)
        assert np.isfinite(expected).all(), name
        content = np.uint32(stored.size).astype("<u4").tobytes() + stored.tobytes() + expected.tobytes()
        (folder / f"{name}.bin").write_bytes(content)


if __name__ == "__main__":
    main()
