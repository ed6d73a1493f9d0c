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

// Where `x` is above the bound, `a`; elsewhere `b`.
INLINE Vec where_above(Vec x, Vec bound, Vec a, Vec b) {
#if SUREFOOT_ISA >= 2
  return {_mm512_mask_mov_ps(b.v, _mm512_cmp_ps_mask(x.v, bound.v, _CMP_GT_OQ), a.v)};
#elif SUREFOOT_ISA == 1
  const __m256 lo = _mm256_cmp_ps(x.lo, bound.lo, _CMP_GT_OQ), hi = _mm256_cmp_ps(x.hi, bound.hi, _CMP_GT_OQ);
  return {_mm256_blendv_ps(b.lo, a.lo, lo), _mm256_blendv_ps(b.hi, a.hi, hi)};
#else
  Vec result;
  UNROLL for (int i = 0; i < 4; ++i) result.v[i] = x.v[i] > bound.v[i] ? a.v[i] : b.v[i];
  return result;
#endif
}

// Calls `take(row, start)` for the stretches of a row; the last is filled up with impossible tokens.
template <class Take>
INLINE void stretches(const float* x, int64_t count, Take take) {
  for (int64_t start = 0; start < count; start += STRETCH) {
    const int64_t here = count - start < STRETCH ? count - start : STRETCH;
    float filled[STRETCH];
    if (here < STRETCH) {
      for (int64_t i = here; i < STRETCH; ++i) filled[i] = -INFINITY;
      std::memcpy(filled, x + start, size_t(here) * sizeof(float));
    }
    take(here < STRETCH ? filled : x + start, start);
  }
}

// `(1 - u) / w` with w = e^((x - top) / temperature) bounds from below `-log(u) / w`, which is least for the token that is
// drawn. Writes the least bound of every stretch, of the tokens whose logit is above `floor`.
inline void race(uint64_t key, const float* x, int64_t count, double top, double temperature, float floor, float* least) {
  const Vec high = spread(float(top)), inverse = spread(float(1.0 / temperature)), never = spread(INFINITY);
  stretches(x, count, [&](const float* row, int64_t start) {
    float left[STRETCH];
    missing_to_one(key, start, left);
    Vec best = never;
    for (int64_t i = 0; i < STRETCH; i += LANES) {
      const Vec logits = load(row + i), times = load(left + i) * exponential((high - logits) * inverse);
      best = smaller(best, where_above(logits, spread(floor), times, never));
    }
    float lanes[LANES];
    store(lanes, best);
    for (int i = 1; i < LANES; ++i) lanes[0] = lanes[i] < lanes[0] ? lanes[i] : lanes[0];
    least[start / STRETCH] = lanes[0];
  });
}

// The sum of the same w, in `total`; returns that of the tokens whose logit is above `bound`.
inline double mass_above(const float* x, int64_t count, double top, double temperature, float bound, double* total) {
  const Vec high = spread(float(top)), inverse = spread(float(1.0 / temperature));
  double part = 0, whole = 0;
  stretches(x, count, [&](const float* row, int64_t) {
    Vec some = zero(), all = zero();
    for (int64_t i = 0; i < STRETCH; i += LANES) {
      const Vec logits = load(row + i), weights = exponential((logits - high) * inverse);
      some = some + where_above(logits, spread(bound), weights, zero());
      all = all + weights;
    }
    part += sum(some);
    whole += sum(all);
  });
  *total = whole;
  return part;
}

// The lowest token of the largest logit; -1 where a logit is not a number, or the largest is not finite.
inline int64_t best(const float* x, int64_t count) {
  constexpr int64_t PIECE = 4096;
  float top = -INFINITY;
  int64_t place = -1;
  Vec bad = zero();
  for (int64_t start = 0; start < count; start += PIECE) {
    const int64_t stop = count - start < PIECE ? count : start + PIECE;
    Vec most = spread(-INFINITY);
    int64_t i = start;
    for (; i + LANES <= stop; i += LANES) {
      const Vec logits = load(x + i);
      most = larger(logits, most);
      bad = bad + larger(spread(-1.0f), smaller(spread(1.0f), logits));  // NaN passes as the second operand, and stays
    }
    float here = largest(most);
    for (; i < stop; ++i) {
      here = x[i] > here ? x[i] : here;
      if (x[i] != x[i]) return -1;
    }
    if (here > top) top = here, place = start;
  }
  const float sound = sum(bad);
  if (sound != sound || place < 0 || top == INFINITY) return -1;
  while (x[place] != top) ++place;
  return place;
}

// The `most` tokens of the largest logits, the largest first and of equals the lowest token first, in `tokens`; a row with
// NaN gives -1. `most` is at least 1 and at most `count`. `values` is room for `most` logits.
inline void likeliest(const float* x, int64_t count, int64_t most, int64_t* tokens, float* values) {
  int64_t held = 0;
  auto hold = [&](float value, int64_t token) {  // behind its equals, which have lower tokens
    int64_t place = held < most ? held++ : most - 1;
    for (; place > 0 && value > values[place - 1]; --place) {
      values[place] = values[place - 1];
      tokens[place] = tokens[place - 1];
    }
    values[place] = value;
    tokens[place] = token;
  };
  Vec bad = zero();
  stretches(x, count, [&](const float* row, int64_t start) {
    Vec high = spread(-INFINITY);
    for (int64_t i = 0; i < STRETCH; i += LANES) {
      const Vec logits = load(row + i);
      high = larger(logits, high);
      bad = bad + larger(spread(-1.0f), smaller(spread(1.0f), logits));  // as in `best`
    }
    if (held == most && !(largest(high) > values[most - 1])) return;
    const int64_t stop = count - start < STRETCH ? count - start : STRETCH;
    for (int64_t i = 0; i < stop; ++i)
      if (held < most || row[i] > values[most - 1]) hold(row[i], start + i);
  });
  const float sound = sum(bad);
  if (sound != sound)
    for (int64_t i = 0; i < most; ++i) tokens[i] = -1;
}

}  // namespace SUREFOOT_NAMESPACE
