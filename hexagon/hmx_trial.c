#include "hmx_trial.h"

#include "hmx.h"
#include "hmx_leaves.h"
#include "product.h"
#include "system.h"
#include "team.h"

typedef int32_t Vector __attribute__((__vector_size__(VECTOR)));

// The memory that the unit works in.
static struct {
    uint8_t *start;
    uint32_t bytes;
} near;

void hmx_try_in(uint8_t *start, uint32_t bytes) {
    near.start = start;
    near.bytes = bytes;
}

// A request of OPERATION_TILE.
struct tile {
    uint32_t kind, croutons;
    const uint8_t *activations, *weights;
    uint8_t *result;
};

static void copy(uint8_t *to, const uint8_t *from, uint32_t bytes) {
    Vector *vectors = (Vector *)to;
    for (uint32_t index = 0; index < bytes / VECTOR; index++) {
        vectors[index] = ((const Vector *)from)[index];
    }
}

// Results are first written to the start of the memory, then tables, activations and weights follow.
static void multiply_tile(void *argument) {
    const struct tile *of = argument;
    uint8_t *tables = near.start + PLANES * PLANE, *activations = tables + CROUTON;
    uint8_t *weights = activations + of->croutons * CROUTON;
    hmx_write_tables(tables);
    copy(activations, of->activations, of->croutons * CROUTON);
    copy(weights, of->weights, of->croutons * weight_tile(of->kind));
    system_issue(of->kind == KIND_FP16 ? leaf_clear_fp16 : leaf_clear, 0, 0, 0, 0);
    hmx_multiply(of->kind, activations, weights, of->croutons);
    if (of->kind == KIND_FP16) {
        system_issue(leaf_load_table, address(tables + PLANES * TABLE), 0, 0, 0);
        system_issue(leaf_store_fp16, address(near.start), 0, 0, 0);
        copy(of->result, near.start, CROUTON);
    } else {
        const Vector zeros = __builtin_HEXAGON_V6_vd0_128B();
        hmx_read(tables, near.start);
        hmx_combine(near.start, (const int32_t *)&zeros, HMX_ROWS, (int32_t *)of->result, HMX_COLUMNS);
    }
}

uint32_t hmx_try_tile(uint32_t kind, uint32_t croutons, const uint8_t *activations, const uint8_t *weights,
                      uint8_t *result) {
    struct tile of = {kind, croutons, activations, weights, result};
    if (PLANES * PLANE + CROUTON + croutons * (CROUTON + weight_tile(kind)) > near.bytes) {
        return FAULT_NO_NEAR;
    }
    team_post(multiply_tile, &of);
    team_await_unit();
    return system_fault();
}

// A request of OPERATION_ISSUE.
struct issue {
    uint32_t leaf, registers[4];
};

static void issue(void *argument) {
    static void (*const leaves[HMX_LEAVES])(uint32_t, uint32_t, uint32_t, uint32_t) = {
        leaf_clear,      leaf_clear_fp16,     leaf_multiply_int8, leaf_multiply_int4, leaf_multiply_fp16,
        leaf_load_table, leaf_store_and_keep, leaf_store,         leaf_store_fp16};
    const struct issue *of = argument;
    const uint32_t *r = of->registers, start = address(near.start);
    system_issue(leaves[of->leaf], start + r[0], r[1], start + r[2], r[3]);
}

uint32_t hmx_try_leaf(uint32_t leaf, const uint64_t registers[4]) {
    struct issue of = {leaf, {0}};
    for (uint32_t index = 0; index < 4; index++) {
        of.registers[index] = (uint32_t)registers[index];
    }
    team_post(issue, &of);
    team_await_unit();
    return system_fault();
}
