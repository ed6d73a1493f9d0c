// Products with packed weights. Every output is one sum in the order of its inputs, whatever is computed beside it.
//
// Packed layout: blocks of 16 outputs; within a block the inputs in order, for each input (fp32) or pair of inputs
// (bf16) the 16 outputs side by side. Outputs and inputs that are missing to a whole block or pair are zeros.
#pragma once

#include "model.hpp"
#include "vectors.hpp"

namespace SUREFOOT_NAMESPACE {

using surefoot::Matrix;
using surefoot::Team;

constexpr int MOST_ROWS = SUREFOOT_ISA >= 2 ? 8 : 4;     // rows computed together
constexpr int MOST_SUMS = SUREFOOT_ISA >= 2 ? 24 : 6;    // sums held in registers
constexpr int64_t FETCHED = 448;                          // steps of the next strip asked for while one ends
constexpr int64_t SHARE = 24;                            // column blocks a thread takes at a time, at most

// Column blocks beside each other for a number of rows: many sums hide latency, too many leave the registers.
constexpr int widest(int rows) {
  const int most = MOST_SUMS / rows;
  return most >= 8 ? 8 : most >= 6 ? 6 : most >= 4 ? 4 : most == 3 ? 3 : most == 2 ? 2 : 1;
}

template <class T>
struct Layout;

template <>
struct Layout<float> {
  static constexpr int64_t unit = 1;
  static INLINE int64_t steps(int64_t inputs) { return inputs; }
};

template <>
struct Layout<bf16> {
  static constexpr int64_t unit = 2;
  static INLINE int64_t steps(int64_t inputs) { return (inputs + 1) / 2; }
};

// Elements of a row of inputs in scratch: whole pairs.
template <class T>
INLINE int64_t padded(int64_t inputs) {
  return Layout<T>::steps(inputs) * Layout<T>::unit;
}

template <int ROWS, int BLOCKS>
INLINE void accumulate(const float* x, int64_t stride, const float* w, int64_t steps, Vec (&sums)[ROWS][BLOCKS]) {
  for (int64_t k = 0; k < steps; ++k) {
    Vec weights[BLOCKS];
    UNROLL for (int b = 0; b < BLOCKS; ++b) weights[b] = load(w + (b * steps + k) * LANES);
    UNROLL for (int r = 0; r < ROWS; ++r) {
      const Vec input = spread(x[r * stride + k]);
      UNROLL for (int b = 0; b < BLOCKS; ++b) sums[r][b] = fma(input, weights[b], sums[r][b]);
    }
  }
}

#if SUREFOOT_ISA == 3
// Steps [from, to) of a strip. With `FETCH` each also asks for a step of the strip behind it, whose first one is `behind`
// steps on: strips are too short for the processor to find their beginnings by itself.
template <bool FETCH, int ROWS, int BLOCKS>
INLINE void accumulate_some(
    const bf16* x, int64_t stride, const bf16* w, int64_t steps, int64_t from, int64_t to, int64_t behind,
    Vec (&sums)[ROWS][BLOCKS]) {
  for (int64_t k = from; k < to; ++k) {
    if (FETCH) UNROLL for (int b = 0; b < BLOCKS; ++b) __builtin_prefetch(w + (b * steps + k + behind) * 2 * LANES, 0, 2);
    __m512bh weights[BLOCKS];
    UNROLL for (int b = 0; b < BLOCKS; ++b) weights[b] = (__m512bh)_mm512_loadu_si512(w + (b * steps + k) * 2 * LANES);
    UNROLL for (int r = 0; r < ROWS; ++r) {
      int pair;
      std::memcpy(&pair, x + r * stride + 2 * k, sizeof pair);
      const __m512bh input = (__m512bh)_mm512_set1_epi32(pair);
      UNROLL for (int b = 0; b < BLOCKS; ++b) sums[r][b].v = _mm512_dpbf16_ps(sums[r][b].v, input, weights[b]);
    }
  }
}
#endif

template <int ROWS, int BLOCKS>
INLINE void accumulate(const bf16* x, int64_t stride, const bf16* w, int64_t steps, Vec (&sums)[ROWS][BLOCKS]) {
#if SUREFOOT_ISA == 3
  const int64_t fetched = steps < FETCHED ? steps : FETCHED, rest = steps - fetched;
  accumulate_some<false>(x, stride, w, steps, 0, rest, 0, sums);
  accumulate_some<true>(x, stride, w, steps, rest, steps, BLOCKS * steps - rest, sums);
#else
  for (int64_t k = 0; k < steps; ++k) {
    Vec even[BLOCKS], odd[BLOCKS];
    UNROLL for (int b = 0; b < BLOCKS; ++b) load_pairs(w + (b * steps + k) * 2 * LANES, even[b], odd[b]);
    UNROLL for (int r = 0; r < ROWS; ++r) {
      const Vec first = spread(widen(x[r * stride + 2 * k])), second = spread(widen(x[r * stride + 2 * k + 1]));
      UNROLL for (int b = 0; b < BLOCKS; ++b) sums[r][b] = fma(second, odd[b], fma(first, even[b], sums[r][b]));
    }
  }
#endif
}

template <class T, int ROWS, int BLOCKS, class Out>
__attribute__((noinline)) void tile(const T* x, int64_t stride, const Matrix& matrix, int64_t row, int64_t block, Out& out) {
  const int64_t steps = Layout<T>::steps(matrix.inputs);
  const T* w = (const T*)matrix.packed + block * steps * Layout<T>::unit * LANES;
  Vec sums[ROWS][BLOCKS];
  UNROLL for (int r = 0; r < ROWS; ++r)
    UNROLL for (int b = 0; b < BLOCKS; ++b) sums[r][b] = zero();
  accumulate<ROWS, BLOCKS>(x + row * stride, stride, w, steps, sums);
  UNROLL for (int b = 0; b < BLOCKS; ++b) {
    const Vec bias = matrix.bias ? load(matrix.bias + (block + b) * LANES) : zero();
    UNROLL for (int r = 0; r < ROWS; ++r) sums[r][b] = matrix.bias ? sums[r][b] + bias : sums[r][b];
  }
  UNROLL for (int r = 0; r < ROWS; ++r) out.template take<BLOCKS>(row + r, block, sums[r]);
}

template <class T, int BLOCKS, class Out>
INLINE void tile_of(const T* x, int64_t stride, const Matrix& matrix, int64_t row, int64_t count, int64_t block, Out& out) {
  switch (count) {
#define CASE(ROWS)                                                                                      \
  case ROWS:                                                                                            \
    if constexpr (ROWS <= MOST_ROWS && ROWS * BLOCKS <= MOST_SUMS + (MOST_SUMS == 6 ? 2 : 0))            \
      tile<T, ROWS, BLOCKS>(x, stride, matrix, row, block, out);                                        \
    return;
    CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8)
#undef CASE
  }
}

// All rows of `BLOCKS` column blocks from `block` on, a few rows at a time.
template <class T, int BLOCKS, class Out>
INLINE void strip(const T* x, int64_t stride, const Matrix& matrix, int64_t rows, int64_t block, Out& out) {
  constexpr int most = MOST_ROWS * BLOCKS <= MOST_SUMS + (MOST_SUMS == 6 ? 2 : 0) ? MOST_ROWS
                       : MOST_SUMS / BLOCKS > 0 ? MOST_SUMS / BLOCKS : 1;
  for (int64_t row = 0; row < rows; row += most)
    tile_of<T, BLOCKS>(x, stride, matrix, row, rows - row < most ? rows - row : most, block, out);
}

// Column blocks [block, stop) of all rows. `out.take<B>(row, block, sums)` gets B blocks of one row; blocks of `paired`
// outputs come two by two.
template <class T, class Out>
void columns(const T* x, int64_t stride, const Matrix& matrix, int64_t rows, int64_t block, int64_t stop, Out& out) {
  int width = widest(rows < MOST_ROWS ? int(rows) : MOST_ROWS);
  if (Out::paired && width % 2) width = width > 1 ? width - 1 : 2;
  while (block < stop) {
    const int64_t left = stop - block;
    int blocks = width;
    while (blocks > left) blocks = blocks > 4 ? 4 : blocks - 1;
    if (Out::paired && blocks % 2) blocks = blocks > 1 ? blocks - 1 : 2;
    switch (blocks) {
      case 8: strip<T, 8>(x, stride, matrix, rows, block, out); break;
      case 6: strip<T, 6>(x, stride, matrix, rows, block, out); break;
      case 4: strip<T, 4>(x, stride, matrix, rows, block, out); break;
      case 3: strip<T, 3>(x, stride, matrix, rows, block, out); break;
      case 2: strip<T, 2>(x, stride, matrix, rows, block, out); break;
      default: strip<T, 1>(x, stride, matrix, rows, block, out); blocks = 1;
    }
    block += blocks;
  }
}

INLINE int64_t blocks_of(const Matrix& matrix) { return (matrix.outputs + LANES - 1) / LANES; }

// The whole product, shared by the team: threads take column blocks as they come, the items of this phase.
template <class T, class Out>
void multiply(const T* x, int64_t stride, const Matrix& matrix, int64_t rows, Team& team, int phase, Out& out) {
  const int64_t blocks = blocks_of(matrix);
  const int64_t width = widest(rows < MOST_ROWS ? int(rows) : MOST_ROWS) * (Out::paired ? 2 : 1);
  int64_t share = (blocks / (team.size * 3) + width - 1) / width * width;
  if (share < width) share = width;
  if (share > SHARE) share = SHARE / width * width;
  for (int64_t block = team.take(phase, share); block < blocks; block = team.take(phase, share)) {
    const int64_t stop = block + share < blocks ? block + share : blocks;
    columns<T>(x, stride, matrix, rows, block, stop, out);
    team.finish(phase, stop - block);
  }
}

// What rounding to the type of the model does to sums.
INLINE Vec rounded(Vec a, const float*) { return a; }
INLINE Vec rounded(Vec a, const bf16*) {
  bf16 narrow[LANES];
  store(narrow, a);
  return load(narrow);
}

// Writes sums to fp32 rows, rounded to the model's type first where `R` is that type.
template <class R>
struct Store {
  static constexpr bool paired = false;
  float* y;
  int64_t stride;
  int64_t outputs;
  template <int BLOCKS>
  INLINE void take(int64_t row, int64_t block, Vec (&sums)[BLOCKS]) {
    UNROLL for (int b = 0; b < BLOCKS; ++b) {
      const int64_t column = (block + b) * LANES;
      store_first(y + row * stride + column, rounded(sums[b], (const R*)nullptr), outputs - column);
    }
  }
};

// Adds sums to the residual stream, each rounded to the stream's type.
template <class T>
struct AddTo {
  static constexpr bool paired = false;
  T* x;
  int64_t stride;
  int64_t outputs;
  template <int BLOCKS>
  INLINE void take(int64_t row, int64_t block, Vec (&sums)[BLOCKS]) {
    UNROLL for (int b = 0; b < BLOCKS; ++b) {
      const int64_t column = (block + b) * LANES;
      const Vec value = rounded(sums[b], (const T*)nullptr);
      T* place = x + row * stride + column;
      store_first(place, load_first(place, outputs - column) + value, outputs - column);
    }
  }
};

INLINE Vec sigmoid(Vec x) { return spread(1.0f) / (spread(1.0f) + exponential(zero() - x)); }
INLINE Vec silu(Vec x) { return x / (spread(1.0f) + exponential(zero() - x)); }

// silu(gate) * up of paired blocks, each step rounded to the model's type.
template <class T>
struct Activate {
  static constexpr bool paired = true;
  T* y;
  int64_t stride;
  int64_t outputs;  // of gates alone
  template <int BLOCKS>
  INLINE void take(int64_t row, int64_t block, Vec (&sums)[BLOCKS]) {
    static_assert(BLOCKS % 2 == 0 || BLOCKS == 1 || BLOCKS == 3, "paired blocks come two by two");
    UNROLL for (int b = 0; b + 1 < BLOCKS; b += 2) {
      const int64_t column = (block + b) / 2 * LANES;
      const T* as = nullptr;
      const Vec gate = rounded(sums[b], as), up = rounded(sums[b + 1], as);
      const Vec active = rounded(silu(gate), as);
      store_first(y + row * stride + column, active * up, outputs - column);
      if (column + LANES > outputs && stride > outputs) y[row * stride + outputs] = T(0);  // the other of the last pair
    }
  }
};

// One over the root of a row's mean square; the sum in fp64 by a fixed tree, so that one rounding remains.
template <class T>
INLINE float inverse_root(const T* x, int64_t width, double eps) {
  double parts[LANES] = {};
  int64_t read = 0;
  for (; read + LANES <= width; read += LANES)
    for (int lane = 0; lane < LANES; ++lane) {
      const double value = widen(x[read + lane]);
      parts[lane] += value * value;
    }
  for (int lane = 0; read + lane < width; ++lane) {
    const double value = widen(x[read + lane]);
    parts[lane] += value * value;
  }
  for (int step = LANES / 2; step > 0; step /= 2)
    for (int i = 0; i < step; ++i) parts[i] += parts[i + step];
  return float(1.0 / std::sqrt(parts[0] / double(width) + eps));
}

// Rows over the root of their mean square, times a weight.
template <class T>
INLINE void normalise(const T* x, int64_t width, const float* weight, double eps, T* out) {
  const float factor = inverse_root(x, width, eps);
  for (int64_t i = 0; i < width; i += LANES) {
    const int64_t left = width - i;
    store_first(out + i, load_first(x + i, left) * spread(factor) * load_first(weight + i, left), left);
  }
}

}  // namespace SUREFOOT_NAMESPACE
