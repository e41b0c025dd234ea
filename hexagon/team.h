// The threads that compute together: one that serves the host, and up to MOST_THREADS − 1 more that wait for work.
#pragma once

#include <stdint.h>

// Starts threads until `threads` compute, at least one and at most MOST_THREADS, of which the calling one is the first. Returns
// how many do: fewer where the system has no more.
uint32_t team_start(uint32_t threads);

// Ends the threads that team_start started, which have no work.
void team_end(void);

// Has as many threads as there are, but at most `parts`, each call work(argument, index, count), `index` from 0, which is the
// calling thread, to `count` − 1. Returns when all have returned. Which parts a thread takes must not depend on when it runs.
void team_run(uint32_t parts, void (*work)(void *argument, uint32_t index, uint32_t count), void *argument);

// Packets of instructions that ran so far, modulo 2³², without those of waiting; 0 where that is not known.
struct packets {
    // Of all threads.
    uint32_t all;
    // One behind the other: those of the calling thread alone, and of each call of team_run those of the thread with the most.
    uint32_t longest;
};
struct packets team_packets(void);
