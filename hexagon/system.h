// What the run time needs of the system that it runs on, and the one function that the system's part calls.
#pragma once

#include <stdint.h>

// Executes requests of the host in the `bytes` bytes that both map, more than HEADER, until it ends the device. Returns 0, or an exit
// code if they are not the host's.
int serve(uint8_t *start, uint32_t bytes);

// Zeroed memory, aligned to a page, or null.
void *system_allocate(uint32_t bytes);

void system_free(void *memory, uint32_t bytes);

// Gives the processor away for about so many microseconds.
void system_sleep(uint32_t microseconds);

// How many packets of instructions ran so far, modulo 2³²; 0 where that is not known.
uint32_t system_packets(void);

// Whether the host's process is gone, if that can be seen.
int system_is_orphan(void);

// Where the processor's cache does not see what the host writes: forgets what it has of shared memory, so that it is read anew.
void system_refresh(const uint8_t *start, uint32_t bytes);

// Where the host does not see what is in the processor's cache: writes what it has of shared memory back.
void system_publish(const uint8_t *start, uint32_t bytes);
