/* The compiled passes over attention weights. Each is a function of one pointer to its parameters that any number of
 * threads may run at once: they take pieces of work from a shared counter, ``next``, until none is left. However many
 * come, and be it one after the other, all of the work is done.
 *
 * The meaning is that of the plain versions in torch; tests compare the results bit for bit. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <float.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* The inner loops are compiled for several instruction sets, and the loader takes the best that the machine has. */
#if defined(__GLIBC__) && defined(__x86_64__) && defined(__clang__) && __clang_major__ >= 14
#define VECTORISED __attribute__((target_clones("avx512f", "avx2", "default")))
#elif defined(__GLIBC__) && defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define VECTORISED __attribute__((target_clones("avx512f", "avx2", "default"), noinline))
#else
#define VECTORISED
#endif

#ifdef __GNUC__
#define ALWAYS_INLINE __attribute__((always_inline)) inline
#else
#define ALWAYS_INLINE inline
#endif

/* Before a loop of at most so many rounds, a number that compilers know, whose sums stay in registers only if it is
 * unrolled. Clang does that early enough only where it unrolls all. */
#ifdef __clang__
#define UNROLL(times) DIRECTIVE(clang loop unroll(full))
#else
#define UNROLL(times) DIRECTIVE(GCC unroll times)
#endif
#define DIRECTIVE(words) _Pragma(#words)

/* The bins of stats/bins.py. */
enum { SHIFT = 18, ONE_BITS = 127 << 23, NOT_FINITE = 0x7F800000, FIRST_NORMAL = 32, ZERO = 0, UNDERFLOW_BIN = 1,
       NORMAL = 2, RAW = (ONE_BITS >> SHIFT) + 1, BINS = RAW - FIRST_NORMAL + NORMAL };
/* The fixed point of stats/integers.py. Adding MAGIC puts the rounded integer into the low bits of the double. */
static const double SCALE = 68719476736.0, MAGIC = 6755399441055744.0;
static const int64_t MAGIC_BITS = 0x4338000000000000;
/* The same for a number that was not scaled: MAGIC / SCALE. */
static const double FINE_MAGIC = 98304.0;
static const int64_t FINE_MAGIC_BITS = 0x40F8000000000000;

/* Neighbours often share a bin, and adding to it twice in a row waits for memory: several tables take turns. */
enum { TABLES = 4, CHUNK = 1 << 15 };

/* team.py has the same structures for Python and says what each field is. */
typedef struct {
    int64_t *counts;
    const int64_t *counts_row;
    int64_t *below_uniform, *sums;
    const int64_t *sums_row;
    int64_t sums_queries, sums_keys;
    int64_t *cells;
    int64_t *facts;
    const int64_t *facts_row;
    const int64_t *query_slot, *key_slot;
    int64_t *failed;
} Buffers;

/* The columns of RowBuffers.facts in feed.py. */
enum { CELLS_FACT, ROWS_FACT, REACHED_FACT, MAJORITY_FACT, SUM_FACT, SQUARES_FACT, ENTROPY_FACT, ERROR_FACT,
       LARGEST_ERROR_FACT, MAXIMUM_FACT, MINIMUM_FACT, FACTS };
/* Of the weights of a row: sums in fixed point, and the bits of the least and the largest. */
typedef struct {
    int64_t sum, squares;
    int32_t least, most;
} Totals;
/* Half of 1 with the slack of stats/moments.py, in fixed point. */
static const int64_t ONE_FIXED = (int64_t)1 << 36, HALF_FIXED = ((int64_t)1 << 35) + (1 << 14);
static const float HALF = 0.5f + 0x1p-22f; /* the same as a float */

typedef struct {
    int64_t *next;
    const float *weights;
    int64_t examples, heads, queries, keys;
    const int64_t *start, *stop;
    Buffers into;
} CountParameters;

typedef struct {
    const int32_t *edges;
    const float *values;
    const int32_t *cells;
    int64_t codes, base, top, shift;
} TableParameters;

/* What an edit does to a row. */
enum { KEEP_ABOVE, LOOK_UP };
/* What the bar of KEEP_ABOVE is a multiple of. */
enum { OF_ONE, OF_UNIFORM, OF_ROW_MAXIMUM };
typedef struct {
    const uint8_t *heads;
    int64_t kind, relative_to, renormalize;
    double bar;
    TableParameters table;
} EditParameters;

typedef struct {
    int64_t *next;
    int64_t path, parts, together, apart;
    const float *query, *key, *value;
    float *output, *weights;
    int64_t examples, heads, group, queries, keys, size, value_size;
    int64_t query_steps[4], key_steps[4], value_steps[4];
    double scaling;
    const int64_t *start, *stop;
    const uint8_t *counted;
    const EditParameters *edits;
    int64_t edit_count;
    Buffers into;
} AttendParameters;

typedef struct {
    int64_t *next;
    const int32_t *weights;
    float *result;
    int64_t size;
    TableParameters table;
} LookUpParameters;

typedef struct {
    int64_t *next;
    int64_t path, parts, bfloat16;
    const void *query, *key, *value;
    void *output;
    int64_t examples, heads, group, queries, keys, size, value_size;
    int64_t query_steps[4], key_steps[4], value_steps[4];
    double scaling;
    const int64_t *start, *stop, *plan_of, *block_begin, *column_begin, *column_end;
    const int32_t *rows, *shift, *columns;
    const uint16_t *kept;
    int64_t most_columns, *failed;
} SparseParameters;

/* The value that stands in a codebook for a weight, given by its bits. A cell is four numbers: the bits of an edge, the
 * values below it and from it on, and one that fills up the vector. */
ALWAYS_INLINE static float value_of(int32_t bits, const TableParameters *table) {
    const int32_t base = (int32_t)table->base, top = (int32_t)table->top;
    const int32_t inside = bits < base ? base : bits > top ? top : bits;
    const int32_t *cell = table->cells + 4 * (int64_t)((inside - base) >> table->shift);
    float value;
    memcpy(&value, cell + 1 + (bits >= cell[0]), sizeof value);
    return value;
}

static int64_t claim(int64_t *next) { return __atomic_fetch_add(next, 1, __ATOMIC_RELAXED); }

/* One row: the raw bin of every value, how many are 0, how many are below 1/n, and the largest bits. */
VECTORISED static void sort_row(const int32_t *restrict bits, int64_t size, uint16_t *restrict places, int64_t *zeros,
                                int64_t *below, int32_t *largest) {
    const float uniform = (float)(1.0 / (double)size);
    int32_t none = 0, small = 0, top = *largest;
    for (int64_t key = 0; key < size; key++) {
        const int32_t value = bits[key];
        float weight;
        memcpy(&weight, &value, sizeof weight);
        none += value <= 0;
        small += weight < uniform;
        top = value > top ? value : top;
        const int32_t positive = value > 0 ? value : 0;
        places[key] = (uint16_t)((positive < ONE_BITS ? positive : ONE_BITS) >> SHIFT);
    }
    *zeros += none;
    *below += small;
    *largest = top;
}

ALWAYS_INLINE static uint64_t bits_of(double number) {
    uint64_t bits;
    memcpy(&bits, &number, sizeof bits);
    return bits;
}

/* A number up to 2^15 in fixed point, rounded half to even. */
ALWAYS_INLINE static int64_t to_fixed(double number) {
    return (int64_t)bits_of(number * SCALE + MAGIC) - MAGIC_BITS;
}

VECTORISED static void add_row(const float *restrict row, int64_t size, int64_t *restrict into) {
    for (int64_t key = 0; key < size; key++) into[key] += to_fixed(row[key]);
}

static void fill_tables(const uint16_t *places, int64_t size, int32_t *raw) {
    int64_t key = 0;
    for (; key + TABLES <= size; key += TABLES) {
        raw[places[key]]++;
        raw[RAW + places[key + 1]]++;
        raw[2 * RAW + places[key + 2]]++;
        raw[3 * RAW + places[key + 3]]++;
    }
    for (; key < size; key++) raw[places[key]]++;
}

static void add_to(int64_t *into, int64_t number) {
    if (number) __atomic_fetch_add(into, number, __ATOMIC_RELAXED); /* another thread may have a part of the same head */
}

static void add_tables(const int32_t *raw, int64_t zeros, int64_t below, int64_t *counts, int64_t *below_uniform) {
    int64_t tiny = 0;
    for (int place = 0; place < RAW; place++) {
        const int64_t found = (int64_t)raw[place] + raw[RAW + place] + raw[2 * RAW + place] + raw[3 * RAW + place];
        if (place < FIRST_NORMAL) tiny += found;
        else add_to(counts + place - FIRST_NORMAL + NORMAL, found);
    }
    add_to(counts + ZERO, zeros);
    add_to(counts + UNDERFLOW_BIN, tiny - zeros);
    add_to(below_uniform, below);
}

/* How many examples have each cell. Where spans begin and end is marked for all of them, then added up once. */
static void count_cells(int64_t examples, int64_t queries, const int64_t *start, const int64_t *stop,
                        const uint8_t *counted, const Buffers *into) {
    int64_t *change = malloc((size_t)(into->sums_keys + 1) * sizeof *change);
    if (!change) {
        *into->failed = 2;
        return;
    }
    for (int64_t slot = 0; slot < into->sums_queries; slot++) {
        int64_t some = 0, open = 0, *row = into->cells + slot * into->sums_keys;
        memset(change, 0, (size_t)(into->sums_keys + 1) * sizeof *change);
        for (int64_t example = 0; example < examples; example++) {
            const int64_t query = slot - into->query_slot[example], place = example * queries + query;
            if (query < 0 || query >= queries || start[place] == stop[place] || (counted && !counted[place])) continue;
            change[start[place] + into->key_slot[example]]++;
            change[stop[place] + into->key_slot[example]]--;
            some = 1;
        }
        if (some) for (int64_t key = 0; key < into->sums_keys; key++) row[key] += open += change[key];
    }
    free(change);
}

/* Bins and cells of weights that are there, in one pass; a piece of work is a head, and after the last the cells. */
static void count(const CountParameters *p) {
    const Buffers *into = &p->into;
    const int64_t queries = p->queries, height = into->sums_queries, width = into->sums_keys;
    uint16_t *places = malloc((size_t)(p->keys > 0 ? p->keys : 1) * sizeof *places);
    int32_t *raw = malloc(TABLES * RAW * sizeof *raw);
    if (!places || !raw) *into->failed = 2;
    else for (;;) {
        const int64_t head = claim(p->next);
        if (head > p->heads) break;
        if (head == p->heads) {
            if (into->cells) count_cells(p->examples, queries, p->start, p->stop, NULL, into);
            continue;
        }
        const int64_t counts_row = into->counts_row[head], sums_row = into->sums_row[head];
        int64_t *sums = sums_row < 0 ? NULL : into->sums + sums_row * height * width;
        int64_t zeros = 0, below = 0;
        int32_t largest = 0;
        memset(raw, 0, TABLES * RAW * sizeof *raw);
        for (int64_t example = 0; example < p->examples; example++)
            for (int64_t query = 0; query < queries; query++) {
                const int64_t place = example * queries + query, first = p->start[place], size = p->stop[place] - first;
                if (size <= 0) continue;
                const float *row = p->weights + ((example * p->heads + head) * queries + query) * p->keys + first;
                sort_row((const int32_t *)row, size, places, &zeros, &below, &largest);
                if (counts_row >= 0) fill_tables(places, size, raw);
                if (sums)
                    add_row(row, size, sums + (query + into->query_slot[example]) * width + first + into->key_slot[example]);
            }
        if (largest >= NOT_FINITE) *into->failed = 1;
        if (counts_row >= 0)
            add_tables(raw, zeros, below, into->counts + counts_row * BINS, into->below_uniform + counts_row);
    }
    free(places);
    free(raw);
}

/* The fused pass asks for vectors of the compiler; without them weights that torch computed are counted instead. */
enum { TORCH = 0, PORTABLE = 1, AVX2 = 2, AVX512 = 3 };

#ifdef __GNUC__
#define FUSED

/* Some floats of two vectors of four: both compilers have this, under two names. */
#ifdef __clang__
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (Places){__VA_ARGS__})
typedef int32_t Places __attribute__((vector_size(16)));
#endif

/* A piece of work: some heads of some examples, and the positions of the queries in them. */
typedef struct {
    int64_t first_head, after_head, first_example, after_example, low, high;
} Piece;

/* The next piece of work, if any is left; after the last one the cells are counted. */
static int claim_piece(const AttendParameters *p, Piece *to) {
    const int64_t teams = (p->heads + p->together - 1) / p->together, alone = p->apart ? p->examples : 1;
    const int64_t piece = claim(p->next), pieces = alone * teams * p->parts;
    if (piece > pieces) return 0;
    int64_t first = INT64_MAX, last = INT64_MIN;
    for (int64_t example = 0; example < p->examples; example++) {
        const int64_t slot = p->into.query_slot[example];
        first = slot < first ? slot : first;
        last = slot > last ? slot : last;
    }
    const int64_t part = piece % p->parts, length = last + p->queries - first;
    to->first_head = piece / p->parts % teams * p->together;
    to->after_head = to->first_head + p->together < p->heads ? to->first_head + p->together : p->heads;
    to->first_example = p->apart ? piece / p->parts / teams : 0;
    to->after_example = p->apart ? to->first_example + 1 : p->examples;
    to->low = first + length * part / p->parts;
    to->high = first + length * (part + 1) / p->parts;
    if (piece < pieces) return 1;
    if (p->into.cells) count_cells(p->examples, p->queries, p->start, p->stop, p->counted, &p->into);
    return 0;
}

/* The keys that any of some queries sees, none if ``first`` is not below ``after``; gives whether each sees all of them. */
static int cover(const int64_t *start, const int64_t *stop, int64_t queries, int64_t *first, int64_t *after) {
    *first = INT64_MAX, *after = 0;
    for (int64_t query = 0; query < queries; query++) {
        if (start[query] == stop[query]) continue;
        *first = start[query] < *first ? start[query] : *first;
        *after = stop[query] > *after ? stop[query] : *after;
    }
    int64_t others = 0;
    for (int64_t query = 0; query < queries; query++) others |= (start[query] ^ *first) | (stop[query] ^ *after);
    return others == 0;
}

static inline void copy_row(const float *restrict from, int64_t step, int64_t size, float factor, float *restrict to) {
    if (step == 1) for (int64_t part = 0; part < size; part++) to[part] = from[part] * factor;
    else for (int64_t part = 0; part < size; part++) to[part] = from[part * step] * factor;
}

/* Queries of a block of the sparse pass; a plan is made for so many. */
enum { SIDE = 16 };

/* Numbers as floats times a factor, and back; the upper half of a float's bits is a bfloat16. */
static inline void copy_numbers(const void *from, int64_t step, int64_t size, int64_t bfloat16, float factor,
                                float *restrict to) {
    if (!bfloat16) {
        copy_row(from, step, size, factor, to);
        return;
    }
    for (int64_t part = 0; part < size; part++) {
        const uint32_t bits = (uint32_t)((const uint16_t *)from)[part * step] << 16;
        memcpy(to + part, &bits, sizeof bits);
        to[part] *= factor;
    }
}
static inline void put_numbers(const float *restrict from, float factor, int64_t size, int64_t bfloat16, void *all, int64_t to) {
    if (!bfloat16) {
        copy_row(from, 1, size, factor, (float *)all + to);
        return;
    }
    for (int64_t part = 0; part < size; part++) {
        const float number = from[part] * factor;
        uint32_t bits;
        memcpy(&bits, &number, sizeof bits);
        bits += number == number ? 0x7FFF + (bits >> 16 & 1) : 0; /* to the nearest, halves to even */
        ((uint16_t *)all)[to + part] = (uint16_t)(bits >> 16);
    }
}

/* Places that tables of 32 bits may hold before they are added up; a block of queries can bring some more. */
enum { MOST_PENDING = 1 << 30 };

/* Bins of weights that wait to be counted: those from ``start`` to ``stop``. */
typedef struct {
    uint16_t *bins;
    int64_t start, stop;
    int32_t *tables;
} Queue;

/* Count all that still wait. */
static void finish_queue(Queue *queue) {
    fill_tables(queue->bins + queue->start, queue->stop - queue->start, queue->tables);
    queue->start = queue->stop = 0;
}

/* The rows of a head lie far apart in memory, so they are asked for some rows before they are needed. */
enum { AHEAD = 24 };
static inline void fetch(const void *row, int64_t bytes) {
    for (int64_t part = 0; part < bytes; part += 64) __builtin_prefetch((const char *)row + part);
}

/* The natural logarithm of a number from 1 on, to about 1e-15: ln(m 2^e) by the series of artanh((m - 1) / (m + 1)). */
ALWAYS_INLINE static double logarithm(double number) {
    int64_t bits;
    memcpy(&bits, &number, sizeof bits);
    int64_t power = (bits >> 52) - 1023;
    bits = (bits & 0xFFFFFFFFFFFFF) | ((int64_t)1023 << 52);
    memcpy(&number, &bits, sizeof number);
    if (number > 1.4142135623730951) number /= 2, power++;
    const double ratio = (number - 1) / (number + 1), square = ratio * ratio;
    double sum = 0;
    UNROLL(11) for (int term = 21; term > 0; term -= 2) sum = sum * square + 1.0 / term;
    return 2 * ratio * sum + (double)power * 0.6931471805599453;
}

/* A row whose facts are wanted; the weights beside its cells are 0. */
typedef struct {
    const float *weights;
    int64_t size, cells; /* floats, and those that are the row's */
    Totals totals;
    int32_t *list; /* with room for the row and a vector */
} DescribedRow;

/* A search for how many of a row's largest weights exceed half of 1 together. The bits of such floats are ordered as they
 * are. */
typedef struct {
    const float *row;
    int64_t size;
    int32_t *list;
    int64_t found;            /* how many weights are listed; zeros follow them */
    int32_t first, low, high; /* the lowest bar; the weights above ``low`` are a majority, those above ``high`` are none */
    int64_t above;            /* how many are above ``high``, and what they weigh together */
    float mass, unsure;       /* how wrong such a sum may be */
    int sure;                 /* whether ``low`` and ``high`` are neighbouring bars */
} Search;

/* The first bar is rarely above the answer: the mean logarithm of the weights, each as often as it weighs, is the entropy,
 * and that of their mean is the one of the squares' sum; the further apart these are, the wider the weights are spread.
 * Their bits are about their logarithms. */
ALWAYS_INLINE static void set_up(Search *search, const float *row, int64_t size, double entropy, float squares, int32_t *list) {
    const double octaves = entropy < 0 ? 0 : entropy > 43 ? 62 : entropy * 1.4426950408889634;
    int32_t bits;
    memcpy(&bits, &squares, sizeof bits);
    search->row = row, search->size = size, search->list = list;
    search->first = (int32_t)((127 - 1.5 * octaves - 0.25) * (1 << 23)) + (ONE_BITS - bits) / 2;
    search->low = -1, search->high = NOT_FINITE;
    search->above = search->sure = 0;
    search->mass = 0;
}

static void begin_facts(int64_t *facts) {
    for (int fact = 0; fact < FACTS; fact++) facts[fact] = 0;
    facts[MINIMUM_FACT] = INT64_MAX;
}

/* Add the facts of one piece of work to those of its head, which other threads may be adding to as well. */
static void add_facts(const int64_t *facts, int64_t *into) {
    for (int fact = 0; fact < LARGEST_ERROR_FACT; fact++) add_to(into + fact, facts[fact]);
    for (int fact = LARGEST_ERROR_FACT; fact < FACTS; fact++) {
        int64_t known = __atomic_load_n(into + fact, __ATOMIC_RELAXED);
        while ((fact == MINIMUM_FACT ? facts[fact] < known : facts[fact] > known)
               && !__atomic_compare_exchange_n(into + fact, &known, facts[fact], 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {}
    }
}

/* Codes of a codebook that are compared with all; among more they are looked up. */
enum { MOST_COMPARED = 8 };

/* What a row is divided by at least, as in edits/rows.py. */
static const float LEAST_MASS = 1e-12f;

/* Operations on vectors that the compilers' own vectors lack. */
#define DEFINE_VECTORS(suffix, lanes, target)                                                                          \
    typedef float Floats_##suffix __attribute__((vector_size(4 * lanes), aligned(4), may_alias));                      \
    typedef int32_t Ints_##suffix __attribute__((vector_size(4 * lanes), aligned(4), may_alias));                      \
    typedef uint16_t Shorts_##suffix __attribute__((vector_size(2 * lanes), aligned(2), may_alias));                   \
    target static inline Floats_##suffix choose_##suffix(Ints_##suffix which, Floats_##suffix a, Floats_##suffix b) {  \
        return (Floats_##suffix)((which & (Ints_##suffix)a) | (~which & (Ints_##suffix)b));                            \
    }                                                                                                                  \
    target static inline int64_t total_##suffix(Ints_##suffix values) {                                                \
        int64_t result = 0;                                                                                            \
        for (int lane = 0; lane < lanes; lane++) result += values[lane];                                               \
        return result;                                                                                                 \
    }                                                                                                                  \
    /* Two factors, because 2^power may be too small for a normal float where the result still is one. */              \
    target static inline Floats_##suffix times_power_##suffix(Floats_##suffix value, Floats_##suffix shifted) {        \
        const Ints_##suffix power = (Ints_##suffix)shifted - 0x4B400000, half = power >> 1;                            \
        return value * (Floats_##suffix)((half + 127) << 23) * (Floats_##suffix)((power - half + 127) << 23);          \
    }                                                                                                                  \
    /* Scores of the keys that a query keeps (a bit for each lane) and may see, and minus infinity for others. */        \
    target static inline Floats_##suffix seen_##suffix(Floats_##suffix scores, int32_t kept, int32_t column,           \
                                                       Ints_##suffix first, Ints_##suffix after) {                     \
        Ints_##suffix bits;                                                                                            \
        for (int lane = 0; lane < lanes; lane++) bits[lane] = 1 << lane;                                               \
        const Ints_##suffix seen = ((bits & kept) != 0) & (first <= column) & (after > column);                        \
        return choose_##suffix(seen, scores, (Floats_##suffix){0} - INFINITY);                                         \
    }                                                                                                                  \
    target static void add_##suffix(const float *restrict row, int64_t size, int64_t *restrict into) {                 \
        for (int64_t key = 0; key < size; key++) into[key] += to_fixed(row[key]);                                      \
    }

#define PORTABLE_TARGET
DEFINE_VECTORS(portable, 4, PORTABLE_TARGET)
static inline float largest_portable(Floats_portable values) {
    float result = values[0];
    for (int lane = 1; lane < 4; lane++) result = values[lane] > result ? values[lane] : result;
    return result;
}
/* What is not a number counts as 1. */
static inline Shorts_portable bins_of_portable(Floats_portable weights) {
    const Floats_portable one = (Floats_portable){0} + 1.0f;
    return __builtin_convertvector((Ints_portable)choose_portable(weights < one, weights, one) >> SHIFT, Shorts_portable);
}
static inline float sum_portable(Floats_portable values) { return (values[0] + values[1]) + (values[2] + values[3]); }
static inline Floats_portable values_of_portable(Ints_portable bits, const TableParameters *table) {
    Floats_portable values;
    for (int lane = 0; lane < 4; lane++) values[lane] = value_of(bits[lane], table);
    return values;
}
static inline int collect_portable(Ints_portable values, int32_t low, int32_t high, int32_t *into) {
    int found = 0;
    for (int lane = 0; lane < 4; lane++) {
        into[found] = values[lane];
        found += values[lane] > low && values[lane] <= high;
    }
    return found;
}
#define LANES 4
#define ROWS 4
#define WIDE 2
#define WITH_SCORES 2
#define WITH_OUTPUTS 2
#define TARGET PORTABLE_TARGET
#define NAMED(name) name##_portable
#define MAXIMUM(a, b) choose_portable((a) > (b), a, b)
#define MINIMUM(a, b) choose_portable((a) < (b), a, b)
#define LARGEST(a) largest_portable(a)
#define SUM(a) sum_portable(a)
#define TOTAL(a) total_portable(a)
#define TIMES_POWER(value, shifted, power) times_power_portable(value, shifted)
#define COUNT_BELOW(count, a, b) ((count) - ((a) < (b)))
#define COUNT_ZEROS(count, a) ((count) - ((Ints_portable)(a) == 0))
#define BINS_OF(a) bins_of_portable(a)
#define PUT_BINS(into, a, b) *(Shorts_portable *)(into) = BINS_OF(a), *(Shorts_portable *)((into) + LANES) = BINS_OF(b)
#define ADD(row, size, into) add_portable(row, size, into)
#define COLLECT(values, low, high, into) collect_portable(values, low, high, into)
#define ADD_ABOVE(sums, bits, bars) ((sums) + (Floats_portable)(((bits) > (bars)) & (bits)))
#define COUNT_ABOVE(a, b) (int)-total_portable((a) > (b))
#define SEEN(scores, kept, column, first, after) seen_portable(scores, kept, column, first, after)
#define CLEAR(a, b, c) (Floats_portable)(((b) != (c)) & (Ints_portable)(a))
#define UNLESS_BELOW(bits, edge, a, b) choose_portable((bits) < (edge), b, (Floats_portable){0} + (a))
#define VALUES_OF(bits, table) values_of_portable(bits, table)
#define AT_ONCE 2
#define HEIGHT 4
#include "fused.h"
#include "sparse.h"

#ifdef __x86_64__
#include <immintrin.h>

/* The numbers of the bits that are set in a byte, a byte each and the lowest first. */
static int64_t SET_BITS[256];
static void list_set_bits(void) {
    for (int byte = 0; byte < 256; byte++)
        for (int bit = 0, found = 0; bit < 8; bit++)
            if (byte >> bit & 1) SET_BITS[byte] |= (int64_t)bit << 8 * found++;
}

#define AVX2_TARGET __attribute__((target("avx2,fma")))
DEFINE_VECTORS(avx2, 8, AVX2_TARGET)
AVX2_TARGET static inline float largest_avx2(Floats_avx2 values) {
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(values), _mm256_extractf128_ps(values, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}
AVX2_TARGET static inline Shorts_avx2 bins_of_avx2(Floats_avx2 weights) {
    return __builtin_convertvector((Ints_avx2)_mm256_min_ps(weights, _mm256_set1_ps(1)) >> SHIFT, Shorts_avx2);
}
AVX2_TARGET static inline float sum_avx2(Floats_avx2 values) {
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(values), _mm256_extractf128_ps(values, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
/* Loads of whole cells are faster than gathers of their parts, which processors do one by one. */
AVX2_TARGET static inline Floats_avx2 values_of_avx2(Ints_avx2 bits, const TableParameters *table) {
    const __m256i all = (__m256i)bits, base = _mm256_set1_epi32((int)table->base);
    const __m256i inside = _mm256_min_epi32(_mm256_max_epi32(all, base), _mm256_set1_epi32((int)table->top));
    const __m256i places = _mm256_sra_epi32(_mm256_sub_epi32(inside, base), _mm_cvtsi64_si128(table->shift));
    uint32_t place[8] __attribute__((aligned(32))); /* in bytes */
    _mm256_store_si256((__m256i *)place, _mm256_slli_epi32(places, 4));
    __asm__("" : "+m"(place)); /* read from memory: taking lanes out of a vector keeps the units that shuffle busy */
    const char *first_cell = (const char *)table->cells;
    __m256i cells[4]; /* of lanes 0 and 4, 1 and 5, 2 and 6, 3 and 7 */
    UNROLL(4) for (int lane = 0; lane < 4; lane++)
        cells[lane] = _mm256_inserti128_si256(
            _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)(first_cell + place[lane]))),
            _mm_loadu_si128((const __m128i *)(first_cell + place[lane + 4])), 1);
    const __m256i first = _mm256_unpacklo_epi32(cells[0], cells[1]), second = _mm256_unpacklo_epi32(cells[2], cells[3]);
    const __m256i edges = _mm256_unpacklo_epi64(first, second), below = _mm256_unpackhi_epi64(first, second);
    const __m256i above = _mm256_unpacklo_epi64(_mm256_unpackhi_epi32(cells[0], cells[1]),
                                                _mm256_unpackhi_epi32(cells[2], cells[3]));
    return (Floats_avx2)_mm256_blendv_epi8(above, below, _mm256_cmpgt_epi32(edges, all));
}
AVX2_TARGET static int64_t look_up_avx2(const int32_t *restrict bits, float *restrict result, int64_t size,
                                        const TableParameters *table) {
    int64_t place = 0;
    for (; place + 8 <= size; place += 8)
        *(Floats_avx2 *)(result + place) = values_of_avx2(*(const Ints_avx2 *)(bits + place), table);
    return place;
}
AVX2_TARGET static inline int collect_avx2(Ints_avx2 values, int32_t low, int32_t high, int32_t *into) {
    const __m256i all = (__m256i)values, inside = _mm256_andnot_si256(_mm256_cmpgt_epi32(all, _mm256_set1_epi32(high)),
                                                                      _mm256_cmpgt_epi32(all, _mm256_set1_epi32(low)));
    const int which = _mm256_movemask_ps(_mm256_castsi256_ps(inside));
    const __m256i order = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(SET_BITS[which]));
    _mm256_storeu_si256((__m256i *)into, _mm256_permutevar8x32_epi32(all, order));
    return __builtin_popcount((unsigned)which);
}
#define LANES 8
#define ROWS 6
#define WIDE 2
#define WITH_SCORES 2
#define WITH_OUTPUTS 2
#define TARGET AVX2_TARGET
#define NAMED(name) name##_avx2
#define MAXIMUM(a, b) _mm256_max_ps(a, b)
#define MINIMUM(a, b) _mm256_min_ps(a, b)
#define LARGEST(a) largest_avx2(a)
#define SUM(a) sum_avx2(a)
#define TOTAL(a) total_avx2(a)
#define TIMES_POWER(value, shifted, power) times_power_avx2(value, shifted)
#define COUNT_BELOW(count, a, b) ((count) - ((a) < (b)))
#define COUNT_ZEROS(count, a) ((count) - ((Ints_avx2)(a) == 0))
#define BINS_OF(a) bins_of_avx2(a)
#define PUT_BINS(into, a, b) *(Shorts_avx2 *)(into) = BINS_OF(a), *(Shorts_avx2 *)((into) + LANES) = BINS_OF(b)
#define ADD(row, size, into) add_avx2(row, size, into)
#define COLLECT(values, low, high, into) collect_avx2(values, low, high, into)
#define ADD_ABOVE(sums, bits, bars) ((sums) + (Floats_avx2)(((bits) > (bars)) & (bits)))
#define COUNT_ABOVE(a, b) __builtin_popcount((unsigned)_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GT_OQ)))
#define SEEN(scores, kept, column, first, after) seen_avx2(scores, kept, column, first, after)
#define CLEAR(a, b, c) (Floats_avx2)(((b) != (c)) & (Ints_avx2)(a))
#define UNLESS_BELOW(bits, edge, a, b) choose_avx2((bits) < (edge), b, (Floats_avx2){0} + (a))
#define VALUES_OF(bits, table) values_of_avx2(bits, table)
#define AT_ONCE 4
#define HEIGHT 4
#include "fused.h"
#include "sparse.h"

#ifndef AVX512_TARGET /* tests give another one, with functions in place of the instructions: tests/kernels/test_emulated.py */
#define AVX512_TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,fma")))
#endif
typedef float Floats_avx512 __attribute__((vector_size(64), aligned(4), may_alias));
typedef int32_t Ints_avx512 __attribute__((vector_size(64), aligned(4), may_alias));
typedef uint16_t Shorts_avx512 __attribute__((vector_size(32), aligned(2), may_alias));
AVX512_TARGET static inline Shorts_avx512 bins_of_avx512(Floats_avx512 weights) {
    return (Shorts_avx512)_mm512_cvtepi32_epi16(
        _mm512_srli_epi32(_mm512_castps_si512(_mm512_min_ps(weights, _mm512_set1_ps(1))), SHIFT));
}
/* Packing two vectors at once, which changes the order of their parts, is four times as fast as narrowing each. */
AVX512_TARGET static inline void put_bins_avx512(uint16_t *into, Floats_avx512 first, Floats_avx512 second) {
    const __m512i low = _mm512_srli_epi32(_mm512_castps_si512(first), SHIFT);
    const __m512i high = _mm512_srli_epi32(_mm512_castps_si512(second), SHIFT);
    const __m512i bins = _mm512_packus_epi32(low, high); /* what is not a number has large bits */
    _mm512_storeu_si512(into, _mm512_min_epu16(bins, _mm512_set1_epi16(RAW - 1)));
}
/* Scaling by a power of two is exact, and the conversion rounds half to even as stats/integers.py does. */
AVX512_TARGET static void add_avx512(const float *restrict row, int64_t size, int64_t *restrict into) {
    const __m512 scale = _mm512_set1_ps((float)SCALE);
    for (int64_t key = 0; key < size; key += 16) {
        const int64_t rest = size - key;
        const __mmask16 some = rest >= 16 ? 0xFFFF : (__mmask16)((1 << rest) - 1);
        const __m512 scaled = _mm512_mul_ps(_mm512_maskz_loadu_ps(some, row + key), scale);
        const __m512i low = _mm512_cvtps_epi64(_mm512_castps512_ps256(scaled));
        const __m512i high = _mm512_cvtps_epi64(_mm512_extractf32x8_ps(scaled, 1));
        const __mmask8 first = (__mmask8)some, second = (__mmask8)(some >> 8);
        const __m512i sum = _mm512_maskz_loadu_epi64(first, into + key), more = _mm512_maskz_loadu_epi64(second, into + key + 8);
        _mm512_mask_storeu_epi64(into + key, first, _mm512_add_epi64(sum, low));
        _mm512_mask_storeu_epi64(into + key + 8, second, _mm512_add_epi64(more, high));
    }
}
/* Totals so far, by lane. */
typedef struct {
    __m512i sums, products; /* with the bits of FINE_MAGIC, which are taken off in the end */
    __m512 least, most;
} Running;
/* Add some of 16 weights to them, and to ``into`` unless it is NULL. */
AVX512_TARGET static inline __attribute__((always_inline)) void add_vector(Running *to, const float *row, int64_t *into,
                                                                           __mmask16 some) {
    const __m512 weights = _mm512_maskz_loadu_ps(some, row);
    to->least = _mm512_mask_min_ps(to->least, some, to->least, weights);
    to->most = _mm512_mask_max_ps(to->most, some, to->most, weights);
    UNROLL(2) for (int half = 0; half < 2; half++) {
        const __m512d wide = _mm512_cvtps_pd(half ? _mm512_extractf32x8_ps(weights, 1) : _mm512_castps512_ps256(weights));
        const __m512i fixed = _mm512_castpd_si512(_mm512_add_pd(wide, _mm512_set1_pd(FINE_MAGIC)));
        const __m512d product = _mm512_fmadd_pd(wide, wide, _mm512_set1_pd(FINE_MAGIC)); /* of two floats it is exact */
        to->sums = _mm512_add_epi64(to->sums, fixed);
        to->products = _mm512_add_epi64(to->products, _mm512_castpd_si512(product));
        if (into) {
            const __mmask8 own = (__mmask8)(some >> 8 * half);
            const __m512i known = _mm512_maskz_loadu_epi64(own, into + 8 * half);
            const __m512i more = _mm512_sub_epi64(fixed, _mm512_set1_epi64(FINE_MAGIC_BITS));
            _mm512_mask_storeu_epi64(into + 8 * half, own, _mm512_add_epi64(known, more));
        }
    }
}
AVX512_TARGET static inline __attribute__((always_inline)) Totals totals_of_avx512(
    const int with_cells, const float *row, int64_t size, int64_t *into) {
    Running all = {_mm512_setzero_si512(), _mm512_setzero_si512(), _mm512_set1_ps(INFINITY), _mm512_set1_ps(-INFINITY)};
    int64_t key = 0;
    for (; key + 16 <= size; key += 16) add_vector(&all, row + key, with_cells ? into + key : NULL, 0xFFFF);
    if (key < size) add_vector(&all, row + key, with_cells ? into + key : NULL, (__mmask16)((1 << (size - key)) - 1));
    /* Taken off before lanes are added: these sums may overflow, and the function that adds lanes must not. */
    const __m512i magic = _mm512_set1_epi64((int64_t)((uint64_t)((size + 15) / 16 * 2) * (uint64_t)FINE_MAGIC_BITS));
    const float small = _mm512_reduce_min_ps(all.least), large = _mm512_reduce_max_ps(all.most);
    Totals totals = {.sum = _mm512_reduce_add_epi64(_mm512_sub_epi64(all.sums, magic)),
                     .squares = _mm512_reduce_add_epi64(_mm512_sub_epi64(all.products, magic))};
    memcpy(&totals.least, &small, sizeof small);
    memcpy(&totals.most, &large, sizeof large);
    return totals;
}
/* The totals of a row's weights, which are added to ``into`` unless it is NULL, in one go. */
AVX512_TARGET static Totals totals_avx512(const float *row, int64_t size, int64_t *into) {
    return into ? totals_of_avx512(1, row, size, into) : totals_of_avx512(0, row, size, NULL);
}
AVX512_TARGET static inline Floats_avx512 values_of_avx512(Ints_avx512 bits, const TableParameters *table) {
    const __m512i all = (__m512i)bits;
    const Floats_avx2 low = values_of_avx2((Ints_avx2)_mm512_castsi512_si256(all), table);
    const Floats_avx2 high = values_of_avx2((Ints_avx2)_mm512_extracti64x4_epi64(all, 1), table);
    return (Floats_avx512)_mm512_insertf32x8(_mm512_castps256_ps512(low), high, 1);
}
AVX512_TARGET static inline int collect_avx512(Ints_avx512 values, int32_t low, int32_t high, int32_t *into) {
    const __m512i all = (__m512i)values;
    const __mmask16 inside = _mm512_cmpgt_epi32_mask(all, _mm512_set1_epi32(low))
        & _mm512_cmple_epi32_mask(all, _mm512_set1_epi32(high));
    _mm512_storeu_si512(into, _mm512_maskz_compress_epi32(inside, all));
    return __builtin_popcount(inside);
}
#define LANES 16
#define ROWS 8
#define WIDE 3
#define WITH_SCORES 6
#define WITH_OUTPUTS 4
#define TARGET AVX512_TARGET
#define NAMED(name) name##_avx512
#define MAXIMUM(a, b) (Floats_avx512)_mm512_max_ps(a, b)
#define MINIMUM(a, b) (Floats_avx512)_mm512_min_ps(a, b)
#define LARGEST(a) _mm512_reduce_max_ps(a)
#define SUM(a) _mm512_reduce_add_ps(a)
#define TOTAL(a) _mm512_reduce_add_epi32((__m512i)(a))
#define TIMES_POWER(value, shifted, power) (Floats_avx512)_mm512_scalef_ps(value, power)
#define COUNT_BELOW(count, a, b)                                                                                       \
    (Ints_avx512)_mm512_mask_add_epi32((__m512i)(count), _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), (__m512i)(count),       \
                                       _mm512_set1_epi32(1))
#define COUNT_ZEROS(count, a)                                                                                          \
    (Ints_avx512)_mm512_mask_add_epi32((__m512i)(count), _mm512_testn_epi32_mask((__m512i)(a), (__m512i)(a)),          \
                                       (__m512i)(count), _mm512_set1_epi32(1))
#define BINS_OF(a) bins_of_avx512(a)
#define PUT_BINS(into, a, b) put_bins_avx512(into, a, b)
#define ADD(row, size, into) add_avx512(row, size, into)
#define TOTALS(row, start, stop, into) totals_avx512((row) + (start), (stop) - (start), into)
#define COLLECT(values, low, high, into) collect_avx512(values, low, high, into)
#define ADD_ABOVE(sums, bits, bars)                                                                                    \
    (Floats_avx512)_mm512_mask_add_ps(                                                                                 \
        sums, _mm512_cmpgt_epi32_mask((__m512i)(bits), (__m512i)(bars)), sums, (__m512)(bits))
#define COUNT_ABOVE(a, b) __builtin_popcount(_mm512_cmp_ps_mask(a, b, _CMP_GT_OQ))
#define SEEN(scores, kept, column, first, after)                                                                       \
    (Floats_avx512)_mm512_mask_mov_ps(                                                                                 \
        _mm512_set1_ps(-INFINITY),                                                                                     \
        (__mmask16)(kept) & _mm512_cmple_epi32_mask((__m512i)(first), _mm512_set1_epi32(column))                       \
            & _mm512_cmpgt_epi32_mask((__m512i)(after), _mm512_set1_epi32(column)), scores)
#define CLEAR(a, b, c) (Floats_avx512)_mm512_maskz_mov_ps(_mm512_cmp_ps_mask(b, c, _CMP_NEQ_UQ), a)
#define UNLESS_BELOW(bits, edge, a, b)                                                                                 \
    (Floats_avx512)_mm512_mask_mov_ps(                                                                                 \
        b, _mm512_cmpge_epi32_mask((__m512i)(bits), _mm512_set1_epi32(edge)), _mm512_set1_ps(a))
#define VALUES_OF(bits, table) values_of_avx512(bits, table)
#define AT_ONCE 8
#define HEIGHT 8
#include "fused.h"
#include "sparse.h"
#endif
#endif

/* The fastest way of this machine. */
static int best_path(void) {
#if defined(FUSED) && defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq")
        && __builtin_cpu_supports("avx512vl"))
        return AVX512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return AVX2;
#endif
#ifdef FUSED
    return PORTABLE;
#else
    return TORCH;
#endif
}

/* Attention and its stats in one go. */
static void attend(const AttendParameters *p) {
#ifdef FUSED
#ifdef __x86_64__
    if (p->path == AVX512) attend_avx512(p);
    else if (p->path == AVX2) attend_avx2(p);
    else
#endif
        attend_portable(p);
#else
    *p->into.failed = 2;
#endif
}

/* Attention that computes only what a plan keeps. */
static void attend_sparse(const SparseParameters *p) {
#ifdef FUSED
#ifdef __x86_64__
    if (p->path == AVX512) attend_sparse_avx512(p);
    else if (p->path == AVX2) attend_sparse_avx2(p);
    else
#endif
        attend_sparse_portable(p);
#else
    *p->failed = 1;
#endif
}

static void look_up_chunk(const int32_t *restrict bits, float *restrict result, int64_t size, const TableParameters *table) {
    for (int64_t place = 0; place < size; place++) result[place] = value_of(bits[place], table);
}

/* The values of a codebook; a piece of work is a chunk of weights. */
static void look_up(const LookUpParameters *p) {
    const TableParameters table = p->table;
    for (int64_t first = claim(p->next) * CHUNK; first < p->size; first = claim(p->next) * CHUNK) {
        const int64_t rest = p->size - first, size = rest < CHUNK ? rest : CHUNK;
        int64_t done = 0;
#if defined(FUSED) && defined(__x86_64__)
        if (best_path() >= AVX2) done = look_up_avx2(p->weights + first, p->result + first, size, &table);
#endif
        look_up_chunk(p->weights + first + done, p->result + first + done, size - done, &table);
    }
}

#include "rows.h"

/* torch's parallel_for gives every thread a range. That only decides how many threads come: the work is in ``next``. */
#define DEFINE_PASS(name, Parameters)                                                                                  \
    static void run_##name(int64_t begin, int64_t end, void *parameters) {                                             \
        (void)begin;                                                                                                   \
        (void)end;                                                                                                     \
        name((const Parameters *)parameters);                                                                          \
    }
DEFINE_PASS(count, CountParameters)
DEFINE_PASS(attend, AttendParameters)
DEFINE_PASS(look_up, LookUpParameters)
DEFINE_PASS(attend_sparse, SparseParameters)
DEFINE_PASS(describe_rows, RowParameters)

/* How the passes are called, and what their parameters mean where the sizes of the structures do not tell; as team.py. */
enum { INTERFACE = 10 };

typedef int32_t (*ParallelFor)(int64_t begin, int64_t end, int64_t grain, void (*run)(int64_t, int64_t, void *), void *);

/* attend_sparse_again(parallel_for, threads, parameters, query, key, value, output): the sparse pass with parameters
 * that lack the addresses of the tensors and counters. All are integers, and what is returned is what parallel_for
 * returned, or -1 where there was no memory. For a short text, to fill a structure in from Python takes longer. */
static PyObject *attend_sparse_again(PyObject *self, PyObject *const *given, Py_ssize_t count) {
    (void)self;
    if (count != 7) return PyErr_Format(PyExc_TypeError, "attend_sparse_again takes 7 arguments, not %zd", count);
    int64_t values[7];
    for (int place = 0; place < 7; place++) values[place] = PyLong_AsLongLong(given[place]);
    if (PyErr_Occurred()) return NULL;
    SparseParameters own = *(const SparseParameters *)(intptr_t)values[2];  /* other threads may attend, too */
    int64_t next = 0, failed = 0;
    own.next = &next;
    own.failed = &failed;
    own.query = (void *)(intptr_t)values[3];
    own.key = (void *)(intptr_t)values[4];
    own.value = (void *)(intptr_t)values[5];
    own.output = (void *)(intptr_t)values[6];
    int32_t result;
    Py_BEGIN_ALLOW_THREADS
    result = ((ParallelFor)(intptr_t)values[0])(0, values[1], 1, run_attend_sparse, &own);
    Py_END_ALLOW_THREADS
    return PyLong_FromLong(failed ? -1 : result);
}

/* Whether a weak reference, or None, is one of an object, or None; -1 where it is neither. */
static int is_of(PyObject *reference, PyObject *object) {
    if (reference == Py_None) return object == Py_None;
#if PY_VERSION_HEX >= 0x030D0000
    PyObject *found = NULL;
    if (PyWeakref_GetRef(reference, &found) < 0) return -1;
    Py_XDECREF(found); /* the model holds the object that it may be */
    return found == object;
#else
    PyObject *const found = PyWeakref_GetObject(reference);
    return found == NULL ? -1 : found == object;
#endif
}

/* same_modules(model, references, leaves): whether the modules of a model, in the order of attention/discover.all_modules,
 * are those that a tuple of weak references (None where a module was left out) is about. Modules of the types in a set are
 * not looked into. */
static PyObject *same_modules(PyObject *self, PyObject *const *given, Py_ssize_t count) {
    (void)self;
    if (count != 3 || !PyTuple_Check(given[1]) || PyTuple_GET_SIZE(given[1]) == 0 || !PyAnySet_Check(given[2]))
        return PyErr_Format(PyExc_TypeError, "same_modules takes a model, a tuple that is not empty and a set");
    const Py_ssize_t expected = PyTuple_GET_SIZE(given[1]);
    PyObject *name = PyUnicode_InternFromString("_modules"), *found = PyList_New(0), *result = NULL;
    if (name == NULL || found == NULL || PyList_Append(found, given[0]) < 0) goto done;
    for (Py_ssize_t place = 0; place < PyList_GET_SIZE(found); place++) {  /* grows meanwhile */
        PyObject *module = PyList_GET_ITEM(found, place);
        const int same = is_of(PyTuple_GET_ITEM(given[1], place), module);
        if (same < 1) {
            if (same == 0) result = Py_NewRef(Py_False);
            goto done;
        }
        if (module == Py_None) continue;
        const int leaf = PySet_Contains(given[2], (PyObject *)Py_TYPE(module));
        if (leaf < 0) goto done;
        if (leaf) continue;
        PyObject *children = PyObject_GetAttr(module, name), *child;
        if (children == NULL) goto done;
        Py_ssize_t position = 0;
        int full = 0;
        while (!full && PyDict_Check(children) && PyDict_Next(children, &position, NULL, &child))
            full = PyList_GET_SIZE(found) == expected ? 1 : PyList_Append(found, child);
        Py_DECREF(children);
        if (full) {
            if (full > 0) result = Py_NewRef(Py_False);
            goto done;
        }
    }
    result = Py_NewRef(PyList_GET_SIZE(found) == expected ? Py_True : Py_False);
done:
    Py_XDECREF(name);
    Py_XDECREF(found);
    return result;
}

static PyMethodDef methods[] = {
    {"attend_sparse_again", (PyCFunction)(void *)attend_sparse_again, METH_FASTCALL, "The sparse pass, once more."},
    {"same_modules", (PyCFunction)(void *)same_modules, METH_FASTCALL, "Whether a model has the modules it had."},
    {NULL, NULL, 0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "_compiled", .m_doc = "The compiled passes, most of them as addresses.",
    .m_size = -1, .m_methods = methods};

PyMODINIT_FUNC PyInit__compiled(void) {
    PyObject *module = PyModule_Create(&definition);
    if (module == NULL) return NULL;
#if defined(FUSED) && defined(__x86_64__)
    list_set_bits();
#endif
    const struct { const char *name; void *address; } passes[] = {
        {"count", (void *)run_count}, {"attend", (void *)run_attend}, {"look_up", (void *)run_look_up},
        {"attend_sparse", (void *)run_attend_sparse}, {"describe_rows", (void *)run_describe_rows}};
    const struct { const char *name; long number; } numbers[] = {
        {"INTERFACE", INTERFACE}, {"BINS", BINS}, {"BEST_PATH", best_path()},
        {"ATTEND_SIZE", sizeof(AttendParameters)}, {"COUNT_SIZE", sizeof(CountParameters)},
        {"SPARSE_SIZE", sizeof(SparseParameters)}, {"LOOK_UP_SIZE", sizeof(LookUpParameters)},
        {"ROWS_SIZE", sizeof(RowParameters)}};
    int failed = 0;
    for (size_t place = 0; place < sizeof passes / sizeof *passes; place++) {
        PyObject *address = PyLong_FromVoidPtr(passes[place].address);
        failed |= address == NULL || PyModule_AddObjectRef(module, passes[place].name, address) < 0;
        Py_XDECREF(address);
    }
    for (size_t place = 0; place < sizeof numbers / sizeof *numbers; place++)
        failed |= PyModule_AddIntConstant(module, numbers[place].name, numbers[place].number) < 0;
    if (failed) Py_CLEAR(module);
    return module;
}
