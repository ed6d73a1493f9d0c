// Attention of single rows over the keys they see, in ascending order of position.
//
// A row's keys are counted from 0 in that order wherever they lie, so a node of a tree does what it would do at the end
// of its path. Scores are one sum per key over the head's dimensions, lane by lane and then by a fixed tree; weights are
// added in lanes by that count; values are added key after key.
#pragma once

#include "linear.hpp"

namespace SUREFOOT_NAMESPACE {

using surefoot::Attention;
using surefoot::Call;
using surefoot::Row;
using surefoot::Sequence;

constexpr int MOST_HEAD = 256;

#if SUREFOOT_ISA >= 2
// Lane i of the result is `sum(a[i])`: the same tree, for sixteen vectors at a time.
INLINE Vec sums_of(const Vec (&a)[LANES]) {
  __m512 by8[8], by4[4], by2[2];
  // Vectors meet in the order that brings the sum of a[i] to lane i in the end.
  constexpr int first[8] = {0, 1, 2, 3, 8, 9, 10, 11}, second[8] = {4, 5, 6, 7, 12, 13, 14, 15};
  UNROLL for (int i = 0; i < 8; ++i) {
    const __m512 x = a[first[i]].v, y = a[second[i]].v;
    by8[i] = _mm512_add_ps(_mm512_shuffle_f32x4(x, y, 0x44), _mm512_shuffle_f32x4(x, y, 0xee));
  }
  UNROLL for (int i = 0; i < 4; ++i) {
    const __m512 x = by8[i], y = by8[i + 4];
    by4[i] = _mm512_add_ps(_mm512_shuffle_f32x4(x, y, 0x88), _mm512_shuffle_f32x4(x, y, 0xdd));
  }
  UNROLL for (int i = 0; i < 2; ++i) {
    const __m512 x = by4[2 * i], y = by4[2 * i + 1];
    by2[i] = _mm512_add_ps(_mm512_shuffle_ps(x, y, 0x44), _mm512_shuffle_ps(x, y, 0xee));
  }
  return {_mm512_add_ps(_mm512_shuffle_ps(by2[0], by2[1], 0x88), _mm512_shuffle_ps(by2[0], by2[1], 0xdd))};
}
#else
INLINE Vec sums_of(const Vec (&a)[LANES]) {
  float x[LANES];
  UNROLL for (int i = 0; i < LANES; ++i) x[i] = sum(a[i]);
  return load(x);
}
#endif

// The keys or values of one head: where the one that a row counts as number t lies.
template <class C>
struct Seen {
  const C* base;      // [capacity, size]
  int64_t size;       // of a head
  int64_t start;      // the first committed row that is seen
  int64_t committed;  // how many are seen
  const int64_t* others;
  int64_t count;

  INLINE const C* at(int64_t t) const { return base + (t < committed ? start + t : others[t - committed]) * size; }
};

// Queries, scores and sums of one thread; `scores` has room for the group's rows of `most` keys each.
struct Bench {
  float* scores;
  int64_t most;
};

// scores[h][t] = scale * <query h, key t> for t in [0, keys.count), rounded up to whole vectors.
template <class C>
INLINE void score(const float* queries, int heads, int vectors, const Seen<C>& keys, float scale, const Bench& bench) {
  for (int64_t t = 0; t < keys.count; t += LANES) {
    const C* rows[LANES];
    for (int i = 0; i < LANES; ++i) rows[i] = keys.at(t + i < keys.count ? t + i : keys.count - 1);
    for (int h = 0; h < heads; ++h) {
      const float* query = queries + h * vectors * LANES;
      Vec sums[LANES];
      UNROLL for (int i = 0; i < LANES; ++i) sums[i] = zero();
      for (int v = 0; v < vectors; ++v) {
        const Vec q = load(query + v * LANES);
        if ((v + 1) * LANES <= keys.size) {
          UNROLL for (int i = 0; i < LANES; ++i) sums[i] = fma(q, load(rows[i] + v * LANES), sums[i]);
        } else {
          UNROLL for (int i = 0; i < LANES; ++i) sums[i] = fma(q, load_first(rows[i] + v * LANES, keys.size - v * LANES), sums[i]);
        }
      }
      store(bench.scores + h * bench.most + t, sums_of(sums) * spread(scale));
    }
  }
}

// Turns scores into weights before division; returns what to multiply the sums of values by.
INLINE float weigh(float* scores, int64_t count) {
  float most = scores[0];
  int64_t read = 0;
  if (count >= LANES) {
    Vec best = load(scores);
    for (read = LANES; read + LANES <= count; read += LANES) best = larger(best, load(scores + read));
    most = largest(best);
  }
  for (; read < count; ++read) most = scores[read] > most ? scores[read] : most;
  const int64_t whole = (count + LANES - 1) / LANES * LANES;
  Vec total = zero();
  for (int64_t t = 0; t < whole; t += LANES) {
    Vec weights = exponential(load(scores + t) - spread(most));
    if (t + LANES > count) {
      float last[LANES];
      store(last, weights);
      for (int64_t i = count - t; i < LANES; ++i) last[i] = 0.0f;
      weights = load(last);
    }
    store(scores + t, weights);
    total = total + weights;
  }
  return 1.0f / sum(total);
}

// Some vectors of some heads' sums of values, `out[h * room + v * 16]` for head `h` of those that begin at `head`.
template <class C, int VECTORS, int HEADS>
__attribute__((noinline)) void gather(
    const Seen<C>& values, const Bench& bench, const float* factors, int head, int first, int64_t room, float* out) {
  Vec sums[HEADS][VECTORS];
  UNROLL for (int h = 0; h < HEADS; ++h)
    UNROLL for (int v = 0; v < VECTORS; ++v) sums[h][v] = zero();
  for (int64_t t = 0; t < values.count; ++t) {
    const C* row = values.at(t);
    Vec value[VECTORS];
    if ((first + VECTORS) * LANES <= values.size) {
      UNROLL for (int v = 0; v < VECTORS; ++v) value[v] = load(row + (first + v) * LANES);
    } else {
      UNROLL for (int v = 0; v < VECTORS; ++v) value[v] = load_first(row + (first + v) * LANES, values.size - (first + v) * LANES);
    }
    UNROLL for (int h = 0; h < HEADS; ++h) {
      const Vec weight = spread(bench.scores[(head + h) * bench.most + t]);
      UNROLL for (int v = 0; v < VECTORS; ++v) sums[h][v] = fma(weight, value[v], sums[h][v]);
    }
  }
  UNROLL for (int h = 0; h < HEADS; ++h)
    UNROLL for (int v = 0; v < VECTORS; ++v)
      store(out + (head + h) * room + (first + v) * LANES, sums[h][v] * spread(factors[head + h]));
}

template <class C, int HEADS>
INLINE void gather_heads(
    const Seen<C>& values, const Bench& bench, const float* factors, int head, int vectors, int64_t room, float* out) {
  constexpr int most = HEADS * 4 <= MOST_SUMS ? 4 : HEADS * 2 <= MOST_SUMS ? 2 : 1;
  int first = 0;
  if constexpr (most >= 4)
    for (; first + 4 <= vectors; first += 4) gather<C, 4, HEADS>(values, bench, factors, head, first, room, out);
  if constexpr (most >= 2)
    for (; first + 2 <= vectors; first += 2) gather<C, 2, HEADS>(values, bench, factors, head, first, room, out);
  for (; first < vectors; ++first) gather<C, 1, HEADS>(values, bench, factors, head, first, room, out);
}

// All query heads of one key head, for one row. `queries` and `out`: [heads, vectors * 16].
template <class C>
void attend(
    const float* queries, int heads, int vectors, const Seen<C>& keys, const Seen<C>& values, float scale,
    const Bench& bench, float* factors, float* out) {
  const int64_t room = vectors * LANES;
  score(queries, heads, vectors, keys, scale, bench);
  for (int h = 0; h < heads; ++h) factors[h] = weigh(bench.scores + h * bench.most, keys.count);
  int head = 0;
  for (; head + 4 <= heads; head += 4) gather_heads<C, 4>(values, bench, factors, head, vectors, room, out);
  for (; head + 2 <= heads; head += 2) gather_heads<C, 2>(values, bench, factors, head, vectors, room, out);
  for (; head < heads; ++head) gather_heads<C, 1>(values, bench, factors, head, vectors, room, out);
}

// What a row sees in a layer of a window: the committed rows from where it reaches, then the last of its own round's.
template <class C>
INLINE Seen<C> seen_by(const Row& row, const Attention& block, const Call& call, const C* base, int64_t size) {
  Seen<C> seen{base, size, 0, row.committed, call.seen + row.seen, row.committed + row.num_seen};
  if (block.window > 0 && seen.count > block.window) {
    const int64_t hidden = seen.count - block.window;
    const int64_t old = hidden < row.committed ? hidden : row.committed;
    seen.start = old;
    seen.committed -= old;
    seen.others += hidden - old;
    seen.count = block.window;
  }
  return seen;
}

// Rotates the first dimensions of a head; products and sum are rounded one by one.
INLINE void rotate(float* head, const Sequence& sequence, int64_t position) {
  const int64_t size = sequence.rotated, half = size / 2;
  const float* first = sequence.first + position * size;
  const float* second = sequence.second + position * size;
  float turned[MOST_HEAD];
  for (int64_t i = 0; i < half; ++i) {
    turned[i] = head[i] * first[i] + head[i + half] * second[i];
    turned[i + half] = head[i + half] * first[i + half] + head[i] * second[i + half];
  }
  std::memcpy(head, turned, size_t(size) * sizeof(float));
}

}  // namespace SUREFOOT_NAMESPACE
