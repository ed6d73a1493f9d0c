// A feed-forward of experts (Shazeer et al. 2017, arXiv 1701.06538): each row goes through a few of many, and through one
// that all share.
//
// Rows of one expert are computed together: its products are sums in their own fixed order, whatever rows lie beside. A
// row adds its experts up by ascending number, in fp32, the shared one last, and the sum is rounded once.
#pragma once

#include "workshop.hpp"

namespace SUREFOOT_NAMESPACE {

using surefoot::Experts;

constexpr int64_t PIECE = 24;     // column blocks of one expert that a thread takes at a time
constexpr int64_t STRIP = 256;    // columns of one row that a thread adds up at a time

INLINE int64_t even(int64_t size) { return (size + 1) / 2 * 2; }
INLINE int64_t pieces_of(const Matrix& matrix) { return (blocks_of(matrix) + PIECE - 1) / PIECE; }

// Which rows each expert has: `order` lists them expert after expert, ascending, from `starts[expert]` on; `slots` says
// where a row's j-th expert stands in it.
struct Grouping {
  int64_t* experts;  // of each row, ascending
  int64_t* starts;
  int64_t* fill;
  int64_t* order;
  int64_t* slots;
  int64_t* busy;  // experts with rows, ascending
  int64_t num_busy;
  char* rest;

  static int64_t numbers(const Experts& block, int64_t rows) { return 3 * rows * block.num_active + 3 * (block.num_experts + 1); }
};

// A thread's memory for a block: its grouping, and one expert's rows side by side.
inline int64_t experts_room(const Call& call, const Experts& block) {
  const int64_t wide = call.hidden > block.inner ? call.hidden : block.inner;
  const int64_t logits = (block.num_experts + LANES) * int64_t(sizeof(float));
  const int64_t rows = call.num_rows * even(wide) * int64_t(sizeof(float));
  return Grouping::numbers(block, call.num_rows) * 8 + 64 + (rows > logits ? rows : logits);
}

INLINE Grouping group(const Experts& block, int64_t rows, const Route* routes, char* memory) {
  const int64_t count = rows * block.num_active;
  int64_t* at = (int64_t*)memory;
  auto take = [&](int64_t size) {
    int64_t* place = at;
    at += size;
    return place;
  };
  Grouping group{take(count), take(block.num_experts + 1), take(block.num_experts + 1), take(count), take(count),
                 take(block.num_experts + 1), 0, nullptr};
  group.rest = memory + aligned(Grouping::numbers(block, rows) * 8);
  for (int64_t e = 0; e <= block.num_experts; ++e) group.starts[e] = 0;
  // Copied first: a thread that comes when all is done may find the next block's routes change under it.
  for (int64_t i = 0; i < count; ++i) group.experts[i] = routes[i].expert;
  for (int64_t i = 0; i < count; ++i) ++group.starts[group.experts[i] + 1];
  for (int64_t e = 0; e < block.num_experts; ++e) {
    if (group.starts[e + 1] > 0) group.busy[group.num_busy++] = e;
    group.starts[e + 1] += group.starts[e];
    group.fill[e] = group.starts[e];
  }
  for (int64_t i = 0; i < count; ++i) {
    const int64_t slot = group.fill[group.experts[i]]++;
    group.order[slot] = i / block.num_active;
    group.slots[i] = slot;
  }
  return group;
}

// The experts of one row: the most probable ones, of equals the first; their weights are rounded to the model's type.
template <class T>
void route(const Experts& block, const float* logits, float* chances, Route* routes) {
  const int64_t experts = block.num_experts, active = block.num_active;
  float most = logits[0];
  for (int64_t e = 1; e < experts; ++e) most = logits[e] > most ? logits[e] : most;
  Vec total = zero();
  for (int64_t e = 0; e < experts; e += LANES) {
    float shares[LANES];
    store(shares, exponential(load_first(logits + e, experts - e) - spread(most)));
    for (int64_t i = experts - e; i < LANES; ++i) shares[i] = 0.0f;
    store(chances + e, load(shares));
    total = total + load(shares);
  }
  const float all = sum(total);
  for (int64_t e = 0; e < experts; ++e) chances[e] = chances[e] / all;
  for (int64_t j = 0; j < active; ++j) {
    int64_t best = 0;
    for (int64_t e = 1; e < experts; ++e) best = chances[e] > chances[best] ? e : best;
    int64_t place = j;  // among those chosen before, by number
    for (; place > 0 && routes[place - 1].expert > best; --place) routes[place] = routes[place - 1];
    routes[place] = {best, chances[best]};
    chances[best] = -1.0f;
  }
  float chosen = 0.0f;
  for (int64_t j = 0; j < active; ++j) chosen = chosen + routes[j].weight;
  for (int64_t j = 0; j < active; ++j) {
    float weight[LANES];
    store(weight, rounded(spread(block.renormalised ? routes[j].weight / chosen : routes[j].weight), (const T*)nullptr));
    routes[j].weight = weight[0];
  }
}

// Some column blocks of the product of an expert's rows; `take` is told where its first row's results belong.
template <class T, class Out>
INLINE void piece(const T* x, int64_t stride, int64_t rows, const Matrix& matrix, int64_t number, Out out) {
  const int64_t blocks = blocks_of(matrix), first = number * PIECE;
  columns<T>(x, stride, matrix, rows, first, first + PIECE < blocks ? first + PIECE : blocks, -1, out);
}

template <class T>
void experts_block(const Call& call, const Experts& block, Workshop<T>& shop, Phases& phases) {
  Team& team = phases.team;
  const int64_t rows = call.num_rows, hidden = call.hidden, active = block.num_active;
  const int64_t scores = block.router.outputs, wide = padded<T>(hidden);
  const int64_t inner = padded<T>(block.inner), shared = block.shared_inner ? padded<T>(block.shared_inner) : 0;
  norm_rows(call, block.norm, block.eps, shop, phases, INT64_MAX);  // the experts read them too
  Store<T> logits{shop.fused, scores, scores};
  multiply(shop.normed, wide, block.router, rows, team, phases.now, logits);
  phases.next(blocks_of(block.router));

  phases.share_out(rows, 4, [&](int64_t row) {
    route<T>(block, shop.fused + row * scores, (float*)shop.own, shop.routes + row * active);
  });

  const Grouping groups = group(block, rows, shop.routes, shop.own);
  T *through = shop.inner, *through_shared = shop.inner + rows * active * inner;
  float *parts = shop.parts, *parts_shared = shop.parts + rows * active * hidden;
  const int64_t up_pieces = pieces_of(block.gate_up[0]), down_pieces = pieces_of(block.down[0]);
  // As many as there may be, busy or not: a thread that comes when all is done, and grouped the next block's routes, must
  // neither find an item left over nor wait for one that never was.
  const int64_t most_busy = rows * active < block.num_experts ? rows * active : block.num_experts;
  const int64_t up_items = most_busy * up_pieces, down_items = most_busy * down_pieces;
  const int64_t shared_up = shared ? pieces_of(block.shared_gate_up) : 0;
  const int64_t shared_down = shared ? pieces_of(block.shared_down) : 0;
  phases.share_out(up_items + shared_up, 1, [&](int64_t i) {
    if (i >= up_items) {
      Activate<T> out{through_shared, shared, block.shared_inner};
      return piece(shop.normed, wide, rows, block.shared_gate_up, i - up_items, out);
    }
    if (i / up_pieces >= groups.num_busy) return;
    const int64_t expert = groups.busy[i / up_pieces], first = groups.starts[expert];
    const int64_t count = groups.starts[expert + 1] - first;
    const T* x = shop.normed + groups.order[first] * wide;
    if (count > 1) {
      T* together = (T*)groups.rest;
      for (int64_t r = 0; r < count; ++r)
        std::memcpy(together + r * wide, shop.normed + groups.order[first + r] * wide, size_t(wide) * sizeof(T));
      x = together;
    }
    Activate<T> out{through + first * inner, inner, block.inner};
    piece(x, wide, count, block.gate_up[expert], i % up_pieces, out);
  });

  phases.share_out(down_items + shared_down, 1, [&](int64_t i) {
    if (i >= down_items) {
      Store<T> out{parts_shared, hidden, hidden};
      return piece(through_shared, shared, rows, block.shared_down, i - down_items, out);
    }
    if (i / down_pieces >= groups.num_busy) return;
    const int64_t expert = groups.busy[i / down_pieces], first = groups.starts[expert];
    Store<T> out{parts + first * hidden, hidden, hidden};
    piece(through + first * inner, inner, groups.starts[expert + 1] - first, block.down[expert], i % down_pieces, out);
  });

  const int64_t strips = (hidden + STRIP - 1) / STRIP;
  phases.share_out(rows * strips, 4, [&](int64_t i) {
    const int64_t row = i / strips, start = i % strips * STRIP, stop = start + STRIP < hidden ? start + STRIP : hidden;
    const Vec gate = shared ? sigmoid(spread(shop.fused[row * scores + block.num_experts])) : zero();
    for (int64_t column = start; column < stop; column += LANES) {
      const int64_t left = stop - column;
      Vec total = zero();
      for (int64_t j = row * active; j < (row + 1) * active; ++j) {
        const Vec part = load_first(parts + groups.slots[j] * hidden + column, left);
        total = fma(spread(shop.routes[j].weight), part, total);
      }
      if (shared) total = fma(gate, load_first(parts_shared + row * hidden + column, left), total);
      T* place = (T*)call.stream + row * hidden + column;
      store_first(place, load_first(place, left) + rounded(total, (const T*)nullptr), left);
    }
  });
}

}  // namespace SUREFOOT_NAMESPACE
