// The commit of a path in delta layers: each number of a state goes through the steps its rows went through, from the tape.
#pragma once

#include "delta.hpp"

namespace SUREFOOT_NAMESPACE {

using surefoot::Replay;

// Some columns of a head's state along a path: each number is read once and written once.
template <int VECTORS>
__attribute__((noinline)) void replay_columns(const Replay& replay, int64_t layer, int64_t head, int64_t column) {
  const States& states = *replay.states;
  const int64_t size = replay.value_dim, left = size - column;
  const int64_t key_head = head / (replay.value_heads / replay.key_heads);
  const int64_t offset = (layer * replay.value_heads + head) * replay.key_dim * size + column;
  for (int64_t i = 0; i < replay.key_dim; ++i) {
    Vec state[VECTORS];
    UNROLL for (int v = 0; v < VECTORS; ++v) state[v] = load_first(states.state + offset + i * size + v * LANES, left - v * LANES);
    for (int64_t t = 0; t < replay.count; ++t) {
      const int64_t node = layer * states.capacity + replay.path[t];
      const Vec key = spread(states.keys[(node * replay.key_heads + key_head) * replay.key_dim + i]);
      const Vec decay = spread(states.decays[node * replay.value_heads + head]);
      const float* changes = states.changes + (node * replay.value_heads + head) * size + column;
      UNROLL for (int v = 0; v < VECTORS; ++v)
        state[v] = fma(key, load_first(changes + v * LANES, left - v * LANES), state[v] * decay);
    }
    UNROLL for (int v = 0; v < VECTORS; ++v)
      store_first(states.next_state + offset + i * size + v * LANES, state[v], left - v * LANES);
  }
}

template <class T>
void replay_history(const Replay& replay, int64_t layer) {
  const States& states = *replay.states;
  const int64_t channels = 2 * replay.key_heads * replay.key_dim + replay.value_heads * replay.value_dim;
  const int64_t kept = replay.taps - 1, count = replay.count;
  for (int64_t place = 0; place < kept; ++place) {  // ascending: a row moves to one before it, or comes from the tape
    const int64_t from = place + count;
    const T* row = from < kept ? (const T*)states.history + (layer * kept + from) * channels
                               : (const T*)states.channels + (layer * states.capacity + replay.path[from - kept]) * channels;
    std::memmove((T*)states.next_history + (layer * kept + place) * channels, row, size_t(channels) * sizeof(T));
  }
}

inline void replay(const Replay& replay, Team& team, int member) {
  Phases phases{team, member};
  phases.share_out(replay.layers * replay.value_heads, 4, [&](int64_t i) {
    const int64_t layer = i / replay.value_heads, head = i % replay.value_heads;
    if (head == 0 && replay.type == surefoot::BFLOAT16) replay_history<bf16>(replay, layer);
    if (head == 0 && replay.type != surefoot::BFLOAT16) replay_history<float>(replay, layer);
    int64_t column = 0;
    for (; replay.value_dim - column > LANES * (MOST_COLUMNS - 1); column += MOST_COLUMNS * LANES)
      replay_columns<MOST_COLUMNS>(replay, layer, head, column);
    for (; column < replay.value_dim; column += LANES) replay_columns<1>(replay, layer, head, column);
  });
}

}  // namespace SUREFOOT_NAMESPACE
