// The proof of the leaves: before the first use of a kind of products, they are compared with HVX.
#pragma once

#include <stdint.h>

// Multiplies on HMX, in VTCM from `near` on, and compares. Returns FAULT_NONE, or the fault of the first check that failed
// plus 256 times its number, from 1.
uint32_t hmx_prove(uint32_t kind, uint8_t *near);
