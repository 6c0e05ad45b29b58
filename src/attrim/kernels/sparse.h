/* Attention with a plan of the cells to compute; compiled.c includes this file once for each instruction set.
 *
 * A block is 16 queries and the keys that any of them keeps. The queries lie side by side in vectors, so that a key is
 * multiplied by all of them where it lies, whatever its neighbours are, and a row's softmax needs no sum across a
 * vector. Cells that a query of the block does not keep are computed with the others and left out of the softmax.
 *
 * Asks for: LANES (floats in a vector), AT_ONCE (keys that are scored together), HEIGHT (rows of a tile of outputs),
 * TARGET, NAMED(name), MAXIMUM(a, b), SEEN(scores, kept, column, first, after), CLEAR(a, b, c), which gives 0
 * where b equals c, and what fused.h defines. */

enum { NAMED(ACROSS) = SIDE / LANES };
#define ACROSS NAMED(ACROSS)
#define FLOATS NAMED(Floats)
#define INTS NAMED(Ints)
#define EACH_PART UNROLL(4) for (int part = 0; part < ACROSS; part++)

/* Scores of AT_ONCE keys with 16 queries [size][16]. */
TARGET static void NAMED(score_keys)(const float *restrict queries, const float *keys, const int32_t *columns,
                                     int64_t size, float *restrict into) {
    FLOATS sums[AT_ONCE][ACROSS];
    const float *rows[AT_ONCE];
    UNROLL(8) for (int key = 0; key < AT_ONCE; key++) {
        rows[key] = keys + (int64_t)columns[key] * size;
        EACH_PART sums[key][part] = (FLOATS){0};
    }
    for (int64_t place = 0; place < size; place++, queries += SIDE) {
        FLOATS next[ACROSS];
        EACH_PART next[part] = *(const FLOATS *)(queries + part * LANES);
        UNROLL(8) for (int key = 0; key < AT_ONCE; key++) {
            const float factor = rows[key][place];
            EACH_PART sums[key][part] += factor * next[part];
        }
    }
    UNROLL(8) for (int key = 0; key < AT_ONCE; key++)
        EACH_PART *(FLOATS *)(into + key * SIDE + part * LANES) = sums[key][part];
}

/* HEIGHT rows and ``wide`` vectors of the output: weights [keys][16] times the values of those keys. */
TARGET static inline __attribute__((always_inline)) void NAMED(mix_values)(
    const int wide, const float *restrict weights, const float *values, const int32_t *columns, int64_t keys,
    int64_t step, float *into, int64_t into_step) {
    FLOATS sums[HEIGHT][2];
    UNROLL(8) for (int row = 0; row < HEIGHT; row++)
        UNROLL(2) for (int vector = 0; vector < wide; vector++) sums[row][vector] = (FLOATS){0};
    for (int64_t key = 0; key < keys; key++, weights += SIDE) {
        const float *value = values + columns[key] * step;
        FLOATS next[2];
        UNROLL(2) for (int vector = 0; vector < wide; vector++)
            next[vector] = *(const FLOATS *)(value + vector * LANES);
        UNROLL(8) for (int row = 0; row < HEIGHT; row++) {
            const float factor = weights[row];
            UNROLL(2) for (int vector = 0; vector < wide; vector++)
                sums[row][vector] += factor * next[vector];
        }
    }
    UNROLL(8) for (int row = 0; row < HEIGHT; row++)
        UNROLL(2) for (int vector = 0; vector < wide; vector++)
            *(FLOATS *)(into + row * into_step + vector * LANES) = sums[row][vector];
}

/* Replace scores [keys][16] by exponentials, 0 where a query does not keep a key or may not see it; gives 1 / their sum
 * for each query. One that sees nothing has only zeros. */
TARGET static void NAMED(weigh_block)(float *restrict scores, const int32_t *columns, const uint16_t *kept, int64_t keys,
                                      const int32_t *start, const int32_t *stop, float *factors) {
    EACH_PART {
        const INTS first = *(const INTS *)(start + part * LANES), after = *(const INTS *)(stop + part * LANES);
        /* Smaller weights become 0: processors take a hundred times as long for numbers below the normal ones. */
        const FLOATS lowest = (FLOATS){0} - 87.0f;
        FLOATS most = (FLOATS){0} - FLT_MAX, sums = (FLOATS){0}; /* a query that sees nothing must not give a NaN */
        for (int64_t key = 0; key < keys; key++) {
            float *scored = scores + key * SIDE + part * LANES;
            const FLOATS score = SEEN(*(FLOATS *)scored, kept[key] >> part * LANES, columns[key], first, after);
            *(FLOATS *)scored = score;
            most = MAXIMUM(most, score);
        }
        for (int64_t key = 0; key < keys; key++) {
            float *scored = scores + key * SIDE + part * LANES;
            const FLOATS exponent = MAXIMUM(lowest, *(FLOATS *)scored - most);
            const FLOATS weight = CLEAR(NAMED(exponential)(exponent), exponent, lowest);
            *(FLOATS *)scored = weight;
            sums += weight;
        }
        *(FLOATS *)(factors + part * LANES) = 1.0f / MAXIMUM((FLOATS){0} + FLT_MIN, sums);
    }
}

typedef struct {
    float *keys, *values, *queries, *turned, *weights, *outputs;
    uint8_t *copied;
    int32_t *columns;
    int64_t step; /* floats from value to value */
} NAMED(SparseScratch);

/* One block of a head; keys and values are copied to where they lie close together when a block first needs them. */
TARGET static void NAMED(attend_sparse_block)(const SparseParameters *p, NAMED(SparseScratch) *s, int64_t example,
                                              int64_t head, int64_t block) {
    const int64_t group = head / p->group, size = p->size;
    const int32_t *rows = p->rows + block * SIDE;
    int32_t start[SIDE], stop[SIDE];
    int32_t first = INT32_MAX, after = 0;
    int present = 0;
    for (int row = 0; row < SIDE; row++) {
        const int64_t place = example * p->queries + rows[row];
        const int here = rows[row] >= 0 && rows[row] < p->queries; /* a plan may be made for longer texts */
        present |= here << row;
        start[row] = here ? (int32_t)p->start[place] : 0;
        stop[row] = here ? (int32_t)(p->stop[place] < p->keys ? p->stop[place] : p->keys) : 0;
        if (start[row] >= stop[row]) continue;
        first = start[row] < first ? start[row] : first;
        after = stop[row] > after ? stop[row] : after;
    }
    if (!present) return;
    const int32_t shift = p->shift[block];
    int64_t begin = p->column_begin[block], end = p->column_end[block];
    while (begin < end && p->columns[begin] + shift < first) begin++;
    while (begin < end && p->columns[end - 1] + shift >= after) end--;
    const int64_t keys = end - begin;
    for (int64_t key = 0; key < keys; key++) s->columns[key] = p->columns[begin + key] + shift;
    const int32_t *columns = s->columns;
    const int64_t number = p->bfloat16 ? 2 : 4; /* bytes */
    const char *all_queries = (const char *)p->query + (example * p->query_steps[0] + head * p->query_steps[1]) * number;
    const char *all_keys = (const char *)p->key + (example * p->key_steps[0] + group * p->key_steps[1]) * number;
    const char *all_values = (const char *)p->value + (example * p->value_steps[0] + group * p->value_steps[1]) * number;
    for (int64_t key = 0; key < keys; key++) {
        const int64_t column = columns[key];
        if (key + AHEAD < keys && !s->copied[columns[key + AHEAD]]) {
            fetch(all_keys + columns[key + AHEAD] * p->key_steps[2] * number, size * number);
            fetch(all_values + columns[key + AHEAD] * p->value_steps[2] * number, p->value_size * number);
        }
        if (s->copied[column]) continue;
        s->copied[column] = 1;
        copy_numbers(all_keys + column * p->key_steps[2] * number, p->key_steps[3], size, p->bfloat16, 1.0f,
                     s->keys + column * size);
        copy_numbers(all_values + column * p->value_steps[2] * number, p->value_steps[3], p->value_size, p->bfloat16, 1.0f,
                     s->values + column * s->step);
    }
    for (int row = 0; row < SIDE; row++) {
        if (!(present >> row & 1)) memset(s->queries + row * size, 0, (size_t)size * sizeof *s->queries);
        else copy_numbers(all_queries + rows[row] * p->query_steps[2] * number, p->query_steps[3], size, p->bfloat16,
                          (float)p->scaling, s->queries + row * size);
    }
    NAMED(turn)(s->queries, SIDE, size, s->turned);
    int64_t key = 0;
    for (; key + AT_ONCE <= keys; key += AT_ONCE)
        NAMED(score_keys)(s->turned, s->keys, columns + key, size, s->weights + key * SIDE);
    if (key < keys) { /* the others once more, and no one looks at what comes of it: faster than one by one */
        int32_t rest[AT_ONCE];
        for (int place = 0; place < AT_ONCE; place++) rest[place] = columns[key + place < keys ? key + place : keys - 1];
        NAMED(score_keys)(s->turned, s->keys, rest, size, s->weights + key * SIDE);
    }
    float factors[SIDE];
    NAMED(weigh_block)(s->weights, columns, p->kept + begin, keys, start, stop, factors);
    for (int64_t part = 0; part < s->step; part += 2 * LANES)
        for (int row = 0; row < SIDE; row += HEIGHT) {
            float *into = s->outputs + row * s->step + part;
            if (s->step - part > LANES)
                NAMED(mix_values)(2, s->weights + row, s->values + part, columns, keys, s->step, into, s->step);
            else NAMED(mix_values)(1, s->weights + row, s->values + part, columns, keys, s->step, into, s->step);
        }
    for (int row = 0; row < SIDE; row++)
        if (present >> row & 1)
            put_numbers(s->outputs + row * s->step, factors[row], p->value_size, p->bfloat16, p->output,
                        ((example * p->queries + rows[row]) * p->heads + head) * p->value_size);
}

/* What one thread does: pieces of work, each a part of the blocks of a head for one example, until none is left. */
TARGET static void NAMED(attend_sparse)(const SparseParameters *p) {
    const int64_t step = (p->value_size + LANES - 1) / LANES * LANES;
    const int64_t sizes[] = {p->keys * p->size, p->keys * step, SIDE * p->size, SIDE * p->size,
                             (p->most_columns + AT_ONCE) * SIDE, SIDE * step, p->keys / 4 + 1, p->most_columns};
    enum { PARTS = sizeof sizes / sizeof *sizes };
    int64_t total = 16;
    for (int part = 0; part < PARTS; part++) total += (sizes[part] + 15) / 16 * 16;
    float *memory = calloc((size_t)total, sizeof *memory); /* what lies behind the last number of a value must be finite */
    if (!memory) {
        *p->failed = 1;
        return;
    }
    float *part[PARTS], *next = (float *)(((uintptr_t)memory + 63) / 64 * 64);
    for (int number = 0; number < PARTS; next += (sizes[number++] + 15) / 16 * 16) part[number] = next;
    NAMED(SparseScratch) s = {part[0], part[1], part[2], part[3], part[4], part[5], (uint8_t *)part[6],
                               (int32_t *)part[7], step};
    const int64_t pieces = p->examples * p->heads * p->parts;
    int64_t known = -1; /* the example and group whose keys are copied */
    for (int64_t piece = claim(p->next); piece < pieces; piece = claim(p->next)) {
        const int64_t number = piece % p->parts, head = piece / p->parts % p->heads, example = piece / p->parts / p->heads;
        const int64_t first = p->block_begin[p->plan_of[head]], blocks = p->block_begin[p->plan_of[head] + 1] - first;
        const int64_t shared = example * p->heads + head / p->group;
        if (shared != known) memset(s.copied, 0, (size_t)p->keys);
        known = shared;
        for (int64_t block = blocks * number / p->parts; block < blocks * (number + 1) / p->parts; block++)
            NAMED(attend_sparse_block)(p, &s, example, head, first + block);
    }
    free(memory);
}

#undef ACROSS
#undef FLOATS
#undef INTS
#undef EACH_PART
#undef AT_ONCE
#undef HEIGHT
#undef LANES
#undef ROWS
#undef WIDE
#undef TARGET
#undef NAMED
#undef MAXIMUM
#undef MINIMUM
#undef LARGEST
#undef SUM
#undef TOTAL
#undef TIMES_POWER
#undef WITH_SCORES
#undef WITH_OUTPUTS
#undef COUNT_BELOW
#undef COUNT_ZEROS
#undef BINS_OF
#undef PUT_BINS
#undef ADD
#undef TOTALS
#undef COLLECT
#undef ADD_ABOVE
#undef COUNT_ABOVE
#undef VALUES_OF
#undef SEEN
#undef CLEAR
#undef UNLESS_BELOW
