// The middle of a feed-forward, between its products, in f32 on the scalar unit, whose arithmetic follows IEEE 754: the
// operations of the host's kernels (crates/kernels: `output`, `activate_and_multiply`, `quantize_static`) in their
// order, so that the results have the same bits. HVX before v73 has no such arithmetic.
#include "activate.h"

#include "hmx_product.h"
#include "product.h"

#define INLINE static inline __attribute__((always_inline))

INLINE uint32_t bits(float x) {
    union { float number; uint32_t bits; } both = {.number = x};
    return both.bits;
}

INLINE float from_bits(uint32_t x) {
    union { uint32_t bits; float number; } both = {.bits = x};
    return both.number;
}

// Computes a · b + c, rounded once or twice.
INLINE float multiply_add(float a, float b, float c, int fused) { return fused ? __builtin_fmaf(a, b, c) : a * b + c; }

// Computes a / b bit by bit: for subnormal results, infinities and NaN.
__attribute__((noinline)) static float divide_slowly(float a, float b) {
    const uint32_t sign = (bits(a) ^ bits(b)) & 0x80000000u;
    const uint32_t infinity = 0x7f800000u, magnitude = 0x7fffffffu;
    uint32_t numerator = bits(a) & magnitude, denominator = bits(b) & magnitude;
    if (numerator > infinity || denominator > infinity || (numerator == infinity && denominator == infinity) ||
        (numerator == 0 && denominator == 0)) {
        return from_bits(0x7fc00000u);
    }
    if (numerator == infinity || denominator == 0) {
        return from_bits(sign | infinity);
    }
    if (numerator == 0 || denominator == infinity) {
        return from_bits(sign);
    }
    // 24-bit mantissas, and exponents.
    int32_t exponent = 0;
    uint32_t m[2] = {numerator, denominator};
    for (int index = 0; index < 2; index++) {
        int32_t of_number = (int32_t)(m[index] >> 23);
        m[index] &= 0x7fffffu;
        if (of_number == 0) {
            of_number = 1;
        } else {
            m[index] |= 0x800000u;
        }
        while (m[index] < 0x800000u) {
            m[index] <<= 1;
            of_number--;
        }
        exponent += index == 0 ? of_number : -of_number;
    }
    exponent += 127;
    if (m[0] < m[1]) {
        m[0] <<= 1;
        exponent--;
    }
    // 24 bits of the quotient, a rounding bit, and whether there is a remainder.
    uint32_t quotient = 0, rest = m[0];
    for (int bit = 0; bit < 25; bit++) {
        quotient <<= 1;
        if (rest >= m[1]) {
            rest -= m[1];
            quotient |= 1;
        }
        rest <<= 1;
    }
    uint32_t sticky = rest != 0;
    if (exponent >= 255) {
        return from_bits(sign | infinity);
    }
    // A subnormal number has fewer bits.
    uint32_t drop = 1;
    if (exponent <= 0) {
        drop += (uint32_t)(1 - exponent);
        exponent = 0;
    }
    if (drop > 26) {
        return from_bits(sign);
    }
    const uint32_t half = 1u << (drop - 1), below = quotient & (half - 1);
    uint32_t mantissa = quotient >> drop;
    const int up = (quotient & half) && (below || sticky || (mantissa & 1));
    mantissa += (uint32_t)up;
    // A carry increments the exponent.
    return from_bits(sign | (exponent == 0 ? mantissa : ((uint32_t)exponent << 23) + (mantissa - 0x800000u)));
}

// Computes a / b, rounded to nearest.
INLINE float divide(float a, float b) {
    const int32_t of_a = (int32_t)(bits(a) >> 23 & 255), of_b = (int32_t)(bits(b) >> 23 & 255);
    const int32_t exponent = of_a - of_b;
    if (of_a == 0 || of_a == 255 || of_b == 0 || of_b == 255 || exponent < -120 || exponent > 120) {
        return divide_slowly(a, b);
    }
    // For the mantissas: 1/b by Newton's steps, then the quotient and its residual, which one rounding makes exact.
    const float numerator = from_bits((bits(a) & 0x807fffffu) | 0x3f800000u);
    const float denominator = from_bits((bits(b) & 0x807fffffu) | 0x3f800000u);
    float inverse = from_bits((0x7ef311c3u - (bits(denominator) & 0x7fffffffu)) | (bits(denominator) & 0x80000000u));
    for (int step = 0; step < 4; step++) {
        inverse = __builtin_fmaf(inverse, __builtin_fmaf(-denominator, inverse, 1.0f), inverse);
    }
    float quotient = numerator * inverse;
    quotient = __builtin_fmaf(__builtin_fmaf(-denominator, quotient, numerator), inverse, quotient);
    quotient = __builtin_fmaf(__builtin_fmaf(-denominator, quotient, numerator), inverse, quotient);
    return from_bits(bits(quotient) + ((uint32_t)exponent << 23));
}

// Computes eˣ: see `exp` in crates/kernels/src/activation.rs.
INLINE float exponential(float x, int fused) {
    const float smallest = -87.33654f, largest = 88.37626f, round = 12582912.0f;
    float bounded = x < smallest ? smallest : x;
    bounded = bounded > largest ? largest : bounded;
    const float shifted = multiply_add(bounded, 1.44269504088896340736f, round, fused);
    const float n = shifted - round;
    const float r =
        multiply_add(n, 2.1219444e-4f, multiply_add(n, -0.6933594f, bounded, fused), fused);
    float series = 1.0f / 720.0f;
    series = multiply_add(series, r, 1.0f / 120.0f, fused);
    series = multiply_add(series, r, 1.0f / 24.0f, fused);
    series = multiply_add(series, r, 1.0f / 6.0f, fused);
    series = multiply_add(series, r, 0.5f, fused);
    series = multiply_add(series, r, 1.0f, fused);
    series = multiply_add(series, r, 1.0f, fused);
    return x < smallest ? 0.0f : series * from_bits((bits(shifted) << 23) + (127u << 23));
}

INLINE float activation(float x, uint32_t kind, int fused) {
    const float u = 0.7978846f * (x + 0.044715f * x * x * x);
    return divide(x, 1.0f + exponential(kind == 0 ? -x : -2.0f * u, fused));
}

INLINE void activate_rows(const struct image *image, const float *parameters, uint32_t width, const int32_t *sums,
                          uint32_t sum_stride, uint32_t rows, int8_t *output, float *inner,
                          uint8_t *not_finite, uint32_t kind, int fused) {
    const float *up_scale = parameters, *up_bias = up_scale + width, *gate_scale = up_bias + width;
    const float *gate_bias = gate_scale + width, *smoothing = gate_bias + width;
    const float inverse = image->inverse_scale, largest = 127.0f, round = 12582912.0f;
    // On HMX a row is contiguous, and numbers are unsigned.
    const uint32_t is_hmx = image->unit == UNIT_HMX, flip = is_hmx ? 0x80 : 0;
    const uint32_t next_row = is_hmx ? hmx_input_tile(width) / TILE_ROWS : 4, next_quad = is_hmx ? 4 : TILE_ROWS * 4;
    for (uint32_t row = 0; row < rows; row++, sums += sum_stride) {
        int8_t *of_row = output + row * next_row;
        uint32_t any = 0;
        for (uint32_t channel = 0; channel < width; channel++) {
            float x = (float)sums[channel] * up_scale[channel] + up_bias[channel];
            if (image->gated) {
                const float gate = (float)sums[width + channel] * gate_scale[channel] + gate_bias[channel];
                x = activation(gate, kind, fused) * x;
            } else {
                x = activation(x, kind, fused);
            }
            if (inner) {
                inner[row * width + channel] = x;
            }
            x *= smoothing[channel];
            any |= (bits(x) & 0x7f800000u) == 0x7f800000u;
            const float scaled = x * inverse;
            const float above = scaled < -largest ? -largest : scaled;
            const float clipped = above > largest ? largest : above;
            of_row[channel / 4 * next_quad + channel % 4] = (int8_t)(bits(clipped + round) ^ flip);
        }
        not_finite[row] = (uint8_t)any;
    }
}

void activate(const struct image *image, const float *parameters, uint32_t width, const int32_t *sums, uint32_t sum_stride,
              uint32_t rows, int8_t *output, float *inner, uint8_t *not_finite) {
#define ROWS(kind, fused)                                                                                                  \
    activate_rows(image, parameters, width, sums, sum_stride, rows, output, inner, not_finite, kind, fused)
    const int once = image->arithmetic == ARITHMETIC_ONCE;
    if (image->activation == 0) {
        once ? ROWS(0, 1) : ROWS(0, 0);
    } else {
        once ? ROWS(1, 1) : ROWS(1, 0);
    }
}
