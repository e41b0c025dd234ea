#include "hmx_proof.h"

#include "hmx.h"
#include "hmx_leaves.h"
#include "product.h"
#include "system.h"

typedef int32_t Vector __attribute__((__vector_size__(VECTOR)));
#define HVX(name) __builtin_HEXAGON_V6_##name##_128B

// Croutons of the products, and places in the memory.
enum { CROUTONS = 2, ACTIVATIONS = 0, WEIGHTS = 8 << 10, RESULT = 16 << 10, TABLES = 24 << 10, SUMS = 32 << 10 };

static uint32_t state;

// Returns the next number of a generator of pseudo-random ones.
static uint32_t draw(void) {
    state = state * 1664525u + 1013904223u;
    return state >> 16;
}

// The number of the check that runs, and the first fault.
struct proof {
    uint8_t *near;
    uint32_t check, fault;
};

static void found(struct proof *proof, uint32_t fault) {
    if (proof->fault == FAULT_NONE && fault != FAULT_NONE) {
        proof->fault = fault + 256 * proof->check;
    }
}

// Returns the four signed weights of the features from 4 · `quad` on of a column.
static int32_t weights_of(const uint8_t *weights, uint32_t kind, uint32_t quad, uint32_t column) {
    const uint32_t *words = (const uint32_t *)weights;
    if (kind == KIND_INT8) {
        return (int32_t)words[quad * HMX_COLUMNS + column];
    }
    // Nibbles: the lower ones are of the first of two quads.
    const uint32_t nibbles = words[quad / 2 * HMX_COLUMNS + column] >> (quad % 2 * 4) & 0x0f0f0f0fu;
    return (int32_t)(nibbles | (nibbles & 0x08080808u) * 30);
}

// Compares the planes with `times` times the product by HVX.
static void compare(struct proof *proof, uint32_t kind, int32_t times) {
    const uint8_t *activations = proof->near + ACTIVATIONS;
    const Vector zeros = HVX(vd0)();
    int32_t *sums = (int32_t *)(proof->near + SUMS);
    hmx_combine(proof->near + RESULT, (const int32_t *)&zeros, HMX_ROWS, sums, HMX_COLUMNS);
    Vector weights[CROUTONS * 8];
    for (uint32_t quad = 0; quad < CROUTONS * 8; quad++) {
        int32_t of_columns[HMX_COLUMNS] __attribute__((aligned(VECTOR)));
        for (uint32_t column = 0; column < HMX_COLUMNS; column++) {
            of_columns[column] = weights_of(proof->near + WEIGHTS, kind, quad, column);
        }
        weights[quad] = *(const Vector *)of_columns;
    }
    for (uint32_t row = 0; row < HMX_ROWS; row++) {
        Vector sum = HVX(vd0)();
        for (uint32_t quad = 0; quad < CROUTONS * 8; quad++) {
            const uint8_t *four = activations + quad / 8 * CROUTON + row * CROUTON_FEATURES + quad % 8 * 4;
            sum = HVX(vrmpybusv_acc)(sum, HVX(lvsplatw)(*(const int32_t *)four), weights[quad]);
        }
        int32_t expected[HMX_COLUMNS] __attribute__((aligned(VECTOR)));
        *(Vector *)expected = sum;
        for (uint32_t column = 0; column < HMX_COLUMNS; column++) {
            if (sums[row * HMX_COLUMNS + column] != times * expected[column]) {
                found(proof, FAULT_RESULT);
                return;
            }
        }
    }
}

// Multiplies as often as `times` says, reads the sums and compares them.
static void check(struct proof *proof, uint32_t kind, int32_t times) {
    proof->check++;
    for (int32_t count = 0; count < times; count++) {
        hmx_multiply(kind, proof->near + ACTIVATIONS, proof->near + WEIGHTS, CROUTONS);
    }
    hmx_read(proof->near + TABLES, proof->near + RESULT);
    found(proof, system_fault());
    compare(proof, kind, times);
}

// Returns the fp16 number for an integer from −7 to 7.
static uint16_t half_of(int32_t number) {
    static const uint16_t halves[8] = {0, 0x3c00, 0x4000, 0x4200, 0x4400, 0x4500, 0x4600, 0x4700};
    return number < 0 ? halves[-number] | 0x8000u : halves[number];
}

// Returns the fp16 number for an integer from −1,023 to 1,023.
static uint16_t half_of_sum(int32_t number) {
    const uint32_t magnitude = (uint32_t)(number < 0 ? -number : number);
    if (magnitude == 0) {
        return 0;
    }
    const uint32_t exponent = 31u - (uint32_t)__builtin_clz(magnitude);
    return (uint16_t)((number < 0 ? 0x8000u : 0) | (exponent + 15) << 10 | (magnitude << (10 - exponent) & 0x3ffu));
}

// Returns the place of feature or row `first` and of row or column `second` of a tile of fp16: pairs are interleaved.
static uint32_t place_of(uint32_t first, uint32_t second) { return first / 2 * 64 + second * 2 + first % 2; }

// Small integers, whose sums fp16 has exactly.
static void check_fp16(struct proof *proof) {
    enum { LEAST = -3, COUNT = 7 };
    static int8_t activations[32][CROUTONS * 32], weights[CROUTONS * 32][32];
    uint16_t *x = (uint16_t *)(proof->near + ACTIVATIONS), *w = (uint16_t *)(proof->near + WEIGHTS);
    for (uint32_t k = 0; k < CROUTONS * 32; k++) {
        for (uint32_t index = 0; index < 32; index++) {
            activations[index][k] = (int8_t)(LEAST + (int32_t)(draw() % COUNT));
            weights[k][index] = (int8_t)(LEAST + (int32_t)(draw() % COUNT));
            x[k / 32 * 1024 + place_of(index, k % 32)] = half_of(activations[index][k]);
            w[k / 32 * 1024 + place_of(k % 32, index)] = half_of(weights[k][index]);
        }
    }
    static uint16_t expected[32 * 32];
    for (uint32_t row = 0; row < 32; row++) {
        for (uint32_t column = 0; column < 32; column++) {
            int32_t sum = 0;
            for (uint32_t k = 0; k < CROUTONS * 32; k++) {
                sum += activations[row][k] * weights[k][column];
            }
            expected[place_of(row, column)] = half_of_sum(sum);
        }
    }
    system_issue(leaf_clear_fp16, 0, 0, 0, 0);
    // In the first set, the second, and again the first, which a store has cleared.
    for (uint32_t count = 0; count < 3; count++) {
        proof->check++;
        hmx_multiply(KIND_FP16, proof->near + ACTIVATIONS, proof->near + WEIGHTS, CROUTONS);
        const unsigned long table = (unsigned long)(proof->near + TABLES + PLANES * TABLE);
        system_issue(leaf_load_table, (uint32_t)table, 0, 0, 0);
        system_issue(leaf_store_fp16, (uint32_t)(unsigned long)(proof->near + RESULT), 0, 0, 0);
        found(proof, system_fault());
        const uint16_t *result = (const uint16_t *)(proof->near + RESULT);
        for (uint32_t index = 0; index < 32 * 32; index++) {
            if (result[index] != expected[index]) {
                found(proof, FAULT_RESULT);
                return;
            }
        }
    }
}

uint32_t hmx_prove(uint8_t *near) {
    struct proof proof = {near, 0, FAULT_NONE};
    state = 1;
    uint16_t *numbers = (uint16_t *)near;
    for (uint32_t index = 0; index < TABLES / sizeof *numbers; index++) {
        numbers[index] = (uint16_t)draw();
    }
    hmx_write_tables(near + TABLES);
    // What was in the accumulators before is cleared in both sets, and each store clears what it read.
    system_issue(leaf_clear, 0, 0, 0, 0);
    check(&proof, KIND_INT8, 1);
    check(&proof, KIND_INT8, 1);
    check(&proof, KIND_INT8, 2);
    check(&proof, KIND_INT4, 1);
    check(&proof, KIND_INT4, 2);
    check_fp16(&proof);
    return proof.fault;
}
