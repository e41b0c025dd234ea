#include "program.h"

#include "activate.h"
#include "fixed.h"
#include "hmx.h"
#include "hmx_product.h"
#include "hmx_trial.h"
#include "product.h"
#include "system.h"
#include "team.h"

#define MOST_PROGRAMS 8192u
#define MOST_BYTES 0x7fffffffull

struct program {
    uint8_t *image;
    uint32_t bytes;
    uint64_t hash;
    // Hash of the image before the weights, which no check sum covers.
    uint64_t hash_of_head;
    int is_loaded;
};
static struct program programs[MOST_PROGRAMS];

// Buffers of a run: activations of each product, sums of the first one.
static struct {
    uint8_t *start;
    uint32_t bytes;
} scratch;

struct places {
    uint32_t input, inner_input, sums, bytes;
};

// Computes a hash of whole words, as the host does.
static uint64_t hash_words(uint64_t hash, const uint64_t *words, uint32_t count) {
    for (uint32_t index = 0; index < count; index++) {
        hash = (hash ^ words[index]) * 0x9e3779b97f4a7c15ull;
        hash ^= hash >> 32;
    }
    return hash;
}

// Returns whether `bytes` bytes from `offset` on, which must be aligned, are within the range from `first` to `all`.
static int is_within(uint64_t offset, uint64_t bytes, uint64_t first, uint64_t all) {
    return offset % ALIGNMENT == 0 && offset >= first && offset <= all && bytes <= all - offset;
}

static int is_product(const struct product *product, uint32_t unit, uint32_t image_bytes) {
    if (product->in_features == 0 || product->in_features > MAX_FEATURES || product->out_features == 0 ||
        product->out_features > MAX_COLUMNS) {
        return 0;
    }
    const uint32_t columns = sum_stride(product), features = product->in_features;
    const uint64_t bytes = (uint64_t)columns * (unit == UNIT_HMX ? round_up(features, CROUTON_FEATURES) : round_up(features, 4));
    if (unit == UNIT_HMX && (hmx_blocks(product) == 0 || !is_within(product->corrections, columns * sizeof(int32_t),
                                                                   sizeof(struct image), image_bytes))) {
        return 0;
    }
    return is_within(product->weights, bytes, sizeof(struct image), image_bytes);
}

// Returns whether the parts of an image are consistent.
static int is_image(const struct image *image, uint32_t bytes) {
    if (bytes < sizeof *image || image->magic != IMAGE_MAGIC || image->unit > UNIT_HMX ||
        !is_product(&image->product[0], image->unit, bytes)) {
        return 0;
    }
    if (image->products == 1) {
        return 1;
    }
    const struct product *down = &image->product[1];
    if (image->products != 2 || !is_product(down, image->unit, bytes)) {
        return 0;
    }
    const uint64_t width = down->in_features, is_fixed = image->arithmetic == ARITHMETIC_FIXED;
    const uint64_t parameters = is_fixed ? (uint64_t)round_up(down->in_features, 32) * FIXED_PARTS : 5 * width;
    return image->product[0].out_features == (image->gated ? 2 : 1) * width && image->activation <= 1 &&
           image->arithmetic <= ARITHMETIC_FIXED && !(is_fixed && image->returns_inner) &&
           is_within(image->parameters, parameters * sizeof(float), sizeof *image, image->product[0].weights);
}

// Computes a hash of the image before its weights: fields, scales, biases and factors.
static uint64_t hash_head(const struct image *image) {
    return hash_words(0, (const uint64_t *)image, image->product[0].weights / (uint32_t)sizeof(uint64_t));
}

// Returns the bytes of a tile of rows of the input of one of the products.
static uint32_t tile_of(const struct image *image, uint32_t product) {
    const uint32_t in_features = image->product[product].in_features;
    return image->unit == UNIT_HMX ? hmx_input_tile(in_features) : input_tile(in_features);
}

// Returns the number of rows that go through all products together.
static uint32_t rows_of_pass(const struct image *image) {
    if (image->unit != UNIT_HMX) {
        return PASS_ROWS;
    }
    const uint32_t first = hmx_blocks(&image->product[0]), last = hmx_blocks(&image->product[image->products - 1]);
    return (first < last ? first : last) * HMX_ROWS;
}

static struct places places_of(const struct image *image) {
    const uint32_t rows = rows_of_pass(image);
    struct places places = {0};
    places.inner_input = tile_of(image, 0) * tiles(rows);
    places.sums = places.inner_input;
    places.bytes = places.sums;
    if (image->products == 2) {
        places.sums += tile_of(image, 1) * tiles(rows);
        places.bytes = places.sums + sum_stride(&image->product[0]) * rows * (uint32_t)sizeof(int32_t);
    }
    return places;
}

static uint64_t create(uint64_t bytes, uint64_t *result) {
    if (bytes < sizeof(struct image) || bytes > MOST_BYTES || bytes % sizeof(uint64_t) != 0) {
        return STATUS_REQUEST;
    }
    for (uint32_t index = 0; index < MOST_PROGRAMS; index++) {
        struct program *program = &programs[index];
        if (program->image) {
            continue;
        }
        program->image = system_allocate((uint32_t)bytes);
        if (!program->image) {
            return STATUS_MEMORY;
        }
        program->bytes = (uint32_t)bytes;
        program->is_loaded = 0;
        *result = index;
        return STATUS_OK;
    }
    return STATUS_MEMORY;
}

static uint64_t write(const struct shared *shared, struct program *program, const uint64_t arguments[6]) {
    const uint64_t to = arguments[0], from = arguments[1], bytes = arguments[2];
    if (!is_within(to, bytes, 0, program->bytes) || !is_within(from, bytes, HEADER, shared->bytes) ||
        bytes % sizeof(uint64_t) != 0) {
        return STATUS_REQUEST;
    }
    uint64_t *words = (uint64_t *)(program->image + to);
    const uint64_t *source = (const uint64_t *)(shared->start + from);
    system_refresh((const uint8_t *)source, (uint32_t)bytes);
    for (uint32_t index = 0; index < bytes / sizeof(uint64_t); index++) {
        words[index] = source[index];
    }
    program->is_loaded = 0;
    return STATUS_OK;
}

static uint64_t load(struct program *program, uint64_t hash) {
    const struct image *image = (const struct image *)program->image;
    if (hash_words(0, (const uint64_t *)image, program->bytes / sizeof(uint64_t)) != hash || !is_image(image, program->bytes)) {
        return STATUS_IMAGE;
    }
    const struct places places = places_of(image);
    if (places.bytes > scratch.bytes) {
        uint8_t *start = system_allocate(places.bytes);
        if (!start) {
            return STATUS_MEMORY;
        }
        if (scratch.start) {
            system_free(scratch.start, scratch.bytes);
        }
        scratch.start = start;
        scratch.bytes = places.bytes;
    }
    program->hash = hash;
    program->hash_of_head = hash_head(image);
    program->is_loaded = 1;
    return STATUS_OK;
}

// The input of a pass, as its threads share it.
struct reading {
    const uint8_t *from;
    uint8_t *to;
    uint32_t rows, tile_bytes;
    // The product that reads it on HMX; null on HVX.
    const struct product *product;
    // Hash of each tile of rows.
    uint64_t hash[HMX_PASS_ROWS / TILE_ROWS];
};

// Copies every `count`-th tile of rows, starting with the `index`-th, into the device's memory, and hashes the copy.
static void read_rows(void *argument, uint32_t index, uint32_t count) {
    struct reading *of = argument;
    const uint32_t words = of->tile_bytes / (uint32_t)sizeof(uint64_t);
    for (uint32_t tile = index; tile < tiles(of->rows); tile += count) {
        const uint64_t *from = (const uint64_t *)(of->from + tile * of->tile_bytes);
        uint64_t *to = (uint64_t *)(of->to + tile * of->tile_bytes);
        system_refresh((const uint8_t *)from, of->tile_bytes);
        for (uint32_t word = 0; word < words; word++) {
            to[word] = from[word];
        }
        of->hash[tile] = hash_words(0, to, words);
        if (of->product) {
            hmx_pack(of->product, (const uint8_t *)to, tile);
        }
    }
}

// The middle of a feed-forward, as its threads share it.
struct between {
    const struct image *image;
    // Parameters of the image.
    const uint8_t *parameters;
    uint32_t rows;
    const int32_t *sums;
    int8_t *output;
    // Null if it is not requested.
    float *inner;
    uint8_t *not_finite;
    // Result of the check for each tile of rows.
    uint8_t adds_up[HMX_PASS_ROWS / TILE_ROWS];
};

// Computes every `count`-th tile of rows, starting with the `index`-th.
static void activate_rows(void *argument, uint32_t index, uint32_t count) {
    struct between *of = argument;
    const struct product *first = &of->image->product[0], *down = &of->image->product[1];
    const uint32_t width = down->in_features, tile_bytes = tile_of(of->image, 1), is_hmx = of->image->unit == UNIT_HMX;
    if (of->image->arithmetic == ARITHMETIC_FIXED) {
        // Sums were just written; only the parameters are not in the cache.
        fetch(of->parameters, round_up(width, 32) * FIXED_PARTS * (uint32_t)sizeof(int32_t) / FETCH_LINE + 1);
    }
    for (uint32_t tile = index; tile < tiles(of->rows); tile += count) {
        const uint32_t row = tile * TILE_ROWS, left = of->rows - row, rows = left < TILE_ROWS ? left : TILE_ROWS;
        const int32_t *sums = of->sums + row * sum_stride(first);
        int8_t *output = of->output + tile * tile_bytes;
        of->adds_up[tile] = (uint8_t)adds_up(first, sums, rows);
        if (!of->adds_up[tile]) {
            continue;
        }
        // Zeros the padding after the features of a row, whatever it contained. For HMX, weights are zeros there, or
        // the same in check columns and in the columns that fold_checks subtracts from them.
        uint64_t *end = (uint64_t *)(output + tile_bytes);
        for (uint32_t word = 1; !is_hmx && word <= 16 * TILE_ROWS / sizeof *end; word++) {
            end[-(int32_t)word] = 0;
        }
        if (of->image->arithmetic == ARITHMETIC_FIXED) {
            int8_t *to = is_hmx ? (int8_t *)hmx_place(down, tile) : output;
            requantize(of->image, (const int32_t *)of->parameters, width, sums, sum_stride(first), to);
            continue;
        }
        const float *parameters = (const float *)of->parameters;
        float *inner = of->inner ? of->inner + row * width : 0;
        activate(of->image, parameters, width, sums, sum_stride(first), rows, output, inner, of->not_finite + row);
        if (is_hmx) {
            hmx_pack(down, (const uint8_t *)output, tile);
        }
    }
}

// Multiplies the input of one of the products of a program, which is in croutons in VTCM on HMX. Returns a fault.
static uint32_t multiply_on_unit(const struct program *program, const struct image *image, uint32_t product,
                                 const uint8_t *input, uint32_t rows, int32_t *sums, void (*progress)(void)) {
    const struct product *of = &image->product[product];
    if (image->unit == UNIT_HMX) {
        return hmx_multiply_rows(of, program->image, rows, sums, progress);
    }
    multiply(of, program->image + of->weights, (const int8_t *)input, rows, sums, progress);
    return FAULT_NONE;
}

static uint64_t run(const struct shared *shared, const struct program *program, const uint64_t arguments[6],
                    uint64_t *result, void (*progress)(void)) {
    const uint64_t rows = arguments[1], input = arguments[2], sums = arguments[4], inner = arguments[5];
    // The image was checked when it was loaded, but it is in the device's memory and may have been overwritten since.
    const struct image image = *(const struct image *)program->image;
    if (!program->is_loaded || program->hash != arguments[0] || !is_image(&image, program->bytes) ||
        hash_head((const struct image *)program->image) != program->hash_of_head) {
        return STATUS_IMAGE;
    }
    const struct product *first = &image.product[0], *last = &image.product[image.products - 1];
    const int is_feed_forward = image.products == 2, has_inner = is_feed_forward && image.returns_inner;
    const uint32_t tile_bytes = tile_of(&image, 0), width = last->in_features, most = rows_of_pass(&image);
    const uint64_t room = rows + TILE_ROWS;
    if (rows == 0 || rows > (1u << 20) || !is_within(input, (uint64_t)tiles((uint32_t)rows) * tile_bytes, HEADER, shared->bytes) ||
        !is_within(sums, room * sum_stride(last) * sizeof(int32_t), HEADER, shared->bytes) ||
        (has_inner && !is_within(inner, rows * width * sizeof(float) + 4, HEADER, shared->bytes))) {
        return STATUS_REQUEST;
    }
    const struct places places = places_of(&image);
    if (places.bytes > scratch.bytes) {
        return STATUS_IMAGE;
    }
    const uint8_t *parameters = program->image + image.parameters;
    uint64_t input_hash = 0;
    for (uint32_t row = 0; row < rows; row += most) {
        const uint32_t pass = rows - row < most ? (uint32_t)rows - row : most;
        uint8_t *x = scratch.start + places.input;
        struct reading reading = {shared->start + input + row / TILE_ROWS * tile_bytes, x, pass, tile_bytes,
                                  image.unit == UNIT_HMX ? first : 0, {0}};
        team_run(tiles(pass), read_rows, &reading);
        input_hash = hash_words(input_hash, reading.hash, tiles(pass));
        int32_t *out = (int32_t *)(shared->start + sums) + row * sum_stride(last);
        uint8_t not_finite[HMX_PASS_ROWS] = {0};
        if (is_feed_forward) {
            int32_t *between = (int32_t *)(scratch.start + places.sums);
            int8_t *down_input = (int8_t *)(scratch.start + places.inner_input);
            float *returned = has_inner ? (float *)(shared->start + inner) + row * width : 0;
            const uint32_t fault = multiply_on_unit(program, &image, 0, x, pass, between, progress);
            if (fault != FAULT_NONE) {
                *result = fault;
                return STATUS_HMX;
            }
            struct between of = {&image, parameters, pass, between, down_input, returned, not_finite, {0}};
            team_run(tiles(pass), activate_rows, &of);
            progress();
            for (uint32_t tile = 0; tile < tiles(pass); tile++) {
                if (!of.adds_up[tile]) {
                    return STATUS_SUM;
                }
            }
            x = (uint8_t *)down_input;
        }
        // The host, which reads these sums, checks whether they add up.
        const uint32_t fault = multiply_on_unit(program, &image, image.products - 1, x, pass, out, progress);
        if (fault != FAULT_NONE) {
            *result = fault;
            return STATUS_HMX;
        }
        // After the sum of a row, which covers it, stores whether the input of down was finite.
        for (uint32_t index = 0; index < pass; index++) {
            int32_t *end = out + index * sum_stride(last) + last->out_features;
            end[0] = (int32_t)((uint32_t)end[0] + not_finite[index]);
            end[1] = not_finite[index];
        }
    }
    if (input_hash != arguments[3]) {
        return STATUS_INPUT;
    }
    if (has_inner) {
        uint32_t *numbers = (uint32_t *)(shared->start + inner);
        if (rows * width % 2 != 0) {
            numbers[rows * width] = 0;
        }
        *result = hash_words(0, (const uint64_t *)numbers, (uint32_t)((rows * width + 1) / 2));
        system_publish(shared->start + inner, (uint32_t)(rows * width * sizeof(float)) + 4);
    }
    system_publish(shared->start + sums, (uint32_t)(room * sum_stride(last) * sizeof(int32_t)));
    return STATUS_OK;
}

// Returns whether a model of HMX multiplies. Tests of leaves are for it: a unit without checks may hang.
static int is_modelled(void) { return hmx_near.start && system_models_hmx(); }

// Executes a leaf for a test of the model.
static uint64_t issue_leaf(const uint64_t arguments[6], uint64_t *result) {
    if (arguments[0] >= HMX_LEAVES || !is_modelled()) {
        return STATUS_REQUEST;
    }
    *result = hmx_try_leaf((uint32_t)arguments[0], arguments + 1);
    return *result == FAULT_NONE ? STATUS_OK : STATUS_HMX;
}

// Multiplies a tile for a test.
static uint64_t multiply_tile(const struct shared *shared, const uint64_t arguments[6], uint64_t *result) {
    const uint64_t kind = arguments[0], croutons = arguments[1], *at = arguments + 2;
    const uint64_t bytes = kind == KIND_FP16 ? CROUTON : HMX_ROWS * HMX_COLUMNS * sizeof(int32_t);
    if (kind > KIND_FP16 || croutons == 0 || croutons > MAX_FEATURES / CROUTON_FEATURES || !is_modelled() ||
        !is_within(at[0], croutons * CROUTON, HEADER, shared->bytes) ||
        !is_within(at[1], croutons * weight_tile((uint32_t)kind), HEADER, shared->bytes) ||
        !is_within(at[2], bytes, HEADER, shared->bytes)) {
        return STATUS_REQUEST;
    }
    system_refresh(shared->start + at[0], (uint32_t)(croutons * CROUTON));
    system_refresh(shared->start + at[1], (uint32_t)croutons * weight_tile((uint32_t)kind));
    *result = hmx_try_tile((uint32_t)kind, (uint32_t)croutons, shared->start + at[0], shared->start + at[1],
                           shared->start + at[2]);
    system_publish(shared->start + at[2], (uint32_t)bytes);
    return *result == FAULT_NONE ? STATUS_OK : *result == FAULT_NO_NEAR ? STATUS_REQUEST : STATUS_HMX;
}

uint64_t execute(const struct shared *shared, uint64_t operation, uint64_t number, const uint64_t arguments[6],
                 uint64_t *result, void (*progress)(void)) {
    if (operation == OPERATION_CREATE) {
        return create(arguments[0], result);
    }
    if (operation == OPERATION_TILE) {
        return multiply_tile(shared, arguments, result);
    }
    if (operation == OPERATION_ISSUE) {
        return issue_leaf(arguments, result);
    }
    struct program *program = number < MOST_PROGRAMS ? &programs[number] : 0;
    if (!program || !program->image) {
        return STATUS_REQUEST;
    }
    switch (operation) {
    case OPERATION_WRITE:
        return write(shared, program, arguments);
    case OPERATION_LOAD:
        return load(program, arguments[0]);
    case OPERATION_RUN:
        return run(shared, program, arguments, result, progress);
    case OPERATION_DROP:
        system_free(program->image, program->bytes);
        *program = (struct program){0};
        return STATUS_OK;
    default:
        return STATUS_REQUEST;
    }
}
