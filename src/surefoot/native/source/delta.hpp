// Gated DeltaNet (Yang et al. 2024, arXiv 2412.06464): the convolution, the delta rule and the gated norm of each head,
// row after row.
//
// A row continues from its parent's state and from its ancestors' channels, wherever those lie: in the cache, on the tape
// of the round, or beside it in the call. Every number of a state is one chain of steps, each of them
// S <- fma(k, change, S * decay); sums over a state's rows go in ascending order, one for each column. So the bits of a
// row are those it has alone at the end of its path, and a replay's those of the steps.
#pragma once

#include "workshop.hpp"

namespace SUREFOOT_NAMESPACE {

using surefoot::Delta;
using surefoot::Row;
using surefoot::States;

constexpr int MOST_TAPS = 8;
constexpr int MOST_COLUMNS = SUREFOOT_ISA >= 2 ? 4 : SUREFOOT_ISA == 1 ? 2 : 1;  // vectors of a state's columns at a time
constexpr float SMALL = 1e-6f;  // what is added to the squared length of a query or key

INLINE int64_t whole(int64_t size) { return (size + LANES - 1) / LANES * LANES; }

// What one row brings to one head, in memory of one thread; everything is padded to whole vectors with zeros.
struct Token {
  float* query;
  float* key;
  float* value;
  float* out;
  float* decay;  // and beta after it
};

struct Bank {
  char* memory;
  int64_t keys, values;  // padded sizes

  static int64_t token_floats(const Delta& block) { return 2 * whole(block.key_dim) + 2 * whole(block.value_dim) + LANES; }
  static int64_t tile_floats(const Delta& block) { return block.key_dim * MOST_COLUMNS * LANES; }

  INLINE Token token(const Delta& block, int64_t row) const {
    float* at = (float*)memory + row * token_floats(block);
    return {at, at + keys, at + 2 * keys, at + 2 * keys + values, at + 2 * (keys + values)};
  }
  // The state of some columns after a row, `rows` being the tokens before it in memory.
  INLINE float* tile(const Delta& block, int64_t rows, int64_t row) const {
    return (float*)memory + rows * token_floats(block) + row * tile_floats(block);
  }
};

// A thread's memory for a block: tokens of one sequence, and a tile for each row of a tree, one for a chain.
inline int64_t delta_room(const Call& call, const Delta& block) {
  int64_t most = 0;
  for (int64_t row = 0; row < call.num_rows;) {
    const States& states = *call.sequences[call.rows[row].sequence].states;
    const int64_t tiles = states.next_state ? 1 : states.num_rows;
    const int64_t floats = states.num_rows * Bank::token_floats(block) + tiles * Bank::tile_floats(block);
    most = floats > most ? floats : most;
    row += states.num_rows;
  }
  return most * int64_t(sizeof(float));
}

// The node `back` steps up from a row, itself at 0; -1 and less count what is committed from its end.
INLINE int64_t ancestor(const Call& call, const Row& row, const States& states, int64_t back) {
  if (back < row.num_seen) return call.seen[row.seen + row.num_seen - 1 - back] - states.length;
  return row.committed - 1 - (back - row.num_seen) - states.length;
}

// One head of one sequence in one layer: where its numbers lie.
template <class T>
struct Seat {
  const Call& call;
  const Delta& block;
  const States& states;
  const float* fused;  // [rows of the call, what the projection gives]
  int64_t head;        // of values

  INLINE int64_t key_head() const { return head / (block.value_heads / block.key_heads); }
  INLINE bool leads() const { return head % (block.value_heads / block.key_heads) == 0; }  // it keeps its key head's tape
  INLINE int64_t channels() const { return 2 * block.key_heads * block.key_dim + block.value_heads * block.value_dim; }
  INLINE int64_t query_channel() const { return key_head() * block.key_dim; }
  INLINE int64_t key_channel() const { return (block.key_heads + key_head()) * block.key_dim; }
  INLINE int64_t value_channel() const { return 2 * block.key_heads * block.key_dim + head * block.value_dim; }
  INLINE int64_t gate_column() const { return channels() + head * block.value_dim; }
  INLINE int64_t beta_column() const { return channels() + block.value_heads * block.value_dim + head; }
  INLINE int64_t decay_column() const { return beta_column() + block.value_heads; }
  INLINE const float* row(int64_t index) const { return fused + (states.row + index) * block.projection.outputs; }
  INLINE T* taped(int64_t node) const { return (T*)states.channels + (block.layer * states.capacity + node) * channels(); }
  INLINE float* taped_key(int64_t node) const {
    return states.keys + ((block.layer * states.capacity + node) * block.key_heads + key_head()) * block.key_dim;
  }
  INLINE float* taped_change(int64_t node) const {
    return states.changes + ((block.layer * states.capacity + node) * block.value_heads + head) * block.value_dim;
  }
  INLINE float* taped_decay(int64_t node) const {
    return states.decays + (block.layer * states.capacity + node) * block.value_heads + head;
  }
  INLINE int64_t state_offset() const { return (block.layer * block.value_heads + head) * block.key_dim * block.value_dim; }
  INLINE int64_t history_offset(int64_t place) const { return (block.layer * (block.taps - 1) + place) * channels(); }
};

// The channels of a node, or of a committed token: from the call, the tape or the history.
template <class T>
struct Source {
  const float* wide;
  const T* narrow;
  INLINE Vec at(int64_t channel, int64_t left) const {
    return wide ? load_first(wide + channel, left) : load_first(narrow + channel, left);
  }
};

template <class T>
INLINE Source<T> source_of(const Seat<T>& seat, int64_t node) {
  const States& states = seat.states;
  if (node >= states.first) return {seat.row(node - states.first), nullptr};
  if (node >= 0) return {nullptr, seat.taped(node)};
  return {nullptr, (const T*)states.history + seat.history_offset(seat.block.taps - 1 + node)};
}

// silu of the convolution of `count` channels; zeros up to a whole vector.
template <class T>
INLINE void convolve(const Seat<T>& seat, const Source<T>* sources, int64_t channel, int64_t count, float* out) {
  const int64_t channels = seat.channels();
  const T* as = nullptr;
  for (int64_t i = 0; i < count; i += LANES) {
    Vec total = zero();
    for (int64_t tap = 0; tap < seat.block.taps; ++tap) {
      const Vec weight = load_first(seat.block.conv + tap * channels + channel + i, count - i);
      total = fma(weight, sources[tap].at(channel + i, count - i), total);
    }
    store(out + i, rounded(silu(rounded(total, as)), as));
  }
}

template <class T>
INLINE void keep_channels(const Source<T>& source, int64_t channel, int64_t count, T* to) {
  for (int64_t i = 0; i < count; i += LANES) store_first(to + channel + i, source.at(channel + i, count - i), count - i);
}

// To length one, but for what is added so that zeros stay zeros; then times `scale`.
INLINE void to_unit(float* x, int64_t size, float scale) {
  Vec squares = zero();
  for (int64_t i = 0; i < size; i += LANES) squares = fma(load(x + i), load(x + i), squares);
  const Vec factor = spread(1.0f / std::sqrt(sum(squares) + SMALL));
  for (int64_t i = 0; i < size; i += LANES) store(x + i, load(x + i) * factor * spread(scale));
}

// Everything of a row before the rule: channels, gates, and what the tape keeps of them.
template <class T>
void prepare(const Seat<T>& seat, int64_t index, const Token& token) {
  const Delta& block = seat.block;
  const States& states = seat.states;
  const Row& row = seat.call.rows[states.row + index];
  Source<T> sources[MOST_TAPS];
  for (int64_t back = 0; back < block.taps; ++back)
    sources[block.taps - 1 - back] = source_of(seat, ancestor(seat.call, row, states, back));
  convolve(seat, sources, seat.query_channel(), block.key_dim, token.query);
  convolve(seat, sources, seat.key_channel(), block.key_dim, token.key);
  convolve(seat, sources, seat.value_channel(), block.value_dim, token.value);
  to_unit(token.query, block.key_dim, float(1.0 / std::sqrt(double(block.key_dim))));
  to_unit(token.key, block.key_dim, 1.0f);

  const float* fused = seat.row(index);
  const double gate = fused[seat.decay_column()] + block.dt_bias[seat.head];
  const double softplus = gate > 20 ? gate : std::log1p(std::exp(gate));
  token.decay[0] = float(std::exp(-double(block.rate[seat.head]) * softplus));
  const float beta = float(1.0 / (1.0 + std::exp(-double(fused[seat.beta_column()]))));
  float as_vector[LANES];
  store(as_vector, rounded(spread(beta), (const T*)nullptr));
  token.decay[1] = as_vector[0];

  if (states.channels == nullptr) return;
  const int64_t node = states.first + index;
  const Source<T>& own = sources[block.taps - 1];
  keep_channels(own, seat.value_channel(), block.value_dim, seat.taped(node));
  *seat.taped_decay(node) = token.decay[0];
  if (!seat.leads()) return;
  keep_channels(own, seat.query_channel(), block.key_dim, seat.taped(node));
  keep_channels(own, seat.key_channel(), block.key_dim, seat.taped(node));
  std::memcpy(seat.taped_key(node), token.key, size_t(block.key_dim) * sizeof(float));
}

// Numbers of a state: rows of `stride` floats.
struct Tile {
  const float* at;
  int64_t stride;
};

// One row's step of some columns of a state, from one place to another or the same.
template <int VECTORS>
__attribute__((noinline)) void step(Tile from, float* to, int64_t to_stride, const Token& token, int64_t keys, int64_t column) {
  Vec known[VECTORS], change[VECTORS], sums[VECTORS];
  UNROLL for (int v = 0; v < VECTORS; ++v) known[v] = sums[v] = zero();
  for (int64_t i = 0; i < keys; ++i) {
    const Vec key = spread(token.key[i]);
    UNROLL for (int v = 0; v < VECTORS; ++v) known[v] = fma(key, load(from.at + i * from.stride + v * LANES), known[v]);
  }
  const Vec decay = spread(token.decay[0]), beta = spread(token.decay[1]);
  UNROLL for (int v = 0; v < VECTORS; ++v) {
    change[v] = (load(token.value + column + v * LANES) - known[v] * decay) * beta;
    store(token.value + column + v * LANES, change[v]);  // the value is not needed any more
  }
  for (int64_t i = 0; i < keys; ++i) {
    const Vec key = spread(token.key[i]), query = spread(token.query[i]);
    UNROLL for (int v = 0; v < VECTORS; ++v) {
      const Vec state = fma(key, change[v], load(from.at + i * from.stride + v * LANES) * decay);
      store(to + i * to_stride + v * LANES, state);
      sums[v] = fma(query, state, sums[v]);
    }
  }
  UNROLL for (int v = 0; v < VECTORS; ++v) store(token.out + column + v * LANES, sums[v]);
}

INLINE void step_of(int vectors, Tile from, float* to, int64_t to_stride, const Token& token, int64_t keys, int64_t column) {
  switch (vectors) {
#define CASE(VECTORS)                                                                       \
  case VECTORS:                                                                             \
    if constexpr (VECTORS <= MOST_COLUMNS) step<VECTORS>(from, to, to_stride, token, keys, column); \
    return;
    CASE(1) CASE(2) CASE(3) CASE(4)
#undef CASE
  }
}

// One step of some columns by the tape: what `step` does to a state, number for number.
template <class T>
INLINE void redo(const Seat<T>& seat, int64_t node, Tile from, float* to, int64_t to_stride, int64_t column, int64_t count) {
  const float *keys = seat.taped_key(node), *changes = seat.taped_change(node) + column;
  const Vec decay = spread(*seat.taped_decay(node));
  for (int64_t c = 0; c < count; c += LANES) {
    const Vec change = load_first(changes + c, count - c);
    for (int64_t i = 0; i < seat.block.key_dim; ++i)
      store(to + i * to_stride + c, fma(spread(keys[i]), change, load(from.at + i * from.stride + c) * decay));
  }
}

// `count` columns of a state, copied to rows of whole vectors; the others of a vector are zeros.
INLINE void widen_columns(Tile from, float* to, int64_t to_stride, int64_t rows, int64_t count) {
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t c = 0; c < count; c += LANES) store(to + i * to_stride + c, load_first(from.at + i * from.stride + c, count - c));
}

// Some columns of all rows of a head.
template <class T>
void sweep(const Seat<T>& seat, const Bank& bank, int64_t column, int vectors) {
  const Delta& block = seat.block;
  const States& states = seat.states;
  const int64_t keys = block.key_dim, size = block.value_dim, room = MOST_COLUMNS * LANES;
  const int64_t left = size - column, count = left < vectors * LANES ? left : vectors * LANES;
  const bool straight = count % LANES == 0;  // else the state's rows are read and written through a tile
  const bool chain = states.next_state != nullptr;
  const Tile committed{states.state + seat.state_offset() + column, size};
  float* next = chain ? states.next_state + seat.state_offset() + column : nullptr;
  for (int64_t index = 0; index < states.num_rows; ++index) {
    const Token token = bank.token(block, index);
    float* tile = bank.tile(block, states.num_rows, chain ? 0 : index);
    const Row& row = seat.call.rows[states.row + index];
    const int64_t parent = ancestor(seat.call, row, states, 1);
    Tile from = committed;
    if (parent >= states.first) {
      from = {bank.tile(block, states.num_rows, chain ? 0 : parent - states.first), room};
    } else {
      if (parent >= 0 && states.continues) from = {next, size};
      if (!straight) widen_columns(from, tile, room, keys, count), from = {tile, room};
      if (parent >= 0 && !states.continues) {
        int64_t back = 1;
        while (ancestor(seat.call, row, states, back) >= 0) ++back;
        for (--back; back >= 1; --back) {
          redo(seat, ancestor(seat.call, row, states, back), from, tile, room, column, count);
          from = {tile, room};
        }
      }
    }
    const bool last = chain && straight && index + 1 == states.num_rows;
    step_of(vectors, from, last ? next : tile, last ? size : room, token, keys, column);
    if (chain && !straight && index + 1 == states.num_rows)
      for (int64_t i = 0; i < keys; ++i)
        for (int64_t c = 0; c < count; c += LANES) store_first(next + i * size + c, load(tile + i * room + c), count - c);
  }
}

// The history after a chain: the newest channels of what is committed and of the rows.
template <class T>
INLINE void keep_history(const Seat<T>& seat) {
  const Delta& block = seat.block;
  const States& states = seat.states;
  const Row& last = seat.call.rows[states.row + states.num_rows - 1];
  for (int64_t back = 0; back + 1 < block.taps; ++back) {
    const Source<T> source = source_of(seat, ancestor(seat.call, last, states, back));
    T* to = (T*)states.next_history + seat.history_offset(block.taps - 2 - back);
    keep_channels(source, seat.value_channel(), block.value_dim, to);
    if (!seat.leads()) continue;
    keep_channels(source, seat.query_channel(), block.key_dim, to);
    keep_channels(source, seat.key_channel(), block.key_dim, to);
  }
}

// What a row gathers from the state, normed and gated: rounded before the weight, after it, and after the gate.
template <class T>
INLINE void gate_norm(const Seat<T>& seat, int64_t index, const Token& token, T* out) {
  const Delta& block = seat.block;
  const int64_t size = block.value_dim;
  const T* as = nullptr;
  const float* gate = seat.row(index) + seat.gate_column();
  T* narrow = (T*)token.value;  // which is not needed any more
  for (int64_t i = 0; i < size; i += LANES) store_first(narrow + i, load(token.out + i), size - i);
  const Vec factor = spread(inverse_root(narrow, size, block.head_eps));
  for (int64_t i = 0; i < size; i += LANES) {
    const Vec normed = rounded(load_first(narrow + i, size - i) * factor, as);
    const Vec weighed = rounded(normed * load_first(block.head_norm + i, size - i), as);
    store_first(out + i, weighed * silu(load_first(gate + i, size - i)), size - i);
  }
}

template <class T>
void delta_head(const Call& call, const Delta& block, Workshop<T>& shop, int64_t sequence, int64_t head) {
  const States& states = *call.sequences[sequence].states;
  const Seat<T> seat{call, block, states, shop.fused, head};
  const Bank bank{shop.own, whole(block.key_dim), whole(block.value_dim)};
  const int64_t size = block.value_dim, stride = padded<T>(block.out.inputs);
  for (int64_t index = 0; index < states.num_rows; ++index) prepare(seat, index, bank.token(block, index));
  for (int64_t column = 0; column < size; column += MOST_COLUMNS * LANES) {
    const int64_t vectors = whole(size - column) / LANES;
    sweep(seat, bank, column, int(vectors < MOST_COLUMNS ? vectors : MOST_COLUMNS));
  }
  for (int64_t index = 0; index < states.num_rows; ++index) {
    const Token token = bank.token(block, index);
    if (states.channels)
      std::memcpy(seat.taped_change(states.first + index), token.value, size_t(size) * sizeof(float));
    T* out = shop.inner + (states.row + index) * stride;
    gate_norm(seat, index, token, out + head * size);
    if (head == 0 && stride > block.out.inputs) out[block.out.inputs] = T(0);
  }
  if (states.next_state) keep_history(seat);
}

template <class T>
void delta_block(const Call& call, const Delta& block, Workshop<T>& shop, Phases& phases) {
  Team& team = phases.team;
  const int64_t columns = blocks_of(block.projection);
  norm_rows(call, block.norm, block.eps, shop, phases, columns);
  Store<T> fused{shop.fused, block.projection.outputs, block.projection.outputs};
  multiply(shop.normed, padded<T>(call.hidden), block.projection, call.num_rows, team, phases.now, fused);
  phases.next(columns);

  const int64_t sequences = call.rows[call.num_rows - 1].sequence + 1;
  phases.share_out(sequences * block.value_heads, 1, [&](int64_t i) {
    delta_head(call, block, shop, i / block.value_heads, i % block.value_heads);
  });

  AddTo<T> stream{(T*)call.stream, call.hidden, call.hidden};
  multiply(shop.inner, padded<T>(block.out.inputs), block.out, call.num_rows, team, phases.now, stream);
  phases.next(blocks_of(block.out));
}

}  // namespace SUREFOOT_NAMESPACE
