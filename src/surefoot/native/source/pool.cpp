#include "pool.hpp"

#include <pthread.h>
#include <sched.h>

#include <condition_variable>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace surefoot {
namespace {

constexpr int SPINS = 3000;       // looks at a flag before a waiting worker sleeps: about 0.1 ms
constexpr int YIELD_AFTER = 1000;  // looks before somebody who waits for others gives its core away, again and again
constexpr int64_t CLOSED = -(int64_t(1) << 40);  // of a gate that nobody may enter any more

inline void pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

#if defined(__x86_64__)
uint64_t control() { return __builtin_ia32_stmxcsr(); }
void control(uint64_t word) { __builtin_ia32_ldmxcsr(uint32_t(word)); }
constexpr uint64_t DEFAULT = 0x1f80;  // nothing traps
#elif defined(__aarch64__)
uint64_t control() {
  uint64_t word;
  asm volatile("mrs %0, fpcr" : "=r"(word));
  return word;
}
void control(uint64_t word) { asm volatile("msr fpcr, %0" ::"r"(word)); }
constexpr uint64_t DEFAULT = 0;
#else
uint64_t control() { return 0; }
void control(uint64_t) {}
constexpr uint64_t DEFAULT = 0;
#endif

inline void rest(int looks) {
  pause();
  if (looks > YIELD_AFTER) sched_yield();
}

class Pool {
 public:
  explicit Pool(int size) : size_(size) {
    for (int member = 1; member < size; ++member) workers_.emplace_back([this, member] { work(member); });
  }

  ~Pool() {
    {
      std::lock_guard<std::mutex> hold(mutex_);
      stopping_ = true;
      ticket_.fetch_add(1, std::memory_order_release);
    }
    wake_.notify_all();
    for (auto& worker : workers_) worker.join();
  }

  int size() const { return size_; }

  void run(Job job, void* data, int64_t num_phases) {
    if (num_phases > most_phases_) {
      phases_.reset(new Phase[size_t(num_phases)]);
      most_phases_ = num_phases;
    }
    for (int64_t i = 0; i < num_phases; ++i) {
      phases_[i].taken.store(0, std::memory_order_relaxed);
      phases_[i].finished.store(0, std::memory_order_relaxed);
    }
    Team team(size_, phases_.get());
    job_ = job, data_ = data, team_ = &team;
    if (size_ > 1) {
      left_.store(0, std::memory_order_relaxed);
      gate_.store(0, std::memory_order_release);
      ticket_.fetch_add(1, std::memory_order_seq_cst);
      if (sleepers_.load(std::memory_order_seq_cst) > 0) {
        std::lock_guard<std::mutex> hold(mutex_);
        wake_.notify_all();
      }
    }
    job(data, team, 0);
    if (size_ == 1) return;
    const int64_t entered = gate_.exchange(CLOSED, std::memory_order_acq_rel);
    for (int looks = 0; left_.load(std::memory_order_acquire) < entered; ++looks) rest(looks);
  }

 private:
  void work(int member) {
    const Rounding rounding;
    uint64_t seen = 0;
    while (true) {
      seen = wait(seen);
      if (stopping_) return;
      if (gate_.fetch_add(1, std::memory_order_acq_rel) < 0) continue;  // too late: the job is done
      job_(data_, *team_, member);
      left_.fetch_add(1, std::memory_order_release);
    }
  }

  uint64_t wait(uint64_t seen) {
    for (int looks = 0; looks < SPINS; ++looks) {
      const uint64_t now = ticket_.load(std::memory_order_acquire);
      if (now != seen) return now;
      pause();
    }
    std::unique_lock<std::mutex> hold(mutex_);
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    wake_.wait(hold, [&] { return ticket_.load(std::memory_order_seq_cst) != seen; });
    sleepers_.fetch_sub(1, std::memory_order_seq_cst);
    return ticket_.load(std::memory_order_acquire);
  }

  const int size_;
  std::vector<std::thread> workers_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::atomic<int> sleepers_{0};
  alignas(64) std::atomic<uint64_t> ticket_{0};
  alignas(64) std::atomic<int64_t> gate_{CLOSED};  // workers that entered the job
  alignas(64) std::atomic<int64_t> left_{0};       // and those that left it
  Job job_ = nullptr;
  void* data_ = nullptr;
  Team* team_ = nullptr;
  std::unique_ptr<Phase[]> phases_;
  int64_t most_phases_ = 0;
  bool stopping_ = false;
};

std::mutex turn;
Pool* pool = nullptr;  // never destroyed: workers may outlive the statics at exit
int wanted = 1;
void* memory = nullptr;
int64_t memory_size = 0;

// After a fork only the forking thread lives on: the child makes a pool of its own.
void forget_pool() {
  pool = nullptr;
  new (&turn) std::mutex;
}

const int registered = pthread_atfork(nullptr, nullptr, forget_pool);

}  // namespace

void Team::wait(int phase, int64_t items) const {
  for (int looks = 0; phases_[phase].finished.load(std::memory_order_acquire) < items; ++looks) rest(looks);
}

Rounding::Rounding() : before_(control()) { control(DEFAULT); }
Rounding::~Rounding() { control(before_); }

Turn::Turn() { turn.lock(); }
Turn::~Turn() { turn.unlock(); }

void run(Job job, void* data, int64_t num_phases) {
  const Rounding rounding;
  if (pool == nullptr || pool->size() != wanted) {
    delete pool;
    pool = new Pool(wanted);
  }
  pool->run(job, data, num_phases);
}

void set_threads(int count) {
  Turn mine;
  wanted = count < 1 ? 1 : count;
}

int threads() { return wanted; }

void* scratch(int64_t bytes) {
  if (bytes > memory_size) {
    std::free(memory);
    memory_size = (bytes + (bytes >> 1) + 4095) / 4096 * 4096;
    memory = std::aligned_alloc(4096, size_t(memory_size));
    if (memory == nullptr) memory_size = 0;
  }
  return memory;
}

}  // namespace surefoot
