// The proof of the leaves: before the first use of the unit, each one is compared with HVX.
#pragma once

#include <stdint.h>

// Bytes of VTCM that the proof takes.
enum { PROOF_BYTES = 64 << 10 };

// Runs each leaf on the thread that owns the unit. Returns FAULT_NONE, or the fault of the first check that failed plus
// 256 times its number, from 1.
uint32_t hmx_prove(uint8_t *near);
