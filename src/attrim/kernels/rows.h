/* Facts about the rows of weights that are there. team.py says what each field is. */
typedef struct {
    const int32_t *lowest;
    const void *edges;
    int64_t bins, base, top, shift, most;
} BinTable;

typedef struct {
    int64_t *next;
    int64_t path, wide;
    const void *weights;
    const uint8_t *valid;
    int64_t heads, queries, keys, weight_steps[2], valid_steps[2];
    const double *bars;
    int64_t bar_count;
    BinTable table;
    int64_t levels;
    int64_t *sizes, *small;
    int32_t *counts;
    const int32_t *before;
    double *distance;
    int64_t *curves, *sums, *majority, *histogram, *below_uniform;
    double *extremes;
    int64_t *failed;
} RowParameters;

/* Why the facts are not there: weights that are no numbers, no memory, numbers too large for fixed point. */
enum { NO_NUMBERS = 1, NO_MEMORY = 2, TOO_LARGE = 3 };
static const double LARGEST_FIXED = 16384.0;

/* The magnitudes of a row, and the largest bits among them. */
VECTORISED static int32_t magnitudes(const float *restrict row, int64_t size, float *restrict into) {
    int32_t top = 0;
    for (int64_t key = 0; key < size; key++) {
        int32_t bits;
        memcpy(&bits, row + key, sizeof bits);
        bits &= INT32_MAX;
        top = bits > top ? bits : top;
        memcpy(into + key, &bits, sizeof bits);
    }
    return top;
}

/* How many magnitudes are not finite, and how many are too large for fixed point. */
VECTORISED static void magnitudes_of_doubles(const double *restrict row, int64_t size, double *restrict into,
                                             int64_t *infinite, int64_t *large) {
    int64_t none = 0, much = 0;
    for (int64_t key = 0; key < size; key++) {
        const double value = fabs(row[key]);
        none += !(value <= DBL_MAX);
        much += value > LARGEST_FIXED;
        into[key] = value;
    }
    *infinite += none;
    *large += much;
}

/* The bin of every magnitude: how many edges lie below its cell, and how many of the cell's own are not above it. */
VECTORISED static void place_floats(const float *restrict row, int64_t size, const BinTable *table, int32_t *restrict places) {
    const float *restrict edges = table->edges;
    const int32_t *restrict lowest = table->lowest;
    const int32_t base = (int32_t)table->base, top = (int32_t)table->top, shift = (int32_t)table->shift;
    for (int64_t key = 0; key < size; key++) {
        int32_t bits;
        memcpy(&bits, row + key, sizeof bits);
        const int32_t inside = bits < base ? base : bits > top ? top : bits;
        const int32_t code = lowest[(inside - base) >> shift];
        places[key] = code + (row[key] >= edges[code]);
    }
    for (int64_t again = 1; again < table->most; again++)
        for (int64_t key = 0; key < size; key++) places[key] += row[key] >= edges[places[key]];
}

/* The same for doubles, whose cell is that of their upper 32 bits. */
VECTORISED static void place_doubles(const double *restrict row, int64_t size, const BinTable *table, int32_t *restrict places) {
    const double *restrict edges = table->edges;
    const int32_t *restrict lowest = table->lowest;
    const int32_t base = (int32_t)table->base, top = (int32_t)table->top, shift = (int32_t)table->shift;
    for (int64_t key = 0; key < size; key++) {
        int64_t all;
        memcpy(&all, row + key, sizeof all);
        const int32_t bits = (int32_t)(all >> 32), inside = bits < base ? base : bits > top ? top : bits;
        const int32_t code = lowest[(inside - base) >> shift];
        places[key] = code + (row[key] >= edges[code]);
    }
    for (int64_t again = 1; again < table->most; again++)
        for (int64_t key = 0; key < size; key++) places[key] += row[key] >= edges[places[key]];
}

VECTORISED static int64_t count_up_to(const float *restrict row, int64_t size, float bar) {
    int32_t found = 0;
    for (int64_t key = 0; key < size; key++) found += row[key] <= bar;
    return found;
}

VECTORISED static int64_t sum_floats(const float *restrict row, int64_t size) {
    int64_t sum = 0;
    for (int64_t key = 0; key < size; key++) sum += to_fixed(row[key]);
    return sum;
}
VECTORISED static int64_t sum_doubles(const double *restrict row, int64_t size) {
    int64_t sum = 0;
    for (int64_t key = 0; key < size; key++) sum += to_fixed(row[key]);
    return sum;
}

/* Sums in lanes, so that their order is the same on all machines and does not depend on where a row begins. */
enum { SUMS = 8 };
VECTORISED static double distances(const float *restrict row, int64_t size, double from, int squared) {
    double lanes[SUMS] = {0};
    int64_t key = 0;
    if (squared)
        for (; key + SUMS <= size; key += SUMS)
            for (int lane = 0; lane < SUMS; lane++) lanes[lane] += (row[key + lane] - from) * (row[key + lane] - from);
    else
        for (; key + SUMS <= size; key += SUMS)
            for (int lane = 0; lane < SUMS; lane++) lanes[lane] += row[key + lane] - from;
    for (; key < size; key++) lanes[key % SUMS] += squared ? (row[key] - from) * (row[key] - from) : row[key] - from;
    double sum = 0;
    for (int lane = 0; lane < SUMS; lane++) sum += lanes[lane];
    return sum;
}

VECTORISED static void extremes_of(const float *restrict row, int64_t size, float *largest, float *smallest) {
    float high = *largest, low = *smallest;
    for (int64_t key = 0; key < size; key++) {
        high = row[key] > high ? row[key] : high;
        low = row[key] < low ? row[key] : low;
    }
    *largest = high;
    *smallest = low;
}

/* What one thread keeps of the row at work. */
typedef struct {
    void *compact, *magnitudes; /* floats or doubles [keys], with room for a vector more */
    int32_t *places;            /* [keys], with room for a vector more */
    int32_t *counts, *others;   /* [bins] */
    int32_t *level_of;          /* [keys + 1]: the level of so many cells of a row of ``levelled`` */
    int64_t levelled;
    double *logarithms;           /* [2 keys + 1] */
    int32_t *raw;                 /* the tables of a head's histogram */
    int64_t zeros, below;
} RowScratch;

/* The valid weights of a row one after the other: the row itself where they are neighbours, a copy otherwise. */
static const void *valid_weights(const RowParameters *p, RowScratch *s, int64_t head, int64_t query, int64_t *size) {
    const size_t bytes = p->wide ? sizeof(double) : sizeof(float);
    const uint8_t *valid = p->valid + head * p->valid_steps[0] + query * p->valid_steps[1];
    const char *row = (const char *)p->weights + (size_t)(head * p->weight_steps[0] + query * p->weight_steps[1]) * bytes;
    int64_t first = 0, after;
    while (first < p->keys && !valid[first]) first++;
    const uint8_t *end = first < p->keys ? memchr(valid + first, 0, (size_t)(p->keys - first)) : NULL;
    after = end ? end - valid : p->keys;
    if (first >= p->keys) after = first;
    *size = after - first;
    if (after >= p->keys || !memchr(valid + after, 1, (size_t)(p->keys - after))) return row + (size_t)first * bytes;
    int64_t found = 0;
    for (int64_t key = first; key < p->keys; key++)
        if (valid[key]) memcpy((char *)s->compact + (size_t)found++ * bytes, row + (size_t)key * bytes, bytes);
    *size = found;
    return s->compact;
}

/* How many of a row's largest weights exceed half of 1 together; 0 where all of them do not. */
static int64_t majority_of(const RowParameters *p, RowScratch *s, const float *row, int64_t size, int64_t sum) {
#ifdef FUSED
    float *positive = s->magnitudes;
    int32_t most = 0;
    if (sum <= HALF_FIXED) return 0;
    for (int64_t key = 0; key < size; key++) {
        int32_t bits;
        positive[key] = row[key] > 0 ? row[key] : 0;
        memcpy(&bits, positive + key, sizeof bits);
        most = bits > most ? bits : most;
    }
    const int64_t rounded = (size + 15) / 16 * 16;
    for (int64_t key = size; key < rounded; key++) positive[key] = 0;
#ifdef __x86_64__
    if (p->path == AVX512) return majority_avx512(positive, rounded, most, guess_of(entropy_avx512(positive, rounded)), s->places);
    if (p->path == AVX2) return majority_avx2(positive, rounded, most, guess_of(entropy_avx2(positive, rounded)), s->places);
#endif
    return majority_portable(positive, rounded, most, guess_of(entropy_portable(positive, rounded)), s->places);
#else
    *p->failed = TOO_LARGE; /* without the compiler's vectors, which path() says beforehand */
    return 0;
#endif
}

/* Add the share of a row's cells up to each bin, as the nearest of some levels. */
static void add_curve(const RowParameters *p, RowScratch *s, const int32_t *counts, int64_t size, int64_t *into) {
    if (s->levelled != size) {
        for (int64_t cells = 0; cells <= size; cells++)
            s->level_of[cells] = (int32_t)((2 * p->levels * cells + size) / (2 * size));
        s->levelled = size;
    }
    int32_t running = 0;
    for (int64_t bin = 0; bin < p->table.bins; bin++, into += p->levels + 1) into[s->level_of[running += counts[bin]]]++;
}

/* The Jensen-Shannon distance between the histograms of a row before and after an edit, of ``size`` cells each. The
 * divergence is that of a / size from the middle of both, a / size log(2 a / (a + b)), and of b, so equal bins add 0. */
static double distance_of(const RowScratch *s, const int32_t *before, const int32_t *after, int64_t bins, int64_t size) {
    const double *logarithms = s->logarithms;
    double sum = 0;
    for (int64_t bin = 0; bin < bins; bin++) {
        const int32_t a = before[bin], b = after[bin];
        if (a == b) continue;
        if (a) sum += a * (logarithms[2 * a] - logarithms[a + b]);
        if (b) sum += b * (logarithms[2 * b] - logarithms[a + b]);
    }
    return sum > 0 ? sqrt(sum / (2.0 * (double)size)) : 0;
}

/* The facts of one row; what they are about is in ``row``. */
static void describe_row(const RowParameters *p, RowScratch *s, int64_t head, int64_t query, const void *row, int64_t size) {
    const int64_t place = head * p->queries + query;
    const int binned = p->counts || p->curves;
    int64_t infinite = 0, large = 0, sum = 0;
    if (p->sizes) p->sizes[place] = size;
    if (p->wide) magnitudes_of_doubles(row, size, s->magnitudes, &infinite, &large);
    else {
        const int32_t top = magnitudes(row, size, s->magnitudes);
        float largest;
        memcpy(&largest, &top, sizeof largest);
        infinite = top >= NOT_FINITE;
        large = largest > (float)LARGEST_FIXED;
    }
    if (infinite) {
        *p->failed = NO_NUMBERS;
        return;
    }
    if (large && (p->sums || p->majority)) {
        *p->failed = TOO_LARGE;
        return;
    }
    for (int64_t bar = 0; bar < p->bar_count; bar++)
        p->small[place * p->bar_count + bar] = count_up_to(s->magnitudes, size, (float)p->bars[bar]);
    if (binned) {
        int32_t *counts = p->counts ? p->counts + place * p->table.bins : s->counts;
        memset(counts, 0, (size_t)p->table.bins * sizeof *counts);
        if (p->wide) place_doubles(s->magnitudes, size, &p->table, s->places);
        else place_floats(s->magnitudes, size, &p->table, s->places);
        /* Neighbours often share a bin, see TABLES. */
        int64_t key = 0;
        memset(s->others, 0, (size_t)p->table.bins * sizeof *counts);
        for (; key + 2 <= size; key += 2) counts[s->places[key]]++, s->others[s->places[key + 1]]++;
        if (key < size) counts[s->places[key]]++;
        for (int64_t bin = 0; bin < p->table.bins; bin++) counts[bin] += s->others[bin];
        if (p->distance) p->distance[place] = distance_of(s, p->before + place * p->table.bins, counts, p->table.bins, size);
        if (p->curves && size) add_curve(p, s, counts, size, p->curves + head * p->table.bins * (p->levels + 1));
    }
    if (p->histogram) { /* the places of bins.py, which have 16 bits */
        int32_t top = 0;
        sort_row((const int32_t *)s->magnitudes, size, (uint16_t *)s->places, &s->zeros, &s->below, &top);
        fill_tables((const uint16_t *)s->places, size, s->raw);
    }
    if (p->sums || p->majority) sum = p->wide ? sum_doubles(row, size) : sum_floats(row, size);
    if (p->sums) p->sums[place] = sum;
    if (p->majority) p->majority[place] = majority_of(p, s, row, size, sum);
}

/* Largest, smallest, mean and standard deviation of a head's weights; zeros where there are none. */
static void describe_head(const RowParameters *p, RowScratch *s, int64_t head) {
    double *facts = p->extremes + 4 * head, sum = 0, squares = 0;
    float largest = -INFINITY, smallest = INFINITY;
    int64_t cells = 0, size;
    for (int64_t query = 0; query < p->queries; query++) {
        const float *row = valid_weights(p, s, head, query, &size);
        extremes_of(row, size, &largest, &smallest);
        sum += distances(row, size, 0, 0);
        cells += size;
    }
    for (int fact = 0; fact < 4; fact++) facts[fact] = 0;
    if (!cells) return;
    const double mean = sum / (double)cells;
    for (int64_t query = 0; query < p->queries; query++) {
        const float *row = valid_weights(p, s, head, query, &size);
        squares += distances(row, size, mean, 1);
    }
    facts[0] = largest, facts[1] = smallest, facts[2] = mean, facts[3] = sqrt(squares / (double)cells);
}

/* A piece of work is a head, so that what is added up for a head has one thread. */
static void describe_rows(const RowParameters *p) {
    const size_t row = (size_t)(p->keys + 32) * sizeof(double), places = (size_t)(p->keys + 32) * sizeof(int32_t);
    const size_t logarithms = p->distance ? 2 * row : 0, raw = p->histogram ? TABLES * RAW * sizeof(int32_t) : 0;
    char *memory = malloc(2 * row + logarithms + 2 * places + raw + (size_t)(2 * p->table.bins + 1) * sizeof(int32_t));
    if (!memory) {
        *p->failed = NO_MEMORY;
        return;
    }
    char *after = memory + 2 * row + logarithms;
    RowScratch s = {.compact = memory, .magnitudes = memory + row, .logarithms = (double *)(memory + 2 * row),
                    .places = (int32_t *)after, .level_of = (int32_t *)(after + places),
                    .raw = (int32_t *)(after + 2 * places), .counts = (int32_t *)(after + 2 * places + raw), .levelled = -1};
    if (p->distance) for (int64_t number = 1; number <= 2 * p->keys; number++) s.logarithms[number] = log((double)number);
    s.others = s.counts + p->table.bins;
    memset(s.raw, 0, raw);
    for (int64_t head = claim(p->next); head < p->heads; head = claim(p->next)) {
        for (int64_t query = 0; query < p->queries; query++) {
            int64_t size;
            const void *found = valid_weights(p, &s, head, query, &size);
            describe_row(p, &s, head, query, found, size);
        }
        if (p->extremes) describe_head(p, &s, head);
        if (p->histogram) {
            add_tables(s.raw, s.zeros, s.below, p->histogram + head * BINS, p->below_uniform + head);
            memset(s.raw, 0, raw);
            s.zeros = s.below = 0;
        }
    }
    free(memory);
}
