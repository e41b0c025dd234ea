// Functions that the compiler calls implicitly, without a C library.

void *memcpy(void *restrict to, const void *restrict from, unsigned long bytes) {
    unsigned char *t = to;
    const unsigned char *f = from;
    while (bytes--) {
        *t++ = *f++;
    }
    return to;
}

void *__hexagon_memcpy_likely_aligned_min32bytes_mult8bytes(void *restrict to, const void *restrict from,
                                                            unsigned long bytes) {
    return memcpy(to, from, bytes);
}

void *memset(void *to, int value, unsigned long bytes) {
    unsigned char *t = to;
    const unsigned long long words = 0x0101010101010101ull * (unsigned char)value;
    for (; (unsigned long)t % sizeof words == 0 && bytes >= sizeof words; bytes -= sizeof words, t += sizeof words) {
        *(unsigned long long *)t = words;
    }
    while (bytes--) {
        *t++ = (unsigned char)value;
    }
    return to;
}

// Division bit by bit: only plans need it.
unsigned __hexagon_udivsi3(unsigned numerator, unsigned denominator) {
    unsigned quotient = 0;
    unsigned long long rest = 0;
    for (int bit = 31; denominator != 0 && bit >= 0; bit--) {
        rest = rest << 1 | (numerator >> bit & 1);
        quotient <<= 1;
        if (rest >= denominator) {
            rest -= denominator;
            quotient |= 1;
        }
    }
    return quotient;
}
