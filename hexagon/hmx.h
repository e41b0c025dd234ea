// HMX, the matrix unit: tiles of 64 rows by 32 columns of 32-bit sums of u8 activations times s8 or s4 weights, and tiles
// of 32 by 32 of fp16. One thread owns the unit (hmx_unit.h); the functions here are called on the thread that serves the
// host, or on those of the team.
//
// A crouton is a tile of activations of 32 features: 64 rows of 32 bytes, or 32 rows of fp16 in pairs. It has 2 KiB.
#pragma once

#include <stdint.h>

#include "protocol.h"

enum { CROUTON = 2048, CROUTON_FEATURES = 32, HMX_ROWS = 64, HMX_COLUMNS = 32 };
// Most croutons of one instruction, and the boundaries of VTCM that the operands of no instruction cross.
enum { MAX_CROUTONS = 32, HMX_CUT = 256 << 10 };
// Bytes of a plane: byte p of each sum of a tile. The planes of a tile are consecutive.
enum { PLANE = 2048, PLANES = 4 };
// A table has a word for each column. Those of the four planes are followed by that of fp16.
enum { TABLE = 128, TABLES_BYTES = 5 * TABLE };
// Least bytes of VTCM: the proof needs about 600 KiB.
enum { MIN_HMX_NEAR = 1 << 20 };

// Faults, which the host explains (crates/processors/src/hexagon/fault.rs): reasons why there is no unit, rules that the
// model of the unit found broken, or a result that is not that of HVX. In the proof, the number of the check is added, times
// 256.
enum {
    FAULT_NONE = 0,
    // Reasons why there is no unit.
    FAULT_NO_NEAR = 1,
    FAULT_NO_UNIT = 2,
    FAULT_NO_THREAD = 3,
    FAULT_NEAR_ALIGNMENT = 4,
    FAULT_NO_LOCK = 5,
    FAULT_NO_POWER = 6,
    FAULT_NO_FUNCTION = 7,
    // The words.
    FAULT_WORD = 16,
    FAULT_UNMODELLED = 17,
    FAULT_PARSE = 18,
    FAULT_PACKET = 19,
    FAULT_REGISTER = 20,
    FAULT_RETURN = 21,
    // The operands.
    FAULT_TYPES = 32,
    FAULT_ALIGNMENT = 33,
    FAULT_ADDRESS = 34,
    FAULT_CUT = 35,
    FAULT_COUNT = 36,
    FAULT_LENGTHS = 37,
    FAULT_TABLE = 38,
    FAULT_LOCK = 39,
    // The result.
    FAULT_RESULT = 48,
};

// VTCM that the unit works in, once hmx_start has succeeded; null before.
extern struct hmx_near {
    uint8_t *start;
    uint32_t bytes;
} hmx_near;

// Starts the thread that owns the unit, which works in the `bytes` bytes from `near` on, and proves the leaves of INT8
// products against HVX. Returns a fault, or FAULT_NONE if the unit can be used.
uint32_t hmx_start(uint8_t *near, uint32_t bytes);

static inline uint32_t address(const uint8_t *place) { return (uint32_t)(unsigned long)place; }

// Returns the bytes of a tile of weights for one crouton.
static inline uint32_t weight_tile(uint32_t kind) { return kind == KIND_INT8 ? 1024 : kind == KIND_INT4 ? 512 : 2048; }

// Writes the tables to TABLES_BYTES bytes of VTCM, aligned to a table.
void hmx_write_tables(uint8_t *tables);

// Combines planes to sums, on the vector unit: `rows` rows, rounded up to a multiple of four, with
// `stride` numbers from one to the next, of 32 columns. Adds `corrections`, one per column. All are aligned to a vector.
void hmx_combine(const uint8_t *planes, const int32_t *corrections, uint32_t rows, int32_t *sums, uint32_t stride);
