// The functions of the system that the run time needs, and the one function that the system's part calls.
#pragma once

#include <stdint.h>

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

// Sleeps for about this many microseconds.
void system_sleep(uint32_t microseconds);

// Returns the number of instruction packets that the calling thread has executed, modulo 2³²; 0 if it is unknown.
uint32_t system_packets(void);

// Starts a thread that calls body(index) on a stack of `bytes` bytes and ends when that returns; it may use the vector
// unit. Returns its identifier, or 0 if no thread can be started.
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
