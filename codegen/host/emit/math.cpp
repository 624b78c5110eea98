#include "codegen/host/emit/math.h"

#include <cmath>
#include <numeric>

#include <llvm/IR/IntrinsicsX86.h>

namespace flashjit::host {
namespace {

using llvm::Intrinsic::ID;

// Adding this number leaves the nearest integer in the low bits of the mantissa.
constexpr double kRoundToInteger = 12582912.0;  // It is 1.5 * 2^23.

Value* polynomial(Ir& ir, Value* x, std::initializer_list<double> highest_first) {
  Value* sum = nullptr;
  for (const double coefficient : highest_first) {
    Value* c = Ir::real(x->getType(), coefficient);
    sum = sum ? ir.fma(sum, x, c) : c;
  }
  return sum;
}

llvm::Type* integers_like(Ir& ir, Value* x) { return x->getType()->getWithNewType(ir.i32); }

// Returns mantissa * 2^power, where `rounded` is power + kRoundToInteger. x decides about underflow, overflow and NaN.
Value* scale_by_power(Ir& ir, Value* mantissa, Value* power, Value* rounded, Value* x, double lowest, double highest) {
  auto& b = ir.b;
  llvm::Type* type = x->getType();
  if (ir.config.avx512 && type == ir.f32v) {
    return ir.call(llvm::Intrinsic::x86_avx512_mask_scalef_ps_512, {},
                   {mantissa, power, llvm::PoisonValue::get(type), b.getInt16(0xffff), b.getInt32(4)});
  }
  llvm::Type* integers = integers_like(ir, x);
  Value* shifted = b.CreateShl(b.CreateBitCast(rounded, integers), 23);
  Value* result = b.CreateBitCast(b.CreateAdd(b.CreateBitCast(mantissa, integers), shifted), type);
  result = b.CreateSelect(b.CreateFCmpOLT(x, Ir::real(type, lowest)), Ir::real(type, 0), result);
  if (highest < kInfinity) {
    result = b.CreateSelect(b.CreateFCmpOGT(x, Ir::real(type, highest)), Ir::real(type, kInfinity), result);
  }
  return b.CreateSelect(b.CreateFCmpUNO(x, x), x, result);
}

}  // namespace

Value* exp2(Ir& ir, Value* x) {
  auto& b = ir.b;
  llvm::Type* type = x->getType();
  // The clamp keeps -inf out of the subtraction below; NaN passes through.
  Value* clamped = ir.max(Ir::real(type, -200), x);
  Value* rounded = b.CreateFAdd(clamped, Ir::real(type, kRoundToInteger));
  Value* power = b.CreateFSub(rounded, Ir::real(type, kRoundToInteger));
  Value* rest = b.CreateFSub(clamped, power);
  // The relative error is 9.2e-8 on [-0.5, 0.5], and the polynomial is exact at 0.
  Value* mantissa = polynomial(ir, rest, {0.00132647272, 0.00967151264, 0.0555073374, 0.240222421, 0.693146978, 1.0});
  return scale_by_power(ir, mantissa, power, rounded, x, -126, kInfinity);
}

Value* exp(Ir& ir, Value* x) {
  auto& b = ir.b;
  llvm::Type* type = x->getType();
  Value* clamped = ir.max(Ir::real(type, -140), x);
  clamped = b.CreateSelect(b.CreateFCmpOGT(clamped, Ir::real(type, 140)), Ir::real(type, 140), clamped);
  Value* rounded = ir.fma(clamped, Ir::real(type, 1.44269504088896), Ir::real(type, kRoundToInteger));
  Value* power = b.CreateFSub(rounded, Ir::real(type, kRoundToInteger));
  // ln 2 has two parts here, the first short enough that its product with `power` is exact.
  Value* rest = ir.fma(power, Ir::real(type, -0.693359375), clamped);
  rest = ir.fma(power, Ir::real(type, 2.12194440054690583e-4), rest);
  Value* mantissa =
      polynomial(ir, rest, {0.00138368374, 0.00837482209, 0.0416682261, 0.166664201, 0.499999921, 1.00000004, 1.0});
  return scale_by_power(ir, mantissa, power, rounded, x, -87.33, 88.37);
}

Value* log(Ir& ir, Value* x) {
  auto& b = ir.b;
  llvm::Type* type = x->getType();
  llvm::Type* integers = integers_like(ir, x);
  auto whole = [&](std::int64_t value) { return llvm::ConstantInt::getSigned(integers, value); };
  // x is 2^power * mantissa, with mantissa in [sqrt(1/2), sqrt(2)).
  Value* bits = b.CreateBitCast(x, integers);
  Value* offset = b.CreateSub(bits, whole(0x3f3504f3));
  Value* power = b.CreateSIToFP(b.CreateAShr(offset, 23), type);
  Value* mantissa = b.CreateBitCast(b.CreateAdd(b.CreateAnd(offset, whole(0x007fffff)), whole(0x3f3504f3)), type);
  // The series is log((1 + t) / (1 - t)) = 2 (t + t^3/3 + t^5/5 + ...), with |t| < 0.172.
  Value* one = Ir::real(type, 1);
  Value* t = b.CreateFDiv(b.CreateFSub(mantissa, one), b.CreateFAdd(mantissa, one));
  Value* square = b.CreateFMul(t, t);
  Value* series = polynomial(ir, square, {2.0 / 9, 2.0 / 7, 2.0 / 5, 2.0 / 3, 2.0});
  Value* result = ir.fma(t, series, b.CreateFMul(power, Ir::real(type, -2.12194440054690583e-4)));
  result = ir.fma(power, Ir::real(type, 0.693359375), result);
  result = b.CreateSelect(b.CreateFCmpOEQ(x, Ir::real(type, kInfinity)), x, result);
  result = b.CreateSelect(b.CreateFCmpULT(x, Ir::real(type, 0)), Ir::real(type, std::nan("")), result);
  return b.CreateSelect(b.CreateFCmpOEQ(x, Ir::real(type, 0)), Ir::real(type, -kInfinity), result);
}

Value* tanh(Ir& ir, Value* x) {
  auto& b = ir.b;
  llvm::Type* type = x->getType();
  Value* size = ir.call(llvm::Intrinsic::fabs, {type}, {x});
  Value* one = Ir::real(type, 1);
  Value* two = Ir::real(type, 2);
  Value* large = b.CreateFSub(one, b.CreateFDiv(two, b.CreateFAdd(exp(ir, b.CreateFAdd(size, size)), one)));
  large = ir.call(llvm::Intrinsic::copysign, {type}, {large, x});
  // Near zero the difference above would lose digits, so an odd polynomial takes its place, with a relative error of
  // 6e-9.
  Value* square = b.CreateFMul(x, x);
  Value* series =
      polynomial(ir, square, {0.0022704141, -0.00832418507, 0.0217628993, -0.0539585303, 0.133333006, -0.333333332});
  Value* small = ir.fma(b.CreateFMul(x, square), series, x);
  return b.CreateSelect(b.CreateFCmpOLT(size, Ir::real(type, 0.63)), small, large);
}

Value* sigmoid(Ir& ir, Value* x) {
  Value* one = Ir::real(x->getType(), 1);
  return ir.b.CreateFDiv(one, ir.b.CreateFAdd(one, exp(ir, ir.b.CreateFNeg(x))));
}

Value* widen(Ir& ir, Value* raw, Dtype from) {
  if (from == Dtype::F32) return raw;
  auto& b = ir.b;
  llvm::Type* integers = raw->getType();
  llvm::Type* floats = integers->getWithNewType(ir.f32);
  if (from == Dtype::F16) {
    return b.CreateFPExt(b.CreateBitCast(raw, integers->getWithNewType(b.getHalfTy())), floats);
  }
  Value* wide = b.CreateZExt(raw, integers->getWithNewType(ir.i32));
  return b.CreateBitCast(b.CreateShl(wide, 16), floats);
}

Value* narrow(Ir& ir, Value* values, Dtype to) {
  if (to == Dtype::F32) return values;
  auto& b = ir.b;
  llvm::Type* floats = values->getType();
  llvm::Type* raw = floats->getWithNewType(ir.i16);
  if (to == Dtype::F16) return b.CreateBitCast(b.CreateFPTrunc(values, floats->getWithNewType(b.getHalfTy())), raw);
  if (ir.config.product != Product::Fma && floats == ir.f32v) {
    return b.CreateBitCast(ir.call(llvm::Intrinsic::x86_avx512bf16_cvtneps2bf16_512, {}, {values}), raw);
  }
  llvm::Type* integers = floats->getWithNewType(ir.i32);
  auto whole = [&](std::int64_t value) { return llvm::ConstantInt::getSigned(integers, value); };
  Value* bits = b.CreateBitCast(values, integers);
  Value* odd = b.CreateAnd(b.CreateLShr(bits, 16), whole(1));
  Value* rounded = b.CreateLShr(b.CreateAdd(b.CreateAdd(bits, whole(0x7fff)), odd), 16);
  // Rounding may carry a NaN's payload away.
  Value* quiet = b.CreateOr(b.CreateLShr(bits, 16), whole(0x40));
  return b.CreateTrunc(b.CreateSelect(b.CreateFCmpUNO(values, values), quiet, rounded), raw);
}

namespace {

Value* fold_lanes(Ir& ir, Value* vector, const std::function<Value*(Value*, Value*)>& combine) {
  for (int half = ir.config.lanes / 2; half > 0; half /= 2) {
    std::vector<int> low(half), high(half);
    std::iota(low.begin(), low.end(), 0);
    std::iota(high.begin(), high.end(), half);
    vector = combine(ir.b.CreateShuffleVector(vector, low), ir.b.CreateShuffleVector(vector, high));
  }
  return ir.b.CreateExtractElement(vector, std::uint64_t{0});
}

}  // namespace

Value* sum_lanes(Ir& ir, Value* vector) {
  return fold_lanes(ir, vector, [&](Value* x, Value* y) { return ir.b.CreateFAdd(x, y); });
}

Value* max_lanes(Ir& ir, Value* vector) {
  return fold_lanes(ir, vector, [&](Value* x, Value* y) { return ir.max(x, y); });
}

}  // namespace flashjit::host
