// INT8 products on the vector unit.
#pragma once

#include <stdint.h>

#include "protocol.h"

// Bytes per vector.
#define VECTOR 128u

static inline uint32_t round_up(uint32_t number, uint32_t multiple) { return (number + multiple - 1) / multiple * multiple; }

// Returns the bytes of the activations of TILE_ROWS rows: [in_features / 4][TILE_ROWS][4], so that a tile streams them.
// They are padded with zeros to whole vectors.
static inline uint32_t input_tile(uint32_t in_features) { return round_up(in_features, 16) * TILE_ROWS; }

// Returns the number of tiles for this many rows.
static inline uint32_t tiles(uint32_t rows) { return (rows + TILE_ROWS - 1) / TILE_ROWS; }

// Returns the numbers per row of sums: after those of the layer and the check columns there is at least one column of
// zeros.
static inline uint32_t sum_stride(const struct product *product) {
    return round_up(product->out_features + CHECKS + 1, TILE_COLUMNS);
}

// Rows that go through all products of a program together, so that intermediate results stay near: 64 rows of 3,072
// sums are 768 KiB, a part of VTCM or L2.
#define PASS_ROWS 64u

// Bytes per prefetched line.
#define FETCH_LINE 256u

// Replaces the check columns after the sums of each row by their value, and a zero.
void fold_checks(const struct product *product, int32_t *sums, uint32_t rows);

// Prefetches this many lines, at most 65,535, into L2 while the program continues.
void fetch(const void *start, uint32_t lines);

// Lets products keep weights that are read several times in `bytes` bytes of memory near the vector unit, aligned to
// VECTOR.
void use_near_memory(uint8_t *start, uint32_t bytes);

// Computes sums[row][column] = Σ input[row][k] · (weight[column][k] − 128), for `rows` rows, at most PASS_ROWS, and for
// up to TILE_ROWS − 1 more, whose sums are meaningless. `input` has input_tile bytes for each TILE_ROWS rows, `sums`
// has sum_stride numbers per row; both, and the weights, are aligned to VECTOR. After the sums of a row,
// sums[row][out_features] is their total by the check columns. The threads of the team divide the columns; the calling
// one calls `progress` now and then.
void multiply(const struct product *product, const uint8_t *weights, const int8_t *input, uint32_t rows, int32_t *sums,
              void (*progress)(void));

// Returns whether the sums of every row add up to the number after them.
int adds_up(const struct product *product, const int32_t *sums, uint32_t rows);
