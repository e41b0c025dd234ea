// A product goes through the columns in groups of tiles of 32. In each step, HMX multiplies a group of weights in VTCM by
// all croutons of activations; meanwhile the threads of the team copy the next group to the other half of the buffers,
// and combine the planes of the previous group to sums. So each weight is copied once for up to 256 rows.
#include "hmx_product.h"

#include "hmx.h"
#include "hmx_unit.h"
#include "system.h"
#include "team.h"
#include "vector.h"

enum { WEIGHT_TILE = 1024, TILES_AT_ONCE = 16, TILES_OF_ROWS = HMX_ROWS / TILE_ROWS };

// Returns the place of the activations, after the tables.
static uint8_t *activations(void) { return hmx_near.start + round_up(TABLES_BYTES, CROUTON); }

static uint32_t croutons_of(const struct product *product) {
    return (product->in_features + CROUTON_FEATURES - 1) / CROUTON_FEATURES;
}

// The division of the memory among activations, and two halves each of weights and planes. Tables are at the start.
struct plan {
    uint32_t blocks, croutons, tiles, group;
    uint8_t *activations, *weights[2], *planes[2];
};

// Returns a plan whose group is 0 if the memory is too small.
static struct plan plan_for(const struct product *product, uint32_t blocks) {
    struct plan plan = {.blocks = blocks, .croutons = croutons_of(product)};
    plan.tiles = sum_stride(product) / HMX_COLUMNS;
    const uint32_t start = round_up(TABLES_BYTES, CROUTON), of_activations = blocks * plan.croutons * CROUTON;
    const uint32_t of_weights = plan.croutons * WEIGHT_TILE, of_planes = blocks * PLANES * PLANE;
    if (start + of_activations > hmx_near.bytes) {
        return plan;
    }
    // The weights of a half may end within a crouton, after which the planes of the other half begin.
    const uint32_t left = (hmx_near.bytes - start - of_activations) / 2 / CROUTON * CROUTON;
    const uint32_t usable = left < CROUTON ? 0 : left - CROUTON;
    plan.group = usable / (of_weights + of_planes);
    plan.group = plan.group < TILES_AT_ONCE ? plan.group : TILES_AT_ONCE;
    plan.group = plan.group < plan.tiles ? plan.group : plan.tiles;
    plan.activations = activations();
    uint8_t *next = plan.activations + of_activations;
    for (uint32_t half = 0; half < 2; half++) {
        plan.planes[half] = next;
        next += plan.group * of_planes;
        plan.weights[half] = next;
        next += round_up(plan.group * of_weights, CROUTON);
    }
    return plan;
}

uint32_t hmx_blocks(const struct product *product) {
    uint32_t blocks = HMX_BLOCKS;
    while (blocks > 0 && plan_for(product, blocks).group == 0) {
        blocks--;
    }
    return blocks;
}

uint32_t hmx_max_features(void) {
    uint32_t features = 0;
    for (uint32_t step = 1u << 16; step >= CROUTON_FEATURES; step /= 2) {
        const struct product product = {features + step, 1, 0, 0};
        features += hmx_blocks(&product) > 0 ? step : 0;
    }
    return features;
}

uint32_t hmx_input_tile(uint32_t in_features) { return round_up(in_features, VECTOR) * TILE_ROWS; }

uint8_t *hmx_place(const struct product *product, uint32_t tile) {
    const uint32_t block = tile / TILES_OF_ROWS, row = tile % TILES_OF_ROWS * TILE_ROWS;
    return activations() + block * croutons_of(product) * CROUTON + row * CROUTON_FEATURES;
}

void hmx_pack(const struct product *product, const uint8_t *rows, uint32_t tile) {
    const uint32_t croutons = croutons_of(product);
    const uint32_t stride = round_up(product->in_features, VECTOR) / VECTOR;
    for (uint32_t first = 0; first < TILE_ROWS; first += 4) {
        const Vector *from = (const Vector *)rows + first * stride;
        uint8_t *to = hmx_place(product, tile) + first * CROUTON_FEATURES;
        // Transposes 4 rows of 4 pieces of 32 bytes.
        for (uint32_t crouton = 0; crouton < croutons; crouton += 4, from++, to += 4 * CROUTON) {
            const Pair upper = HVX(vshuffvdd)(from[stride], from[0], -32);
            const Pair lower = HVX(vshuffvdd)(from[3 * stride], from[2 * stride], -32);
            const Pair left = HVX(vshuffvdd)(HVX(lo)(lower), HVX(lo)(upper), -64);
            const Pair right = HVX(vshuffvdd)(HVX(hi)(lower), HVX(hi)(upper), -64);
            const Vector pieces[4] = {HVX(lo)(left), HVX(hi)(left), HVX(lo)(right), HVX(hi)(right)};
            for (uint32_t piece = 0; piece < 4 && crouton + piece < croutons; piece++) {
                *(Vector *)(to + piece * CROUTON) = pieces[piece];
            }
        }
    }
}

// A step, as HMX and the threads share it. Groups have numbers from 0.
struct step {
    const struct product *product;
    const struct plan *plan;
    const uint8_t *weights;
    const int32_t *corrections;
    uint32_t rows, groups, number;
    int32_t *sums;
};

static uint32_t tiles_of(const struct step *of, uint32_t group) {
    const uint32_t left = of->plan->tiles - group * of->plan->group;
    return left < of->plan->group ? left : of->plan->group;
}

// Returns the job of the unit for a group.
static struct hmx_job job_of(const struct step *of, uint32_t group) {
    const struct plan *plan = of->plan;
    return (struct hmx_job){
        KIND_INT8,        plan->croutons,           plan->blocks,        tiles_of(of, group), 1, 1, hmx_near.start,
        plan->activations, plan->weights[group % 2], plan->planes[group % 2]};
}

static void copy_weights(const struct step *of, uint32_t group, uint32_t tile) {
    const uint32_t bytes = of->plan->croutons * WEIGHT_TILE;
    const uint8_t *from = of->weights + (group * of->plan->group + tile) * bytes;
    uint8_t *to = of->plan->weights[group % 2] + tile * bytes;
    fetch(from, bytes / FETCH_LINE);
    copy_vectors(to, from, bytes);
}

static void combine(const struct step *of, uint32_t group, uint32_t tile) {
    const struct plan *plan = of->plan;
    const uint32_t column = (group * plan->group + tile) * HMX_COLUMNS, stride = sum_stride(of->product);
    for (uint32_t block = 0; block < plan->blocks; block++) {
        const uint32_t first = block * HMX_ROWS, left = of->rows - first;
        const uint8_t *planes = plan->planes[group % 2] + (tile * plan->blocks + block) * PLANES * PLANE;
        hmx_combine(planes, of->corrections + column, left < HMX_ROWS ? left : HMX_ROWS,
                    of->sums + first * stride + column, stride);
    }
}

// Takes every `count`-th tile of the group to copy and of the group to combine, starting with the `index`-th.
static void take_tiles(void *argument, uint32_t index, uint32_t count) {
    const struct step *of = argument;
    for (uint32_t tile = index; of->number < of->groups && tile < tiles_of(of, of->number); tile += count) {
        copy_weights(of, of->number, tile);
    }
    for (uint32_t tile = index; of->number >= 2 && tile < tiles_of(of, of->number - 2); tile += count) {
        combine(of, of->number - 2, tile);
    }
}

uint32_t hmx_multiply_rows(const struct product *product, const uint8_t *image, uint32_t rows, int32_t *sums,
                           void (*progress)(void)) {
    const struct plan plan = plan_for(product, (rows + HMX_ROWS - 1) / HMX_ROWS);
    const uint32_t groups = (plan.tiles + plan.group - 1) / plan.group;
    struct step of = {
        product, &plan, image + product->weights, (const int32_t *)(image + product->corrections), rows, groups, 0, sums};
    const uint32_t fault = hmx_hold(1);
    if (fault != FAULT_NONE) {
        return fault;
    }
    hmx_write_tables(hmx_near.start);
    // The weights of a group are copied in one step, multiplied in the next, and the sums combined in the one after it.
    for (of.number = 0; of.number < groups + 2; of.number++) {
        const int multiplies = of.number >= 1 && of.number <= groups;
        struct hmx_job job;
        if (multiplies) {
            job = job_of(&of, of.number - 1);
            hmx_post(&job);
        }
        team_run(plan.group, take_tiles, &of);
        if (multiplies) {
            hmx_await();
        }
        progress();
    }
    fold_checks(product, sums, rows);
    return system_fault();
}
