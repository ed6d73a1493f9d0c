// What the kernels promise, checked on the machine this runs on, without Python: rows in any number are the rows alone,
// a tree is its paths, threads change nothing, and values are those of plain double arithmetic.
//
// Arguments: instruction sets to choose one after the other; without any, the one the library chose. Prints a line per
// check; the exit status is the number of those that failed.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <type_traits>
#include <vector>

#include "model.hpp"

extern "C" {
int64_t surefoot_forward(const surefoot::Call* call);
int64_t surefoot_product(const surefoot::Product* product);
int64_t surefoot_packed_bytes(int64_t type, int64_t outputs, int64_t inputs);
void surefoot_pack(int64_t type, const void* source, int64_t outputs, int64_t inputs, void* packed, int64_t first, int64_t step);
void surefoot_unpack(int64_t type, const surefoot::Matrix* matrix, const int64_t* rows, int64_t count, void* out);
void surefoot_race(uint64_t key, const float* x, int64_t count, double top, double temperature, float floor, float* least);
double surefoot_mass_above(const float* x, int64_t count, double top, double temperature, float bound, double* total);
void surefoot_best(const float* x, int64_t rows, int64_t stride, int64_t count, int64_t* tokens);
int64_t surefoot_likeliest(const float* x, int64_t rows, int64_t stride, int64_t count, int64_t most, int64_t* tokens);
void surefoot_set_threads(int64_t count);
const char* surefoot_instructions();
int64_t surefoot_choose(const char* name);
}

using namespace surefoot;
using bf16 = uint16_t;
using Reals = std::vector<double>;

int failures = 0;

void check(bool holds, const std::string& what) {
  std::printf("%s %s: %s\n", surefoot_instructions(), holds ? "holds" : "FAILS", what.c_str());
  failures += !holds;
}

uint64_t state = 7;
constexpr uint64_t GOLDEN = 0x9e3779b97f4a7c15;

uint64_t mixed(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

// Between -1 and 1, the same on every machine.
double draw() { return double(mixed(state += GOLDEN) >> 11) * 0x1p-52 - 1; }

template <class T>
constexpr int64_t type_of = std::is_same_v<T, bf16> ? BFLOAT16 : FLOAT32;

double wide(float x) { return x; }
double wide(bf16 x) {
  const uint32_t bits = uint32_t(x) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

template <class T>
T narrow(double x) {
  if constexpr (std::is_same_v<T, bf16>) {
    const float value = float(x);
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bf16((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
  } else {
    return float(x);
  }
}

template <class T>
std::vector<T> numbers(int64_t count, double scale = 1, double around = 0) {
  std::vector<T> result(count);
  for (T& x : result) x = narrow<T>(around + scale * draw());
  return result;
}

template <class T>
Reals widened(const std::vector<T>& x) {
  Reals result;
  for (T value : x) result.push_back(wide(value));
  return result;
}

// A weight [outputs, inputs] as it was, and packed; `pairs` packs gates, then ups, side by side.
template <class T>
struct Weight {
  std::vector<T> source, packed;
  std::vector<float> bias;  // whole blocks
  int64_t outputs, inputs;
  Matrix matrix;

  Weight(int64_t outputs, int64_t inputs, bool with_bias, bool pairs = false) : outputs(outputs), inputs(inputs) {
    const int64_t half = outputs / 2, blocks = pairs ? (half + 15) / 16 * 2 : (outputs + 15) / 16;
    source = numbers<T>(outputs * inputs, 1 / std::sqrt(double(inputs)));
    packed.resize(surefoot_packed_bytes(type_of<T>, blocks * 16, inputs) / sizeof(T));
    if (pairs) {
      surefoot_pack(type_of<T>, source.data(), half, inputs, packed.data(), 0, 2);
      surefoot_pack(type_of<T>, source.data() + half * inputs, half, inputs, packed.data(), 1, 2);
    } else {
      surefoot_pack(type_of<T>, source.data(), outputs, inputs, packed.data(), 0, 1);
    }
    if (with_bias) {
      bias = numbers<float>(blocks * 16);
      for (int64_t i = outputs; i < blocks * 16; ++i) bias[i] = 0;
    }
    matrix = {packed.data(), with_bias ? bias.data() : nullptr, inputs, pairs ? blocks * 16 : outputs};
  }

  // In doubles, beside the sum of magnitudes where that is asked for.
  Reals times(const Reals& x, Reals* magnitudes = nullptr) const {
    Reals y;
    for (int64_t o = 0; o < outputs; ++o) {
      double sum = bias.empty() ? 0 : bias[o], size = std::fabs(sum);
      for (int64_t i = 0; i < inputs; ++i) {
        sum += x[i] * wide(source[o * inputs + i]);
        size += std::fabs(x[i] * wide(source[o * inputs + i]));
      }
      y.push_back(sum);
      if (magnitudes) magnitudes->push_back(size);
    }
    return y;
  }
};

template <class T>
std::vector<float> multiply(const Weight<T>& weight, const T* x, int64_t rows) {
  std::vector<float> y(rows * weight.outputs);
  const Product product{type_of<T>, rows, x, &weight.matrix, nullptr, 0, y.data()};
  if (surefoot_product(&product)) check(false, "memory was left");
  return y;
}

// The largest error as a share of what a sum of rounded products in any order may err by.
template <class T>
double worst_error(const Weight<T>& weight, const std::vector<T>& x, int64_t rows) {
  const std::vector<float> y = multiply(weight, x.data(), rows);
  double worst = 0;
  for (int64_t row = 0; row < rows; ++row) {
    Reals magnitudes;
    const Reals input = widened(std::vector<T>(x.begin() + row * weight.inputs, x.begin() + (row + 1) * weight.inputs));
    const Reals exact = weight.times(input, &magnitudes);
    for (int64_t o = 0; o < weight.outputs; ++o) {
      const double bound = double(weight.inputs + 2) * 0x1p-24 * magnitudes[o];
      worst = std::fmax(worst, std::fabs(y[row * weight.outputs + o] - exact[o]) / bound);
    }
  }
  return worst;
}

template <class T>
void check_products(const std::string& type) {
  for (int64_t inputs : {33, 130})
    for (int64_t outputs : {17, 300}) {
      const std::string name = type + " product of " + std::to_string(inputs) + " to " + std::to_string(outputs) + ": ";
      Weight<T> weight(outputs, inputs, inputs == 33);
      const std::vector<T> x = numbers<T>(16 * inputs);
      std::vector<float> alone;
      for (int64_t row = 0; row < 16; ++row)
        for (float value : multiply(weight, x.data() + row * inputs, 1)) alone.push_back(value);
      bool equal = true;
      for (int threads = 1; threads <= 3; ++threads) {
        surefoot_set_threads(threads);
        for (int64_t rows = 1; rows <= 16; ++rows) {
          const std::vector<float> y = multiply(weight, x.data(), rows);
          equal = equal && std::memcmp(y.data(), alone.data(), y.size() * sizeof(float)) == 0;
        }
      }
      check(equal, name + "1 to 16 rows on 1 to 3 threads are the rows alone");
      check(worst_error(weight, x, 16) <= 1, name + "errs by the roundings of its sum at most");
      std::vector<int64_t> all(outputs);
      for (int64_t i = 0; i < outputs; ++i) all[i] = i;
      std::vector<T> back(weight.source.size());
      surefoot_unpack(type_of<T>, &weight.matrix, all.data(), outputs, back.data());
      check(back == weight.source, name + "unpacked rows are those that were packed");
      weight.packed[weight.packed.size() / 2] = narrow<T>(3.0);
      check(worst_error(weight, x, 16) > 1, name + "(control) one wrong weight is seen");
    }
}

// (1 + e)^2 - (1 + 2 e) with e = 2^-12, the square added last: 2^-24 where product and sum are rounded once, else 0.
void check_fusing() {
  const float e = 0x1p-12f, row[2] = {1, 1 + e}, outputs[2] = {-(1 + 2 * e), 1 + e};
  Weight<float> weight(1, 2, false);
  surefoot_pack(FLOAT32, outputs, 1, 2, weight.packed.data(), 0, 1);
  const float difference = multiply(weight, row, 1)[0];
  const bool fuses = difference == 0x1p-24f;
  check(fuses || difference == 0, std::string("a product and a sum are rounded ") + (fuses ? "once" : "twice"));
#if defined(__aarch64__)
  check(fuses, "every AArch64 fuses them");
#endif
}

// a a - a a with a = 1 + 2^-12, as a rotation: 0 where both products are rounded, else what rounding took from one.
void check_rotation() {
  constexpr int64_t SIZE = 16;
  const float a = 1 + 0x1p-12f, ones[2] = {1, 1};
  Weight<float> qkv(3 * SIZE, 2, false), out(2, SIZE, false);
  std::vector<float> source(3 * SIZE * 2), keys(2 * SIZE, 1.0f), stream(2, 1.0f);
  for (int64_t i = 0; i < SIZE; ++i) source[(SIZE + i) * 2] = i < SIZE / 2 ? -a : a;
  surefoot_pack(FLOAT32, source.data(), 3 * SIZE, 2, qkv.packed.data(), 0, 1);
  const std::vector<float> turn(SIZE, a);
  const Attention block{qkv.matrix, out.matrix, ones, nullptr, 1, 1, SIZE, 0, 0, FLOAT32, 0, 1};
  const Step step{ATTENTION, &block, nullptr};
  const Sequence sequence{keys.data(), 1, turn.data(), turn.data(), SIZE};
  const int64_t seen = 0;
  const Row row{0, 0, 0, 0, 0, 1};
  const Call call{FLOAT32, 1, 2, stream.data(), &row, &sequence, &seen, &step, 1};
  bool apart = surefoot_forward(&call) == 0;
  for (int64_t i = 0; i < SIZE; ++i) apart = apart && keys[i] == 0;
  check(apart, "products and sums that are not written fused are rounded one by one");
}

// Bounds of a race and sums of weights, beside plain double arithmetic.
void check_race() {
  constexpr uint64_t KEY = 0xfedcba9876543210;
  for (int64_t count : {1, 257, 20011}) {
    const std::vector<float> x = numbers<float>(count, 9);
    const int64_t stretch = 256, stretches = (count + stretch - 1) / stretch;
    std::vector<float> least(stretches);
    Reals exact(stretches, INFINITY);
    const double top = *std::max_element(x.begin(), x.end()), temperature = 0.8;
    double worst = 0, all = 0, some = 0, total;
    surefoot_race(KEY, x.data(), count, top, temperature, -1.0f, least.data());
    const double upper = surefoot_mass_above(x.data(), count, top, temperature, 0.5f, &total);
    for (int64_t i = 0; i < count; ++i) {
      const double u = (double(mixed(KEY + GOLDEN * uint64_t(i + 1)) >> 12) + 0.5) * 0x1p-52;
      const double weight = std::exp((x[i] - top) / temperature);
      if (x[i] > -1.0f) exact[i / stretch] = std::fmin(exact[i / stretch], (1 - u) / weight);
      all += weight;
      some += x[i] > 0.5f ? weight : 0;
    }
    const double near = 1.4 * *std::min_element(exact.begin(), exact.end());
    for (int64_t i = 0; i < stretches; ++i) {
      if (exact[i] == double(least[i])) continue;
      const double off = least[i] / exact[i] - 1;  // below 0 where no bound comes close to the least
      worst = std::fmax(worst, exact[i] > near && least[i] > near ? off : std::fabs(off));
    }
    const bool sums = std::fabs(total / all - 1) < 1e-5 && std::fabs(upper - some) < 1e-5 * all;
    check(worst < 1e-4 && sums, "bounds and sums of a race of " + std::to_string(count));
  }
}

// The likeliest tokens, the lowest of equals first; rows with NaN have none.
void check_choice() {
  for (int64_t count : {1, 17, 257, 9000}) {
    std::vector<float> x = numbers<float>(count, 4);
    for (float& value : x) value = std::nearbyint(4 * value);  // nearly all have equals
    const int64_t most = std::min<int64_t>(count, 40);
    std::vector<int64_t> order(count), found(most);
    for (int64_t i = 0; i < count; ++i) order[i] = i;
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return x[a] > x[b]; });
    int64_t best = -2;
    surefoot_best(x.data(), 1, count, count, &best);
    const bool room = surefoot_likeliest(x.data(), 1, count, count, most, found.data()) == 0;
    const bool right = room && best == order[0] && std::equal(found.begin(), found.end(), order.begin());
    x[count - 1] = NAN;
    surefoot_best(x.data(), 1, count, count, &best);
    surefoot_likeliest(x.data(), 1, count, count, most, found.data());
    check(right && best == -1 && found[0] == -1, "the likeliest of " + std::to_string(count) + " tokens");
  }
}

struct Layer {
  int64_t window;
  bool head_norm;
};

// Two layers on random weights, and the prefix of a sequence.
template <class T, class C>
struct Model {
  static constexpr int64_t HIDDEN = 70, HEADS = 6, KV_HEADS = 2, SIZE = 24, ROTATED = 16, INNER = 100, CAPACITY = 64;
  static constexpr double EPS = 1e-6;
  std::vector<Layer> layers{{0, true}, {9, false}};
  std::vector<Weight<T>> qkv, out, gate_up, down;
  std::vector<std::vector<float>> norms, head_norms;
  std::vector<Attention> attentions;
  std::vector<Mlp> mlps;
  std::vector<Step> steps;
  std::vector<float> first, second;

  Model() {
    const int64_t mixed = HEADS * SIZE;
    for (size_t i = 0; i < layers.size(); ++i) {
      qkv.emplace_back((HEADS + 2 * KV_HEADS) * SIZE, HIDDEN, i == 0);
      out.emplace_back(HIDDEN, mixed, false);
      gate_up.emplace_back(2 * INNER, HIDDEN, false, true);
      down.emplace_back(HIDDEN, INNER, i == 1);
      norms.push_back(numbers<float>(HIDDEN, 0.2, 1));
      norms.push_back(numbers<float>(HIDDEN, 0.2, 1));
      head_norms.push_back(numbers<float>((HEADS + KV_HEADS) * SIZE, 0.2, 1));
    }
    for (size_t i = 0; i < layers.size(); ++i) {
      const float* head_norm = layers[i].head_norm ? head_norms[i].data() : nullptr;
      attentions.push_back(
          {qkv[i].matrix, out[i].matrix, norms[2 * i].data(), head_norm, HEADS, KV_HEADS, SIZE, layers[i].window, int64_t(i),
           type_of<C>, EPS, 1 / std::sqrt(double(SIZE))});
      mlps.push_back({gate_up[i].matrix, down[i].matrix, norms[2 * i + 1].data(), INNER, EPS});
    }
    for (size_t i = 0; i < layers.size(); ++i) {
      steps.push_back({ATTENTION, &attentions[i], nullptr});
      steps.push_back({MLP, &mlps[i], nullptr});
    }
    for (int64_t position = 0; position < CAPACITY; ++position)
      for (int64_t i = 0; i < ROTATED; ++i) {
        const double angle = double(position) * std::pow(100.0, -double(i % (ROTATED / 2)) / (ROTATED / 2));
        first.push_back(float(std::cos(angle)));
        second.push_back(float(i < ROTATED / 2 ? -std::sin(angle) : std::sin(angle)));
      }
  }

  // Keys and values of all layers, none yet.
  std::vector<C> cache() const { return std::vector<C>(2 * layers.size() * KV_HEADS * CAPACITY * SIZE); }

  // Runs rows [x] after `committed` ones; node i has parent parents[i] < i, or -1 for the committed.
  std::vector<T> run(std::vector<T> x, std::vector<C>& kv, int64_t committed, const std::vector<int>& parents) const {
    const Sequence sequence{kv.data(), CAPACITY, first.data(), second.data(), ROTATED};
    std::vector<std::vector<int64_t>> paths;
    std::vector<int64_t> seen;
    std::vector<Row> rows;
    for (size_t i = 0; i < parents.size(); ++i) {
      paths.push_back(parents[i] < 0 ? std::vector<int64_t>{} : paths[parents[i]]);
      paths[i].push_back(committed + int64_t(i));
      const int64_t depth = int64_t(paths[i].size());
      rows.push_back({0, committed + depth - 1, committed + int64_t(i), committed, int64_t(seen.size()), depth});
      seen.insert(seen.end(), paths[i].begin(), paths[i].end());
    }
    const Call call{type_of<T>,  int64_t(rows.size()), HIDDEN,       x.data(), rows.data(), &sequence,
                    seen.data(), steps.data(),         int64_t(steps.size())};
    if (surefoot_forward(&call)) check(false, "memory was left");
    return x;
  }

  // A chain after `committed` rows, `chunk` rows to a call.
  std::vector<T> chain(const std::vector<T>& x, std::vector<C>& kv, int64_t committed, int64_t chunk) const {
    std::vector<T> result;
    const int64_t total = int64_t(x.size()) / HIDDEN;
    for (int64_t done = 0; done < total; done += chunk) {
      const int64_t rows = std::min(chunk, total - done);
      std::vector<int> parents(rows);
      for (int64_t i = 0; i < rows; ++i) parents[i] = int(i) - 1;
      const auto part = run({x.begin() + done * HIDDEN, x.begin() + (done + rows) * HIDDEN}, kv, committed + done, parents);
      result.insert(result.end(), part.begin(), part.end());
    }
    return result;
  }

  static Reals normed(const double* x, int64_t width, const float* weight) {
    double square = 0;
    for (int64_t i = 0; i < width; ++i) square += x[i] * x[i];
    Reals result;
    for (int64_t i = 0; i < width; ++i) result.push_back(x[i] / std::sqrt(square / double(width) + EPS) * double(weight[i]));
    return result;
  }

  void place(double* head, size_t layer, int64_t number, int64_t position) const {
    if (layers[layer].head_norm) {
      const Reals result = normed(head, SIZE, head_norms[layer].data() + number * SIZE);
      std::copy(result.begin(), result.end(), head);
    }
    const Reals before(head, head + SIZE);
    const int64_t half = ROTATED / 2;
    for (int64_t i = 0; i < ROTATED; ++i)
      head[i] = before[i] * double(first[position * ROTATED + i]) +
                before[(i + half) % ROTATED] * double(second[position * ROTATED + i]);
  }

  // The whole chain in doubles, nothing rounded.
  Reals reference(const std::vector<T>& x) const {
    Reals stream = widened(x);
    const int64_t total = int64_t(x.size()) / HIDDEN, group = HEADS / KV_HEADS;
    for (size_t layer = 0; layer < layers.size(); ++layer) {
      std::vector<Reals> heads;
      for (int64_t t = 0; t < total; ++t) {
        double* row = stream.data() + t * HIDDEN;
        heads.push_back(qkv[layer].times(normed(row, HIDDEN, norms[2 * layer].data())));
        for (int64_t h = 0; h < HEADS + KV_HEADS; ++h) place(heads[t].data() + h * SIZE, layer, h, t);
        Reals mixed(HEADS * SIZE);
        const int64_t from = layers[layer].window ? std::max<int64_t>(0, t + 1 - layers[layer].window) : 0;
        for (int64_t h = 0; h < HEADS; ++h) {
          Reals weights;
          double whole = 0;
          for (int64_t s = from; s <= t; ++s) {
            double score = 0;
            for (int64_t i = 0; i < SIZE; ++i) score += heads[t][h * SIZE + i] * heads[s][(HEADS + h / group) * SIZE + i];
            weights.push_back(std::exp(score / std::sqrt(double(SIZE))));
            whole += weights.back();
          }
          for (int64_t s = from; s <= t; ++s)
            for (int64_t i = 0; i < SIZE; ++i)
              mixed[h * SIZE + i] += weights[s - from] / whole * heads[s][(HEADS + KV_HEADS + h / group) * SIZE + i];
        }
        const Reals attended = out[layer].times(mixed);
        for (int64_t i = 0; i < HIDDEN; ++i) row[i] += attended[i];
        const Reals both = gate_up[layer].times(normed(row, HIDDEN, norms[2 * layer + 1].data()));
        Reals inner;
        for (int64_t i = 0; i < INNER; ++i) inner.push_back(both[i] / (1 + std::exp(-both[i])) * both[INNER + i]);
        const Reals fed = down[layer].times(inner);
        for (int64_t i = 0; i < HIDDEN; ++i) row[i] += fed[i];
      }
    }
    return stream;
  }
};

template <class T>
bool same(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

template <class T, class C>
void check_forward(const std::string& name, double bound) {
  using M = Model<T, C>;
  const M model;
  constexpr int64_t PREFIX = 19, TOTAL = 33;
  const std::vector<T> x = numbers<T>(TOTAL * M::HIDDEN);
  surefoot_set_threads(1);
  std::vector<C> kv = model.cache();
  const std::vector<T> single = model.chain(x, kv, 0, 1);

  bool equal = true;
  for (int threads = 1; threads <= 3; ++threads) {
    surefoot_set_threads(threads);
    for (int64_t chunk = threads; chunk <= 16; chunk += threads) {
      std::vector<C> other = model.cache();
      equal = equal && same(model.chain(x, other, 0, chunk), single) && same(other, kv);
    }
  }
  check(equal, name + ": chunks of 1 to 16 rows on 1 to 3 threads are the rows alone, keys and values too");

  double worst = 0, largest = 0;
  const Reals exact = model.reference(x);
  for (size_t i = 0; i < exact.size(); ++i) {
    worst = std::fmax(worst, std::fabs(wide(single[i]) - exact[i]));
    largest = std::fmax(largest, std::fabs(exact[i]));
  }
  std::printf("%s error of %s: %.2g of the largest\n", surefoot_instructions(), name.c_str(), worst / largest);
  check(worst / largest < bound, name + ": values are those of doubles");

  const std::vector<T> prefix(x.begin(), x.begin() + PREFIX * M::HIDDEN);
  std::vector<C> committed = model.cache();
  model.chain(prefix, committed, 0, PREFIX);
  bool paths = true, control = false;
  for (int trial = 0; trial < 8; ++trial) {
    surefoot_set_threads(1 + trial % 3);
    const int nodes = 2 + 2 * trial;
    std::vector<int> parents{-1};
    for (int i = 1; i < nodes; ++i) parents.push_back(int((draw() + 1) / 2 * i) % i);
    const std::vector<T> drafts = numbers<T>(nodes * M::HIDDEN);
    std::vector<C> grown = committed;
    const std::vector<T> tree = model.run(drafts, grown, PREFIX, parents);
    for (int node = 0; node < nodes; ++node) {
      std::vector<T> path;
      for (int at = node; at >= 0; at = parents[at]) path.insert(path.begin(), drafts.begin() + at * M::HIDDEN, drafts.begin() + (at + 1) * M::HIDDEN);
      std::vector<C> own = committed;
      const std::vector<T> walked = model.chain(path, own, PREFIX, 1);
      const std::vector<T> last(walked.end() - M::HIDDEN, walked.end());
      const std::vector<T> found(tree.begin() + node * M::HIDDEN, tree.begin() + (node + 1) * M::HIDDEN);
      paths = paths && same(last, found);
      if (node > 0 && parents[node] != node - 1) {  // a chain would have shown it its sibling
        std::vector<int> wrong = parents;
        wrong[node] = node - 1;
        std::vector<C> spoilt = committed;
        const std::vector<T> other = model.run(drafts, spoilt, PREFIX, wrong);
        control = control || !same(last, {other.begin() + node * M::HIDDEN, other.begin() + (node + 1) * M::HIDDEN});
      }
    }
  }
  check(paths, name + ": the nodes of random trees are the ends of their paths");
  check(control, name + ": (control) another parent is seen");
}

int main(int count, char** arguments) {
  for (int i = 1; i < std::max(count, 2); ++i) {
    if (count > 1 && surefoot_choose(arguments[i])) {
      std::printf("%s is not here\n", arguments[i]);
      continue;
    }
    check_fusing();
    check_rotation();
    check_race();
    check_choice();
    check_products<float>("fp32");
    check_products<bf16>("bf16");
    check_forward<float, float>("fp32 forward", 1e-5);
    check_forward<float, bf16>("fp32 forward on bf16 keys", 1e-2);
    check_forward<bf16, bf16>("bf16 forward", 5e-2);
  }
  return failures;
}
