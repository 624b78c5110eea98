// The reference of gradients against differences of the forward's, and proof that its error rule takes right kernels and
// finds wrong ones.
#include "autotune/reference/backward/backward.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <list>
#include <numbers>
#include <optional>
#include <random>
#include <string_view>

#include "autotune/reference/compare.h"
#include "compiler/spec/half.h"
#include "compiler/spec/fields/outputs.h"
#include "compiler/spec/spec.h"

namespace flashjit::reference {
namespace {

struct Sizes {
  int batch = 1, q_len = 3, k_len = 4, heads_q = 2, heads_kv = 1, d_qk = 8, d_v = 8;
};

// bshd, contiguous; numbers that a narrower dtype than fp32 can hold, in memory as fp32.
struct ToyGradients {
  Sizes n;
  AttentionSpec spec;
  Semantics semantics;
  Arguments arguments;
  std::vector<float> q, k, v, o, d_o, dq, dk, dv, lse, d_lse, sink;

  ToyGradients(const Sizes& sizes, Dtype dtype, unsigned seed, double sharpness = 1) : n(sizes) {
    spec.operation = Operation::Backward;
    spec.dtype = spec.kv_dtype = dtype;
    set_out(spec, dtype);
    spec.d_qk = n.d_qk, spec.d_v = n.d_v, spec.heads_q = n.heads_q, spec.heads_kv = n.heads_kv;
    spec.lse = Lse::ln;
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    const auto make = [&](std::vector<float>& values, int heads, int tokens, int d) {
      values.resize(static_cast<std::size_t>(n.batch) * heads * tokens * d);
      for (float& x : values) x = round_to(dtype, normal(random));
    };
    make(q, n.heads_q, n.q_len, n.d_qk), make(k, n.heads_kv, n.k_len, n.d_qk), make(v, n.heads_kv, n.k_len, n.d_v);
    for (float& x : q) x = round_to(dtype, x * static_cast<float>(sharpness));
    make(o, n.heads_q, n.q_len, n.d_v), make(d_o, n.heads_q, n.q_len, n.d_v);
    dq.assign(q.size(), NAN), dk.assign(k.size(), NAN), dv.assign(v.size(), NAN);
    make(d_lse, n.heads_q, n.q_len, 1), make(sink, n.heads_q, 1, 1);
    lse.assign(d_lse.size(), NAN);
    const auto tensor = [&](std::vector<float>& values, int heads, int tokens, int d) {
      return Tensor{values.data(), "fp32", {n.batch, tokens, heads, d}, {}};
    };
    arguments.q = tensor(q, n.heads_q, n.q_len, n.d_qk), arguments.o = tensor(o, n.heads_q, n.q_len, n.d_v);
    arguments.k = tensor(k, n.heads_kv, n.k_len, n.d_qk), arguments.v = tensor(v, n.heads_kv, n.k_len, n.d_v);
    arguments.lse = {lse.data(), "fp32", {n.batch, n.heads_q, n.q_len}, {}};
    arguments.sink = {sink.data(), "fp32", {n.heads_q}, {}};
    auto& params = arguments.params;
    params["do"] = tensor(d_o, n.heads_q, n.q_len, n.d_v), params["dq"] = tensor(dq, n.heads_q, n.q_len, n.d_qk);
    params["dk"] = tensor(dk, n.heads_kv, n.k_len, n.d_qk), params["dv"] = tensor(dv, n.heads_kv, n.k_len, n.d_v);
    params["dlse"] = arguments.lse, params["dlse"].data = d_lse.data();
  }
  double unit() const { return spec.lse == Lse::log2 ? std::numbers::log2e : 1; }
  std::size_t token(const RowId& row) const { return (row.b * n.q_len + row.q) * n.heads_q + row.h; }
  std::size_t number(const RowId& row) const { return (row.b * n.heads_q + row.h) * n.q_len + row.q; }
  Problem problem() const { return *Problem::create(spec, arguments, semantics); }

  // O and LSE, rounded.
  void run_forward() {
    const Problem p = problem();
    for (const RowId& row : p.rows()) {
      const ExactRow exact = p.exact(row, p.keys_values(row.b, p.kv_head(row.h)));
      for (int c = 0; c < n.d_v; ++c) o[token(row) * n.d_v + c] = round_to(spec.dtype, static_cast<float>(exact.o[c]));
      lse[number(row)] = static_cast<float>(exact.lse * unit());
    }
  }
  // What dO and dLSE are the gradients of.
  double loss() const {
    const Problem p = problem();
    double sum = 0;
    for (const RowId& row : p.rows()) {
      const ExactRow exact = p.exact(row, p.keys_values(row.b, p.kv_head(row.h)));
      for (int c = 0; c < n.d_v; ++c) sum += exact.o[c] * d_o[token(row) * n.d_v + c];
      if (spec.dlse && exact.lse != -INFINITY) sum += exact.lse * unit() * d_lse[number(row)];
    }
    return sum;
  }
};

void expect_slopes_of_loss(ToyGradients& toy, const char* what) {
  SCOPED_TRACE(what);
  toy.run_forward();
  const Problem problem = toy.problem();
  const Backward backward(problem);
  const auto expect = [&](std::vector<float>& values, std::size_t at, double gradient, const char* name) {
    const float x = values[at], low = x - 0x1p-9f, high = x + 0x1p-9f;
    values[at] = high;
    const double above = toy.loss();
    values[at] = low;
    const double below = toy.loss();
    values[at] = x;
    const double slope = (above - below) / (static_cast<double>(high) - low);
    EXPECT_NEAR(gradient, slope, 3e-5 * (1 + std::fabs(slope))) << name << " " << at;
  };
  const Sizes& n = toy.n;
  const int heads = n.heads_q / n.heads_kv;
  for (int b = 0; b < n.batch; ++b) {
    for (int hk = 0; hk < n.heads_kv; ++hk) {
      const Backward::Group group = backward.group(b, hk);
      for (int h = 0; h < heads; ++h) {
        for (int q = 0; q < n.q_len; ++q) {
          const Gradient row = backward.dq(group, h, q);
          for (int c = 0; c < n.d_qk; ++c)
            expect(toy.q, toy.token({b, hk * heads + h, q}) * n.d_qk + c, row.exact[c], "dq");
        }
      }
      for (int k = 0; k < n.k_len; ++k) {
        const Backward::OfKey row = backward.of_key(group, k);
        const std::size_t token = (b * n.k_len + k) * n.heads_kv + hk;
        for (int c = 0; c < n.d_qk; ++c) expect(toy.k, token * n.d_qk + c, row.dk.exact[c], "dk");
        for (int c = 0; c < n.d_v; ++c) expect(toy.v, token * n.d_v + c, row.dv.exact[c], "dv");
      }
    }
  }
}

bool causal(const Position& at) { return at.k <= at.q + at.k_len - at.q_len; }
Dual softcap(const Position&, Dual s) { return {2 * std::tanh(s.f / 2), 2 * std::tanh(s.d / 2)}; }

TEST(BackwardReference, IsTheSlopeOfTheForward) {
  ToyGradients plain({}, Dtype::F32, 1);
  expect_slopes_of_loss(plain, "plain");
  ToyGradients wide({2, 3, 5, 4, 2, 8, 16}, Dtype::F32, 2);
  wide.semantics.visible = causal;
  expect_slopes_of_loss(wide, "causal, d_qk != d_v, groups");
  ToyGradients above({1, 5, 3, 2, 2, 8, 8}, Dtype::F32, 3);  // rows that see nothing
  above.semantics.visible = causal;
  expect_slopes_of_loss(above, "more queries than keys");
  ToyGradients capped({}, Dtype::F32, 4);
  capped.semantics.score = softcap;
  capped.spec.scale = 0.7;
  expect_slopes_of_loss(capped, "softcap");
  ToyGradients leaky({}, Dtype::F32, 5);
  leaky.semantics.score = [](const Position& at, Dual s) {
    const double slope = s.f > 0 ? 1 : 0.1, more = 0.3 * static_cast<double>(at.k * at.h);
    return Dual(static_cast<float>(s.f * slope + more), s.d * slope + more);
  };
  expect_slopes_of_loss(leaky, "a score that bends, and a bias");
  ToyGradients sunk({}, Dtype::F32, 6);
  sunk.spec.sink = sunk.spec.dlse = true;
  expect_slopes_of_loss(sunk, "sink, dlse");
  sunk.spec.lse = Lse::log2;
  expect_slopes_of_loss(sunk, "sink, dlse, log2");
}

TEST(BackwardReference, SlopesOfScores) {
  Semantics semantics;
  EXPECT_EQ(slope_of(semantics, {}, Dual(3.0), 0).value, 1);
  semantics.score = softcap;
  for (const double s : {-9.0, -1.0, 0.0, 0.3, 4.0}) {
    const double tanh = std::tanh(s / 2);
    EXPECT_NEAR(slope_of(semantics, {}, Dual(s), 0).value, 1 - tanh * tanh, 1e-11) << s;
  }
  // A large addend costs digits; what is left is more than fp32 has.
  semantics.score = [](const Position&, Dual s) { return Dual(s.f * 0.3f + 1e4f, s.d * 0.3 + 1e4); };
  EXPECT_NEAR(slope_of(semantics, {}, Dual(1.0), 0).value, 0.3, 1e-8);
  semantics.score = [](const Position&, Dual s) { return Dual(std::fmax(s.f, 0.0f), std::fmax(s.d, 0.0)); };
  EXPECT_NEAR(slope_of(semantics, {}, Dual(0x1p-14), 0).value, 1, 1e-9);  // near a bend
  EXPECT_NEAR(slope_of(semantics, {}, Dual(-0x1p-14), 0).value, 0, 1e-9);
  EXPECT_GE(slope_of(semantics, {}, Dual(0.0), 0).error, 0.5);  // at it: either side is right
  semantics.score = [](const Position&, Dual s) { return Dual(std::sqrt(s.f), std::sqrt(s.d)); };
  EXPECT_FALSE(std::isfinite(slope_of(semantics, {}, Dual(0.0), 0).error));
}

// A plain kernel in fp32 with operands of the dtype, and what may be wrong with it.
struct Wrong {
  double delta = 1, scale = 1, lse = 1;
  bool one_head = false, no_slope = false, swapped = false;
  std::function<bool(const Position&)> visible;
  std::optional<Dtype> rounded = {};  // all gradients, whatever the spec says
};

void run_kernel(ToyGradients& toy, const Wrong& wrong = {}) {
  const Sizes& n = toy.n;
  const AttentionSpec& spec = toy.spec;
  const int heads = n.heads_q / n.heads_kv;
  std::vector<float> dq(toy.q.size(), 0), dk(toy.k.size(), 0), dv(toy.v.size(), 0);
  const auto scale = static_cast<float>(spec.effective_scale());
  const auto& visible = wrong.visible ? wrong.visible : toy.semantics.visible;
  for (const RowId& row : toy.problem().rows()) {
    const float* q = &toy.q[toy.token(row) * n.d_qk];
    const float *o = &toy.o[toy.token(row) * n.d_v], *d_o = &toy.d_o[toy.token(row) * n.d_v];
    const float lse = toy.lse[toy.number(row)] * static_cast<float>(wrong.lse / toy.unit());
    float delta = 0;
    for (int c = 0; c < n.d_v; ++c) delta += o[c] * d_o[c];
    if (spec.dlse) delta -= toy.d_lse[toy.number(row)] * static_cast<float>(toy.unit());
    Position at{row.q, 0, row.b, row.h, row.h / heads, n.q_len, n.k_len};
    for (at.k = 0; at.k < n.k_len; ++at.k) {
      if ((visible && !visible(at)) || lse == -INFINITY) continue;
      const std::size_t token = (row.b * n.k_len + at.k) * n.heads_kv + at.hk;
      const float *k = &toy.k[token * n.d_qk], *v = &toy.v[token * n.d_v];
      float s = 0, dp = 0;
      for (int c = 0; c < n.d_qk; ++c) s += q[c] * k[c];
      for (int c = 0; c < n.d_v; ++c) dp += d_o[c] * v[c];
      s *= scale;
      float slope = 1;
      if (toy.semantics.score) {  // softcap(2) is the one these tests have
        if (!wrong.no_slope) slope = 1 - std::tanh(s / 2) * std::tanh(s / 2);
        s = toy.semantics.score(at, Dual(s, s)).f;
      }
      const float p = std::exp(s - lse);
      const float ds = round_to(spec.dtype, p * (dp - static_cast<float>(wrong.delta) * delta) * slope);
      for (int c = 0; c < n.d_qk; ++c) dq[toy.token(row) * n.d_qk + c] += ds * k[c];
      if (wrong.one_head && row.h % heads != 0) continue;
      for (int c = 0; c < n.d_qk; ++c) dk[token * n.d_qk + c] += ds * q[c];
      for (int c = 0; c < n.d_v; ++c) dv[token * n.d_v + c] += round_to(spec.dtype, p) * d_o[c];
    }
  }
  const auto store = [&](Dtype dtype, const std::vector<float>& sums, float factor, std::vector<float>& to) {
    if (wrong.rounded) dtype = *wrong.rounded;
    for (std::size_t i = 0; i < sums.size(); ++i) to[i] = round_to(dtype, sums[i] * factor);
  };
  store(spec.out_dq, dq, scale * static_cast<float>(wrong.scale), toy.dq);
  store(spec.out_dk, dk, scale, toy.dk), store(spec.out_dv, dv, 1, toy.dv);
  if (wrong.swapped) std::swap_ranges(toy.dk.begin(), toy.dk.end(), toy.dv.begin());
}

constexpr double kAllRows = 1e12, kSomeRows = 0;  // work

Comparison outcome(ToyGradients& toy, const Wrong& wrong = {}, double work = kAllRows) {
  // The spec says what dtype outputs have; in memory they are fp32, whose numbers hold them.
  run_kernel(toy, wrong);
  return compare(toy.problem(), {.work = work});
}

struct Place {
  const char* name;
  ToyGradients toy;
};

std::list<Place> places() {
  std::list<Place> all;  // what does not move: arguments point into it
  for (const Dtype dtype : {Dtype::BF16, Dtype::F16, Dtype::F32}) {
    all.push_back({"plain", ToyGradients({1, 50, 70, 4, 2, 16, 16}, dtype, 11)});
    all.push_back({"causal", ToyGradients({2, 60, 60, 2, 1, 24, 24}, dtype, 12)});
    all.back().toy.semantics.visible = causal;
    all.push_back({"sharp", ToyGradients({1, 40, 100, 2, 1, 32, 32}, dtype, 13, 12)});
    all.push_back({"softcap", ToyGradients({1, 40, 60, 4, 2, 16, 16}, dtype, 14, 3)});
    all.back().toy.semantics.score = softcap;
    all.push_back({"dlse", ToyGradients({1, 40, 60, 2, 1, 16, 16}, dtype, 15)});
    all.back().toy.spec.lse = Lse::log2, all.back().toy.spec.dlse = true;
  }
  for (Place& place : all) place.toy.run_forward();
  return all;
}

TEST(ErrorRuleOfGradients, TakesAPlainKernel) {
  std::list<Place> all = places();
  for (Place& place : all) {
    const Comparison c = outcome(place.toy);
    EXPECT_TRUE(c.ok) << place.name << " " << name(place.toy.spec.dtype) << ": " << c.problem;
    EXPECT_EQ(c.rows, c.rows_checked);
    EXPECT_GT(c.max_abs_err, 0);
  }
}

TEST(ErrorRuleOfGradients, FindsWrongKernels) {
  std::list<Place> all = places();
  const auto expect_found = [&all](const Wrong& wrong, const char* what, std::string_view only = {}) {
    for (Place& place : all) {
      if (!only.empty() && place.name != only) continue;
      EXPECT_FALSE(outcome(place.toy, wrong, kSomeRows).ok)
          << what << ", " << place.name << " " << name(place.toy.spec.dtype);
    }
  };
  expect_found({.delta = 0}, "no delta");
  expect_found({.delta = 1.05}, "delta a bit off");
  expect_found({.scale = std::numbers::ln2}, "dq in units of exp2");
  expect_found({.scale = 1.02}, "scale a bit off");
  expect_found({.lse = std::numbers::ln2}, "lse in other units");
  expect_found({.one_head = true}, "dk and dv of one head");
  expect_found({.swapped = true}, "dk for dv");
  expect_found({.no_slope = true}, "no slope", "softcap");
}

TEST(ErrorRuleOfGradients, FindsAMaskThatIsOffByOneInOneRow) {
  for (const Dtype dtype : {Dtype::BF16, Dtype::F16}) {
    ToyGradients toy({1, 60, 120, 2, 1, 48, 48}, dtype, 16);
    toy.semantics.visible = causal;
    toy.run_forward();
    EXPECT_TRUE(outcome(toy).ok);
    for (const int more : {-1, 1}) {
      const auto off = [more](const Position& at) {
        return at.k <= at.q + at.k_len - at.q_len + (at.q == 10 && at.h == 1 ? more : 0);
      };
      const Comparison c = outcome(toy, {.visible = off});
      EXPECT_FALSE(c.ok) << name(dtype) << " " << more;
      EXPECT_GT(c.row_err, 1);
    }
  }
}

// Whatever the others are of.
TEST(ErrorRuleOfGradients, HoldsEachGradientToItsDtype) {
  for (Dtype AttentionSpec::* const precise :
       {&AttentionSpec::out_dq, &AttentionSpec::out_dk, &AttentionSpec::out_dv}) {
    ToyGradients toy({1, 50, 70, 4, 2, 16, 16}, Dtype::F32, 20);
    set_out(toy.spec, Dtype::BF16);
    toy.run_forward();
    EXPECT_TRUE(outcome(toy, {.rounded = Dtype::BF16}).ok);
    toy.spec.*precise = Dtype::F32;
    const Comparison right = outcome(toy);
    EXPECT_TRUE(right.ok) << right.problem;
    EXPECT_FALSE(outcome(toy, {.rounded = Dtype::BF16}).ok);
  }
}

TEST(ErrorRuleOfGradients, FindsRowsThatWereNotWritten) {
  ToyGradients toy({1, 40, 50, 2, 1, 16, 16}, Dtype::BF16, 17);
  toy.semantics.visible = [](const Position& at) { return at.q != 7 && at.k != 9; };
  toy.run_forward();
  EXPECT_TRUE(outcome(toy).ok);
  toy.dk[9 * 16 + 3] = NAN;  // of a key that nobody sees: zeros are asked for
  EXPECT_FALSE(compare(toy.problem()).ok);
  toy.dk[9 * 16 + 3] = 1e-30f;
  EXPECT_FALSE(compare(toy.problem()).ok);
}

// ---- gradients of parameters and sinks ----

// A toy whose score reads a table by distance, weights by key, and a number.
struct WithParameters {
  ToyGradients toy;
  std::vector<float> table, weights, d_table, d_weights, d_number, d_sink;

  explicit WithParameters(Dtype dtype) : toy({2, 12, 14, 2, 1, 8, 8}, dtype, 21) {
    toy.spec = *parse_spec(
        "bwd fp32 d=8 heads=2/1 mask=\"causal\" score=\"c * tanh(s * w[b, k] / c) + t[h, min(abs(q - k), 5)]\" "
        "params=\"t: fp32[2], w: fp32[2], c: fp32\" sink dlse grads=\"t, w, c, sink\"");
    toy.spec.dtype = toy.spec.kv_dtype = dtype;
    set_out(toy.spec, dtype);
    std::mt19937 random(22);
    std::normal_distribution<float> normal;
    const auto tensor = [&](std::vector<float>& values, std::vector<std::int64_t> shape, const char* name) {
      values.resize(shape.size() == 1 ? shape[0] : shape[0] * shape[1]);
      for (float& x : values) x = normal(random);
      toy.arguments.params[name] = {values.data(), "fp32", std::move(shape), {}};
    };
    tensor(table, {2, 8}, "t"), tensor(d_table, {2, 8}, "dt");
    tensor(weights, {2, 14}, "w"), tensor(d_weights, {2, 14}, "dw");
    tensor(d_number, {1}, "dc"), tensor(d_sink, {2}, "dsink");
    toy.arguments.scalars["c"] = 1.5;
    toy.semantics = semantics_of(toy.spec, toy.arguments);
    toy.run_forward();
    run_kernel(toy);
  }

  // What the reference says, by tensor; `change`: of what a query adds.
  using Change = std::function<float(const Backward::Share& share, std::int64_t h, std::int64_t q)>;
  void write(const Change& change) {
    const Problem problem = toy.problem();
    const Backward backward(problem);
    std::vector<float>* const targets[] = {&d_table, &d_weights, &d_number};
    for (std::vector<float>* target : {&d_table, &d_weights, &d_number, &d_sink}) target->assign(target->size(), 0);
    for (int b = 0; b < toy.n.batch; ++b) {
      const Backward::Group group = backward.group(b, 0);
      for (int h = 0; h < toy.n.heads_q; ++h) {
        for (int q = 0; q < toy.n.q_len; ++q) {
          for (const Backward::Share& share : backward.of_parameters(group, h, q))
            (*targets[share.element.param])[share.element.number] += change(share, h, q);
          d_sink[h] += change(backward.of_sink(group, h, q), h, q);
        }
      }
    }
  }
  // Of these tensors alone.
  Comparison judged() const {
    Comparison result;
    const Problem problem = toy.problem();
    compare_parameter_gradients(problem, {}, result);
    result.ok = result.problem.empty();
    return result;
  }
};

float as_it_is(const Backward::Share& share, std::int64_t, std::int64_t) { return static_cast<float>(share.exact); }

TEST(BackwardReference, GradientsOfParametersAreSlopesOfTheForward) {
  WithParameters all(Dtype::F32);
  all.write(as_it_is);
  const auto expect = [&](auto& x, float gradient, const std::string& name) {
    const auto before = x;
    x = before + 0x1p-9;
    const double above = all.toy.loss();
    x = before - 0x1p-9;
    const double below = all.toy.loss();
    x = before;
    EXPECT_NEAR(gradient, (above - below) / 0x1p-8, 1e-4 * (1 + std::fabs(gradient))) << name;
  };
  for (std::size_t i = 0; i < all.table.size(); ++i) expect(all.table[i], all.d_table[i], "table " + std::to_string(i));
  for (std::size_t i = 0; i < all.weights.size(); ++i)
    expect(all.weights[i], all.d_weights[i], "weight " + std::to_string(i));
  for (std::size_t i = 0; i < 2; ++i) expect(all.toy.sink[i], all.d_sink[i], "sink " + std::to_string(i));
  expect(all.toy.arguments.scalars["c"], all.d_number[0], "number");
  EXPECT_EQ(all.d_table[6], 0) << "nobody reads it";
}

TEST(ErrorRuleOfGradients, TakesSumsOfParametersInFloats) {
  for (const Dtype dtype : {Dtype::BF16, Dtype::F16, Dtype::F32}) {
    WithParameters all(dtype);
    all.write(as_it_is);
    const Comparison c = all.judged();
    EXPECT_TRUE(c.ok) << name(dtype) << ": " << c.problem;
  }
}

TEST(ErrorRuleOfGradients, FindsWrongSumsOfParameters) {
  const auto expect_found = [](const WithParameters::Change& change, const char* what) {
    WithParameters all(Dtype::BF16);
    all.write(change);
    EXPECT_FALSE(all.judged().ok) << what;
  };
  using Share = Backward::Share;
  constexpr std::size_t kTable = 0, kWeights = 1, kNumber = 2;
  for (const std::size_t param : {kTable, kWeights, kNumber}) {
    const auto of_param = [param](auto change) -> WithParameters::Change {
      return [=](const Share& share, std::int64_t h, std::int64_t q) {
        return share.element.param == param ? change(share, h, q) : static_cast<float>(share.exact);
      };
    };
    expect_found(of_param([](const Share& s, std::int64_t h, std::int64_t q) {
                   return h == 1 && q == 7 ? 0.0f : static_cast<float>(s.exact);
                 }),
                 "a query is missing");
    expect_found(of_param([](const Share& s, std::int64_t h, std::int64_t) {
                   return h == 1 ? 0.0f : static_cast<float>(s.exact);
                 }),
                 "a head is missing");
    expect_found(of_param([](const Share& s, std::int64_t, std::int64_t) {
                   return round_to(Dtype::BF16, static_cast<float>(s.exact));
                 }),
                 "terms are rounded");
    expect_found(
        of_param([](const Share& s, std::int64_t, std::int64_t) { return static_cast<float>(s.exact * 1.001); }),
        "a bit too much");
  }
  expect_found([](const Share& s, std::int64_t, std::int64_t) { return -static_cast<float>(s.exact); }, "sign");
  WithParameters all(Dtype::BF16);
  all.write(as_it_is);
  all.d_sink[1] *= 1.001f;
  EXPECT_FALSE(all.judged().ok) << "sink";
  all.write(as_it_is);
  all.d_table[6] = 1e-30f;
  EXPECT_FALSE(all.judged().ok) << "nobody reads it";
}

}  // namespace
}  // namespace flashjit::reference
