#include "hmx_unit.h"

#include "hmx.h"
#include "hmx_leaves.h"
#include "system.h"
#include "team.h"

#ifdef __HVX__
#error "this file is compiled without HVX, since its thread may have no vector context"
#endif

// Returns the number of pieces of `bytes` bytes between `place` and the next boundary.
static uint32_t before_cut(const uint8_t *place, uint32_t bytes) { return (HMX_CUT - address(place) % HMX_CUT) / bytes; }

// Adds the products of `croutons` consecutive croutons and tiles of weights to the current accumulators, in instructions
// of at most MAX_CROUTONS that cross no boundary.
static void multiply(uint32_t kind, const uint8_t *activations, const uint8_t *weights, uint32_t croutons) {
    const uint32_t tile = weight_tile(kind);
    while (croutons > 0) {
        uint32_t count = croutons < MAX_CROUTONS ? croutons : MAX_CROUTONS;
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

// Writes the result of the current accumulators, clears them, and makes the other ones current. Returns the end of the
// result.
static uint8_t *read(uint32_t kind, const uint8_t *tables, uint8_t *to) {
    if (kind == KIND_FP16) {
        system_issue(leaf_load_table, address(tables + PLANES * TABLE), 0, 0, 0);
        system_issue(leaf_store_fp16, address(to), 0, 0, 0);
        return to + CROUTON;
    }
    for (uint32_t plane = 0; plane < PLANES; plane++, to += PLANE) {
        system_issue(leaf_load_table, address(tables + plane * TABLE), 0, 0, 0);
        system_issue(plane + 1 < PLANES ? leaf_store_and_keep : leaf_store, address(to), 0, 0, 0);
    }
    return to;
}

static void do_job(void *argument) {
    const struct hmx_job *of = argument;
    const uint8_t *weights = of->weights;
    uint8_t *to = of->results;
    for (uint32_t tile = 0; tile < of->tiles; tile++, weights += of->croutons * weight_tile(of->kind)) {
        const uint8_t *activations = of->activations;
        for (uint32_t block = 0; block < of->blocks; block++, activations += of->croutons * CROUTON) {
            if (of->clears) {
                system_issue(of->kind == KIND_FP16 ? leaf_clear_fp16 : leaf_clear, 0, 0, 0, 0);
            }
            for (uint32_t count = 0; count < of->times; count++) {
                multiply(of->kind, activations, weights, of->croutons);
            }
            to = read(of->kind, of->tables, to);
        }
    }
}

// Whether the lock is to be held, and is.
static struct {
    int wanted, held;
} lock;

static void change_lock(void *argument) {
    (void)argument;
    lock.held = system_hold_hmx(lock.wanted) && lock.wanted;
}

uint32_t hmx_start_thread(void) { return team_start_unit() ? FAULT_NONE : FAULT_NO_THREAD; }

uint32_t hmx_hold(int holds) {
    static int has_waited;
    if (lock.held != holds) {
        lock.wanted = holds;
        team_post(change_lock, 0);
        if (has_waited) {
            team_await_unit();
        } else if (!team_await_unit_for(1000)) {
            return FAULT_NO_LOCK;
        }
        has_waited = 1;
    }
    return lock.held == holds ? FAULT_NONE : FAULT_NO_LOCK;
}

void hmx_post(struct hmx_job *job) { team_post(do_job, job); }

void hmx_await(void) { team_await_unit(); }

// A leaf and its registers.
struct call {
    void (*leaf)(uint32_t, uint32_t, uint32_t, uint32_t);
    const uint32_t *registers;
};

static void issue(void *argument) {
    const struct call *of = argument;
    system_issue(of->leaf, of->registers[0], of->registers[1], of->registers[2], of->registers[3]);
}

void hmx_issue(void (*leaf)(uint32_t, uint32_t, uint32_t, uint32_t), const uint32_t registers[4]) {
    struct call of = {leaf, registers};
    team_post(issue, &of);
    team_await_unit();
}
