#include "runtime/launch/arguments.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "flashjit/flashjit.hpp"
#include "runtime/launch/tensor_check.h"
#include "runtime/launch/tensor_maps.h"

namespace flashjit {
namespace {

// Persistent kernels count in ints, and each block a little beyond the last item.
constexpr std::int64_t kLargestGrid = std::numeric_limits<std::int32_t>::max() - 65535;

// Where a layout keeps what.
struct Axes {
  int rank, batch, token, head, dim;
};
Axes axes_of(Layout layout) {
  if (layout == Layout::Packed) return {3, -1, 0, 1, 2};
  return layout == Layout::Bhsd ? Axes{4, 0, 2, 1, 3} : Axes{4, 0, 1, 2, 3};
}

Result<void> view(const Tensor& tensor, std::string_view name, TensorView& result) {
  if (!tensor.strides.empty() && tensor.strides.size() != tensor.shape.size()) {
    return invalid(fmt::format("{}.strides: {} of them for {} dimensions; leave them empty for a contiguous tensor",
                               name, tensor.strides.size(), tensor.shape.size()));
  }
  if (tensor.shape.size() > 4) {
    return invalid(fmt::format("{}.shape: {} dimensions, at most 4 are possible", name, tensor.shape.size()));
  }
  result.data = tensor.data;
  result.dtype = tensor.dtype;
  result.rank = static_cast<int>(tensor.shape.size());
  result.shape = tensor.shape.data();
  result.strides = tensor.strides.empty() ? nullptr : tensor.strides.data();
  return {};
}

Strides strides_of(const Dimensions& d, const Axes& axes) {
  return {axes.batch < 0 ? 0 : d.stride[axes.batch], d.stride[axes.head], d.stride[axes.token]};
}

// The value as the kernel reads it: the bits of the declared type.
Result<Int64> scalar_bits(const Param& param, double value) {
  const auto in = [&](double lo, double hi) { return value >= lo && value <= hi && value == std::floor(value); };
  const auto refuse = [&] {
    return invalid(
        fmt::format("scalars.{}: {} is no value of {}, its declared type", param.name, value, name(param.dtype)));
  };
  switch (param.dtype) {
    case Dtype::I32: return in(-0x1p31, 0x1p31 - 1) ? Result<Int64>(static_cast<Int64>(value)) : refuse();
    case Dtype::U32: return in(0, 0x1p32 - 1) ? Result<Int64>(static_cast<Int64>(value)) : refuse();
    case Dtype::U8: return in(0, 255) ? Result<Int64>(static_cast<Int64>(value)) : refuse();
    // A double holds integers up to 2^53 exactly.
    case Dtype::I64: return in(-0x1p53, 0x1p53) ? Result<Int64>(static_cast<Int64>(value)) : refuse();
    case Dtype::F32: return Int64{std::bit_cast<std::uint32_t>(static_cast<float>(value))};
    default:
      return unsupported(fmt::format("scalars.{}: scalars of type {} are not passed to kernels; declare it as fp32",
                                     param.name, name(param.dtype)));
  }
}

Result<void> check_bound(std::string_view name, std::int64_t value, const SizeBound& bound) {
  if (value >= bound.min && value <= bound.max) return {};
  if (bound.pinned()) {
    return invalid(
        fmt::format("{}: {}, the spec pins {}={}; prepare a spec without that pin", name, value, name, bound.min));
  }
  return invalid(fmt::format("{}: {} is outside {}..{}, the bound of the spec; prepare a spec with a wider one", name,
                             value, bound.min, bound.max));
}

}  // namespace

Result<void> view(const Arguments& arguments, CallArguments& call) {
  const struct {
    const Tensor& from;
    TensorView& to;
    std::string_view name;
  } tensors[] = {{arguments.q, call.q, "q"},
                 {arguments.k, call.k, "k"},
                 {arguments.v, call.v, "v"},
                 {arguments.o, call.o, "o"},
                 {arguments.lse, call.lse, "lse"},
                 {arguments.max_logit, call.max_logit, "max_logit"},
                 {arguments.sink, call.sink, "sink"},
                 {arguments.offsets_q, call.offsets_q, "offsets_q"},
                 {arguments.offsets_k, call.offsets_k, "offsets_k"}};
  for (const auto& [from, to, name] : tensors) {
    FLASHJIT_TRY(view(from, name, to));
  }
  call.max_q_len = arguments.max_q_len;
  call.max_k_len = arguments.max_k_len;
  for (const auto& [name, from] : arguments.params) {
    ParamView param{.name = name};
    FLASHJIT_TRY(view(from, name, param.tensor));
    call.add(param);
  }
  for (const auto& [name, value] : arguments.scalars) call.add({.name = name, .is_scalar = true, .scalar = value});
  return {};
}

ArgumentChecker::ArgumentChecker(const Plan& plan, int ordinal)
    : spec_(plan.spec),
      grid_(plan),
      gpu_(plan.target.gpu),
      hopper_(plan.config.loop == Loop::hopper),
      ordinal_(ordinal) {
  collect_indices(spec_.mask);
  collect_indices(spec_.score);
}

void ArgumentChecker::collect_indices(const Expr& expr) {
  if (!expr) return;
  // The DAG may share nodes; a stack with a list of those seen keeps this linear.
  std::vector<Expr> stack = {expr};
  std::vector<const Node*> seen;
  while (!stack.empty()) {
    const Expr at = stack.back();
    stack.pop_back();
    if (std::find(seen.begin(), seen.end(), at.get()) != seen.end()) continue;
    seen.push_back(at.get());
    stack.insert(stack.end(), at->args.begin(), at->args.end());
    if (at->op != Op::Load) continue;
    const auto param = std::find(spec_.params.begin(), spec_.params.end(), at->param);
    for (std::size_t i = 0; i < at->args.size(); ++i) {
      indices_.push_back({static_cast<int>(param - spec_.params.begin()), static_cast<int>(i), at->args[i]});
    }
  }
}

Result<void> ArgumentChecker::fill(const CallArguments& call, KernelParams& params) const {
  Sizes sizes;
  params = {};
  FLASHJIT_TRY(fill_inputs(call, sizes, params));
  FLASHJIT_TRY(check_sizes(sizes));
  FLASHJIT_TRY(fill_row_outputs(call, sizes, params));
  FLASHJIT_TRY(fill_params(call, sizes, params));
  params.batch = static_cast<int>(sizes.batch);
  params.q_len = static_cast<int>(sizes.q_len);
  params.k_len = static_cast<int>(sizes.k_len);
  return fill_grid(sizes, params);
}

Result<void> ArgumentChecker::fill_grid(const Sizes& sizes, KernelParams& params) const {
  const std::int64_t tiles = grid_.tiles(sizes.q_len), blocks = grid_.most_blocks(sizes.q_len, sizes.batch);
  if (blocks < 0 || blocks > kLargestGrid) {
    return invalid(
        fmt::format("batch: {} with {} heads and {} query tiles makes more blocks than a launch can have ({}); split "
                    "the batch",
                    sizes.batch, grid_.heads, tiles, kLargestGrid));
  }
  params.tiles_q = sizes.batch == 0 ? 0 : static_cast<int>(tiles);
  params.heads_per_group = grid_.heads_per_group(sizes.k_len, sizes.batch);
  return {};
}

Result<void> ArgumentChecker::check_sizes(const Sizes& sizes) const {
  FLASHJIT_TRY(check_bound("b", sizes.batch, spec_.batch));
  FLASHJIT_TRY(check_bound("q_len", sizes.q_len, spec_.q_len));
  FLASHJIT_TRY(check_bound("k_len", sizes.k_len, spec_.k_len));
  return hopper_ && spec_.layout == Layout::Packed ? check_packed_reach(sizes) : Result<void>();
}

// No sequence is too long for its map: the bounds of a spec are smaller.
Result<void> ArgumentChecker::check_packed_reach(const Sizes& sizes) const {
  for (const auto& [name, tokens] : {std::pair{"q", sizes.q_tokens}, std::pair{"k", sizes.k_tokens}}) {
    if (tokens <= kMostPackedTokens) continue;
    return invalid(fmt::format(
        "{}.shape[0]: {} tokens, this kernel reaches {} in packed tensors; split the call, or pin family=sync "
        "in the schedule",
        name, tokens, kMostPackedTokens));
  }
  return {};
}

Result<void> ArgumentChecker::fill_inputs(const CallArguments& call, Sizes& sizes, KernelParams& params) const {
  const Axes axes = axes_of(spec_.layout);
  const bool packed = spec_.layout == Layout::Packed;
  TensorRule rule{.rank = axes.rank,
                  .align_bytes = gpu_ ? spec_.align_bytes : 0,
                  .place = gpu_ ? TensorView::Place::Gpu : TensorView::Place::Host,
                  .ordinal = ordinal_};
  const auto check = [&](std::string_view name, const TensorView& tensor, Dtype dtype, bool output) {
    rule.name = name;
    rule.dtype = dtype;
    rule.output = output;
    return check_tensor(tensor, rule);
  };
  const auto shaped = [&](const Dimensions& d, std::int64_t tokens, int heads, int dim, std::string_view token_name,
                          std::string_view head_name, std::string_view dim_name) -> Result<void> {
    if (!packed) FLASHJIT_TRY(check_size(rule, d, axes.batch, sizes.batch, "batch of q"));
    FLASHJIT_TRY(check_size(rule, d, axes.token, tokens, token_name));
    FLASHJIT_TRY(check_size(rule, d, axes.head, heads, head_name));
    return check_size(rule, d, axes.dim, dim, dim_name);
  };
  FLASHJIT_ASSIGN(q, check("q", call.q, spec_.dtype, false));
  sizes.q_tokens = q.size[axes.token];
  sizes.batch = packed ? 0 : q.size[axes.batch];
  FLASHJIT_TRY(shaped(q, sizes.q_tokens, spec_.heads_q, spec_.d_qk, "", "query heads of the spec", "d of the spec"));
  FLASHJIT_ASSIGN(k, check("k", call.k, spec_.kv_dtype, false));
  sizes.k_tokens = k.size[axes.token];
  FLASHJIT_TRY(shaped(k, sizes.k_tokens, spec_.heads_kv, spec_.d_qk, "", "KV heads of the spec", "d of the spec"));
  FLASHJIT_ASSIGN(v, check("v", call.v, spec_.kv_dtype, false));
  FLASHJIT_TRY(shaped(v, sizes.k_tokens, spec_.heads_kv, spec_.d_v, "tokens of k", "KV heads of the spec",
                      "d of V in the spec"));
  FLASHJIT_ASSIGN(o, check("o", call.o, spec_.out_dtype, true));
  FLASHJIT_TRY(shaped(o, sizes.q_tokens, spec_.heads_q, spec_.d_v, "tokens of q", "query heads of the spec",
                      "d of V in the spec"));
  sizes.q_len = sizes.q_tokens;
  sizes.k_len = sizes.k_tokens;
  params.q = call.q.data;
  params.k = call.k.data;
  params.v = call.v.data;
  params.o = call.o.data;
  params.q_stride = strides_of(q, axes);
  params.k_stride = strides_of(k, axes);
  params.v_stride = strides_of(v, axes);
  params.o_stride = strides_of(o, axes);

  if (!packed) {
    if (call.offsets_q.given() || call.offsets_k.given()) {
      return invalid(
          "offsets_q, offsets_k: given, and the spec's layout is not packed; leave them out or use layout=packed");
    }
    return {};
  }
  rule = {.rank = 1, .place = rule.place, .ordinal = ordinal_};
  FLASHJIT_ASSIGN(offsets_q, check("offsets_q", call.offsets_q, Dtype::I32, false));
  FLASHJIT_ASSIGN(offsets_k, check("offsets_k", call.offsets_k, Dtype::I32, false));
  if (offsets_q.size[0] < 1) return invalid("offsets_q.shape[0]: 0, must be the number of sequences plus 1");
  FLASHJIT_TRY(check_size(rule, offsets_k, 0, offsets_q.size[0], "as many as offsets_q"));
  sizes.batch = offsets_q.size[0] - 1;
  params.offsets_q = static_cast<const int*>(call.offsets_q.data);
  params.offsets_k = static_cast<const int*>(call.offsets_k.data);
  if (call.max_q_len < 0 || call.max_k_len < 0) return invalid("max_q_len, max_k_len: must not be negative");
  if (call.max_q_len == 0 && sizes.q_tokens > 0 && sizes.batch > 0) {
    return invalid(
        fmt::format("max_q_len: missing; give the length of the longest query sequence ({} tokens in all is a safe, "
                    "slower bound)",
                    sizes.q_tokens));
  }
  sizes.q_len = std::min(call.max_q_len, sizes.q_tokens);
  if (call.max_k_len > 0) sizes.k_len = std::min(call.max_k_len, sizes.k_tokens);
  return {};
}

Result<void> ArgumentChecker::fill_row_outputs(const CallArguments& call, const Sizes& sizes,
                                               KernelParams& params) const {
  const bool packed = spec_.layout == Layout::Packed;
  TensorRule rule{.rank = packed ? 2 : 3,
                  .output = true,
                  .place = gpu_ ? TensorView::Place::Gpu : TensorView::Place::Host,
                  .ordinal = ordinal_};
  bool have_strides = false;
  const auto check = [&](std::string_view name, std::string_view field, const TensorView& tensor, bool wanted,
                         float*& pointer) -> Result<void> {
    if (!wanted) {
      if (!tensor.given()) return {};
      return invalid(
          fmt::format("{}: given, and the spec does not ask for it; add {} to the spec or leave it out", name, field));
    }
    rule.name = name;
    FLASHJIT_ASSIGN(d, check_tensor(tensor, rule));
    const int head = packed ? 0 : 1;
    if (!packed) FLASHJIT_TRY(check_size(rule, d, 0, sizes.batch, "batch of q"));
    FLASHJIT_TRY(check_size(rule, d, head, spec_.heads_q, "query heads of the spec"));
    FLASHJIT_TRY(check_size(rule, d, head + 1, sizes.q_tokens, "tokens of q"));
    const Int64 batch_stride = packed ? 0 : d.stride[0], head_stride = d.stride[head];
    if (have_strides && (params.row_stride_batch != batch_stride || params.row_stride_head != head_stride)) {
      return invalid("max_logit.strides: differ from those of lse; the kernel writes both with one set of strides");
    }
    have_strides = true;
    params.row_stride_batch = batch_stride;
    params.row_stride_head = head_stride;
    pointer = static_cast<float*>(tensor.data);
    return {};
  };
  FLASHJIT_TRY(check("lse", "lse=ln", call.lse, spec_.lse != Lse::None, params.lse));
  FLASHJIT_TRY(check("max_logit", "max_logit", call.max_logit, spec_.max_logit, params.max_logit));
  if (!spec_.sink) {
    if (!call.sink.given()) return {};
    return invalid("sink: given, and the spec does not ask for it; add sink to the spec or leave it out");
  }
  rule.name = "sink";
  rule.rank = 1;
  rule.output = false;
  FLASHJIT_ASSIGN(sink, check_tensor(call.sink, rule));
  FLASHJIT_TRY(check_size(rule, sink, 0, spec_.heads_q, "query heads of the spec"));
  params.sink = static_cast<const float*>(call.sink.data);
  return {};
}

Result<void> ArgumentChecker::fill_params(const CallArguments& call, const Sizes& sizes, KernelParams& params) const {
  const int given = std::min(call.param_count, static_cast<int>(call.params.size()));
  const ParamView* found[kMaxParams] = {};
  for (int i = 0; i < given; ++i) {
    const ParamView& param = call.params[static_cast<std::size_t>(i)];
    const auto wanted =
        std::find_if(spec_.params.begin(), spec_.params.end(), [&](const Param& p) { return p.name == param.name; });
    if (wanted == spec_.params.end()) {
      std::string known;
      for (const Param& p : spec_.params) known += (known.empty() ? "" : ", ") + p.name;
      return invalid(fmt::format("params.{}: the spec has no parameter of this name; it has {}", param.name,
                                 known.empty() ? "none" : known));
    }
    const auto at = static_cast<std::size_t>(wanted - spec_.params.begin());
    if (found[at]) return invalid(fmt::format("params.{}: given twice", param.name));
    found[at] = &param;
  }
  if (call.param_count > given) {
    return invalid(fmt::format("params: {} given, a spec has at most {}", call.param_count, kMaxParams));
  }
  for (std::size_t i = 0; i < spec_.params.size(); ++i) {
    const Param& param = spec_.params[i];
    const std::string_view kind = param.rank == 0 ? "scalars" : "params";
    if (!found[i]) return invalid(fmt::format("{}.{}: missing; mask or score of the spec reads it", kind, param.name));
    if (found[i]->is_scalar != (param.rank == 0)) {
      return invalid(fmt::format("{}.{}: the spec declares a {}", found[i]->is_scalar ? "scalars" : "params",
                                 param.name, param.rank == 0 ? "scalar" : "tensor"));
    }
    if (param.rank == 0) {
      FLASHJIT_ASSIGN(bits, scalar_bits(param, found[i]->scalar));
      params.extra[i].stride[0] = bits;
      // The low bytes of stride[0] are the value in its own type: host processors here are little-endian.
      params.extra[i].data = gpu_ ? reinterpret_cast<const void*>(bits) : &params.extra[i].stride[0];
      continue;
    }
    const TensorRule rule{.name = param.name,
                          .group = "params.",
                          .dtype = param.dtype,
                          .rank = param.rank,
                          .contiguous_last = false,
                          .place = gpu_ ? TensorView::Place::Gpu : TensorView::Place::Host,
                          .ordinal = ordinal_};
    FLASHJIT_ASSIGN(d, check_tensor(found[i]->tensor, rule));
    params.extra[i].data = found[i]->tensor.data;
    for (int j = 0; j < d.rank; ++j) params.extra[i].stride[j] = d.stride[j];
  }
  if (sizes.batch == 0 || sizes.q_len == 0 || sizes.k_len == 0) return {};  // no element is read
  for (const Index& index : indices_) {
    FLASHJIT_TRY(check_index(index, found[static_cast<std::size_t>(index.param)]->tensor, sizes));
  }
  return {};
}

Result<void> ArgumentChecker::check_index(const Index& index, const TensorView& tensor, const Sizes& sizes) const {
  VariableRanges ranges = default_ranges(sizes.batch, spec_.heads_q, spec_.heads_kv, sizes.q_len, sizes.k_len);
  if (spec_.layout != Layout::Packed) {
    ranges.of[static_cast<int>(Variable::QLen)] = {sizes.q_len, sizes.q_len};
    ranges.of[static_cast<int>(Variable::KLen)] = {sizes.k_len, sizes.k_len};
  }
  IntInterval range;
  if (index.expr->op == Op::Variable) {
    range = ranges.of[static_cast<int>(index.expr->variable)];
  } else {
    FLASHJIT_ASSIGN(computed, interval_of(index.expr, ranges));
    if (!computed) return {};  // made of the user's own data: only the user knows its values
    range = *computed;
  }
  const std::int64_t size = tensor.shape[index.dimension];
  if (range.lo >= 0 && range.hi < size) return {};
  return invalid(fmt::format(
      "params.{}: index {} (`{}`) runs from {} to {} at these sizes (b={}, q_len={}, k_len={}), the tensor has "
      "{} there; pass a larger tensor or clamp the index with min and max",
      spec_.params[static_cast<std::size_t>(index.param)].name, index.dimension, print(index.expr), range.lo, range.hi,
      sizes.batch, sizes.q_len, sizes.k_len, size));
}

Result<void> ArgumentChecker::check_offsets(const CallArguments& call) const {
  if (spec_.layout != Layout::Packed) return {};
  const int token = axes_of(spec_.layout).token;
  const struct {
    const TensorView& offsets;
    std::string_view name;
    std::int64_t tokens, longest;
  } lists[] = {{call.offsets_q, "offsets_q", call.q.shape[token], call.max_q_len},
               {call.offsets_k, "offsets_k", call.k.shape[token], call.max_k_len}};
  for (const auto& [offsets, name, tokens, longest] : lists) {
    const int* at = static_cast<const int*>(offsets.data);
    for (std::int64_t i = 0; i < offsets.shape[0]; ++i) {
      if (at[i] < 0 || at[i] > tokens || (i > 0 && at[i] < at[i - 1])) {
        return invalid(
            fmt::format("{}[{}]: {}; offsets must rise from 0 and end within the {} tokens", name, i, at[i], tokens));
      }
      if (i > 0 && longest > 0 && at[i] - at[i - 1] > longest) {
        return invalid(
            fmt::format("{}[{}]: the sequence has {} tokens, more than the {} that were promised (max_q_len, "
                        "max_k_len)",
                        name, i, at[i] - at[i - 1], longest));
      }
    }
  }
  return {};
}

}  // namespace flashjit
