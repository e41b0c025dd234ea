// The work of the thread that owns HMX. hexagon/build compiles it without HVX: other threads need all vector contexts, and
// only they pack operands, combine planes, and compare.
#pragma once

#include <stdint.h>

// Products of each of `tiles` consecutive tiles of weights with each of `blocks` blocks of activations. Results are written
// one after the other: the planes of a tile, or a crouton of fp16. All addresses are in VTCM.
struct hmx_job {
    // Kind of weights, and the number of croutons of a block.
    uint32_t kind, croutons, blocks, tiles;
    // The number of times that each product is added.
    uint32_t times;
    // Whether the accumulators are cleared before each product.
    uint32_t clears;
    const uint8_t *tables, *activations, *weights;
    uint8_t *results;
};

// Starts the thread. Returns a fault.
uint32_t hmx_start_thread(void);

// Takes the lock of HMX for the thread, or gives it back; a second call with the same argument changes nothing. Returns a
// fault. The first call waits for at most about a second, after which the thread is given up.
uint32_t hmx_hold(int holds);

// Lets the thread do a job, which must live until hmx_await returns. The thread must hold the lock.
void hmx_post(struct hmx_job *job);

// Waits for the job.
void hmx_await(void);

// Executes one leaf on the thread, for a test.
void hmx_issue(void (*leaf)(uint32_t, uint32_t, uint32_t, uint32_t), const uint32_t registers[4]);
