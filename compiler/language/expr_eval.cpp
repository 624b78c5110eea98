#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "compiler/language/expr.h"

namespace flashjit {
namespace {

float float_of_half(std::uint16_t bits) {
  const int exponent = bits >> 10 & 31;
  const int fraction = bits & 1023;
  float value = 0;
  if (exponent == 31) value = fraction ? NAN : INFINITY;
  else if (exponent == 0) value = std::ldexp(static_cast<float>(fraction), -24);
  else value = std::ldexp(static_cast<float>(1024 + fraction), exponent - 25);
  return bits & 0x8000 ? -value : value;
}

float float_of_e4m3(std::uint8_t bits) {
  const int exponent = bits >> 3 & 15;
  const int fraction = bits & 7;
  float value = 0;
  if (exponent == 15 && fraction == 7) value = NAN;
  else if (exponent == 0) value = std::ldexp(static_cast<float>(fraction), -9);
  else value = std::ldexp(static_cast<float>(8 + fraction), exponent - 10);
  return bits & 0x80 ? -value : value;
}

template <class T>
T read(const void* data, std::int64_t offset) {
  T value;
  std::memcpy(&value, static_cast<const char*>(data) + offset * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
  return value;
}

Value real(float value) { return {Type::Float, 0, value}; }
Value integer(std::int64_t value) { return {Type::Int, value, 0}; }
Value boolean(bool value) { return {Type::Bool, value, 0}; }

Value read_element(Dtype dtype, const void* data, std::int64_t offset) {
  switch (dtype) {
    case Dtype::F16: return real(float_of_half(read<std::uint16_t>(data, offset)));
    case Dtype::BF16:
      return real(std::bit_cast<float>(static_cast<std::uint32_t>(read<std::uint16_t>(data, offset)) << 16));
    case Dtype::F32: return real(read<float>(data, offset));
    case Dtype::E4M3: return real(float_of_e4m3(read<std::uint8_t>(data, offset)));
    case Dtype::E5M2: return real(float_of_half(static_cast<std::uint16_t>(read<std::uint8_t>(data, offset) << 8)));
    case Dtype::I32: return integer(read<std::int32_t>(data, offset));
    case Dtype::I64: return integer(read<std::int64_t>(data, offset));
    case Dtype::U32: return integer(read<std::uint32_t>(data, offset));
    case Dtype::U8: return integer(read<std::uint8_t>(data, offset));
    case Dtype::I8: return integer(read<std::int8_t>(data, offset));
  }
  return {};
}

// Overflow wraps. check_ranges refuses expressions that could overflow, but evaluating one must still be defined.
std::int64_t wrap(std::uint64_t value) { return static_cast<std::int64_t>(value); }

std::int64_t floor_div(std::int64_t a, std::int64_t b) {
  if (b <= 0) return 0;
  return a / b - (a % b < 0);
}

std::int64_t floor_mod(std::int64_t a, std::int64_t b) {
  if (b <= 0) return 0;
  return a % b < 0 ? a % b + b : a % b;
}

std::int64_t int_operation(Op op, std::int64_t a, std::int64_t b) {
  const auto ua = static_cast<std::uint64_t>(a), ub = static_cast<std::uint64_t>(b);
  switch (op) {
    case Op::Add: return wrap(ua + ub);
    case Op::Sub: return wrap(ua - ub);
    case Op::Mul: return wrap(ua * ub);
    case Op::Div: return floor_div(a, b);
    case Op::Mod: return floor_mod(a, b);
    case Op::Neg: return wrap(0 - ua);
    case Op::Min: return std::min(a, b);
    case Op::Max: return std::max(a, b);
    case Op::Abs: return a < 0 ? wrap(0 - ua) : a;
    default: return 0;
  }
}

float float_operation(Op op, float a, float b) {
  switch (op) {
    case Op::Add: return a + b;
    case Op::Sub: return a - b;
    case Op::Mul: return a * b;
    case Op::Div: return a / b;
    case Op::Neg: return -a;
    case Op::Min: return std::fmin(a, b);
    case Op::Max: return std::fmax(a, b);
    case Op::Abs: return std::fabs(a);
    case Op::Exp: return std::exp(a);
    case Op::Log: return std::log(a);
    case Op::Sqrt: return std::sqrt(a);
    case Op::Tanh: return std::tanh(a);
    case Op::Sigmoid: return 1.0f / (1.0f + std::exp(-a));
    default: return 0;
  }
}

template <class T>
bool compare(Op op, T a, T b) {
  switch (op) {
    case Op::Lt: return a < b;
    case Op::Le: return a <= b;
    case Op::Eq: return a == b;
    default: return a != b;
  }
}

class Evaluator {
 public:
  explicit Evaluator(const Environment& environment) : environment_(environment) {}

  Value of(const Node& node) const {
    switch (node.op) {
      case Op::BoolConst: return boolean(node.integer != 0);
      case Op::IntConst: return integer(node.integer);
      case Op::FloatConst: return real(static_cast<float>(node.real));
      case Op::Variable:
        if (node.variable == Variable::S) return real(environment_.s);
        return integer(environment_.variables[static_cast<int>(node.variable)]);
      case Op::Scalar:
      case Op::Load: return parameter(node);
      // And, Or and Where skip the other side, as the device does, because it may read a tensor where none exists.
      case Op::And: return boolean(of(*node.args[0]).integer && of(*node.args[1]).integer);
      case Op::Or: return boolean(of(*node.args[0]).integer || of(*node.args[1]).integer);
      case Op::Not: return boolean(!of(*node.args[0]).integer);
      case Op::Where: return of(*node.args[0]).integer ? of(*node.args[1]) : of(*node.args[2]);
      default: return operation(node);
    }
  }

 private:
  Value operation(const Node& node) const {
    const Value a = of(*node.args[0]);
    const Value b = node.args.size() > 1 ? of(*node.args[1]) : Value{};
    switch (node.op) {
      case Op::Lt:
      case Op::Le:
      case Op::Eq:
      case Op::Ne:
        return boolean(a.type == Type::Float ? compare(node.op, a.real, b.real)
                                             : compare(node.op, a.integer, b.integer));
      case Op::ToFloat: return real(static_cast<float>(a.integer));
      case Op::Bit: return boolean(static_cast<std::uint64_t>(a.integer) >> (b.integer & 63) & 1);
      default:
        return a.type == Type::Float ? real(float_operation(node.op, a.real, b.real))
                                     : integer(int_operation(node.op, a.integer, b.integer));
    }
  }

  // A parameter that the environment does not hold reads as zero.
  Value parameter(const Node& node) const {
    const Value zero{node.type, 0, 0};
    if (!environment_.params || !environment_.values) return zero;
    const auto& params = *environment_.params;
    const auto found = std::find(params.begin(), params.end(), node.param);
    if (found == params.end()) return zero;
    const ParamValue& value = environment_.values[found - params.begin()];
    if (!value.data) return zero;
    std::int64_t offset = 0;
    for (std::size_t i = 0; i < node.args.size(); ++i) {
      std::int64_t index = of(*node.args[i]).integer;
      if (is_looked_up(node.args[i])) index = std::max<std::int64_t>(std::min(index, value.shape[i] - 1), 0);
      if (index < 0 || index >= value.shape[i]) return zero;
      offset += index * value.stride[i];
    }
    return read_element(node.param.dtype, value.data, offset);
  }

  const Environment& environment_;
};

}  // namespace

Value evaluate(const Expr& expr, const Environment& environment) {
  if (!expr) return {};
  return Evaluator(environment).of(*expr);
}

}  // namespace flashjit
