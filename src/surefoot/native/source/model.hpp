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

// One attention block: norm, query-key-value, head norms, rotation, cache, attention, gate, output, residual.
struct Attention {
  Matrix qkv;  // outputs: query heads, key heads, value heads, and gates of the query heads where `gated`
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
  int64_t gated;      // whether what the heads gather is multiplied by sigmoids
  int64_t norm_once;  // whether head norms are rounded once, after their weight, and not before it too
};

// One Gated DeltaNet block: norm, projection, convolution, gates, delta rule, gated norm, output, residual.
struct Delta {
  Matrix projection;  // outputs: query, key and value channels; output gates as wide as the values; `beta` and `alpha` of each head
  Matrix out;
  const float* norm;
  const float* conv;       // [taps, channels], oldest first
  const float* rate;       // [value_heads]: e^a_log
  const float* dt_bias;    // [value_heads]
  const float* head_norm;  // [value_dim]
  int64_t key_heads;
  int64_t value_heads;
  int64_t key_dim;
  int64_t value_dim;
  int64_t taps;
  int64_t layer;  // which delta layer's states in the cache
  double eps;
  double head_eps;
};

// One feed-forward block: norm, gate and up, activation, down, residual.
struct Mlp {
  Matrix gate_up;  // packed as pairs: 16 gates, then the 16 ups that belong to them
  Matrix down;
  const float* norm;
  int64_t inner;
  double eps;
};

// One feed-forward block of experts: norm, router, some experts for each row, a gated shared one, residual.
struct Experts {
  Matrix router;          // outputs: the experts, and one more, the shared expert's gate, where there is one
  const Matrix* gate_up;  // [num_experts], packed as pairs
  const Matrix* down;     // [num_experts]
  Matrix shared_gate_up;
  Matrix shared_down;
  const float* norm;
  int64_t num_experts;
  int64_t num_active;
  int64_t inner;
  int64_t shared_inner;  // 0: no shared expert
  int64_t renormalised;  // whether the chosen experts' weights are divided by their sum
  double eps;
};

constexpr int64_t MOST_PHASES = 6;  // of one step of a forward

enum Kind : int64_t { ATTENTION = 0, MLP = 1, COPY = 2, DELTA = 3, EXPERTS = 4 };

// One step of a forward; `COPY` writes the residual stream out, as a captured layer.
struct Step {
  int64_t kind;
  const void* block;
  void* destination;
};

// What a sequence's delta layers keep; everything of a layer lies in one piece, layer after layer. States are fp32
// [value_heads, key_dim, value_dim], histories the last `taps - 1` rows of channels [channels] in the model's type, the
// newest last. The rows of a call are nodes of the round, from `first` on; the nodes before them are on the tape.
struct States {
  int64_t length;  // committed tokens, so that node n's key lies at place length + n
  int64_t first;
  int64_t row;  // of the call, the first that is this sequence's
  int64_t num_rows;
  const float* state;     // as committed
  const void* history;    // likewise
  float* next_state;      // after the last row, where the round is a chain; null: not wanted
  void* next_history;
  int64_t continues;  // whether `next_state` holds the state after node first - 1
  int64_t capacity;   // nodes of the tape
  void* channels;     // [capacity, channels] before the convolution; null: no tape is kept
  float* keys;        // [capacity, key_heads, key_dim], normalised
  float* changes;     // [capacity, value_heads, value_dim]
  float* decays;      // [capacity, value_heads]
};

// A sequence's keys and values: [2 * layers, kv_heads, capacity, head_dim], keys before values, and its rotations.
struct Sequence {
  void* rows;
  int64_t capacity;
  const float* first;   // [positions, rotated]
  const float* second;  // likewise
  int64_t rotated;
  const States* states;  // null: no layer has any
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

// The commit of a path in all delta layers: the tape's nodes one after the other, from one state to another or the same.
struct Replay {
  const States* states;  // `state` and `history` are read, `next_state` and `next_history` written
  const int64_t* path;
  int64_t count;
  int64_t type;  // of the channels
  int64_t layers;
  int64_t key_heads;
  int64_t value_heads;
  int64_t key_dim;
  int64_t value_dim;
  int64_t taps;
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
  void (*replay)(const Replay& replay, Team& team, int member);
  void (*normalise)(int64_t type, const void* x, int64_t num_rows, int64_t width, const float* weight, double eps, void* out);
  void (*race)(uint64_t key, const float* x, int64_t count, double top, double temperature, float floor, float* least);
  double (*mass_above)(const float* x, int64_t count, double top, double temperature, float bound, double* total);
  int64_t (*best)(const float* x, int64_t count);
  void (*likeliest)(const float* x, int64_t count, int64_t most, int64_t* tokens, float* values);
};

extern const Kernels kernels_portable, kernels_avx2, kernels_avx512, kernels_avx512_bf16;

// Bytes of a packed matrix.
inline int64_t packed_bytes(int64_t type, int64_t outputs, int64_t inputs) {
  const int64_t blocks = (outputs + 15) / 16;
  return type == BFLOAT16 ? blocks * ((inputs + 1) / 2) * 64 : blocks * inputs * 64;
}

}  // namespace surefoot
