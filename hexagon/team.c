#include "team.h"

#include "protocol.h"
#include "system.h"

// A thread computes tiles with 16 vectors, and its call depth is small. The only public program for HMX that names a stack
// has 64 KiB.
enum { STACK_BYTES = 32768, UNIT_STACK_BYTES = 65536, POLLS = 200 };

// The state of a thread of the team: idle, working, or ending.
enum { REST = 0, WORK = 1, LEAVE = 2 };

// One cache line per member.
struct member {
    // Set by the calling thread to WORK or LEAVE, and by the member back to REST. The thread that waits for it sleeps
    // on it.
    uint32_t state;
    // Packets of its latest work.
    uint32_t packets;
    // The system's identifier.
    uint32_t thread;
} __attribute__((aligned(128)));

// The first one belongs to the calling thread, which does not use it, and the last one to the thread that owns HMX.
static struct member members[MOST_THREADS + 1];
static uint8_t stacks[MOST_THREADS][STACK_BYTES] __attribute__((aligned(128)));
static uint8_t unit_stack[UNIT_STACK_BYTES] __attribute__((aligned(128)));
static uint32_t threads_of_team = 1;

// The work of the members, and of the thread that owns HMX, written before their state.
static struct {
    void (*work)(void *argument, uint32_t index, uint32_t count);
    void *argument;
    uint32_t count;
} job;
static struct {
    void (*work)(void *argument);
    void *argument;
    int is_started, is_given_up;
} unit;

// Packets within team_run: of the calling thread including its waiting, of all threads, and of the longest part of each
// call.
static uint32_t packets_within, packets_of_all, packets_of_longest;

static void set(uint32_t *state, uint32_t value) {
    __atomic_store_n(state, value, __ATOMIC_RELEASE);
    system_wake(state);
}

// Waits while the state is `value`, and returns the new one: polls briefly, then sleeps.
static uint32_t wait_while(uint32_t *state, uint32_t value) {
    for (uint32_t count = 0;; count++) {
        const uint32_t now = __atomic_load_n(state, __ATOMIC_ACQUIRE);
        if (now != value) {
            return now;
        }
        if (count >= POLLS) {
            system_wait(state, value);
        }
    }
}

// Runs a thread's part, and returns its packets.
static uint32_t take_part(uint32_t index) {
    const uint32_t before = system_packets();
    if (index == UNIT_THREAD) {
        const uint32_t of_model = system_modelled_packets();
        unit.work(unit.argument);
        return system_packets() - before - (system_modelled_packets() - of_model);
    }
    job.work(job.argument, index, job.count);
    return system_packets() - before;
}

static void member(uint32_t index) {
    struct member *self = &members[index];
    while (wait_while(&self->state, REST) == WORK) {
        settle();
        self->packets = take_part(index);
        settle();
        uint32_t work = WORK;
        if (!__atomic_compare_exchange_n(&self->state, &work, REST, 0, __ATOMIC_RELEASE, __ATOMIC_RELAXED)) {
            // The thread of HMX was given up while it waited for the lock.
            system_hold_hmx(0);
            return;
        }
        system_wake(&self->state);
    }
}

uint32_t team_start(uint32_t threads) {
    for (threads_of_team = 1; threads_of_team < threads && threads_of_team < MOST_THREADS; threads_of_team++) {
        struct member *next = &members[threads_of_team];
        next->state = REST;
        next->thread = system_start(member, threads_of_team, stacks[threads_of_team], STACK_BYTES);
        if (!next->thread) {
            break;
        }
    }
    return threads_of_team;
}

int team_start_unit(void) {
    struct member *owner = &members[UNIT_THREAD];
    owner->state = REST;
    owner->thread = system_start(member, UNIT_THREAD, unit_stack, UNIT_STACK_BYTES);
    unit.is_started = owner->thread != 0;
    return unit.is_started;
}

int team_end_unit(void) {
    if (unit.is_started) {
        set(&members[UNIT_THREAD].state, LEAVE);
        system_join(members[UNIT_THREAD].thread);
        unit.is_started = 0;
    }
    return !unit.is_given_up;
}

void team_end(void) {
    for (; threads_of_team > 1; threads_of_team--) {
        struct member *last = &members[threads_of_team - 1];
        set(&last->state, LEAVE);
        system_join(last->thread);
    }
}

void team_run(uint32_t parts, void (*work)(void *argument, uint32_t index, uint32_t count), void *argument) {
    const uint32_t before = system_packets(), count = parts < threads_of_team ? parts : threads_of_team;
    job.work = work;
    job.argument = argument;
    job.count = count;
    for (uint32_t index = 1; index < count; index++) {
        set(&members[index].state, WORK);
    }
    uint32_t all = take_part(0), longest = all;
    for (uint32_t index = 1; index < count; index++) {
        wait_while(&members[index].state, WORK);
        const uint32_t packets = members[index].packets;
        all += packets;
        longest = packets > longest ? packets : longest;
    }
    packets_of_all += all;
    packets_of_longest += longest;
    packets_within += system_packets() - before;
}

void team_post(void (*work)(void *argument), void *argument) {
    unit.work = work;
    unit.argument = argument;
    settle();
    set(&members[UNIT_THREAD].state, WORK);
}

void team_await_unit(void) {
    const uint32_t before = system_packets();
    wait_while(&members[UNIT_THREAD].state, WORK);
    settle();
    packets_of_all += members[UNIT_THREAD].packets;
    packets_within += system_packets() - before;
}

int team_await_unit_for(uint32_t milliseconds) {
    uint32_t *state = &members[UNIT_THREAD].state, work = WORK;
    for (; __atomic_load_n(state, __ATOMIC_ACQUIRE) == WORK && milliseconds > 0; milliseconds--) {
        system_sleep(1000);
    }
    unit.is_given_up = __atomic_compare_exchange_n(state, &work, LEAVE, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    if (unit.is_given_up) {
        unit.is_started = 0;
        return 0;
    }
    team_await_unit();
    return 1;
}

struct packets team_packets(void) {
    const uint32_t alone = system_packets() - packets_within;
    return (struct packets){alone + packets_of_all, alone + packets_of_longest};
}
