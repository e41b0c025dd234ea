#include "hmx_proof.h"

#include "hmx.h"
#include "hmx_unit.h"
#include "system.h"
#include "vector.h"

// Croutons of a short product; and of a long one, as those of models are: two full instructions, between which is a
// boundary. It is added as often as makes its largest sums those of 8,192 features, 2.7e8.
enum { SHORT = 2, LONG = 2 * MAX_CROUTONS, LONG_TIMES = 4 };
// The numbers of the checks, from which those of each kind start.
enum { CHECKS_OF_INT8 = 1, CHECKS_OF_INT4 = 5, CHECKS_OF_FP16 = 7 };

// Vectors of activations and of weights, which repeat. Their numbers are primes, so that no two croutons are the same.
enum { OF_ACTIVATIONS = 29, OF_WEIGHTS = 31 };
static Vector activations[OF_ACTIVATIONS], weights[OF_WEIGHTS];
static uint32_t state;

// Returns the next number of a generator of pseudo-random ones.
static uint32_t draw(void) {
    state = state * 1664525u + 1013904223u;
    return state >> 16;
}

static void draw_vectors(Vector *vectors, uint32_t count) {
    for (uint32_t index = 0; index < count * (uint32_t)(VECTOR / sizeof(uint32_t)); index++) {
        const uint32_t high = draw();
        ((uint32_t *)vectors)[index] = high << 16 | draw();
    }
}

// Places in VTCM. Long operands are half before a boundary of HMX_CUT and half after it: activations the first one that
// has room before it, weights the next one. Tables and results are between them.
struct places {
    uint8_t *activations, *weights, *tables, *results;
};

static struct places places_in(uint8_t *near) {
    const uint32_t half = LONG / 2 * CROUTON, half_of_weights = LONG / 2 * 1024;
    uint8_t *cut = near + (round_up(address(near) + half, HMX_CUT) - address(near));
    return (struct places){cut - half, cut + HMX_CUT - half_of_weights, cut + half, cut + half + CROUTON};
}
_Static_assert(LONG / 2 * (CROUTON + 1024) + 2 * HMX_CUT <= MIN_HMX_NEAR, "the proof fits into the least VTCM");

// Returns vector `index` of the activations: every sixteenth, which has the first rows of a crouton, is the largest.
static Vector activations_of(uint32_t index) {
    return index % 16 == 0 ? HVX(lvsplatw)(-1) : activations[index % OF_ACTIVATIONS];
}

// Returns the signed weights of the features from 4 · `quad` on, of all columns.
static Vector weights_of(uint32_t kind, uint32_t quad) {
    if (kind == KIND_INT8) {
        return weights[quad % OF_WEIGHTS];
    }
    // Nibbles: the lower ones are of the first of two quads.
    Vector nibbles = weights[quad / 2 % OF_WEIGHTS];
    nibbles = HVX(vand)(quad % 2 ? HVX(vlsrw)(nibbles, 4) : nibbles, HVX(lvsplatw)(0x0f0f0f0f));
    const Vector eight = HVX(lvsplatw)(0x08080808);
    return HVX(vsubb)(HVX(vxor)(nibbles, eight), eight);
}

// Returns whether the planes are those of `times` times the product by HVX.
static int is_product(const uint8_t *planes, uint32_t kind, uint32_t croutons, uint32_t times) {
    static int32_t sums[HMX_ROWS * HMX_COLUMNS] __attribute__((aligned(VECTOR)));
    static Vector expected[HMX_ROWS];
    static const Vector zeros;
    hmx_combine(planes, (const int32_t *)&zeros, HMX_ROWS, sums, HMX_COLUMNS);
    for (uint32_t first = 0; first < HMX_ROWS; first += 4) {
        Vector sum[4] = {zeros, zeros, zeros, zeros};
        for (uint32_t crouton = 0; crouton < croutons; crouton++) {
            const Vector four = activations_of(crouton * 16 + first / 4);
            const int32_t *words = (const int32_t *)&four;
            for (uint32_t quad = 0; quad < 8; quad++) {
                const Vector of_quad = weights_of(kind, crouton * 8 + quad);
                for (uint32_t row = 0; row < 4; row++) {
                    sum[row] = HVX(vrmpybusv_acc)(sum[row], HVX(lvsplatw)(words[row * 8 + quad]), of_quad);
                }
            }
        }
        for (uint32_t row = 0; row < 4; row++) {
            expected[first + row] = sum[row];
        }
    }
    for (uint32_t index = 0; index < HMX_ROWS * HMX_COLUMNS; index++) {
        if (sums[index] != (int32_t)times * ((const int32_t *)expected)[index]) {
            return 0;
        }
    }
    return 1;
}

// Does a job of the check with this number, and returns the fault that the model found.
static uint32_t fault_of(struct hmx_job *job, uint32_t number) {
    hmx_post(job);
    hmx_await();
    const uint32_t fault = system_fault();
    return fault == FAULT_NONE ? FAULT_NONE : fault + 256 * number;
}

// Multiplies as often as `times` says, reads the sums and compares them.
static uint32_t check(uint32_t number, const struct places *at, uint32_t kind, uint32_t croutons, uint32_t times, int clears) {
    struct hmx_job job = {kind,       croutons,        1,           1,          times, (uint32_t)clears,
                          at->tables, at->activations, at->weights, at->results};
    const uint32_t fault = fault_of(&job, number);
    if (fault != FAULT_NONE) {
        return fault;
    }
    return is_product(at->results, kind, croutons, times) ? FAULT_NONE : FAULT_RESULT + 256 * number;
}

static uint32_t prove_bytes(uint32_t kind, const struct places *at) {
    // Most columns have pseudo-random weights, the first two the largest and the smallest.
    draw_vectors(activations, OF_ACTIVATIONS);
    draw_vectors(weights, OF_WEIGHTS);
    for (uint32_t index = 0; index < OF_WEIGHTS; index++) {
        ((uint32_t *)&weights[index])[0] = kind == KIND_INT8 ? 0x7f7f7f7fu : 0x77777777u;
        ((uint32_t *)&weights[index])[1] = kind == KIND_INT8 ? 0x80808080u : 0x88888888u;
    }
    for (uint32_t index = 0; index < LONG * CROUTON / VECTOR; index++) {
        ((Vector *)at->activations)[index] = activations_of(index);
    }
    for (uint32_t index = 0; index < LONG * weight_tile(kind) / VECTOR; index++) {
        ((Vector *)at->weights)[index] = weights[index % OF_WEIGHTS];
    }
    // Old numbers in the accumulators are cleared in both sets, and each store clears what it read.
    const uint32_t number = kind == KIND_INT8 ? CHECKS_OF_INT8 : CHECKS_OF_INT4;
    uint32_t fault = check(number, at, kind, SHORT, 1, 1);
    if (kind == KIND_INT8) {
        fault = fault != FAULT_NONE ? fault : check(number + 1, at, kind, SHORT, 1, 0);
        fault = fault != FAULT_NONE ? fault : check(number + 2, at, kind, SHORT, 2, 0);
        return fault != FAULT_NONE ? fault : check(number + 3, at, kind, LONG, LONG_TIMES, 1);
    }
    return fault != FAULT_NONE ? fault : check(number + 1, at, kind, SHORT, 2, 0);
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
static uint32_t prove_fp16(const struct places *at) {
    enum { LEAST = -3, COUNT = 7, NUMBERS = CROUTON / 2 };
    static int8_t of_rows[32][SHORT * 32], of_columns[SHORT * 32][32];
    static uint16_t x[SHORT * NUMBERS] __attribute__((aligned(VECTOR))), w[SHORT * NUMBERS] __attribute__((aligned(VECTOR)));
    static uint16_t expected[NUMBERS], found[NUMBERS] __attribute__((aligned(VECTOR)));
    for (uint32_t k = 0; k < SHORT * 32; k++) {
        for (uint32_t index = 0; index < 32; index++) {
            of_rows[index][k] = (int8_t)(LEAST + (int32_t)(draw() % COUNT));
            of_columns[k][index] = (int8_t)(LEAST + (int32_t)(draw() % COUNT));
            x[k / 32 * NUMBERS + place_of(index, k % 32)] = half_of(of_rows[index][k]);
            w[k / 32 * NUMBERS + place_of(k % 32, index)] = half_of(of_columns[k][index]);
        }
    }
    for (uint32_t row = 0; row < 32; row++) {
        for (uint32_t column = 0; column < 32; column++) {
            int32_t sum = 0;
            for (uint32_t k = 0; k < SHORT * 32; k++) {
                sum += of_rows[row][k] * of_columns[k][column];
            }
            expected[place_of(row, column)] = half_of_sum(sum);
        }
    }
    copy_vectors(at->activations, x, sizeof x);
    copy_vectors(at->weights, w, sizeof w);
    // In the first set, the second, and again the first, which a store has cleared.
    for (uint32_t count = 0; count < 3; count++) {
        struct hmx_job job = {KIND_FP16,  SHORT,           1,           1,          1, count == 0,
                              at->tables, at->activations, at->weights, at->results};
        const uint32_t number = CHECKS_OF_FP16 + count, fault = fault_of(&job, number);
        if (fault != FAULT_NONE) {
            return fault;
        }
        copy_vectors(found, at->results, sizeof found);
        for (uint32_t index = 0; index < NUMBERS; index++) {
            if (found[index] != expected[index]) {
                return FAULT_RESULT + 256 * number;
            }
        }
    }
    return FAULT_NONE;
}

uint32_t hmx_prove(uint32_t kind, uint8_t *near) {
    const struct places at = places_in(near);
    state = kind + 1;
    hmx_write_tables(at.tables);
    return kind == KIND_FP16 ? prove_fp16(&at) : prove_bytes(kind, &at);
}
