// The functions of the system that the run time needs, and the one function that the system's part calls.
#pragma once

#include <stdint.h>

#include "protocol.h"

// Executes requests of the host in the `bytes` bytes that both map, more than HEADER, until the host ends the device.
// Returns 0, or an exit code if the memory is not the host's.
int serve(uint8_t *start, uint32_t bytes);

// Returns zeroed memory, aligned to a page, or null.
void *system_allocate(uint32_t bytes);

void system_free(void *memory, uint32_t bytes);

// Maximum bytes of memory near the vector unit: for each of MOST_THREADS threads, weights of 64 columns with 8,192
// features.
#define MOST_NEAR (4u << 20)

// Returns memory near the vector unit, aligned to a page, or null: at most MOST_NEAR bytes, and stores its size in
// `*bytes`. Called once; the memory is freed at the end.
uint8_t *system_near(uint32_t *bytes);

void system_free_near(uint8_t *memory);

// Gets HMX for the program, and memory near it in the same way as system_near, which is then not called. Returns a fault of
// hmx.h, or FAULT_NONE. *near may be null after a fault.
uint32_t system_acquire_hmx(uint8_t **near, uint32_t *bytes);

// Gives back what system_acquire_hmx got.
void system_release_hmx(uint8_t *near);

// Returns whether HMX is a model.
int system_models_hmx(void);

// Executes a leaf of hmx_leaves.h, on the thread UNIT_THREAD.
void system_issue(void (*leaf)(uint32_t, uint32_t, uint32_t, uint32_t), uint32_t r0, uint32_t r1, uint32_t r2, uint32_t r3);

// Returns the first fault that the model of HMX found since the last call; FAULT_NONE without a model.
uint32_t system_fault(void);

// Numbers of protocol.h that the model counted: instructions and bytes modulo 2³², and the end since the last call.
struct hmx_counts {
    uint32_t instructions, bytes, end;
};
struct hmx_counts system_hmx_counts(void);

// Returns the number of packets that the model executed, modulo 2³².
uint32_t system_modelled_packets(void);

// Asks for the highest clocks, or gives that back. Asking twice is as asking once.
void system_hurry(int hurries);

// Sleeps for about this many microseconds.
void system_sleep(uint32_t microseconds);

// Returns the number of instruction packets that the calling thread has executed, modulo 2³²; 0 if it is unknown.
uint32_t system_packets(void);

// The index of the thread that owns HMX.
#define UNIT_THREAD MOST_THREADS

// Starts a thread that calls body(index) on a stack of `bytes` bytes and ends when that returns; it may use the vector
// unit, and UNIT_THREAD HMX instead. Returns its identifier, or 0 if no thread can be started.
uint32_t system_start(void (*body)(uint32_t index), uint32_t index, uint8_t *stack, uint32_t bytes);

// Waits until a thread has ended whose body returns.
void system_join(uint32_t thread);

// Sleeps while `*word` is `value`, until it is woken; may also return early. `word` is in the program's own memory.
void system_wait(uint32_t *word, uint32_t value);

// Wakes the thread that sleeps on `word`, if there is one; `word` must have been changed before.
void system_wake(uint32_t *word);

// Returns whether the host's process is gone, if that can be detected.
int system_is_orphan(void);

// Invalidates the cache of shared memory, if the processor's cache is not coherent with the host's writes.
void system_refresh(const uint8_t *start, uint32_t bytes);

// Writes cached shared memory back, if the host cannot see the processor's cache.
void system_publish(const uint8_t *start, uint32_t bytes);
