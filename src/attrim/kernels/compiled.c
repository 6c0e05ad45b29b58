/* The compiled passes over attention weights. Each is a function of one pointer to its parameters that any number of
 * threads may run at once: they take pieces of work from a shared counter, ``next``, until none is left.
 *
 * The meaning is that of the plain versions in torch; tests compare the results bit for bit. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* The inner loops are compiled for several instruction sets, and the loader takes the best that the machine has. */
#if defined(__GLIBC__) && defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define VECTORISED __attribute__((target_clones("avx512f", "avx2", "default"), noinline))
#else
#define VECTORISED
#endif

/* The bins of stats/bins.py. */
enum { SHIFT = 18, ONE_BITS = 127 << 23, NOT_FINITE = 0x7F800000, FIRST_NORMAL = 32, ZERO = 0, UNDERFLOW_BIN = 1,
       NORMAL = 2, RAW = (ONE_BITS >> SHIFT) + 1, BINS = RAW - FIRST_NORMAL + NORMAL };
/* The fixed point of stats/integers.py. Adding MAGIC puts the rounded integer into the low bits of the double. */
static const double SCALE = 68719476736.0, MAGIC = 6755399441055744.0;
static const int64_t MAGIC_BITS = 0x4338000000000000;

/* Neighbours often share a bin, and adding to it twice in a row waits for memory: several tables take turns. */
enum { TABLES = 4, CHUNK = 1 << 15 };

/* team.py has the same structures for Python and says what each field is. */
typedef struct {
    int64_t *next;
    const float *weights;
    int64_t examples, heads, queries, keys;
    const int64_t *start, *stop;
    int64_t *counts;
    const int64_t *counts_row;
    int64_t *below_uniform, *sums;
    const int64_t *sums_row;
    int64_t sums_queries, sums_keys;
    int64_t *cells;
    const int64_t *query_slot, *key_slot;
    int64_t *failed;
} CountParameters;

typedef struct {
    int64_t *next;
    const int32_t *weights;
    float *result;
    int64_t size;
    const uint16_t *lowest;
    const int32_t *edges;
    const float *values;
    int64_t base, top, shift;
} LookUpParameters;

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

VECTORISED static void add_row(const float *restrict row, int64_t size, int64_t *restrict into) {
    for (int64_t key = 0; key < size; key++) {
        const double shifted = (double)row[key] * SCALE + MAGIC;
        int64_t fixed;
        memcpy(&fixed, &shifted, sizeof fixed);
        into[key] += fixed - MAGIC_BITS;
    }
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

static void add_tables(const int32_t *raw, int64_t zeros, int64_t *counts) {
    int64_t tiny = 0;
    for (int place = 0; place < RAW; place++) {
        const int64_t found = (int64_t)raw[place] + raw[RAW + place] + raw[2 * RAW + place] + raw[3 * RAW + place];
        if (place < FIRST_NORMAL) tiny += found;
        else counts[place - FIRST_NORMAL + NORMAL] += found;
    }
    counts[ZERO] += zeros;
    counts[UNDERFLOW_BIN] += tiny - zeros;
}

static void count_cells(const CountParameters *p) {
    for (int64_t example = 0; example < p->examples; example++)
        for (int64_t query = 0; query < p->queries; query++) {
            const int64_t place = example * p->queries + query;
            int64_t *into = p->cells + (query + p->query_slot[example]) * p->sums_keys + p->key_slot[example];
            for (int64_t key = p->start[place]; key < p->stop[place]; key++) into[key]++;
        }
}

/* Bins and Cells in one pass; a piece of work is a head, and after the last head the counts of cells. */
static void count(const CountParameters *p) {
    const int64_t queries = p->queries, height = p->sums_queries, width = p->sums_keys;
    uint16_t *places = malloc((size_t)(p->keys > 0 ? p->keys : 1) * sizeof *places);
    int32_t *raw = malloc(TABLES * RAW * sizeof *raw);
    if (!places || !raw) *p->failed = 2;
    else for (;;) {
        const int64_t head = claim(p->next);
        if (head > p->heads) break;
        if (head == p->heads) {
            if (p->cells) count_cells(p);
            continue;
        }
        int64_t *counts = p->counts_row[head] < 0 ? NULL : p->counts + p->counts_row[head] * BINS;
        int64_t *sums = p->sums_row[head] < 0 ? NULL : p->sums + p->sums_row[head] * height * width;
        int64_t zeros = 0, below = 0;
        int32_t largest = 0;
        memset(raw, 0, TABLES * RAW * sizeof *raw);
        for (int64_t example = 0; example < p->examples; example++)
            for (int64_t query = 0; query < queries; query++) {
                const int64_t place = example * queries + query, first = p->start[place], size = p->stop[place] - first;
                if (size <= 0) continue;
                const float *row = p->weights + ((example * p->heads + head) * queries + query) * p->keys + first;
                sort_row((const int32_t *)row, size, places, &zeros, &below, &largest);
                if (counts) fill_tables(places, size, raw);
                if (sums) add_row(row, size, sums + (query + p->query_slot[example]) * width + first + p->key_slot[example]);
            }
        if (largest >= NOT_FINITE) *p->failed = 1;
        if (counts) {
            add_tables(raw, zeros, counts);
            p->below_uniform[p->counts_row[head]] += below;
        }
    }
    free(places);
    free(raw);
}

VECTORISED static void look_up_chunk(const int32_t *restrict bits, float *restrict result, int64_t size,
                                     const uint16_t *restrict lowest, const int32_t *restrict edges,
                                     const float *restrict values, int32_t base, int32_t top, int32_t shift) {
    for (int64_t place = 0; place < size; place++) {
        const int32_t value = bits[place];
        const int32_t inside = value < base ? base : value > top ? top : value;
        const int32_t code = lowest[(inside - base) >> shift];
        result[place] = values[code + (value >= edges[code])];
    }
}

/* The values of a codebook; a piece of work is a chunk of weights. */
static void look_up(const LookUpParameters *p) {
    for (int64_t first = claim(p->next) * CHUNK; first < p->size; first = claim(p->next) * CHUNK) {
        const int64_t rest = p->size - first;
        look_up_chunk(p->weights + first, p->result + first, rest < CHUNK ? rest : CHUNK, p->lowest, p->edges, p->values,
                      (int32_t)p->base, (int32_t)p->top, (int32_t)p->shift);
    }
}

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "_compiled", .m_doc = "Addresses of the compiled passes.", .m_size = -1};

PyMODINIT_FUNC PyInit__compiled(void) {
    PyObject *module = PyModule_Create(&definition);
    if (module == NULL) return NULL;
    PyModule_AddObject(module, "count", PyLong_FromVoidPtr((void *)count));
    PyModule_AddObject(module, "look_up", PyLong_FromVoidPtr((void *)look_up));
    PyModule_AddIntConstant(module, "BINS", BINS);
    PyModule_AddIntConstant(module, "COUNT_SIZE", sizeof(CountParameters));
    PyModule_AddIntConstant(module, "LOOK_UP_SIZE", sizeof(LookUpParameters));
    return module;
}
