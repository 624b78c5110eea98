#include "runtime/launch/tensor_maps.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <numeric>

#include "compiler/families/family.h"
#include "templates/tile_layouts.h"

namespace flashjit {
namespace {

constexpr std::uint64_t kAlignment = 16;  // alignment of addresses and strides
constexpr std::uint64_t kStrideLimit = std::uint64_t{1} << 40;

// A packed sequence ends in this way; templates/hopper/rows.cuh explains it. Steps in the last two dimensions only move
// the address.
constexpr std::uint64_t kSequenceEnd = std::uint64_t{1} << 30;
constexpr std::uint64_t kEndStride = std::uint64_t{1} << 35;  // Times kSequenceEnd it is 0 modulo 2^64.

// These are values of CUtensorMap* enumerations of the driver. L2 reads what a row of a box has, and no more: what lies
// beside it would be read twice [M62].
constexpr int kNoInterleave = 0, kNoFill = 0, kSwizzle128Bytes = 3, kPromote128Bytes = 2;

struct Dimension {
  const char* name;
  std::uint64_t size, stride;  // `stride` is in bytes.
  std::uint32_t box;
};

// This is an operand of one call.
struct Source {
  const OperandMap& mapped;
  const void* data;
  Strides stride;
  // For pages, `tokens` is the number of tokens of one page and `batch` the number of pages. For packed groups of
  // heads, `batch` is the number of groups.
  std::uint64_t tokens, heads, batch;

  std::string_view name() const { return mapped.operand->name; }
  std::uint64_t bytes(Int64 elements) const {
    return static_cast<std::uint64_t>(elements) * static_cast<std::uint64_t>(size_of(mapped.dtype));
  }
};

Result<void> check(const Source& source, const Dimension& dimension) {
  if (dimension.stride % kAlignment != 0) {
    return invalid(fmt::format(
        "{}.strides: {} bytes per {}, TMA steps in multiples of {}; pass a contiguous copy, or add bytes=8 to "
        "the spec",
        source.name(), dimension.stride, dimension.name, kAlignment));
  }
  if (dimension.stride < kStrideLimit) return {};
  return invalid(
      fmt::format("{}.strides: {} bytes per {}, TMA steps less than {} (2^40); pass a contiguous copy, or pin "
                  "family={} in the schedule",
                  source.name(), dimension.stride, dimension.name, kStrideLimit, floor_family(true)->name));
}

Result<TensorMapLayout> layout(const Source& source, std::initializer_list<Dimension> outer) {
  TensorMapLayout map;
  map.address = source.data;
  map.rank = 1;
  map.dtype = source.mapped.dtype;
  map.size[0] = source.mapped.columns;
  map.box[0] = static_cast<std::uint32_t>(kPanelWidth / size_of(map.dtype));
  if (const auto address = reinterpret_cast<std::uintptr_t>(source.data); address % kAlignment != 0) {
    return invalid(fmt::format(
        "{}.data: address {:#x}, TMA reads from multiples of {} bytes; align the tensor, or add bytes=8 to the "
        "spec",
        source.name(), address, kAlignment));
  }
  for (Dimension dimension : outer) {
    if (dimension.size == 1) dimension.stride = kAlignment;  // The stride is never taken, so any legal one will do.
    FLASHJIT_TRY(check(source, dimension));
    map.size[map.rank] = dimension.size;
    map.box[map.rank] = dimension.box;
    map.stride[map.rank - 1] = dimension.stride;
    ++map.rank;
  }
  return map;
}

// Makes a layout whose last two dimensions end a sequence. The first row of a sequence lies any number of `step` bytes
// behind the first row of the tensor.
Result<TensorMapLayout> ending_layout(const Source& source, std::uint64_t step, const Dimension& first,
                                      const Dimension& second) {
  const std::uint64_t token = source.bytes(source.stride.token);
  if (token >= kEndStride) {
    return invalid(fmt::format(
        "{}.strides: {} bytes per token, packed tensors and caches step less than {} (2^35); pass a contiguous copy, or "
        "pin family={} in the schedule",
        source.name(), token, kEndStride, floor_family(true)->name));
  }
  return layout(source, {first, second, {"step", kMostSteps, step, 1}, {"token", kMostSteps, kEndStride - token, 1}});
}

Result<TensorMapLayout> packed_layout(const Source& source) {
  const std::uint64_t token = source.bytes(source.stride.token);
  return ending_layout(source, token, {"token", kSequenceEnd, token, source.mapped.rows},
                       {"head", source.heads, source.bytes(source.stride.head), 1});
}

// Returns the largest step that divides both the stride of tokens and the stride of pages (or of whatever `batch`
// counts).
std::uint64_t common_step(const Source& source) {
  const std::uint64_t step = std::gcd(source.bytes(source.stride.token), source.bytes(source.stride.batch));
  return step == 0 ? kAlignment : step;
}

Result<void> check_reach(const Source& source, const char* outer) {
  const std::uint64_t step = common_step(source);
  FLASHJIT_TRY(check(source, {outer, source.batch, source.bytes(source.stride.batch), 1}));
  const std::uint64_t reach =
      (source.batch - 1) * source.bytes(source.stride.batch) + source.tokens * source.bytes(source.stride.token);
  if (reach / step < static_cast<std::uint64_t>(kMostSteps)) return {};
  return invalid(fmt::format(
      "{}.strides: {} bytes in steps of {}, what {} and token have in common, are more than {} steps; pass a contiguous "
      "copy, or pin family={} in the schedule",
      source.name(), reach, step, outer, kMostSteps, floor_family(true)->name));
}

// Sequences may fill only a part of a page, or of a batch index.
Result<TensorMapLayout> pages_layout(const Source& source, const char* page) {
  FLASHJIT_TRY(check_reach(source, page));
  const std::uint64_t token = source.bytes(source.stride.token);
  return ending_layout(source, common_step(source), {"token", kSequenceEnd, token, source.mapped.rows},
                       {"head", source.heads, source.bytes(source.stride.head), 1});
}

Result<TensorMapLayout> dense_layout(const Source& source) {
  return layout(source, {{"token", source.tokens, source.bytes(source.stride.token), source.mapped.rows},
                         {"head", source.heads, source.bytes(source.stride.head), 1},
                         {"sequence", source.batch, source.bytes(source.stride.batch), 1}});
}

// Rows of a tile are pairs of a query and a head of the group, and the heads of a query lie beside each other. One copy
// takes all heads of some queries, or some heads of one query.
Dimension heads_of_group(const Source& source) {
  const std::uint32_t group = source.mapped.group;
  return {"head", group, source.bytes(source.stride.head), std::min(group, source.mapped.rows)};
}
Dimension queries_of_group(const Source& source, std::uint64_t count) {
  return {"token", count, source.bytes(source.stride.token), std::max(1u, source.mapped.rows / source.mapped.group)};
}

Result<TensorMapLayout> grouped_layout(const Source& source) {
  const std::uint32_t group = source.mapped.group;
  return layout(source, {heads_of_group(source),
                         queries_of_group(source, source.tokens),
                         {"KV head", source.heads / group, group * source.bytes(source.stride.head), 1},
                         {"sequence", source.batch, source.bytes(source.stride.batch), 1}});
}

Result<TensorMapLayout> packed_grouped_layout(const Source& source) {
  FLASHJIT_TRY(check_reach(source, "KV head"));
  return ending_layout(source, common_step(source), heads_of_group(source), queries_of_group(source, kSequenceEnd));
}

bool is_smaller(const TensorMapLayout& layout, std::uint64_t limit) {
  std::uint64_t last = layout.size[0] * static_cast<std::uint64_t>(size_of(layout.dtype));
  for (int i = 1; i < layout.rank && last < limit; ++i) {
    const std::uint64_t steps = layout.size[i] - 1, stride = layout.stride[i - 1];
    if (stride != 0 && steps >= limit / stride) return false;
    last += steps * stride;
  }
  return last < limit;
}

Source source_of(const OperandMap& mapped, const KernelParams& params, const CallSizes& sizes) {
  const bool of_queries = mapped.is_of_queries(), paged = mapped.page_size > 0;
  Source source{mapped, nullptr, params.*mapped.operand->strides, 0, mapped.heads, 0};
  source.tokens = static_cast<std::uint64_t>(of_queries ? params.q_len : paged ? mapped.page_size : params.k_len);
  source.batch = static_cast<std::uint64_t>(paged ? params.pages : params.batch);
  if (of_queries && params.queries_of_sequence > 0) {  // With lists of keys each query is a sequence for kernels.
    source.tokens = static_cast<std::uint64_t>(params.queries_of_sequence);
    source.batch /= source.tokens;
  }
  std::memcpy(&source.data, reinterpret_cast<const char*>(&params) + mapped.operand->pointer, sizeof source.data);
  if (mapped.form == RowsForm::PackedGroups) {
    source.tokens = static_cast<std::uint64_t>(sizes.q_tokens);
    source.batch = mapped.heads / mapped.group;
    source.stride.batch = source.stride.head * mapped.group;
  }
  if (!of_queries && (params.k_len == 0 || source.batch == 0)) {
    // Pointer and strides may be anything then. Nothing is read, so one row at Q's address will do.
    source.data = params.q;
    source.stride = {};
    source.tokens = source.heads = source.batch = 1;
  }
  if (of_queries && params.q_len == 0) {  // Q has no rows. Nothing is read, so one row at K's address will do.
    source.data = params.k;
    source.stride = {};
    source.tokens = source.heads = source.batch = 1;
  }
  if (has_steps(mapped.form)) {  // Strides that are never taken need no step in common with others.
    if (source.tokens == 1) source.stride.token = 0;
    if (source.batch == 1) source.stride.batch = 0;
  }
  return source;
}

}  // namespace

Result<TensorMapLayout> operand_layout(const OperandMap& mapped, const KernelParams& params, const CallSizes& sizes) {
  const Source source = source_of(mapped, params, sizes);
  switch (mapped.form) {
    case RowsForm::Dense: return dense_layout(source);
    case RowsForm::Packed: return packed_layout(source);
    case RowsForm::Ended: return pages_layout(source, mapped.page_size > 0 ? "page" : "sequence");
    case RowsForm::Groups: return grouped_layout(source);
    case RowsForm::PackedGroups: return packed_grouped_layout(source);
  }
  return internal("a tensor map has no form");
}

EndSteps end_steps(const OperandMap& mapped, const KernelParams& params, const CallSizes& sizes) {
  const Source source = source_of(mapped, params, sizes);
  const std::uint64_t step = common_step(source);
  return {static_cast<int>(source.bytes(source.stride.batch) / step),
          static_cast<int>(source.bytes(source.stride.token) / step)};
}

Result<void> encode(const Driver& driver, const TensorMapLayout& layout, TensorMap& map) {
  constexpr std::uint32_t kEveryElement[5] = {1, 1, 1, 1, 1};
  FLASHJIT_TRY(driver.check(
      driver.api.tensor_map_encode(&map, row_of(layout.dtype).tensor_map_type, static_cast<std::uint32_t>(layout.rank),
                                   const_cast<void*>(layout.address), layout.size, layout.stride, layout.box,
                                   kEveryElement, kNoInterleave, kSwizzle128Bytes, kPromote128Bytes, kNoFill),
      "cuTensorMapEncodeTiled"));
  // Drivers up to 13.1 set a bit for how addresses out of bounds are made. They also set it in maps of small tensors,
  // where it must not be set. GPUs before Blackwell do not look at it.
  constexpr int kLastWrongDriver = 13010;
  constexpr std::uint64_t kSmall = 128 * 1024;
  if (driver.version() <= kLastWrongDriver && is_smaller(layout, kSmall)) map.words[1] &= ~(1ull << 21);
  return {};
}

TensorMapLayout input_layout(const InputMap& input, const TensorView& tensor, const ExtraParam& param) {
  const int key = tensor.rank - 1, element = size_of(input.dtype);
  TensorMapLayout map;
  map.address = param.data;
  map.dtype = input.dtype;
  map.rank = 4;
  bool addressable = reinterpret_cast<std::uintptr_t>(param.data) % kAlignment == 0 && param.stride[key] == 1;
  int rank = 0;
  const auto add = [&](int dimension, std::uint32_t box) {
    const std::int64_t size = dimension < 0 ? 1 : tensor.shape[dimension];
    if (rank > 0) {
      // A dimension of size 1 is never stepped in, so any legal step will do.
      const std::uint64_t stride =
          size == 1 ? kAlignment
                    : static_cast<std::uint64_t>(param.stride[dimension]) * static_cast<std::uint64_t>(element);
      addressable &= stride % kAlignment == 0 && stride < kStrideLimit;
      map.stride[rank - 1] = stride;
    }
    addressable &= size > 0 && size <= std::int64_t{1} << 31;
    map.size[rank] = static_cast<std::uint64_t>(size);
    map.box[rank++] = box;
  };
  add(key, static_cast<std::uint32_t>(kPanelWidth / element));
  add(input.query, input.rows);
  for (int dimension = 0; dimension < key; ++dimension) {
    if (dimension != input.query) add(dimension, 1);
  }
  while (rank < map.rank) add(-1, 1);
  if (!addressable) map.rank = 0;
  return map;
}

Result<void> encode_inputs(const Driver& driver, const std::vector<InputMap>& inputs, const CallArguments& call,
                           const KernelParams& params, TensorMaps& maps) {
  maps.has_inputs = 0;
  if (inputs.empty() || params.k_len == 0) return {};
  for (const InputMap& input : inputs) {
    const auto param = std::find_if(call.params.begin(), call.params.begin() + call.param_count,
                                    [&](const ParamView& given) { return given.name == input.name; });
    const TensorMapLayout layout = input_layout(input, param->tensor, params.extra[input.param]);
    if (layout.rank == 0) return {};
    FLASHJIT_TRY(encode(driver, layout, maps.inputs[input.number]));
  }
  maps.has_inputs = 1;
  return {};
}

Result<void> encode_operands(const Driver& driver, const std::vector<OperandMap>& operands, const KernelParams& params,
                             const CallSizes& sizes, TensorMaps& maps) {
  for (const OperandMap& mapped : operands) {
    FLASHJIT_ASSIGN(layout, operand_layout(mapped, params, sizes));
    FLASHJIT_TRY(encode(driver, layout, maps.*mapped.map));
    if (mapped.steps) maps.*mapped.steps = end_steps(mapped, params, sizes);
  }
  return {};
}

}  // namespace flashjit
