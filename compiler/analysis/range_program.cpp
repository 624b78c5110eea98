#include "compiler/analysis/range_program.h"

#include <algorithm>

namespace flashjit {

int RangeProgram::add(const Expr& expr) {
  kept_.push_back(expr);
  return step_of(expr);
}

int RangeProgram::step_of(const Expr& expr) {
  if (const auto known = slots_.find(expr.get()); known != slots_.end()) return known->second;
  const Node& node = *expr;
  Step step;
  step.op = node.op;
  step.integer = node.integer;
  if (node.op == Op::Variable) step.integer = static_cast<int>(node.variable);
  const bool is_param = node.op == Op::Scalar || node.op == Op::Load;
  if (is_param) step.integer = std::ranges::find(params_, node.param) - params_.begin();
  if (node.op == Op::Load) {
    for (const Expr& index : node.args) step.indices.push_back(step_of(index));
  } else if (!node.args.empty()) {
    step.a = step_of(node.args[node.op == Op::Where ? 1 : 0]);
    step.b = step_of(node.args.back());
    // All atoms are in the arguments, so they have their slots already.
    const Together together = together_of(expr, Axis::Keys);
    if (together.above) step.above = prepared(*together.above);
    if (together.below) step.below = prepared(*together.below);
    if (together.rounded) {
      step.rounded = slots_.at(together.rounded.get());
      step.multiple = slots_.at(together.multiple.get());
    }
  }
  steps_.push_back(std::move(step));
  return slots_[expr.get()] = slots() - 1;
}

std::vector<RangeProgram::Form> RangeProgram::prepared(const UpperForms& forms) const {
  std::vector<Form> result;
  const auto add = [&](const Linear& linear) {
    Form& form = result.emplace_back();
    form.constant = linear.constant;
    for (const LinearTerm& term : linear.terms) {
      if (term.factor != 0) form.terms.push_back({slots_.at(term.atom.get()), term.factor});
    }
  };
  add(forms.ordered);
  if (forms.unrounded) add(*forms.unrounded);
  return result;
}

void RangeProgram::evaluate(const VariableRanges& ranges, const std::int64_t* scalars, const RangeOfRead& range_of_read,
                            IntInterval* values) const {
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    const Step& step = steps_[i];
    switch (step.op) {
      case Op::IntConst: values[i] = {step.integer, step.integer}; break;
      case Op::Variable: values[i] = ranges.of[step.integer]; break;
      case Op::Scalar: values[i] = {scalars[step.integer], scalars[step.integer]}; break;
      case Op::Load: {
        IntInterval indices[kMaxParamRank];
        for (std::size_t j = 0; j < step.indices.size(); ++j) indices[j] = values[step.indices[j]];
        values[i] = range_of_read(static_cast<int>(step.integer), {indices, step.indices.size()});
        break;
      }
      default: values[i] = cut(interval_of(step, values));
    }
  }
}

WideInterval RangeProgram::interval_of(const Step& step, const IntInterval* values) {
  const auto range_of = [&](int slot) { return values[slot]; };
  WideInterval wide = combine(step.op, values[step.a], values[step.b]);
  for (const Form& form : step.above) wide.hi = std::min(wide.hi, largest(form, range_of));
  for (const Form& form : step.below) wide.lo = std::max(wide.lo, -largest(form, range_of));
  if (step.rounded != kNone && values[step.multiple].lo >= 1) {
    wide = intersection(wide, rounded_down(values[step.rounded], values[step.multiple]));
  }
  return wide;
}

}  // namespace flashjit
