// The system interface on Linux, without a library: for `qemu-hexagon`, which runs the program as a process of this
// machine. The shared file is the standard input. A phone's DSP uses qurt.c instead.
#include "hmx.h"
#include "hmx_model.h"
#include "protocol.h"
#include "system.h"

enum { LSEEK = 62, EXIT_GROUP = 94, FUTEX = 98, NANOSLEEP = 101, GETPPID = 173, MUNMAP = 215, MMAP2 = 222 };

static long call(long number, long a, long b, long c, long d, long e, long f) {
    register long r6 __asm__("r6") = number;
    register long r0 __asm__("r0") = a;
    register long r1 __asm__("r1") = b;
    register long r2 __asm__("r2") = c;
    register long r3 __asm__("r3") = d;
    register long r4 __asm__("r4") = e;
    register long r5 __asm__("r5") = f;
    __asm__ volatile("trap0(#1)" : "+r"(r0) : "r"(r6), "r"(r1), "r"(r2), "r"(r3), "r"(r4), "r"(r5) : "memory");
    return r0;
}

static void *map(uint32_t bytes, long flags, long file) {
    const long read_and_write = 3;
    const unsigned long address = (unsigned long)call(MMAP2, 0, (long)bytes, read_and_write, flags, file, 0);
    // Addresses in the last page are error numbers.
    return address >= (unsigned long)-4096L ? 0 : (void *)address;
}

void *system_allocate(uint32_t bytes) {
    const long private = 2, anonymous = 0x20;
    return map(bytes, private | anonymous, -1);
}

void system_free(void *memory, uint32_t bytes) { call(MUNMAP, (long)memory, (long)bytes, 0, 0, 0, 0); }

// Ordinary memory, so that the code that uses it is tested and counted.
uint8_t *system_near(uint32_t *bytes) {
    *bytes = MOST_NEAR;
    return system_allocate(*bytes);
}

// Nothing to do: the process ends.
void system_free_near(uint8_t *memory) { (void)memory; }

// Variants of the model that the host asks for.
static uint64_t variants;

// Allocates more, so that the memory starts at a boundary of HMX_CUT, or in variants 2 KiB or 64 bytes after it.
uint32_t system_acquire_hmx(uint8_t **near, uint32_t *bytes, uint64_t model) {
    const uint32_t offset = model & MODEL_UNALIGNED ? 64 : model & MODEL_SMALL ? 2048 : 0;
    variants = model;
    *bytes = model & MODEL_SMALL ? 1 << 20 : MOST_NEAR;
    uint8_t *start = system_allocate(MOST_NEAR + 2 * HMX_CUT);
    *near = start ? start + (HMX_CUT - (unsigned long)start % HMX_CUT) % HMX_CUT + offset : 0;
    model_start(*near, *bytes, model);
    return start ? FAULT_NONE : FAULT_NO_NEAR;
}

int system_hold_hmx(int holds) {
    while (holds && variants & MODEL_LATE_LOCK) {
        system_sleep(1000);
    }
    return model_hold(holds);
}

// Nothing to do: the process ends.
void system_release_hmx(uint8_t *near) { (void)near; }

int system_models_hmx(void) { return 1; }

uint32_t system_fault(void) { return model_fault(); }

struct hmx_counts system_take_hmx_counts(void) { return model_take_counts(); }

static uint32_t modelled_packets;

uint32_t system_modelled_packets(void) { return modelled_packets; }

// The emulator does not know the words, and would end: the model reads them.
void system_issue(void (*leaf)(uint32_t, uint32_t, uint32_t, uint32_t), uint32_t r0, uint32_t r1, uint32_t r2, uint32_t r3) {
    const uint32_t registers[4] = {r0, r1, r2, r3}, before = system_packets();
    while (variants & MODEL_HANGS) {
        system_sleep(1000);
    }
    if (variants & MODEL_DIES) {
        call(EXIT_GROUP, 1, 0, 0, 0, 0, 0);
    }
    model_execute((const uint32_t *)(unsigned long)leaf, registers);
    modelled_packets += system_packets() - before;
}

// Nothing to do: an emulator has no clocks.
void system_hurry(int hurries) { (void)hurries; }

void system_sleep(uint32_t microseconds) {
    const int32_t time[2] = {0, (int32_t)microseconds * 1000};
    call(NANOSLEEP, (long)time, 0, 0, 0, 0, 0);
}

uint32_t system_packets(void) {
    // qemu-hexagon counts them in its own control register c20, which has no name in the assembler.
    register uint32_t packets __asm__("r0");
    __asm__ volatile(".word 0x6a14c000 // r0 = c20" : "=r"(packets)::"memory");
    return packets;
}

// Calls clone(flags, stack, 0, 0, 0). The new thread returns from it on its own stack, calls the function whose
// argument and address are there, and exits.
long clone_thread(long flags, uint32_t *stack);
__asm__(".p2align 4\n"
        ".type clone_thread, @function\n"
        "clone_thread:\n"
        "    r2 = #0\n"
        "    r3 = #0\n"
        "    r4 = #0\n"
        "    r6 = #220\n"
        "    trap0(#1)\n"
        "    p0 = cmp.eq(r0, #0)\n"
        "    if (!p0) jumpr r31\n"
        "    r0 = memw(r29 + #0)\n"
        "    r1 = memw(r29 + #4)\n"
        "    callr r1\n"
        "    r0 = #0\n"
        "    r6 = #93\n"
        "    trap0(#1)\n"
        ".size clone_thread, . - clone_thread\n");

uint32_t system_start(void (*body)(uint32_t index), uint32_t index, uint8_t *stack, uint32_t bytes) {
    const long memory = 0x100, folder = 0x200, files = 0x400, signals = 0x800, thread = 0x10000, semaphores = 0x40000;
    uint32_t *top = (uint32_t *)(stack + bytes) - 4;
    top[0] = index;
    top[1] = (uint32_t)body;
    const long number = clone_thread(memory | folder | files | signals | thread | semaphores, top);
    return number > 0 ? (uint32_t)number : 0;
}

// Nothing to do: the process ends, and its threads with it.
void system_join(uint32_t thread) { (void)thread; }

enum { FUTEX_WAIT = 128, FUTEX_WAKE = 129 };

void system_wait(uint32_t *word, uint32_t value) { call(FUTEX, (long)word, FUTEX_WAIT, (long)value, 0, 0, 0); }

void system_wake(uint32_t *word) { call(FUTEX, (long)word, FUTEX_WAKE, 1, 0, 0, 0); }

int system_is_orphan(void) {
    static long parent;
    const long now = call(GETPPID, 0, 0, 0, 0, 0, 0);
    if (parent == 0) {
        parent = now;
    }
    return now != parent;
}

// Emulated memory is that of the host: there is no cache in between.
void system_refresh(const uint8_t *start, uint32_t bytes) { (void)start, (void)bytes; }

void system_publish(const uint8_t *start, uint32_t bytes) { (void)start, (void)bytes; }

// An exit code that the host explains to the user.
enum { EXIT_NO_FILE = 3 };

void _start(void) {
    const long input = 0, shared = 1, whence = 2;
    // _llseek(file, high, low, result, SEEK_END)
    int64_t end = 0;
    uint8_t *start = 0;
    if (call(LSEEK, input, 0, 0, (long)&end, whence, 0) == 0 && end > HEADER && end <= 0x7fffffff) {
        start = map((uint32_t)end, shared, input);
    }
    const int code = start ? serve(start, (uint32_t)end) : EXIT_NO_FILE;
    for (;;) {
        call(EXIT_GROUP, code, 0, 0, 0, 0, 0);
    }
}
