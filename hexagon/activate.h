// The middle of a feed-forward, between its products.
#pragma once

#include <stdint.h>

#include "protocol.h"

// Computes the input of down from the sums of up and gate: scales and biases, activation, product, smoothing,
// quantization. `parameters` are those of the image. There are at most TILE_ROWS rows. `output` is a tile
// as a product on HVX reads it, or as hmx_pack does. `inner`, if not null, has `width` numbers per row. Sets
// `not_finite[row]` to whether a number of the row was infinite or NaN.
void activate(const struct image *image, const float *parameters, uint32_t width, const int32_t *sums, uint32_t sum_stride,
              uint32_t rows, int8_t *output, float *inner, uint8_t *not_finite);
