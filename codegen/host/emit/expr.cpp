#include "codegen/host/emit/expr.h"

#include <algorithm>
#include <bit>

#include "codegen/host/emit/math.h"
#include "templates/kernel_params.h"

namespace flashjit::host {

using llvm::Intrinsic::ID;

ExprEmitter::ExprEmitter(Ir& ir, Value* params, const AttentionSpec& spec, bool wide, Value* lanes_valid)
    : ir_(ir),
      params_(params),
      order_(spec.params),
      placed_(spec.places),
      // bit() reads all 64 bits of a loaded int, even where every other int is narrow.
      int_(wide || std::any_of(order_.begin(), order_.end(), [](const Param& p) { return p.dtype == Dtype::I64; })
               ? ir.i64
               : ir.i32),
      lanes_valid_(lanes_valid) {}

Value* ExprEmitter::place(Axis axis, std::size_t number) {
  const std::size_t of = axis == Axis::Queries ? offsetof(KernelParams, q_places) : offsetof(KernelParams, k_places);
  return ir_.b.CreateSExt(ir_.member(params_, of + number, ir_.i32, "place"), ir_.i64);
}

Value* ExprEmitter::position_of(Axis axis, Value* row) {
  Value* steps = ir_.b.CreateMul(row, place(axis, offsetof(Places, step)));
  return ir_.b.CreateAdd(steps, place(axis, offsetof(Places, begin)));
}

Value* ExprEmitter::row(const Expr& expr, Axis axis) {
  Value* position = scalar(expr);
  if (!placed_) return position;
  auto& b = ir_.b;
  Value* behind = b.CreateSub(b.CreateSExt(position, ir_.i64), place(axis, offsetof(Places, begin)));
  behind = b.CreateSelect(b.CreateICmpSGT(behind, ir_.integer(0)), behind, ir_.integer(0));
  Value* step = place(axis, offsetof(Places, step));
  return b.CreateSDiv(b.CreateAdd(behind, b.CreateSub(step, ir_.integer(1))), step);
}

void ExprEmitter::set_int(Variable variable, Value* i64_value) {
  for (const Axis axis : {Axis::Queries, Axis::Keys}) {
    if (!placed_) break;
    const AxisVariables of = variables_of(axis);
    if (variable == of.length) i64_value = place(axis, offsetof(Places, total));
    if (variable == of.position || variable == of.lo || variable == of.hi) i64_value = position_of(axis, i64_value);
  }
  set(variable, ir_.b.CreateTrunc(i64_value, int_));
}

void ExprEmitter::set_scalar(const Param& param, Value* i64_value) {
  scalars_[param.name] = ir_.b.CreateTrunc(i64_value, int_);
}

void ExprEmitter::set_keys(Value* first_key) {
  if (placed_) {
    Value* step = ir_.b.CreateTrunc(place(Axis::Keys, offsetof(Places, step)), int_);
    Value* first = ir_.b.CreateTrunc(position_of(Axis::Keys, first_key), int_);
    set(Variable::K, ir_.b.CreateAdd(ir_.splat(first), ir_.b.CreateMul(ir_.lane_numbers(int_), ir_.splat(step))));
    return;
  }
  set(Variable::K, ir_.b.CreateAdd(ir_.splat(ir_.b.CreateTrunc(first_key, int_)), ir_.lane_numbers(int_)));
}

Value* ExprEmitter::scalar(const Expr& expr) { return emit(expr); }

Value* ExprEmitter::vector(const Expr& expr) {
  Value* value = emit(expr);
  return value->getType()->isVectorTy() ? value : ir_.splat(value);
}

Value* ExprEmitter::emit(const Expr& expr) {
  if (const auto found = done_.find(expr.get()); found != done_.end()) return found->second;
  Value* value = emit_node(*expr);
  done_[expr.get()] = value;
  return value;
}

void ExprEmitter::widen_together(Value*& x, Value*& y) {
  if (x->getType()->isVectorTy() == y->getType()->isVectorTy()) return;
  Value*& narrow = x->getType()->isVectorTy() ? y : x;
  narrow = ir_.splat(narrow);
}

Value* ExprEmitter::emit_node(const Node& node) {
  auto& b = ir_.b;
  switch (node.op) {
    case Op::BoolConst: return b.getInt1(node.integer != 0);
    case Op::IntConst: return llvm::ConstantInt::getSigned(int_, node.integer);
    case Op::FloatConst: return Ir::real(ir_.f32, static_cast<float>(node.real));
    case Op::Variable: return variables_[static_cast<std::size_t>(node.variable)];
    case Op::Scalar:
    case Op::Load: return read_param(node);
    default: break;
  }
  Value* x = emit(node.args[0]);
  if (node.args.size() == 1) return function(node, x);
  Value* y = emit(node.args[1]);
  if (node.op == Op::Where) {
    Value* z = emit(node.args[2]);
    widen_together(y, z);
    if (x->getType()->isVectorTy() && !y->getType()->isVectorTy()) {
      y = ir_.splat(y);
      z = ir_.splat(z);
    }
    return b.CreateSelect(x, y, z);
  }
  widen_together(x, y);
  return arithmetic(node, x, y);
}

Value* ExprEmitter::arithmetic(const Node& node, Value* x, Value* y) {
  auto& b = ir_.b;
  const bool real = node.args[0]->type == Type::Float;
  switch (node.op) {
    case Op::Add: return real ? b.CreateFAdd(x, y) : b.CreateAdd(x, y);
    case Op::Sub: return real ? b.CreateFSub(x, y) : b.CreateSub(x, y);
    case Op::Mul: return real ? b.CreateFMul(x, y) : b.CreateMul(x, y);
    case Op::Div:
    case Op::Mod: return divide(node, x, y);
    // Like fmin and fmax, this returns the other argument where one is NaN.
    case Op::Min:
      if (real) return ir_.call(llvm::Intrinsic::minnum, {x->getType()}, {x, y});
      return b.CreateSelect(b.CreateICmpSLT(x, y), x, y);
    case Op::Max:
      if (real) return ir_.call(llvm::Intrinsic::maxnum, {x->getType()}, {x, y});
      return b.CreateSelect(b.CreateICmpSGT(x, y), x, y);
    case Op::Lt: return real ? b.CreateFCmpOLT(x, y) : b.CreateICmpSLT(x, y);
    case Op::Le: return real ? b.CreateFCmpOLE(x, y) : b.CreateICmpSLE(x, y);
    case Op::Eq: return real ? b.CreateFCmpOEQ(x, y) : b.CreateICmpEQ(x, y);
    case Op::Ne: return real ? b.CreateFCmpUNE(x, y) : b.CreateICmpNE(x, y);
    case Op::And: return b.CreateAnd(x, y);
    case Op::Or: return b.CreateOr(x, y);
    case Op::Bit: {
      // Lanes behind the last key may hold any shift amount. A sign-extended int has the same bits from its top one on.
      llvm::Type* type = x->getType();
      Value* top = llvm::ConstantInt::get(type, int_->getIntegerBitWidth() - 1);
      Value* amount = b.CreateSelect(b.CreateICmpULT(y, top), y, top);
      return b.CreateTrunc(b.CreateAShr(x, amount), type->getWithNewType(ir_.i1));
    }
    default: return nullptr;
  }
}

// Emits floor division and its remainder; a valid divisor is positive.
Value* ExprEmitter::divide(const Node& node, Value* x, Value* y) {
  auto& b = ir_.b;
  if (node.type == Type::Float) return b.CreateFDiv(x, y);
  const Node& divisor = *node.args[1];
  llvm::Type* type = x->getType();
  if (divisor.op == Op::IntConst && std::has_single_bit(static_cast<std::uint64_t>(divisor.integer))) {
    if (node.op == Op::Mod) return b.CreateAnd(x, llvm::ConstantInt::get(type, divisor.integer - 1));
    return b.CreateAShr(x, llvm::ConstantInt::get(type, std::countr_zero(static_cast<std::uint64_t>(divisor.integer))));
  }
  Value* zero = llvm::ConstantInt::get(type, 0);
  Value* one = llvm::ConstantInt::get(type, 1);
  // Lanes behind the last key are computed too, and a division by zero would trap there.
  if (divisor.op != Op::IntConst) y = b.CreateSelect(b.CreateICmpSGT(y, zero), y, one);
  Value* quotient = b.CreateSDiv(x, y);
  Value* remainder = b.CreateSub(x, b.CreateMul(quotient, y));
  Value* below = b.CreateICmpSLT(remainder, zero);
  if (node.op == Op::Mod) return b.CreateSelect(below, b.CreateAdd(remainder, y), remainder);
  return b.CreateSelect(below, b.CreateSub(quotient, one), quotient);
}

Value* ExprEmitter::function(const Node& node, Value* x) {
  auto& b = ir_.b;
  const bool real = node.args[0]->type == Type::Float;
  switch (node.op) {
    case Op::Neg: return real ? b.CreateFNeg(x) : b.CreateNeg(x);
    case Op::Abs:
      if (real) return ir_.call(llvm::Intrinsic::fabs, {x->getType()}, {x});
      return ir_.call(llvm::Intrinsic::abs, {x->getType()}, {x, b.getInt1(false)});
    case Op::Not: return b.CreateNot(x);
    case Op::ToFloat: return b.CreateSIToFP(x, x->getType()->getWithNewType(ir_.f32));
    case Op::Exp: return exp(ir_, x);
    case Op::Log: return log(ir_, x);
    case Op::Sqrt: return ir_.call(llvm::Intrinsic::sqrt, {x->getType()}, {x});
    case Op::Tanh: return tanh(ir_, x);
    case Op::Sigmoid: return sigmoid(ir_, x);
    default: return nullptr;
  }
}

llvm::Type* ExprEmitter::raw_type(Dtype dtype) {
  switch (size_of(dtype)) {
    case 1: return ir_.i8;
    case 2: return ir_.i16;
    case 8: return ir_.i64;
    default: return dtype == Dtype::F32 ? ir_.f32 : ir_.i32;
  }
}

Value* ExprEmitter::raw_to_value(Value* raw, Dtype dtype) {
  if (is_float(dtype)) return widen(ir_, raw, dtype);
  llvm::Type* type = raw->getType()->getWithNewType(int_);
  return is_unsigned(dtype) ? ir_.b.CreateZExtOrTrunc(raw, type) : ir_.b.CreateSExtOrTrunc(raw, type);
}

// Returns whether an expression is k plus or minus a number that is the same for all keys.
bool ExprEmitter::steps_with_keys(const Expr& expr) {
  const Node& node = *expr;
  if (placed_) return false;
  if (node.op == Op::Variable) return node.variable == Variable::K;
  if (node.op == Op::Add) {
    if (!uses(node.args[0], Variable::K))
      return !emit(node.args[0])->getType()->isVectorTy() && steps_with_keys(node.args[1]);
    return steps_with_keys(node.args[0]) && !emit(node.args[1])->getType()->isVectorTy();
  }
  if (node.op == Op::Sub) return steps_with_keys(node.args[0]) && !emit(node.args[1])->getType()->isVectorTy();
  return false;
}

Value* ExprEmitter::read_param(const Node& node) {
  auto& b = ir_.b;
  if (const auto known = scalars_.find(node.param.name); known != scalars_.end()) return known->second;
  const auto place = std::find(order_.begin(), order_.end(), node.param) - order_.begin();
  const std::size_t at = offsetof(KernelParams, extra) + static_cast<std::size_t>(place) * sizeof(ExtraParam);
  llvm::Type* raw = raw_type(node.param.dtype);
  if (node.op == Op::Scalar) {
    Value* address = ir_.member(params_, at + offsetof(ExtraParam, data), ir_.ptr, "scalar");
    return raw_to_value(ir_.invariant_load(raw, address), node.param.dtype);
  }
  Value* base = ir_.member(params_, at + offsetof(ExtraParam, data), ir_.ptr, "tensor");
  std::vector<Value*> index, stride;
  bool any_vector = false, unit_step = false;
  int vectors = 0;
  for (std::size_t d = 0; d < node.args.size(); ++d) {
    index.push_back(emit(node.args[d]));
    stride.push_back(ir_.member(params_, at + offsetof(ExtraParam, stride) + d * sizeof(Int64), ir_.i64, "stride"));
    if (!index.back()->getType()->isVectorTy()) continue;
    any_vector = true;
    ++vectors;
    unit_step = steps_with_keys(node.args[d]);
  }
  if (any_vector) return read_vector(node.param, base, index, stride, unit_step && vectors == 1);
  Value* offset = ir_.integer(0);
  for (std::size_t d = 0; d < index.size(); ++d) {
    offset = b.CreateAdd(offset, b.CreateMul(b.CreateSExt(index[d], ir_.i64), stride[d]));
  }
  return raw_to_value(ir_.invariant_load(raw, b.CreateGEP(raw, base, offset)), node.param.dtype);
}

Value* ExprEmitter::read_vector(const Param& param, Value* base, const std::vector<Value*>& index,
                                const std::vector<Value*>& stride, bool unit_step) {
  auto& b = ir_.b;
  llvm::Type* raw = raw_type(param.dtype);
  llvm::Type* raws = ir_.vector_of(raw);
  Value* mask = lanes_valid_ ? lanes_valid_ : llvm::Constant::getAllOnesValue(ir_.vector_of(ir_.i1));
  Value* common = ir_.integer(0);
  Value* each = nullptr;
  Value* step = nullptr;
  Value* first = nullptr;
  for (std::size_t d = 0; d < index.size(); ++d) {
    if (!index[d]->getType()->isVectorTy()) {
      common = b.CreateAdd(common, b.CreateMul(b.CreateSExt(index[d], ir_.i64), stride[d]));
      continue;
    }
    Value* wide = b.CreateSExt(index[d], ir_.vector_of(ir_.i64));
    Value* term = b.CreateMul(wide, ir_.splat(stride[d]));
    each = each ? b.CreateAdd(each, term) : term;
    step = stride[d];
    first = b.CreateSExt(b.CreateExtractElement(index[d], std::uint64_t{0}), ir_.i64);
  }
  Value* row = b.CreateGEP(raw, base, common);
  auto gather = [&] {
    return b.CreateMaskedGather(raws, b.CreateGEP(raw, row, each), llvm::Align(size_of(param.dtype)), mask,
                                llvm::Constant::getNullValue(raws));
  };
  if (!unit_step) return raw_to_value(gather(), param.dtype);
  // The usual case, neighbouring keys in neighbouring elements, is one load. The stride is only known at run time.
  llvm::Function* function = b.GetInsertBlock()->getParent();
  auto* near = llvm::BasicBlock::Create(ir_.module.getContext(), "contiguous", function);
  auto* far = llvm::BasicBlock::Create(ir_.module.getContext(), "strided", function);
  auto* join = llvm::BasicBlock::Create(ir_.module.getContext(), "loaded", function);
  b.CreateCondBr(b.CreateICmpEQ(step, ir_.integer(1)), near, far);
  b.SetInsertPoint(near);
  Value* address = b.CreateGEP(raw, row, first);
  Value* together = lanes_valid_
                        ? static_cast<Value*>(b.CreateMaskedLoad(raws, address, llvm::Align(size_of(param.dtype)), mask,
                                                                 llvm::Constant::getNullValue(raws)))
                        : ir_.load(raws, address, size_of(param.dtype));
  b.CreateBr(join);
  b.SetInsertPoint(far);
  Value* apart = gather();
  b.CreateBr(join);
  b.SetInsertPoint(join);
  llvm::PHINode* loaded = b.CreatePHI(raws, 2);
  loaded->addIncoming(together, near);
  loaded->addIncoming(apart, far);
  return raw_to_value(loaded, param.dtype);
}

}  // namespace flashjit::host
