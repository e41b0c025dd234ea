#include "hmx_trial.h"

#include "hmx.h"
#include "hmx_leaves.h"
#include "hmx_proof.h"
#include "hmx_unit.h"
#include "system.h"
#include "vector.h"

// Results are first written to the start of the memory, then tables, activations and weights follow.
uint32_t hmx_try_tile(uint32_t kind, uint32_t croutons, const uint8_t *activations, const uint8_t *weights,
                      uint8_t *result) {
    static const Vector zeros;
    static int is_proved[KIND_FP16 + 1] = {[KIND_INT8] = 1};
    uint8_t *tables = hmx_near.start + PLANES * PLANE;
    struct hmx_job job = {kind, croutons, 1, 1, 1, 1, tables, tables + CROUTON, tables + CROUTON * (croutons + 1),
                          hmx_near.start};
    if (PLANES * PLANE + CROUTON + croutons * (CROUTON + weight_tile(kind)) > hmx_near.bytes) {
        return FAULT_NO_NEAR;
    }
    uint32_t fault = hmx_hold(1);
    if (fault == FAULT_NONE && !is_proved[kind]) {
        fault = hmx_prove(kind, hmx_near.start);
        is_proved[kind] = fault == FAULT_NONE;
    }
    if (fault != FAULT_NONE) {
        return fault;
    }
    hmx_write_tables(tables);
    copy_vectors(tables + CROUTON, activations, croutons * CROUTON);
    copy_vectors(tables + CROUTON * (croutons + 1), weights, croutons * weight_tile(kind));
    hmx_post(&job);
    hmx_await();
    if (kind == KIND_FP16) {
        copy_vectors(result, hmx_near.start, CROUTON);
    } else {
        hmx_combine(hmx_near.start, (const int32_t *)&zeros, HMX_ROWS, (int32_t *)result, HMX_COLUMNS);
    }
    return system_fault();
}

uint32_t hmx_try_leaf(uint32_t leaf, const uint64_t registers[4]) {
    static void (*const leaves[HMX_LEAVES])(uint32_t, uint32_t, uint32_t, uint32_t) = {
        leaf_clear,      leaf_clear_fp16,     leaf_multiply_int8, leaf_multiply_int4, leaf_multiply_fp16,
        leaf_load_table, leaf_store_and_keep, leaf_store,         leaf_store_fp16};
    const uint32_t fault = hmx_hold(1), start = address(hmx_near.start);
    if (fault != FAULT_NONE) {
        return fault;
    }
    const uint32_t r[4] = {start + (uint32_t)registers[0], (uint32_t)registers[1], start + (uint32_t)registers[2],
                           (uint32_t)registers[3]};
    hmx_issue(leaves[leaf], r);
    return system_fault();
}
