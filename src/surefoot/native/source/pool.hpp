// The process's one pool of threads: workers that wait politely, and teams that run a job together.
#pragma once

#include <atomic>
#include <cstdint>

namespace surefoot {

// What the threads of a running job share. Every thread of the team must call `barrier` and `next` alike.
class Team {
 public:
  explicit Team(int size) : size(size) {}

  // Waits until all have come. Whoever waits long gives its core away.
  void barrier();

  // The next `step` items of [0, count) that nobody has taken yet, as their first index; `count` or more when none are
  // left. Counter `phase` belongs to one loop; a barrier, then `reset`, must come before it is used again.
  int64_t next(int phase, int64_t step) { return counters_[phase].value.fetch_add(step, std::memory_order_relaxed); }
  void reset(int phase) { counters_[phase].value.store(0, std::memory_order_relaxed); }

  const int size;
  static constexpr int PHASES = 4;

 private:
  struct alignas(64) Counter {
    std::atomic<int64_t> value{0};
  };
  Counter counters_[PHASES];
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<uint32_t> generation_{0};
};

using Job = void (*)(void* data, Team& team, int member);

// Runs `job` on the calling thread and the workers, `team.size` in all. One job at a time; others wait their turn.
void run(Job job, void* data);

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
