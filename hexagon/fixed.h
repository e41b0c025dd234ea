// What is between the products of a feed-forward, in fixed point on the vector unit.
#pragma once

#include <stdint.h>

#include "protocol.h"

// Computes what down reads, of a tile of rows, from the sums of up and gate: the numbers of crates/kernels/src/fixed_point, bit
// for bit. `parameters` are those of the image, `output` is a tile as a product reads it; both are aligned to a vector.
void requantize(const struct image *image, const int32_t *parameters, uint32_t width, const int32_t *sums,
                uint32_t sum_stride, int8_t *output);
