// A model of HMX, for systems without one. It reads the words of a leaf, checks them and their operands, and executes
// what they mean.
#pragma once

#include <stdint.h>

#include "system.h"

// Lets the unit work in the `bytes` bytes from `start` on, its VTCM.
void model_start(const uint8_t *start, uint32_t bytes);

// Executes the leaf at `words` with these registers. After a fault it executes none.
void model_execute(const uint32_t *words, const uint32_t registers[4]);

// Returns the first fault of hmx.h since the last call, or FAULT_NONE.
uint32_t model_fault(void);

// Returns what system_hmx_counts does.
struct hmx_counts model_counts(void);
