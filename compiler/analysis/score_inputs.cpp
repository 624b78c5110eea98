#include "compiler/analysis/score_inputs.h"

#include <algorithm>

namespace flashjit {

namespace {

// Every load, and whether it is evaluated whatever the values are: arms of `where` and what follows & or | may not be.
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

bool is(const Expr& expr, Variable variable) { return expr->op == Op::Variable && expr->variable == variable; }

bool is_tiled(const Expr& load) {
  if (!is(load->args.back(), Variable::K)) return false;
  const std::vector<Expr> outer = outer_indices(load);
  if (outer.size() > kMostOuterIndices) return false;
  return std::ranges::none_of(outer, [](const Expr& index) { return uses(index, Variable::Q) || uses_key(index); });
}

}  // namespace

int query_index(const Expr& input) {
  const auto query =
      std::find_if(input->args.begin(), input->args.end(), [](const Expr& index) { return is(index, Variable::Q); });
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

bool reads_beside_inputs(const Expr& score) {
  const std::vector<Load> loads = loads_of(score);
  const auto keyed = std::count_if(loads.begin(), loads.end(), [](const Load& load) { return uses_key(load.expr); });
  return keyed > static_cast<std::ptrdiff_t>(score_inputs(score).size());
}

}  // namespace flashjit
