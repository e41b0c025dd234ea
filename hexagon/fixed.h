// The middle of a feed-forward, in fixed point on the vector unit.
#pragma once

#include <stdint.h>

#include "protocol.h"

// Computes the input of down for a tile of rows from the sums of up and gate, with the same bits as
// crates/kernels/src/fixed_point. `parameters` are those of the image, `output` is a tile as a product reads it, or its
// place in the croutons on HMX; both are aligned to a vector.
void requantize(const struct image *image, const int32_t *parameters, uint32_t width, const int32_t *sums,
                uint32_t sum_stride, int8_t *output);
