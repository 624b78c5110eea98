#include "codegen/host/before/shown_keys.h"

#include "codegen/host/emit/expr.h"
#include "codegen/host/jit.h"
#include "codegen/host/workspace.h"
#include "compiler/launches/shown_keys.h"

namespace flashjit::host {
namespace {

class KernelOfShownKeys final : public HostKernel {
 public:
  KernelOfShownKeys(const AttentionSpec& spec, ShownKeysFunction show, std::unique_ptr<HostKernel> attention)
      : heads_(spec.heads_kv),
        sharing_(spec.heads_q / spec.heads_kv),
        selected_(spec.selected),
        show_(show),
        attention_(std::move(attention)) {}

  Result<void> run(const KernelParams& params, const ParallelFor& parallel) const override {
    const std::int64_t lists = Int64{params.batch} * heads_, bytes = lists * selected_ * Int64{sizeof(int)};
    std::unique_ptr<Workspace> workspace = workspaces_.take(bytes);
    if (!workspace) return out_of_memory(bytes, "give fewer queries at a time");
    int* const shown = reinterpret_cast<int*>(workspace->data());
    parallel.each(lists, [&](std::int64_t list, int) {
      const std::int64_t query = list / heads_, hk = list % heads_, b = query / params.queries_of_sequence,
                         q = query % params.queries_of_sequence;
      const Strides& s = params.key_index_stride;
      const ShownKeysCall call{&params,
                               b,
                               hk * sharing_,
                               hk,
                               q,
                               params.queries_of_sequence,
                               params.key_rows,
                               params.key_index + b * s.batch + hk * s.head + q * s.token,
                               shown + list * selected_};
      show_(&call);
    });
    KernelParams with_copy = params;
    read_shown_keys(with_copy, heads_, selected_, shown);
    auto done = attention_->run(with_copy, parallel);
    workspaces_.give_back(std::move(workspace));
    return done;
  }

 private:
  const int heads_, sharing_, selected_;
  const ShownKeysFunction show_;
  const std::unique_ptr<HostKernel> attention_;
  mutable WorkspacePool workspaces_;
};

}  // namespace

void emit_shown_keys(Ir& ir, const Plan& plan) {
  auto& b = ir.b;
  Value* call = ir.function(kShownKeysName, {ir.ptr}, true)->getArg(0);
  const auto integer = [&](std::size_t offset) { return ir.member(call, offset, ir.i64, ""); };
  Value* params = ir.member(call, offsetof(ShownKeysCall, params), ir.ptr, "params");
  Value* given = ir.member(call, offsetof(ShownKeysCall, list), ir.ptr, "given");
  Value* shown = ir.member(call, offsetof(ShownKeysCall, shown), ir.ptr, "shown");
  Value* k_len = integer(offsetof(ShownKeysCall, k_len));
  ir.loop(ir.integer(0), ir.integer(plan.spec.selected), 1, "entry", [&](Value* entry) {
    Value* number = ir.load(ir.i32, ir.word(given, entry));
    Value* to = ir.word(shown, entry);
    ir.store(b.getInt32(-1), to);
    Value* key = b.CreateSExt(number, ir.i64);
    ir.if_then(b.CreateICmpULT(key, k_len), "is_there", [&] {  // for others the mask may read what is not there
      ExprEmitter expressions(ir, params, plan.spec, plan.wide_ints, nullptr);
      expressions.set_int(Variable::B, integer(offsetof(ShownKeysCall, b)));
      expressions.set_int(Variable::H, integer(offsetof(ShownKeysCall, h)));
      expressions.set_int(Variable::Hk, integer(offsetof(ShownKeysCall, hk)));
      expressions.set_int(Variable::Q, integer(offsetof(ShownKeysCall, q)));
      expressions.set_int(Variable::K, key);
      expressions.set_int(Variable::QLen, integer(offsetof(ShownKeysCall, q_len)));
      expressions.set_int(Variable::KLen, k_len);
      ir.store(b.CreateSelect(expressions.scalar(plan.spec.list_mask), number, b.getInt32(-1)), to);
    });
  });
  ir.finish();
}

Result<std::unique_ptr<HostKernel>> kernel_of_shown_keys(const AttentionSpec& spec, const Code& code,
                                                         std::unique_ptr<HostKernel> attention) {
  FLASHJIT_ASSIGN(show, code.find<ShownKeysFunction>(kShownKeysName));
  return std::unique_ptr<HostKernel>(std::make_unique<KernelOfShownKeys>(spec, show, std::move(attention)));
}

}  // namespace flashjit::host
