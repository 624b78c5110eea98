// Gradients of the host backend, on every target this processor can run, against plain loops in float64 with masks,
// scores and their derivatives written a second time by hand. Tensors have gaps between rows, which must stay as they
// are.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <functional>
#include <random>

#include "compiler/spec/half.h"
#include "tests/host/host_case.h"

namespace flashjit {
namespace {

using reference::Dropout;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr float kUntouched = 12345;  // what lies in the gaps
constexpr Int64 kSeed = -5, kOffset = Int64{1} << 33;

struct At {
  int q, k, b, h, q_len, k_len;
};
struct Slope {
  double score, by_s;
};

// Where an element lies among rows of this width; in column 0, how many there are in front of the row.
std::size_t place(int row, int width, int column = 0) {
  return static_cast<std::size_t>(row) * static_cast<std::size_t>(width) + static_cast<std::size_t>(column);
}

struct GradientCase {
  std::string spec;  // "{}" stands for the dtype
  int batch, q, k;
  std::function<bool(const At&)> visible = [](const At&) { return true; };
  std::function<Slope(const At&, double s)> score = [](const At&, double s) { return Slope{s, 1}; };
  std::vector<int> q_lengths = {}, k_lengths = {};  // packed
  std::string pins = "tile_q=24,tile_kv=64";
  std::vector<float> data = {};  // of the one parameter of the spec, a tensor of one dimension
};

bool is_causal(const At& at) { return at.k <= at.q + at.k_len - at.q_len; }

std::vector<GradientCase> cases() {
  const auto cap = [](const At&, double s) {
    const double t = std::tanh(s / 5);
    return Slope{5 * t, 1 - t * t};
  };
  const auto tilted = [](const At& at, double s) { return Slope{s * (1 + 0.01 * at.q) - 0.1 * at.k, 1 + 0.01 * at.q}; };
  const auto doc = [](int i) { return i / 37 % 3; };
  std::vector<float> documents(150);
  for (int i = 0; i < 150; ++i) documents[static_cast<std::size_t>(i)] = static_cast<float>(doc(i));
  const std::string of_document = "params=\"doc: fp32[1]\" mask=\"doc[q] == doc[k]\"";
  return {
      {"bwd {} d=64 heads=2", 2, 100, 100},
      {"bwd {} d=64 heads=4/2 mask=\"causal\" out=fp32", 1, 100, 150, is_causal},
      {"bwd {} d=72/40 heads=2/1 mask=\"causal\" layout=bhsd", 2, 130, 70, is_causal},
      {"bwd {} d=72/40 heads=2/1 mask=\"causal\" out=fp32/bf16/fp16", 1, 70, 130, is_causal},
      {"bwd {} d=40/64 heads=2 mask=\"causal\" layout=bhsd out=bf16/fp16/fp32", 1, 70, 90, is_causal},
      {"bwd {} d=24/104 heads=3 mask=\"window(20, 0)\" dlse", 1, 90, 700,
       [](const At& at) { return is_causal(at) && at.k + 20 >= at.q + at.k_len - at.q_len; }},
      {"bwd {} d=32 heads=6/3 mask=\"causal\" score=\"softcap(5)\" layout=packed",
       3,
       90,
       100,
       is_causal,
       cap,
       {90, 1, 33},
       {100, 0, 64}},
      {"bwd {} d=32 heads=1 lse=log2 dlse score=\"s * (1 + 0.01 * q) - 0.1 * k\"", 1, 50, 333,
       [](const At&) { return true; }, tilted},
      {"bwd {} d=40 heads=2 lse=log2 " + of_document,
       1,
       150,
       150,
       [doc](const At& at) { return doc(at.q) == doc(at.k); },
       GradientCase{}.score,
       {},
       {},
       "tile_q=40,tile_kv=32",
       documents},
      {"bwd {} d=256/8 heads=1 sink mask=\"q % 7 != 3 & k % 5 != q % 5\"", 1, 61, 290,
       [](const At& at) { return at.q % 7 != 3 && at.k % 5 != at.q % 5; }},
      {"bwd {} d=40 heads=4/2 mask=\"causal\" out=fp32 dropout=0.3", 2, 100, 150, is_causal},
      {"bwd {} d=32 heads=2 score=\"softcap(5)\" layout=packed dlse dropout=0.05",
       3,
       90,
       100,
       GradientCase{}.visible,
       cap,
       {90, 1, 33},
       {100, 0, 64}},
      {"bwd {} d=16 heads=1", 1, 1, 3, GradientCase{}.visible, GradientCase{}.score, {}, {}, ""},
      {"bwd {} d=64 heads=2/1 mask=\"causal\"", 1, 200, 900, is_causal, GradientCase{}.score, {}, {}, ""},
  };
}

// A tensor in one of the layouts, with gaps, beside its elements as they are after rounding.
struct Gapped {
  Dtype dtype = Dtype::F32;
  int d = 0;
  Strides stride{};
  std::vector<std::uint8_t> bytes;
  std::vector<float> known;  // what was set
  double untouched = 0;

  Gapped(const AttentionSpec& spec, Dtype type, int batch, int tokens, int heads, int width) : dtype(type), d(width) {
    const Int64 gap = 8;
    if (spec.layout == Layout::Bhsd) {
      stride.token = d + gap;
      stride.head = tokens * stride.token + gap;
      stride.batch = heads * stride.head + gap;
    } else {
      stride.head = d + gap;
      stride.token = heads * stride.head + gap;
      stride.batch = spec.layout == Layout::Packed ? 0 : tokens * stride.token + gap;
    }
    const Int64 count =
        (spec.layout == Layout::Packed ? 1 : batch) * (stride.batch + 1) + heads * stride.head + tokens * stride.token;
    bytes.resize(static_cast<std::size_t>(count * size_of(dtype)));
    known.resize(static_cast<std::size_t>(count));
    for (Int64 i = 0; i < count; ++i) store_float(dtype, bytes.data(), i, kUntouched);
    untouched = load_float(dtype, bytes.data(), 0);
  }
  Int64 at(int b, int h, int token, int i) const {
    return b * stride.batch + h * stride.head + token * stride.token + i;
  }
  double get(int b, int h, int token, int i) const { return load_float(dtype, bytes.data(), at(b, h, token, i)); }
  const float* row(int b, int h, int token) const { return &known[static_cast<std::size_t>(at(b, h, token, 0))]; }
  void set(int b, int h, int token, int i, double value) {
    store_float(dtype, bytes.data(), at(b, h, token, i), static_cast<float>(value));
    known[static_cast<std::size_t>(at(b, h, token, i))] = load_float(dtype, bytes.data(), at(b, h, token, i));
  }
};

struct Part {
  int q_first = 0, k_first = 0, q_len = 0, k_len = 0;
};

using Doubles = std::vector<double>;

double dot(const float* x, const float* y, int count) {
  double sum = 0;
  for (int i = 0; i < count; ++i) sum += double{x[i]} * y[i];
  return sum;
}

class BackwardCase {
 public:
  BackwardCase(const GradientCase& row, Dtype dtype, const Target& target, bool naive) : row_(row) {
    const Result<void> made = make(dtype, target, naive);
    if (!made) problem_ = made.error().message + "\n" + made.error().detail;
  }
  const std::string& problem() const { return problem_; }

  void run(int workers);
  void expect_right() const;
  std::vector<std::uint8_t> results() const {
    std::vector<std::uint8_t> all = dq_->bytes;
    all.insert(all.end(), dk_->bytes.begin(), dk_->bytes.end());
    all.insert(all.end(), dv_->bytes.begin(), dv_->bytes.end());
    return all;
  }

 private:
  Result<void> make(Dtype dtype, const Target& target, bool naive);
  bool packed() const { return spec_.layout == Layout::Packed; }
  int group() const { return spec_.heads_q / spec_.heads_kv; }
  void make_parts();
  void make_tensors();
  void forward();
  float& lse(int b, int h, int token) { return lse_[static_cast<std::size_t>(lse_at(b, h, token))]; }
  Int64 lse_at(int b, int h, int token) const {
    return ((packed() ? 0 : b) * spec_.heads_q + h) * Int64{tokens_q_} + token;
  }
  // Scores of a row with their derivatives, by key; -infinity where it is not visible.
  std::vector<Slope> scores(int b, int h, const Part& part, int q) const;
  // What the weight of a query and a key counts for.
  double kept(int b, int h, int q, int k) const;
  // Sums of one head, as [token of the part][d].
  void add_head(int b, int h, const Part& part, Doubles& dq, Doubles& dk, Doubles& dv) const;
  void expect_close(const char* which, const Gapped& found, int b, int head, int first, int tokens,
                    const Doubles& wanted) const;

  GradientCase row_;
  AttentionSpec spec_;
  std::string problem_;
  std::unique_ptr<HostKernel> kernel_;
  std::vector<Part> parts_;
  int tokens_q_ = 0, tokens_k_ = 0;
  std::optional<Gapped> q_, k_, v_, o_, do_, dq_, dk_, dv_;
  std::vector<float> lse_, dlse_;
  std::vector<int> offsets_q_{0}, offsets_k_{0};
};

Result<void> BackwardCase::make(Dtype dtype, const Target& target, bool naive) {
  std::string text = row_.spec;
  text.replace(text.find("{}"), 2, name(dtype));
  FLASHJIT_ASSIGN(spec, parse_spec(text));
  FLASHJIT_ASSIGN(pins, parse_schedule(row_.pins));
  FLASHJIT_ASSIGN(plan, make_plan(spec, target, pins));
  FLASHJIT_ASSIGN(object, backend()->compile(plan, naive));
  FLASHJIT_ASSIGN(kernel, backend()->link(plan, naive, object));
  spec_ = spec;
  kernel_ = std::move(kernel);
  make_parts();
  make_tensors();
  forward();
  return {};
}

void BackwardCase::make_parts() {
  for (int b = 0; b < row_.batch; ++b) {
    const auto i = static_cast<std::size_t>(b);
    if (packed()) {
      parts_.push_back({tokens_q_, tokens_k_, row_.q_lengths[i], row_.k_lengths[i]});
      offsets_q_.push_back(tokens_q_ += row_.q_lengths[i]);
      offsets_k_.push_back(tokens_k_ += row_.k_lengths[i]);
    } else {
      parts_.push_back({0, 0, tokens_q_ = row_.q, tokens_k_ = row_.k});
    }
  }
}

void BackwardCase::make_tensors() {
  std::mt19937_64 random(20261124);
  std::normal_distribution<double> normal;
  auto make = [&](Dtype dtype, int tokens, int heads, int d, bool fill) {
    Gapped t(spec_, dtype, row_.batch, tokens, heads, d);
    for (int b = 0; fill && b < (packed() ? 1 : row_.batch); ++b)
      for (int h = 0; h < heads; ++h)
        for (int token = 0; token < tokens; ++token)
          for (int i = 0; i < d; ++i) t.set(b, h, token, i, normal(random));
    return t;
  };
  q_ = make(spec_.dtype, tokens_q_, spec_.heads_q, spec_.d_qk, true);
  k_ = make(spec_.dtype, tokens_k_, spec_.heads_kv, spec_.d_qk, true);
  v_ = make(spec_.dtype, tokens_k_, spec_.heads_kv, spec_.d_v, true);
  o_ = make(spec_.dtype, tokens_q_, spec_.heads_q, spec_.d_v, false);
  do_ = make(spec_.dtype, tokens_q_, spec_.heads_q, spec_.d_v, true);
  dq_ = make(spec_.out_dq, tokens_q_, spec_.heads_q, spec_.d_qk, false);
  dk_ = make(spec_.out_dk, tokens_k_, spec_.heads_kv, spec_.d_qk, false);
  dv_ = make(spec_.out_dv, tokens_k_, spec_.heads_kv, spec_.d_v, false);
  lse_.resize(place(packed() ? 1 : row_.batch, spec_.heads_q) * static_cast<std::size_t>(tokens_q_));
  for (std::size_t i = 0; i < lse_.size(); ++i) dlse_.push_back(static_cast<float>(normal(random)));
}

std::vector<Slope> BackwardCase::scores(int b, int h, const Part& part, int q) const {
  const int tensor_b = packed() ? 0 : b;
  std::vector<Slope> all;
  for (int k = 0; k < part.k_len; ++k) {
    const double product =
        dot(q_->row(tensor_b, h, part.q_first + q), k_->row(tensor_b, h / group(), part.k_first + k), spec_.d_qk);
    const At at{q, k, b, h, part.q_len, part.k_len};
    const Slope one = row_.score(at, product / std::sqrt(spec_.d_qk));
    all.push_back(row_.visible(at) ? one : Slope{-kInfinity, 0});
  }
  return all;
}

double BackwardCase::kept(int b, int h, int q, int k) const {
  if (!drops(spec_)) return 1;
  const Dropout dropout(spec_.dropout, static_cast<std::uint64_t>(kSeed), static_cast<std::uint64_t>(kOffset));
  return dropout.drops({.q = q, .k = k, .b = b, .h = h}) ? 0 : dropout.factor();
}

// What the gradients are given: O, rounded, and the logarithm of the sums, a sink of 0.5 among them where there is one.
void BackwardCase::forward() {
  const double unit = spec_.lse == Lse::log2 ? std::log(2.0) : 1.0;
  for (int b = 0; b < row_.batch; ++b) {
    const Part& part = parts_[static_cast<std::size_t>(b)];
    const int tensor_b = packed() ? 0 : b;
    for (int h = 0; h < spec_.heads_q; ++h) {
      for (int q = 0; q < part.q_len; ++q) {
        const std::vector<Slope> all = scores(b, h, part, q);
        double sum = spec_.sink ? std::exp(0.5) : 0;
        for (const Slope& one : all) sum += std::exp(one.score);
        lse(b, h, part.q_first + q) = static_cast<float>(std::log(sum) / unit);
        Doubles o(static_cast<std::size_t>(spec_.d_v));
        for (int k = 0; k < part.k_len; ++k) {
          const double p = sum == 0 ? 0 : std::exp(all[static_cast<std::size_t>(k)].score) / sum;
          const float* value = v_->row(tensor_b, h / group(), part.k_first + k);
          for (std::size_t i = 0; i < o.size(); ++i) o[i] += p * kept(b, h, q, k) * value[i];
        }
        for (int i = 0; i < spec_.d_v; ++i) o_->set(tensor_b, h, part.q_first + q, i, o[static_cast<std::size_t>(i)]);
      }
    }
  }
}

void BackwardCase::run(int workers) {
  KernelParams p{};
  p.q = q_->bytes.data(), p.q_stride = q_->stride;
  p.k = k_->bytes.data(), p.k_stride = k_->stride;
  p.v = v_->bytes.data(), p.v_stride = v_->stride;
  p.o = o_->bytes.data(), p.o_stride = o_->stride;
  p.d_o = do_->bytes.data(), p.d_o_stride = do_->stride;
  p.dq = dq_->bytes.data(), p.dq_stride = dq_->stride;
  p.dk = dk_->bytes.data(), p.dk_stride = dk_->stride;
  p.dv = dv_->bytes.data(), p.dv_stride = dv_->stride;
  p.lse = lse_.data(), p.d_lse = spec_.dlse ? dlse_.data() : nullptr;
  p.row_stride_head = tokens_q_, p.row_stride_batch = Int64{tokens_q_} * spec_.heads_q;
  p.batch = row_.batch, p.q_len = row_.q, p.k_len = row_.k;
  if (packed()) p.offsets_q = offsets_q_.data(), p.offsets_k = offsets_k_.data();
  p.extra[0] = {row_.data.data(), {1}};
  p.seed_at = &kSeed, p.offset = kOffset;
  const Result<void> done = kernel_->run(p, threads(workers));
  ASSERT_TRUE(done) << done.error().message;
}

void BackwardCase::add_head(int b, int h, const Part& part, Doubles& dq, Doubles& dk, Doubles& dv) const {
  const int tensor_b = packed() ? 0 : b, hk = h / group();
  const double scale = 1 / std::sqrt(spec_.d_qk), unit = spec_.lse == Lse::log2 ? std::log(2.0) : 1.0;
  for (int q = 0; q < part.q_len; ++q) {
    const int token = part.q_first + q;
    const auto row = static_cast<std::size_t>(lse_at(b, h, token));
    double delta = spec_.dlse ? -dlse_[row] / unit : 0;
    const float *d_o = do_->row(tensor_b, h, token), *query = q_->row(tensor_b, h, token);
    delta += dot(d_o, o_->row(tensor_b, h, token), spec_.d_v);
    const std::vector<Slope> all = scores(b, h, part, q);
    for (int k = 0; k < part.k_len; ++k) {
      const Slope& one = all[static_cast<std::size_t>(k)];
      if (one.score == -kInfinity) continue;
      const double p = std::exp(one.score - lse_[row] * unit);
      const float* key = k_->row(tensor_b, hk, part.k_first + k);
      const double counts = kept(b, h, q, k);
      const double dp = counts * dot(d_o, v_->row(tensor_b, hk, part.k_first + k), spec_.d_v);
      const double ds = scale * p * (dp - delta) * one.by_s;
      for (int i = 0; i < spec_.d_v; ++i) dv[place(k, spec_.d_v, i)] += counts * p * d_o[i];
      for (int i = 0; i < spec_.d_qk; ++i) {
        dq[place(q, spec_.d_qk, i)] += ds * key[i];
        dk[place(k, spec_.d_qk, i)] += ds * query[i];
      }
    }
  }
}

// Within a share of the root mean square of all, as elements that are near zero are sums that cancel.
void BackwardCase::expect_close(const char* which, const Gapped& found, int b, int head, int first, int tokens,
                                const Doubles& wanted) const {
  const int tensor_b = packed() ? 0 : b;
  double square = 0;
  for (const double value : wanted) square += value * value / static_cast<double>(wanted.size());
  const double share = spec_.dtype == Dtype::F32 && found.dtype == Dtype::F32 ? 2e-5
                       : spec_.dtype == Dtype::F16                            ? 4e-3
                                                                              : 3e-2;
  for (int token = 0; token < tokens; ++token) {
    for (int i = 0; i <= found.d; ++i) {
      const double value = found.get(tensor_b, head, first + token, i);
      const double exact = i < found.d ? wanted[place(token, found.d, i)] : found.untouched;
      const double limit = i < found.d ? share * (std::sqrt(square) + std::fabs(exact)) : 0;
      ASSERT_LE(std::fabs(value - exact), limit) << which << " b " << b << " head " << head << " token " << token
                                                 << " column " << i << ": " << value << " in place of " << exact;
    }
  }
}

void BackwardCase::expect_right() const {
  for (int b = 0; b < row_.batch; ++b) {
    const Part& part = parts_[static_cast<std::size_t>(b)];
    const auto q_size = place(part.q_len, spec_.d_qk);
    for (int hk = 0; hk < spec_.heads_kv; ++hk) {
      Doubles dk(place(part.k_len, spec_.d_qk)), dv(place(part.k_len, spec_.d_v));
      for (int h = hk * group(); h < (hk + 1) * group(); ++h) {
        Doubles dq(q_size);
        add_head(b, h, part, dq, dk, dv);
        expect_close("dq", *dq_, b, h, part.q_first, part.q_len, dq);
      }
      expect_close("dk", *dk_, b, hk, part.k_first, part.k_len, dk);
      expect_close("dv", *dv_, b, hk, part.k_first, part.k_len, dv);
    }
  }
}

class HostGradients : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!backend()) GTEST_SKIP() << "built without the host backend";
  }
};

void expect_right(const GradientCase& row, Dtype dtype, const Target& target, bool naive = false) {
  SCOPED_TRACE(row.spec + " as " + std::string(name(dtype)) + " on " + std::string(target.name) +
               (naive ? " naive" : ""));
  BackwardCase one(row, dtype, target, naive);
  ASSERT_EQ(one.problem(), "");
  one.run(1);
  one.expect_right();
  const std::vector<std::uint8_t> alone = one.results();
  one.run(3);
  EXPECT_EQ(alone, one.results()) << "results depend on the number of threads";
}

TEST_F(HostGradients, AreThoseOfPlainLoopsOnEveryTarget) {
  for (const Target* target : runnable_targets()) {
    for (const GradientCase& row : cases()) {
      for (const Dtype dtype : {Dtype::F32, Dtype::BF16, Dtype::F16}) expect_right(row, dtype, *target);
    }
  }
}

TEST_F(HostGradients, OfTheNaiveVersionAreThoseOfPlainLoops) {
  for (const GradientCase& row : cases()) {
    for (const Dtype dtype : {Dtype::F32, Dtype::BF16, Dtype::F16})
      expect_right(row, dtype, *runnable_targets().back(), true);
  }
}

TEST_F(HostGradients, OddTilesAreRight) {
  GradientCase row = cases()[1];
  for (const char* pins : {"tile_q=1,tile_kv=16", "tile_q=7,tile_kv=48", "tile_q=200,tile_kv=512"}) {
    row.pins = pins;
    for (const Target* target : runnable_targets()) expect_right(row, Dtype::BF16, *target);
  }
}

}  // namespace
}  // namespace flashjit
