// The instructions of HMX, the matrix unit, that this program has. No assembler of Debian knows them, so each is a leaf
// function of instruction words: one packet, and the return. On a DSP they are called. On Linux, hmx_model.c reads the
// words and executes a model of the unit, so that tests check the words that a phone runs.
//
// Arguments are in r0 to r3; all addresses are in VTCM.
#pragma once

#include <stdint.h>

#define LEAF __attribute__((visibility("hidden"))) void

// mxclracc, mxclracc.hf: clear both sets of accumulators, of integers or of fp16.
LEAF leaf_clear(uint32_t, uint32_t, uint32_t, uint32_t);
LEAF leaf_clear_fp16(uint32_t, uint32_t, uint32_t, uint32_t);
// Multiply up to 32 consecutive croutons of activations from r0 on by as many tiles of weights from r2 on, and add to the
// current set. r1 is 2048 · croutons − 1, r3 the number of the last byte of the weights.
LEAF leaf_multiply_int8(uint32_t activations, uint32_t of_activations, uint32_t weights, uint32_t of_weights);
LEAF leaf_multiply_int4(uint32_t activations, uint32_t of_activations, uint32_t weights, uint32_t of_weights);
LEAF leaf_multiply_fp16(uint32_t activations, uint32_t of_activations, uint32_t weights, uint32_t of_weights);
// bias = mxmem(r0): loads a table of 32 words, which says how results are read.
LEAF leaf_load_table(uint32_t table, uint32_t, uint32_t, uint32_t);
// Write 64 rows of 32 bytes of the current set, as the table says, to r0; r1 is 0. The second one then clears the set,
// and makes the other one current.
LEAF leaf_store_and_keep(uint32_t to, uint32_t zero, uint32_t, uint32_t);
LEAF leaf_store(uint32_t to, uint32_t zero, uint32_t, uint32_t);
// Writes the current set of fp16 in the same way: one crouton of 32 rows.
LEAF leaf_store_fp16(uint32_t to, uint32_t zero, uint32_t, uint32_t);
