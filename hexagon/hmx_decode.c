#include "hmx_decode.h"

// An instruction with two registers: bits 7:0 of its word, and what they mean.
struct code {
    uint8_t code, operation, type, keeps, clamps;
};

// Loads whose bit 13 is 0: activations. All but the first two are listed so that they are told from no instruction.
static const struct code activations[] = {
    {0xe1, ACTIVATION, U8, 0, 0},   // ub:deep:cm
    {0xe2, ACTIVATION, HALF, 0, 0}, // hf:deep
    {0xe0, UNMODELLED, U8, 0, 0},   // ub:deep
    {0xe3, UNMODELLED, 0, 0, 0},    // f8:deep
    {0xec, UNMODELLED, U8, 0, 0},   // ub
    {0xed, UNMODELLED, U8, 0, 0},   // ub:cm
    {0xe4, UNMODELLED, HALF, 0, 0}, // hf
    {0xe5, UNMODELLED, 0, 0, 0},    // f8
    {0xee, UNMODELLED, U8, 0, 0},   // ub:above
    {0xef, UNMODELLED, U8, 0, 0},   // ub:above:cm
    {0xe6, UNMODELLED, HALF, 0, 0}, // hf:above
    {0xe7, UNMODELLED, 0, 0, 0},    // f8:above
    {0xf0, UNMODELLED, U8, 0, 0},   // ub:single
    {0xf1, UNMODELLED, U8, 0, 0},   // ub:single:cm
    {0xf8, UNMODELLED, HALF, 0, 0}, // hf:single
    {0xf9, UNMODELLED, 0, 0, 0},    // f8:single
    {0xe8, UNMODELLED, U8, 0, 0},   // ub:dilate
    {0xe9, UNMODELLED, U8, 0, 0},   // ub:dilate:cm
    {0xfa, UNMODELLED, HALF, 0, 0}, // hf:dilate
    {0xfb, UNMODELLED, 0, 0, 0},    // f8:dilate
};

// Loads whose bit 13 is 1: weights without a modifier. Those with one, and of other types, are not in the model.
static const struct code weights[] = {
    {0xe0, WEIGHT, S8, 0, 0},
    {0xe1, WEIGHT, S4, 0, 0},
    {0xef, WEIGHT, HALF, 0, 0},
};

// Stores whose bit 13 is 0: bytes. Bit 0 is :cm, bit 1 no :sat, bit 2 :after, bit 3 :retain.
static const struct code stores_of_bytes[] = {
    {0x05, STORE_BYTES, U8, 0, 1},
    {0x07, STORE_BYTES, U8, 0, 0},
    {0x0d, STORE_BYTES, U8, 1, 1},
    {0x0f, STORE_BYTES, U8, 1, 0},
};

// Stores whose bit 13 is 1: fp16.
static const struct code stores_of_halves[] = {
    {0x04, STORE_FP16, HALF, 0, 0},
    {0x0c, STORE_FP16, HALF, 1, 0},
};

// Words of the class of stores without registers.
static const struct code controls[] = {
    {0x11, CLEAR, 0, 0, 0},
    {0x13, CLEAR_FP16, 0, 0, 0},
    {0x14, SWAP, 0, 0, 0},
    {0x15, SWAP_FP16, 0, 0, 0},
};

#define FIND(table, code) find(table, sizeof(table) / sizeof(table)[0], code)

static struct instruction find(const struct code *table, uint32_t count, uint32_t code) {
    for (uint32_t index = 0; index < count; index++) {
        if (table[index].code == code) {
            return (struct instruction){.operation = table[index].operation,
                                        .type = table[index].type,
                                        .keeps = table[index].keeps,
                                        .clamps = table[index].clamps};
        }
    }
    return (struct instruction){.operation = NOTHING};
}

// Returns whether the codes of weights have this one, with any type and modifier.
static int is_weight(uint32_t code) {
    return (code >= 0xe0 && code <= 0xfd && code != 0xe5 && code != 0xea) || (code >= 0xc0 && code <= 0xd3) ||
           (code >= 0x41 && code <= 0x4c);
}

// Returns whether a store has this code of six bits.
static int is_store(uint32_t bit_13, uint32_t code) {
    return bit_13 ? code < 0x20 : code < 0x10 || (code >= 0x10 && code <= 0x1e && code != 0x12);
}

struct instruction hmx_decode(uint32_t word) {
    const uint32_t class = word >> 21, bit_13 = word >> 13 & 1, code = word & 0xff;
    const uint8_t rs = word >> 16 & 31, rt = word >> 8 & 31, parse = word >> 14 & 3;
    const uint32_t loads = 0x490, stores = 0x537, table_rt = 3;
    struct instruction found = {.operation = NOTHING};
    if (class == loads && !bit_13 && code == 0xff) {
        found.operation = rt == table_rt ? LOAD_TABLE : NOTHING;
    } else if (class == loads && !bit_13 && code == 0xfe) {
        found.operation = rt == table_rt ? UNMODELLED : NOTHING;
    } else if (class == loads && !bit_13) {
        found = FIND(activations, code);
    } else if (class == loads) {
        found = FIND(weights, code);
        if (found.operation == NOTHING && is_weight(code)) {
            found.operation = UNMODELLED;
        }
    } else if (class == stores && bit_13) {
        found = FIND(stores_of_halves, code);
    } else if (class == stores) {
        found = FIND(stores_of_bytes, code);
        if (found.operation == NOTHING) {
            found = FIND(controls, code);
            if (found.operation != NOTHING && (rs != 0 || rt != 0)) {
                found.operation = NOTHING;
            }
        }
    }
    if (found.operation == NOTHING && class == stores && is_store(bit_13, code)) {
        found.operation = UNMODELLED;
    }
    found.rs = rs;
    found.rt = rt;
    found.parse = parse;
    return found;
}
