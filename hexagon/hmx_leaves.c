#include "hmx_leaves.h"

// Rs and Rt are fields of 5 bits from bits 16 and 8 on. Bits 15:14 are 01 if the packet goes on, 11 at its end. The names
// around the leaves let a test find them in the program's file.
#define RETURN "    .word 0x529fc000 // jumpr r31\n"
#define LEAF_OF_ONE(name, word)                                                                                            \
    ".hidden " name "\n.globl " name "\n.type " name ", @function\n" name ":\n    .word " word "\n" RETURN
#define LEAF_OF_TWO(name, activation, weight)                                                                              \
    ".hidden " name "\n.globl " name "\n.type " name ", @function\n" name ":\n    .word " activation                       \
    "\n    .word " weight "\n" RETURN

__asm__(".section .text.hmx_leaves, \"ax\", @progbits\n"
        ".p2align 4\n"
        ".ascii \"TRIAD HMX LEAVES\"\n"
        LEAF_OF_ONE("leaf_clear", "0xa6e0c011")
        LEAF_OF_ONE("leaf_clear_fp16", "0xa6e0c013")
        // activation.ub = mxmem(r0, r1):deep:cm, weight.b or weight.n = mxmem(r2, r3)
        LEAF_OF_TWO("leaf_multiply_int8", "0x920041e1", "0x9202e3e0")
        LEAF_OF_TWO("leaf_multiply_int4", "0x920041e1", "0x9202e3e1")
        // activation.hf = mxmem(r0, r1):deep, weight.hf = mxmem(r2, r3)
        LEAF_OF_TWO("leaf_multiply_fp16", "0x920041e2", "0x9202e3ef")
        // bias = mxmem(r0)
        LEAF_OF_ONE("leaf_load_table", "0x9200c3ff")
        // mxmem(r0, r1):after:retain:cm.ub = acc, and without :retain
        LEAF_OF_ONE("leaf_store_and_keep", "0xa6e0c10f")
        LEAF_OF_ONE("leaf_store", "0xa6e0c107")
        // mxmem(r0, r1):after.hf = acc
        LEAF_OF_ONE("leaf_store_fp16", "0xa6e0e104")
        ".ascii \"END OF HMX WORDS\"\n"
        ".text\n");
