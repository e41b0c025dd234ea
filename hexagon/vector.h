// Vectors of HVX, and its instructions.
#pragma once

#include <stdint.h>

#include "product.h"

typedef int32_t Vector __attribute__((__vector_size__(VECTOR)));
typedef int32_t Pair __attribute__((__vector_size__(2 * VECTOR)));
#define HVX(name) __builtin_HEXAGON_V6_##name##_128B

// Copies whole vectors.
static inline void copy_vectors(void *to, const void *from, uint32_t bytes) {
    for (uint32_t index = 0; index < bytes / VECTOR; index++) {
        ((Vector *)to)[index] = ((const Vector *)from)[index];
    }
}
