#include "hmx_model.h"

#include "hmx.h"
#include "hmx_decode.h"
#include "hmx_half.h"
#include "vector.h"

// Sizes of the unit, as published. They are not those of hmx.h, so that a wrong one there is found.
enum { ROWS = 64, COLUMNS = 32, FEATURES = 32, TILE = 2048, WORDS = 128, MAX_OF_ONE = 32, BOUNDARY = 0x40000 };
enum { WEIGHTS_OF_S8 = 1024, WEIGHTS_OF_S4 = 512, WEIGHTS_OF_HALF = 2048 };
#define ROW_VECTORS (TILE / VECTOR)
#define QUADS (FEATURES / 4)

static struct {
    const uint8_t *start;
    uint32_t bytes, fault, is_held;
    // MODEL_* of protocol.h.
    uint64_t variants;
    struct hmx_counts counts;
    // The set of accumulators that is current, of integers and of fp16.
    uint32_t current, current_fp16;
    uint32_t table[COLUMNS] __attribute__((aligned(VECTOR)));
    Vector sums[2][ROWS];
    float sums_fp16[2][32][32];
} unit;

// The accumulators and the table begin with other numbers than zero, as they may on a DSP.
void model_start(const uint8_t *start, uint32_t bytes, uint64_t variants) {
    unit.variants = variants;
    unit.start = start;
    unit.bytes = bytes;
    for (uint32_t set = 0; set < 2; set++) {
        for (uint32_t row = 0; row < ROWS; row++) {
            unit.sums[set][row] = HVX(lvsplatw)(0x01234567 * (int32_t)(row + set + 1));
        }
        for (uint32_t index = 0; index < 32 * 32; index++) {
            unit.sums_fp16[set][index / 32][index % 32] = 3.0f;
        }
    }
    for (uint32_t column = 0; column < COLUMNS; column++) {
        unit.table[column] = 5 << 10;
    }
}

uint32_t model_fault(void) {
    const uint32_t fault = unit.fault;
    unit.fault = FAULT_NONE;
    return fault;
}

int model_hold(int holds) {
    unit.is_held = holds && !(unit.variants & MODEL_NO_LOCK);
    return unit.is_held == (uint32_t)holds;
}

struct hmx_counts model_take_counts(void) {
    const struct hmx_counts counts = unit.counts;
    unit.counts.end = 0;
    return counts;
}

// Returns a fault if the range is not in VTCM, is not aligned, or crosses a boundary. Counts its bytes.
static uint32_t use(uint32_t address, uint32_t bytes, uint32_t alignment) {
    const uint32_t offset = address - (uint32_t)(unsigned long)unit.start;
    if (address % alignment != 0) {
        return FAULT_ALIGNMENT;
    }
    if (offset >= unit.bytes || bytes > unit.bytes - offset) {
        return FAULT_ADDRESS;
    }
    if (address / BOUNDARY != (address + bytes - 1) / BOUNDARY) {
        return FAULT_CUT;
    }
    unit.counts.bytes += bytes;
    unit.counts.end = offset + bytes > unit.counts.end ? offset + bytes : unit.counts.end;
    return FAULT_NONE;
}

// Writes the weights of a tile, with 128 added, as a vector for each quad of features.
static void expand(Vector *to, const uint8_t *tile, uint32_t type) {
    const Vector *from = (const Vector *)tile, flip = HVX(lvsplatw)((int32_t)0x80808080);
    if (type == S8) {
        for (uint32_t quad = 0; quad < QUADS; quad++) {
            to[quad] = HVX(vxor)(from[quad], flip);
        }
        return;
    }
    // A nibble's sign is its bit 3. (x ^ 8) + 120 is x + 128.
    const Vector low = HVX(lvsplatw)(0x0f0f0f0f), eight = HVX(lvsplatw)(0x08080808), add = HVX(lvsplatw)(0x78787878);
    for (uint32_t index = 0; index < QUADS / 2; index++) {
        const Vector high = HVX(vlsrw)(from[index], 4);
        to[2 * index] = HVX(vaddb)(HVX(vxor)(HVX(vand)(from[index], low), eight), add);
        to[2 * index + 1] = HVX(vaddb)(HVX(vxor)(HVX(vand)(high, low), eight), add);
    }
}

// Adds Σ activation · weight to each sum of the current set: Σ activation · (weight + 128) − 128 · Σ activation.
static void multiply_bytes(const uint8_t *activations, const uint8_t *weights, uint32_t type, uint32_t croutons) {
    if (unit.variants & MODEL_SHORT) {
        croutons = croutons < 8 ? croutons : 8;
    }
    enum { AT_ONCE = 8 };
    const Vector ones = HVX(lvsplatw)(0x01010101);
    Vector *sums = unit.sums[unit.current], of_rows[ROW_VECTORS], expanded[QUADS];
    for (uint32_t index = 0; index < ROW_VECTORS; index++) {
        of_rows[index] = HVX(vd0)();
    }
    for (uint32_t crouton = 0; crouton < croutons; crouton++, activations += TILE) {
        expand(expanded, weights, type);
        weights += type == S8 ? WEIGHTS_OF_S8 : WEIGHTS_OF_S4;
        for (uint32_t first = 0; first < ROWS; first += AT_ONCE) {
            const int32_t *words = (const int32_t *)(activations + first * FEATURES);
            Vector sum[AT_ONCE];
#pragma unroll
            for (uint32_t row = 0; row < AT_ONCE; row++) {
                sum[row] = sums[first + row];
            }
            for (uint32_t quad = 0; quad < QUADS; quad++) {
#pragma unroll
                for (uint32_t row = 0; row < AT_ONCE; row++) {
                    sum[row] = HVX(vrmpyub_acc)(sum[row], expanded[quad], words[row * QUADS + quad]);
                }
            }
#pragma unroll
            for (uint32_t row = 0; row < AT_ONCE; row++) {
                sums[first + row] = sum[row];
            }
        }
        for (uint32_t index = 0; index < ROW_VECTORS; index++) {
            of_rows[index] = HVX(vrmpyubv_acc)(of_rows[index], ((const Vector *)activations)[index], ones);
        }
    }
    // Eight words for each of the four rows of a vector.
    for (uint32_t row = 0; row < ROWS; row++) {
        uint32_t words[VECTOR / 4] __attribute__((aligned(VECTOR))), sum = 0;
        *(Vector *)words = of_rows[row / 4];
        for (uint32_t word = 0; word < 8; word++) {
            sum += words[row % 4 * 8 + word];
        }
        sums[row] = HVX(vsubw)(sums[row], HVX(lvsplatw)((int32_t)(128 * sum)));
    }
}

// The unit has sums of 37 bits, and how it rounds them is not known. The model has f32.
static void multiply_fp16(const uint8_t *activations, const uint8_t *weights, uint32_t croutons) {
    for (; croutons > 0; croutons--, activations += TILE, weights += TILE) {
        const uint16_t *x = (const uint16_t *)activations, *w = (const uint16_t *)weights;
        for (uint32_t k = 0; k < FEATURES; k++) {
            float of_columns[32];
            for (uint32_t column = 0; column < 32; column++) {
                of_columns[column] = from_half(w[k / 2 * 64 + column * 2 + k % 2]);
            }
            for (uint32_t row = 0; row < 32; row++) {
                float *sums = unit.sums_fp16[unit.current_fp16][row];
                const float number = from_half(x[row / 2 * 64 + k * 2 + row % 2]);
                for (uint32_t column = 0; column < 32; column++) {
                    sums[column] = __builtin_fmaf(number, of_columns[column], sums[column]);
                }
            }
        }
    }
}

// Executes a packet of an activation and a weight.
static uint32_t product(const struct instruction *activation, const struct instruction *weight, const uint32_t registers[4]) {
    const uint32_t low = TILE - 1, weight_low = 127, is_fp16 = activation->type == HALF;
    const uint32_t x = registers[activation->rs], of_x = registers[activation->rt];
    const uint32_t w = registers[weight->rs], of_w = registers[weight->rt];
    if (is_fp16 != (weight->type == HALF)) {
        return FAULT_TYPES;
    }
    const uint32_t tile = is_fp16 ? WEIGHTS_OF_HALF : weight->type == S8 ? WEIGHTS_OF_S8 : WEIGHTS_OF_S4;
    const uint32_t croutons = of_x / TILE + 1, bytes = (of_w | weight_low) + 1;
    // The lower bits say which features of the first and of the last crouton are multiplied: all.
    if ((of_x & low) != low || croutons > MAX_OF_ONE) {
        return FAULT_COUNT;
    }
    if (bytes != croutons * tile || of_w % (weight_low + 1) != weight_low) {
        return FAULT_LENGTHS;
    }
    uint32_t fault = use(x, croutons * TILE, TILE);
    fault = fault != FAULT_NONE ? fault : use(w, bytes, weight_low + 1);
    if (fault == FAULT_NONE && is_fp16) {
        multiply_fp16((const uint8_t *)(unsigned long)x, (const uint8_t *)(unsigned long)w, croutons);
    } else if (fault == FAULT_NONE) {
        multiply_bytes((const uint8_t *)(unsigned long)x, (const uint8_t *)(unsigned long)w, weight->type, croutons);
    }
    return fault;
}

// Converts a sum to a byte: the floor of sum · scale · 2^(exponent − 24), where the scale's unit is 2⁻¹¹.
static uint32_t byte_of(int32_t sum, uint32_t word, int clamps) {
    const uint32_t scale = (~word >> 16 & 1) << 11 | (word & 0x3ff) << 1 | word >> 31, exponent = word >> 10 & 31;
    const int64_t number = (int64_t)sum * scale >> (24 + 11 - exponent);
    if (clamps) {
        return number < 0 ? 0 : number > 255 ? 255 : (uint32_t)number;
    }
    return (uint32_t)number & 255;
}

// Returns whether the words of the table have a shape function or an output bias, which the model does not have.
static int has_other_fields(void) {
    for (uint32_t column = 0; column < COLUMNS; column++) {
        if (unit.table[column] & 0x7ffe8000u) {
            return 1;
        }
    }
    return 0;
}

// Returns whether the scale of all columns is 1.
static int has_scale_one(void) {
    uint32_t all = 0;
    for (uint32_t column = 0; column < COLUMNS; column++) {
        all |= unit.table[column];
    }
    return (all & ~(31u << 10)) == 0;
}

// Does the same as byte_of where the scale is 1: bits 31:24 of the sum, shifted by the exponent.
static void store_shifted(uint8_t *to) {
    const Vector exponents = HVX(vlsrw)(*(const Vector *)unit.table, 10), *sums = unit.sums[unit.current];
    for (uint32_t row = 0; row < ROWS; row += 4, sums += 4, to += VECTOR) {
        Vector bytes[4];
        for (uint32_t index = 0; index < 4; index++) {
            bytes[index] = HVX(vlsrw)(HVX(vaslwv)(sums[index], exponents), 24);
        }
        *(Vector *)to = HVX(vpackeb)(HVX(vpackeh)(bytes[3], bytes[2]), HVX(vpackeh)(bytes[1], bytes[0]));
    }
}

static uint32_t store_bytes(const struct instruction *store, const uint32_t registers[4]) {
    const uint32_t to = registers[store->rs];
    const uint32_t fault = registers[store->rt] != 0 ? FAULT_COUNT : use(to, TILE, TILE);
    if (fault != FAULT_NONE) {
        return fault;
    }
    if (has_other_fields()) {
        return FAULT_TABLE;
    }
    if (!store->clamps && has_scale_one()) {
        store_shifted((uint8_t *)(unsigned long)to);
    } else {
        uint8_t *bytes = (uint8_t *)(unsigned long)to;
        const int32_t *sums = (const int32_t *)unit.sums[unit.current];
        for (uint32_t index = 0; index < ROWS * COLUMNS; index++) {
            bytes[index] = (uint8_t)byte_of(sums[index], unit.table[index % COLUMNS], store->clamps);
        }
    }
    if (!store->keeps) {
        for (uint32_t row = 0; row < ROWS; row++) {
            unit.sums[unit.current][row] = HVX(vd0)();
            if (unit.variants & MODEL_CLEARS_BOTH) {
                unit.sums[!unit.current][row] = HVX(vd0)();
            }
        }
        unit.current ^= 1;
    }
    return FAULT_NONE;
}

static uint32_t store_fp16(const struct instruction *store, const uint32_t registers[4]) {
    const uint32_t to = registers[store->rs];
    const uint32_t fault = registers[store->rt] != 0 ? FAULT_COUNT : use(to, TILE, TILE);
    if (fault != FAULT_NONE) {
        return fault;
    }
    uint16_t *numbers = (uint16_t *)(unsigned long)to;
    for (uint32_t row = 0; row < 32; row++) {
        for (uint32_t column = 0; column < 32; column++) {
            const uint32_t word = unit.table[column];
            float *sum = &unit.sums_fp16[unit.current_fp16][row][column];
            const float scaled = __builtin_fmaf(*sum, from_half((uint16_t)word), from_half((uint16_t)(word >> 16)));
            numbers[row / 2 * 64 + column * 2 + row % 2] = to_half(scaled);
            *sum = store->keeps ? *sum : 0.0f;
        }
    }
    unit.current_fp16 ^= !store->keeps;
    return FAULT_NONE;
}

static uint32_t load_table(uint32_t address) {
    const uint32_t fault = use(address, WORDS, WORDS);
    for (uint32_t column = 0; fault == FAULT_NONE && column < COLUMNS; column++) {
        unit.table[column] = ((const uint32_t *)(unsigned long)address)[column];
    }
    return fault;
}

// Executes a packet of one instruction.
static uint32_t execute_one(const struct instruction *only, const uint32_t registers[4]) {
    switch (only->operation) {
    case LOAD_TABLE:
        return load_table(registers[only->rs]);
    case CLEAR:
        for (uint32_t row = 0; row < ROWS; row++) {
            unit.sums[0][row] = unit.sums[1][row] = HVX(vd0)();
        }
        return FAULT_NONE;
    case CLEAR_FP16:
        for (uint32_t index = 0; index < 32 * 32; index++) {
            unit.sums_fp16[0][index / 32][index % 32] = unit.sums_fp16[1][index / 32][index % 32] = 0.0f;
        }
        return FAULT_NONE;
    case SWAP:
        unit.current ^= 1;
        return FAULT_NONE;
    case SWAP_FP16:
        unit.current_fp16 ^= 1;
        return FAULT_NONE;
    case STORE_BYTES:
        return store_bytes(only, registers);
    case STORE_FP16:
        return store_fp16(only, registers);
    default:
        return FAULT_PACKET;
    }
}

// Returns whether the registers that an instruction reads are those of its arguments: hmx_leaves.h.
static int has_arguments(const struct instruction *of) {
    switch (of->operation) {
    case WEIGHT:
        return of->rs == 2 && of->rt == 3;
    case ACTIVATION:
    case STORE_BYTES:
    case STORE_FP16:
        return of->rs == 0 && of->rt == 1;
    default:
        return of->rs == 0;
    }
}

static uint32_t execute(const uint32_t *words, const uint32_t registers[4]) {
    enum { MORE = 1, END = 3, MAX_WORDS = 4 };
    const uint32_t jumpr_r31 = 0x529fc000;
    struct instruction packet[MAX_WORDS];
    uint32_t count = 0;
    if (!unit.is_held) {
        return FAULT_LOCK;
    }
    do {
        if (count == MAX_WORDS) {
            return FAULT_PACKET;
        }
        packet[count] = hmx_decode(words[count]);
        if (packet[count].operation <= UNMODELLED) {
            return packet[count].operation == NOTHING ? FAULT_WORD : FAULT_UNMODELLED;
        }
        // 00 is a duplex, 10 the end of a loop.
        if (packet[count].parse != MORE && packet[count].parse != END) {
            return FAULT_PARSE;
        }
        if (!has_arguments(&packet[count])) {
            return FAULT_REGISTER;
        }
    } while (packet[count++].parse == MORE);
    if (words[count] != jumpr_r31) {
        // A packet cut in two is one that has only an activation.
        return packet[0].operation == ACTIVATION && count == 1 ? FAULT_PACKET : FAULT_RETURN;
    }
    unit.counts.instructions += count;
    if (count == 1) {
        return execute_one(&packet[0], registers);
    }
    // The activation has the lower address: the weight is slot 0's.
    if (count != 2 || packet[0].operation != ACTIVATION || packet[1].operation != WEIGHT) {
        return FAULT_PACKET;
    }
    return product(&packet[0], &packet[1], registers);
}

void model_execute(const uint32_t *words, const uint32_t registers[4]) {
    if (unit.fault == FAULT_NONE) {
        unit.fault = execute(words, registers);
    }
}
