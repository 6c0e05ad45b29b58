/* Facts about the rows of weights that are there. team.py says what each field is. */
typedef struct {
    const int32_t *lowest;
    const void *edges;
    const uint64_t *steps;
    int64_t bins, base, top, shift, most;
} BinTable;

typedef struct {
    int64_t kind, relative_to, renormalize;
    double bar;
    BinTable codes;
    const double *values;
    double *distance;
    int64_t *sums, *shares;
} RowEdit;

typedef struct {
    int64_t *next;
    int64_t path, wide;
    const void *weights;
    const uint8_t *valid;
    int64_t heads, queries, keys, weight_steps[2], valid_steps[2];
    const double *bars;
    int64_t bar_count;
    BinTable table, wide_table;
    int64_t levels;
    const RowEdit *edits;
    int64_t edit_count;
    int64_t *sizes, *small;
    int32_t *counts;
    const int32_t *before;
    double *distance;
    int64_t *curves, *shares, *medians, *sums, *majority, *histogram, *below_uniform;
    double *extremes;
    int64_t *failed;
} RowParameters;

/* Why the facts are not there: weights that are no numbers, no memory, numbers too large for fixed point. */
enum { NO_NUMBERS = 1, NO_MEMORY = 2, TOO_LARGE = 3 };
static const double LARGEST_FIXED = 16384.0;

/* What a row is divided by at least, as in edits/rows.py. */
static const double LEAST_DIVISOR = 1e-12;

/* The magnitudes of a row, and the largest bits among them; whether any number has a sign. */
VECTORISED static int32_t magnitudes(const float *restrict row, int64_t size, float *restrict into, int *negative) {
    int32_t top = 0, signs = 0;
    for (int64_t key = 0; key < size; key++) {
        int32_t bits;
        memcpy(&bits, row + key, sizeof bits);
        signs |= bits;
        bits &= INT32_MAX;
        top = bits > top ? bits : top;
        memcpy(into + key, &bits, sizeof bits);
    }
    *negative = signs < 0;
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

/* The cell of every number in a table of bins; that of a double is the cell of its upper 32 bits. */
ALWAYS_INLINE static void find_cells(const int wide, const void *restrict row, int64_t size, const BinTable *table,
                                     int32_t *restrict cells) {
    const int32_t base = (int32_t)table->base, top = (int32_t)table->top, shift = (int32_t)table->shift;
    for (int64_t key = 0; key < size; key++) {
        const int32_t bits = wide ? (int32_t)(((const int64_t *)row)[key] >> 32) : ((const int32_t *)row)[key];
        const int32_t inside = bits < base ? base : bits > top ? top : bits;
        cells[key] = (inside - base) >> shift;
    }
}

/* From cells to bins: how many edges lie below a cell, and how many of its ``most`` own edges are not above the number.
 * Bits of numbers that are not negative are ordered as they are, and those of the last edge, NaN, are out of reach;
 * negative numbers are in the first bin. */
ALWAYS_INLINE static void find_bins(const int wide, const int64_t most, const void *restrict row, int64_t size,
                                    const BinTable *table, int32_t *restrict places) {
    const int32_t *restrict lowest = table->lowest;
    const void *restrict edges = table->edges;
    for (int64_t key = 0; key < size; key++) {
        int32_t place = lowest[places[key]];
        for (int64_t again = 0; again < most; again++)
            place += wide ? ((const int64_t *)row)[key] >= ((const int64_t *)edges)[place]
                          : ((const int32_t *)row)[key] >= ((const int32_t *)edges)[place];
        places[key] = place;
    }
}

/* The bin of every number. */
VECTORISED static void places_of_floats(const float *row, int64_t size, const BinTable *table, int32_t *places) {
    find_cells(0, row, size, table, places);
    if (table->most == 1) find_bins(0, 1, row, size, table, places);
    else find_bins(0, table->most, row, size, table, places);
}
VECTORISED static void cells_of_floats(const float *row, int64_t size, const BinTable *table, int32_t *cells) {
    find_cells(0, row, size, table, cells);
}
VECTORISED static void places_of_doubles(const double *row, int64_t size, const BinTable *table, int32_t *places) {
    find_cells(1, row, size, table, places);
    if (table->most == 1) find_bins(1, 1, row, size, table, places);
    else find_bins(1, table->most, row, size, table, places);
}

VECTORISED static void add_counts(const int32_t *restrict tables, int64_t bins, int32_t *restrict counts) {
    for (int64_t bin = 0; bin < bins; bin++)
        counts[bin] = (tables[bin] + tables[bins + bin]) + (tables[2 * bins + bin] + tables[3 * bins + bin]);
}

/* Add counts, each times the share of a whole that a number has. */
VECTORISED static void add_shares(const int32_t *restrict counts, int64_t bins, int64_t share, int64_t *restrict into) {
    for (int64_t bin = 0; bin < bins; bin++) into[bin] += counts[bin] * share;
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

VECTORISED static int64_t count_above(const float *restrict row, int64_t size, float bar) {
    int32_t found = 0;
    for (int64_t key = 0; key < size; key++) found += row[key] > bar;
    return found;
}

/* The sum of the numbers above a bar. A mask in place of a choice, which compilers turn into a branch. */
VECTORISED static int64_t sum_above(const float *restrict row, int64_t size, float bar) {
    int64_t sum = 0;
    for (int64_t key = 0; key < size; key++) sum += to_fixed(row[key]) & -(int64_t)(row[key] > bar);
    return sum;
}

VECTORISED static void keep_above(const float *restrict row, int64_t size, float bar, double *restrict into) {
    for (int64_t key = 0; key < size; key++) {
        const int32_t bits = ((const int32_t *)row)[key] & -(row[key] > bar); /* see sum_above */
        float kept;
        memcpy(&kept, &bits, sizeof kept);
        into[key] = kept;
    }
}

VECTORISED static void divide_by(double *restrict row, int64_t size, double mass) {
    for (int64_t key = 0; key < size; key++) row[key] /= mass;
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

VECTORISED static double mass_of(const double *restrict row, int64_t size) {
    double lanes[SUMS] = {0}, sum = 0;
    int64_t key = 0;
    for (; key + SUMS <= size; key += SUMS)
        for (int lane = 0; lane < SUMS; lane++) lanes[lane] += fabs(row[key + lane]);
    for (; key < size; key++) lanes[key % SUMS] += fabs(row[key]);
    for (int lane = 0; lane < SUMS; lane++) sum += lanes[lane];
    return sum;
}

/* In lanes, because compilers do not reorder comparisons of floats, which then wait for one another. */
enum { EXTREMES = 16 };
VECTORISED static void extremes_of(const float *restrict row, int64_t size, float *largest, float *smallest) {
    float high[EXTREMES], low[EXTREMES];
    int64_t key = 0;
    for (int lane = 0; lane < EXTREMES; lane++) high[lane] = *largest, low[lane] = *smallest;
    for (; key + EXTREMES <= size; key += EXTREMES)
        for (int lane = 0; lane < EXTREMES; lane++) {
            const float number = row[key + lane];
            high[lane] = number > high[lane] ? number : high[lane];
            low[lane] = number < low[lane] ? number : low[lane];
        }
    for (; key < size; key++) {
        high[0] = row[key] > high[0] ? row[key] : high[0];
        low[0] = row[key] < low[0] ? row[key] : low[0];
    }
    for (int lane = 0; lane < EXTREMES; lane++) {
        *largest = high[lane] > *largest ? high[lane] : *largest;
        *smallest = low[lane] < *smallest ? low[lane] : *smallest;
    }
}

/* What one thread keeps of the row at work. */
typedef struct {
    void *compact, *magnitudes; /* floats or doubles [keys], with room for a vector more */
    double *edited;             /* [keys] */
    int32_t *places;            /* [keys], with room for a vector more */
    int32_t *counts, *after;    /* [bins]: of the row, and of what an edit made of it */
    int32_t *tables;            /* [TABLES, bins] */
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

/* How many of a row's largest weights exceed half of 1 together; 0 where all of them do not. The row's magnitudes stand in
 * for its weights unless some are negative. */
static int64_t majority_of(const RowParameters *p, RowScratch *s, const float *row, int64_t size, int64_t sum, int negative) {
#ifdef FUSED
    float *positive = s->magnitudes;
    if (sum <= HALF_FIXED) return 0;
    if (negative)
        for (int64_t key = 0; key < size; key++) positive[key] = row[key] > 0 ? row[key] : 0;
    const int64_t rounded = (size + 15) / 16 * 16;
    for (int64_t key = size; key < rounded; key++) positive[key] = 0;
    float squares;
#define SEARCH(path)                                                                                                   \
    const double entropy = entropy_##path(positive, rounded, &squares);                                               \
    Search search;                                                                                                     \
    set_up(&search, positive, rounded, entropy, squares, s->places);                                                   \
    return majorities_##path(&search, 1)
#ifdef __x86_64__
    if (p->path == AVX512) { SEARCH(avx512); }
    if (p->path == AVX2) { SEARCH(avx2); }
#endif
    SEARCH(portable);
#undef SEARCH
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

/* How many magnitudes are in each bin. They are counted when the bins of all are known, because a processor does not look
 * far ahead of a store whose address it does not know. Neighbours often share a bin, see TABLES. */
static void count_bins(const int wide, const BinTable *table, const void *row, int64_t size, RowScratch *s, int32_t *counts) {
    const int64_t bins = table->bins;
    const int32_t *restrict places = s->places;
    int32_t *restrict tables = s->tables;
    int64_t key = 0;
    memset(tables, 0, (size_t)(TABLES * bins) * sizeof *tables);
    if (table->steps && !wide) {
        /* The bits of a number carry into the bin where they reach the edge. Processors gather the parts of a vector one
         * by one, so a load for each number is no slower, and its bin need not be written down. */
        const uint32_t *restrict bits = row;
        const uint64_t *restrict steps = table->steps;
        cells_of_floats(row, size, table, s->places);
        for (; key + TABLES <= size; key += TABLES)
            for (int some = 0; some < TABLES; some++)
                tables[some * bins + (int64_t)((steps[places[key + some]] + bits[key + some]) >> 32)]++;
        for (; key < size; key++) tables[(steps[places[key]] + bits[key]) >> 32]++;
    } else {
        if (wide) places_of_doubles(row, size, table, s->places);
        else places_of_floats(row, size, table, s->places);
        for (; key + TABLES <= size; key += TABLES)
            for (int some = 0; some < TABLES; some++) tables[some * bins + places[key + some]]++;
        for (; key < size; key++) tables[places[key]]++;
    }
    add_counts(tables, bins, counts);
}

/* The first bin at which half of the numbers are reached. */
static int64_t median_of(const int32_t *counts, int64_t size) {
    int64_t bin = 0;
    for (int64_t running = counts[0]; 2 * running < size; running += counts[++bin]) {}
    return bin;
}

/* The Jensen-Shannon distance between the histograms of a row before and after an edit, of ``size`` cells each. The
 * divergence is that of a / size from the middle of both, a / size log(2 a / (a + b)), and of b, so equal bins add 0. */
static double distance_of(const RowScratch *s, const int32_t *before, const int32_t *after, int64_t bins, int64_t size) {
    const double *logarithms = s->logarithms;
    int32_t *differing = s->tables; /* listed first, because which bins differ is hard to predict */
    int64_t found = 0;
    double sum = 0;
    for (int64_t bin = 0; bin < bins; bin++) {
        differing[found] = (int32_t)bin;
        found += before[bin] != after[bin];
    }
    for (int64_t place = 0; place < found; place++) {
        const int32_t a = before[differing[place]], b = after[differing[place]];
        sum += a * (logarithms[2 * a] - logarithms[a + b]); /* 0 for an empty bin */
        sum += b * (logarithms[2 * b] - logarithms[a + b]);
    }
    return sum > 0 ? sqrt(sum / (2.0 * (double)size)) : 0;
}

/* The bar of an edit in a row, computed in doubles and rounded down: the same floats are above it. */
static float bar_of(const RowParameters *p, const RowEdit *edit, const float *row, int64_t size) {
    if (edit->bar == 0) return -INFINITY; /* keeps negative numbers, too */
    double bar = edit->bar;
    if (edit->relative_to == OF_UNIFORM) bar /= (double)size;
    if (edit->relative_to == OF_ROW_MAXIMUM) {
        float most = size < p->keys ? 0 : row[0], least = most; /* cells that do not count are 0 */
        extremes_of(row, size, &most, &least);
        bar *= most;
    }
    const float near = (float)bar;
    return near > bar ? nextafterf(near, -INFINITY) : near;
}

/* What a bar leaves of a histogram: ``kept`` numbers are above the bar, which is in bin ``own``. The others become 0. */
static void keep_counts(const int32_t *restrict counts, int64_t bins, int64_t size, int64_t kept, int32_t own,
                        int32_t *restrict after) {
    int64_t rest = kept;
    for (int64_t bin = own + 1; bin < bins; bin++) rest -= after[bin] = counts[bin];
    for (int64_t bin = 0; bin < own; bin++) after[bin] = 0;
    after[own] = (int32_t)rest;
    after[0] += (int32_t)(size - kept);
}

/* What an edit makes of a row, in doubles. */
static void edit_numbers(const RowEdit *edit, RowScratch *s, const float *row, int64_t size, float bar) {
    if (edit->kind == KEEP_ABOVE) keep_above(row, size, bar, s->edited);
    else {
        places_of_floats(row, size, &edit->codes, s->places);
        for (int64_t key = 0; key < size; key++) s->edited[key] = edit->values[s->places[key]];
    }
    if (edit->renormalize) {
        const double mass = mass_of(s->edited, size);
        divide_by(s->edited, size, mass > LEAST_DIVISOR ? mass : LEAST_DIVISOR);
    }
}

/* The facts of what an edit makes of a row, whose own counts are in ``counts``. */
static void describe_edited(const RowParameters *p, RowScratch *s, const RowEdit *edit, int64_t head, int64_t place,
                            const float *row, int64_t size, int negative, const int32_t *counts) {
    const int64_t bins = p->table.bins;
    edit->sums[place] = 0, edit->distance[place] = 0;
    if (!size) return;
    const float bar = edit->kind == KEEP_ABOVE ? bar_of(p, edit, row, size) : 0;
    if (edit->kind == KEEP_ABOVE && !edit->renormalize && !negative) {
        /* Numbers stay or become 0, so the histogram is known without another look at them. */
        int32_t own;
        places_of_floats(&bar, 1, &p->table, &own);
        edit->sums[place] = sum_above(row, size, bar);
        keep_counts(counts, bins, size, count_above(row, size, bar), own, s->after);
    } else {
        edit_numbers(edit, s, row, size, bar);
        edit->sums[place] = sum_doubles(s->edited, size);
        for (int64_t key = 0; key < size; key++) s->edited[key] = fabs(s->edited[key]);
        count_bins(1, &p->wide_table, s->edited, size, s, s->after);
    }
    edit->distance[place] = distance_of(s, counts, s->after, bins, size);
    add_shares(s->after, bins, ONE_FIXED / size, edit->shares + head * bins);
}

/* The facts of one row; what they are about is in ``row``. */
static void describe_row(const RowParameters *p, RowScratch *s, int64_t head, int64_t query, const void *row, int64_t size) {
    const int64_t place = head * p->queries + query;
    const int64_t bins = p->table.bins;
    int negative = 0;
    int32_t top = 0;
    int64_t infinite = 0, large = 0, sum = 0;
    if (p->sizes) p->sizes[place] = size;
    if (p->wide) magnitudes_of_doubles(row, size, s->magnitudes, &infinite, &large);
    else {
        top = magnitudes(row, size, s->magnitudes, &negative);
        float largest;
        memcpy(&largest, &top, sizeof largest);
        infinite = top >= NOT_FINITE;
        large = largest > (float)LARGEST_FIXED;
    }
    if (infinite) {
        *p->failed = NO_NUMBERS;
        return;
    }
    if (large && (p->sums || p->majority || p->edit_count)) {
        *p->failed = TOO_LARGE;
        return;
    }
    for (int64_t bar = 0; bar < p->bar_count; bar++)
        p->small[place * p->bar_count + bar] = count_up_to(s->magnitudes, size, (float)p->bars[bar]);
    if (bins) {
        int32_t *counts = p->counts ? p->counts + place * bins : s->counts;
        count_bins(p->wide != 0, &p->table, s->magnitudes, size, s, counts);
        if (p->distance) p->distance[place] = distance_of(s, p->before + place * bins, counts, bins, size);
        if (p->curves && size) add_curve(p, s, counts, size, p->curves + head * bins * (p->levels + 1));
        if (p->shares && size) add_shares(counts, bins, ONE_FIXED / size, p->shares + head * bins);
        if (p->medians && size) p->medians[head * bins + median_of(counts, size)]++;
        for (int64_t edit = 0; edit < p->edit_count; edit++)
            describe_edited(p, s, p->edits + edit, head, place, row, size, negative, counts);
    }
    if (p->histogram) { /* the places of bins.py, which have 16 bits */
        int32_t top = 0;
        sort_row((const int32_t *)s->magnitudes, size, (uint16_t *)s->places, &s->zeros, &s->below, &top);
        fill_tables((const uint16_t *)s->places, size, s->raw);
    }
    if (p->sums || p->majority) sum = p->wide ? sum_doubles(row, size) : sum_floats(row, size);
    if (p->sums) p->sums[place] = sum;
    if (p->majority) p->majority[place] = majority_of(p, s, row, size, sum, negative);
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
    const int compares = p->distance || p->edit_count;
    const size_t logarithms = compares ? 2 * row : 0, raw = p->histogram ? TABLES * RAW * sizeof(int32_t) : 0;
    const size_t bins = (size_t)p->table.bins * sizeof(int32_t);
    char *memory = malloc(3 * row + logarithms + 2 * places + raw + (2 + TABLES) * bins);
    if (!memory) {
        *p->failed = NO_MEMORY;
        return;
    }
    char *integers = memory + 3 * row + logarithms, *counts = integers + 2 * places + raw;
    RowScratch s = {.compact = memory, .magnitudes = memory + row, .edited = (double *)(memory + 2 * row),
                    .logarithms = (double *)(memory + 3 * row), .places = (int32_t *)integers,
                    .level_of = (int32_t *)(integers + places), .raw = (int32_t *)(integers + 2 * places),
                    .counts = (int32_t *)counts, .after = (int32_t *)(counts + bins),
                    .tables = (int32_t *)(counts + 2 * bins), .levelled = -1};
    for (int64_t number = 0; compares && number <= 2 * p->keys; number++)
        s.logarithms[number] = number ? log((double)number) : 0; /* of 0 it only meets the factor 0 */
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
