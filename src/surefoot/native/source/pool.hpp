// The process's one pool of threads: workers that wait politely, and teams that run a job together.
#pragma once

#include <atomic>
#include <cstdint>

namespace surefoot {

// A stretch of a job: items that threads take and finish.
struct alignas(64) Phase {
  std::atomic<int64_t> taken{0};
  std::atomic<int64_t> finished{0};
};

// What the threads of a running job share. A job is a row of phases. A phase is over when its items are finished, not
// when all threads have come: one that the system let wait goes through what is over without holding anybody up.
class Team {
 public:
  Team(int size, Phase* phases) : size(size), phases_(phases) {}

  // The next `step` items of a phase that nobody has taken yet, as their first index; all items' number or more when
  // none are left.
  int64_t take(int phase, int64_t step) { return phases_[phase].taken.fetch_add(step, std::memory_order_relaxed); }
  bool all_taken(int phase, int64_t items) const { return phases_[phase].taken.load(std::memory_order_relaxed) >= items; }

  // Counts items as finished: what they wrote can be read by whoever waited for the phase.
  void finish(int phase, int64_t items) { phases_[phase].finished.fetch_add(items, std::memory_order_acq_rel); }

  // Until `items` are finished. Whoever waits long gives its core away.
  void wait(int phase, int64_t items) const;

  const int size;

 private:
  Phase* phases_;
};

using Job = void (*)(void* data, Team& team, int member);

// Runs `job`, which has at most `num_phases`, on the calling thread and those workers that come before it is done. One
// job at a time; others wait their turn.
void run(Job job, void* data, int64_t num_phases);

// Threads of every job from now on, the caller's included.
void set_threads(int count);
int threads();

// Memory of one job at a time, kept between jobs: at least `bytes`, aligned to 64. Only the job's caller may ask, before
// `run`, and must hold `lock`.
void* scratch(int64_t bytes);

// While it lives, this thread rounds to nearest and keeps denormal numbers, whatever the program set; then it is as it
// was. Without it the caller and the workers of one job might round differently.
class Rounding {
 public:
  Rounding();
  ~Rounding();

 private:
  uint64_t before_;
};

// Held from before `scratch` to after `run`.
struct Turn {
  Turn();
  ~Turn();
};

}  // namespace surefoot
