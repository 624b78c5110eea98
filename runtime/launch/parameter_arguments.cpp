// Arguments of a run also have the parameters of masks and scores, and their gradients.
#include <algorithm>
#include <bit>
#include <climits>
#include <cmath>

#include <fmt/format.h>

#include "compiler/analysis/interval.h"
#include "compiler/launches/block_states.h"
#include "runtime/launch/arguments.h"

namespace flashjit {

Result<Int64> scalar_bits(const Param& param, double value) {
  constexpr double kMostExact = 0x1p53;  // A double holds integers up to this one.
  if (param.dtype == Dtype::F32) return Int64{std::bit_cast<std::uint32_t>(static_cast<float>(value))};
  if (is_float(param.dtype))
    return unsupported(fmt::format("scalars.{}: scalars of type {} are not passed to kernels; declare it as fp32",
                                   param.name, name(param.dtype)));
  const IntInterval range = range_of(param.dtype);
  const double least = std::max(static_cast<double>(range.lo), -kMostExact),
               most = std::min(static_cast<double>(range.hi), kMostExact);
  if (value >= least && value <= most && value == std::floor(value)) return static_cast<Int64>(value);
  return invalid(
      fmt::format("scalars.{}: {} is no value of {}, its declared type", param.name, value, name(param.dtype)));
}

// Returns the slot for a parameter of the spec, the gradient of one, or a number of `places`; null if `param` is none
// of these.
const ParamView** ArgumentChecker::slot_of(const ParamView& param, Given& given) const {
  const std::span<const Param> params = given_params(spec_);
  if (const auto own = std::ranges::find(params, param.name, &Param::name); own != params.end())
    return &given.params[own - params.begin()];
  if (const PlaceNumber* const number = spec_.places ? find_place_number(param.name) : nullptr)
    return &given.places[number - kPlaceNumbers.data()];
  const auto gradient = std::ranges::find(gradient_names_, param.name);
  return gradient == gradient_names_.end() ? nullptr : &given.gradients[gradient - gradient_names_.begin()];
}

Result<void> ArgumentChecker::fill_params(const Given& given, KernelParams& params, Overlaps& overlaps) const {
  for (std::size_t i = 0; i < param_rules_.size(); ++i) {
    const Param& param = spec_.params[i];
    const ParamView* found = given.params[i];
    const std::string_view kind = param.rank == 0 ? "scalars" : "params";
    if (!found) return invalid(fmt::format("{}.{}: missing; mask or score of the spec reads it", kind, param.name));
    if (found->is_scalar != (param.rank == 0)) {
      if (found->is_scalar)
        return invalid(fmt::format("scalars.{}: the spec declares a tensor; give it in params", param.name));
      return invalid(fmt::format(
          "params.{0}: the spec declares a scalar; give its number in scalars, or declare `{0}: {1}[1]` and read {0}[0]",
          param.name, name(param.dtype)));
    }
    if (param.rank == 0) {
      FLASHJIT_ASSIGN(bits, scalar_bits(param, found->scalar));
      params.extra[i].stride[0] = bits;
      // The low bytes of stride[0] are the value in its own type: host processors here are little-endian.
      params.extra[i].data = gpu_ ? reinterpret_cast<const void*>(bits) : &params.extra[i].stride[0];
      continue;
    }
    FLASHJIT_ASSIGN(d, check_tensor(found->tensor, param_rules_[i]));
    overlaps.add(found->tensor, param_rules_[i], d);
    params.extra[i].data = found->tensor.data;
    for (int j = 0; j < d.rank; ++j) {
      params.extra[i].stride[j] = d.stride[j];
      params.extra_size[i][j] = d.size[j];
    }
  }
  return {};
}

// The states of blocks are no tensor of the call: whoever launches makes them.
void ArgumentChecker::shape_block_states(const CallSizes& sizes, KernelParams& params) const {
  const BlockCounts blocks = block_counts(spec_.blocks, sizes);
  const std::int64_t size[] = {sizes.batch, spec_.blocks.heads, blocks.q, blocks.k};
  Int64 stride = 1;
  for (std::size_t i = std::size(size), at = param_rules_.size(); i-- > 0; stride *= size[i]) {
    params.extra[at].stride[i] = stride;
    params.extra_size[at][i] = size[i];
  }
}

Result<void> ArgumentChecker::check_full_blocks(const Given& given) {
  const bool has_count = given.operands[operand("full_count")]->given(),
             has_index = given.operands[operand("full_index")]->given();
  if (has_count == has_index) return {};
  return invalid(fmt::format("{}: missing, and {} is given; give both, or none where no block is full",
                             has_count ? "full_index" : "full_count", has_count ? "full_count" : "full_index"));
}

void ArgumentChecker::fill_lists(const Dimensions& tensor, BlockLists& lists) {
  const bool is_index = tensor.rank == std::ssize(lists.index_stride);
  std::copy_n(tensor.stride, tensor.rank, is_index ? lists.index_stride : lists.count_stride);
  if (is_index) lists.most = static_cast<int>(std::min<std::int64_t>(tensor.size[tensor.rank - 1], INT_MAX));
}

// Gradients are as large as their parameters.
Result<void> ArgumentChecker::fill_gradients(const Given& given, KernelParams& params, Overlaps& overlaps) const {
  for (std::size_t i = 0; i < gradient_rules_.size(); ++i) {
    const TensorRule& rule = gradient_rules_[i];
    const ParamView* found = given.gradients[i];
    if (!found) return invalid(fmt::format("{}: missing; this spec needs it", rule.name));
    if (found->is_scalar) return invalid(fmt::format("scalars.{}: it is a tensor; give it in params", rule.name));
    FLASHJIT_ASSIGN(d, check_tensor(found->tensor, rule));
    const auto number = static_cast<std::size_t>(gradient_params_[i]);
    const Param& param = spec_.params[number];
    for (int j = 0; j < d.rank; ++j) {
      const std::int64_t wanted = param.rank == 0 ? 1 : given.params[number]->tensor.shape[j];
      const std::string of = param.rank == 0 ? "a scalar is one number" : "as large as " + param.name;
      if (d.size[j] != wanted) FLASHJIT_TRY(check_size(rule, d, j, wanted, of));
    }
    overlaps.add(found->tensor, rule, d);
    ParamGradient& gradient = params.d_extra[i];
    gradient.data = static_cast<float*>(found->tensor.data);
    for (int j = 0; j < kMaxParamRank; ++j) {
      const int dimension = j + d.rank - kMaxParamRank;
      gradient.size[j] = dimension < 0 ? 1 : d.size[dimension];
      gradient.stride[j] = dimension < 0 ? 0 : d.stride[dimension];
    }
  }
  return {};
}

Result<void> ArgumentChecker::fill_places(const Given& given, const CallSizes& sizes, KernelParams& params) const {
  params.q_places = params.k_places = kUsualPlaces;
  for (std::size_t i = 0; i < kPlaceNumbers.size(); ++i) {
    const ParamView* const found = given.places[i];
    if (!found) continue;
    const PlaceNumber& number = kPlaceNumbers[i];
    if (!found->is_scalar)
      return invalid(
          fmt::format("params.{}: it is a number, by which calls are checked; give it in scalars", number.name));
    FLASHJIT_ASSIGN(value, scalar_bits({.name = std::string(number.name), .dtype = Dtype::I32}, found->scalar));
    if (number.number == &Places::total && value < 0)
      return invalid(
          fmt::format("scalars.{}: {} is negative; give the length of the whole sequence", number.name, value));
    params.*number.of.*number.number = static_cast<int>(value);
  }
  FLASHJIT_TRY(complete_places("q", sizes.q_len, params.q_places));
  FLASHJIT_TRY(complete_places("k", sizes.k_len, params.k_places));
  if (!drops(spec_)) return {};
  FLASHJIT_TRY(check_drawn_places("q", params.q_places));
  return check_drawn_places("k", params.k_places);
}

Result<void> ArgumentChecker::check_indices(const Given& given, const CallSizes& sizes,
                                            const KernelParams& params) const {
  std::int64_t scalars[kMaxParams] = {};
  for (std::size_t i = 0; i < spec_.params.size(); ++i) {
    if (spec_.params[i].rank == 0) scalars[i] = params.extra[i].stride[0];
  }
  CallSizes whole = sizes;  // Positions are those of the whole sequence.
  if (spec_.places && sizes.q_len > 0) whole.q_len = params.q_places.total;
  if (spec_.places && sizes.k_len > 0) whole.k_len = params.k_places.total;
  return indices_.check(spec_, whole, given.params, scalars, !gpu_);
}

}  // namespace flashjit
