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

// The words of tokens under a key, from which their uniforms come, as ../../noise.py defines them; `WIDE` at a time.
struct Generator {
  Longs state;

  INLINE Generator(uint64_t key, int64_t first) {
    for (int i = 0; i < WIDE; ++i) state[i] = key + GOLDEN * (uint64_t(first + i) + 1);
  }
  INLINE Longs next() {
    Longs z = state;
    z = (z ^ (z >> 30)) * FIRST;
    z = (z ^ (z >> 27)) * SECOND;
    state += GOLDEN * WIDE;
    return z ^ (z >> 31);
  }
};

// 1 - u of words, u being their uniforms.
INLINE Halves missing_to_one(Longs words) {
  const Longs bits = ~words >> 12 | 0x3ff0000000000000;  // of 2 - u and half a unit more
  const Doubles left = (Doubles)bits - (1.0 - 0x1p-53);
  return __builtin_convertvector(left, Halves);
}

// The least 1 - u of `STRETCH` tokens from `first` on.
INLINE float least_missing(uint64_t key, int64_t first) {
  typedef int64_t Signed __attribute__((vector_size(WIDTH)));
  Generator words(key, first);
  Signed most = (Signed)(words.next() >> 12);
  for (int64_t done = WIDE; done < STRETCH; done += WIDE) {
    const Signed here = (Signed)(words.next() >> 12);
    most = here > most ? here : most;
  }
  for (int i = 1; i < WIDE; ++i) most[0] = most[i] > most[0] ? most[i] : most[0];
  return float(1.0 - (double(most[0]) + 0.5) * 0x1p-52);
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
// drawn. The least bound of one stretch, of the tokens whose logit is above `floor`.
INLINE float least_of(uint64_t key, int64_t start, const float* row, Vec high, Vec inverse, Vec floor) {
  const Vec never = spread(INFINITY);
  Generator words(key, start);
  Vec best = never;
  for (int64_t i = 0; i < STRETCH; i += LANES) {
    float left[LANES];
    for (int done = 0; done < LANES; done += WIDE) *(Halves*)(left + done) = missing_to_one(words.next());
    const Vec logits = load(row + i), times = load(left) * exponential((high - logits) * inverse);
    best = smaller(best, where_above(logits, floor, times, never));
  }
  float lanes[LANES];
  store(lanes, best);
  for (int i = 1; i < LANES; ++i) lanes[0] = lanes[i] < lanes[0] ? lanes[i] : lanes[0];
  return lanes[0];
}

constexpr float CLOSE = 1.5f;  // how much greater than the least bound the drawn token's may be, as a rule

// Writes a bound from below of every stretch. At first a stretch's least 1 - u goes with its largest logit, which takes one
// exponential; where that comes close to the least of all, every token's own bound is computed.
inline void race(uint64_t key, const float* x, int64_t count, double top, double temperature, float floor, float* least) {
  const Vec high = spread(float(top)), inverse = spread(float(1.0 / temperature));
  float best = INFINITY;
  int64_t first = 0;
  stretches(x, count, [&](const float* row, int64_t start) {
    Vec most = load(row);
    for (int64_t i = LANES; i < STRETCH; i += LANES) most = larger(most, load(row + i));
    const float logit = largest(most);
    float factor[LANES];
    store(factor, exponential((high - spread(logit)) * inverse));
    const float bound = logit > floor ? least_missing(key, start) * factor[0] : INFINITY;
    least[start / STRETCH] = bound;
    if (bound < best) best = bound, first = start;
  });
  if (best == INFINITY) return;
  best = INFINITY;
  auto refine = [&](const float* row, int64_t start) {
    float& bound = least[start / STRETCH];
    if (bound == INFINITY || bound > best * CLOSE) return;
    bound = least_of(key, start, row, high, inverse, spread(floor));
    best = bound < best ? bound : best;
  };
  const int64_t here = count - first < STRETCH ? count - first : STRETCH;
  if (here == STRETCH) refine(x + first, first);
  stretches(x, count, refine);
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
