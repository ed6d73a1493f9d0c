// What Python hands over: plain records, the same for every instruction set. Mirrored in ../records.py.
#pragma once

#include <cstdint>

#include "pool.hpp"

namespace surefoot {

enum Type : int64_t { FLOAT32 = 0, BFLOAT16 = 1 };

// A linear's weight, packed in blocks of 16 outputs, and its bias. See `pack` for the layout.
struct Matrix {
  const void* packed;
  const float* bias;  // null: none
  int64_t inputs;
  int64_t outputs;
};

// One attention block: norm, query-key-value, head norms, rotation, cache, attention, output, residual.
struct Attention {
  Matrix qkv;  // outputs: query heads, key heads, value heads, one below the other
  Matrix out;
  const float* norm;
  const float* head_norm;  // [heads + kv_heads, head_dim] or null
  int64_t heads;
  int64_t kv_heads;
  int64_t head_dim;
  int64_t window;  // positions a row sees, its own included; 0: all
  int64_t layer;   // which layer's keys and values in the cache
  int64_t cache_type;
  double eps;
  double scale;
};

// One feed-forward block: norm, gate and up, activation, down, residual.
struct Mlp {
  Matrix gate_up;  // packed as pairs: 16 gates, then the 16 ups that belong to them
  Matrix down;
  const float* norm;
  int64_t inner;
  double eps;
};

constexpr int64_t MOST_PHASES = 5;  // of one step of a forward

enum Kind : int64_t { ATTENTION = 0, MLP = 1, COPY = 2 };

// One step of a forward; `COPY` writes the residual stream out, as a captured layer.
struct Step {
  int64_t kind;
  const void* block;
  void* destination;
};

// A sequence's keys and values: [2 * layers, kv_heads, capacity, head_dim], keys before values, and its rotations.
struct Sequence {
  void* rows;
  int64_t capacity;
  const float* first;   // [positions, rotated]
  const float* second;  // likewise
  int64_t rotated;
};

// A row of the forward. It sees the committed rows before `committed`, and `num_seen` rows of its round, listed from
// `seen` on in ascending order of position, itself the last.
struct Row {
  int64_t sequence;
  int64_t position;
  int64_t place;  // where its key and value go
  int64_t committed;
  int64_t seen;
  int64_t num_seen;
};

// What a decoder has before and after its layers.
struct Ends {
  Matrix head;
  const float* norm;
  double eps;
  const void* embedding;  // [vocabulary, hidden], not packed; null: the head's own weight
};

struct Call {
  int64_t type;
  int64_t num_rows;
  int64_t hidden;
  void* stream;  // the residual stream [num_rows, hidden], changed in place; null: it begins with the tokens' embeddings
  const Row* rows;
  const Sequence* sequences;
  const int64_t* seen;
  const Step* steps;
  int64_t num_steps;
  const Ends* ends;  // needed for what follows, none of which is where it is null
  const int64_t* tokens;
  void* final;     // [num_rows, hidden]: the rows as the head reads them; null: not asked for
  float* logits;   // of the rows from `first` on, [num_rows - first, vocabulary]; null: not asked for
  int64_t first;
};

constexpr int64_t END_PHASES = 4;  // of all that is not a step

// y = x w^T (+ bias), optionally after a norm of x; y in fp32.
struct Product {
  int64_t type;
  int64_t num_rows;
  const void* x;  // [num_rows, inputs]
  const Matrix* matrix;
  const float* norm;  // null: none
  double eps;
  float* y;  // [num_rows, outputs]
};

// The kernels of one instruction set.
struct Kernels {
  const char* name;
  void (*pack)(int64_t type, const void* source, int64_t outputs, int64_t inputs, void* packed, int64_t first, int64_t step);
  void (*unpack)(int64_t type, const Matrix& matrix, const int64_t* rows, int64_t count, void* out);
  int64_t (*forward_scratch)(const Call& call, int threads);
  void (*forward)(const Call& call, void* scratch, Team& team, int member);
  int64_t (*product_scratch)(const Product& product, int threads);
  void (*product)(const Product& product, void* scratch, Team& team, int member);
  void (*normalise)(int64_t type, const void* x, int64_t num_rows, int64_t width, const float* weight, double eps, void* out);
  void (*race)(uint64_t key, const float* x, int64_t count, double top, double temperature, float floor, float* least);
  double (*mass_above)(const float* x, int64_t count, double top, double temperature, float bound, double* total);
  int64_t (*best)(const float* x, int64_t count);
};

extern const Kernels kernels_portable, kernels_avx2, kernels_avx512, kernels_avx512_bf16;

// Bytes of a packed matrix.
inline int64_t packed_bytes(int64_t type, int64_t outputs, int64_t inputs) {
  const int64_t blocks = (outputs + 15) / 16;
  return type == BFLOAT16 ? blocks * ((inputs + 1) / 2) * 64 : blocks * inputs * 64;
}

}  // namespace surefoot
