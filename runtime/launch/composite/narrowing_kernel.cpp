#include "runtime/launch/composite/narrowing_kernel.h"

#include <algorithm>

#include <fmt/format.h>

namespace flashjit {

// This structure holds the calls of the components.
struct NarrowingKernel::Call {
  Call(const NarrowingKernel& kernel, const CallArguments& call, const CallSizes& sizes)
      : spec(kernel.spec_), whole(call), room(narrowed_room(spec, sizes)), attention(call) {
    make(0, "q", "scale_q", room.q, rounding_sizes(spec, sizes, false), spec.heads_q, spec.d_qk);
    make(1, "k", "scale_k", room.k, rounding_sizes(spec, sizes, true), spec.heads_kv, spec.d_qk);
    make(2, "v", "scale_v", room.v, rounding_sizes(spec, sizes, true), spec.heads_kv, spec.d_v);
    if (spec.rope != Rope::none) add_positions(sizes);
    if (is_packed(spec) && spec.scale_block > 0) add_offsets(sizes);
    give_rest(attention);
  }
  Call(const Call&) = delete;  // Views point into this object.

  void* at(std::int64_t bytes) const { return static_cast<char*>(whole.workspace) + bytes; }
  void give_rest(CallArguments& call) const {
    call.workspace = at(room.bytes);
    call.workspace_bytes = whole.workspace_bytes - room.bytes;
  }
  void make(std::size_t number, std::string_view name, std::string_view scale, const NarrowedOffsets& offsets,
            const CallSizes& sizes, std::int64_t heads, std::int64_t d) {
    const std::int64_t row = offsets.row_bytes, tokens = sizes.q_len, batch = sizes.batch;
    Shaped &of_rows = shapes[2 * number], &of_scales = shapes[2 * number + 1];
    const Dtype dtype = *spec.compute;
    TensorView rows;
    if (spec.layout == Layout::Packed) {
      rows = shaped(at(offsets.rows), dtype, of_rows, {sizes.q_tokens, heads, d}, {heads * row, row, 1});
    } else {
      rows = spec.layout == Layout::Bhsd ? shaped(at(offsets.rows), dtype, of_rows, {batch, heads, tokens, d},
                                                  {heads * tokens * row, tokens * row, row, 1})
                                         : shaped(at(offsets.rows), dtype, of_rows, {batch, tokens, heads, d},
                                                  {tokens * heads * row, heads * row, row, 1});
    }
    const auto scales_of = [&](std::initializer_list<std::int64_t> shape) {
      return shaped(at(offsets.scales), Dtype::F32, of_scales, shape);
    };
    const TensorView scales = spec.scale_block > 0            ? scales_of({batch, offsets.blocks, heads})
                              : spec.layout == Layout::Packed ? scales_of({heads})
                                                              : scales_of({batch, heads});
    CallArguments& call = rounding[number];
    put(call, "x", given(whole, name));
    put(call, "y", rows);
    put(call, "scale", scales);
    give_rest(call);
    replace(name, rows);
    put(attention, scale, scales);
  }
  // Keys begin at position 0, and queries where they line up with them. Attention gets no cos and sin, because the rows
  // that it reads have turned.
  void add_positions(const CallSizes& sizes) {
    if (spec.alignment == Alignment::BottomRight) rounding[0].first_position = sizes.k_len - sizes.q_len;
    for (const char* name : {"cos", "sin"}) {
      for (const std::size_t of_rows : {0, 1}) put(rounding[of_rows], name, given(whole, name));
      replace(name, {});
    }
  }
  // For packed rows the blocks are counted in each sequence. Attention gets the lengths by which they are counted.
  void add_offsets(const CallSizes& sizes) {
    attention.max_q_len = sizes.q_len;
    attention.max_k_len = sizes.k_len;
    for (std::size_t i = 0; i < rounding.size(); ++i) {
      put(rounding[i], "offsets_q", given(whole, i == 0 ? "offsets_q" : "offsets_k"));
      rounding[i].max_q_len = i == 0 ? sizes.q_len : sizes.k_len;
    }
  }
  // Replaces a tensor where the caller gave it: in its field or by its name.
  void replace(std::string_view name, const TensorView& tensor) {
    TensorView& field = attention.operands[find_operand(name)];
    if (field.given()) {
      field = tensor;
      return;
    }
    for (int i = 0; i < attention.param_count; ++i) {
      ParamView& param = attention.params[static_cast<std::size_t>(i)];
      if (param.name == name) param.tensor = tensor;
    }
  }

  const AttentionSpec& spec;
  const CallArguments& whole;
  const NarrowedRoom room;
  CallArguments attention;
  std::array<CallArguments, 3> rounding;
  std::array<Shaped, 6> shapes;
};

NarrowingKernel::NarrowingKernel(const Plan& plan, Facts facts, int ordinal, NarrowingKernels kernels)
    : RunnableKernel(plan, std::move(facts), ordinal),
      spec_(plan.spec),
      gpu_(plan.target.gpu),
      kernels_(std::move(kernels)) {}

std::shared_ptr<NarrowingKernel> NarrowingKernel::create(int ordinal, const AttentionSpec& spec, const Target& target,
                                                         NarrowingKernels kernels) {
  Plan plan;  // Calls are checked by this plan. The components launch.
  plan.spec = spec;
  plan.target = target;
  Facts facts = composite_facts(
      spec, *kernels.attention,
      {{"q in 8 bits", kernels.q.get()}, {"k in 8 bits", kernels.k.get()}, {"v in 8 bits", kernels.v.get()}});
  return std::shared_ptr<NarrowingKernel>(new NarrowingKernel(plan, std::move(facts), ordinal, std::move(kernels)));
}

std::int64_t NarrowingKernel::bytes_of(const CallSizes& sizes) const {
  const CallSizes of_q = rounding_sizes(spec_, sizes, false), of_keys = rounding_sizes(spec_, sizes, true);
  return narrowed_room(spec_, sizes).bytes +
         std::max({kernels_.q->workspace_bytes(of_q), kernels_.k->workspace_bytes(of_keys),
                   kernels_.v->workspace_bytes(of_keys), kernels_.attention->workspace_bytes(sizes)});
}

Result<std::int64_t> NarrowingKernel::workspace_bytes(const CallArguments& call) const {
  if (!gpu_) return std::int64_t{0};
  KernelParams params;
  CallSizes sizes;
  FLASHJIT_TRY(checker_.fill(call, params, sizes));
  return bytes_of(sizes);
}

Result<void> NarrowingKernel::launch(const CallArguments& call, void* stream) {
  KernelParams params;
  CallSizes sizes;
  FLASHJIT_TRY(checker_.fill(call, params, sizes));
  const std::int64_t bytes = bytes_of(sizes);
  if (gpu_) {
    FLASHJIT_TRY(check_workspace(call, bytes));
    return launch_in(call, sizes, stream);
  }
  FLASHJIT_TRY(checker_.check_contents(call, params, sizes));
  // Callers bring no workspace for kernels of processors.
  std::unique_ptr<host::Workspace> memory = workspaces_.take(bytes);
  if (!memory) return host::out_of_memory(bytes, "use shorter sequences");
  CallArguments in_memory = call;
  in_memory.workspace = memory->data();
  in_memory.workspace_bytes = bytes;
  auto done = launch_in(in_memory, sizes, stream);
  workspaces_.give_back(std::move(memory));
  return done;
}

Result<void> NarrowingKernel::launch_in(const CallArguments& call, const CallSizes& sizes, void* stream) const {
  const Call calls(*this, call, sizes);
  FLASHJIT_TRY(kernels_.q->run(calls.rounding[0], stream));
  FLASHJIT_TRY(kernels_.k->run(calls.rounding[1], stream));
  FLASHJIT_TRY(kernels_.v->run(calls.rounding[2], stream));
  return kernels_.attention->run(calls.attention, stream);
}

}  // namespace flashjit
