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
constexpr int64_t LINE = 64;                             // bytes of a cache line
constexpr int64_t DEPTH = 512;                           // steps of a piece, at most: it and the next stay in the second-level cache
constexpr int64_t BAND = 64;                             // rows whose sums are kept from piece to piece
constexpr int64_t SHARE = 48;                            // column blocks a thread takes at a time, at most
constexpr int64_t SHARES = 4;                            // and so many times, at least

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

// Hides from the compiler what a value is made of, so that it stays in its one register: an address of its own for each
// row and block is more than there are.
template <class V>
INLINE void keep(V& value) {
  asm("" : "+r"(value));
}

// Some rows of inputs, one step after the other.
template <class T>
struct Walk {
  const char *low, *high;  // this step of row 0 and of row 4
  int64_t stride, thrice;  // bytes from row to row

  INLINE Walk(const T* x, int64_t row)
      : low((const char*)x), high(low + 4 * row * int64_t(sizeof(T))), stride(row * int64_t(sizeof(T))), thrice(3 * stride) {}
  INLINE const T* row(int r) const {
    const char* from = r < 4 ? low : high;
    return (const T*)((r & 3) == 3 ? from + thrice : from + (r & 3) * stride);
  }
  INLINE void step() {
    low += Layout<T>::unit * int64_t(sizeof(T));
    high += Layout<T>::unit * int64_t(sizeof(T));
    keep(low), keep(high), keep(stride), keep(thrice);
  }
};

// The sums of one step.
template <int ROWS, int BLOCKS>
INLINE void accumulate(const Walk<float>& x, const float* w, int64_t run, Vec (&sums)[ROWS][BLOCKS]) {
  Vec weights[BLOCKS];
  UNROLL for (int b = 0; b < BLOCKS; ++b) weights[b] = load(w + b * run);
  UNROLL for (int r = 0; r < ROWS; ++r) {
    const Vec input = spread(*x.row(r));
    UNROLL for (int b = 0; b < BLOCKS; ++b) sums[r][b] = fma(input, weights[b], sums[r][b]);
  }
}

template <int ROWS, int BLOCKS>
INLINE void accumulate(const Walk<bf16>& x, const bf16* w, int64_t run, Vec (&sums)[ROWS][BLOCKS]) {
#if SUREFOOT_ISA == 3
  __m512bh weights[BLOCKS];
  UNROLL for (int b = 0; b < BLOCKS; ++b) weights[b] = (__m512bh)_mm512_loadu_si512(w + b * run);
  UNROLL for (int r = 0; r < ROWS; ++r) {
    int pair;
    std::memcpy(&pair, x.row(r), sizeof pair);
    const __m512bh input = (__m512bh)_mm512_set1_epi32(pair);
    UNROLL for (int b = 0; b < BLOCKS; ++b) sums[r][b].v = _mm512_dpbf16_ps(sums[r][b].v, input, weights[b]);
  }
#else
  Vec even[BLOCKS], odd[BLOCKS];
  UNROLL for (int b = 0; b < BLOCKS; ++b) load_pairs(w + b * run, even[b], odd[b]);
  UNROLL for (int r = 0; r < ROWS; ++r) {
    const Vec first = spread(widen(x.row(r)[0])), second = spread(widen(x.row(r)[1]));
    UNROLL for (int b = 0; b < BLOCKS; ++b) sums[r][b] = fma(second, odd[b], fma(first, even[b], sums[r][b]));
  }
#endif
}

// `steps` steps of blocks that lie `run` numbers apart. Each step also asks for one of `FETCHED` blocks of what is read next:
// pieces of a product are too short for the processor to find their beginnings by itself.
template <int FETCHED, class T, int ROWS, int BLOCKS>
INLINE void accumulate_all(
    Walk<T> x, const T* w, int64_t run, int64_t steps, const T* ahead, Vec (&sums)[ROWS][BLOCKS]) {
  constexpr int64_t numbers = LANES * Layout<T>::unit;
  for (const T* stop = w + steps * numbers; w != stop; w += numbers) {
    UNROLL for (int b = 0; b < FETCHED; ++b) __builtin_prefetch(ahead + b * run, 0, 2);
    if (FETCHED) ahead += numbers;
    accumulate(x, w, run, sums);
    x.step();
  }
}

// A stretch of the inputs of some column blocks, and where sums are kept from one stretch to the next.
struct Piece {
  int64_t block;
  int64_t from, to;  // steps
  int64_t behind;    // where what is read next begins, in steps of the whole matrix
  float* kept;       // [rows of the band][blocks * 16]
};

// What one of the tiles of a piece asks for: so many blocks from this one on.
struct Asked {
  int first, count;
};

// Some rows of a piece, from the one that is `row` in all and `place` in the band. Sums go through memory between pieces:
// fp32 as they are, so that pieces change no bit.
template <class T, int ROWS, int BLOCKS, class Out>
__attribute__((noinline)) void tile(
    const T* x, int64_t stride, const Matrix& matrix, int64_t row, int64_t place, const Piece& piece, Asked asked, Out& out) {
  const int64_t steps = Layout<T>::steps(matrix.inputs);
  constexpr int64_t numbers = Layout<T>::unit * LANES;
  const T *packed = (const T*)matrix.packed, *w = packed + (piece.block * steps + piece.from) * numbers;
  float* kept = piece.kept + place * BLOCKS * LANES;
  Vec sums[ROWS][BLOCKS];
  UNROLL for (int r = 0; r < ROWS; ++r)
    UNROLL for (int b = 0; b < BLOCKS; ++b) sums[r][b] = piece.from ? load(kept + (r * BLOCKS + b) * LANES) : zero();
  const Walk<T> walk(x + row * stride + piece.from * Layout<T>::unit, stride);
  const T* ahead = packed + (piece.behind + asked.first * steps) * numbers;
  const int64_t run = steps * numbers, count = piece.to - piece.from;
  constexpr int half = (BLOCKS + 1) / 2;
  if (asked.count == 0) accumulate_all<0>(walk, w, run, count, ahead, sums);
  else if (asked.count == BLOCKS) accumulate_all<BLOCKS>(walk, w, run, count, ahead, sums);
  else if (asked.count == half) accumulate_all<half>(walk, w, run, count, ahead, sums);
  else accumulate_all<1>(walk, w, run, count, ahead, sums);
  if (piece.to < steps) {
    UNROLL for (int r = 0; r < ROWS; ++r)
      UNROLL for (int b = 0; b < BLOCKS; ++b) store(kept + (r * BLOCKS + b) * LANES, sums[r][b]);
    return;
  }
  UNROLL for (int b = 0; b < BLOCKS; ++b) {
    const Vec bias = matrix.bias ? load(matrix.bias + (piece.block + b) * LANES) : zero();
    UNROLL for (int r = 0; r < ROWS; ++r) sums[r][b] = matrix.bias ? sums[r][b] + bias : sums[r][b];
  }
  UNROLL for (int r = 0; r < ROWS; ++r) out.template take<BLOCKS>(row + r, piece.block, sums[r]);
}

template <class T, int BLOCKS, class Out>
INLINE void tile_of(
    const T* x, int64_t stride, const Matrix& matrix, int64_t row, int64_t place, int64_t count, const Piece& piece,
    Asked asked, Out& out) {
  switch (count) {
#define CASE(ROWS)                                                                                      \
  case ROWS:                                                                                            \
    if constexpr (ROWS <= MOST_ROWS && ROWS * BLOCKS <= MOST_SUMS + (MOST_SUMS == 6 ? 2 : 0))            \
      tile<T, ROWS, BLOCKS>(x, stride, matrix, row, place, piece, asked, out);                          \
    return;
    CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8)
#undef CASE
  }
}

// All rows of `BLOCKS` column blocks from `block` on: piece by piece of the inputs, each for a few rows at a time, while the
// next one is fetched. `next` is the block of the strip behind the last piece, as wide as this one; -1: none is known.
template <class T, int BLOCKS, class Out>
INLINE void strip(
    const T* x, int64_t stride, const Matrix& matrix, int64_t rows, int64_t block, int64_t next, Out& out) {
  constexpr int most = MOST_ROWS * BLOCKS <= MOST_SUMS + (MOST_SUMS == 6 ? 2 : 0) ? MOST_ROWS
                       : MOST_SUMS / BLOCKS > 0 ? MOST_SUMS / BLOCKS : 1;
  static_assert(LANES * Layout<T>::unit * int64_t(sizeof(T)) == LINE, "a step of a block is a line");
  const int64_t steps = Layout<T>::steps(matrix.inputs), pieces = (steps + DEPTH - 1) / DEPTH;
  const int64_t length = (steps + pieces - 1) / pieces;
  alignas(64) float kept[BAND * BLOCKS * LANES];
  for (int64_t first = 0; first < rows; first += BAND) {
    const int64_t stop = rows - first < BAND ? rows : first + BAND, tiles = (stop - first + most - 1) / most;
    for (int64_t from = 0; from < steps; from += length) {
      const int64_t to = from + length < steps ? from + length : steps;
      const Piece piece{block, from, to, to < steps ? block * steps + to : next * steps, kept};
      int asked = (to < steps || next >= 0) && stop == rows ? BLOCKS : 0;
      for (int64_t row = first; row < stop; row += most) {
        const int share = tiles == 1 ? asked : tiles == 2 ? (asked + 1) / 2 : asked > 0;
        tile_of<T, BLOCKS>(
            x, stride, matrix, row, row - first, stop - row < most ? stop - row : most, piece, {BLOCKS - asked, share}, out);
        asked -= share;
      }
    }
  }
}

// Column blocks [block, stop) of all rows; those at `next` come after. `out.take<B>(row, block, sums)` gets B blocks of one
// row; blocks of `paired` outputs come two by two.
template <class T, class Out>
void columns(
    const T* x, int64_t stride, const Matrix& matrix, int64_t rows, int64_t block, int64_t stop, int64_t next, Out& out) {
  int width = widest(rows < MOST_ROWS ? int(rows) : MOST_ROWS);
  if (Out::paired && width % 2) width = width > 1 ? width - 1 : 2;
  while (block < stop) {
    const int64_t left = stop - block;
    int blocks = width;
    while (blocks > left) blocks = blocks > 4 ? 4 : blocks - 1;
    if (Out::paired && blocks % 2) blocks = blocks > 1 ? blocks - 1 : 2;
    const int64_t behind = block + blocks < stop ? block + blocks : next;
    switch (blocks) {
      case 8: strip<T, 8>(x, stride, matrix, rows, block, behind, out); break;
      case 6: strip<T, 6>(x, stride, matrix, rows, block, behind, out); break;
      case 4: strip<T, 4>(x, stride, matrix, rows, block, behind, out); break;
      case 3: strip<T, 3>(x, stride, matrix, rows, block, behind, out); break;
      case 2: strip<T, 2>(x, stride, matrix, rows, block, behind, out); break;
      default: strip<T, 1>(x, stride, matrix, rows, block, behind, out); blocks = 1;
    }
    block += blocks;
  }
}

INLINE int64_t blocks_of(const Matrix& matrix) { return (matrix.outputs + LANES - 1) / LANES; }

// The whole product, shared by the team: threads take column blocks as they come, the items of this phase, and know what
// they take next before they are done.
template <class T, class Out>
void multiply(const T* x, int64_t stride, const Matrix& matrix, int64_t rows, Team& team, int phase, Out& out) {
  const int64_t blocks = blocks_of(matrix);
  const int64_t width = widest(rows < MOST_ROWS ? int(rows) : MOST_ROWS) * (Out::paired ? 2 : 1);
  int64_t share = (blocks / (team.size * SHARES) + width - 1) / width * width;
  if (share < width) share = width;
  if (share > SHARE) share = SHARE / width * width;
  int64_t block = team.take(phase, share);
  while (block < blocks) {
    const int64_t next = team.take(phase, share), stop = block + share < blocks ? block + share : blocks;
    columns<T>(x, stride, matrix, rows, block, stop, next < blocks ? next : -1, out);
    team.finish(phase, stop - block);
    block = next;
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
