// The textbook version writes S = Q K^T and P = softmax(S) to memory, and computes O = P V, one row per call, in plain
// loops.
#include <optional>

#include "codegen/host/emit/attention.h"
#include "codegen/host/emit/dropout.h"
#include "codegen/host/emit/math.h"
#include "codegen/host/emit/softmax.h"

namespace flashjit::host {
namespace {

class NaiveEmitter {
 public:
  NaiveEmitter(Ir& ir, const Plan& plan) : ir_(ir), b_(ir.b), c_(ir.config), plan_(plan) {
    element_ = c_.dtype == Dtype::F32 ? ir.f32 : ir.i16;
    if (c_.dropped > 0) kept_.emplace(ir, c_.kept_row_bytes(c_.lanes));
    reassociate_.setAllowReassoc();
    reassociate_.setAllowContract();
  }

  void emit_scores() {
    start(kNaiveScoresName);
    Value *q = pointer(offsetof(NaiveCall, q)), *rows = pointer(offsetof(NaiveCall, k_rows));
    Value* scores = pointer(offsetof(NaiveCall, scores));
    Value* keys = integer(offsetof(NaiveCall, k_len));
    ir_.loop(ir_.integer(0), keys, 1, "key", [&](Value* key) {
      Value* row = ir_.row(rows, key);
      Value* zero = Ir::real(ir_.f32, 0);
      const Ir::Values dot =
          ir_.loop(ir_.integer(0), ir_.integer(c_.d_qk), 1, "d", {zero}, [&](Value* d, const Ir::Values& sum) {
            return Ir::Values{add_product(element_at(q, d), element_at(row, d), sum[0])};
          });
      ir_.store(dot[0], ir_.word(scores, key));
    });
    const RowContext context{pointer(offsetof(NaiveCall, params)),
                             integer(offsetof(NaiveCall, q_row)),
                             integer(offsetof(NaiveCall, b)),
                             integer(offsetof(NaiveCall, h)),
                             integer(offsetof(NaiveCall, hk)),
                             integer(offsetof(NaiveCall, q_len)),
                             keys,
                             scale(offsetof(NaiveCall, scale_k))};
    ir_.loop(ir_.integer(0), keys, c_.lanes, "first", [&](Value* first) {
      Value* address = ir_.word(scores, first);
      ir_.store(emit_logits(ir_, plan_, context, ir_.load(ir_.f32v, address), first, keys), address);
    });
    ir_.finish();
  }

  void emit_softmax() {
    start(kNaiveSoftmaxName);
    Value *scores = pointer(offsetof(NaiveCall, scores)), *p = pointer(offsetof(NaiveCall, probabilities));
    KeptTile kept{};
    if (kept_) {
      kept.bits = b_.CreateAlloca(ir_.i8, ir_.integer(KeptBits::bytes_to_find(c_)), "kept");
      kept.key = ir_.byte_offset(call_, std::int64_t{offsetof(NaiveCall, key)});
      kept.b = integer(offsetof(NaiveCall, b));
      kept.h = integer(offsetof(NaiveCall, h));
      kept.q_lo = integer(offsetof(NaiveCall, q_row));
    }
    Value* keys = integer(offsetof(NaiveCall, k_len));
    const Ir::Values most =
        ir_.loop(ir_.integer(0), keys, c_.lanes, "first", {Ir::real(ir_.f32v, -kInfinity)},
                 [&](Value* first, const Ir::Values& carried) {
                   return Ir::Values{ir_.max(ir_.load(ir_.f32v, ir_.word(scores, first)), carried[0])};
                 });
    Value* m = max_lanes(ir_, most[0]);
    Value* minus_m = ir_.splat(b_.CreateFNeg(reference_of(ir_, m)));
    const Ir::Values sums = ir_.loop(
        ir_.integer(0), keys, c_.lanes, "first", {Ir::real(ir_.f32v, 0)}, [&](Value* first, const Ir::Values& carried) {
          Value* value =
              exp2(ir_, emit_power(ir_, plan_, b_.CreateFAdd(ir_.load(ir_.f32v, ir_.word(scores, first)), minus_m)));
          ir_.store(value, ir_.word(p, first));
          return Ir::Values{b_.CreateFAdd(carried[0], value)};
        });
    RowOutputs outputs{};
    if (plan_.spec.lse != Lse::none) outputs.lse = pointer(offsetof(NaiveCall, lse));
    if (plan_.spec.max_logit) outputs.max_logit = pointer(offsetof(NaiveCall, max_logit));
    if (plan_.spec.sink) outputs.sink = ir_.member(call_, offsetof(NaiveCall, sink), ir_.f32, "sink");
    Value* factor = ir_.splat(emit_row_end(ir_, plan_, outputs, m, sum_lanes(ir_, sums[0])));
    ir_.loop(ir_.integer(0), keys, c_.lanes, "first", [&](Value* first) {
      Value* address = ir_.word(p, first);
      Value* weights = b_.CreateFMul(ir_.load(ir_.f32v, address), factor);
      if (kept_) weights = kept_->keep(kept_->find(kept, first), weights, true);
      ir_.store(weights, address);
    });
    ir_.finish();
  }

  void emit_product() {
    start(kNaiveProductName);
    Value *rows = pointer(offsetof(NaiveCall, v_rows)), *p = pointer(offsetof(NaiveCall, probabilities));
    Value* sums = b_.CreateAlloca(ir_.f32, ir_.integer(round_up(c_.d_v, c_.lanes)), "sums");
    ir_.loop(ir_.integer(0), ir_.integer(c_.d_v), 1, "d",
             [&](Value* d) { ir_.store(Ir::real(ir_.f32, 0), ir_.word(sums, d)); });
    ir_.loop(ir_.integer(0), integer(offsetof(NaiveCall, k_len)), 1, "key", [&](Value* key) {
      Value* weight = ir_.load(ir_.f32, ir_.word(p, key));
      Value* row = ir_.row(rows, key);
      ir_.loop(ir_.integer(0), ir_.integer(c_.d_v), 1, "d", [&](Value* d) {
        Value* address = ir_.word(sums, d);
        Value* before = ir_.load(ir_.f32, address);
        // The value of a hidden key may be anything, and 0 times infinity or NaN is NaN.
        Value* hidden = b_.CreateFCmpOEQ(weight, Ir::real(ir_.f32, 0));
        ir_.store(b_.CreateSelect(hidden, before, add_product(weight, element_at(row, d), before)), address);
      });
    });
    Value* factor = scale(offsetof(NaiveCall, scale_v));
    emit_store_row(ir_, pointer(offsetof(NaiveCall, o)), c_.out_dtype, c_.d_v, factor ? factor : Ir::real(ir_.f32, 1),
                   [&](int first) { return ir_.load(ir_.f32v, ir_.word(sums, first)); });
    ir_.finish();
  }

 private:
  void start(const char* name) { call_ = ir_.function(name, {ir_.ptr}, true)->getArg(0); }
  Value* pointer(std::size_t offset) { return ir_.member(call_, offset, ir_.ptr, ""); }
  Value* integer(std::size_t offset) { return ir_.member(call_, offset, ir_.i64, ""); }
  // Loads a scale of the call, or returns null where K and V have no scales.
  Value* scale(std::size_t offset) {
    return has_scaled_keys(plan_.spec) ? ir_.member(call_, offset, ir_.f32, "") : nullptr;
  }
  Value* element_at(Value* row, Value* index) {
    return widen(ir_, ir_.load(element_, b_.CreateGEP(element_, row, index), size_of(c_.dtype)), c_.dtype);
  }
  // Reassociation lets LLVM vectorise a sum.
  Value* add_product(Value* x, Value* y, Value* sum) {
    llvm::IRBuilder<>::FastMathFlagGuard guard(b_);
    b_.setFastMathFlags(reassociate_);
    return b_.CreateFAdd(sum, b_.CreateFMul(x, y));
  }

  Ir& ir_;
  llvm::IRBuilder<>& b_;
  const HostConfig& c_;
  const Plan& plan_;
  llvm::Type* element_;
  llvm::FastMathFlags reassociate_;
  std::optional<KeptBits> kept_;  // It is set with dropout.
  Value* call_ = nullptr;
};

}  // namespace

void emit_naive(Ir& ir, const Plan& plan) {
  NaiveEmitter emitter(ir, plan);
  emitter.emit_scores();
  emitter.emit_softmax();
  emitter.emit_product();
}

}  // namespace flashjit::host
