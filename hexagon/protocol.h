// The protocol between the host and the device program. The host's side is crates/processors/src/hexagon/protocol.rs: a
// change here requires a change there, and another VERSION.
//
// Both map the same memory. Its first HEADER bytes are 64-bit fields; after them is the transfer area, with the data
// that a request reads or writes. The host writes a request and then its number; the device writes a response and then
// the same number. All numbers are little-endian. The host ends the device by replacing its magic by another number.
#pragma once

#include <stdint.h>

#define HOST_MAGIC 0x5453484441495254ull   // "TRIADHST"
#define DEVICE_MAGIC 0x5053444441495254ull // "TRIADDSP"
#define VERSION 7ull
#define HEADER 4096u
// Bytes of the fields. No 128 bytes are written by both sides concurrently, since a cache may write them back as a
// whole.
#define FIELD_BYTES 512u

// Fields, by index.
enum {
    // Written by the host before the device starts; its magic remains until the device must end.
    FIELD_HOST_MAGIC = 0,
    FIELD_HOST_VERSION = 1,
    FIELD_FILE_BYTES = 2,
    // Number of threads for the computation, 1 to MOST_THREADS.
    FIELD_THREADS = 3,
    // The unit that the host asks for, UNIT_HVX or UNIT_HMX.
    FIELD_UNIT = 4,
    // Variants of the model of HMX, for tests: bits of MODEL_*.
    FIELD_MODEL = 5,
    // Written by the device after its start: its identity, its version, a hash of its sources, the number of computing
    // threads, its unit, why that is HVX although the host asked for HMX (a fault of hmx.h, or 0), and the most
    // features of a product on HMX. The magic is written last.
    FIELD_DEVICE_MAGIC = 8,
    FIELD_DEVICE_VERSION = 9,
    FIELD_DEVICE_BUILD = 10,
    FIELD_DEVICE_THREADS = 11,
    FIELD_DEVICE_UNIT = 12,
    FIELD_DEVICE_FAULT = 13,
    FIELD_DEVICE_FEATURES = 14,
    // Number of the latest request, of the latest response, and a number that increases while the device works.
    FIELD_REQUEST = 16,
    FIELD_RESPONSE = 17,
    FIELD_HEARTBEAT = 18,
    // A request: the operation, the program, and the arguments.
    FIELD_OPERATION = 32,
    FIELD_PROGRAM = 33,
    FIELD_ARGUMENTS = 34,
    // A response: its status, its result, and the number of executed instruction packets, if known: the total of all
    // threads, and the critical path, where each piece of shared work counts as that of the slowest thread.
    FIELD_STATUS = 48,
    FIELD_RESULT = 49,
    FIELD_PACKETS = 50,
    FIELD_LONGEST = 51,
    // Of the same request, counted by the model of HMX, 0 without it: instructions, bytes of VTCM that they read and wrote,
    // and the end of the part of VTCM that they used.
    FIELD_HMX_INSTRUCTIONS = 52,
    FIELD_HMX_BYTES = 53,
    FIELD_HMX_END = 54,
};

// Units that multiply: the vector unit, the matrix unit, and a model of the matrix unit.
enum { UNIT_HVX = 0, UNIT_HMX = 1, UNIT_MODEL = 2 };

// Variants of the model of HMX.
enum {
    // It has 1 MiB of VTCM, 2 KiB after a boundary of 256 KiB.
    MODEL_SMALL = 1,
    // VTCM is not aligned to a crouton.
    MODEL_UNALIGNED = 2,
    // A store that clears the current accumulators also clears the other ones, as one description of v79 says.
    MODEL_CLEARS_BOTH = 4,
    // An instruction multiplies only the first eight croutons.
    MODEL_SHORT = 8,
    // The lock is refused, or is never given.
    MODEL_NO_LOCK = 16,
    MODEL_LATE_LOCK = 32,
    // The first product ends the program, or takes no end.
    MODEL_DIES = 64,
    MODEL_HANGS = 128,
};

// Operations and their arguments. Offsets are in bytes of the file, multiples of ALIGNMENT.
enum {
    // Reserves memory for the image of a program. Arguments: its bytes. Result: the program.
    OPERATION_CREATE = 1,
    // Writes a part of the image. Arguments: offset in the image, offset in the file, bytes.
    OPERATION_WRITE = 2,
    // Checks the image. Arguments: its hash.
    OPERATION_LOAD = 3,
    // Runs a program. Arguments: the hash of its image, rows, offset of the input, the hash of the hashes of its tiles of
    // TILE_ROWS rows, offset of the sums, offset of the inner activations (of a program that returns them). Result: the hash
    // of the inner activations.
    OPERATION_RUN = 4,
    // Frees a program.
    OPERATION_DROP = 5,
    // Multiplies one tile of rows by one tile of columns on a model of HMX, without a program, for tests. Arguments: the kind of
    // weights, the number of croutons, offsets of the activations (2 KiB per crouton), of the weights (1 KiB, 512 bytes or
    // 2 KiB per crouton), and of the result: 64 rows of 32 i32, or 2 KiB of fp16.
    OPERATION_TILE = 6,
    // Executes one leaf with any operands, for tests of the model. Arguments: the leaf, and r0 to r3 of hmx_trial.h.
    OPERATION_ISSUE = 7,
};

// Kinds of weights of HMX. INT8 and INT4 are multiplied by u8 activations, fp16 by fp16.
enum { KIND_INT8 = 0, KIND_INT4 = 1, KIND_FP16 = 2 };

enum {
    STATUS_OK = 0,
    // An invalid operation, program, length or offset.
    STATUS_REQUEST = 1,
    // Out of memory.
    STATUS_MEMORY = 2,
    // The image does not match its hash, or its parts contradict each other.
    STATUS_IMAGE = 3,
    // The input does not match its hash.
    STATUS_INPUT = 4,
    // A product's check sum is wrong: weights in the device's memory were overwritten.
    STATUS_SUM = 5,
    // The lock of HMX was refused, or its model found a fault in what it was to execute. The result is the fault (hmx.h).
    STATUS_HMX = 6,
};

#define ALIGNMENT 128u
// Maximum number of computing threads: a v73 has four vector contexts, a v79 six.
#define MOST_THREADS 8u
// Rows per tile of a product: the buffers of a run have room for a whole tile.
#define TILE_ROWS 8u
// Output channels per tile. After the channels of a layer there are CHECKS check columns, and one or more columns of
// zeros up to a multiple of this.
#define TILE_COLUMNS 64u
#define CHECKS 4u
// Parameters of a channel in fixed point.
#define FIXED_PARTS 9u
#define MAX_FEATURES 133144u
#define MAX_COLUMNS (1u << 24)

// One product of a program. On HVX: sums of u8 weights (with 128 added) times s8 activations. On HMX: sums of s8 weights
// times u8 activations (with 128 added).
struct product {
    uint32_t in_features;
    uint32_t out_features;
    // Offset in the image of [columns / TILE_COLUMNS][in_features / 4][TILE_COLUMNS][4] bytes; for HMX, of
    // [columns / 32][in_features / 32][8][32][4] bytes, where features are padded to whole croutons with zeros. In check
    // columns and columns of zeros, a weight of 0 is −128 up to the last quad of features that has one: fold_checks
    // subtracts the latter columns from the former.
    uint32_t weights;
    // For HMX: offset in the image of [columns] i32, −128 · Σ weights of the column. Check sums cover it.
    uint32_t corrections;
};

// The start of an image.
struct image {
    uint32_t magic;
    // 1 for linear layers next to each other, or 2 for a feed-forward: up and gate next to each other, and down.
    uint32_t products;
    // For a feed-forward: whether it has a gate; 0 for SiLU, 1 for GELU in its tanh form; one of the arithmetics below;
    // whether the input of down is returned in f32, which fixed point does not support.
    uint32_t gated;
    uint32_t activation;
    uint32_t arithmetic;
    uint32_t returns_inner;
    // 1 / scale of the input of down.
    float inverse_scale;
    // Offset in the image, before all weights, of [5][width] f32: scales and biases of up and of gate, factors of
    // smoothing. In fixed point, of [width / 32][FIXED_PARTS][32] i32, from crates/kernels/src/fixed_point.
    uint32_t parameters;
    struct product product[2];
    // UNIT_HVX or UNIT_HMX.
    uint32_t unit;
    uint32_t reserved[15];
};
#define IMAGE_MAGIC 0x50495254u // "TRIP"

// The arithmetic between the products of a feed-forward: f32, where a product and a sum are rounded twice, or once, as
// on the host; or fixed point.
enum { ARITHMETIC_TWICE = 0, ARITHMETIC_ONCE = 1, ARITHMETIC_FIXED = 2 };

_Static_assert(sizeof(struct image) == 128, "the image begins with 128 bytes");
