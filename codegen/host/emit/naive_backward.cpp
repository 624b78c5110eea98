// These are gradients by plain loops: they write a row of S, dP, P and dS to memory and make dQ of it, and make dK and
// dV from columns of P and dS.
#include <optional>

#include "codegen/host/emit/backward.h"
#include "codegen/host/emit/dropout.h"
#include "codegen/host/emit/math.h"
#include "codegen/host/emit/pack.h"
#include "codegen/host/emit/softmax.h"
#include "codegen/host/naive_backward.h"

namespace flashjit::host {
namespace {

class NaiveGradientsEmitter {
 public:
  NaiveGradientsEmitter(Ir& ir, const Plan& plan, const ScoreGradients& gradients)
      : ir_(ir), b_(ir.b), c_(ir.config), plan_(plan), gradients_(gradients) {
    reassociate_.setAllowReassoc();
    reassociate_.setAllowContract();
    if (c_.dropped > 0) kept_.emplace(ir, c_.kept_row_bytes(c_.lanes));
  }

  void emit_queries() {
    start(kNaiveQueryGradientsName);
    Value *q = pointer(offsetof(NaiveQueryCall, q)), *d_o = pointer(offsetof(NaiveQueryCall, d_o));
    Value *k_rows = pointer(offsetof(NaiveQueryCall, k_rows)), *v_rows = pointer(offsetof(NaiveQueryCall, v_rows));
    Value *p = pointer(offsetof(NaiveQueryCall, probabilities)), *ds = pointer(offsetof(NaiveQueryCall, gradients));
    Value* keys = integer(offsetof(NaiveQueryCall, k_len));
    Value* lse = ir_.splat(emit_lse_fact(ir_, plan_, ir_.load(ir_.f32, pointer(offsetof(NaiveQueryCall, lse)))));
    Value* delta = dot(d_o, pointer(offsetof(NaiveQueryCall, o)), c_.d_v);
    if (plan_.spec.dlse) {
      Value* of_lse = ir_.load(ir_.f32, pointer(offsetof(NaiveQueryCall, d_lse)));
      delta = b_.CreateFSub(delta, b_.CreateFMul(of_lse, Ir::real(ir_.f32, 1 / natural_lse(plan_))));
    }
    Value* deltas = ir_.splat(delta);
    ir_.loop(ir_.integer(0), keys, 1, "key", [&](Value* key) {
      ir_.store(dot(q, ir_.row(k_rows, key), c_.d_qk), ir_.word(p, key));
      ir_.store(dot(d_o, ir_.row(v_rows, key), c_.d_v), ir_.word(ds, key));
    });
    KeptTile kept{};
    if (kept_) {
      kept.bits = b_.CreateAlloca(ir_.i8, ir_.integer(KeptBits::bytes_to_find(c_)), "kept");
      kept.key = ir_.byte_offset(call_, std::int64_t{offsetof(NaiveQueryCall, key)});
      kept.b = integer(offsetof(NaiveQueryCall, b));
      kept.h = integer(offsetof(NaiveQueryCall, h));
      kept.q_lo = integer(offsetof(NaiveQueryCall, q_row));
    }
    ir_.loop(ir_.integer(0), keys, c_.lanes, "first", [&](Value* first) {
      emit_score_gradients(ir_.word(p, first), ir_.word(ds, first), lse, deltas, first, keys, kept);
    });
    Value* dq = zeros(c_.d_qk);
    ir_.loop(ir_.integer(0), keys, 1, "key",
             [&](Value* key) { add(dq, ir_.load(ir_.f32, ir_.word(ds, key)), ir_.row(k_rows, key), c_.d_qk); });
    store(pointer(offsetof(NaiveQueryCall, dq)), plan_.spec.out_dq, dq, c_.d_qk, plan_.spec.effective_scale());
    ir_.finish();
  }

  void emit_keys() {
    start(kNaiveKeyGradientsName);
    Value *q_rows = pointer(offsetof(NaiveKeyCall, q_rows)), *do_rows = pointer(offsetof(NaiveKeyCall, do_rows));
    Value* p = pointer(offsetof(NaiveKeyCall, probabilities));
    Value* ds = pointer(offsetof(NaiveKeyCall, gradients));
    Value *key = integer(offsetof(NaiveKeyCall, key)), *dk = zeros(c_.d_qk), *dv = zeros(c_.d_v);
    ir_.loop(ir_.integer(0), integer(offsetof(NaiveKeyCall, queries)), 1, "query", [&](Value* query) {
      add(dk, ir_.load(ir_.f32, ir_.word(ir_.row(ds, query), key)), ir_.row(q_rows, query), c_.d_qk);
      add(dv, ir_.load(ir_.f32, ir_.word(ir_.row(p, query), key)), ir_.row(do_rows, query), c_.d_v);
    });
    const bool is_share = selects(plan_.spec);  // The share of a query with a list is added up later.
    if (plan_.spec.v_in_k && !is_share) return store_once(dk, dv);
    store(pointer(offsetof(NaiveKeyCall, dk)), is_share ? Dtype::F32 : plan_.spec.out_dk, dk, c_.d_qk,
          plan_.spec.effective_scale());
    store(pointer(offsetof(NaiveKeyCall, dv)), is_share ? Dtype::F32 : plan_.spec.out_dv, dv, c_.d_v, 1);
    ir_.finish();
  }
  // With v_in_k dV is added to the first columns of dK.
  void store_once(Value* dk, Value* dv) {
    const double scale = plan_.spec.effective_scale();
    ir_.loop(ir_.integer(0), ir_.integer(c_.d_v), 1, "d", [&](Value* i) {
      Value *at = ir_.word(dk, i), *of_v = ir_.load(ir_.f32, ir_.word(dv, i));
      ir_.store(add_product(ir_.load(ir_.f32, at), Ir::real(ir_.f32, scale), of_v), at);
    });
    ir_.loop(ir_.integer(c_.d_v), ir_.integer(c_.d_qk), 1, "d", [&](Value* i) {
      Value* at = ir_.word(dk, i);
      ir_.store(b_.CreateFMul(ir_.load(ir_.f32, at), Ir::real(ir_.f32, scale)), at);
    });
    store(pointer(offsetof(NaiveKeyCall, dk)), plan_.spec.out_dk, dk, c_.d_qk, 1);
    ir_.finish();
  }

 private:
  void start(const char* name) { call_ = ir_.function(name, {ir_.ptr}, true)->getArg(0); }
  Value* pointer(std::size_t offset) { return ir_.member(call_, offset, ir_.ptr, ""); }
  Value* integer(std::size_t offset) { return ir_.member(call_, offset, ir_.i64, ""); }
  Value* element_at(Value* row, Value* index) {
    llvm::Type* element = element_type(ir_);
    return widen(ir_, ir_.load(element, b_.CreateGEP(element, row, index), size_of(c_.dtype)), c_.dtype);
  }
  // Reassociation lets LLVM vectorise a sum.
  Value* add_product(Value* x, Value* y, Value* sum) {
    llvm::IRBuilder<>::FastMathFlagGuard guard(b_);
    b_.setFastMathFlags(reassociate_);
    return b_.CreateFAdd(sum, b_.CreateFMul(x, y));
  }
  Value* dot(Value* x, Value* y, int d) {
    return ir_.loop(ir_.integer(0), ir_.integer(d), 1, "d", {Ir::real(ir_.f32, 0)},
                    [&](Value* i, const Ir::Values& sum) {
                      return Ir::Values{add_product(element_at(x, i), element_at(y, i), sum[0])};
                    })[0];
  }
  Value* zeros(int d) {
    Value* sums = b_.CreateAlloca(ir_.f32, ir_.integer(round_up(d, c_.lanes)), "sums");
    ir_.loop(ir_.integer(0), ir_.integer(d), 1, "d",
             [&](Value* i) { ir_.store(Ir::real(ir_.f32, 0), ir_.word(sums, i)); });
    return sums;
  }
  // The value of a hidden key may be anything, and 0 times infinity or NaN is NaN.
  void add(Value* sums, Value* weight, Value* row, int d) {
    ir_.if_then(b_.CreateFCmpUNE(weight, Ir::real(ir_.f32, 0)), "seen", [&] {
      ir_.loop(ir_.integer(0), ir_.integer(d), 1, "d", [&](Value* i) {
        Value* at = ir_.word(sums, i);
        ir_.store(add_product(weight, element_at(row, i), ir_.load(ir_.f32, at)), at);
      });
    });
  }
  void store(Value* target, Dtype dtype, Value* sums, int d, double factor) {
    emit_store_row(ir_, target, dtype, d, Ir::real(ir_.f32, factor),
                   [&](int first) { return ir_.load(ir_.f32v, ir_.word(sums, first)); });
  }
  // Turns S and dP of neighbouring keys into P and dS.
  void emit_score_gradients(Value* s_at, Value* dp_at, Value* lse, Value* delta, Value* first, Value* keys,
                            const KeptTile& kept) {
    const RowContext context{pointer(offsetof(NaiveQueryCall, params)),
                             integer(offsetof(NaiveQueryCall, q_row)),
                             integer(offsetof(NaiveQueryCall, b)),
                             integer(offsetof(NaiveQueryCall, h)),
                             integer(offsetof(NaiveQueryCall, hk)),
                             integer(offsetof(NaiveQueryCall, q_len)),
                             keys,
                             nullptr};
    const LogitsAndSlopes s =
        emit_logits_and_slopes(ir_, plan_, gradients_, context, ir_.load(ir_.f32v, s_at), first, keys);
    Value* p = exp2(ir_, emit_power(ir_, plan_, b_.CreateFSub(s.logits, lse)));
    Value *of_v = p, *dp = ir_.load(ir_.f32v, dp_at);
    if (kept_) {
      Value* is_kept = kept_->find(kept, first);
      of_v = kept_->keep(is_kept, p, true);
      dp = kept_->keep(is_kept, dp, true);
    }
    Value* ds = b_.CreateFMul(p, b_.CreateFSub(dp, delta));
    if (s.slopes) ds = b_.CreateFMul(ds, s.slopes);
    Value* zero = Ir::real(ir_.f32v, 0);
    ir_.store(of_v, s_at);
    ir_.store(b_.CreateSelect(b_.CreateFCmpOEQ(p, zero), zero, ds), dp_at);
  }

  Ir& ir_;
  llvm::IRBuilder<>& b_;
  const HostConfig& c_;
  const Plan& plan_;
  const ScoreGradients& gradients_;
  llvm::FastMathFlags reassociate_;
  std::optional<KeptBits> kept_;  // It is set with dropout.
  Value* call_ = nullptr;
};

}  // namespace

Result<void> emit_naive_gradients(Ir& ir, const Plan& plan) {
  FLASHJIT_ASSIGN(gradients, gradients_of(plan.spec.score, plan.spec.mask, {}));
  NaiveGradientsEmitter emitter(ir, plan, gradients);
  emitter.emit_queries();
  emitter.emit_keys();
  return {};
}

}  // namespace flashjit::host
