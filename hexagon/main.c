// The run time: writes its identity to the memory that it shares with the host, and executes requests until the host is
// gone.
#include "hmx.h"
#include "hmx_product.h"
#include "hmx_unit.h"
#include "product.h"
#include "program.h"
#include "system.h"
#include "team.h"

// A hash of the sources, set by the build script.
#ifndef BUILD
#define BUILD 0
#endif

// The identity of this program, in one place of the file, where it can be read without running it.
static const volatile struct {
    uint64_t magic, version, build;
} identity = {DEVICE_MAGIC, VERSION, BUILD};

// Exit codes, which the host explains to the user.
enum { EXIT_OTHER_HOST = 4 };

static volatile uint64_t *fields;

// Writes the fields from `first` to `last` to memory, and removes them from the cache, so that the host's fields are
// read from memory.
static void exchange(uint32_t first, uint32_t last) {
    system_publish((const uint8_t *)&fields[first], (last - first + 1) * (uint32_t)sizeof(uint64_t));
}

static void progress(void) {
    fields[FIELD_HEARTBEAT] = fields[FIELD_HEARTBEAT] + 1;
    exchange(FIELD_REQUEST, FIELD_HEARTBEAT);
}

// Orders earlier writes before later ones.
static inline void order(void) { __asm__ volatile("barrier" ::: "memory"); }

// Waits until `latest` is the number of a new request: polls briefly, then sleeps for increasing times, and after a tenth
// of a second gives up HMX and the highest clocks until the next request. Returns whether there is one; there is none if the host ends the device or is gone.
static int wait(uint64_t *latest) {
    const uint32_t polls = 2000, longest = 500;
    uint32_t pause = 20, idle = 0;
    for (uint32_t count = 0;; count++) {
        system_refresh((const uint8_t *)fields, FIELD_BYTES);
        const uint64_t request = fields[FIELD_REQUEST];
        if (request != *latest) {
            order();
            // Arguments that were read before the number may be older than it.
            system_refresh((const uint8_t *)fields, FIELD_BYTES);
            *latest = request;
            return 1;
        }
        if (count < polls) {
            continue;
        }
        if (fields[FIELD_HOST_MAGIC] != HOST_MAGIC || system_is_orphan()) {
            return 0;
        }
        if (pause == longest && ++idle == 200) {
            // Other programs get HMX, and clocks go down.
            hmx_hold(0);
            system_hurry(0);
        }
        system_sleep(pause);
        pause = pause * 2 < longest ? pause * 2 : longest;
    }
}

// The memory near the vector unit or HMX, and whether it was got with HMX.
static struct {
    uint8_t *start;
    uint32_t bytes;
    int is_of_hmx;
} near;

// Gives HMX back, but not under a thread that may still wait for its lock: the end of the domain does.
static void release_unit(void) {
    if (team_end_unit() && near.is_of_hmx) {
        system_release_hmx(near.start);
    }
    near.is_of_hmx = 0;
    near.start = 0;
}

// Gets the unit that the host asks for, or HVX if there is no HMX that computes what HVX does. Writes which to the fields.
static void get_unit(void) {
    uint32_t fault = FAULT_NONE;
    fields[FIELD_DEVICE_UNIT] = UNIT_HVX;
    if (fields[FIELD_UNIT] == UNIT_HMX) {
        fault = system_acquire_hmx(&near.start, &near.bytes, fields[FIELD_MODEL]);
        near.is_of_hmx = fault == FAULT_NONE;
        fault = fault != FAULT_NONE ? fault : hmx_start(near.start, near.bytes);
        if (fault != FAULT_NONE) {
            release_unit();
        } else {
            fields[FIELD_DEVICE_UNIT] = system_models_hmx() ? UNIT_MODEL : UNIT_HMX;
            fields[FIELD_DEVICE_FEATURES] = hmx_max_features();
        }
    }
    if (!near.is_of_hmx) {
        near.start = system_near(&near.bytes);
    }
    if (near.start) {
        use_near_memory(near.start, near.bytes);
    }
    fields[FIELD_DEVICE_FAULT] = fault;
}

int serve(uint8_t *start, uint32_t bytes) {
    const struct shared shared = {start, bytes};
    fields = (volatile uint64_t *)start;
    system_refresh(start, FIELD_BYTES);
    const uint64_t threads = fields[FIELD_THREADS];
    if (fields[FIELD_HOST_MAGIC] != HOST_MAGIC || fields[FIELD_FILE_BYTES] != bytes || threads == 0 ||
        threads > MOST_THREADS) {
        return EXIT_OTHER_HOST;
    }
    system_is_orphan();
    // The thread of HMX is the first one, so that it has a vector context where it needs one.
    get_unit();
    fields[FIELD_DEVICE_THREADS] = team_start((uint32_t)threads);
    uint64_t latest = fields[FIELD_REQUEST];
    fields[FIELD_DEVICE_VERSION] = identity.version;
    fields[FIELD_DEVICE_BUILD] = identity.build;
    order();
    // A host of another version sees our version, and sends no request.
    fields[FIELD_DEVICE_MAGIC] = identity.magic;
    exchange(FIELD_DEVICE_MAGIC, FIELD_DEVICE_FEATURES);
    while (wait(&latest)) {
        uint64_t arguments[6], result = 0;
        for (uint32_t index = 0; index < 6; index++) {
            arguments[index] = fields[FIELD_ARGUMENTS + index];
        }
        const uint64_t operation = fields[FIELD_OPERATION], program = fields[FIELD_PROGRAM];
        system_hurry(1);
        const struct packets before = team_packets();
        const struct hmx_counts hmx_before = system_take_hmx_counts();
        const uint64_t status = execute(&shared, operation, program, arguments, &result, progress);
        fields[FIELD_STATUS] = status;
        fields[FIELD_RESULT] = result;
        const struct packets after = team_packets();
        fields[FIELD_PACKETS] = (uint32_t)(after.all - before.all);
        fields[FIELD_LONGEST] = (uint32_t)(after.longest - before.longest);
        const struct hmx_counts hmx_after = system_take_hmx_counts();
        fields[FIELD_HMX_INSTRUCTIONS] = hmx_after.instructions - hmx_before.instructions;
        fields[FIELD_HMX_BYTES] = hmx_after.bytes - hmx_before.bytes;
        fields[FIELD_HMX_END] = hmx_after.end;
        exchange(FIELD_STATUS, FIELD_HMX_END);
        order();
        fields[FIELD_RESPONSE] = latest;
        exchange(FIELD_REQUEST, FIELD_HEARTBEAT);
    }
    team_end();
    if (near.is_of_hmx) {
        hmx_hold(0);
        release_unit();
    } else if (near.start) {
        system_free_near(near.start);
    }
    system_hurry(0);
    return 0;
}
