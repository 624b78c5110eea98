#include "autotune/reference/semantics.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "compiler/spec/fields/blocks.h"
#include "compiler/spec/half.h"
#include "compiler/spec/operations/options.h"
#include "templates/block_lists/layout.h"

namespace flashjit::reference {
namespace {

// This folder has its own evaluator, separate from compiler/'s, so that each can be held against the other.
struct Item {
  std::int64_t i = 0;  // for Int and Bool
  Dual r;
};

std::int64_t load_int(Dtype dtype, const void* data, std::int64_t index) {
  switch (dtype) {
    case Dtype::I32: return static_cast<const std::int32_t*>(data)[index];
    case Dtype::I64: return static_cast<const std::int64_t*>(data)[index];
    case Dtype::U32: return static_cast<const std::uint32_t*>(data)[index];
    case Dtype::U8: return static_cast<const std::uint8_t*>(data)[index];
    case Dtype::I8: return static_cast<const std::int8_t*>(data)[index];
    case Dtype::F16:
    case Dtype::BF16:
    case Dtype::F32:
    case Dtype::E4M3:
    case Dtype::E5M2: break;  // They are no ints.
  }
  return 0;
}

std::int64_t floor_divide(std::int64_t a, std::int64_t b) {
  const std::int64_t quotient = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}

template <class F>
Dual both(F f, const Dual& a) {
  return {f(a.f), f(a.d)};
}
template <class F>
Dual both(F f, const Dual& a, const Dual& b) {
  return {f(a.f, b.f), f(a.d, b.d)};
}

// A probe acts where parameters are read: it notes the element, or moves it.
struct Probe {
  const std::vector<Param>& params;
  std::vector<Element>* found = nullptr;
  const Element* moved = nullptr;
  double by = 0;

  Dual operator()(const Param& param, std::int64_t number, Dual value) const {
    const Element element{static_cast<std::size_t>(std::ranges::find(params, param) - params.begin()), number};
    if (found && std::ranges::find(*found, element) == found->end()) found->push_back(element);
    if (moved && element == *moved) value.d += by;
    return value;
  }
};

class Evaluator {
 public:
  Evaluator(const Arguments& arguments, const Position& position, Dual s, const Probe* probe = nullptr)
      : arguments_(arguments), at_(position), s_(s), probe_(probe) {}

  Item operator()(const Expr& e) const {
    switch (e->op) {
      case Op::BoolConst:
      case Op::IntConst: return {e->integer, {}};
      case Op::FloatConst: return {0, Dual(e->real)};
      case Op::Variable: return variable(e->variable);
      case Op::Scalar: return scalar(e->param);
      case Op::Load: return load(e);
      case Op::And: return {(*this)(e->args[0]).i && (*this)(e->args[1]).i, {}};
      case Op::Or: return {(*this)(e->args[0]).i || (*this)(e->args[1]).i, {}};
      case Op::Not: return {!(*this)(e->args[0]).i, {}};
      case Op::Where: return (*this)(e->args[(*this)(e->args[0]).i ? 1 : 2]);
      case Op::ToFloat: {
        const std::int64_t i = (*this)(e->args[0]).i;
        return {0, Dual(static_cast<float>(i), static_cast<double>(i))};
      }
      case Op::Bit: return {(*this)(e->args[0]).i >> (*this)(e->args[1]).i & 1, {}};
      default: break;
    }
    const Item a = (*this)(e->args[0]);
    const Item b = e->args.size() > 1 ? (*this)(e->args[1]) : Item{};
    const bool floats = e->args[0]->type == Type::Float;
    return floats ? on_floats(e->op, a.r, b.r) : on_ints(e->op, a.i, b.i);
  }

 private:
  Item variable(Variable v) const {
    switch (v) {
      case Variable::Q: return {at_.q, {}};
      case Variable::K: return {at_.k, {}};
      case Variable::B: return {at_.b, {}};
      case Variable::H: return {at_.h, {}};
      case Variable::Hk: return {at_.hk, {}};
      case Variable::QLen: return {at_.q_len, {}};
      case Variable::KLen: return {at_.k_len, {}};
      default: return {0, s_};
    }
  }

  Item scalar(const Param& param) const {
    const auto found = arguments_.scalars.find(param.name);
    const double value = found == arguments_.scalars.end() ? NAN : found->second;
    if (!is_float(param.dtype)) return {static_cast<std::int64_t>(value), {}};
    return {0, probed(param, 0, Dual(round_to(param.dtype, static_cast<float>(value))))};
  }

  Item load(const Expr& e) const {
    if (e->param.name == kBlockStates) return {kBlockListed, {}};  // Lists are looked at elsewhere (blocks.h).
    const auto found = arguments_.params.find(e->param.name);
    if (found == arguments_.params.end()) return {0, Dual(NAN)};
    const Tensor& tensor = found->second;
    std::int64_t offset = 0, number = 0, contiguous = 1;
    for (int i = static_cast<int>(e->args.size()) - 1; i >= 0; --i) {
      std::int64_t index = (*this)(e->args[i]).i;
      if (is_looked_up(e->args[i])) index = std::max<std::int64_t>(std::min(index, tensor.shape[i] - 1), 0);
      if (index < 0 || index >= tensor.shape[i]) return {0, Dual(NAN)};
      offset += index * (tensor.strides.empty() ? contiguous : tensor.strides[i]);
      number += index * contiguous;
      contiguous *= tensor.shape[i];
    }
    if (is_float(e->param.dtype))
      return {0, probed(e->param, number, Dual(load_float(e->param.dtype, tensor.data, offset)))};
    return {load_int(e->param.dtype, tensor.data, offset), {}};
  }

  Dual probed(const Param& param, std::int64_t number, const Dual& value) const {
    return probe_ ? (*probe_)(param, number, value) : value;
  }

  static Item on_ints(Op op, std::int64_t a, std::int64_t b) {
    switch (op) {
      case Op::Add: return {a + b, {}};
      case Op::Sub: return {a - b, {}};
      case Op::Mul: return {a * b, {}};
      case Op::Div: return {b ? floor_divide(a, b) : 0, {}};
      case Op::Mod: return {b ? a - floor_divide(a, b) * b : 0, {}};
      case Op::Neg: return {-a, {}};
      case Op::Min: return {std::min(a, b), {}};
      case Op::Max: return {std::max(a, b), {}};
      case Op::Abs: return {a < 0 ? -a : a, {}};
      case Op::Lt: return {a < b, {}};
      case Op::Le: return {a <= b, {}};
      case Op::Eq: return {a == b, {}};
      case Op::Ne: return {a != b, {}};
      default: return {};
    }
  }

  static Item on_floats(Op op, const Dual& a, const Dual& b) {
    switch (op) {
      case Op::Add: return {0, both([](auto x, auto y) { return x + y; }, a, b)};
      case Op::Sub: return {0, both([](auto x, auto y) { return x - y; }, a, b)};
      case Op::Mul: return {0, both([](auto x, auto y) { return x * y; }, a, b)};
      case Op::Div: return {0, both([](auto x, auto y) { return x / y; }, a, b)};
      case Op::Mod: return {0, both([](auto x, auto y) { return x - std::floor(x / y) * y; }, a, b)};
      case Op::Neg: return {0, Dual(-a.f, -a.d)};
      case Op::Min: return {0, both([](auto x, auto y) { return std::fmin(x, y); }, a, b)};
      case Op::Max: return {0, both([](auto x, auto y) { return std::fmax(x, y); }, a, b)};
      case Op::Abs: return {0, both([](auto x) { return std::fabs(x); }, a)};
      case Op::Exp: return {0, both([](auto x) { return std::exp(x); }, a)};
      case Op::Log: return {0, both([](auto x) { return std::log(x); }, a)};
      case Op::Sqrt: return {0, both([](auto x) { return std::sqrt(x); }, a)};
      case Op::Tanh: return {0, both([](auto x) { return std::tanh(x); }, a)};
      case Op::Sigmoid: return {0, both([](auto x) { return 1 / (1 + std::exp(-x)); }, a)};
      case Op::Lt: return {a.f < b.f, {}};
      case Op::Le: return {a.f <= b.f, {}};
      case Op::Eq: return {a.f == b.f, {}};
      case Op::Ne: return {a.f != b.f, {}};
      default: return {};
    }
  }

  const Arguments& arguments_;
  const Position& at_;
  Dual s_;
  const Probe* probe_;
};

// The reference computes these options by their definition, and refuses others.
constexpr std::array<std::string_view, 25> kHonoured = {
    "accumulate",   "places",     "max_logit", "sink",        "k_lens",      "v_in_k",        "v_transposed",
    "token_scales", "linear_exp", "dlse",      "append",      "rotate",      "shared_prefix", "lse",
    "packed",       "paged",      "narrow_q",  "narrow_kv",   "latent_rows", "scales",        "rope",
    "dropout",      "grads",      "select",    "head_tables",
};

}  // namespace

std::span<const std::string_view> honoured_options() { return kHonoured; }

Result<void> check_honoured(const AttentionSpec& spec) {
  const std::string_view option = first_unhonoured(spec, kHonoured);
  if (option.empty()) return {};
  return unsupported(std::string(option) + ": the reference does not know it, so nothing can be held against it");
}

Semantics semantics_of(const AttentionSpec& spec, const Arguments& arguments) {
  Semantics semantics;
  if (written_mask(spec)) {
    semantics.visible = [mask = written_mask(spec), &arguments](const Position& position) {
      return Evaluator(arguments, position, {})(mask).i != 0;
    };
  }
  if (spec.list_mask) semantics.unseen_from = 0;  // Nothing is read for a key that the mask hides.
  if (spec.score) {
    semantics.score = [score = spec.score, &arguments](const Position& position, Dual s) {
      return Evaluator(arguments, position, s)(score).r;
    };
  }
  return semantics;
}

std::vector<Element> ElementReads::of(const Position& at, const Dual& s) const {
  std::vector<Element> found;
  const Probe probe{.params = spec_.params, .found = &found};
  if (spec_.score) Evaluator(arguments_, at, s, &probe)(spec_.score);
  return found;
}

double ElementReads::score(const Position& at, const Dual& s, const Element& element, double by) const {
  const Probe probe{.params = spec_.params, .moved = &element, .by = by};
  return Evaluator(arguments_, at, s, &probe)(spec_.score).r.d;
}

}  // namespace flashjit::reference
