// INT8 products on HVX: `vrmpy` adds four products of unsigned bytes of a vector and signed bytes of a register to each
// of 32 sums. Weights are in the vector, with 128 added to make them unsigned; activations are in the register,
// unchanged. Sums start from −128 · Σ activations, which cancels the 128. Sums wrap around; those of at most
// MAX_FEATURES products fit.
//
// A tile is 8 rows by 64 columns: 16 sums of 32 lanes stay in registers. For each quad of features, two vectors of
// weights and four pairs of registers with activations, all read sequentially, feed 16 `vrmpy`, two per packet. The
// weights of 64 columns are contiguous and are prefetched into L2 while the previous ones are multiplied. The first
// tile of rows that reads them stores them in near memory, if there is any; the other tiles read them from there.
//
// Four check columns after those of the layer hold the digits, in base 256, of the sum of all columns' weights, modulo
// 2³². So a row's sums must add up to the value of the check columns: the product itself detects weights that were
// overwritten (algorithm-based fault tolerance; Huang and Abraham, 1984).
//
// Where there is HMX, the matrix unit, hmx_product.c computes the same sums.
#include "product.h"

#include "team.h"

typedef int32_t Vector __attribute__((__vector_size__(VECTOR)));
#define LANES 32u

// Memory near the vector unit, divided among the threads.
static struct {
    uint8_t *start;
    uint32_t bytes;
} near;

void use_near_memory(uint8_t *start, uint32_t bytes) {
    near.start = start;
    near.bytes = bytes;
}

// Computes one tile of at least one quad. `bias` is the initial value of each row's sums. Stores weights in `copy` if
// `copies` is set.
__attribute__((always_inline)) static inline void tile_of(const Vector *weights, int copies, Vector *restrict copy,
                                                          const int64_t *input, uint32_t quads, const int32_t *bias,
                                                          Vector *sums, uint32_t vectors) {
    Vector sum[TILE_ROWS][2];
#pragma unroll
    for (uint32_t r = 0; r < TILE_ROWS; r++) {
        sum[r][0] = sum[r][1] = __builtin_HEXAGON_V6_lvsplatw_128B(bias[r]);
    }
#pragma unroll 2
    for (uint32_t quad = 0; quad < quads; quad++) {
        const Vector left = *weights++, right = *weights++;
        if (copies) {
            *copy++ = left;
            *copy++ = right;
        }
#pragma unroll
        for (uint32_t r = 0; r < TILE_ROWS; r += 2) {
            const int64_t two = *input++;
            const int32_t even = (int32_t)two, odd = (int32_t)(two >> 32);
            sum[r][0] = __builtin_HEXAGON_V6_vrmpybus_acc_128B(sum[r][0], left, even);
            sum[r][1] = __builtin_HEXAGON_V6_vrmpybus_acc_128B(sum[r][1], right, even);
            sum[r + 1][0] = __builtin_HEXAGON_V6_vrmpybus_acc_128B(sum[r + 1][0], left, odd);
            sum[r + 1][1] = __builtin_HEXAGON_V6_vrmpybus_acc_128B(sum[r + 1][1], right, odd);
        }
    }
#pragma unroll
    for (uint32_t r = 0; r < TILE_ROWS; r++) {
        sums[0] = sum[r][0];
        sums[1] = sum[r][1];
        sums += vectors;
    }
}

__attribute__((noinline)) static void tile(const Vector *weights, const int64_t *input, uint32_t quads, const int32_t *bias,
                                           Vector *sums, uint32_t vectors) {
    tile_of(weights, 0, 0, input, quads, bias, sums, vectors);
}

__attribute__((noinline)) static void tile_and_copy(const Vector *weights, Vector *copy, const int64_t *input,
                                                    uint32_t quads, const int32_t *bias, Vector *sums, uint32_t vectors) {
    tile_of(weights, 1, copy, input, quads, bias, sums, vectors);
}

// Returns Σ of all lanes.
static int32_t across(Vector sum) {
    for (uint32_t bytes = VECTOR / 2; bytes >= 4; bytes /= 2) {
        sum = __builtin_HEXAGON_V6_vaddw_128B(sum, __builtin_HEXAGON_V6_vror_128B(sum, (int32_t)bytes));
    }
    return __builtin_HEXAGON_V6_extractw_128B(sum, 0);
}

// Computes −128 · Σ of the activations of each row of a tile of `vectors` vectors.
static void biases(const Vector *input, uint32_t vectors, int32_t bias[TILE_ROWS]) {
    const Vector ones = __builtin_HEXAGON_V6_lvsplatw_128B(0x01010101);
    Vector sum = __builtin_HEXAGON_V6_vd0_128B();
    for (uint32_t index = 0; index < vectors; index++) {
        sum = __builtin_HEXAGON_V6_vrmpybusv_acc_128B(sum, ones, input[index]);
    }
    // A vector has four quads of each row.
    sum = __builtin_HEXAGON_V6_vaddw_128B(sum, __builtin_HEXAGON_V6_vror_128B(sum, 64));
    sum = __builtin_HEXAGON_V6_vaddw_128B(sum, __builtin_HEXAGON_V6_vror_128B(sum, 32));
    for (uint32_t r = 0; r < TILE_ROWS; r++) {
        bias[r] = -128 * __builtin_HEXAGON_V6_extractw_128B(sum, (int32_t)(r * 4));
    }
}

void fetch(const void *start, uint32_t lines) {
    const uint64_t width = FETCH_LINE, stride = FETCH_LINE;
    __builtin_HEXAGON_Y5_l2fetch((void *)start, (long long)(stride << 32 | width << 16 | (lines < 0xffff ? lines : 0xffff)));
}

// A product, as its threads share it.
struct multiplication {
    const struct product *product;
    const uint8_t *weights;
    const int8_t *input;
    uint32_t rows;
    int32_t *sums;
    void (*progress)(void);
};

// Multiplies every `count`-th tile of columns, starting with the `index`-th.
static void multiply_columns(void *argument, uint32_t index, uint32_t count) {
    const struct multiplication *of = argument;
    const uint32_t tile_bytes = input_tile(of->product->in_features), columns = sum_stride(of->product);
    const uint32_t quads = (of->product->in_features + 3) / 4, vectors = columns / LANES;
    const uint32_t block = quads * 2 * VECTOR, step = count * TILE_COLUMNS;
    // This thread's part of near memory, if the weights of a tile of columns fit, and another tile of rows reads them.
    const uint32_t part = near.bytes / MOST_THREADS / VECTOR * VECTOR;
    Vector *copy = block <= part && of->rows > TILE_ROWS ? (Vector *)(near.start + index * part) : 0;
    int32_t bias[PASS_ROWS];
    for (uint32_t first = 0; first < of->rows; first += TILE_ROWS) {
        biases((const Vector *)(of->input + first / TILE_ROWS * tile_bytes), tile_bytes / VECTOR, bias + first);
    }
    const uint8_t *weights = of->weights + index * block;
    for (uint32_t column = index * TILE_COLUMNS; column < columns; column += step, weights += count * block) {
        if (column + step < columns) {
            fetch(weights + count * block, quads);
        }
        for (uint32_t first = 0; first < of->rows; first += TILE_ROWS) {
            const int64_t *x = (const int64_t *)(of->input + first / TILE_ROWS * tile_bytes);
            Vector *sums = (Vector *)(of->sums + first * columns + column);
            if (copy && first == 0) {
                tile_and_copy((const Vector *)weights, copy, x, quads, bias, sums, vectors);
            } else {
                tile(copy ? copy : (const Vector *)weights, x, quads, bias + first, sums, vectors);
            }
        }
        // One thread reports progress: the others have as much work.
        if (index == 0) {
            of->progress();
        }
    }
}

void fold_checks(const struct product *product, int32_t *sums, uint32_t rows) {
    const uint32_t columns = sum_stride(product), out_features = product->out_features;
    for (uint32_t row = 0; row < rows; row++) {
        int32_t *of_row = sums + row * columns;
        const uint32_t *check = (const uint32_t *)of_row + out_features;
        // The sum of the last column, whose weights are zeros, is also the bias of each check column.
        const uint32_t bias = (uint32_t)of_row[columns - 1];
        uint32_t expected = 0;
        for (uint32_t digit = 0; digit < CHECKS; digit++) {
            expected += (check[digit] - bias) << (8 * digit);
        }
        of_row[out_features] = (int32_t)expected;
        of_row[out_features + 1] = 0;
    }
}

void multiply(const struct product *product, const uint8_t *weights, const int8_t *input, uint32_t rows, int32_t *sums,
              void (*progress)(void)) {
    const uint32_t columns = sum_stride(product);
    struct multiplication of = {product, weights, input, rows, sums, progress};
    team_run(columns / TILE_COLUMNS, multiply_columns, &of);
    fold_checks(product, sums, rows);
}

int adds_up(const struct product *product, const int32_t *sums, uint32_t rows) {
    const uint32_t columns = sum_stride(product), out_features = product->out_features;
    for (uint32_t row = 0; row < rows; row++, sums += columns) {
        const Vector *vectors = (const Vector *)sums;
        Vector all = __builtin_HEXAGON_V6_vd0_128B();
        uint32_t column = 0;
        for (; column + LANES <= out_features; column += LANES) {
            all = __builtin_HEXAGON_V6_vaddw_128B(all, vectors[column / LANES]);
        }
        uint32_t sum = (uint32_t)across(all);
        for (; column < out_features; column++) {
            sum += (uint32_t)sums[column];
        }
        if (sum != (uint32_t)sums[out_features]) {
            return 0;
        }
    }
    return 1;
}
