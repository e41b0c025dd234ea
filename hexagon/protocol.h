// What the host and the device program agree on. The host's side is crates/processors/src/hexagon/protocol.rs: a change
// here is a change there, and another VERSION.
//
// Both map the same memory. Its first HEADER bytes are fields of 64 bits; behind them is the transfer area, which holds what a
// request reads or writes. The host writes a request and then its number; the device writes a response and then the same
// number. All numbers are little-endian. The host ends the device by another number in place of its magic.
#pragma once

#include <stdint.h>

#define HOST_MAGIC 0x5453484441495254ull   // "TRIADHST"
#define DEVICE_MAGIC 0x5053444441495254ull // "TRIADDSP"
#define VERSION 5ull
#define HEADER 4096u
// What the fields take, of which no 128 bytes are written by both at once: a cache may write them back as a whole.
#define FIELD_BYTES 512u

// Fields, by index.
enum {
    // Of the host, before the device starts; its magic until the device shall end.
    FIELD_HOST_MAGIC = 0,
    FIELD_HOST_VERSION = 1,
    FIELD_FILE_BYTES = 2,
    // Threads that shall compute, 1 to MOST_THREADS.
    FIELD_THREADS = 3,
    // Of the device, once it has started: who it is, its version, a hash of its sources, and how many threads compute. The magic
    // is written last.
    FIELD_DEVICE_MAGIC = 8,
    FIELD_DEVICE_VERSION = 9,
    FIELD_DEVICE_BUILD = 10,
    FIELD_DEVICE_THREADS = 11,
    // Number of the latest request, of the latest response, and a number that grows while the device works.
    FIELD_REQUEST = 16,
    FIELD_RESPONSE = 17,
    FIELD_HEARTBEAT = 18,
    // A request: what to do, the program, and what it takes.
    FIELD_OPERATION = 32,
    FIELD_PROGRAM = 33,
    FIELD_ARGUMENTS = 34,
    // A response: whether it was done, what it returns, and how many packets of instructions it took, if that is known: in all
    // threads, and one behind the other where each piece of shared work takes as long as the slowest thread.
    FIELD_STATUS = 48,
    FIELD_RESULT = 49,
    FIELD_PACKETS = 50,
    FIELD_LONGEST = 51,
};

// Operations and their arguments. Offsets are of bytes in the file, multiples of ALIGNMENT.
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
};

enum {
    STATUS_OK = 0,
    // An operation, program, length or offset that is none.
    STATUS_REQUEST = 1,
    // No memory.
    STATUS_MEMORY = 2,
    // The image is not what its hash is of, or its parts contradict each other.
    STATUS_IMAGE = 3,
    // The input is not what its hash is of.
    STATUS_INPUT = 4,
    // A product's check sum is wrong: weights in the device's memory were overwritten.
    STATUS_SUM = 5,
};

#define ALIGNMENT 128u
// Threads that compute at once: a v73 has four vector contexts, a v79 six.
#define MOST_THREADS 8u
// Rows that a tile of a product has: a run has room for so many more.
#define TILE_ROWS 8u
// Output channels that a tile has. Behind the channels of a layer come CHECKS more, and one or more of zeros up to a multiple
// of this.
#define TILE_COLUMNS 64u
#define CHECKS 4u
// Parameters of a channel in fixed point.
#define FIXED_PARTS 9u
#define MAX_FEATURES 133144u
#define MAX_COLUMNS (1u << 24)

// One product of a program: sums of u8 weights (each 128 too large) times s8 activations.
struct product {
    uint32_t in_features;
    uint32_t out_features;
    // In the image, [columns / TILE_COLUMNS][in_features / 4][TILE_COLUMNS][4] bytes.
    uint32_t weights;
    uint32_t reserved;
};

// The beginning of an image.
struct image {
    uint32_t magic;
    // 1, of linear layers side by side, or 2, of a feed-forward: up and gate side by side, and down.
    uint32_t products;
    // Of a feed-forward: whether it has a gate; 0 for SiLU, 1 for GELU in its tanh form; one of the arithmetics below; whether
    // what down reads is returned in f32, which fixed point does not have.
    uint32_t gated;
    uint32_t activation;
    uint32_t arithmetic;
    uint32_t returns_inner;
    // 1 / scale of what down reads.
    float inverse_scale;
    // In the image, before all weights, [5][width] f32: scales and biases of up and of gate, factors of smoothing. In fixed point
    // [width / 32][FIXED_PARTS][32] i32, by crates/kernels/src/fixed_point.
    uint32_t parameters;
    struct product product[2];
    uint32_t reserved[16];
};
#define IMAGE_MAGIC 0x50495254u // "TRIP"

// What is between the products of a feed-forward is computed in f32, where a product and a sum are rounded twice, or once, as on
// the host; or in fixed point.
enum { ARITHMETIC_TWICE = 0, ARITHMETIC_ONCE = 1, ARITHMETIC_FIXED = 2 };

_Static_assert(sizeof(struct image) == 128, "the image begins with 128 bytes");
