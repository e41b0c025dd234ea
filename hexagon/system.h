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

// Gets HMX for the program, and memory near it in the same way as system_near, which is then not called. `model` has the
// host's FIELD_MODEL for the model of HMX. Returns a fault of hmx.h, or FAULT_NONE. *near is null after a fault.
uint32_t system_acquire_hmx(uint8_t **near, uint32_t *bytes, uint64_t model);

// Gives back what system_acquire_hmx got.
void system_release_hmx(uint8_t *near);

// Takes the lock of HMX for the calling thread, which is UNIT_THREAD, or gives it back. Returns whether that was possible.
int system_hold_hmx(int holds);

// Returns whether HMX is a model.
int system_models_hmx(void);

// Executes a leaf of hmx_leaves.h, on the thread UNIT_THREAD.
void system_issue(void (*leaf)(uint32_t, uint32_t, uint32_t, uint32_t), uint32_t r0, uint32_t r1, uint32_t r2, uint32_t r3);

// Returns the first fault that the model of HMX found since the last call; FAULT_NONE without a model.
uint32_t system_fault(void);

// Numbers of protocol.h that the model counted: instructions and bytes, and the end since the last call, which resets it.
struct hmx_counts {
    uint64_t instructions, bytes;
    uint32_t end;
};
struct hmx_counts system_take_hmx_counts(void);

// Returns the number of packets that the model executed, modulo 2³².
uint32_t system_modelled_packets(void);

// Asks for the highest clocks, or gives that back. A second call with the same argument changes nothing.
void system_hurry(int hurries);

// Waits until earlier accesses to memory have been made, also those of the vector unit.
static inline void settle(void) { __asm__ volatile("syncht" ::: "memory"); }

// Sleeps for about this many microseconds.
void system_sleep(uint32_t microseconds);

// Returns the number of instruction packets that the calling thread has executed, modulo 2³²; 0 if it is unknown.
uint32_t system_packets(void);

// The index of the thread that owns HMX.
#define UNIT_THREAD MOST_THREADS

// Starts a thread that calls body(index) on a stack of `bytes` bytes and ends when that returns; it may use the vector
// unit, but not as UNIT_THREAD, which may use HMX while it holds its lock. Returns its identifier, or 0 if no thread can be started.
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
