// The functions Python calls, on the kernels of the best instruction set this processor has.
#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <new>

#include "model.hpp"

// The build says which sets its compiler did not know; see setup.py.
#if defined(__x86_64__) && !defined(SUREFOOT_WITHOUT_AVX2)
#define SUREFOOT_AVX2
#endif
#if defined(__x86_64__) && !defined(SUREFOOT_WITHOUT_AVX512)
#define SUREFOOT_AVX512
#endif
#if defined(__x86_64__) && !defined(SUREFOOT_WITHOUT_AVX512_BF16)
#define SUREFOOT_AVX512_BF16
#endif

using namespace surefoot;

namespace {

bool runs(const Kernels* kernels) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  [[maybe_unused]] const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
#endif
#ifdef SUREFOOT_AVX512_BF16
  if (kernels == &kernels_avx512_bf16) return avx512 && __builtin_cpu_supports("avx512bf16");
#endif
#ifdef SUREFOOT_AVX512
  if (kernels == &kernels_avx512) return avx512;
#endif
#ifdef SUREFOOT_AVX2
  if (kernels == &kernels_avx2) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#endif
  return kernels == &kernels_portable;
}

const Kernels* const ALL[] = {
#ifdef SUREFOOT_AVX512_BF16
    &kernels_avx512_bf16,
#endif
#ifdef SUREFOOT_AVX512
    &kernels_avx512,
#endif
#ifdef SUREFOOT_AVX2
    &kernels_avx2,
#endif
    &kernels_portable,
};

const Kernels* best() {
  for (const Kernels* kernels : ALL)
    if (runs(kernels)) return kernels;
  return &kernels_portable;
}

const Kernels* chosen = best();

struct ForwardJob {
  const Call* call;
  void* scratch;
};
struct ProductJob {
  const Product* product;
  void* scratch;
};

}  // namespace

// Everything else is hidden from other libraries of the process.
#pragma GCC visibility push(default)
extern "C" {

// The number of this interface, the one in ../library.py; whoever changes a function or a record changes both.
int64_t surefoot_abi() { return 6; }

// Bytes of a record, which Python compares with its mirror of it; 0 for a name that is none.
int64_t surefoot_layout(const char* name) {
  const struct {
    const char* name;
    size_t size;
  } records[] = {
#define RECORD(NAME) {#NAME, sizeof(NAME)}
      RECORD(Matrix), RECORD(Attention), RECORD(Delta), RECORD(Mlp),  RECORD(Experts), RECORD(Step),
      RECORD(States), RECORD(Sequence),  RECORD(Row),   RECORD(Call), RECORD(Product), RECORD(Replay), RECORD(Ends),
#undef RECORD
  };
  for (const auto& record : records)
    if (std::strcmp(record.name, name) == 0) return int64_t(record.size);
  return 0;
}

// 0; 1 where no memory was left.
int64_t surefoot_forward(const Call* call) {
  Turn turn;
  ForwardJob job{call, scratch(chosen->forward_scratch(*call, threads()))};
  if (job.scratch == nullptr) return 1;
  run([](void* data, Team& team, int member) {
    const auto& job = *(const ForwardJob*)data;
    chosen->forward(*job.call, job.scratch, team, member);
  }, &job, call->num_steps * MOST_PHASES + END_PHASES);
  return 0;
}

int64_t surefoot_product(const Product* product) {
  Turn turn;
  ProductJob job{product, scratch(chosen->product_scratch(*product, threads()))};
  if (job.scratch == nullptr) return 1;
  run([](void* data, Team& team, int member) {
    const auto& job = *(const ProductJob*)data;
    chosen->product(*job.product, job.scratch, team, member);
  }, &job, 2);
  return 0;
}

// Commits a path in all delta layers of a sequence.
void surefoot_replay(const Replay* replay) {
  Turn turn;
  run([](void* data, Team& team, int member) { chosen->replay(**(const Replay* const*)data, team, member); }, &replay, 1);
}

// Moves rows of `size` bytes to `start` and on, in each of `planes` of `capacity` rows: row `places[i]`, which is none
// before `start + i`, comes to `start + i`.
void surefoot_move(char* rows, int64_t planes, int64_t capacity, int64_t size, const int64_t* places, int64_t count, int64_t start) {
  for (int64_t plane = 0; plane < planes; ++plane, rows += capacity * size)
    for (int64_t i = 0; i < count; ++i)
      if (places[i] != start + i) std::memcpy(rows + (start + i) * size, rows + places[i] * size, size_t(size));
}

void surefoot_normalise(int64_t type, const void* x, int64_t num_rows, int64_t width, const float* weight, double eps, void* out) {
  const Rounding rounding;
  chosen->normalise(type, x, num_rows, width, weight, eps, out);
}

// On the calling thread: a worker that another pool keeps from its core would be waited for longer than it could save.
void surefoot_race(uint64_t key, const float* x, int64_t count, double top, double temperature, float floor, float* least) {
  const Rounding rounding;
  chosen->race(key, x, count, top, temperature, floor, least);
}

double surefoot_mass_above(const float* x, int64_t count, double top, double temperature, float bound, double* total) {
  const Rounding rounding;
  return chosen->mass_above(x, count, top, temperature, bound, total);
}

// For each of `rows` rows of logits, which lie `stride` apart, its likeliest token, or -1.
void surefoot_best(const float* x, int64_t rows, int64_t stride, int64_t count, int64_t* tokens) {
  const Rounding rounding;
  for (int64_t row = 0; row < rows; ++row) tokens[row] = chosen->best(x + row * stride, count);
}

// For each of them the `most` likeliest, in `tokens` [rows, most]; 1 where no memory was left.
int64_t surefoot_likeliest(const float* x, int64_t rows, int64_t stride, int64_t count, int64_t most, int64_t* tokens) {
  const Rounding rounding;
  float* values = (float*)std::malloc(size_t(most) * sizeof(float));
  if (values == nullptr) return 1;
  for (int64_t row = 0; row < rows; ++row) chosen->likeliest(x + row * stride, count, most, tokens + row * most, values);
  std::free(values);
  return 0;
}

int64_t surefoot_packed_bytes(int64_t type, int64_t outputs, int64_t inputs) { return packed_bytes(type, outputs, inputs); }

void surefoot_pack(int64_t type, const void* source, int64_t outputs, int64_t inputs, void* packed, int64_t first, int64_t step) {
  chosen->pack(type, source, outputs, inputs, packed, first, step);
}

// Packs a weight where it lies: whole blocks of 16 outputs, whole pairs of inputs. 1 where it has others, or no memory for
// one block was left.
int64_t surefoot_pack_in_place(int64_t type, void* weight, int64_t outputs, int64_t inputs) {
  const int64_t block = 16 * inputs * (type == BFLOAT16 ? 2 : 4);
  if (outputs % 16 != 0 || packed_bytes(type, 16, inputs) != block) return 1;
  void* copy = std::malloc(size_t(block));
  if (copy == nullptr) return 1;
  for (int64_t i = 0; i < outputs / 16; ++i) {
    char* place = (char*)weight + i * block;
    std::memcpy(copy, place, size_t(block));
    chosen->pack(type, copy, 16, inputs, place, 0, 1);
  }
  std::free(copy);
  return 0;
}

void surefoot_unpack(int64_t type, const Matrix* matrix, const int64_t* rows, int64_t count, void* out) {
  chosen->unpack(type, *matrix, rows, count, out);
}

// Memory for weights, in huge pages as far as whole ones go; null where there is none left.
void* surefoot_allocate(int64_t bytes) {
  constexpr int64_t SMALL_PAGE = 4096, HUGE_PAGE = 2 << 20;
  const int64_t whole = bytes / HUGE_PAGE * HUGE_PAGE, rounded = (bytes + SMALL_PAGE - 1) / SMALL_PAGE * SMALL_PAGE;
  void* memory = nullptr;
  if (posix_memalign(&memory, size_t(whole > 0 ? HUGE_PAGE : SMALL_PAGE), size_t(rounded)) != 0) return nullptr;
#ifdef MADV_HUGEPAGE
  if (whole > 0) madvise(memory, size_t(whole), MADV_HUGEPAGE);
#endif
  return memory;
}

void surefoot_free(void* memory) { std::free(memory); }

void surefoot_set_threads(int64_t count) { set_threads(int(count)); }
int64_t surefoot_threads() { return threads(); }

const char* surefoot_instructions() { return chosen->name; }

// Takes another instruction set; 1 where this processor lacks it. Packed weights stay valid: the layout is one.
int64_t surefoot_choose(const char* name) {
  for (const Kernels* kernels : ALL)
    if (std::strcmp(kernels->name, name) == 0 && runs(kernels)) {
      Turn turn;
      chosen = kernels;
      return 0;
    }
  return 1;
}

}  // extern "C"
#pragma GCC visibility pop
