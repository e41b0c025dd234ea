// What is between the products of a feed-forward.
#pragma once

#include <stdint.h>

#include "protocol.h"

// Computes what down reads from the sums of up and gate: scales and biases, activation, product, smoothing, quantization.
// `parameters` are those of the image; `output` is in tiles
// of rows as a product reads them, and `inner`, if there is one, has `width` numbers a row.
// Sets `not_finite[row]` to whether a number of the row was infinite or none.
void activate(const struct image *image, const float *parameters, uint32_t width, const int32_t *sums, uint32_t sum_stride,
              uint32_t rows, int8_t *output, float *inner, uint8_t *not_finite);
