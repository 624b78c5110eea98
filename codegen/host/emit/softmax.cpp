#include "codegen/host/emit/softmax.h"

#include <numbers>

#include "codegen/host/emit/expr.h"
#include "codegen/host/emit/math.h"
#include "codegen/host/emit/pack.h"

namespace flashjit::host {
double logit_unit(const Plan& plan) { return plan.spec.score ? 1 : std::numbers::log2e; }

Value* emit_power(Ir& ir, const Plan& plan, Value* difference) {
  const double unit = std::numbers::log2e / logit_unit(plan);
  return unit == 1 ? difference : ir.b.CreateFMul(difference, Ir::real(difference->getType(), unit));
}

Value* emit_product_unit(Ir& ir, const Plan& plan, const RowContext& row, double unit) {
  Value* constant = Ir::real(ir.f32v, plan.spec.effective_scale() * unit);
  return row.scale_k ? ir.b.CreateFMul(ir.splat(row.scale_k), constant) : constant;
}

Value* emit_logits(Ir& ir, const Plan& plan, const RowContext& row, Value* products, Value* first_key, Value* end_key) {
  const ScoreGradients score_only{plan.spec.score, {}, {}};
  return emit_logits_and_slopes(ir, plan, score_only, row, products, first_key, end_key).logits;
}

LogitsAndSlopes emit_logits_and_slopes(Ir& ir, const Plan& plan, const ScoreGradients& gradients, const RowContext& row,
                                       Value* products, Value* first_key, Value* end_key) {
  auto& b = ir.b;
  const AttentionSpec& spec = plan.spec;
  Value* exists = nullptr;
  if (end_key) {
    Value* left = b.CreateSub(end_key, first_key);
    Value* bounded =
        b.CreateSelect(b.CreateICmpSLT(left, ir.integer(ir.config.lanes)), left, ir.integer(ir.config.lanes));
    exists = b.CreateICmpSLT(ir.lane_numbers(ir.i32), ir.splat(b.CreateTrunc(bounded, ir.i32)));
  }
  if (row.scales_k) products = b.CreateFMul(products, ir.load(ir.f32v, ir.word(row.scales_k, first_key)));
  ExprEmitter expressions(ir, row.params, spec, plan.wide_ints, exists);
  expressions.set_int(Variable::Q, row.q);
  expressions.set_int(Variable::B, row.b);
  expressions.set_int(Variable::H, row.h);
  expressions.set_int(Variable::Hk, row.hk);
  expressions.set_int(Variable::QLen, row.q_len);
  expressions.set_int(Variable::KLen, row.k_len);
  expressions.set_keys(first_key);
  LogitsAndSlopes result{.logits = nullptr, .slopes = nullptr, .exists = exists};
  if (spec.score) {
    expressions.set(Variable::S, b.CreateFMul(products, emit_product_unit(ir, plan, row, 1)));
    result.logits = expressions.vector(gradients.score);
    if (gradients.by_s) result.slopes = expressions.vector(gradients.by_s);
  } else {
    result.logits = b.CreateFMul(products, emit_product_unit(ir, plan, row, logit_unit(plan)));
  }
  for (const ReadGradient& gradient : gradients.by_params) {
    LogitsAndSlopes::Read& read = result.reads.emplace_back();
    read.derivative = expressions.vector(gradient.derivative);
    for (const Expr& index : gradient.read->args) read.indices.push_back(expressions.scalar(index));
  }
  if (!end_key) return result;
  Value* hidden = Ir::real(ir.f32v, -kInfinity);
  if (spec.mask) result.logits = b.CreateSelect(expressions.vector(spec.mask), result.logits, hidden);
  result.logits = b.CreateSelect(exists, result.logits, hidden);
  return result;
}

Value* reference_of(Ir& ir, Value* m) {
  return ir.b.CreateSelect(ir.b.CreateFCmpOEQ(m, Ir::real(ir.f32, -kInfinity)), Ir::real(ir.f32, 0), m);
}

namespace {

// Returns the LSE of a sum of exponentials relative to a logit.
Value* emit_lse(Ir& ir, const Plan& plan, Value* top, Value* total) {
  auto& b = ir.b;
  if (plan.spec.lse == Lse::log2) {
    Value* log2_sum = b.CreateFMul(log(ir, total), Ir::real(ir.f32, std::numbers::log2e));
    return b.CreateFAdd(emit_power(ir, plan, reference_of(ir, top)), log2_sum);
  }
  // A fused operation rounds once where there is a product to round.
  if (logit_unit(plan) == 1) return b.CreateFAdd(reference_of(ir, top), log(ir, total));
  return ir.fma(reference_of(ir, top), Ir::real(ir.f32, std::numbers::ln2), log(ir, total));
}

}  // namespace

ContinuedRow emit_continued_end(Ir& ir, const Plan& plan, Value* lse, Value* m, Value* l) {
  auto& b = ir.b;
  Value *zero = Ir::real(ir.f32, 0), *there = ir.load(ir.f32, lse);
  const double to_logit = logit_unit(plan) * (plan.spec.lse == Lse::log2 ? std::numbers::ln2 : 1.0);
  const bool is_logit = plan.spec.lse == Lse::log2 ? logit_unit(plan) != 1 : logit_unit(plan) == 1;
  Value* earlier = is_logit ? there : b.CreateFMul(there, Ir::real(ir.f32, to_logit));
  Value *top = ir.max(earlier, m), *reference = reference_of(ir, top);
  const auto weight = [&](Value* logit) { return exp2(ir, emit_power(ir, plan, b.CreateFSub(logit, reference))); };
  Value *own = weight(m), *before = weight(earlier);
  Value* total = ir.fma(l, own, before);
  Value* keeps = b.CreateFCmpOEQ(l, zero);
  ir.store(b.CreateSelect(keeps, there, emit_lse(ir, plan, top, total)), lse);
  return {b.CreateFDiv(own, total), b.CreateFDiv(before, total), keeps};
}

Value* emit_row_end(Ir& ir, const Plan& plan, const RowOutputs& outputs, Value* m, Value* l) {
  auto& b = ir.b;
  Value* zero = Ir::real(ir.f32, 0);
  const double unit = logit_unit(plan);
  const auto natural = [&](Value* logit) {
    return unit == 1 ? logit : b.CreateFMul(logit, Ir::real(ir.f32, std::numbers::ln2));
  };
  if (outputs.max_logit) ir.store(natural(m), outputs.max_logit);
  Value* total = l;
  Value* top = m;
  Value* own = nullptr;  // The factor of the row's own exponentials.
  if (outputs.sink) {
    Value* sink = unit == 1 ? outputs.sink : b.CreateFMul(outputs.sink, Ir::real(ir.f32, unit));
    top = ir.max(sink, m);
    Value* reference = reference_of(ir, top);
    own = exp2(ir, emit_power(ir, plan, b.CreateFSub(m, reference)));
    total = ir.fma(l, own, exp2(ir, emit_power(ir, plan, b.CreateFSub(sink, reference))));
  }
  Value* empty = b.CreateFCmpOEQ(total, zero);
  if (outputs.lse) {
    Value* lse = emit_lse(ir, plan, top, total);
    ir.store(b.CreateSelect(empty, Ir::real(ir.f32, -kInfinity), lse), outputs.lse);
  }
  Value* factor = b.CreateFDiv(own ? own : Ir::real(ir.f32, 1), total);
  return b.CreateSelect(empty, zero, factor);
}

void emit_store_row(Ir& ir, Value* target, Dtype dtype, int d, Value* factor,
                    const std::function<Value*(int first)>& values, Value* before) {
  const HostConfig& c = ir.config;
  llvm::Type* element = element_type(ir, dtype);
  const llvm::Align align(static_cast<std::uint64_t>(size_of(dtype)));
  Value* factors = ir.splat(factor);
  for (int first = 0; first < d; first += c.lanes) {
    Value* address = ir.b.CreateConstGEP1_64(element, target, first);
    Value* numbers = ir.b.CreateFMul(values(first), factors);
    if (before) {
      Value* there = widen(ir, load_elements(ir, element, address, c.lanes, d - first), dtype);
      Value* is_zero = ir.splat(ir.b.CreateFCmpOEQ(before, Ir::real(ir.f32, 0)));
      numbers = ir.b.CreateSelect(is_zero, numbers, ir.fma(there, ir.splat(before), numbers));
    }
    Value* raw = narrow(ir, numbers, dtype);
    if (d - first >= c.lanes) {
      ir.b.CreateAlignedStore(raw, address, align);
      continue;
    }
    std::vector<llvm::Constant*> mask;
    for (int lane = 0; lane < c.lanes; ++lane) mask.push_back(ir.b.getInt1(lane < d - first));
    ir.b.CreateMaskedStore(raw, address, align, llvm::ConstantVector::get(mask));
  }
}

}  // namespace flashjit::host
