/* The instructions of AVX-512 that compiled.c uses, written as loops: with this file and an empty AVX512_TARGET the
 * AVX-512 path is built for any x86-64 machine, so that what it means is tested where there is no such processor. */
#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#define EMULATED static inline __attribute__((always_inline, unused))
#define EACH(lanes) for (int lane = 0; lane < (lanes); lane++)
typedef int32_t Lanes32 __attribute__((vector_size(64)));
typedef int64_t Lanes64 __attribute__((vector_size(64)));
typedef uint64_t Unsigned64 __attribute__((vector_size(64))); /* which may overflow */
typedef uint32_t Unsigned32 __attribute__((vector_size(64)));
typedef uint16_t Unsigned16 __attribute__((vector_size(64)));

EMULATED __m512 emulated_set1_ps(float a) { return (__m512){0} + a; }
EMULATED __m512d emulated_set1_pd(double a) { return (__m512d){0} + a; }
EMULATED __m512i emulated_setzero_si512(void) { return (__m512i){0}; }
EMULATED __m512i emulated_set1_epi64(int64_t a) { return (__m512i)((Lanes64){0} + a); }
EMULATED __m512i emulated_set1_epi32(int32_t a) { return (__m512i)((Lanes32){0} + a); }
EMULATED __m512 emulated_mul_ps(__m512 a, __m512 b) { return a * b; }
EMULATED __m512i emulated_add_epi64(__m512i a, __m512i b) { return (__m512i)((Unsigned64)a + (Unsigned64)b); }
EMULATED __m512i emulated_sub_epi64(__m512i a, __m512i b) { return (__m512i)((Unsigned64)a - (Unsigned64)b); }
EMULATED __m512i emulated_castpd_si512(__m512d a) { return (__m512i)a; }
EMULATED __m512d emulated_add_pd(__m512d a, __m512d b) { return a + b; }
EMULATED __m512d emulated_fmadd_pd(__m512d a, __m512d b, __m512d c) {
    EACH(8) c[lane] = fma(a[lane], b[lane], c[lane]);
    return c;
}
EMULATED __m512 emulated_max_ps(__m512 a, __m512 b) {
    __m512 found;
    EACH(16) found[lane] = a[lane] > b[lane] ? a[lane] : b[lane];
    return found;
}
EMULATED __m512 emulated_min_ps(__m512 a, __m512 b) {
    __m512 found;
    EACH(16) found[lane] = a[lane] < b[lane] ? a[lane] : b[lane];
    return found;
}
EMULATED __m512 emulated_mask_min_ps(__m512 other, __mmask16 mask, __m512 a, __m512 b) {
    EACH(16) if (mask >> lane & 1) other[lane] = a[lane] < b[lane] ? a[lane] : b[lane];
    return other;
}
EMULATED __m512 emulated_mask_max_ps(__m512 other, __mmask16 mask, __m512 a, __m512 b) {
    EACH(16) if (mask >> lane & 1) other[lane] = a[lane] > b[lane] ? a[lane] : b[lane];
    return other;
}
EMULATED float emulated_reduce_min_ps(__m512 a) {
    float found = a[0];
    EACH(16) found = found < a[lane] ? found : a[lane];
    return found;
}
EMULATED float emulated_reduce_max_ps(__m512 a) {
    float found = a[0];
    EACH(16) found = found > a[lane] ? found : a[lane];
    return found;
}
EMULATED float emulated_reduce_add_ps(__m512 a) {
    for (int half = 8; half > 0; half /= 2) EACH(half) a[lane] += a[lane + half];
    return a[0];
}
EMULATED int32_t emulated_reduce_add_epi32(__m512i a) {
    int32_t found = 0;
    EACH(16) found += ((Lanes32)a)[lane];
    return found;
}
EMULATED int64_t emulated_reduce_add_epi64(__m512i a) {
    int64_t found = 0;
    EACH(8) found += ((Lanes64)a)[lane];
    return found;
}
EMULATED __m512 emulated_scalef_ps(__m512 a, __m512 b) {
    EACH(16) a[lane] = scalbnf(a[lane], (int)floorf(b[lane]));
    return a;
}
EMULATED __mmask16 emulated_cmp_ps_mask(__m512 a, __m512 b, int how) {
    __mmask16 found = 0;
    EACH(16) {
        const int yes = how == _CMP_LT_OQ ? a[lane] < b[lane] : how == _CMP_GT_OQ ? a[lane] > b[lane] : a[lane] != b[lane];
        found |= yes << lane;
    }
    return found;
}
#define COMPARED(name, sign)                                                                                           \
    EMULATED __mmask16 emulated_##name##_epi32_mask(__m512i a, __m512i b) {                                            \
        __mmask16 found = 0;                                                                                           \
        EACH(16) found |= (((Lanes32)a)[lane] sign ((Lanes32)b)[lane]) << lane;                                        \
        return found;                                                                                                  \
    }
COMPARED(cmpgt, >)
COMPARED(cmpge, >=)
COMPARED(cmple, <=)
EMULATED __m512 emulated_mask_mov_ps(__m512 other, __mmask16 mask, __m512 a) {
    EACH(16) if (mask >> lane & 1) other[lane] = a[lane];
    return other;
}
EMULATED __m512 emulated_maskz_mov_ps(__mmask16 mask, __m512 a) { return emulated_mask_mov_ps((__m512){0}, mask, a); }
EMULATED __m512 emulated_mask_add_ps(__m512 other, __mmask16 mask, __m512 a, __m512 b) {
    return emulated_mask_mov_ps(other, mask, a + b);
}
EMULATED __m512i emulated_mask_add_epi32(__m512i other, __mmask16 mask, __m512i a, __m512i b) {
    Lanes32 found = (Lanes32)other;
    EACH(16) if (mask >> lane & 1) found[lane] = ((Lanes32)a)[lane] + ((Lanes32)b)[lane];
    return (__m512i)found;
}
EMULATED __m512i emulated_maskz_compress_epi32(__mmask16 mask, __m512i a) {
    Lanes32 found = {0};
    int place = 0;
    EACH(16) if (mask >> lane & 1) found[place++] = ((Lanes32)a)[lane];
    return (__m512i)found;
}
EMULATED __m256i emulated_cvtepi32_epi16(__m512i a) {
    uint16_t numbers[16];
    EACH(16) numbers[lane] = (uint16_t)((Lanes32)a)[lane];
    __m256i found;
    memcpy(&found, numbers, sizeof found);
    return found;
}
EMULATED __m512i emulated_cvtps_epi64(__m256 a) {
    Lanes64 found;
    EACH(8) found[lane] = (int64_t)nearbyint(a[lane]);
    return (__m512i)found;
}
EMULATED __m512d emulated_cvtps_pd(__m256 a) {
    __m512d found;
    EACH(8) found[lane] = a[lane];
    return found;
}
EMULATED __m256 emulated_castps512_ps256(__m512 a) {
    __m256 found;
    EACH(8) found[lane] = a[lane];
    return found;
}
EMULATED __m256 emulated_extractf32x8_ps(__m512 a, int half) {
    __m256 found;
    EACH(8) found[lane] = a[8 * half + lane];
    return found;
}
EMULATED __m512 emulated_castps256_ps512(__m256 a) {
    __m512 found = {0};
    EACH(8) found[lane] = a[lane];
    return found;
}
EMULATED __m512 emulated_insertf32x8(__m512 a, __m256 b, int half) {
    EACH(8) a[8 * half + lane] = b[lane];
    return a;
}
EMULATED __m256i emulated_extracti64x4_epi64(__m512i a, int half) {
    __m256i found;
    EACH(4) found[lane] = a[4 * half + lane];
    return found;
}
EMULATED __m256i emulated_castsi512_si256(__m512i a) { return emulated_extracti64x4_epi64(a, 0); }
/* Lanes that a mask leaves out are not read or written, however near the end of a page they are. */
EMULATED __m512 emulated_maskz_loadu_ps(__mmask16 mask, const void *from) {
    __m512 found = {0};
    EACH(16) if (mask >> lane & 1) found[lane] = ((const float *)from)[lane];
    return found;
}
EMULATED __m512i emulated_maskz_loadu_epi64(__mmask8 mask, const void *from) {
    Lanes64 found = {0};
    EACH(8) if (mask >> lane & 1) found[lane] = ((const int64_t *)from)[lane];
    return (__m512i)found;
}
EMULATED void emulated_mask_storeu_epi64(void *into, __mmask8 mask, __m512i a) {
    EACH(8) if (mask >> lane & 1) ((int64_t *)into)[lane] = ((Lanes64)a)[lane];
}
EMULATED __m512i emulated_castps_si512(__m512 a) { return (__m512i)a; }
EMULATED __m512i emulated_srli_epi32(__m512i a, unsigned bits) { return (__m512i)((Unsigned32)a >> bits); }
EMULATED __m512i emulated_set1_epi16(int16_t a) { return (__m512i)((Unsigned16){0} + (uint16_t)a); }
EMULATED __m512i emulated_min_epu16(__m512i a, __m512i b) {
    Unsigned16 found;
    EACH(32) found[lane] = ((Unsigned16)a)[lane] < ((Unsigned16)b)[lane] ? ((Unsigned16)a)[lane] : ((Unsigned16)b)[lane];
    return (__m512i)found;
}
/* Each quarter has four lanes of the first and then four of the second. */
EMULATED __m512i emulated_packus_epi32(__m512i a, __m512i b) {
    Unsigned16 found;
    EACH(32) {
        const int32_t value = ((Lanes32)(lane & 4 ? b : a))[lane / 8 * 4 + lane % 4];
        found[lane] = (uint16_t)(value < 0 ? 0 : value > 65535 ? 65535 : value);
    }
    return (__m512i)found;
}
EMULATED __mmask16 emulated_testn_epi32_mask(__m512i a, __m512i b) {
    __mmask16 found = 0;
    EACH(16) found |= (__mmask16)((((Lanes32)a)[lane] & ((Lanes32)b)[lane]) == 0) << lane;
    return found;
}
EMULATED void emulated_storeu_si512(void *into, __m512i a) { memcpy(into, &a, sizeof a); }

#undef COMPARED
#define _mm512_set1_ps emulated_set1_ps
#define _mm512_set1_epi32 emulated_set1_epi32
#define _mm512_mul_ps emulated_mul_ps
#define _mm512_add_epi64 emulated_add_epi64
#define _mm512_set1_pd emulated_set1_pd
#define _mm512_setzero_si512 emulated_setzero_si512
#define _mm512_set1_epi64 emulated_set1_epi64
#define _mm512_sub_epi64 emulated_sub_epi64
#define _mm512_castpd_si512 emulated_castpd_si512
#define _mm512_add_pd emulated_add_pd
#define _mm512_fmadd_pd emulated_fmadd_pd
#define _mm512_cvtps_pd emulated_cvtps_pd
#define _mm512_mask_min_ps emulated_mask_min_ps
#define _mm512_mask_max_ps emulated_mask_max_ps
#define _mm512_reduce_min_ps emulated_reduce_min_ps
#define _mm512_reduce_add_epi64 emulated_reduce_add_epi64
#define _mm512_max_ps emulated_max_ps
#define _mm512_min_ps emulated_min_ps
#define _mm512_reduce_max_ps emulated_reduce_max_ps
#define _mm512_reduce_add_ps emulated_reduce_add_ps
#define _mm512_reduce_add_epi32 emulated_reduce_add_epi32
#define _mm512_scalef_ps emulated_scalef_ps
#undef _mm512_cmp_ps_mask
#define _mm512_cmp_ps_mask emulated_cmp_ps_mask
#define _mm512_cmpgt_epi32_mask emulated_cmpgt_epi32_mask
#define _mm512_cmpge_epi32_mask emulated_cmpge_epi32_mask
#define _mm512_cmple_epi32_mask emulated_cmple_epi32_mask
#define _mm512_mask_mov_ps emulated_mask_mov_ps
#define _mm512_maskz_mov_ps emulated_maskz_mov_ps
#define _mm512_mask_add_ps emulated_mask_add_ps
#define _mm512_mask_add_epi32 emulated_mask_add_epi32
#define _mm512_maskz_compress_epi32 emulated_maskz_compress_epi32
#define _mm512_cvtepi32_epi16 emulated_cvtepi32_epi16
#define _mm512_cvtps_epi64 emulated_cvtps_epi64
#define _mm512_castps512_ps256 emulated_castps512_ps256
#undef _mm512_extractf32x8_ps
#define _mm512_extractf32x8_ps emulated_extractf32x8_ps
#define _mm512_castps256_ps512 emulated_castps256_ps512
#undef _mm512_insertf32x8
#define _mm512_insertf32x8 emulated_insertf32x8
#undef _mm512_extracti64x4_epi64
#define _mm512_extracti64x4_epi64 emulated_extracti64x4_epi64
#define _mm512_castsi512_si256 emulated_castsi512_si256
#define _mm512_maskz_loadu_ps emulated_maskz_loadu_ps
#define _mm512_maskz_loadu_epi64 emulated_maskz_loadu_epi64
#define _mm512_mask_storeu_epi64 emulated_mask_storeu_epi64
#define _mm512_castps_si512 emulated_castps_si512
#define _mm512_srli_epi32 emulated_srli_epi32
#define _mm512_set1_epi16 emulated_set1_epi16
#define _mm512_min_epu16 emulated_min_epu16
#define _mm512_packus_epi32 emulated_packus_epi32
#define _mm512_testn_epi32_mask emulated_testn_epi32_mask
#define _mm512_storeu_si512 emulated_storeu_si512
