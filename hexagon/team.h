// The threads that compute together: one that serves the host, and up to MOST_THREADS − 1 others that wait for work.
#pragma once

#include <stdint.h>

// Starts threads until `threads` compute, at least one and at most MOST_THREADS, including the calling one, which is
// the first. Returns their number, which is smaller if the system has no more threads.
uint32_t team_start(uint32_t threads);

// Ends the threads that team_start started; they must be idle.
void team_end(void);

// Runs work(argument, index, count) on as many threads as there are, but at most `parts`, with `index` from 0, which is
// the calling thread, to `count` − 1. Returns when all have returned. The division of parts among threads must not
// depend on their timing.
void team_run(uint32_t parts, void (*work)(void *argument, uint32_t index, uint32_t count), void *argument);

// Starts the thread that owns HMX. Returns whether the system has one more thread.
int team_start_unit(void);

// Ends the thread that owns HMX, which must be idle. Returns whether it has ended, and not been given up before.
int team_end_unit(void);

// Has the thread that owns HMX call work(argument); the calling thread goes on. team_await_unit waits for it.
void team_post(void (*work)(void *argument), void *argument);
void team_await_unit(void);

// Waits for the thread that owns HMX for about this time. Returns whether it has done its work. If not, it is given up, and
// leaves after its work.
int team_await_unit_for(uint32_t milliseconds);

// Executed instruction packets, modulo 2³², without those of waiting and of the model of HMX; 0 if
// unknown.
struct packets {
    // Total of all threads.
    uint32_t all;
    // The critical path: those of the calling thread alone, and of the slowest thread of each call of team_run. Those of
    // the thread that owns HMX, which works concurrently, are not in it.
    uint32_t longest;
};
struct packets team_packets(void);
