#include "compiler/analysis/score_inputs.h"

#include <algorithm>

namespace flashjit {

namespace {

// A load, and whether it is evaluated for all values. Arms of `where` and operands behind & or | may not be.
struct Load {
  Expr expr;
  bool always = false;
};

void find_loads(const Expr& expr, bool always, std::vector<Load>& loads) {
  if (expr->op == Op::Load) {
    const auto known = std::find_if(loads.begin(), loads.end(), [&](const Load& l) { return same(l.expr, expr); });
    if (known == loads.end()) loads.push_back({expr, always});
    else known->always |= always;
  }
  const bool lazy = expr->op == Op::Where || expr->op == Op::And || expr->op == Op::Or;
  for (std::size_t i = 0; i < expr->args.size(); ++i) find_loads(expr->args[i], always && (i == 0 || !lazy), loads);
}

std::vector<Load> loads_of(const Expr& score) {
  std::vector<Load> loads;
  find_loads(simplify(score), true, loads);
  return loads;
}

bool uses_key(const Expr& expr) { return uses(expr, Variable::K); }

bool is_variable(const Expr& expr, Variable variable) { return expr->op == Op::Variable && expr->variable == variable; }

bool is_tiled(const Expr& load) {
  if (!is_variable(load->args.back(), Variable::K)) return false;
  const std::vector<Expr> outer = outer_indices(load);
  if (outer.size() > kMostOuterIndices) return false;
  // A copy of elements outside the tensor is zeros, while an index that is looked up would be cut to the tensor.
  return std::ranges::none_of(
      outer, [](const Expr& index) { return uses(index, Variable::Q) || uses_key(index) || is_looked_up(index); });
}

}  // namespace

int query_index(const Expr& input) {
  const auto query = std::find_if(input->args.begin(), input->args.end(),
                                  [](const Expr& index) { return is_variable(index, Variable::Q); });
  return query == input->args.end() ? -1 : static_cast<int>(query - input->args.begin());
}

std::vector<Expr> outer_indices(const Expr& input) {
  std::vector<Expr> outer;
  for (int i = 0; i + 1 < static_cast<int>(input->args.size()); ++i) {
    if (i != query_index(input)) outer.push_back(input->args[static_cast<std::size_t>(i)]);
  }
  return outer;
}

std::vector<Expr> score_inputs(const Expr& score) {
  if (uses(score, Op::Tanh)) return {};
  const std::vector<Load> loads = loads_of(score);
  std::vector<Expr> inputs;
  for (const Load& load : loads) {
    const Param& param = load.expr->param;
    const auto reads = std::count_if(loads.begin(), loads.end(), [&](const Load& l) { return l.expr->param == param; });
    const int bytes = size_of(param.dtype);
    if (load.always && reads == 1 && (bytes == 2 || bytes == 4) && is_tiled(load.expr)) inputs.push_back(load.expr);
  }
  if (inputs.size() > kMaxInputs) inputs.resize(kMaxInputs);
  return inputs;
}

void set_inputs(const AttentionSpec& spec, const std::vector<Expr>& inputs, KernelConfig& config) {
  for (const Expr& input : inputs) {
    const int bit = 1 << (std::ranges::find(spec.params, input->param) - spec.params.begin());
    (size_of(input->param.dtype) == 2 ? config.inputs_16 : config.inputs_32) |= bit;
    if (query_index(input) < 0) continue;
    config.inputs_q |= bit;
    config.inputs_of_batches |= !uses(input, Variable::B);
  }
}

std::vector<Expr> copied_inputs(const AttentionSpec& spec, const KernelConfig& config) {
  const int copied = config.inputs_16 | config.inputs_32;
  if (copied == 0) return {};
  std::vector<Expr> inputs = score_inputs(spec.score);
  std::erase_if(inputs, [&](const Expr& input) {
    return (copied >> (std::ranges::find(spec.params, input->param) - spec.params.begin()) & 1) == 0;
  });
  return inputs;
}

bool loads_by_position(const Expr& expr, const std::vector<Expr>& inputs) {
  const auto is_input = [&](const Expr& input) { return same(input, expr); };
  if (expr->op == Op::Load && (uses(expr, Variable::Q) || uses_key(expr)) && std::ranges::none_of(inputs, is_input))
    return true;
  return std::ranges::any_of(expr->args, [&](const Expr& arg) { return loads_by_position(arg, inputs); });
}

bool only_adds(const Expr& score) {
  if (is_variable(score, Variable::S)) return true;
  if (score->op != Op::Add && score->op != Op::Sub) return false;
  const Expr &first = score->args[0], &second = score->args[1];
  if (!uses(second, Variable::S)) return only_adds(first);
  return score->op == Op::Add && !uses(first, Variable::S) && only_adds(second);
}

bool reads_beside_inputs(const Expr& score) {
  const std::vector<Load> loads = loads_of(score);
  const auto keyed = std::count_if(loads.begin(), loads.end(), [](const Load& load) { return uses_key(load.expr); });
  return keyed > static_cast<std::ptrdiff_t>(score_inputs(score).size());
}

bool loads_per_key(const Expr& expr) {
  if (!expr) return false;
  if (expr->op == Op::Load) return uses(expr, Variable::K);
  return std::ranges::any_of(expr->args, loads_per_key);
}

}  // namespace flashjit
