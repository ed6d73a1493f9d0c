// The kernels of one instruction set: what a whole forward does, block after block.
#pragma once

#include "attention.hpp"
#include "experts.hpp"
#include "race.hpp"
#include "replay.hpp"

namespace SUREFOOT_NAMESPACE {

using surefoot::Ends;
using surefoot::Mlp;
using surefoot::Product;
using surefoot::Step;

// Numbers a forward needs room for, of a row unless said otherwise.
struct Sizes {
  int64_t fused = 0, inner = 0, parts = 0, routes = 0, group = 0, head = 0;
  int64_t seen = 0;  // keys of the row that sees most
  int64_t own = 0;   // bytes of a thread
};

inline Sizes sizes_of(const Call& call) {
  Sizes most;
  auto raise = [](int64_t& size, int64_t to) { size = to > size ? to : size; };
  for (int64_t i = 0; i < call.num_steps; ++i) {
    const Step& step = call.steps[i];
    if (step.kind == surefoot::ATTENTION) {
      const auto& block = *(const Attention*)step.block;
      raise(most.fused, block.qkv.outputs);
      raise(most.inner, block.out.inputs);
      raise(most.group, block.heads / block.kv_heads);
      raise(most.head, (block.head_dim + LANES - 1) / LANES * LANES);
    } else if (step.kind == surefoot::MLP) {
      raise(most.inner, ((const Mlp*)step.block)->inner);
    } else if (step.kind == surefoot::DELTA) {
      const auto& block = *(const Delta*)step.block;
      raise(most.fused, block.projection.outputs);
      raise(most.inner, block.out.inputs);
      raise(most.own, delta_room(call, block));
    } else if (step.kind == surefoot::EXPERTS) {
      const auto& block = *(const Experts*)step.block;
      raise(most.fused, block.router.outputs);
      raise(most.inner, block.num_active * even(block.inner) + even(block.shared_inner));
      raise(most.parts, (block.num_active + 1) * call.hidden);
      raise(most.routes, block.num_active);
      raise(most.own, experts_room(call, block));
    }
  }
  for (int64_t i = 0; i < call.num_rows && call.num_steps > 0; ++i) raise(most.seen, call.rows[i].committed + call.rows[i].num_seen);
  most.seen = (most.seen + LANES - 1) / LANES * LANES;
  return most;
}

constexpr int64_t MOST_SCORES = 1 << 19;  // of a thread, as long as that is more than one row's

template <class T>
int64_t lay_out(const Call& call, int threads, char* memory, Workshop<T>& shop, int member) {
  const Sizes sizes = sizes_of(call);
  int64_t used = 0;
  auto take = [&](int64_t bytes) {
    char* place = memory + used;
    used += aligned(bytes);
    return place;
  };
  shop.few = call.num_rows <= FEW_ROWS;
  shop.stream = (T*)take(call.stream ? 0 : call.num_rows * call.hidden * int64_t(sizeof(T)));
  const int64_t normed = aligned(call.num_rows * padded<T>(call.hidden) * int64_t(sizeof(T)));
  char* norms = take(normed * (shop.few ? threads : 1));
  shop.normed = (T*)(norms + (shop.few ? normed * member : 0));
  shop.fused = (float*)take(call.num_rows * sizes.fused * int64_t(sizeof(float)));
  shop.inner = (T*)take(call.num_rows * padded<T>(sizes.inner) * int64_t(sizeof(T)));
  const int64_t scores = sizes.group * (sizes.seen + 2 * LANES), most = MOST_SCORES / (scores + 1);
  shop.most_together = most < 1 ? 1 : most > ATTENDED ? ATTENDED : most;
  const int64_t queries = sizes.group * (call.num_rows < shop.most_together ? call.num_rows : shop.most_together);
  auto own = [&](int64_t numbers) {
    const int64_t bytes = aligned(numbers * int64_t(sizeof(float)));
    return (float*)(take(bytes * threads) + bytes * member);
  };
  shop.scores = own(queries * (sizes.seen + 2 * LANES));
  shop.queries = own(2 * queries * sizes.head);
  shop.turned = own(sizes.head * LANES);
  shop.factors = own(queries);
  shop.parts = (float*)take(call.num_rows * sizes.parts * int64_t(sizeof(float)));
  shop.routes = (Route*)take(call.num_rows * sizes.routes * int64_t(sizeof(Route)));
  shop.own = take(aligned(sizes.own) * threads) + aligned(sizes.own) * member;
  shop.most_seen = sizes.seen;
  shop.group_room = queries * sizes.head;
  return used;
}

// Query and key heads: norm, rotation; keys and values into the cache.
template <class T, class C>
void place_head(const Call& call, const Attention& block, Workshop<T>& shop, int64_t row_index, int64_t head) {
  const Row& row = call.rows[row_index];
  const Sequence& sequence = call.sequences[row.sequence];
  const int64_t size = block.head_dim;
  float* x = shop.fused + row_index * block.qkv.outputs + head * size;
  const int64_t key = head - block.heads;
  if (key < block.kv_heads) {
    if (block.head_norm) {
      const Vec factor = spread(inverse_root(x, size, block.eps));
      const float* weight = block.head_norm + head * size;
      const T* as = nullptr;
      for (int64_t i = 0; i < size; i += LANES) {
        const Vec normed = load_first(x + i, size - i) * factor;
        const Vec kept = block.norm_once ? normed : rounded(normed, as);
        store_first(x + i, rounded(kept * load_first(weight + i, size - i), as), size - i);
      }
    }
    rotate(x, sequence, row.position);
    if (key < 0) return;
  }
  const int64_t which = key < block.kv_heads ? 0 : 1, kv_head = which ? key - block.kv_heads : key;
  C* rows = (C*)sequence.rows + ((2 * block.layer + which) * block.kv_heads + kv_head) * sequence.capacity * size;
  C* place = rows + row.place * size;
  for (int64_t i = 0; i < size; i += LANES) store_first(place + i, load_first(x + i, size - i), size - i);
}

// Rows [first, stop) of one sequence, and one key head.
template <class T, class C>
void attend_rows(
    const Call& call, const Attention& block, Workshop<T>& shop, int64_t first, int64_t stop, int64_t kv_head) {
  const Sequence& sequence = call.sequences[call.rows[first].sequence];
  const int64_t size = block.head_dim, group = block.heads / block.kv_heads;
  const int vectors = int((size + LANES - 1) / LANES);
  const int64_t room = vectors * LANES, plane = sequence.capacity * size;
  const C* base = (const C*)sequence.rows + (2 * block.layer * block.kv_heads + kv_head) * plane;
  const Bench bench{
      shop.queries, shop.queries + shop.group_room, shop.scores, shop.turned, shop.factors, shop.most_seen, int(group), vectors};
  Seen<C> keys[ATTENDED], values[ATTENDED];
  for (int64_t row = first; row < stop; ++row) {
    const float* x = shop.fused + row * block.qkv.outputs + kv_head * group * size;
    float* queries = bench.queries + (row - first) * group * room;
    for (int64_t h = 0; h < group; ++h) {
      std::memcpy(queries + h * room, x + h * size, size_t(size) * sizeof(float));
      for (int64_t i = size; i < room; ++i) queries[h * room + i] = 0.0f;
    }
    keys[row - first] = values[row - first] = seen_by<C>(call.rows[row], block, call, base, size);
    values[row - first].base += block.kv_heads * plane;
  }
  attend(keys, values, int(stop - first), float(block.scale), bench);
  for (int64_t row = first; row < stop; ++row) {
    const float* x = shop.fused + row * block.qkv.outputs + kv_head * group * size;
    const float* gates = x + (block.heads + 2 * block.kv_heads) * size;  // the group's, as far from its queries as from the first
    const float* out = bench.sums + (row - first) * group * room;
    T* mixed = shop.inner + row * padded<T>(block.out.inputs) + kv_head * group * size;
    for (int64_t h = 0; h < group; ++h)
      for (int64_t i = 0; i < size; i += LANES) {
        Vec value = load(out + h * room + i);
        if (block.gated) value = value * sigmoid(load_first(gates + h * size + i, size - i));
        store_first(mixed + h * size + i, value, size - i);
      }
  }
}

// How many rows go through the keys together: many read them seldom, but each thread shall have as much to do as the others.
inline int64_t rows_together(int64_t rows, int64_t kv_heads, int threads, int64_t most) {
  int64_t together = most < rows ? most : rows;
  auto units = [&] { return (rows + together - 1) / together * kv_heads; };
  while (together > 1 && units() % threads != 0 && units() < 4 * threads) together = (together + 1) / 2;
  return together;
}

template <class T, class C>
void attention_block(const Call& call, const Attention& block, Workshop<T>& shop, Phases& phases) {
  Team& team = phases.team;
  const int64_t columns = blocks_of(block.qkv);
  norm_rows(call, block.norm, block.eps, shop, phases, columns);
  Store<T> fused{shop.fused, block.qkv.outputs, block.qkv.outputs};
  multiply(shop.normed, padded<T>(call.hidden), block.qkv, call.num_rows, team, phases.now, fused);
  phases.next(columns);

  const int64_t heads = block.heads + 2 * block.kv_heads, units = call.num_rows * heads;
  phases.share_out(units, units / (team.size * 4) + 1, [&](int64_t i) {
    place_head<T, C>(call, block, shop, i / heads, i % heads);
  });

  const int64_t width = block.out.inputs, stride = padded<T>(width);
  const int64_t together = rows_together(call.num_rows, block.kv_heads, team.size, shop.most_together);
  const int64_t groups = (call.num_rows + together - 1) / together;
  phases.share_out(groups * block.kv_heads, 1, [&](int64_t i) {
    const int64_t from = i % groups * together, end = from + together < call.num_rows ? from + together : call.num_rows;
    for (int64_t first = from, stop; first < end; first = stop) {
      for (stop = first + 1; stop < end && call.rows[stop].sequence == call.rows[first].sequence;) ++stop;
      attend_rows<T, C>(call, block, shop, first, stop, i / groups);
    }
    for (int64_t row = from; i < groups && stride > width && row < end; ++row) shop.inner[row * stride + width] = T(0);
  });

  AddTo<T> stream{(T*)call.stream, call.hidden, call.hidden};
  multiply(shop.inner, stride, block.out, call.num_rows, team, phases.now, stream);
  phases.next(blocks_of(block.out));
}

template <class T>
void mlp_block(const Call& call, const Mlp& block, Workshop<T>& shop, Phases& phases) {
  Team& team = phases.team;
  const int64_t columns = blocks_of(block.gate_up), stride = padded<T>(block.inner);
  norm_rows(call, block.norm, block.eps, shop, phases, columns);
  Activate<T> inner{shop.inner, stride, block.inner};
  multiply(shop.normed, padded<T>(call.hidden), block.gate_up, call.num_rows, team, phases.now, inner);
  phases.next(columns);
  AddTo<T> stream{(T*)call.stream, call.hidden, call.hidden};
  multiply(shop.inner, stride, block.down, call.num_rows, team, phases.now, stream);
  phases.next(blocks_of(block.down));
}

template <class T>
void unpack_row(const Matrix& matrix, int64_t row, T* out) {
  constexpr int64_t unit = Layout<T>::unit;
  const int64_t steps = Layout<T>::steps(matrix.inputs), whole = matrix.inputs / unit;
  const T* from = (const T*)matrix.packed + (row / LANES * steps * LANES + row % LANES) * unit;
  for (int64_t k = 0; k < whole; ++k) std::memcpy(out + k * unit, from + k * LANES * unit, size_t(unit) * sizeof(T));
  if (whole < steps) out[whole * unit] = from[whole * LANES * unit];
}

template <class T>
void embed(const Call& call, Phases& phases) {
  const Ends& ends = *call.ends;
  phases.share_out(call.num_rows, 4, [&](int64_t row) {
    T* out = (T*)call.stream + row * call.hidden;
    if (ends.embedding)
      std::memcpy(out, (const T*)ends.embedding + call.tokens[row] * call.hidden, size_t(call.hidden) * sizeof(T));
    else
      unpack_row(ends.head, call.tokens[row], out);
  });
}

// What follows the layers: the norm, and the head's logits.
template <class T>
void show(const Call& call, Workshop<T>& shop, Phases& phases) {
  const Ends& ends = *call.ends;
  if (call.final)
    phases.share_out(call.num_rows, 4, [&](int64_t row) {
      normalise((const T*)call.stream + row * call.hidden, call.hidden, ends.norm, ends.eps, (T*)call.final + row * call.hidden);
    });
  if (!call.logits) return;
  Call last = call;
  last.stream = (T*)call.stream + call.first * call.hidden;
  last.num_rows -= call.first;
  const int64_t columns = blocks_of(ends.head);
  norm_rows(last, ends.norm, ends.eps, shop, phases, columns);
  Store<float> logits{call.logits, ends.head.outputs, ends.head.outputs};
  multiply(shop.normed, padded<T>(call.hidden), ends.head, last.num_rows, phases.team, phases.now, logits);
  phases.next(columns);
}

template <class T>
void forward_of(const Call& given, void* scratch, Team& team, int member) {
  Workshop<T> shop;
  lay_out(given, team.size, (char*)scratch, shop, member);
  Phases phases{team, member};
  Call call = given;
  if (!given.stream) {
    call.stream = shop.stream;
    embed<T>(call, phases);
  }
  for (int64_t i = 0; i < call.num_steps; ++i) {
    const Step& step = call.steps[i];
    if (step.kind == surefoot::ATTENTION) {
      const auto& block = *(const Attention*)step.block;
      if (block.cache_type == surefoot::BFLOAT16)
        attention_block<T, bf16>(call, block, shop, phases);
      else
        attention_block<T, float>(call, block, shop, phases);
    } else if (step.kind == surefoot::MLP) {
      mlp_block(call, *(const Mlp*)step.block, shop, phases);
    } else if (step.kind == surefoot::DELTA) {
      delta_block(call, *(const Delta*)step.block, shop, phases);
    } else if (step.kind == surefoot::EXPERTS) {
      experts_block(call, *(const Experts*)step.block, shop, phases);
    } else {
      phases.share_out(1, 1, [&](int64_t) {
        std::memcpy(step.destination, call.stream, size_t(call.num_rows * call.hidden) * sizeof(T));
      });
    }
  }
  if (call.ends) show(call, shop, phases);
}

inline void forward(const Call& call, void* scratch, Team& team, int member) {
  if (call.type == surefoot::BFLOAT16)
    forward_of<bf16>(call, scratch, team, member);
  else
    forward_of<float>(call, scratch, team, member);
}

inline int64_t forward_scratch(const Call& call, int threads) {
  Workshop<float> wide;
  Workshop<bf16> narrow;
  return call.type == surefoot::BFLOAT16 ? lay_out(call, threads, nullptr, narrow, 0) : lay_out(call, threads, nullptr, wide, 0);
}

template <class T>
void product_of(const Product& product, void* scratch, Team& team, int member) {
  const int64_t inputs = product.matrix->inputs, stride = padded<T>(inputs);
  T* x = (T*)scratch;
  Phases phases{team, member};
  phases.share_out(product.num_rows, 4, [&](int64_t row) {
    const T* from = (const T*)product.x + row * inputs;
    if (product.norm)
      normalise(from, inputs, product.norm, product.eps, x + row * stride);
    else
      std::memcpy(x + row * stride, from, size_t(inputs) * sizeof(T));
    if (stride > inputs) x[row * stride + inputs] = T(0);
  });
  Store<float> out{product.y, product.matrix->outputs, product.matrix->outputs};
  multiply(x, stride, *product.matrix, product.num_rows, team, phases.now, out);
  phases.next(blocks_of(*product.matrix));
}

inline void product(const Product& product, void* scratch, Team& team, int member) {
  if (product.type == surefoot::BFLOAT16)
    product_of<bf16>(product, scratch, team, member);
  else
    product_of<float>(product, scratch, team, member);
}

inline int64_t product_scratch(const Product& product, int) {
  const int64_t inputs = product.matrix->inputs;
  return product.num_rows * (product.type == surefoot::BFLOAT16 ? padded<bf16>(inputs) * 2 : padded<float>(inputs) * 4);
}

template <class T>
void pack_of(const T* source, int64_t outputs, int64_t inputs, T* packed, int64_t first, int64_t step) {
  constexpr int64_t unit = Layout<T>::unit;
  const int64_t steps = Layout<T>::steps(inputs), blocks = (outputs + LANES - 1) / LANES;
  for (int64_t block = 0; block < blocks; ++block) {
    T* to = packed + (first + block * step) * steps * unit * LANES;
    for (int64_t k = 0; k < steps; ++k)
      for (int64_t lane = 0; lane < LANES; ++lane)
        for (int64_t u = 0; u < unit; ++u) {
          const int64_t output = block * LANES + lane, input = k * unit + u;
          to[(k * LANES + lane) * unit + u] = output < outputs && input < inputs ? source[output * inputs + input] : T(0);
        }
  }
}

// Packs `source` [outputs, inputs]; its block b becomes block `first + b * step`.
inline void pack(int64_t type, const void* source, int64_t outputs, int64_t inputs, void* packed, int64_t first, int64_t step) {
  if (type == surefoot::BFLOAT16)
    pack_of((const bf16*)source, outputs, inputs, (bf16*)packed, first, step);
  else
    pack_of((const float*)source, outputs, inputs, (float*)packed, first, step);
}

template <class T>
void unpack_of(const Matrix& matrix, const int64_t* rows, int64_t count, T* out) {
  for (int64_t i = 0; i < count; ++i) unpack_row(matrix, rows[i], out + i * matrix.inputs);
}

// Rows of a packed matrix as they were: [count, inputs].
inline void unpack(int64_t type, const Matrix& matrix, const int64_t* rows, int64_t count, void* out) {
  if (type == surefoot::BFLOAT16)
    unpack_of(matrix, rows, count, (bf16*)out);
  else
    unpack_of(matrix, rows, count, (float*)out);
}

inline void normalise_rows(int64_t type, const void* x, int64_t num_rows, int64_t width, const float* weight, double eps, void* out) {
  for (int64_t row = 0; row < num_rows; ++row) {
    if (type == surefoot::BFLOAT16)
      normalise((const bf16*)x + row * width, width, weight, eps, (bf16*)out + row * width);
    else
      normalise((const float*)x + row * width, width, weight, eps, (float*)out + row * width);
  }
}

}  // namespace SUREFOOT_NAMESPACE

#define SUREFOOT_KERNELS(NAME, TITLE)                                                                               \
  const surefoot::Kernels surefoot::NAME = {                                                                        \
      TITLE,                                                                                                        \
      SUREFOOT_NAMESPACE::pack,                                                                                     \
      SUREFOOT_NAMESPACE::unpack,                                                                                   \
      SUREFOOT_NAMESPACE::forward_scratch,                                                                          \
      SUREFOOT_NAMESPACE::forward,                                                                                  \
      SUREFOOT_NAMESPACE::product_scratch,                                                                          \
      SUREFOOT_NAMESPACE::product,                                                                                  \
      SUREFOOT_NAMESPACE::replay,                                                                                   \
      SUREFOOT_NAMESPACE::normalise_rows,                                                                           \
      SUREFOOT_NAMESPACE::race,                                                                                     \
      SUREFOOT_NAMESPACE::mass_above,                                                                               \
      SUREFOOT_NAMESPACE::best,                                                                                     \
      SUREFOOT_NAMESPACE::likeliest,                                                                                \
  };
