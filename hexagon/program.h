// Programs: subgraphs that the host compiled, in the device's memory.
#pragma once

#include <stdint.h>

#include "protocol.h"

// The file that both sides map. Nothing in it is trusted: references in a request are checked, and inputs are copied
// before they are used.
struct shared {
    uint8_t *start;
    uint32_t bytes;
};

// Executes a request and returns its status.
uint64_t execute(const struct shared *shared, uint64_t operation, uint64_t program, const uint64_t arguments[6],
                 uint64_t *result, void (*progress)(void));
