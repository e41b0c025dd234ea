// The run time: maps the file that it shares with the host, says who it is, and executes requests until the host is gone.
#include "program.h"
#include "system.h"

// A hash of the sources, by the script that builds them.
#ifndef BUILD
#define BUILD 0
#endif

// Who this is, in one place of the file, where it can be read without running it.
static const volatile struct {
    uint64_t magic, version, build;
} identity = {DEVICE_MAGIC, VERSION, BUILD};

// Exit codes, which the host explains.
enum { EXIT_NO_FILE = 3, EXIT_OTHER_HOST = 4 };

static volatile uint64_t *fields;

static void progress(void) { fields[FIELD_HEARTBEAT] = fields[FIELD_HEARTBEAT] + 1; }

// What was written before is written before what follows.
static inline void order(void) { __asm__ volatile("barrier" ::: "memory"); }

// Waits for a request with another number than `latest`: polls for a moment, then sleeps longer and longer.
static uint64_t wait(uint64_t latest) {
    const uint32_t polls = 2000, longest = 500;
    uint32_t pause = 20;
    for (uint32_t count = 0;; count++) {
        const uint64_t request = fields[FIELD_REQUEST];
        if (request != latest) {
            order();
            return request;
        }
        if (count < polls) {
            continue;
        }
        if (system_is_orphan()) {
            system_exit(0);
        }
        system_sleep(pause);
        pause = pause * 2 < longest ? pause * 2 : longest;
    }
}

void _start(void) {
    struct shared shared = {0};
    shared.start = system_shared(&shared.bytes);
    if (!shared.start || shared.bytes <= HEADER) {
        system_exit(EXIT_NO_FILE);
    }
    fields = (volatile uint64_t *)shared.start;
    if (fields[FIELD_HOST_MAGIC] != HOST_MAGIC || fields[FIELD_FILE_BYTES] != shared.bytes) {
        system_exit(EXIT_OTHER_HOST);
    }
    system_is_orphan();
    uint64_t latest = fields[FIELD_REQUEST];
    fields[FIELD_DEVICE_VERSION] = identity.version;
    fields[FIELD_DEVICE_BUILD] = identity.build;
    order();
    // A host of another version sees ours, and starts nothing.
    fields[FIELD_DEVICE_MAGIC] = identity.magic;
    for (;;) {
        latest = wait(latest);
        uint64_t arguments[6], result = 0;
        for (uint32_t index = 0; index < 6; index++) {
            arguments[index] = fields[FIELD_ARGUMENTS + index];
        }
        const uint64_t operation = fields[FIELD_OPERATION], program = fields[FIELD_PROGRAM];
        const uint32_t before = system_packets();
        const uint64_t status = execute(&shared, operation, program, arguments, &result, progress);
        fields[FIELD_STATUS] = status;
        fields[FIELD_RESULT] = result;
        fields[FIELD_PACKETS] = (uint32_t)(system_packets() - before);
        order();
        fields[FIELD_RESPONSE] = latest;
    }
}
