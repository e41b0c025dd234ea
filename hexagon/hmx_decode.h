// Decodes instruction words of HMX by a table of its own, independent of those of the leaves.
#pragma once

#include <stdint.h>

enum operation {
    // No instruction, or one with reserved bits that are not zero.
    NOTHING = 0,
    // An instruction that the model does not have.
    UNMODELLED,
    ACTIVATION,
    WEIGHT,
    // bias = mxmem(Rs)
    LOAD_TABLE,
    CLEAR,
    CLEAR_FP16,
    SWAP,
    SWAP_FP16,
    STORE_BYTES,
    STORE_FP16,
};

enum type { NO_TYPE = 0, U8, S8, S4, HALF };

struct instruction {
    uint8_t operation, type;
    // Of a store: whether accumulators are kept, and results are clamped.
    uint8_t keeps, clamps;
    // Numbers of the registers.
    uint8_t rs, rt;
    // Bits 15:14.
    uint8_t parse;
};

struct instruction hmx_decode(uint32_t word);
