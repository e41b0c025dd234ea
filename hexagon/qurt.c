// The system interface on Snapdragon's DSP, QuRT, in the unsigned protection domain that FastRPC creates: a shared
// object that the domain's shell loads, and whose only function it calls. It has never run on a phone.
//
// The functions of QuRT and of its C library are in the shell and are resolved when this object is loaded. They are
// declared here as publicly documented, since their headers belong to an SDK.
#include "protocol.h"
#include "system.h"

extern void *memalign(unsigned long alignment, unsigned long bytes);
extern void free(void *memory);
extern int qurt_timer_sleep(unsigned long long microseconds);
extern int qurt_hvx_lock(int mode);
extern int qurt_hvx_unlock(void);
extern int qurt_mem_cache_clean(unsigned long start, unsigned long bytes, int operation, int cache);

// A shell may lack these functions. Without those of threads one thread computes, and HVX multiplies. Without futexes, which
// some images do not export, threads that wait look again after a pause; without a way to try for a vector context, only
// the threads that serve the host and own HMX run.
#define OPTIONAL __attribute__((weak))
extern OPTIONAL int qurt_thread_create(uint32_t *thread, const void *attributes, void (*body)(void *), void *argument);
extern OPTIONAL int qurt_thread_join(uint32_t thread, int *status);
extern OPTIONAL uint32_t qurt_thread_get_id(void);
extern OPTIONAL int qurt_thread_get_priority(uint32_t thread);
extern OPTIONAL int qurt_futex_wait(void *word, int value);
extern OPTIONAL int qurt_futex_wake(void *word, int threads);
extern OPTIONAL int qurt_hvx_try_lock(int mode);

// Functions for VTCM, the memory of the vector unit, declared as in Halide: if they are missing, there is none.
extern OPTIONAL void *HAP_request_VTCM(unsigned int bytes, unsigned int in_one_page);
extern OPTIONAL int HAP_release_VTCM(void *memory);

enum { HVX_128_BYTES = 1, CLEAN_AND_INVALIDATE = 2, DATA_CACHE = 1, PAGE = 4096, LINE = 128 };
// Microseconds between two looks at a word, and their number until a thread that does not start is given up.
enum { PAUSE = 20, MAX_PAUSES = 5000 };

void *system_allocate(uint32_t bytes) {
    uint64_t *memory = memalign(PAGE, bytes);
    for (uint32_t index = 0; memory && index < (bytes + 7) / 8; index++) {
        memory[index] = 0;
    }
    return memory;
}

void system_free(void *memory, uint32_t bytes) {
    (void)bytes;
    free(memory);
}

// Other programs also use it: requests MOST_NEAR, then half of that, and so on.
uint8_t *system_near(uint32_t *bytes) {
    const uint32_t least = 256 << 10;
    for (*bytes = MOST_NEAR; HAP_request_VTCM && HAP_release_VTCM && *bytes >= least; *bytes /= 2) {
        uint8_t *memory = HAP_request_VTCM(*bytes, 0);
        if (memory) {
            return memory;
        }
    }
    return 0;
}

void system_free_near(uint8_t *memory) { HAP_release_VTCM(memory); }

void system_sleep(uint32_t microseconds) { qurt_timer_sleep(microseconds); }

uint32_t system_packets(void) { return 0; }

// Attributes of a thread, declared as Halide does for its own programs on a DSP (src/runtime/mini_qurt.h), with room
// for the fields of later versions, whose default is zero.
struct attributes {
    char name[16];
    uint8_t partition, affinity;
    uint16_t priority;
    uint8_t address_space, bus_priority;
    uint16_t test;
    uint32_t stack_bytes;
    uint8_t *stack;
    uint32_t later[4];
};
enum { DEFAULT_BUS_PRIORITY = 255, NO_TEST = 0xfffe, LOWEST_PRIORITY = 254 };
// The priority of a domain's threads that FastRPC asks for.
enum { USUAL_PRIORITY = 192 };

// The argument of a thread, and whether it got a vector context, or does not need one.
static struct start {
    void (*body)(uint32_t index);
    uint32_t index, state;
} starts[MOST_THREADS + 1];
enum { STARTS = 0, RUNS = 1, HAS_NO_CONTEXT = 2, IS_GIVEN_UP = 3 };

// The thread of HMX does not use its vector context: one public text about a v69 says that HMX needs it.
static void begin(void *argument) {
    struct start *start = argument;
    const int has_context = qurt_hvx_try_lock && qurt_hvx_try_lock(HVX_128_BYTES) == 0;
    const int runs = has_context || start->index == UNIT_THREAD;
    uint32_t state = STARTS;
    const int is_awaited = __atomic_compare_exchange_n(&start->state, &state, runs ? RUNS : HAS_NO_CONTEXT, 0,
                                                       __ATOMIC_RELEASE, __ATOMIC_RELAXED);
    if (runs && is_awaited) {
        start->body(start->index);
    }
    if (has_context) {
        qurt_hvx_unlock();
    }
}

uint32_t system_start(void (*body)(uint32_t index), uint32_t index, uint8_t *stack, uint32_t bytes) {
    if (!qurt_thread_create || !qurt_thread_join || (!qurt_hvx_try_lock && index != UNIT_THREAD)) {
        return 0;
    }
    const int is_known = qurt_thread_get_id && qurt_thread_get_priority;
    const int priority = is_known ? qurt_thread_get_priority(qurt_thread_get_id()) : USUAL_PRIORITY;
    struct attributes attributes = {
        .name = "triad",
        .priority = (uint16_t)(priority < 1 ? 1 : priority > LOWEST_PRIORITY ? LOWEST_PRIORITY : priority),
        .bus_priority = DEFAULT_BUS_PRIORITY,
        .test = NO_TEST,
        .stack_bytes = bytes,
        .stack = stack,
    };
    struct start *start = &starts[index];
    *start = (struct start){body, index, STARTS};
    uint32_t thread = 0;
    if (qurt_thread_create(&thread, &attributes, begin, start) != 0) {
        return 0;
    }
    for (uint32_t pause = 0; __atomic_load_n(&start->state, __ATOMIC_ACQUIRE) == STARTS && pause < MAX_PAUSES; pause++) {
        system_sleep(PAUSE);
    }
    uint32_t state = STARTS;
    if (__atomic_compare_exchange_n(&start->state, &state, IS_GIVEN_UP, 0, __ATOMIC_ACQUIRE, __ATOMIC_ACQUIRE)) {
        return 0;
    }
    if (state == HAS_NO_CONTEXT) {
        system_join(thread);
        return 0;
    }
    return thread;
}

// Joining a thread that has already ended is an error, which is ignored.
void system_join(uint32_t thread) {
    int status = 0;
    qurt_thread_join(thread, &status);
}

void system_wait(uint32_t *word, uint32_t value) {
    if (qurt_futex_wait && qurt_futex_wake) {
        qurt_futex_wait(word, (int)value);
    } else {
        system_sleep(PAUSE);
    }
}

void system_wake(uint32_t *word) {
    if (qurt_futex_wait && qurt_futex_wake) {
        qurt_futex_wake(word, 1);
    }
}

// The kernel ends a domain whose process is gone.
int system_is_orphan(void) { return 0; }

// Whole lines: memory to be refreshed was not written since it was last published.
static void clean(const uint8_t *start, uint32_t bytes) {
    const unsigned long first = (unsigned long)start & ~(LINE - 1ul);
    const unsigned long end = ((unsigned long)start + bytes + LINE - 1) & ~(LINE - 1ul);
    qurt_mem_cache_clean(first, end - first, CLEAN_AND_INVALIDATE, DATA_CACHE);
}

void system_refresh(const uint8_t *start, uint32_t bytes) { clean(start, bytes); }

void system_publish(const uint8_t *start, uint32_t bytes) { clean(start, bytes); }

// An argument from FastRPC: buffers, described by `scalars`.
struct argument {
    void *start;
    uint32_t bytes;
};

// Error numbers, which the host explains to the user.
enum { ERROR_REQUEST = 14, ERROR_NO_HVX = 20 };

// The interface `triad_skel_invoke`: method 0 receives the address and the bytes of the shared memory, in two 64-bit
// words, and returns when the host ends the device.
__attribute__((visibility("default"))) int triad_skel_invoke(uint32_t scalars, struct argument *arguments) {
    const uint32_t one_input_of_method_0 = 1u << 16;
    if (scalars != one_input_of_method_0 || arguments[0].bytes != 2 * sizeof(uint64_t)) {
        return ERROR_REQUEST;
    }
    const uint64_t *shared = arguments[0].start;
    const uint64_t start = shared[0], bytes = shared[1];
    if (start == 0 || start > 0xffffffffu || bytes <= HEADER || bytes > 0x7fffffff) {
        return ERROR_REQUEST;
    }
    if (qurt_hvx_lock(HVX_128_BYTES) != 0) {
        return ERROR_NO_HVX;
    }
    const int code = serve((uint8_t *)(unsigned long)start, (uint32_t)bytes);
    qurt_hvx_unlock();
    return code;
}
