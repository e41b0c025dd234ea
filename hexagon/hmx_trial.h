// Tests of HMX without a program, where a model executes it.
#pragma once

#include <stdint.h>

// The number of leaves of hmx_leaves.h.
enum { HMX_LEAVES = 9 };

// Executes OPERATION_TILE's product of consecutive croutons, and writes its result to `result`. The first product of a kind
// is preceded by its proof. Returns a fault.
uint32_t hmx_try_tile(uint32_t kind, uint32_t croutons, const uint8_t *activations, const uint8_t *weights, uint8_t *result);

// Executes a leaf, by its number in hmx_leaves.h, with any registers: the start of VTCM is added to r0 and r2. Returns a
// fault.
uint32_t hmx_try_leaf(uint32_t leaf, const uint64_t registers[4]);
