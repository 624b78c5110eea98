#include "runtime/launch/index_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <limits>

#include "compiler/spec/text_form.h"
#include "runtime/launch/arguments.h"

namespace flashjit {
namespace {

constexpr int kUsualSlots = 128;  // More slots take an allocation per launch.

int look_ups_of(const Expr& expr) {
  int most = 0;
  if (!is_looked_up(expr)) return most;
  for (const Expr& arg : expr->args) most = std::max(most, look_ups_of(arg));
  return most + (expr->op == Op::Load);
}

// Widens `range` by elements [first, last] of the innermost dimension, in the type that they have.
template <class T>
void widen(IntInterval& range, const char* row, std::int64_t first, std::int64_t last, std::int64_t stride) {
  for (std::int64_t i = first; i <= last; ++i) {
    T value;
    std::memcpy(&value, row + i * stride * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
    range.lo = std::min(range.lo, static_cast<std::int64_t>(value));
    range.hi = std::max(range.hi, static_cast<std::int64_t>(value));
  }
}

using Widen = void (*)(IntInterval&, const char*, std::int64_t, std::int64_t, std::int64_t);

Widen widen_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::I32: return widen<std::int32_t>;
    case Dtype::U32: return widen<std::uint32_t>;
    case Dtype::U8: return widen<std::uint8_t>;
    case Dtype::I8: return widen<std::int8_t>;
    case Dtype::I64: return widen<std::int64_t>;
    case Dtype::F16:
    case Dtype::BF16:
    case Dtype::F32:
    case Dtype::E4M3:
    case Dtype::E5M2: break;  // None of these types is an index.
  }
  return nullptr;
}

}  // namespace

IntInterval range_of_values(const TensorView& tensor, Dtype dtype, std::span<const IntInterval> box) {
  const int rank = static_cast<int>(box.size());
  std::int64_t first[kMaxParamRank], last[kMaxParamRank], at[kMaxParamRank], stride[kMaxParamRank];
  std::int64_t contiguous = 1;
  for (int d = rank - 1; d >= 0; --d) {
    stride[d] = tensor.strides ? tensor.strides[d] : contiguous;
    contiguous *= tensor.shape[d];
    at[d] = first[d] = std::max<std::int64_t>(box[static_cast<std::size_t>(d)].lo, 0);
    last[d] = std::min(box[static_cast<std::size_t>(d)].hi, tensor.shape[d] - 1);
    if (first[d] > last[d]) return {0, 0};
  }
  const Widen widen = widen_of(dtype);
  IntInterval range{std::numeric_limits<std::int64_t>::max(), std::numeric_limits<std::int64_t>::min()};
  const int inner = rank - 1;
  for (int d = 0; d >= 0;) {
    std::int64_t offset = 0;
    for (int i = 0; i < inner; ++i) offset += at[i] * stride[i];
    widen(range, static_cast<const char*>(tensor.data) + offset * size_of(dtype), first[inner], last[inner],
          stride[inner]);
    // Goes on to the next row: the last of the other dimensions that has another index advances, and those behind it
    // begin again.
    for (d = inner - 1; d >= 0 && at[d] == last[d]; --d) at[d] = first[d];
    if (d >= 0) ++at[d];
  }
  return range;
}

IndexChecker::IndexChecker(const AttentionSpec& spec) : ranges_(spec.params) {
  collect(spec, spec.mask);
  collect(spec, spec.list_mask);
  collect(spec, spec.score);
  std::ranges::stable_sort(indices_, {}, &Index::look_ups);
}

void IndexChecker::collect(const AttentionSpec& spec, const Expr& expr) {
  if (!expr) return;
  // Nodes of the DAG may be shared. A stack and a list of the nodes that were seen keep this linear.
  std::vector<Expr> stack = {expr};
  std::vector<const Node*> seen;
  while (!stack.empty()) {
    const Expr at = stack.back();
    stack.pop_back();
    if (std::ranges::find(seen, at.get()) != seen.end()) continue;
    seen.push_back(at.get());
    stack.insert(stack.end(), at->args.begin(), at->args.end());
    if (at->op != Op::Load) continue;
    const auto index_of = [&](const Param& param) {
      return std::ranges::find(spec.params, param) - spec.params.begin();
    };
    if (index_of(at->param) == std::ssize(given_params(spec)))
      continue;  // States of blocks are made as large as the kernel reads them.
    const bool by_position = uses(at, Variable::Q) || uses(at, Variable::K);
    for (std::size_t i = 0; i < at->args.size(); ++i) {
      const Expr& expr = at->args[i];
      Index& index = indices_.emplace_back(Index{static_cast<int>(index_of(at->param)),
                                                 static_cast<int>(i),
                                                 by_position,
                                                 look_ups_of(expr),
                                                 ranges_.add(expr),
                                                 print(expr),
                                                 {},
                                                 {}});
      for (const Param& param : params_of(expr)) {
        if (param.rank > 0) index.tensors += (index.tensors.empty() ? "" : ", ") + param.name;
        else if (!is_float(param.dtype)) index.scalars.push_back(static_cast<std::size_t>(index_of(param)));
      }
    }
  }
}

Result<void> IndexChecker::check(const AttentionSpec& spec, const CallSizes& sizes, const ParamView* const* params,
                                 const std::int64_t* scalars, bool readable) const {
  if (sizes.batch == 0 || sizes.q_len == 0) return {};  // No element is read.
  std::array<IntInterval, kUsualSlots> usual;
  std::vector<IntInterval> many;
  if (ranges_.slots() > kUsualSlots) many.resize(static_cast<std::size_t>(ranges_.slots()));
  IntInterval* const values = many.empty() ? usual.data() : many.data();
  const auto range_of_read = [&](int param, std::span<const IntInterval> indices) {
    return readable
               ? range_of_values(params[param]->tensor, spec.params[static_cast<std::size_t>(param)].dtype, indices)
               : range_of(spec.params[static_cast<std::size_t>(param)].dtype);
  };
  // The lambda is passed by reference, because a copy of it would take memory at every launch.
  ranges_.evaluate(variable_ranges(spec, sizes.batch, sizes.q_len, sizes.k_len), scalars, std::cref(range_of_read),
                   values);
  for (const Index& index : indices_) {
    if (sizes.k_len == 0 && index.by_position) continue;
    const IntInterval range = values[index.slot];
    const std::int64_t size = params[index.param]->tensor.shape[index.dimension];
    if (range.lo >= 0 && range.hi < size) continue;
    if (index.look_ups > 0 && !readable && size > 0) continue;
    std::string with;
    for (const std::size_t scalar : index.scalars) {
      with += fmt::format(", {}={}", spec.params[scalar].name, scalars[scalar]);
    }
    const std::string other = (with.empty() ? "" : ", another scalar") +
                              (index.tensors.empty() ? "" : fmt::format(", other values in {}", index.tensors));
    return invalid(fmt::format(
        "params.{}: index {} (`{}`) {} at these sizes (b={}, q_len={}, k_len={}{}), the tensor has {} there; pass a "
        "larger tensor{} or clamp the index with min and max (keys that the mask hides count, too)",
        spec.params[static_cast<std::size_t>(index.param)].name, index.dimension, index.text,
        range.lo == range.hi ? fmt::format("is {}", range.lo) : fmt::format("runs from {} to {}", range.lo, range.hi),
        sizes.batch, sizes.q_len, sizes.k_len, with, size, other));
  }
  return {};
}

std::vector<IndexChecker::IndexRange> IndexChecker::ranges(const AttentionSpec& spec, const CallSizes& sizes,
                                                           const std::int64_t* scalars,
                                                           const RangeProgram::RangeOfRead& range_of_read) const {
  std::vector<IntInterval> values(static_cast<std::size_t>(ranges_.slots()));
  ranges_.evaluate(variable_ranges(spec, sizes.batch, sizes.q_len, sizes.k_len), scalars, range_of_read, values.data());
  std::vector<IndexRange> found;
  for (const Index& index : indices_) {
    found.push_back({index.param, index.dimension, index.text, values[static_cast<std::size_t>(index.slot)]});
  }
  return found;
}

// ---- checks of what the tensors of a call on processors hold ----

Result<void> ArgumentChecker::check_contents(const CallArguments& call, const KernelParams& params,
                                             const CallSizes& sizes) const {
  FLASHJIT_TRY(check_offsets(call));
  FLASHJIT_TRY(check_given_positions(params, sizes));
  return check_table(params, sizes);
}

Result<void> ArgumentChecker::check_given_positions(const KernelParams& params, const CallSizes& sizes) const {
  if (params.positions == nullptr) return {};
  for (std::int64_t b = 0; b < sizes.batch; ++b) {
    for (std::int64_t t = 0; t < sizes.q_len; ++t) {
      const int position = params.positions[b * params.positions_stride.batch + t * params.positions_stride.token];
      if (position >= 0 && position < params.rope_positions) continue;
      const std::string token = spec_.layout == Layout::Packed ? fmt::format("{}", t) : fmt::format("{}, {}", b, t);
      return invalid(fmt::format("positions[{}]: {}, {}; positions count from 0", token, position,
                                 position < 0 ? "before the first" : fmt::format("cos has {}", params.rope_positions)));
    }
  }
  return {};
}

// Only pages that hold keys are checked. Behind a sequence's length the table may hold anything.
Result<void> ArgumentChecker::check_table(const KernelParams& params, const CallSizes& sizes) const {
  if (!has_block_table(spec_)) return {};
  for (std::int64_t b = 0; b < sizes.batch; ++b) {
    if (params.pages == 0 && params.k_lens[b] > 0)
      return invalid(fmt::format("k_lens[{}]: {}, and k and v have no pages; give them some, or a length of 0", b,
                                 counted(params.k_lens[b], "key")));
    const std::int64_t keys = std::clamp<std::int64_t>(params.k_lens[b], 0, sizes.k_len);
    for (int head = 0; head < (has_head_tables(spec_) ? spec_.heads_kv : 1); ++head)
      FLASHJIT_TRY(check_line(params, b, head, keys));
  }
  return {};
}

// Refuses pages beyond the bound of the spec by the name of what has them: a call with a table names no `k_len`.
Result<void> ArgumentChecker::check_columns(std::int64_t room) const {
  if (room <= spec_.k_len.max) return {};
  const std::int64_t page = spec_.page_size;
  return invalid(
      fmt::format("block_table: {} of {} tokens have room for {} keys, and the spec bounds k_len by {}; give "
                  "it the first {}, or prepare a spec with a wider bound",
                  counted(room / page, "column"), page, room, spec_.k_len.max, (spec_.k_len.max + page - 1) / page));
}

Result<void> ArgumentChecker::check_line(const KernelParams& params, std::int64_t b, int head,
                                         std::int64_t keys) const {
  const int* line = params.block_table + b * params.table_stride_batch + head * params.table_stride_head;
  for (std::int64_t i = 0; i * spec_.page_size < keys; ++i) {
    const int page = line[i * params.table_stride_page];
    if (page >= 0 && page < params.pages) continue;
    return invalid(
        fmt::format("block_table[{}, {}{}]: {}, k and v have pages 0 to {}; the sequence has {} in {} of {}, "
                    "see k_lens",
                    b, has_head_tables(spec_) ? fmt::format("{}, ", head) : "", i, page, params.pages - 1,
                    counted(keys, "key"), counted((keys - 1) / spec_.page_size + 1, "page"), spec_.page_size));
  }
  return {};
}

Result<void> ArgumentChecker::check_offsets(const CallArguments& call) const {
  if (!is_packed(spec_)) return {};
  Given given;
  FLASHJIT_TRY(find_named(call, given));
  const auto tensor = [&](std::size_t operand) -> const TensorView& { return *given.operands[operand]; };
  const std::size_t of_offsets_q = quantizes(spec_) ? operand("x") : operand("q");
  const struct {
    const TensorView &offsets, &rows;
    std::string_view name;
    std::int64_t longest;
  } lists[] = {{tensor(operand("offsets_q")), tensor(of_offsets_q), "offsets_q", call.max_q_len},
               {tensor(operand("offsets_k")), tensor(operand("k")), "offsets_k", call.max_k_len}};
  for (const auto& [offsets, rows, name, longest] : lists) {
    if (!offsets.given()) continue;  // The keys lie in pages, or there are none.
    const int* at = static_cast<const int*>(offsets.data);
    for (std::int64_t i = 0; i < offsets.shape[0]; ++i) {
      if (at[i] < 0 || at[i] > rows.shape[0] || (i > 0 && at[i] < at[i - 1])) {
        return invalid(
            fmt::format("{}[{}]: {}; offsets must not fall, nor leave the {} tokens", name, i, at[i], rows.shape[0]));
      }
      if (i > 0 && longest > 0 && at[i] - at[i - 1] > longest) {
        return invalid(
            fmt::format("{}[{}]: the sequence has {}, more than the {} that were promised (max_q_len, "
                        "max_k_len)",
                        name, i, counted(at[i] - at[i - 1], "token"), longest));
      }
    }
  }
  return {};
}

}  // namespace flashjit
