#include "runtime/launch/tensor_maps.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>

#include "compiler/analysis/score_inputs.h"
#include "compiler/families/family.h"
#include "templates/hopper/layout.h"

namespace flashjit {
namespace {

constexpr std::uint64_t kAlignment = 16;    // of addresses and strides
constexpr std::uint32_t kRowsPerWarp = 16;  // a warp stores its rows of O
constexpr std::uint64_t kStrideLimit = std::uint64_t{1} << 40;

// How a packed sequence ends: see templates/hopper/rows.cuh. Steps in the last two dimensions only move the address.
constexpr std::uint64_t kSequenceEnd = std::uint64_t{1} << 30;
constexpr std::uint64_t kEndStride = std::uint64_t{1} << 35;  // times kSequenceEnd it is 0 modulo 2^64

// CUtensorMap* enumerations of the driver.
constexpr int kFloat16 = 6, kFloat32 = 7, kBfloat16 = 9;
constexpr int kNoInterleave = 0, kNoFill = 0, kSwizzle128Bytes = 3, kPromote256Bytes = 3;

struct Dimension {
  const char* name;
  std::uint64_t size, stride;  // stride in bytes
  std::uint32_t box;
};

// One of Q, K, V and O, as the kernel reads or writes it.
struct Source {
  std::string_view name;
  const void* data;
  Strides stride;
  std::uint64_t tokens, heads;
  std::uint32_t rows;  // one copy takes
  int columns;         // what pads them to whole panels is out of bounds, and read as zeros
  int element_bytes;

  std::uint64_t bytes(Int64 elements) const {
    return static_cast<std::uint64_t>(elements) * static_cast<std::uint64_t>(element_bytes);
  }
};

Result<void> check(const Source& source, const Dimension& dimension) {
  if (dimension.stride % kAlignment != 0) {
    return invalid(fmt::format(
        "{}.strides: {} bytes per {}, TMA steps in multiples of {}; pass a contiguous copy, or add bytes=8 to "
        "the spec",
        source.name, dimension.stride, dimension.name, kAlignment));
  }
  if (dimension.stride < kStrideLimit) return {};
  return invalid(
      fmt::format("{}.strides: {} bytes per {}, TMA steps less than {} (2^40); pass a contiguous copy, or pin "
                  "family={} in the schedule",
                  source.name, dimension.stride, dimension.name, kStrideLimit, floor_family(true)->name));
}

Result<TensorMapLayout> layout(const Source& source, std::initializer_list<Dimension> outer) {
  TensorMapLayout map;
  map.address = source.data;
  map.rank = 1;
  map.element_bytes = source.element_bytes;
  map.size[0] = static_cast<std::uint64_t>(source.columns);
  map.box[0] = static_cast<std::uint32_t>(kPanelWidth / source.element_bytes);
  if (const auto address = reinterpret_cast<std::uintptr_t>(source.data); address % kAlignment != 0) {
    return invalid(fmt::format(
        "{}.data: address {:#x}, TMA reads from multiples of {} bytes; align the tensor, or add bytes=8 to the "
        "spec",
        source.name, address, kAlignment));
  }
  for (Dimension dimension : outer) {
    if (dimension.size == 1) dimension.stride = kAlignment;  // never taken: any legal one will do
    FLASHJIT_TRY(check(source, dimension));
    map.size[map.rank] = dimension.size;
    map.box[map.rank] = dimension.box;
    map.stride[map.rank - 1] = dimension.stride;
    ++map.rank;
  }
  return map;
}

Result<TensorMapLayout> packed_layout(const Source& source) {
  const std::uint64_t token = source.bytes(source.stride.token);
  if (token >= kEndStride) {
    return invalid(fmt::format(
        "{}.strides: {} bytes per token, packed tensors step less than {} (2^35); pass a contiguous copy, or "
        "pin family={} in the schedule",
        source.name, token, kEndStride, floor_family(true)->name));
  }
  return layout(source, {{"token", kSequenceEnd, token, source.rows},
                         {"head", source.heads, source.bytes(source.stride.head), 1},
                         {"token", kMostPackedTokens, token, 1},
                         {"token", kMostPackedTokens, kEndStride - token, 1}});
}

Result<TensorMapLayout> dense_layout(const Source& source, std::uint64_t batch) {
  return layout(source, {{"token", source.tokens, source.bytes(source.stride.token), source.rows},
                         {"head", source.heads, source.bytes(source.stride.head), 1},
                         {"sequence", batch, source.bytes(source.stride.batch), 1}});
}

// Rows of a tile are (query, head of the group) pairs, the heads of a query beside each other.
Result<TensorMapLayout> grouped_layout(const Source& source, std::uint64_t batch, std::uint32_t group) {
  const std::uint64_t head = source.bytes(source.stride.head);
  return layout(source, {{"head", group, head, group},
                         {"token", source.tokens, source.bytes(source.stride.token), source.rows / group},
                         {"KV head", source.heads / group, group * head, 1},
                         {"sequence", batch, source.bytes(source.stride.batch), 1}});
}

Result<TensorMapLayout> layout_of(const KernelConfig& config, const KernelParams& params, Source source) {
  auto batch = static_cast<std::uint64_t>(params.batch);
  if (source.tokens ==
      0) {  // pointer and strides may be anything then, and nothing is read: one row at Q's address will do
    source.data = params.q;
    source.stride = {};
    source.tokens = source.heads = batch = 1;
  }
  return config.sequences == Sequences::packed ? packed_layout(source) : dense_layout(source, batch);
}

bool is_smaller(const TensorMapLayout& layout, std::uint64_t limit) {
  std::uint64_t last = layout.size[0] * static_cast<std::uint64_t>(layout.element_bytes);
  for (int i = 1; i < layout.rank && last < limit; ++i) {
    const std::uint64_t steps = layout.size[i] - 1, stride = layout.stride[i - 1];
    if (stride != 0 && steps >= limit / stride) return false;
    last += steps * stride;
  }
  return last < limit;
}

}  // namespace

Result<TensorMapLayouts> tensor_map_layouts(const KernelConfig& c, const KernelParams& params) {
  const auto count = [](int value) { return static_cast<std::uint64_t>(value); };
  const auto kv_rows = static_cast<std::uint32_t>(c.tile_kv);
  const int size = size_of(c.element);
  const std::uint64_t q_len = count(params.q_len), k_len = count(params.k_len);
  const std::uint64_t heads = count(c.heads_q), kv_heads = count(c.heads_kv);
  const Source q = {"q",           params.q, params.q_stride, q_len, heads, static_cast<std::uint32_t>(c.tile_q),
                    c.head_dim_qk, size};
  const Source k = {"k", params.k, params.k_stride, k_len, kv_heads, kv_rows, c.head_dim_qk, size};
  const Source v = {"v", params.v, params.v_stride, k_len, kv_heads, kv_rows, c.head_dim_v, size};
  if (c.head_tiles == HeadTiles::grouped && c.sequences == Sequences::packed)
    return internal("tensor_maps: heads of a group share a tile in dense layouts only");
  const auto of_queries = [&](const Source& source) {
    return c.head_tiles == HeadTiles::grouped
               ? grouped_layout(source, count(params.batch), static_cast<std::uint32_t>(group_size(c)))
               : layout_of(c, params, source);
  };
  FLASHJIT_ASSIGN(q_map, of_queries(q));
  FLASHJIT_ASSIGN(k_map, layout_of(c, params, k));
  FLASHJIT_ASSIGN(v_map, layout_of(c, params, v));
  if (!stages_output(c)) return TensorMapLayouts{q_map, k_map, v_map, {}};
  const Source o = {"o", params.o, params.o_stride, q_len, heads, kRowsPerWarp, c.head_dim_v, size_of(c.output)};
  FLASHJIT_ASSIGN(o_map, of_queries(o));
  return TensorMapLayouts{q_map, k_map, v_map, o_map};
}

Result<void> encode(const Driver& driver, Element element, const TensorMapLayout& layout, TensorMap& map) {
  constexpr std::uint32_t kEveryElement[5] = {1, 1, 1, 1, 1};
  FLASHJIT_TRY(driver.check(
      driver.api.tensor_map_encode(&map,
                                   layout.element_bytes == 4 ? kFloat32
                                   : element == Element::f16 ? kFloat16
                                                             : kBfloat16,
                                   static_cast<std::uint32_t>(layout.rank), const_cast<void*>(layout.address),
                                   layout.size, layout.stride, layout.box, kEveryElement, kNoInterleave,
                                   kSwizzle128Bytes, kPromote256Bytes, kNoFill),
      "cuTensorMapEncodeTiled"));
  // Drivers up to 13.1 set a bit for how addresses out of bounds are made also in maps of small tensors, where it must
  // not be set. GPUs before Blackwell do not look at it.
  constexpr int kLastWrongDriver = 13010;
  constexpr std::uint64_t kSmall = 128 * 1024;
  if (driver.version() <= kLastWrongDriver && is_smaller(layout, kSmall)) map.words[1] &= ~(1ull << 21);
  return {};
}

std::vector<InputPlace> input_places(const Plan& plan) {
  std::vector<InputPlace> places;
  if (inputs_bytes(plan.config) == 0) return places;
  const std::vector<Param>& params = plan.spec.params;
  for (const Expr& input : score_inputs(plan.spec.score)) {
    const auto param = std::find(params.begin(), params.end(), input->param);
    places.push_back({param->name, static_cast<int>(param - params.begin()), query_index(input)});
  }
  return places;
}

TensorMapLayout input_layout(const KernelConfig& config, const InputPlace& place, const TensorView& tensor,
                             const ExtraParam& param) {
  const int key = tensor.rank - 1, element = input_bytes_per_key(config, place.param);
  TensorMapLayout map;
  map.address = param.data;
  map.element_bytes = element;
  map.rank = 4;
  bool addressable = reinterpret_cast<std::uintptr_t>(param.data) % kAlignment == 0 && param.stride[key] == 1;
  int rank = 0;
  const auto add = [&](int dimension, std::uint32_t box) {
    const std::int64_t size = dimension < 0 ? 1 : tensor.shape[dimension];
    if (rank > 0) {
      // One without neighbours is never stepped in: any legal step will do.
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
  add(place.query, static_cast<std::uint32_t>(input_rows(config, place.param)));
  for (int dimension = 0; dimension < key; ++dimension) {
    if (dimension != place.query) add(dimension, 1);
  }
  while (rank < map.rank) add(-1, 1);
  if (!addressable) map.rank = 0;
  return map;
}

Result<void> encode_inputs(const Driver& driver, const KernelConfig& config, const std::vector<InputPlace>& places,
                           const CallArguments& call, const KernelParams& params, TensorMaps& maps) {
  maps.has_inputs = 0;
  if (places.empty() || params.k_len == 0) return {};
  for (const InputPlace& place : places) {
    const auto param = std::find_if(call.params.begin(), call.params.begin() + call.param_count,
                                    [&](const ParamView& given) { return given.name == place.name; });
    const TensorMapLayout layout = input_layout(config, place, param->tensor, params.extra[place.param]);
    if (layout.rank == 0) return {};
    FLASHJIT_TRY(encode(driver, Element::bf16, layout, maps.inputs[input_number(config, place.param)]));
  }
  maps.has_inputs = 1;
  return {};
}

Result<void> encode(const Driver& driver, Element element, const TensorMapLayouts& layouts, TensorMaps& maps) {
  FLASHJIT_TRY(encode(driver, element, layouts.q, maps.q));
  FLASHJIT_TRY(encode(driver, element, layouts.k, maps.k));
  FLASHJIT_TRY(encode(driver, element, layouts.v, maps.v));
  return layouts.o.rank == 0 ? Result<void>() : encode(driver, element, layouts.o, maps.o);
}

}  // namespace flashjit
