// What the run time needs of the system that it runs on.
#pragma once

#include <stdint.h>

// The shared file, mapped; `bytes` is set to its length. Null where there is none.
uint8_t *system_shared(uint32_t *bytes);

// Zeroed memory, aligned to a page, or null.
void *system_allocate(uint32_t bytes);

void system_free(void *memory, uint32_t bytes);

// Gives the processor away for about so many microseconds.
void system_sleep(uint32_t microseconds);

// How many packets of instructions ran so far, modulo 2³²; 0 where that is not known.
uint32_t system_packets(void);

// Whether the host's process is gone.
int system_is_orphan(void);

__attribute__((noreturn)) void system_exit(int code);
