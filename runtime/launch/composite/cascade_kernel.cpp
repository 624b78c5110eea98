#include "runtime/launch/composite/cascade_kernel.h"

#include <algorithm>

#include <fmt/format.h>

#include "compiler/spec/fields/shared_prefix.h"
#include "runtime/launch/composite/composite.h"

namespace flashjit {

namespace {

namespace names = cascade_params;

}  // namespace

// This structure holds the calls of the components. The attentions leave their results at the beginning of the
// workspace: O, then LSE, then maxima. Each has a part for every piece, and a last one for each sequence's own keys.
// Behind the results lies the workspace of one attention at a time, or of both if one leaves rotated queries there for
// the other.
struct CascadeKernel::Call {
  Call(const CascadeKernel& cascade, const CallArguments& call, const KernelParams& params, const CallSizes& sizes)
      : spec(cascade.spec_),
        whole(call),
        p(params),
        room(cascade.room(sizes)),
        batch(sizes.batch),
        queries(sizes.q_len) {
    make_prefix(cascade);
    make_own();
    make_merge();
  }
  Call(const Call&) = delete;  // Views point into this object.

  float* at(std::int64_t bytes, std::int64_t elements) const {
    return reinterpret_cast<float*>(static_cast<char*>(whole.workspace) + bytes) + elements;
  }
  void give_rest_of_workspace(CallArguments& call, std::int64_t from) const {
    call.workspace = static_cast<char*>(whole.workspace) + from;
    call.workspace_bytes = whole.workspace_bytes - from;
  }
  // Gives a tensor with one number for each row, beginning at part `part`.
  void put_rows(CallArguments& call, std::string_view name, std::int64_t from, std::int64_t part, Shaped& kept,
                std::initializer_list<std::int64_t> shape, std::initializer_list<std::int64_t> strides) const {
    put(call, name, shaped(at(from, part * room.rows), Dtype::F32, kept, shape, strides));
  }
  void put_outputs(CallArguments& call, std::int64_t part, Shaped* of, std::initializer_list<std::int64_t> o,
                   std::initializer_list<std::int64_t> rows, std::initializer_list<std::int64_t> strides) const {
    put(call, "o", shaped(at(0, part * room.rows * spec.d_v), Dtype::F32, of[0], o));
    put_rows(call, "lse", room.lse, part, of[1], rows, strides);
    if (spec.max_logit) put_rows(call, "max_logit", room.maxima, part, of[2], rows, strides);
  }

  // The queries of all sequences are those of one sequence, and each piece gets the same queries. Pages are those of
  // sequence 0.
  void make_prefix(const CascadeKernel& cascade) {
    const std::int64_t tokens = batch * queries, heads = spec.heads_q, pieces = room.pieces;
    const TensorView table = given(whole, "block_table");
    prefix.sms = whole.sms;
    if (spec.rope == Rope::none) {
      put(prefix, "q",
          shaped(const_cast<void*>(p.q), spec.dtype, shapes[0], {pieces, tokens, heads, spec.d_qk},
                 {0, queries == 1 ? p.q_stride.batch : p.q_stride.token, p.q_stride.head, 1}));
    } else {
      put(prefix, "q",
          shaped(static_cast<char*>(whole.workspace) + room.rotated_q, spec.dtype, shapes[0],
                 {pieces, tokens, heads, spec.d_qk}, {0, heads * spec.d_qk, spec.d_qk, 1}));
    }
    put(prefix, "k_lens", shaped(cascade.lengths_.data(), Dtype::I32, shapes[1], {pieces}));
    put(prefix, "block_table",
        shaped(table.data, Dtype::I32, shapes[2], {pieces, table.shape[1]}, {0, p.table_stride_page}));
    for (const char* name : {"k", "v", "scale_q", "scale_k", "scale_v"}) put(prefix, name, given(whole, name));
    put_outputs(prefix, 0, &shapes[3], {pieces, tokens, heads, spec.d_v}, {pieces, heads, tokens},
                {room.rows, tokens, 1});
    for (const std::string& name : cascade.score_params_) {
      for (int i = 0; i < whole.param_count; ++i) {
        const ParamView& param = whole.params[static_cast<std::size_t>(i)];
        if (param.name == name) prefix.add(param);
      }
    }
    prefix.add({.name = names::kPrefix, .tensor = given(whole, "shared_prefix")});
    prefix.add({.name = names::kLens, .tensor = given(whole, "k_lens")});
    prefix.add({.name = names::kPieces, .is_scalar = true, .scalar = static_cast<double>(pieces)});
    if (!spec.q_len.pinned())
      prefix.add({.name = names::kQueries, .is_scalar = true, .scalar = static_cast<double>(queries)});
    give_rest_of_workspace(prefix, room.prefix);
  }

  // The caller's shared_prefix is passed on as it is, because the component's parameter has the same name.
  void make_own() {
    const std::int64_t heads = spec.heads_q;
    own = whole;
    own.add({.name = names::kLens, .tensor = given(whole, "k_lens")});
    put_outputs(own, room.pieces, &shapes[6], {batch, queries, heads, spec.d_v}, {batch, heads, queries},
                {queries, batch * queries, 1});
    give_rest_of_workspace(own, room.own);
  }

  void make_merge() {
    const std::int64_t parts = room.pieces + 1, heads = spec.heads_q, tokens = batch * queries;
    put(merge, "o_parts", shaped(at(0, 0), Dtype::F32, shapes[9], {parts, batch, queries, heads, spec.d_v}));
    put_rows(merge, "lse_parts", room.lse, 0, shapes[10], {parts, batch, heads, queries},
             {room.rows, queries, tokens, 1});
    if (spec.max_logit) {
      put_rows(merge, "max_parts", room.maxima, 0, shapes[11], {parts, batch, heads, queries},
               {room.rows, queries, tokens, 1});
    }
    for (const char* name : {"o", "lse", "max_logit", "k_lens", "shared_prefix"}) put(merge, name, given(whole, name));
  }

  const AttentionSpec& spec;
  const CallArguments& whole;
  const KernelParams& p;
  const Room room;
  const std::int64_t batch, queries;
  CallArguments prefix, own, merge;
  std::array<Shaped, 12> shapes;
};

CascadeKernel::CascadeKernel(const Plan& plan, Facts facts, int ordinal, CascadeKernels kernels, DeviceBuffer lengths)
    : RunnableKernel(plan, std::move(facts), ordinal),
      spec_(plan.spec),
      target_(plan.target),
      kernels_(std::move(kernels)),
      lengths_(std::move(lengths)) {
  if (!spec_.score) return;
  for (const Param& param : params_of(spec_.score)) score_params_.push_back(param.name);
}

Result<std::shared_ptr<CascadeKernel>> CascadeKernel::create(const GpuContext& gpu, int ordinal,
                                                             const AttentionSpec& spec, const Target& target,
                                                             CascadeKernels kernels) {
  constexpr unsigned char kEveryByte = 0x7f;  // Lengths of these bytes are beyond all that there can be.
  const RelaxedCapture relaxed(*gpu.driver);
  FLASHJIT_ASSIGN(lengths, DeviceBuffer::allocate(gpu, kMostPieces * sizeof(std::int32_t)));
  FLASHJIT_ASSIGN(stream, Stream::create(gpu));
  FLASHJIT_TRY(lengths.fill(kEveryByte, stream.get()));
  FLASHJIT_TRY(stream.synchronize());
  Plan plan;  // Calls are checked by this plan. The components launch.
  plan.spec = spec;
  plan.target = target;
  Facts facts = composite_facts(spec, *kernels.own,
                                {{"the shared keys", kernels.prefix.get()}, {"the merge", kernels.merge.get()}});
  return std::shared_ptr<CascadeKernel>(
      new CascadeKernel(plan, std::move(facts), ordinal, std::move(kernels), std::move(lengths)));
}

CascadeKernel::Room CascadeKernel::room(const CallSizes& sizes) const {
  Room room;
  room.pieces = pieces_of(spec_, target_, sizes.q_tokens);
  room.rows = sizes.q_tokens * spec_.heads_q;
  const std::int64_t of_rows = (room.pieces + 1) * room.rows * static_cast<std::int64_t>(sizeof(float));
  room.lse = aligned_bytes(of_rows * spec_.d_v);
  room.maxima = room.lse + aligned_bytes(of_rows);
  room.own = room.maxima + (spec_.max_logit ? aligned_bytes(of_rows) : 0);
  CallSizes of_prefix = sizes;
  of_prefix.batch = room.pieces;
  of_prefix.q_len = sizes.q_tokens;
  of_prefix.q_tokens = room.pieces * sizes.q_tokens;
  of_prefix.k_tokens = room.pieces * sizes.k_len;
  const std::int64_t behind_own = room.own + aligned_bytes(kernels_.own->workspace_bytes(sizes));
  const bool rotates = spec_.rope != Rope::none;
  if (rotates) room.rotated_q = room.own + kernels_.own->rotated_q_at(sizes);
  room.prefix = rotates ? behind_own : room.own;
  room.bytes = std::max(behind_own, room.prefix + kernels_.prefix->workspace_bytes(of_prefix));
  return room;
}

Result<std::int64_t> CascadeKernel::workspace_bytes(const CallArguments& call) const {
  KernelParams params;
  CallSizes sizes;
  FLASHJIT_TRY(checker_.fill(call, params, sizes));
  return room(sizes).bytes;
}

Result<void> CascadeKernel::launch(const CallArguments& call, void* stream) {
  KernelParams params;
  CallSizes sizes;
  FLASHJIT_TRY(checker_.fill(call, params, sizes));
  if (sizes.q_tokens == 0) return {};
  if (spec_.rope == Rope::none && sizes.q_len > 1 && sizes.batch > 1 &&
      params.q_stride.batch != sizes.q_len * params.q_stride.token) {
    return invalid(fmt::format(
        "q.strides: {} from one sequence to the next, with shared_prefix it must be {}, q_len times that of "
        "tokens; pass a contiguous copy",
        params.q_stride.batch, sizes.q_len * params.q_stride.token));
  }
  FLASHJIT_TRY(check_workspace(call, room(sizes).bytes));
  const Call calls(*this, call, params, sizes);
  FLASHJIT_TRY(kernels_.own->run(calls.own, stream));
  FLASHJIT_TRY(kernels_.prefix->run(calls.prefix, stream));
  return kernels_.merge->run(calls.merge, stream);
}

}  // namespace flashjit
