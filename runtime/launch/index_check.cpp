#include "runtime/launch/index_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <limits>

namespace flashjit {
namespace {

constexpr int kUsualSlots = 128;  // more of them take an allocation per launch

int look_ups_of(const Expr& expr) {
  int most = 0;
  if (!is_looked_up(expr)) return most;
  for (const Expr& arg : expr->args) most = std::max(most, look_ups_of(arg));
  return most + (expr->op == Op::Load);
}

// Elements [first, last] of the innermost dimension, of the type that they have.
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
    default: return widen<std::int64_t>;
  }
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
    // The next row: the last of the other dimensions that has one goes on, those behind it begin again.
    for (d = inner - 1; d >= 0 && at[d] == last[d]; --d) at[d] = first[d];
    if (d >= 0) ++at[d];
  }
  return range;
}

IndexChecker::IndexChecker(const AttentionSpec& spec) : ranges_(spec.params) {
  collect(spec, spec.mask);
  collect(spec, spec.score);
  std::ranges::stable_sort(indices_, {}, &Index::look_ups);
}

void IndexChecker::collect(const AttentionSpec& spec, const Expr& expr) {
  if (!expr) return;
  // The DAG may share nodes; a stack with a list of those seen keeps this linear.
  std::vector<Expr> stack = {expr};
  std::vector<const Node*> seen;
  while (!stack.empty()) {
    const Expr at = stack.back();
    stack.pop_back();
    if (std::ranges::find(seen, at.get()) != seen.end()) continue;
    seen.push_back(at.get());
    stack.insert(stack.end(), at->args.begin(), at->args.end());
    if (at->op != Op::Load) continue;
    const auto place = [&](const Param& param) { return std::ranges::find(spec.params, param) - spec.params.begin(); };
    const bool by_position = uses(at, Variable::Q) || uses(at, Variable::K);
    for (std::size_t i = 0; i < at->args.size(); ++i) {
      const Expr& expr = at->args[i];
      Index& index = indices_.emplace_back(Index{static_cast<int>(place(at->param)),
                                                 static_cast<int>(i),
                                                 by_position,
                                                 look_ups_of(expr),
                                                 ranges_.add(expr),
                                                 print(expr),
                                                 {},
                                                 {}});
      for (const Param& param : params_of(expr)) {
        if (param.rank > 0) index.tensors += (index.tensors.empty() ? "" : ", ") + param.name;
        else if (!is_float(param.dtype)) index.scalars.push_back(static_cast<std::size_t>(place(param)));
      }
    }
  }
}

Result<void> IndexChecker::check(const AttentionSpec& spec, const CallSizes& sizes, const ParamView* const* params,
                                 const std::int64_t* scalars, bool readable) const {
  if (sizes.batch == 0 || sizes.q_len == 0) return {};  // no element is read
  std::array<IntInterval, kUsualSlots> usual;
  std::vector<IntInterval> many;
  if (ranges_.slots() > kUsualSlots) many.resize(static_cast<std::size_t>(ranges_.slots()));
  IntInterval* const values = many.empty() ? usual.data() : many.data();
  const auto range_of_read = [&](int param, std::span<const IntInterval> indices) {
    return readable
               ? range_of_values(params[param]->tensor, spec.params[static_cast<std::size_t>(param)].dtype, indices)
               : range_of(spec.params[static_cast<std::size_t>(param)].dtype);
  };
  // By reference, as a copy of the lambda would take memory at every launch.
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
        "larger tensor{} or clamp the index with min and max",
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

}  // namespace flashjit
