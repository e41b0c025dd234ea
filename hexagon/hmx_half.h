// Conversions between fp16 and f32.
#pragma once

#include <stdint.h>

static inline float from_half(uint16_t half) {
    const uint32_t sign = (uint32_t)(half & 0x8000u) << 16, exponent = half >> 10 & 31, fraction = half & 0x3ffu;
    union { uint32_t bits; float number; } found;
    if (exponent == 0) {
        // Subnormal: fraction · 2⁻²⁴.
        found.number = (float)fraction * (1.0f / 16777216.0f);
        found.bits |= sign;
        return found.number;
    }
    found.bits = sign | (exponent == 31 ? 255u : exponent + 112u) << 23 | fraction << 13;
    return found.number;
}

// Rounds to the nearest number, ties to even.
static inline uint16_t to_half(float number) {
    union { float number; uint32_t bits; } of = {.number = number};
    const uint32_t sign = of.bits >> 16 & 0x8000u, magnitude = of.bits & 0x7fffffffu;
    if (magnitude >= 0x7f800000u) {
        return (uint16_t)(sign | 0x7c00u | (magnitude > 0x7f800000u ? 0x200u : 0));
    }
    // From 65,520 on.
    if (magnitude >= 0x477ff000u) {
        return (uint16_t)(sign | 0x7c00u);
    }
    uint32_t significand = magnitude, dropped = 13;
    if (magnitude < 0x38800000u) {
        // Subnormal numbers have a fixed exponent.
        const uint32_t exponent = magnitude >> 23;
        if (exponent < 102) {
            return (uint16_t)sign;
        }
        significand = (magnitude & 0x7fffffu) | 0x800000u;
        dropped = 126 - exponent;
    } else {
        significand -= 112u << 23;
    }
    const uint32_t half = 1u << (dropped - 1), rest = significand & (2 * half - 1);
    uint32_t kept = significand >> dropped;
    kept += rest > half || (rest == half && (kept & 1));
    return (uint16_t)(sign | kept);
}
