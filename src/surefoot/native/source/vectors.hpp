// Sixteen floats at a time, for one instruction set per translation unit.
//
// SUREFOOT_ISA names the set: 0 portable vectors (with the fused product that every AArch64 has, on AArch64), 1 AVX2 with
// FMA, 2 AVX-512, 3 AVX-512 with BF16. Every operation is one fixed sequence of roundings, so that what a kernel computes
// depends on its operands alone. The files are compiled with -ffp-contract=off: a product and a sum are fused where `fma`
// says so and nowhere else.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if SUREFOOT_ISA >= 1
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#define INLINE inline __attribute__((always_inline))

// Before a short loop over registers: what it indexes must not live in memory.
#if defined(__clang__)
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 32")
#endif

namespace SUREFOOT_NAMESPACE {

using bf16 = uint16_t;  // the upper half of a float

constexpr int LANES = 16;

#if SUREFOOT_ISA >= 2

struct Vec {
  __m512 v;
};
INLINE Vec zero() { return {_mm512_setzero_ps()}; }
INLINE Vec spread(float x) { return {_mm512_set1_ps(x)}; }
INLINE Vec load(const float* p) { return {_mm512_loadu_ps(p)}; }
INLINE void store(float* p, Vec a) { _mm512_storeu_ps(p, a.v); }
INLINE Vec operator+(Vec a, Vec b) { return {_mm512_add_ps(a.v, b.v)}; }
INLINE Vec operator-(Vec a, Vec b) { return {_mm512_sub_ps(a.v, b.v)}; }
INLINE Vec operator*(Vec a, Vec b) { return {_mm512_mul_ps(a.v, b.v)}; }
INLINE Vec operator/(Vec a, Vec b) { return {_mm512_div_ps(a.v, b.v)}; }
INLINE Vec larger(Vec a, Vec b) { return {_mm512_max_ps(a.v, b.v)}; }
INLINE Vec smaller(Vec a, Vec b) { return {_mm512_min_ps(a.v, b.v)}; }
INLINE Vec fma(Vec a, Vec b, Vec c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
INLINE Vec nearest(Vec a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
// a * 2^n for a whole number n of moderate size
INLINE Vec scaled(Vec a, Vec n) { return {_mm512_scalef_ps(a.v, n.v)}; }
INLINE Vec load(const bf16* p) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16))};
}
INLINE void store(bf16* p, Vec a) {
  // Round to nearest, ties to even, by integer arithmetic: the same for every instruction set. NaN stays NaN.
  const __m512i bits = _mm512_castps_si512(a.v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __mmask16 nan = _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q);
  const __m512i kept = _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x400000));
  _mm256_storeu_si256((__m256i*)p, _mm512_cvtepi32_epi16(_mm512_srli_epi32(kept, 16)));
}
// Sixteen pairs of bf16: the even elements and the odd ones, as floats.
INLINE void load_pairs(const bf16* p, Vec& even, Vec& odd) {
  const __m512i both = _mm512_loadu_si512(p);
  even.v = _mm512_castsi512_ps(_mm512_slli_epi32(both, 16));
  odd.v = _mm512_castsi512_ps(_mm512_and_si512(both, _mm512_set1_epi32(int(0xffff0000u))));
}

#elif SUREFOOT_ISA == 1

struct Vec {
  __m256 lo, hi;
};
#define BOTH(op) {op(a.lo, b.lo), op(a.hi, b.hi)}
INLINE Vec zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
INLINE Vec spread(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
INLINE Vec load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
INLINE void store(float* p, Vec a) { _mm256_storeu_ps(p, a.lo), _mm256_storeu_ps(p + 8, a.hi); }
INLINE Vec operator+(Vec a, Vec b) { return BOTH(_mm256_add_ps); }
INLINE Vec operator-(Vec a, Vec b) { return BOTH(_mm256_sub_ps); }
INLINE Vec operator*(Vec a, Vec b) { return BOTH(_mm256_mul_ps); }
INLINE Vec operator/(Vec a, Vec b) { return BOTH(_mm256_div_ps); }
INLINE Vec larger(Vec a, Vec b) { return BOTH(_mm256_max_ps); }
INLINE Vec smaller(Vec a, Vec b) { return BOTH(_mm256_min_ps); }
INLINE Vec fma(Vec a, Vec b, Vec c) { return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)}; }
INLINE Vec nearest(Vec a) {
  constexpr int mode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(a.lo, mode), _mm256_round_ps(a.hi, mode)};
}
INLINE __m256 scaled_half(__m256 a, __m256 n) {
  // Two factors, so that results down to the smallest normal float come out right.
  const __m256i whole = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(whole, 1), rest = _mm256_sub_epi32(whole, half);
  const __m256i bias = _mm256_set1_epi32(127);
  const __m256 first = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, bias), 23));
  const __m256 second = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(rest, bias), 23));
  return _mm256_mul_ps(_mm256_mul_ps(a, first), second);
}
INLINE Vec scaled(Vec a, Vec n) { return {scaled_half(a.lo, n.lo), scaled_half(a.hi, n.hi)}; }
INLINE __m256 widened(__m128i p) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(p), 16)); }
INLINE Vec load(const bf16* p) {
  return {widened(_mm_loadu_si128((const __m128i*)p)), widened(_mm_loadu_si128((const __m128i*)(p + 8)))};
}
INLINE __m256i narrowed(__m256 a) {
  const __m256i bits = _mm256_castps_si256(a);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q));
  return _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
}
INLINE void store(bf16* p, Vec a) {
  const __m256i packed = _mm256_packus_epi32(narrowed(a.lo), narrowed(a.hi));
  _mm256_storeu_si256((__m256i*)p, _mm256_permute4x64_epi64(packed, 0xd8));
}
INLINE void load_pairs(const bf16* p, Vec& even, Vec& odd) {
  const __m256i first = _mm256_loadu_si256((const __m256i*)p), second = _mm256_loadu_si256((const __m256i*)(p + 16));
  const __m256i upper = _mm256_set1_epi32(int(0xffff0000u));
  even = {_mm256_castsi256_ps(_mm256_slli_epi32(first, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(second, 16))};
  odd = {_mm256_castsi256_ps(_mm256_and_si256(first, upper)), _mm256_castsi256_ps(_mm256_and_si256(second, upper))};
}
#undef BOTH

#else

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "pairs of bf16 are read as words with the first one below");

// Four at a time: what the narrowest processors with vectors have, so that no compiler splits them in memory.
typedef float Floats __attribute__((vector_size(16), aligned(4), may_alias));
typedef uint32_t Words __attribute__((vector_size(16), aligned(2), may_alias));
typedef int32_t Ints __attribute__((vector_size(16)));

struct Vec {
  Floats v[4];
};
#define EACH(expression)                                    \
  Vec result;                                               \
  UNROLL for (int i = 0; i < 4; ++i) result.v[i] = expression; \
  return result
INLINE Vec spread(float x) { EACH((Floats{x, x, x, x})); }
INLINE Vec zero() { return spread(0.0f); }
INLINE Vec load(const float* p) { EACH(((const Floats*)p)[i]); }
INLINE void store(float* p, Vec a) {
  UNROLL for (int i = 0; i < 4; ++i) ((Floats*)p)[i] = a.v[i];
}
INLINE Vec operator+(Vec a, Vec b) { EACH(a.v[i] + b.v[i]); }
INLINE Vec operator-(Vec a, Vec b) { EACH(a.v[i] - b.v[i]); }
INLINE Vec operator*(Vec a, Vec b) { EACH(a.v[i] * b.v[i]); }
INLINE Vec operator/(Vec a, Vec b) { EACH(a.v[i] / b.v[i]); }
INLINE Vec larger(Vec a, Vec b) { EACH(a.v[i] > b.v[i] ? a.v[i] : b.v[i]); }
INLINE Vec smaller(Vec a, Vec b) { EACH(a.v[i] < b.v[i] ? a.v[i] : b.v[i]); }
#if defined(__aarch64__)
INLINE Vec fma(Vec a, Vec b, Vec c) { EACH(vfmaq_f32(c.v[i], a.v[i], b.v[i])); }
#else
INLINE Vec fma(Vec a, Vec b, Vec c) { EACH(a.v[i] * b.v[i] + c.v[i]); }  // rounded twice: no instruction is assumed
#endif
INLINE Vec nearest(Vec a) {
  const Vec big = spread(12582912.0f);  // 1.5 * 2^23: adding it leaves no fraction
  return (a + big) - big;
}
INLINE Floats scaled_quarter(Floats a, Floats n) {
  const Ints whole = __builtin_convertvector(n, Ints), half = whole >> 1, rest = whole - half;
  const Ints first = (half + 127) << 23, second = (rest + 127) << 23;
  return a * (Floats)first * (Floats)second;
}
INLINE Vec scaled(Vec a, Vec n) { EACH(scaled_quarter(a.v[i], n.v[i])); }
INLINE Vec load(const bf16* p) {
  EACH(((Floats)(Words{p[4 * i], p[4 * i + 1], p[4 * i + 2], p[4 * i + 3]} << 16)));
}
INLINE Words narrowed(Floats a) {
  const Words bits = (Words)a;
  const Words rounded = bits + (((bits >> 16) & 1) + 0x7fff);
  return (Words)(a == a ? (Floats)rounded : (Floats)(bits | 0x400000)) >> 16;
}
INLINE void store(bf16* p, Vec a) {
  UNROLL for (int i = 0; i < 4; ++i) {
    const Words narrow = narrowed(a.v[i]);
    for (int lane = 0; lane < 4; ++lane) p[4 * i + lane] = bf16(narrow[lane]);
  }
}
INLINE void load_pairs(const bf16* p, Vec& even, Vec& odd) {
  UNROLL for (int i = 0; i < 4; ++i) {
    const Words both = ((const Words*)p)[i];
    even.v[i] = (Floats)(both << 16);
    odd.v[i] = (Floats)(both & 0xffff0000u);
  }
}
#undef EACH

#endif

// The first `count` lanes from or to memory, which holds no more; all of them where there are as many. Others are zeros.
template <class T>
INLINE Vec load_first(const T* p, int64_t count) {
  if (count >= LANES) return load(p);
  T some[LANES] = {};
  std::memcpy(some, p, size_t(count) * sizeof(T));
  return load(some);
}

template <class T>
INLINE void store_first(T* p, Vec a, int64_t count) {
  if (count >= LANES) return store(p, a);
  T some[LANES];
  store(some, a);
  std::memcpy(p, some, size_t(count) * sizeof(T));
}

// The sum of all lanes by one fixed tree: lanes 8 apart, then 4, 2 and 1.
INLINE float sum(Vec a) {
  float x[LANES];
  store(x, a);
  for (int step = LANES / 2; step > 0; step /= 2)
    for (int i = 0; i < step; ++i) x[i] = x[i] + x[i + step];
  return x[0];
}

INLINE float largest(Vec a) {
  float x[LANES];
  store(x, a);
  float best = x[0];
  for (int i = 1; i < LANES; ++i) best = x[i] > best ? x[i] : best;
  return best;
}

// e^x for x in [-87, 88], beyond it e to the nearer end, to about one unit in the last place: 2^n times a polynomial
// (Cephes' coefficients) on [-ln2/2, ln2/2]. NaN stays NaN, for it is the second operand.
INLINE Vec exponential(Vec x) {
  x = smaller(spread(88.0f), larger(spread(-87.0f), x));
  const Vec n = nearest(x * spread(1.44269504088896341f));
  Vec r = fma(n, spread(-0.693359375f), x);
  r = fma(n, spread(2.12194440e-4f), r);
  Vec p = spread(1.9875691500e-4f);
  p = fma(p, r, spread(1.3981999507e-3f));
  p = fma(p, r, spread(8.3334519073e-3f));
  p = fma(p, r, spread(4.1665795894e-2f));
  p = fma(p, r, spread(1.6666665459e-1f));
  p = fma(p, r, spread(5.0000001201e-1f));
  p = fma(p, r * r, r) + spread(1.0f);
  return scaled(p, n);
}

INLINE float widen(float x) { return x; }
INLINE float widen(bf16 x) {
  const uint32_t bits = uint32_t(x) << 16;
  float wide;
  std::memcpy(&wide, &bits, sizeof wide);
  return wide;
}

}  // namespace SUREFOOT_NAMESPACE
