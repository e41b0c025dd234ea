"""Writes FORMAT.bin for every quantized format: blocks and the f32 that the `gguf` package makes of them.

A file is a little-endian u32 number of bytes, that many bytes of blocks, then the expected elements as f32.
The bits of the blocks are random; their scales are f16 numbers of the size found in models.

    python make.py        # needs numpy and gguf (written with gguf 0.19)
"""

from pathlib import Path

import numpy as np
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
}


def floats(generator, count):
    """Finite numbers: random bits would hold NaNs, whose payload need not survive a conversion."""
    return (generator.standard_normal(count) * 10.0 ** generator.integers(-6, 4, count)).astype(np.float32)


def main():
    folder = Path(__file__).parent
    for index, (name, scales) in enumerate(SCALES.items()):
        generator = np.random.default_rng(index)
        kind = GGMLQuantizationType[name]
        if scales:
            _, block_bytes = GGML_QUANT_SIZES[kind]
            blocks = generator.integers(0, 256, (BLOCKS, block_bytes), dtype=np.uint8)
            for offset in scales:
                values = generator.uniform(-0.1, 0.1, BLOCKS).astype(np.float16)
                # The smallest normal, a subnormal and a zero are scales too.
                values[:3] = np.float16(6.104e-05), np.float16(3e-7), np.float16(0)
                blocks[:, offset : offset + 2] = values.view(np.uint8).reshape(BLOCKS, 2)
            stored = blocks.reshape(-1)
        else:
            stored = quants.quantize(floats(generator, 1000), kind).view(np.uint8).reshape(-1)
        expected = quants.dequantize(stored, kind).astype("<f4").reshape(-1)
        assert np.isfinite(expected).all()
        content = np.uint32(stored.size).astype("<u4").tobytes() + stored.tobytes() + expected.tobytes()
        (folder / f"{name}.bin").write_bytes(content)


if __name__ == "__main__":
    main()
