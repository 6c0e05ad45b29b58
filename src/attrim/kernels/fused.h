/* Scores, softmax, edits, counts and output in one go; compiled.c includes this file once for each instruction set.
 *
 * A piece of work is some heads of some examples (attend.py says how they are chosen). Keys and values of an example are
 * packed into panels of a few vectors' width. A block of queries is then multiplied by tiles that stay in registers, and
 * its weights are normalised, counted and multiplied by the values before they leave the cache nearest to the core.
 *
 * Asks for: LANES (floats in a vector), ROWS (rows of a tile), WIDE (vectors of a tile's row), TARGET (attributes of a
 * function), NAMED(name), MAXIMUM(a, b), which gives b where either is NaN, UNLESS_BELOW(bits, edge, a, b), which gives a
 * where bits are not below the edge and b elsewhere, VALUES_OF(bits, table), the values of a codebook, COLLECT(bits, low,
 * high, into), which writes a vector that begins with the bits above low and not above high and gives how many they are,
 * ADD_ABOVE(sums, bits, bars), which adds the floats that are above the bars, and COUNT_ABOVE(a, b), the number of lanes in
 * which a is above b, COUNT_BELOW(counts, a, b) and COUNT_ZEROS(counts, a), which add 1 to the lanes in which a is below b
 * or all its bits are 0, BINS_OF(weights), their raw bins as Shorts, and PUT_BINS(into, a, b), which writes those of two
 * vectors in any order. WITH_SCORES and WITH_OUTPUTS bins are counted with every row of keys and of values, so many that
 * both together count all and the arithmetic units do not wait. TOTALS(row, start, stop, into) is optional. sparse.h
 * undefines them. */

enum { NAMED(BLOCK) = 2 * ROWS };
#define BLOCK NAMED(BLOCK)
#define FLOATS NAMED(Floats)
#define INTS NAMED(Ints)
#define SHORTS NAMED(Shorts)
#define EACH_ROW UNROLL(8) for (int row = 0; row < ROWS; row++)
#define EACH_VECTOR(wide) UNROLL(4) for (int vector = 0; vector < (wide); vector++)

/* ROWS x wide vectors of ``left x right``: right has ``depth`` rows of ``panel`` floats, left a row for each result.
 *
 * Multiplying leaves room for other instructions, so that ``each`` of the bins that wait are counted with every row of
 * right, as long as there are so many. */
TARGET static inline __attribute__((always_inline)) void NAMED(multiply)(
    const int wide, const int each, const float *left, int64_t left_step, const float *right, int64_t panel, int64_t depth,
    float *into, int64_t into_step, Queue *queue) {
    FLOATS sums[ROWS][WIDE];
    EACH_ROW EACH_VECTOR(wide) sums[row][vector] = (FLOATS){0};
    const int64_t enough = (queue->stop - queue->start) / each, both = enough < depth ? enough : depth;
    const uint16_t *bins = queue->bins + queue->start;
    int32_t *tables = queue->tables;
    queue->start += both * each;
    /* Every fourth row has a pointer, and the compiler may not make one for each: so many do not fit into the registers. */
    const char *fourth[(ROWS + 3) / 4];
    int64_t bytes = left_step * (int64_t)sizeof *left, thrice = 3 * bytes;
    UNROLL(2) for (int row = 0; row < ROWS; row += 4) fourth[row / 4] = (const char *)(left + row * left_step);
    UNROLL(2) for (int counting = 1; counting >= 0; counting--)
        for (const float *end = right + (counting ? both : depth - both) * panel; right < end; right += panel) {
            FLOATS next[WIDE];
            EACH_VECTOR(wide) next[vector] = *(const FLOATS *)(right + vector * LANES);
            __asm__("" : "+r"(bytes), "+r"(thrice));
            EACH_ROW {
                const float factor = *(const float *)(fourth[row / 4] + (row % 4 == 3 ? thrice : row % 4 * bytes));
                EACH_VECTOR(wide) sums[row][vector] += factor * next[vector];
            }
            UNROLL(2) for (int row = 0; row < ROWS; row += 4) fourth[row / 4] += sizeof *left;
            if (!counting) continue;
            UNROLL(8) for (int some = 0; some < each; some++) tables[some % TABLES * RAW + bins[some]]++;
            bins += each;
        }
    EACH_ROW EACH_VECTOR(wide) *(FLOATS *)(into + row * into_step + vector * LANES) = sums[row][vector];
}

/* The same for ``wide`` known at run time, 1 to WIDE. */
TARGET static inline __attribute__((always_inline)) void NAMED(tile)(
    int64_t wide, const int each, const float *left, int64_t left_step, const float *right, int64_t panel, int64_t depth,
    float *into, int64_t into_step, Queue *queue) {
    if (wide == 1) NAMED(multiply)(1, each, left, left_step, right, panel, depth, into, into_step, queue);
    else if (wide == 2) NAMED(multiply)(2, each, left, left_step, right, panel, depth, into, into_step, queue);
    else NAMED(multiply)(WIDE, each, left, left_step, right, panel, depth, into, into_step, queue);
}

/* exp of numbers from -104 to 0, to about one unit in the last place; NaN stays NaN. */
TARGET static inline __attribute__((always_inline)) FLOATS NAMED(exponential)(FLOATS x) {
    const float to_integer = 12582912.0f; /* 1.5 * 2^23: adding it leaves the rounded number in the low bits */
    const FLOATS shifted = x * 1.44269504f + to_integer, power = shifted - to_integer;
    const FLOATS rest = (x - power * 0.693145751953125f) - power * 1.42860677e-6f;
    /* The coefficients minimise the relative error on +-ln(2) / 2, which is 3e-9. */
    FLOATS high = rest * 1.3814467e-3f + 8.368781e-3f;
    high = high * rest + 4.1668393e-2f;
    high = high * rest + 1.666652e-1f;
    high = high * rest + 4.9999994e-1f;
    const FLOATS result = (high * rest) * rest + rest + 1.0f;
    return TIMES_POWER(result, shifted, power);
}

/* Replace scores by exp(score - their maximum); gives the sum and, unless ``product`` is NULL, the sum of exponentials
 * times their exponents. Meanwhile the sums by cell that begin at ``ahead``, unless it is NULL, come nearer to the core.
 * ``size`` is a multiple of LANES. */
TARGET static float NAMED(exponentiate)(float *restrict row, int64_t size, float *product, const int64_t *ahead) {
    const FLOATS lowest = (FLOATS){0} - 104.0f; /* exp is 0 from here on */
    FLOATS most = *(FLOATS *)row, also = most, sums = (FLOATS){0}, products = (FLOATS){0};
    int64_t key = 0;
    for (; key + 2 * LANES <= size; key += 2 * LANES) {
        most = MAXIMUM(most, *(FLOATS *)(row + key));
        also = MAXIMUM(also, *(FLOATS *)(row + key + LANES));
    }
    if (key < size) most = MAXIMUM(most, *(FLOATS *)(row + key));
    const float largest = LARGEST(MAXIMUM(most, also));
    for (key = 0; key < size; key += LANES) {
        if (ahead) fetch(ahead + key, LANES * sizeof *ahead);
        const FLOATS exponent = MAXIMUM(lowest, *(FLOATS *)(row + key) - largest);
        const FLOATS weights = NAMED(exponential)(exponent);
        *(FLOATS *)(row + key) = weights;
        sums += weights;
        if (product) products += weights * exponent;
    }
    if (product) *product = SUM(products);
    return SUM(sums);
}

/* Multiply by a factor. */
TARGET static void NAMED(scale)(float *restrict row, int64_t size, float factor) {
    for (int64_t key = 0; key < size; key += LANES) *(FLOATS *)(row + key) *= factor;
}

/* The same for a vector; how many weights are below the bar, and how many are 0, is added to two sums. */
TARGET static inline __attribute__((always_inline)) FLOATS NAMED(scale_vector)(float *from, float factor, FLOATS bar,
                                                                                INTS *below, INTS *zeros) {
    const FLOATS weights = *(FLOATS *)from * factor;
    *(FLOATS *)from = weights;
    *below = COUNT_BELOW(*below, weights, bar);
    *zeros = COUNT_ZEROS(*zeros, weights);
    return weights;
}

/* The same for a row, and list the raw bins of its weights, in any order. */
TARGET static void NAMED(scale_and_sort)(float *restrict row, int64_t size, float factor, float uniform,
                                         uint16_t *restrict bins, INTS *below, INTS *zeros) {
    const FLOATS bar = (FLOATS){0} + uniform;
    INTS small = *below, none = *zeros;
    int64_t key = 0;
    for (; key + 2 * LANES <= size; key += 2 * LANES) {
        const FLOATS weights = NAMED(scale_vector)(row + key, factor, bar, &small, &none);
        PUT_BINS(bins + key, weights, NAMED(scale_vector)(row + key + LANES, factor, bar, &small, &none));
    }
    if (key < size) *(SHORTS *)(bins + key) = BINS_OF(NAMED(scale_vector)(row + key, factor, bar, &small, &none));
    *below = small, *zeros = none;
}

/* The edits of a row: its weights are ``row`` times a factor, and what each edit gives is kept in the same way, so that
 * dividing costs no pass of its own. ``size`` is a multiple of LANES. */

/* Zero what is not above the bar, ``cells`` being the keys of the row; gives the sum of the rest. */
TARGET static float NAMED(keep_above)(const EditParameters *edit, float *restrict row, int64_t size, int64_t cells,
                                      float factor) {
    float level = (float)edit->bar;
    FLOATS most = (FLOATS){0}, masses = (FLOATS){0};
    if (edit->relative_to == OF_UNIFORM) level /= (float)cells;
    if (edit->relative_to == OF_ROW_MAXIMUM) {
        for (int64_t key = 0; key < size; key += LANES) most = MAXIMUM(*(FLOATS *)(row + key), most);
        level *= LARGEST(most) * factor;
    }
    for (int64_t key = 0; key < size; key += LANES) {
        const FLOATS weights = *(FLOATS *)(row + key) * factor, kept = (FLOATS)((weights > level) & (INTS)weights);
        *(FLOATS *)(row + key) = kept;
        masses += kept;
    }
    return SUM(masses);
}

/* Replace weights by the values of a codebook; gives their sum. */
TARGET static float NAMED(replace)(const EditParameters *edit, float *restrict row, int64_t size, float factor) {
    const TableParameters table = edit->table;
    FLOATS masses = (FLOATS){0};
    for (int64_t key = 0; key < size; key += LANES) {
        const INTS bits = (INTS)(*(FLOATS *)(row + key) * factor);
        FLOATS values = (FLOATS){0} + table.values[0];
        if (table.codes > MOST_COMPARED) values = VALUES_OF(bits, &table);
        else
            for (int64_t code = 1; code < table.codes; code++)
                values = UNLESS_BELOW(bits, table.edges[code - 1], table.values[code], values);
        *(FLOATS *)(row + key) = values;
        masses += values;
    }
    return SUM(masses);
}

/* The sum of those weights of a list that are above a bar, for one bar in each lane. Behind the list are zeros. */
TARGET static inline __attribute__((always_inline)) FLOATS NAMED(masses_above)(const int32_t *list, int64_t size, INTS bars) {
    FLOATS sums[4] = {{0}}; /* that need not wait for one another */
    for (int64_t place = 0; place < size; place += 4)
        UNROLL(4) for (int some = 0; some < 4; some++)
            sums[some] = ADD_ABOVE(sums[some], (INTS){0} + list[place + some], bars);
    return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

/* The least and the largest bits of weights. */
TARGET static void NAMED(extremes)(const float *row, int64_t size, int32_t *least, int32_t *most) {
    float small = row[0], large = row[0];
    if (size < LANES)
        for (int64_t key = 1; key < size; key++) {
            small = row[key] < small ? row[key] : small;
            large = row[key] > large ? row[key] : large;
        }
    else {
        FLOATS smallest = *(const FLOATS *)(row + size - LANES), largest = smallest;
        for (int64_t key = 0; key + LANES <= size; key += LANES) {
            smallest = MINIMUM(smallest, *(const FLOATS *)(row + key));
            largest = MAXIMUM(largest, *(const FLOATS *)(row + key));
        }
        small = -LARGEST(-smallest);
        large = LARGEST(largest);
    }
    memcpy(least, &small, sizeof small);
    memcpy(most, &large, sizeof large);
}

/* The end of a search in fixed point: the weights above ``high`` are no majority, and those above ``low`` are one. */
TARGET static int64_t NAMED(finish_majority)(const Search *search) {
    const int32_t *bits = (const int32_t *)search->row, *list = search->list;
    int32_t low = search->low, high = search->high;
    int64_t mass = 0, above = search->above;
    for (int64_t key = 0; key < search->size; key++) mass += bits[key] > high ? to_fixed(search->row[key]) : 0;
    while (high - low > 1) {
        const int32_t bar = low + (high - low) / 2;
        int64_t more = 0, count = 0;
        for (int64_t place = 0; place < search->found; place++) {
            const int inside = list[place] > bar && list[place] <= high;
            more += inside ? to_fixed(((const float *)list)[place]) : 0;
            count += inside;
        }
        if (mass + more > HALF_FIXED) low = bar;
        else high = bar, mass += more, above += count;
    }
    float weight;
    memcpy(&weight, &high, sizeof weight);
    return above + (HALF_FIXED - mass) / to_fixed(weight) + 1;
}

/* List the weights of a row that are above a bar. */
TARGET static inline __attribute__((always_inline)) void NAMED(begin_search)(Search *search, int32_t first) {
    const int32_t *bits = (const int32_t *)search->row;
    int64_t found = 0;
    for (int64_t key = 0; key < search->size; key += LANES)
        found += COLLECT(*(const INTS *)(bits + key), first, NOT_FINITE, search->list + found);
    *(INTS *)(search->list + found) = (INTS){0};
    search->first = first, search->found = found;
    search->unsure = (float)(found + 64) * 0x1p-25f; /* every fourth weight is added to the same float */
}

/* Keep what is between two neighbouring bars of one in each lane; ``masses`` are above them. */
TARGET static inline __attribute__((always_inline)) void NAMED(keep_between)(Search *search, FLOATS masses, int32_t step) {
    const int over = COUNT_ABOVE(masses, (FLOATS){0} + (HALF + search->unsure));
    const int under = COUNT_ABOVE((FLOATS){0} + (HALF - search->unsure), masses);
    if (over) search->low = search->first + (over - 1) * step;
    if (under) search->high = search->first + (LANES - under) * step, search->mass = masses[LANES - under];
    search->sure = over + under == LANES;
    const int32_t low = search->low, high = search->high;
    float bar;
    memcpy(&bar, &high, sizeof bar);
    int64_t kept = 0, above = search->above;
    for (int64_t place = 0; place < search->found; place += LANES) {
        const INTS bits = *(const INTS *)(search->list + place);
        above += COUNT_ABOVE((FLOATS)bits, (FLOATS){0} + bar);
        kept += COLLECT(bits, low, high, search->list + kept);
    }
    *(INTS *)(search->list + kept) = (INTS){0};
    search->found = kept, search->above = above;
}

/* Between which of the first bars the answer is. */
TARGET static inline __attribute__((always_inline)) void NAMED(narrow_search)(Search *search, INTS lanes) {
    const int32_t range = 4 << 23, step = range / LANES; /* four octaves; the answer is rarely above them */
    for (;; NAMED(begin_search)(search, search->first - range)) {
        const FLOATS masses = NAMED(masses_above)(search->list, search->found, search->first + lanes * step);
        if (COUNT_ABOVE(masses, (FLOATS){0} + (HALF + search->unsure))) {
            NAMED(keep_between)(search, masses, step);
            return;
        }
        if (search->first < 0) return; /* unsure: everything is listed */
    }
}

/* The answer of a search. */
TARGET static inline __attribute__((always_inline)) int64_t NAMED(end_search)(Search *search, INTS lanes) {
    while (search->sure && search->found > LANES) {
        int32_t least;
        NAMED(extremes)((const float *)search->list, search->found, &least, &search->high);
        search->low = least - 1;
        if (search->high == least) break; /* equal weights */
        const int32_t some = (search->high - search->low) / (LANES + 1), step = some > 0 ? some : 1;
        search->first = search->low + step;
        const INTS bars = search->first + lanes * step;
        NAMED(keep_between)(search, search->mass + NAMED(masses_above)(search->list, search->found, bars), step);
    }
    if (search->sure && search->found <= LANES) { /* what comes before each: larger weights, and equal ones listed before it */
        const INTS weights = *(const INTS *)search->list;
        FLOATS parts[4] = {(FLOATS){0} + search->mass}; /* that need not wait for one another */
        UNROLL(16) for (int place = 0; place < LANES; place++)
            parts[place % 4] = ADD_ABOVE(parts[place % 4], (INTS){0} + search->list[place], weights + (lanes > place));
        const FLOATS masses = (parts[0] + parts[1]) + (parts[2] + parts[3]);
        const int under = COUNT_ABOVE((FLOATS){0} + (HALF - search->unsure), masses);
        if (COUNT_ABOVE(masses, (FLOATS){0} + (HALF + search->unsure)) + under == LANES) return search->above + under;
    }
    return NAMED(finish_majority)(search);
}

/* How many of the largest weights of each row exceed half of 1 together, added up over rows that have so much.
 *
 * The weights above a low bar, which are few, are listed. A bar in each lane then tells between which two bars the answer
 * is, and only what is there stays listed, until it fits into a vector. Sums are floats: where one is so near to a half
 * that it may be wrong, fixed point decides. Each step waits for the one before, so that the rows take it together. */
TARGET static int64_t NAMED(majorities)(Search *searches, int64_t count) {
    INTS lanes;
    for (int lane = 0; lane < LANES; lane++) lanes[lane] = lane;
    int64_t sum = 0;
    for (int64_t row = 0; row < count; row++) NAMED(begin_search)(searches + row, searches[row].first);
    for (int64_t row = 0; row < count; row++) NAMED(narrow_search)(searches + row, lanes);
    for (int64_t row = 0; row < count; row++) sum += NAMED(end_search)(searches + row, lanes);
    return sum;
}

/* -sum(w ln w) of any weights in floats, ``size`` a multiple of LANES; one that is 0 adds nothing, and neither does one
 * below the normal floats. The logarithm is that of compiled.c with fewer terms. A sum of many floats loses digits, so
 * few of them are added as floats, and what comes out as doubles. The sum of squares is nearly right. */
TARGET static double NAMED(entropy)(const float *restrict row, int64_t size, float *squares) {
    const int64_t few = 16 * LANES;
    double total = 0;
    FLOATS sums = (FLOATS){0}, products = (FLOATS){0};
    for (int64_t key = 0; key < size; key += LANES) {
        if (key % few == 0) total += SUM(sums), sums = (FLOATS){0};
        const FLOATS weights = *(const FLOATS *)(row + key);
        products += weights * weights;
        const INTS bits = (INTS)weights;
        FLOATS rest = (FLOATS)((bits & 0x7FFFFF) | ONE_BITS);
        const INTS large = rest > 1.41421356f;
        rest -= (FLOATS)(large & (INTS)(rest * 0.5f));
        const FLOATS power = __builtin_convertvector((bits >> 23) - 127 - large, FLOATS);
        const FLOATS ratio = (rest - 1.0f) / (rest + 1.0f), square = ratio * ratio;
        FLOATS series = square * (1.0f / 9) + 1.0f / 7;
        series = series * square + 1.0f / 5;
        series = series * square + 1.0f / 3;
        sums -= weights * (2.0f * ratio * (series * square + 1.0f) + power * 0.693147181f);
    }
    if (squares) *squares = SUM(products);
    return total + SUM(sums);
}

#ifndef TOTALS
/* The totals of the weights from ``start`` to ``stop``, which are added to ``into`` unless it is NULL; what lies beside them
 * in the same vectors is 0. */
TARGET static Totals NAMED(totals)(const float *restrict row, int64_t start, int64_t stop, int64_t *restrict into) {
    const int64_t begin = start / LANES * LANES, end = (stop + LANES - 1) / LANES * LANES;
    uint64_t sums = 0, products = 0; /* with the bits of FINE_MAGIC, which are taken off in the end */
    for (int64_t key = begin; key < end; key++) {
        const double weight = row[key];
        sums += bits_of(weight + FINE_MAGIC);
        products += bits_of(weight * weight + FINE_MAGIC); /* a product of two floats is exact */
    }
    const uint64_t magic = (uint64_t)(end - begin) * (uint64_t)FINE_MAGIC_BITS;
    Totals totals = {.sum = (int64_t)(sums - magic), .squares = (int64_t)(products - magic)};
    NAMED(extremes)(row + start, stop - start, &totals.least, &totals.most);
    if (into) ADD(row + start, stop - start, into);
    return totals;
}
#define TOTALS(row, start, stop, into) NAMED(totals)(row, start, stop, into)
#endif

/* Rows of a tile whose facts are wanted. */
typedef struct {
    int64_t count;
    double sums[ROWS], products[ROWS]; /* of exponentials, and of exponentials times their exponents */
    DescribedRow rows[ROWS];
} NAMED(Described);

/* Facts about rows. Each row waits for its own results, so that the rows of a tile take every step together. */
TARGET static void NAMED(describe)(const NAMED(Described) *all, int64_t *facts) {
    double entropies[ROWS]; /* -sum(w ln w), where w = exp(x) / sum */
    Search searches[ROWS];
    int64_t reached = 0;
    EACH_ROW entropies[row] = logarithm(all->sums[row]) - all->products[row] / all->sums[row];
    for (int64_t number = 0; number < all->count; number++) {
        const DescribedRow *row = all->rows + number;
        const Totals totals = row->totals;
        const int64_t sum = totals.sum, error = sum > ONE_FIXED ? sum - ONE_FIXED : ONE_FIXED - sum;
        facts[CELLS_FACT] += row->cells;
        facts[ROWS_FACT]++;
        facts[SUM_FACT] += sum;
        facts[SQUARES_FACT] += totals.squares;
        facts[ENTROPY_FACT] += (int64_t)(entropies[number] * SCALE + 0.5);
        facts[ERROR_FACT] += error;
        if (error > facts[LARGEST_ERROR_FACT]) facts[LARGEST_ERROR_FACT] = error;
        if (totals.most > facts[MAXIMUM_FACT]) facts[MAXIMUM_FACT] = totals.most;
        if (totals.least < facts[MINIMUM_FACT]) facts[MINIMUM_FACT] = totals.least;
        if (sum <= HALF_FIXED) continue;
        const float squares = (float)((double)totals.squares / SCALE);
        set_up(searches + reached++, row->weights, row->size, entropies[number], squares, row->list);
    }
    facts[REACHED_FACT] += reached;
    facts[MAJORITY_FACT] += NAMED(majorities)(searches, reached);
}

/* Rows [count][size] side by side, [size][count]; ``count`` is a multiple of 4. */
TARGET static void NAMED(turn)(const float *restrict rows, int64_t count, int64_t size, float *restrict into) {
    typedef float Four __attribute__((vector_size(16), aligned(4), may_alias));
    int64_t place = 0;
    for (; place + 4 <= size; place += 4)
        for (int64_t row = 0; row < count; row += 4) {
            const float *from = rows + row * size + place;
            const Four a = *(const Four *)from, b = *(const Four *)(from + size), c = *(const Four *)(from + 2 * size),
                       d = *(const Four *)(from + 3 * size);
            const Four low = SHUFFLE(a, b, 0, 4, 1, 5), high = SHUFFLE(a, b, 2, 6, 3, 7);
            const Four also = SHUFFLE(c, d, 0, 4, 1, 5), top = SHUFFLE(c, d, 2, 6, 3, 7);
            float *to = into + place * count + row;
            *(Four *)to = SHUFFLE(low, also, 0, 1, 4, 5);
            *(Four *)(to + count) = SHUFFLE(low, also, 2, 3, 6, 7);
            *(Four *)(to + 2 * count) = SHUFFLE(high, top, 0, 1, 4, 5);
            *(Four *)(to + 3 * count) = SHUFFLE(high, top, 2, 3, 6, 7);
        }
    for (; place < size; place++)
        for (int64_t row = 0; row < count; row++) into[place * count + row] = rows[row * size + place];
}

/* Keys as panels [panel][size][WIDE * LANES], from ``first`` to ``after``; what lies behind the last key is 0. The rows
 * of a panel are gathered first, because they come from far apart. */
TARGET static void NAMED(pack_keys)(const float *key, const int64_t *steps, int64_t size, int64_t first, int64_t after,
                                    float *restrict rows, float *restrict into) {
    const int64_t panel = WIDE * LANES;
    for (int64_t begin = first / panel * panel; begin < after; begin += panel) {
        const int64_t some = after - begin < panel ? after - begin : panel;
        for (int64_t place = 0; place < some; place++) {
            if (begin + place + AHEAD < after) fetch(key + (begin + place + AHEAD) * steps[2], size * (int64_t)sizeof(float));
            copy_row(key + (begin + place) * steps[2], steps[3], size, 1, rows + place * size);
        }
        memset(rows + some * size, 0, (size_t)((panel - some) * size) * sizeof *rows);
        NAMED(turn)(rows, panel, size, into + begin * size);
    }
}

/* Values as panels [panel][keys][panel's floats]; what lies behind the last number of a value is 0. */
TARGET static void NAMED(pack_values)(const float *value, const int64_t *steps, int64_t size, int64_t keys, int64_t panel,
                                      int64_t first, int64_t after, float *restrict into) {
    for (int64_t begin = 0; begin < size; begin += panel, into += keys * panel) {
        const int64_t some = size - begin < panel ? size - begin : panel;
        for (int64_t key = first; key < after; key++) {
            if (key + AHEAD < after) fetch(value + (key + AHEAD) * steps[2] + begin * steps[3], some * (int64_t)sizeof(float));
            copy_row(value + key * steps[2] + begin * steps[3], steps[3], some, 1, into + key * panel);
            for (int64_t part = some; part < panel; part++) into[key * panel + part] = 0;
        }
    }
}

typedef struct {
    int64_t step, panel; /* floats from row to row of the weights; floats of a panel of values */
    float *keys, *values, *queries, *weights, *outputs, *rows;
    Queue queue;     /* of bins of the head at hand */
    int32_t *tables; /* of all heads */
    int32_t *lists; /* of each row of a tile */
    NAMED(Described) described;
    uint8_t *filled;              /* whether there is anything in the tables of a head */
    int64_t *facts, own_facts[FACTS]; /* NULL when no stat asks for facts about the head's rows */
    int edited, watched;              /* whether edits change the head, and whether stats watch it */
    int64_t first, after; /* the keys that queries of the example see */
    int alike;            /* whether all of these see all of those */
    int64_t beside; /* how many bins of the block are of cells beside the spans, which are 0 */
    int64_t zeros, below, pending;
    INTS none, small; /* what is 0 and what is below 1/n in the block, by lane */
} NAMED(Scratch);
#define SCRATCH NAMED(Scratch)

/* The scores of a block of queries with the keys from ``first`` to ``after``. Meanwhile bins of the block before are
 * counted. */
TARGET static void NAMED(score)(const AttendParameters *p, SCRATCH *s, int64_t rows, int64_t first, int64_t after) {
    const int64_t panel = WIDE * LANES;
    for (int64_t begin = first / panel * panel; begin < after; begin += panel) {
        const int64_t rest = (after - begin + LANES - 1) / LANES, wide = rest < WIDE ? rest : WIDE;
        for (int64_t row = 0; row < rows; row += ROWS)
            NAMED(tile)(wide, WITH_SCORES, s->queries + row * p->size, p->size, s->keys + begin * p->size, panel, p->size,
                        s->weights + row * s->step + begin, s->step, &s->queue);
    }
    finish_queue(&s->queue);
}

/* Do the edits of a head to the row of a query whose keys are ``start`` to ``stop``, in vectors that are ``begin`` to
 * ``end``. Gives whether the weights that come out are numbers; what is looked up in a codebook must be before. */
TARGET static int NAMED(edit_row)(const AttendParameters *p, int64_t head, float *row, int64_t begin, int64_t end,
                                  int64_t start, int64_t stop, float *factor, int numbers) {
    for (int64_t number = 0; number < p->edit_count; number++) {
        const EditParameters *edit = p->edits + number;
        if (!edit->heads[head]) continue;
        float mass;
        if (edit->kind == KEEP_ABOVE) {
            mass = NAMED(keep_above)(edit, row + begin, end - begin, stop - start, *factor);
            numbers = 1; /* NaN is not above any bar */
        } else {
            if (!numbers) *p->into.failed = 1;
            mass = NAMED(replace)(edit, row + begin, end - begin, *factor);
            /* Zero may stand for something else in a codebook, but not on cells that are not the query's. */
            for (int64_t key = begin; key < start; key++) mass -= row[key], row[key] = 0;
            for (int64_t key = stop; key < end; key++) mass -= row[key], row[key] = 0;
        }
        *factor = edit->renormalize ? 1.0f / (mass > LEAST_MASS ? mass : LEAST_MASS) : 1.0f;
    }
    return numbers;
}

/* The weights of one query of a head, whose keys are ``start`` to ``stop``, and its part of the stats. Cells of the
 * block (``first`` to ``after``) that are not the query's become 0. Gives whether all weights are numbers. */
TARGET static int NAMED(weigh)(const AttendParameters *p, SCRATCH *s, int64_t head, float *row, int64_t first,
                               int64_t after, int64_t start, int64_t stop, int counted, int binned, int64_t *sums) {
    const int64_t size = stop - start, begin = start / LANES * LANES, end = (stop + LANES - 1) / LANES * LANES;
    for (int64_t key = first / LANES * LANES; key < begin; key++) row[key] = 0;
    for (int64_t key = begin; key < start; key++) row[key] = -INFINITY;
    for (int64_t key = stop; key < end; key++) row[key] = -INFINITY;
    for (int64_t key = end; key < after; key++) row[key] = 0;
    const int described = counted && s->facts;
    float product = 0;
    const float sum = NAMED(exponentiate)(row + begin, end - begin, described && !s->edited ? &product : NULL,
                                          sums ? sums + begin : NULL);
    int numbers = sum <= FLT_MAX;
    float factor = 1.0f / sum;
    if (s->edited) numbers = NAMED(edit_row)(p, head, row, begin, end, start, stop, &factor, numbers);
    if (counted && binned) {
        NAMED(scale_and_sort)(row + begin, end - begin, factor, (float)(1.0 / (double)size), s->queue.bins + s->queue.stop,
                              &s->small, &s->none);
        s->queue.stop += end - begin;
        s->pending += end - begin;
        s->beside += end - begin - size;
    } else if (factor != 1.0f) NAMED(scale)(row + begin, end - begin, factor);
    if (described && numbers) {
        NAMED(Described) *all = &s->described;
        const int64_t number = all->count++;
        all->rows[number] = (DescribedRow){.weights = row + begin, .size = end - begin, .cells = size,
                                           .totals = TOTALS(row, start, stop, sums ? sums + start : NULL),
                                           .list = s->lists + number * s->step};
        all->sums[number] = s->edited ? 1 : sum;
        all->products[number] = s->edited ? -NAMED(entropy)(row + begin, end - begin, NULL) : product;
    } else if (sums) ADD(row + start, size, sums + start);
    return numbers;
}

/* The outputs of a tile; meanwhile bins are counted. */
TARGET static void NAMED(mix)(const AttendParameters *p, SCRATCH *s, const float *weights, int64_t first, int64_t after,
                              float *outputs, int64_t step) {
    const int64_t most = s->panel / LANES;
    for (int64_t begin = 0; begin < p->value_size && first < after; begin += s->panel) {
        const int64_t rest = (p->value_size - begin + LANES - 1) / LANES, wide = rest < most ? rest : most;
        const float *values = s->values + begin * p->keys + first * s->panel;
        NAMED(tile)(wide, WITH_OUTPUTS, weights + first, s->step, values, s->panel, after - first, outputs + begin, step,
                    &s->queue);
    }
}

/* A block of the queries of one example and head, of which ``left`` are left. */
TARGET static void NAMED(attend_block)(const AttendParameters *p, SCRATCH *s, int64_t example, int64_t head, int64_t query,
                                       int64_t left, int binned, int64_t *sums) {
    const int64_t rows = left < BLOCK ? left : BLOCK;
    const int64_t *start = p->start + example * p->queries + query, *stop = p->stop + example * p->queries + query;
    const uint8_t *counted = p->counted + example * p->queries + query;
    const Buffers *into = &p->into;
    float *output = p->output + ((example * p->queries + query) * p->heads + head) * p->value_size;
    const int64_t step = (p->value_size + s->panel - 1) / s->panel * s->panel;
    int64_t first = s->first, after = s->after;
    if (!s->alike) cover(start, stop, rows, &first, &after);
    if (first >= after) { /* queries without keys get the output 0 */
        for (int64_t row = 0; row < rows; row++)
            memset(output + row * p->heads * p->value_size, 0, (size_t)p->value_size * sizeof *output);
        return;
    }
    const float *from = p->query + example * p->query_steps[0] + head * p->query_steps[1] + query * p->query_steps[2];
    for (int64_t row = 0; row < rows; row++)
        copy_row(from + row * p->query_steps[2], p->query_steps[3], p->size, (float)p->scaling, s->queries + row * p->size);
    memset(s->queries + rows * p->size, 0, (size_t)((BLOCK - rows) * p->size) * sizeof *s->queries);
    NAMED(score)(p, s, rows, first, after);
    for (int64_t tile = 0; tile < rows; tile += ROWS) {
        s->described.count = 0;
        for (int64_t row = tile; row < tile + ROWS && row < rows; row++) {
            float *weights = s->weights + row * s->step;
            if (row + BLOCK < left) fetch(from + (row + BLOCK) * p->query_steps[2], p->size * (int64_t)sizeof(float));
            if (start[row] == stop[row]) {
                for (int64_t key = first; key < after; key++) weights[key] = 0;
                continue;
            }
            int64_t *to = sums && counted[row]
                ? sums + (query + row + into->query_slot[example]) * into->sums_keys + into->key_slot[example] : NULL;
            const int numbers
                = NAMED(weigh)(p, s, head, weights, first, after, start[row], stop[row], counted[row], binned, to);
            if (!numbers && counted[row] && s->watched) *into->failed = 1;
            if (p->weights)
                memcpy(p->weights + ((example * p->heads + head) * p->queries + query + row) * p->keys + start[row],
                       weights + start[row], (size_t)(stop[row] - start[row]) * sizeof *weights);
        }
        if (s->described.count) NAMED(describe)(&s->described, s->facts);
        /* Panels that end with the value, and rows that are all queries, need no copy. */
        const int whole = step == p->value_size && tile + ROWS <= rows;
        const int64_t next_row = p->heads * p->value_size;
        NAMED(mix)(p, s, s->weights + tile * s->step, first, after, whole ? output + tile * next_row : s->outputs + tile * step,
                   whole ? next_row : step);
        for (int64_t row = tile; !whole && row < rows && row < tile + ROWS; row++)
            memcpy(output + row * next_row, s->outputs + row * step, (size_t)p->value_size * sizeof *output);
    }
    s->below += TOTAL(s->small) - s->beside;
    s->zeros += TOTAL(s->none) - s->beside;
    s->queue.tables[0] -= (int32_t)s->beside;
    s->small = s->none = (INTS){0};
    s->beside = 0;
}

/* Add the tables to the counts of their heads, and clear them. */
static void NAMED(flush)(const AttendParameters *p, SCRATCH *s) {
    finish_queue(&s->queue);
    for (int64_t head = 0; head < p->heads; head++) {
        const int64_t row = p->into.counts_row[head];
        int32_t *raw = s->tables + head * TABLES * RAW;
        if (!s->filled[head]) continue;
        add_tables(raw, 0, 0, p->into.counts + row * BINS, p->into.below_uniform + row);
        memset(raw, 0, TABLES * RAW * sizeof *raw);
        s->filled[head] = 0;
    }
    s->pending = 0;
}

/* The queries ``begin`` to ``end`` of a head of an example, whose keys and values are packed. */
TARGET static void NAMED(attend_head)(const AttendParameters *p, SCRATCH *s, int64_t example, int64_t head, int64_t begin,
                                      int64_t end) {
    const Buffers *into = &p->into;
    const int64_t counts_row = into->counts_row[head], sums_row = into->sums_row[head], facts_row = into->facts_row[head];
    begin_facts(s->own_facts);
    s->facts = facts_row < 0 ? NULL : s->own_facts;
    s->edited = 0;
    for (int64_t edit = 0; edit < p->edit_count; edit++) s->edited |= p->edits[edit].heads[head];
    s->watched = counts_row >= 0 || sums_row >= 0 || facts_row >= 0;
    s->zeros = s->below = 0;
    s->queue.tables = s->tables + (counts_row < 0 ? 0 : head * TABLES * RAW);
    int64_t *sums = sums_row < 0 ? NULL : into->sums + sums_row * into->sums_queries * into->sums_keys;
    for (int64_t query = begin; query < end; query += BLOCK) {
        NAMED(attend_block)(p, s, example, head, query, end - query, counts_row >= 0, sums);
        s->filled[head] = counts_row >= 0;
        if (s->pending > MOST_PENDING) NAMED(flush)(p, s);
    }
    finish_queue(&s->queue);
    if (counts_row >= 0) {
        /* What is 0 is in the tables, too, among the numbers that are too small for a bin of their own. */
        add_to(into->counts + counts_row * BINS + ZERO, s->zeros);
        add_to(into->counts + counts_row * BINS + UNDERFLOW_BIN, -s->zeros);
        add_to(into->below_uniform + counts_row, s->below);
    }
    if (s->facts) add_facts(s->facts, into->facts + facts_row * FACTS);
}

/* One piece of work. The heads of an example follow one another, because they share the pages of its tensors. */
TARGET static void NAMED(attend_piece)(const AttendParameters *p, SCRATCH *s, const Piece *piece) {
    for (int64_t example = piece->first_example; example < piece->after_example; example++) {
        const int64_t slot = p->into.query_slot[example], begin = piece->low > slot ? piece->low - slot : 0;
        const int64_t end = piece->high - slot < p->queries ? piece->high - slot : p->queries;
        const int64_t *start = p->start + example * p->queries, *stop = p->stop + example * p->queries;
        s->alike = cover(start + begin, stop + begin, end - begin, &s->first, &s->after);
        for (int64_t head = piece->first_head, packed = -1; head < piece->after_head; head++) {
            const int64_t group = head / p->group;
            if (group != packed) {
                NAMED(pack_keys)(p->key + example * p->key_steps[0] + group * p->key_steps[1], p->key_steps, p->size, s->first,
                                 s->after, s->rows, s->keys);
                NAMED(pack_values)(p->value + example * p->value_steps[0] + group * p->value_steps[1], p->value_steps,
                                   p->value_size, p->keys, s->panel, s->first, s->after, s->values);
                packed = group;
            }
            NAMED(attend_head)(p, s, example, head, begin, end);
        }
    }
}

/* What one thread does: pieces of work until none is left. */
TARGET static void NAMED(attend)(const AttendParameters *p) {
    const int64_t vectors = (p->value_size + LANES - 1) / LANES, panels = (vectors + WIDE - 1) / WIDE;
    const int64_t panel = (vectors + panels - 1) / panels * LANES, wide = WIDE * LANES;
    const int64_t columns = (p->keys + wide - 1) / wide * wide;
    int64_t binned = 0; /* heads up to the last one whose weights are counted by bin */
    for (int64_t head = 0; head < p->heads; head++)
        if (p->into.counts_row[head] >= 0) binned = head + 1;
    /* Rows of weights are not a power of two apart, which would make them compete for the same places of the cache. */
    SCRATCH s = {.step = columns + 16, .panel = panel};
    for (int row = 0; row < ROWS; row++) s.described.sums[row] = 1; /* rows that no tile has */
    const int64_t sizes[] = {columns * p->size, panels * panel * p->keys, BLOCK * p->size, BLOCK * s.step,
                             BLOCK * panels * panel, BLOCK * columns / 2, (binned ? binned : 1) * TABLES * RAW,
                             wide * p->size, ROWS * s.step, p->heads};
    int64_t total = 0;
    for (size_t part = 0; part < sizeof sizes / sizeof *sizes; part++) total += (sizes[part] + 15) / 16 * 16;
    float *memory = malloc((size_t)total * sizeof *memory + 64);
    if (!memory) {
        *p->into.failed = 2;
        return;
    }
    float *part[sizeof sizes / sizeof *sizes], *next = (float *)(((uintptr_t)memory + 63) / 64 * 64);
    for (size_t number = 0; number < sizeof sizes / sizeof *sizes; next += (sizes[number++] + 15) / 16 * 16)
        part[number] = next;
    s.keys = part[0], s.values = part[1], s.queries = part[2], s.weights = part[3], s.outputs = part[4];
    s.queue.bins = (uint16_t *)part[5], s.tables = (int32_t *)part[6], s.rows = part[7], s.lists = (int32_t *)part[8];
    s.filled = (uint8_t *)part[9];
    memset(s.tables, 0, (size_t)sizes[6] * sizeof *s.tables);
    memset(s.filled, 0, (size_t)p->heads);
    for (Piece piece; claim_piece(p, &piece);) NAMED(attend_piece)(p, &s, &piece);
    NAMED(flush)(p, &s);
    free(memory);
}

#undef BLOCK
#undef FLOATS
#undef INTS
#undef SHORTS
#undef SCRATCH
#undef EACH_ROW
#undef EACH_VECTOR
