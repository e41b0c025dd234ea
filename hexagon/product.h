// INT8 products on the vector unit.
#pragma once

#include <stdint.h>

#include "protocol.h"

// Bytes of a vector.
#define VECTOR 128u

static inline uint32_t round_up(uint32_t number, uint32_t multiple) { return (number + multiple - 1) / multiple * multiple; }

// Bytes of the activations of TILE_ROWS rows: [in_features / 4][TILE_ROWS][4], so that a tile streams them. Behind the
// features are zeros, up to whole vectors.
static inline uint32_t input_tile(uint32_t in_features) { return round_up(in_features, 16) * TILE_ROWS; }

// Tiles that so many rows take.
static inline uint32_t tiles(uint32_t rows) { return (rows + TILE_ROWS - 1) / TILE_ROWS; }

// Numbers of a row of sums: behind those of the layer and the check columns there is at least one column of zeros.
static inline uint32_t sum_stride(const struct product *product) {
    return round_up(product->out_features + CHECKS + 1, TILE_COLUMNS);
}

// Rows that go through all products of a program at once, so that what is between them stays near: 64 rows of 3,072 sums
// take 768 KiB, as a part of VTCM or L2.
#define PASS_ROWS 64u

// Bytes of a line that is fetched.
#define FETCH_LINE 256u

// Has so many lines, at most 65,535 of them, come into L2 while the program goes on.
void fetch(const void *start, uint32_t lines);

// Has products keep weights that are read several times in `bytes` bytes of memory near the vector unit, aligned to VECTOR.
void use_near_memory(uint8_t *start, uint32_t bytes);

// sums[row][column] = Σ input[row][k] · (weight[column][k] − 128), for `rows` rows, at most PASS_ROWS, and up to TILE_ROWS − 1
// more, whose sums mean nothing. `input` has input_tile bytes for each TILE_ROWS rows, `sums` has sum_stride numbers a row;
// both, and the weights, are aligned to VECTOR. Behind the sums of a row, sums[row][out_features] is what they add up to by the
// check columns. The threads of the team divide the columns; this one calls `progress` now and then.
void multiply(const struct product *product, const uint8_t *weights, const int8_t *input, uint32_t rows, int32_t *sums,
              void (*progress)(void));

// Whether the sums of every row add up to the number behind them.
int adds_up(const struct product *product, const int32_t *sums, uint32_t rows);
