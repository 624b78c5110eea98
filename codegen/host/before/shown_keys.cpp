#include "codegen/host/before/shown_keys.h"

#include "codegen/host/emit/expr.h"
#include "codegen/host/jit.h"
#include "codegen/host/workspace.h"
#include "compiler/launches/shown_keys.h"
#include "templates/key_lists/layout.h"

namespace flashjit::host {
namespace {

class KernelOfShownKeys final : public HostKernel {
 public:
  KernelOfShownKeys(const AttentionSpec& spec, ShownKeysFunction show, std::unique_ptr<HostKernel> attention)
      : heads_(spec.heads_kv),
        sharing_(spec.heads_q / spec.heads_kv),
        selected_(read_entries(spec)),
        gives_positions_(reads_positions(spec)),
        keys_of_entry_(listed_keys(spec) / spec.selected),
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
      const auto of_list = [&](const Strides& s) { return b * s.batch + hk * s.head + q * s.token; };
      ShownKeysCall call{.params = &params,
                         .b = b,
                         .h = hk * sharing_,
                         .hk = hk,
                         .q = q,
                         .q_len = params.queries_of_sequence,
                         .k_len = params.key_rows,
                         .numbers = keys_of_entry_ > 1 ? params.pages : params.key_rows,
                         .list = params.key_index + of_list(params.key_index_stride),
                         .positions = nullptr,
                         .shown = shown + list * selected_};
      if (gives_positions_) {
        const int position = params.q_positions[of_list(params.q_positions_stride)];
        call.q = position;
        call.q_len = call.k_len = Int64{position} + 1;
        call.positions = params.k_positions + of_list(params.k_positions_stride);
        if (!is_position(position)) call.numbers = 0;
      }
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
  const bool gives_positions_;
  const int keys_of_entry_;
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
  Value* numbers = integer(offsetof(ShownKeysCall, numbers));
  Value* positions = ir.member(call, offsetof(ShownKeysCall, positions), ir.ptr, "positions");
  const int of_list = plan.spec.selected, of_entry = listed_keys(plan.spec) / of_list;
  // For keys that do not exist, the mask may read elements that do not exist, either.
  const auto show = [&](Value* key, Value* position, Value* to) {
    ExprEmitter expressions(ir, params, plan.spec, plan.wide_ints, nullptr);
    expressions.set_int(Variable::B, integer(offsetof(ShownKeysCall, b)));
    expressions.set_int(Variable::H, integer(offsetof(ShownKeysCall, h)));
    expressions.set_int(Variable::Hk, integer(offsetof(ShownKeysCall, hk)));
    expressions.set_int(Variable::Q, integer(offsetof(ShownKeysCall, q)));
    expressions.set_int(Variable::K, position);
    expressions.set_int(Variable::QLen, integer(offsetof(ShownKeysCall, q_len)));
    expressions.set_int(Variable::KLen, integer(offsetof(ShownKeysCall, k_len)));
    Value* number = b.CreateTrunc(key, ir.i32);
    ir.store(b.CreateSelect(expressions.scalar(plan.spec.list_mask), number, b.getInt32(-1)), to);
  };
  ir.loop(ir.integer(0), ir.integer(of_list), 1, "entry", [&](Value* entry) {
    Value* number = b.CreateSExt(ir.load(ir.i32, ir.word(given, entry)), ir.i64);
    Value* is_listed = b.CreateICmpULT(number, numbers);
    Value* first = b.CreateMul(number, ir.integer(of_entry));
    Value* first_position = first;
    if (reads_positions(plan.spec)) first_position = b.CreateSExt(ir.load(ir.i32, ir.word(positions, entry)), ir.i64);
    Value* first_to = b.CreateMul(entry, ir.integer(of_entry));
    ir.loop(ir.integer(0), ir.integer(of_entry), 1, "key", [&](Value* key) {
      Value* to = ir.word(shown, b.CreateAdd(first_to, key));
      ir.store(b.getInt32(-1), to);
      Value* position = b.CreateAdd(first_position, key);
      Value* is_there = is_listed;
      if (reads_positions(plan.spec)) {
        for (Value* one : {first_position, position})
          is_there = b.CreateAnd(is_there, b.CreateICmpULT(one, ir.integer(kMostPositions)));
      }
      ir.if_then(is_there, "is_there", [&] { show(b.CreateAdd(first, key), position, to); });
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
