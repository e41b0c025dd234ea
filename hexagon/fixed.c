// The middle of a feed-forward in fixed point: the operations of crates/kernels/src/fixed_point/number.rs, in their
// order, on 32 channels of a row at once. Only needs the vector instructions of v67, which has only integers.
#include "fixed.h"

#include "hmx.h"
#include "product.h"
#include "vector.h"

#define INLINE static inline __attribute__((always_inline))

// Start of the other layer's channels in a row of sums.
typedef int32_t Unaligned __attribute__((__vector_size__(VECTOR), __aligned__(4)));

enum { LANES = 32, PARTS = FIXED_PARTS };
// Parameters of a channel, in order.
enum { SHIFT, BIAS, LIMIT, LIMIT_SHIFT, ARGUMENT, UP_SHIFT, UP_BIAS, FACTOR, EXPONENT };

INLINE Vector splat(int32_t x) { return HVX(lvsplatw)(x); }
INLINE Vector add(Vector a, Vector b) { return HVX(vaddw)(a, b); }
INLINE Vector subtract(Vector a, Vector b) { return HVX(vsubw)(a, b); }
INLINE Vector and(Vector a, Vector b) { return HVX(vand)(a, b); }
INLINE Vector least(Vector a, Vector b) { return HVX(vminw)(a, b); }
INLINE Vector most(Vector a, Vector b) { return HVX(vmaxw)(a, b); }
// Shift by each lane's number of bits, −32 to 31; a negative number shifts the other way.
INLINE Vector left(Vector x, Vector bits) { return HVX(vaslwv)(x, bits); }
INLINE Vector right(Vector x, Vector bits) { return HVX(vasrwv)(x, bits); }
INLINE Vector spare_bits(Vector x) { return HVX(vnormamtw)(x); }

// Computes a · b / 2³¹, rounded to nearest.
INLINE Vector times(Vector a, Vector b) { return HVX(vmpyowh_rnd_sacc)(HVX(vmpyewuh)(a, b), a, b); }

// Computes 2⁻ʳ for r from 0 to 1.
INLINE Vector power_of_two(Vector r) {
    Vector sum = splat(-2016033);
    sum = add(times(sum, r), splat(19732393));
    sum = add(times(sum, r), splat(-118712300));
    sum = add(times(sum, r), splat(515765849));
    sum = add(times(sum, r), splat(-1488511653));
    return add(times(sum, r), splat(2147483487));
}

// Computes 1 / (1 + e) for e from 0 to 1.
INLINE Vector reciprocal(Vector e) {
    Vector y = splat(-476391520);
    y = add(times(y, e), splat(1429174560));
    y = add(times(y, e), splat(-2024663959));
    y = add(times(y, e), splat(2143761839));
    Vector lacks = subtract(subtract(splat(INT32_MIN), y), times(e, y));
    lacks = add(lacks, times(lacks, lacks));
    return add(y, times(y, lacks));
}

// Computes log₂ e · √(8/π) · (x + 0.044715 · x³) with 24 fractional bits, from x with 27.
INLINE Vector gelu_argument(Vector x) {
    const Vector twice = add(x, x), square = times(twice, x);
    return times(twice, add(times(square, splat(1768551389)), splat(308997154)));
}

// Returns numbers with 16 fractional bits.
INLINE Vector steps(const Vector *of_channels, Vector up, Vector activated, int is_gated, int is_gelu) {
    const Vector x = add(left(activated, of_channels[SHIFT]), of_channels[BIAS]);
    const Vector magnitude = left(least(HVX(vabsw_sat)(x), of_channels[LIMIT]), of_channels[LIMIT_SHIFT]);
    Vector of_power = times(magnitude, of_channels[ARGUMENT]);
    if (is_gelu) {
        of_power = gelu_argument(of_power);
    }
    const Vector whole = HVX(vasrw)(of_power, 24), power = power_of_two(HVX(vaslw)(and(of_power, splat(0xffffff)), 7));
    const Vector inverse = reciprocal(right(power, least(whole, splat(31))));
    // All ones if x is negative.
    const Vector is_below = HVX(vasrw)(x, 31);
    const Vector x_bits = spare_bits(x);
    Vector significand = left(x, x_bits);
    Vector bits = add(add(and(whole, is_below), of_channels[EXPONENT]), x_bits);
    if (is_gated) {
        const Vector number = add(left(up, of_channels[UP_SHIFT]), of_channels[UP_BIAS]), number_bits = spare_bits(number);
        significand = times(significand, left(number, number_bits));
        bits = add(bits, number_bits);
    }
    significand = times(significand, inverse);
    // 1 if x is not negative: `most` then selects the largest number, otherwise power, which exceeds the smallest
    // number.
    significand = times(significand, most(power, HVX(vxor)(is_below, splat(INT32_MAX))));
    significand = times(significand, of_channels[FACTOR]);
    return right(significand, least(most(bits, splat(2)), splat(31)));
}

INLINE void requantize_tile(const int32_t *parameters, uint32_t width, const int32_t *sums, uint32_t sum_stride,
                            int8_t *output, int is_gated, int is_gelu, int is_hmx) {
    const Vector lowest = splat((int32_t)0x81818181);
    const Vector *of_channels = (const Vector *)parameters;
    Vector *to = (Vector *)output;
    for (uint32_t channel = 0; channel < width; channel += LANES, of_channels += PARTS, to += 2) {
        Vector half[2];
        for (uint32_t first = 0; first < TILE_ROWS; first += 4) {
            Vector found[4];
#pragma unroll
            for (uint32_t row = 0; row < 4; row++) {
                const int32_t *of_row = sums + (first + row) * sum_stride + channel;
                const Vector up = *(const Vector *)of_row;
                const Vector activated = is_gated ? *(const Unaligned *)(of_row + width) : up;
                found[row] = steps(of_channels, up, activated, is_gated, is_gelu);
            }
            // Rounds; rows 0 and 2, and 1 and 3, are interleaved by channel, then the channels of each row become
            // contiguous.
            const Vector even = HVX(vroundwh)(found[2], found[0]), odd = HVX(vroundwh)(found[3], found[1]);
            half[first / 4] = HVX(vmaxb)(HVX(vdealb)(HVX(vpackhb_sat)(odd, even)), lowest);
        }
        if (is_hmx) {
            // The rows of a crouton are contiguous, and numbers are unsigned.
            Vector *crouton = (Vector *)(output + channel / CROUTON_FEATURES * CROUTON);
            crouton[0] = HVX(vxor)(half[0], splat((int32_t)0x80808080));
            crouton[1] = HVX(vxor)(half[1], splat((int32_t)0x80808080));
            continue;
        }
        // Transposes [row][quad] to [quad][row], 8 by 8 words: each step moves one bit of a word's index from the front
        // to the end.
        Pair words = HVX(vshuffvdd)(half[1], half[0], -4);
#pragma unroll
        for (uint32_t step = 0; step < 2; step++) {
            words = HVX(vshuffvdd)(HVX(hi)(words), HVX(lo)(words), -4);
        }
        to[0] = HVX(lo)(words);
        // A tile ends at a multiple of 16 channels.
        if (channel + LANES / 2 < width) {
            to[1] = HVX(hi)(words);
        }
    }
}

void requantize(const struct image *image, const int32_t *parameters, uint32_t width, const int32_t *sums,
                uint32_t sum_stride, int8_t *output) {
#define TILE(is_gated, is_gelu)                                                                                            \
    requantize_tile(parameters, width, sums, sum_stride, output, is_gated, is_gelu, image->unit == UNIT_HMX)
    if (image->gated) {
        image->activation == 0 ? TILE(1, 0) : TILE(1, 1);
    } else {
        image->activation == 0 ? TILE(0, 0) : TILE(0, 1);
    }
}
