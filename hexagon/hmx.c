#include "hmx.h"

#include "hmx_leaves.h"
#include "hmx_proof.h"
#include "product.h"
#include "system.h"
#include "team.h"

typedef int32_t Vector __attribute__((__vector_size__(VECTOR)));
typedef int32_t Pair __attribute__((__vector_size__(2 * VECTOR)));
#define HVX(name) __builtin_HEXAGON_V6_##name##_128B

void hmx_write_tables(uint8_t *tables) {
    // The factor is 1. The exponent, from bit 10 on, shifts byte p of a sum to bits 31:24, which are written.
    const uint32_t one_of_fp16 = 0x3c00;
    uint32_t *word = (uint32_t *)tables;
    for (uint32_t plane = 0; plane < PLANES; plane++) {
        for (uint32_t column = 0; column < HMX_COLUMNS; column++) {
            *word++ = (24 - 8 * plane) << 10;
        }
    }
    for (uint32_t column = 0; column < HMX_COLUMNS; column++) {
        *word++ = one_of_fp16;
    }
}

// Returns the number of pieces of `bytes` bytes between `place` and the next boundary.
static uint32_t before_cut(const uint8_t *place, uint32_t bytes) { return (HMX_CUT - address(place) % HMX_CUT) / bytes; }

void hmx_multiply(uint32_t kind, const uint8_t *activations, const uint8_t *weights, uint32_t croutons) {
    const uint32_t tile = weight_tile(kind);
    while (croutons > 0) {
        uint32_t count = croutons < MOST_CROUTONS ? croutons : MOST_CROUTONS;
        const uint32_t of_activations = before_cut(activations, CROUTON), of_weights = before_cut(weights, tile);
        count = count < of_activations ? count : of_activations;
        count = count < of_weights ? count : of_weights;
        system_issue(kind == KIND_INT8   ? leaf_multiply_int8
                     : kind == KIND_INT4 ? leaf_multiply_int4
                                         : leaf_multiply_fp16,
                     address(activations), CROUTON * count - 1, address(weights), tile * count - 1);
        activations += CROUTON * count;
        weights += tile * count;
        croutons -= count;
    }
}

void hmx_read(const uint8_t *tables, uint8_t *planes) {
    for (uint32_t plane = 0; plane < PLANES; plane++) {
        system_issue(leaf_load_table, address(tables + plane * TABLE), 0, 0, 0);
        system_issue(plane + 1 < PLANES ? leaf_store_and_keep : leaf_store, address(planes + plane * PLANE), 0, 0, 0);
    }
}

void hmx_combine(const uint8_t *planes, const int32_t *corrections, uint32_t rows, int32_t *sums, uint32_t stride) {
    const Vector correction = *(const Vector *)corrections, *of_plane = (const Vector *)planes;
    const uint32_t next = PLANE / VECTOR, vectors = stride / HMX_COLUMNS;
    Vector *to = (Vector *)sums;
    // A vector has four rows of a plane. Bytes of planes are interleaved to halfwords, these to words.
    for (uint32_t row = 0; row < rows; row += 4, of_plane++, to += 4 * vectors) {
        const Pair low = HVX(vshuffvdd)(of_plane[next], of_plane[0], -1);
        const Pair high = HVX(vshuffvdd)(of_plane[3 * next], of_plane[2 * next], -1);
        const Pair first = HVX(vshuffvdd)(HVX(lo)(high), HVX(lo)(low), -2);
        const Pair second = HVX(vshuffvdd)(HVX(hi)(high), HVX(hi)(low), -2);
        to[0] = HVX(vaddw)(HVX(lo)(first), correction);
        to[vectors] = HVX(vaddw)(HVX(hi)(first), correction);
        to[2 * vectors] = HVX(vaddw)(HVX(lo)(second), correction);
        to[3 * vectors] = HVX(vaddw)(HVX(hi)(second), correction);
    }
}

// The start of the memory, and the fault that its proof finds.
struct start {
    uint8_t *near;
    uint32_t fault;
};

static void prove(void *argument) {
    struct start *start = argument;
    start->fault = hmx_prove(start->near);
}

uint32_t hmx_start(uint8_t *near, uint32_t bytes) {
    if (!near || bytes < PROOF_BYTES || address(near) % CROUTON != 0) {
        return FAULT_NO_NEAR;
    }
    if (!team_start_unit()) {
        return FAULT_NO_THREAD;
    }
    struct start start = {near, FAULT_NONE};
    team_post(prove, &start);
    team_await_unit();
    return start.fault;
}
