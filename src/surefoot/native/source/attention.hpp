// Attention of rows over the keys they see, in ascending order of position.
//
// A row's keys are counted from 0 in that order wherever they lie, so a node of a tree does what it would do at the end
// of its path. Scores are one sum per key over the head's dimensions, lane by lane and then by a fixed tree; weights are
// added in lanes by that count; values are added key after key. Rows of one sequence go through its keys and values
// together, which are read once for all of them: that changes where a sum waits, not what is added to it.
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
  int64_t start;      // the first row in one piece that is seen
  int64_t committed;  // how many of them are seen
  const int64_t* others;
  int64_t count;

  INLINE const C* at(int64_t t) const { return base + (t < committed ? start + t : others[t - committed]) * size; }
};

constexpr int64_t ATTENDED = 8;                          // rows that go through the keys together, at most
constexpr int TOGETHER = SUREFOOT_ISA >= 2 ? 4 : 1;      // queries whose sums are held in registers
constexpr int ENOUGH = SUREFOOT_ISA >= 2 ? 12 : 24;      // queries that are worth turning keys for
constexpr int64_t CHUNK = 64;                            // values that stay in the nearest cache while all rows add them

// What one thread keeps of some rows of a sequence, a query for each of their heads.
struct Bench {
  float* queries;  // [queries, vectors * 16], filled up with zeros
  float* sums;     // [queries, vectors * 16]
  float* scores;   // [queries, most], each between 16 numbers that others may overwrite
  float* turned;   // [vectors * 16, 16]
  float* factors;  // [queries]
  int64_t most;
  int heads;       // queries of a row
  int vectors;

  INLINE int64_t room() const { return vectors * LANES; }
  INLINE int64_t apart() const { return most + 2 * LANES; }
  INLINE float* of(int64_t query) const { return scores + query * apart() + LANES; }
};

// The scores of a row's keys from number `first` on, wherever they lie, for all its heads.
template <class C>
INLINE void score_each(const Seen<C>& keys, int64_t first, int64_t query, float scale, const Bench& bench) {
  for (int64_t t = first; t < keys.count; t += LANES) {
    const C* rows[LANES];
    for (int i = 0; i < LANES; ++i) rows[i] = keys.at(t + i < keys.count ? t + i : keys.count - 1);
    for (int64_t h = query; h < query + bench.heads; ++h) {
      const float* own = bench.queries + h * bench.room();
      Vec sums[LANES];
      UNROLL for (int i = 0; i < LANES; ++i) sums[i] = zero();
      for (int v = 0; v < bench.vectors; ++v) {
        const Vec q = load(own + v * LANES);
        if ((v + 1) * LANES <= keys.size) {
          UNROLL for (int i = 0; i < LANES; ++i) sums[i] = fma(q, load(rows[i] + v * LANES), sums[i]);
        } else {
          UNROLL for (int i = 0; i < LANES; ++i) sums[i] = fma(q, load_first(rows[i] + v * LANES, keys.size - v * LANES), sums[i]);
        }
      }
      store(bench.of(h) + t, sums_of(sums) * spread(scale));
    }
  }
}

// Sixteen keys with their dimensions as rows: `out` [vectors * 16, 16].
template <class C>
INLINE void turn(const C* const (&rows)[LANES], int64_t size, int vectors, float* out) {
  for (int v = 0; v < vectors; ++v, out += LANES * LANES) {
    Vec a[LANES];
    UNROLL for (int i = 0; i < LANES; ++i) a[i] = load_first(rows[i] + v * LANES, size - v * LANES);
#if SUREFOOT_ISA >= 2
    __m512 b[LANES], c[LANES];
    UNROLL for (int i = 0; i < LANES; i += 2) {
      b[i] = _mm512_unpacklo_ps(a[i].v, a[i + 1].v);
      b[i + 1] = _mm512_unpackhi_ps(a[i].v, a[i + 1].v);
    }
    UNROLL for (int i = 0; i < LANES; i += 4)
      UNROLL for (int j = 0; j < 2; ++j) {
        c[i + 2 * j] = (__m512)_mm512_unpacklo_pd((__m512d)b[i + j], (__m512d)b[i + j + 2]);
        c[i + 2 * j + 1] = (__m512)_mm512_unpackhi_pd((__m512d)b[i + j], (__m512d)b[i + j + 2]);
      }
    UNROLL for (int j = 0; j < 4; ++j) {  // c[4 g + j] has of four rows the columns j, j + 4, j + 8 and j + 12
      const __m512 even = _mm512_shuffle_f32x4(c[j], c[4 + j], 0x88), odd = _mm512_shuffle_f32x4(c[j], c[4 + j], 0xdd);
      const __m512 more = _mm512_shuffle_f32x4(c[8 + j], c[12 + j], 0x88), rest = _mm512_shuffle_f32x4(c[8 + j], c[12 + j], 0xdd);
      _mm512_storeu_ps(out + j * LANES, _mm512_shuffle_f32x4(even, more, 0x88));
      _mm512_storeu_ps(out + (j + 4) * LANES, _mm512_shuffle_f32x4(odd, rest, 0x88));
      _mm512_storeu_ps(out + (j + 8) * LANES, _mm512_shuffle_f32x4(even, more, 0xdd));
      _mm512_storeu_ps(out + (j + 12) * LANES, _mm512_shuffle_f32x4(odd, rest, 0xdd));
    }
#else
    UNROLL for (int i = 0; i < LANES; ++i) {
      float x[LANES];
      store(x, a[i]);
      for (int j = 0; j < LANES; ++j) out[j * LANES + i] = x[j];
    }
#endif
  }
}

// Some queries times sixteen turned keys: each lane is one key, and its sum goes the way of `sums_of`.
template <int QUERIES>
INLINE void dot(const float* turned, const float* queries, int vectors, Vec (&out)[QUERIES]) {
  constexpr int order[LANES] = {0, 8, 4, 12, 2, 10, 6, 14, 1, 9, 5, 13, 3, 11, 7, 15};
  const int64_t room = vectors * LANES;
  Vec waiting[5][QUERIES];
  UNROLL for (int i = 0; i < LANES; ++i) {
    Vec here[QUERIES];
    UNROLL for (int q = 0; q < QUERIES; ++q) here[q] = zero();
    for (int64_t d = order[i]; d < room; d += LANES) {
      const Vec key = load(turned + d * LANES);
      UNROLL for (int q = 0; q < QUERIES; ++q) here[q] = fma(spread(queries[q * room + d]), key, here[q]);
    }
    int level = 0;
    UNROLL for (int bits = i; bits & 1; bits >>= 1, ++level)
      UNROLL for (int q = 0; q < QUERIES; ++q) here[q] = waiting[level][q] + here[q];
    UNROLL for (int q = 0; q < QUERIES; ++q) waiting[level][q] = here[q];
  }
  UNROLL for (int q = 0; q < QUERIES; ++q) out[q] = waiting[4][q];
}

// The scores of keys in one piece, [from, stop) of the cache, for `count` rows. A row takes those it sees; what it does not
// see falls beside its scores, or where a later key's score will be.
template <class C>
INLINE void score_together(
    const Seen<C>* keys, const Seen<C>* values, int count, int64_t from, int64_t stop, float scale, const Bench& bench) {
  const int64_t size = keys->size, room = bench.room();
  const int queries = count * bench.heads;
  for (int64_t place = from; place < stop; place += LANES) {
    const C* rows[LANES];
    for (int i = 0; i < LANES; ++i) rows[i] = keys->base + (place + i < stop ? place + i : stop - 1) * size;
    const int64_t left = (stop - place < LANES ? stop - place : LANES) * size;
    for (int64_t i = 0; i < left; i += LINE / int64_t(sizeof(C))) {
      __builtin_prefetch(values->base + place * size + i, 0, 2);
      __builtin_prefetch(keys->base + (place + LANES) * size + i, 0, 3);
    }
    turn(rows, size, bench.vectors, bench.turned);
    float* puts[ATTENDED];
    for (int r = 0; r < count; ++r) {
      const int64_t t = place - keys[r].start;
      puts[r] = t > -LANES && t < keys[r].committed ? bench.of(r * bench.heads) + t : nullptr;
    }
    int row = 0, head = 0;
    auto put = [&](Vec scores) {
      if (puts[row]) store(puts[row] + head * bench.apart(), scores * spread(scale));
      if (++head == bench.heads) ++row, head = 0;
    };
    int query = 0;
    for (; query + TOGETHER <= queries; query += TOGETHER) {
      Vec scores[TOGETHER];
      dot<TOGETHER>(bench.turned, bench.queries + query * room, bench.vectors, scores);
      UNROLL for (int q = 0; q < TOGETHER; ++q) put(scores[q]);
    }
    for (; query < queries; ++query) {
      Vec scores[1];
      dot<1>(bench.turned, bench.queries + query * room, bench.vectors, scores);
      put(scores[0]);
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

// Adds values in one piece, times the weights of some heads from number `t` on, to some vectors of their sums.
template <class C, int VECTORS, int HEADS>
__attribute__((noinline)) void gather(
    const C* values, int64_t size, int64_t t, int64_t count, int64_t query, int first, const Bench& bench) {
  Vec sums[HEADS][VECTORS];
  float* kept = bench.sums + query * bench.room() + first * LANES;
  UNROLL for (int h = 0; h < HEADS; ++h)
    UNROLL for (int v = 0; v < VECTORS; ++v) sums[h][v] = load(kept + h * bench.room() + v * LANES);
  const float* weights = bench.of(query) + t;
  const int64_t apart = bench.apart();
  values += first * LANES;
  for (int64_t i = 0; i < count; ++i, values += size) {
    Vec value[VECTORS];
    if ((first + VECTORS) * LANES <= size) {
      UNROLL for (int v = 0; v < VECTORS; ++v) value[v] = load(values + v * LANES);
    } else {
      UNROLL for (int v = 0; v < VECTORS; ++v) value[v] = load_first(values + v * LANES, size - (first + v) * LANES);
    }
    UNROLL for (int h = 0; h < HEADS; ++h) {
      const Vec weight = spread(weights[h * apart + i]);
      UNROLL for (int v = 0; v < VECTORS; ++v) sums[h][v] = fma(weight, value[v], sums[h][v]);
    }
  }
  UNROLL for (int h = 0; h < HEADS; ++h)
    UNROLL for (int v = 0; v < VECTORS; ++v) store(kept + h * bench.room() + v * LANES, sums[h][v]);
}

template <class C, int HEADS>
INLINE void gather_heads(const C* values, int64_t size, int64_t t, int64_t count, int64_t query, const Bench& bench) {
  constexpr int most = HEADS * 4 <= MOST_SUMS ? 4 : HEADS * 2 <= MOST_SUMS ? 2 : 1;
  int first = 0;
  if constexpr (most >= 4)
    for (; first + 4 <= bench.vectors; first += 4) gather<C, 4, HEADS>(values, size, t, count, query, first, bench);
  if constexpr (most >= 2)
    for (; first + 2 <= bench.vectors; first += 2) gather<C, 2, HEADS>(values, size, t, count, query, first, bench);
  for (; first < bench.vectors; ++first) gather<C, 1, HEADS>(values, size, t, count, query, first, bench);
}

// A row's values from number `t` on, as many as lie in one piece there, for all its heads.
template <class C>
INLINE void gather_row(const Seen<C>& values, int64_t t, int64_t count, int64_t query, const Bench& bench) {
  const C* from = values.at(t);
  const int64_t stop = query + bench.heads;
  for (; query + 4 <= stop; query += 4) gather_heads<C, 4>(from, values.size, t, count, query, bench);
  for (; query + 2 <= stop; query += 2) gather_heads<C, 2>(from, values.size, t, count, query, bench);
  for (; query < stop; ++query) gather_heads<C, 1>(from, values.size, t, count, query, bench);
}

// All query heads of one key head, for `count` rows of a sequence: `bench.queries` in, `bench.sums` out.
template <class C>
void attend(const Seen<C>* keys, const Seen<C>* values, int count, float scale, const Bench& bench) {
  const int heads = bench.heads;
  int64_t from = keys->start, stop = from;
  for (int r = 0; r < count; ++r) {
    if (keys[r].committed == 0) continue;
    const int64_t end = keys[r].start + keys[r].committed;
    from = keys[r].start < from || stop == from ? keys[r].start : from;
    stop = end > stop ? end : stop;
  }
  const bool together = count * heads >= ENOUGH;
  if (together) score_together(keys, values, count, from, stop, scale, bench);
  for (int r = 0; r < count; ++r) {
    score_each(keys[r], together ? keys[r].committed : 0, r * heads, scale, bench);
    for (int64_t query = r * heads; query < (r + 1) * heads; ++query) {
      bench.factors[query] = weigh(bench.of(query), keys[r].count);
      for (int64_t i = 0; i < bench.room(); i += LANES) store(bench.sums + query * bench.room() + i, zero());
    }
  }
  for (int64_t place = from; place < stop; place += CHUNK)
    for (int r = 0; r < count; ++r) {
      const Seen<C>& row = values[r];
      const int64_t first = place > row.start ? place - row.start : 0, end = place + CHUNK - row.start;
      const int64_t last = end < row.committed ? end : row.committed;
      if (first < last) gather_row(row, first, last - first, r * heads, bench);
    }
  for (int r = 0; r < count; ++r) {
    for (int64_t t = values[r].committed; t < values[r].count; ++t) gather_row(values[r], t, 1, r * heads, bench);
    for (int64_t query = r * heads; query < (r + 1) * heads; ++query)
      for (int64_t i = 0; i < bench.room(); i += LANES) {
        float* sums = bench.sums + query * bench.room() + i;
        store(sums, load(sums) * spread(bench.factors[query]));
      }
  }
}

// What a row sees in a layer of a window: the committed rows from where it reaches, then the last of its own round's, those
// that go on in the same piece counted with the committed ones.
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
  while (seen.committed < seen.count && *seen.others == seen.start + seen.committed) ++seen.committed, ++seen.others;
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
