#include "compiler/score_inputs.h"

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

bool along_row(const Node& load) {
  const Expr& last = load.args.back();
  return last->op == Op::Variable && last->variable == Variable::K && std::none_of(load.args.begin(), load.args.end() - 1, uses_key);
}

}  // namespace

std::vector<Expr> score_inputs(const Expr& score) {
  if (uses(score, Op::Tanh)) return {};
  const std::vector<Load> loads = loads_of(score);
  std::vector<Expr> inputs;
  for (const Load& load : loads) {
    const Param& param = load.expr->param;
    const auto reads = std::count_if(loads.begin(), loads.end(), [&](const Load& l) { return l.expr->param == param; });
    const int bytes = size_of(param.dtype);
    if (load.always && reads == 1 && (bytes == 2 || bytes == 4) && along_row(*load.expr)) inputs.push_back(load.expr);
  }
  return inputs;
}

bool reads_beside_inputs(const Expr& score) {
  const std::vector<Load> loads = loads_of(score);
  const auto keyed = std::count_if(loads.begin(), loads.end(), [](const Load& load) { return uses_key(load.expr); });
  return keyed > static_cast<std::ptrdiff_t>(score_inputs(score).size());
}

}  // namespace flashjit
