// What drawing a token under Gumbel noise needs of a whole row of logits: bounds that leave a handful of tokens, for which
// ../../sampling/race.py computes the noise as it is defined. Nothing here reaches a result's bits.
#pragma once

#include "vectors.hpp"

namespace SUREFOOT_NAMESPACE {

constexpr int64_t STRETCH = 256;  // tokens at a time
constexpr int WIDTH = SUREFOOT_ISA >= 2 ? 64 : SUREFOOT_ISA == 1 ? 32 : 16;
constexpr int WIDE = WIDTH / 8;

typedef uint64_t Longs __attribute__((vector_size(WIDTH)));
typedef double Doubles __attribute__((vector_size(WIDTH)));
typedef float Halves __attribute__((vector_size(WIDTH / 2), aligned(4), may_alias));

constexpr uint64_t GOLDEN = 0x9e3779b97f4a7c15, FIRST = 0xbf58476d1ce4e5b9, SECOND = 0x94d049bb133111eb;

// 1 - u of `STRETCH` tokens from `first` on, u being their uniforms under a key, as ../../noise.py defines them.
INLINE void missing_to_one(uint64_t key, int64_t first, float* out) {
  Longs state;
  for (int i = 0; i < WIDE; ++i) state[i] = key + GOLDEN * (uint64_t(first + i) + 1);
  for (int64_t done = 0; done < STRETCH; done += WIDE) {
    Longs z = state;
    z = (z ^ (z >> 30)) * FIRST;
    z = (z ^ (z >> 27)) * SECOND;
    z = ~(z ^ (z >> 31)) >> 12 | 0x3ff0000000000000;  // the bits of 2 - u and half a unit more
    const Doubles left = (Doubles)z - (1.0 - 0x1p-53);
    *(Halves*)(out + done) = __builtin_convertvector(left, Halves);
    state += GOLDEN * WIDE;
  }
}

INLINE Vec weights_of(const float* x, double top, double temperature) {
  return exponential((load(x) - spread(float(top))) * spread(float(1.0 / temperature)));
}

// Where `x` is above the bound, `a`; elsewhere 0.
INLINE Vec above(Vec x, Vec bound, Vec a) {
#if SUREFOOT_ISA >= 2
  return {_mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x.v, bound.v, _CMP_GT_OQ), a.v)};
#elif SUREFOOT_ISA == 1
  const __m256 lo = _mm256_cmp_ps(x.lo, bound.lo, _CMP_GT_OQ), hi = _mm256_cmp_ps(x.hi, bound.hi, _CMP_GT_OQ);
  return {_mm256_and_ps(lo, a.lo), _mm256_and_ps(hi, a.hi)};
#else
  Vec kept;
  UNROLL for (int i = 0; i < 4; ++i) kept.v[i] = x.v[i] > bound.v[i] ? a.v[i] : Floats{};
  return kept;
#endif
}

// Calls `take(row, start, count)` for stretches of a row; the last is filled up with impossible tokens.
template <class Take>
INLINE void stretches(const float* x, int64_t count, Take take) {
  for (int64_t start = 0; start < count; start += STRETCH) {
    const int64_t here = count - start < STRETCH ? count - start : STRETCH;
    float filled[STRETCH];
    if (here < STRETCH) {
      for (int64_t i = here; i < STRETCH; ++i) filled[i] = -INFINITY;
      std::memcpy(filled, x + start, size_t(here) * sizeof(float));
    }
    take(here < STRETCH ? filled : x + start, start, here);
  }
}

// With w = e^((x - top) / temperature): `times[i]` = (1 - u) / w, a bound from below of -log(u) / w, whose least belongs to
// the token that is drawn. Returns the sum of all w.
inline double race(uint64_t key, const float* x, int64_t count, double top, double temperature, float* times) {
  double total = 0;
  stretches(x, count, [&](const float* row, int64_t start, int64_t here) {
    float left[STRETCH], last[STRETCH];
    float* out = here < STRETCH ? last : times + start;
    missing_to_one(key, start, left);
    Vec sums = zero();
    for (int64_t i = 0; i < STRETCH; i += LANES) {
      const Vec weights = weights_of(row + i, top, temperature);
      sums = sums + weights;
      store(out + i, load(left + i) / weights);
    }
    total += sum(sums);
    if (here < STRETCH) std::memcpy(times + start, last, size_t(here) * sizeof(float));
  });
  return total;
}

// The sum of the same w of the tokens whose logit is above `bound`.
inline double mass_above(const float* x, int64_t count, double top, double temperature, float bound) {
  double total = 0;
  stretches(x, count, [&](const float* row, int64_t, int64_t) {
    Vec sums = zero();
    for (int64_t i = 0; i < STRETCH; i += LANES)
      sums = sums + above(load(row + i), spread(bound), weights_of(row + i, top, temperature));
    total += sum(sums);
  });
  return total;
}

}  // namespace SUREFOOT_NAMESPACE
