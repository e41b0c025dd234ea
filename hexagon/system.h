// What the run time needs of the system that it runs on, and the one function that the system's part calls.
#pragma once

#include <stdint.h>

// Executes requests of the host in the `bytes` bytes that both map, more than HEADER, until it ends the device. Returns 0, or an exit
// code if they are not the host's.
int serve(uint8_t *start, uint32_t bytes);

// Zeroed memory, aligned to a page, or null.
void *system_allocate(uint32_t bytes);

void system_free(void *memory, uint32_t bytes);

// Memory near the vector unit that is wanted: for each of MOST_THREADS threads weights of 64 columns with 8,192 features.
#define MOST_NEAR (4u << 20)

// Memory near the vector unit, aligned to a page, or null: at most MOST_NEAR bytes, and `*bytes` of them. It is asked for once, and given
// back at the end.
uint8_t *system_near(uint32_t *bytes);

void system_free_near(uint8_t *memory);

// Gives the processor away for about so many microseconds.
void system_sleep(uint32_t microseconds);

// How many packets of instructions the calling thread executed so far, modulo 2³²; 0 where that is not known.
uint32_t system_packets(void);

// Starts a thread that calls body(index) on a stack of `bytes` bytes and ends when that returns; it may use the vector unit.
// Returns what names it, or 0 if there can't be one more.
uint32_t system_start(void (*body)(uint32_t index), uint32_t index, uint8_t *stack, uint32_t bytes);

// Waits until a thread has ended whose body returns.
void system_join(uint32_t thread);

// Sleeps while `*word` is `value`, until it is woken; it may return before. `word` is in the program's own memory.
void system_wait(uint32_t *word, uint32_t value);

// Wakes the thread that sleeps on `word`, which was changed before, if one does.
void system_wake(uint32_t *word);

// Whether the host's process is gone, if that can be seen.
int system_is_orphan(void);

// Where the processor's cache does not see what the host writes: forgets what it has of shared memory, so that it is read anew.
void system_refresh(const uint8_t *start, uint32_t bytes);

// Where the host does not see what is in the processor's cache: writes what it has of shared memory back.
void system_publish(const uint8_t *start, uint32_t bytes);
