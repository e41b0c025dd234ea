// INT8 products on HMX, with the sums of product.h.
#pragma once

#include <stdint.h>

#include "protocol.h"

// Most rows that go through a program together: blocks of 64, by which the same weights in VTCM are multiplied.
enum { HMX_BLOCKS = 4, HMX_PASS_ROWS = 64 * HMX_BLOCKS };

// Returns the number of blocks of 64 rows that fit into the memory with this product: 0 if there is no HMX, or if it has
// too many features.
uint32_t hmx_blocks(const struct product *product);

// Returns the most features of a product for which there is a block.
uint32_t hmx_max_features(void);

// Returns the bytes of TILE_ROWS rows of activations, [TILE_ROWS][in_features], where each row is padded to a vector.
uint32_t hmx_input_tile(uint32_t in_features);

// Writes a tile of rows, u8 with 128 added, to the croutons in VTCM that the next product reads. `tile` is its number in
// the pass.
void hmx_pack(const struct product *product, const uint8_t *rows, uint32_t tile);

// Returns the place of feature 0 of the first row of a tile of rows in the croutons: rows are 32 bytes apart, groups of 32
// features a crouton.
uint8_t *hmx_place(const struct product *product, uint32_t tile);

// Does the same as `multiply`, from the croutons in VTCM. `image` is the start of the image. Returns a fault of hmx.h.
uint32_t hmx_multiply_rows(const struct product *product, const uint8_t *image, uint32_t rows, int32_t *sums,
                           void (*progress)(void));
