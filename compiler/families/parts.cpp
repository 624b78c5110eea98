#include "compiler/families/parts.h"

#include <fmt/format.h>

namespace flashjit {

WorkspaceBuffer parts_buffer(const KernelConfig& c, int ranges) {
  const std::int64_t bytes = std::int64_t{4} * part_floats(c);
  if (!c.decode.fixed_parts) return {"parts", "float", bytes * ranges * kPartsPerBlock, {}};
  const auto row_tiles = [c](std::int64_t queries) { return (queries * group_size(c) + c.tile_q - 1) / c.tile_q; };
  const auto parts = [c](std::int64_t keys) { return std::int64_t{most_parts(c, static_cast<int>(keys))}; };
  return {"parts",
          "float",
          bytes * c.heads_kv,
          {{&CallSizes::batch}, {&CallSizes::q_len, 1, false, row_tiles}, {&CallSizes::k_len, 1, false, parts}}};
}

GridRule combine_grid(const KernelConfig& c, int blocks_per_sm) {
  const int quads = c.heads_q * (c.head_dim_v / 4);
  const int items = c.decode.fixed_parts ? (quads + kCombineThreads - 1) / kCombineThreads : quads;
  return {.queries = 1, .heads = items, .blocks_per_sm = blocks_per_sm};
}

std::string describe_fixed_parts(const KernelConfig& c) {
  return fmt::format(
      "  the keys of a sequence are cut into {} parts of {} to {} keys, those of longer ones into more and longer parts",
      1 << kFewPartsShift, 1 << part_shift(c, 1), 1 << kLongPartShift);
}

}  // namespace flashjit
