#include "hmx.h"

#include "hmx_proof.h"
#include "hmx_unit.h"
#include "vector.h"

struct hmx_near hmx_near;

void hmx_write_tables(uint8_t *tables) {
    // The factor is 1. The exponent, from bit 10 on, shifts byte p of a sum to bits 31:24, which are written.
    Vector *table = (Vector *)tables;
    for (uint32_t plane = 0; plane < PLANES; plane++) {
        table[plane] = HVX(lvsplatw)((int32_t)((24 - 8 * plane) << 10));
    }
    // The number 1 of fp16, as of v73. A v69 may need 0 instead; no DSP executes the leaves of fp16.
    table[PLANES] = HVX(lvsplatw)(0x3c00);
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

uint32_t hmx_start(uint8_t *near, uint32_t bytes) {
    if (address(near) % CROUTON != 0) {
        return FAULT_NEAR_ALIGNMENT;
    }
    if (!near || bytes < MIN_HMX_NEAR) {
        return FAULT_NO_NEAR;
    }
    uint32_t fault = hmx_start_thread();
    fault = fault != FAULT_NONE ? fault : hmx_hold(1);
    fault = fault != FAULT_NONE ? fault : hmx_prove(KIND_INT8, near);
    if (fault == FAULT_NONE) {
        hmx_near = (struct hmx_near){near, bytes};
    }
    return fault;
}
