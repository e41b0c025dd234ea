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
    while (bytes--) {
        *t++ = (unsigned char)value;
    }
    return to;
}
