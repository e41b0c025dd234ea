// HMX, VTCM and clocks on QuRT. This has never run on a phone.
//
// VTCM and HMX are acquired at once, as other programs do (/docs/design/hexagon.md): the symbols are those that the DSP's
// image is known to export. Declarations and the layout of requests of power are from public descriptions, since their
// headers belong to an SDK.
#include "hmx.h"
#include "protocol.h"
#include "system.h"

#define OPTIONAL __attribute__((weak))
extern OPTIONAL int HAP_power_set(void *client, void *request);
extern OPTIONAL int compute_resource_attr_init(void *attributes);
extern OPTIONAL int compute_resource_attr_set_vtcm_param_v2(void *attributes, unsigned bytes, unsigned page, unsigned least);
extern OPTIONAL int compute_resource_attr_set_hmx_param(void *attributes, unsigned enable);
extern OPTIONAL unsigned compute_resource_acquire(void *attributes, unsigned microseconds);
extern OPTIONAL int compute_resource_attr_get_vtcm_ptr_v2(void *attributes, void **start, unsigned *bytes);
extern OPTIONAL int compute_resource_hmx_lock(unsigned resource);
extern OPTIONAL int compute_resource_hmx_unlock(unsigned resource);
extern OPTIONAL int compute_resource_release(unsigned resource);

enum { POWER_HVX = 2, POWER_CLOCKS = 7, POWER_HMX = 13 };

// A request of power: its type, and a payload that depends on it.
struct power {
    uint32_t type, reserved;
    uint8_t payload[112];
} __attribute__((aligned(8)));

// The client of all requests: any address of this program.
static uint32_t client;

static int set_power(struct power *request) { return HAP_power_set && HAP_power_set(&client, request) == 0; }

// Votes for power, by type.
static uint8_t votes[POWER_HMX + 1];

static int set_unit(uint32_t type, int is_up) {
    struct power request = {.type = type};
    request.payload[0] = (uint8_t)is_up;
    if (votes[type] == is_up) {
        return 1;
    }
    if (!set_power(&request)) {
        return 0;
    }
    votes[type] = (uint8_t)is_up;
    return 1;
}

void system_hurry(int hurries) {
    enum { IS_DYNAMIC = 0, OPTION = 1, SETS_CORNERS = 8, TARGET = 12, LOWEST = 13, HIGHEST = 14 };
    enum { PERFORMANCE = 16, TURBO = 6 };
    static int is_hurrying;
    if (is_hurrying == hurries) {
        return;
    }
    struct power request = {.type = POWER_CLOCKS};
    request.payload[IS_DYNAMIC] = !hurries;
    request.payload[OPTION] = PERFORMANCE;
    request.payload[SETS_CORNERS] = 1;
    request.payload[TARGET] = request.payload[LOWEST] = request.payload[HIGHEST] = hurries ? TURBO : 0;
    // Without it the program is only slower, and asks again.
    if (set_power(&request)) {
        is_hurrying = hurries;
    }
}

static unsigned resource;

uint32_t system_acquire_hmx(uint8_t **near, uint32_t *bytes, uint64_t model) {
    enum { MICROSECONDS = 100000 };
    (void)model;
    *near = 0;
    *bytes = 0;
    if (!HAP_power_set || !compute_resource_attr_init || !compute_resource_attr_set_vtcm_param_v2 ||
        !compute_resource_attr_set_hmx_param || !compute_resource_acquire || !compute_resource_attr_get_vtcm_ptr_v2 ||
        !compute_resource_hmx_lock || !compute_resource_hmx_unlock || !compute_resource_release) {
        return FAULT_NO_FUNCTION;
    }
    // An instruction of a unit without power hangs.
    if (!set_unit(POWER_HVX, 1) || !set_unit(POWER_HMX, 1)) {
        system_release_hmx(0);
        return FAULT_NO_POWER;
    }
    uint64_t attributes[32] = {0};
    void *start = 0;
    unsigned got = 0;
    compute_resource_attr_init(attributes);
    // No smallest page.
    compute_resource_attr_set_vtcm_param_v2(attributes, MOST_NEAR, 0, MIN_HMX_NEAR);
    compute_resource_attr_set_hmx_param(attributes, 1);
    resource = compute_resource_acquire(attributes, MICROSECONDS);
    if (resource && compute_resource_attr_get_vtcm_ptr_v2(attributes, &start, &got) == 0 && start) {
        *near = start;
        *bytes = got;
        return FAULT_NONE;
    }
    system_release_hmx(0);
    return FAULT_NO_UNIT;
}

void system_release_hmx(uint8_t *near) {
    (void)near;
    if (resource) {
        compute_resource_release(resource);
        resource = 0;
    }
    set_unit(POWER_HMX, 0);
    set_unit(POWER_HVX, 0);
    system_hurry(0);
}

// Other programs get the unit while it is not locked. What they left in its accumulators is cleared by each product.
int system_hold_hmx(int holds) {
    return (holds ? compute_resource_hmx_lock(resource) : compute_resource_hmx_unlock(resource)) == 0;
}

int system_models_hmx(void) { return 0; }

// The unit is called.
void system_issue(void (*leaf)(uint32_t, uint32_t, uint32_t, uint32_t), uint32_t r0, uint32_t r1, uint32_t r2, uint32_t r3) {
    leaf(r0, r1, r2, r3);
}

uint32_t system_fault(void) { return FAULT_NONE; }

struct hmx_counts system_take_hmx_counts(void) { return (struct hmx_counts){0, 0, 0}; }

uint32_t system_modelled_packets(void) { return 0; }
