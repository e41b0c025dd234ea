// A model of HMX, for systems without one. It reads the words of a leaf, checks them and their operands, and executes
// what they mean.
#pragma once

#include <stdint.h>

#include "system.h"

// Lets the unit work in the `bytes` bytes from `start` on, its VTCM. `variants` are MODEL_* of protocol.h.
void model_start(const uint8_t *start, uint32_t bytes, uint64_t variants);

// Takes the lock of the unit, or gives it back. Returns whether that was possible.
int model_hold(int holds);

// Executes the leaf at `words` with these registers. After a fault it executes none.
void model_execute(const uint32_t *words, const uint32_t registers[4]);

// Returns the first fault of hmx.h since the last call, or FAULT_NONE.
uint32_t model_fault(void);

// Returns the counts of system.h, of which the end is that since the last call.
struct hmx_counts model_take_counts(void);
