// What the blocks of a forward share: phases, the memory between them, and rows normed for a product.
#pragma once

#include "linear.hpp"

namespace SUREFOOT_NAMESPACE {

using surefoot::Call;

INLINE int64_t aligned(int64_t bytes) { return (bytes + 63) / 64 * 64; }

// Counts a thread's phases of a job.
struct Phases {
  Team& team;
  int member;
  int now = 0;

  // Waits for all `items` of this phase, and goes on to the next.
  void next(int64_t items) { team.wait(now++, items); }

  // Takes items one after the other, `share` at a time, and does `each` of them; then goes on to the next phase.
  template <class Each>
  INLINE void share_out(int64_t items, int64_t share, Each each) {
    for (int64_t first = team.take(now, share); first < items; first = team.take(now, share)) {
      const int64_t stop = first + share < items ? first + share : items;
      for (int64_t i = first; i < stop; ++i) each(i);
      team.finish(now, stop - first);
    }
    next(items);
  }
};

// One of a row's experts, and its weight.
struct Route {
  int64_t expert;
  float weight;
};

// Where a forward keeps what lies between its phases.
template <class T>
struct Workshop {
  bool few;     // rows: every thread norms them for itself, and nobody waits
  T* stream;    // [rows, hidden], where the caller has none
  T* normed;    // [rows, padded hidden], one for each thread where rows are few
  float* fused; // [rows, what the first linear of a block gives]
  T* inner;     // [rows, padded width of what the second linear of a block reads]
  float* parts; // what experts give, for each of a row's
  Route* routes;
  float* scores;
  float* queries;  // of some rows' groups, and what comes of them
  float* turned;   // keys
  float* factors;  // for each of the queries
  char* own;       // of this thread alone
  int64_t most_seen;
  int64_t group_room;
  int64_t most_together;  // rows whose scores there is room for
};

constexpr int64_t FEW_ROWS = 8;

// Norms all rows into `shop.normed`: few rows by every thread for itself, unless the `items` it needs them for are all
// taken; many by all together, in a phase of their own.
template <class T>
void norm_rows(const Call& call, const float* weight, double eps, Workshop<T>& shop, Phases& phases, int64_t items) {
  const int64_t width = call.hidden, stride = padded<T>(width);
  auto norm = [&](int64_t row) {
    T* out = shop.normed + row * stride;
    normalise((const T*)call.stream + row * width, width, weight, eps, out);
    if (stride > width) out[width] = T(0);
  };
  if (!shop.few) return phases.share_out(call.num_rows, 4, norm);
  if (phases.team.all_taken(phases.now, items)) return;
  for (int64_t row = 0; row < call.num_rows; ++row) norm(row);
}

}  // namespace SUREFOOT_NAMESPACE
