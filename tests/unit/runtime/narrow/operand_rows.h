// The table of operands, written down once more: where each goes, in which layouts, and with what word of a spec.
#pragma once

#include <algorithm>
#include <iterator>
#include <string>
#include <vector>

#include "compiler/spec/operands.h"
#include "flashjit/flashjit.hpp"

namespace flashjit {

using Shape = std::vector<std::int64_t>;

// By layout: bshd, bhsd, packed, paged(16), packed/paged(16); of merges, of bwd and of quantize bshd, bhsd, packed.
inline constexpr int kDense = 0, kHeadsFirst = 1, kPacked = 2, kPaged = 3, kMixed = 4, kMerge = 5, kMergeHeadsFirst = 6,
                     kMergePacked = 7, kBackward = 8, kQuantize = 11, kLayouts = 14;

struct Expected {
  std::string name, dtype;
  Shape shapes[kLayouts];  // empty: not in such a layout
  std::string word;        // of the spec that asks for it; empty: the layout alone decides
  const void* (*pointer)(const KernelParams&);
  Tensor Arguments::* field;  // null: by name only
};

inline Expected of_merges(Expected shapes, Shape bshd, Shape bhsd, Shape packed) {
  shapes.shapes[kMerge] = std::move(bshd), shapes.shapes[kMergeHeadsFirst] = std::move(bhsd);
  shapes.shapes[kMergePacked] = std::move(packed);
  return shapes;
}

inline Expected of_quantize(Shape bshd, Shape bhsd, Shape packed) {
  Expected row;
  row.shapes[kQuantize] = std::move(bshd), row.shapes[kQuantize + kHeadsFirst] = std::move(bhsd);
  row.shapes[kQuantize + kPacked] = std::move(packed);
  return row;
}

// As forward has it, or instead of it.
inline Expected also_of_bwd(Expected shapes) {
  for (const int layout : {kDense, kHeadsFirst, kPacked}) shapes.shapes[kBackward + layout] = shapes.shapes[layout];
  return shapes;
}
inline Expected of_bwd(Expected shapes) {
  shapes = also_of_bwd(std::move(shapes));
  for (int layout = kDense; layout <= kMixed; ++layout) shapes.shapes[layout] = {};
  return shapes;
}

inline Expected also_of_quantize(Expected shapes, const Shape& shape) {
  for (const int layout : {kDense, kHeadsFirst, kPacked}) shapes.shapes[kQuantize + layout] = shape;
  return shapes;
}

inline Expected everywhere(const Shape& shape) { return {{}, {}, {shape, shape, shape, shape, shape}}; }
inline Expected number() { return also_of_bwd(everywhere({1})); }
inline Expected shapes(Shape bshd, Shape bhsd, Shape packed, Shape paged, Shape mixed) {
  return {{}, {}, {std::move(bshd), std::move(bhsd), std::move(packed), std::move(paged), std::move(mixed)}};
}
inline Expected add(Expected row, std::string name, std::string dtype, std::string word,
                    decltype(Expected::pointer) pointer, Tensor Arguments::* field = nullptr) {
  row.name = std::move(name), row.dtype = std::move(dtype), row.word = std::move(word);
  row.pointer = std::move(pointer), row.field = field;
  return row;
}

// Two sequences, 5 queries and 9 keys in each, or 10 and 12 together, or 6 pages of keys; 4 query and 2 KV heads,
// d=64/32. Elements of K and V have scales (those of Q: narrow/scales_test.cpp). Merges have 3 parts.
using P = const KernelParams&;
inline constexpr auto row = [](auto get) { return get; };
inline const auto kOfQueries = shapes({2, 5, 4, 64}, {2, 4, 5, 64}, {10, 4, 64}, {2, 5, 4, 64}, {10, 4, 64});
inline const auto kOfOutputs = shapes({2, 5, 4, 32}, {2, 4, 5, 32}, {10, 4, 32}, {2, 5, 4, 32}, {10, 4, 32});
inline const auto kOfRows = shapes({2, 4, 5}, {2, 4, 5}, {4, 10}, {2, 4, 5}, {4, 10});
inline Expected of_keys(std::int64_t d) {
  return shapes({2, 9, 2, d}, {2, 2, 9, d}, {12, 2, d}, {6, 16, 2, d}, {6, 16, 2, d});
}

inline std::vector<Expected> of_forward() {
  using A = Arguments;
  const auto new_rows = [&](std::int64_t d) {
    return shapes({2, 5, 2, d}, {2, 2, 5, d}, {10, 2, d}, {2, 5, 2, d}, {10, 2, d});
  };
  return {
      add(also_of_bwd(kOfQueries), "q", "bf16", "", row([](P p) { return p.q; }), &A::q),
      add(also_of_bwd(of_keys(64)), "k", "e4m3", "", row([](P p) { return p.k; }), &A::k),
      add(also_of_bwd(of_keys(32)), "v", "e4m3", "", row([](P p) { return p.v; }), &A::v),
      add(of_merges(also_of_bwd(kOfOutputs), {2, 5, 4, 32}, {2, 4, 5, 32}, {10, 4, 32}), "o", "fp32", "",
          row([](P p) -> const void* { return p.o; }), &A::o),
      add(also_of_bwd(shapes({}, {}, {3}, {}, {3})), "offsets_q", "i32", "",
          row([](P p) -> const void* { return p.offsets_q; }), &A::offsets_q),
      add(also_of_bwd(shapes({}, {}, {3}, {}, {})), "offsets_k", "i32", "",
          row([](P p) -> const void* { return p.offsets_k; }), &A::offsets_k),
      add(of_merges(also_of_bwd(kOfRows), {2, 4, 5}, {2, 4, 5}, {4, 10}), "lse", "fp32", "lse=ln",
          row([](P p) -> const void* { return p.lse; }), &A::lse),
      add(of_merges(kOfRows, {2, 4, 5}, {2, 4, 5}, {4, 10}), "max_logit", "fp32", "max_logit",
          row([](P p) -> const void* { return p.max_logit; }), &A::max_logit),
      add(also_of_bwd(everywhere({4})), "sink", "fp32", "sink", row([](P p) -> const void* { return p.sink; }),
          &A::sink),
      add(of_merges(everywhere({2}), {2}, {2}, {}), "k_lens", "i32", "k_lens",
          row([](P p) -> const void* { return p.k_lens; })),
      add(shapes({}, {}, {}, {2, 4}, {2, 4}), "block_table", "i32", "",
          row([](P p) -> const void* { return p.block_table; })),
      add({}, "scale_q", "fp32", "", row([](P p) -> const void* { return p.scale_q; })),
      add(everywhere({2, 2}), "scale_k", "fp32", "", row([](P p) -> const void* { return p.scale_k; })),
      add(everywhere({2, 2}), "scale_v", "fp32", "", row([](P p) -> const void* { return p.scale_v; })),
      add(of_merges({}, {3, 2, 5, 4, 32}, {3, 2, 4, 5, 32}, {3, 10, 4, 32}), "o_parts", "bf16", "",
          row([](P p) { return p.o_parts; })),
      add(of_merges({}, {3, 2, 4, 5}, {3, 2, 4, 5}, {3, 4, 10}), "lse_parts", "fp32", "",
          row([](P p) -> const void* { return p.lse_parts; })),
      add(of_merges({}, {3, 2, 4, 5}, {3, 2, 4, 5}, {3, 4, 10}), "max_parts", "fp32", "max_logit",
          row([](P p) -> const void* { return p.max_parts; })),
      add(of_quantize({2, 5, 4, 64}, {2, 4, 5, 64}, {10, 4, 64}), "x", "bf16", "", row([](P p) { return p.x; })),
      add(of_quantize({2, 5, 4, 64}, {2, 4, 5, 64}, {10, 4, 64}), "y", "e4m3", "",
          row([](P p) -> const void* { return p.y; })),
      add(of_quantize({2, 4}, {2, 4}, {4}), "scale", "fp32", "", row([](P p) -> const void* { return p.scale_y; })),
      add({}, "weights", "fp32", "", row([](P p) -> const void* { return p.weights; })),
      add({}, "scores", "fp32", "", row([](P p) -> const void* { return p.scores; })),
      add(of_merges({}, {1}, {1}, {}), "shared_prefix", "i32", "shared_prefix",
          row([](P p) -> const void* { return p.shared_prefix; })),
      add(new_rows(64), "k_new", "bf16", "append", row([](P p) { return p.k_new; })),
      add(new_rows(32), "v_new", "bf16", "append", row([](P p) { return p.v_new; })),
  };
}

inline std::vector<Expected> of_backward() {
  return {
      add(of_bwd(kOfOutputs), "do", "bf16", "", row([](P p) { return p.d_o; })),
      add(of_bwd(kOfRows), "dlse", "fp32", "dlse", row([](P p) -> const void* { return p.d_lse; })),
      add(of_bwd(kOfQueries), "dq", "fp32", "", row([](P p) -> const void* { return p.dq; })),
      add(of_bwd(of_keys(64)), "dk", "fp16", "", row([](P p) -> const void* { return p.dk; })),
      add(of_bwd(of_keys(32)), "dv", "bf16", "", row([](P p) -> const void* { return p.dv; })),
      add(of_bwd(everywhere({4})), "dsink", "fp32", "grads=\"sink\"", row([](P p) -> const void* { return p.d_sink; })),
  };
}

inline Expected of_blocks(const Shape& shape, std::string name, decltype(Expected::pointer) pointer) {
  return add(also_of_bwd(everywhere(shape)), std::move(name), "i32", "blocks=128", std::move(pointer));
}

// In the order of the table, as fields of arguments are.
inline const std::vector<Expected>& expected() {
  static const std::vector<Expected> rows = [] {
    std::vector<Expected> all = of_forward(), last = of_backward();
    std::ranges::move(last, std::back_inserter(all));
    last = {add(also_of_quantize(everywhere({100, 16}), {100, 16}), "cos", "fp32", "rope=half(32)",
                row([](P p) -> const void* { return p.cos; })),
            add(also_of_quantize(everywhere({100, 16}), {100, 16}), "sin", "fp32", "rope=half(32)",
                row([](P p) -> const void* { return p.sin; })),
            add(of_quantize({2, 5}, {2, 5}, {10}), "positions", "i32", "rope=half(32)",
                row([](P p) -> const void* { return p.positions; })),
            of_blocks({2, 4, 1}, "block_count", row([](P p) -> const void* { return p.listed_blocks.count; })),
            of_blocks({2, 4, 1, 3}, "block_index", row([](P p) -> const void* { return p.listed_blocks.index; })),
            of_blocks({2, 4, 1}, "full_count", row([](P p) -> const void* { return p.full_blocks.count; })),
            of_blocks({2, 4, 1, 2}, "full_index", row([](P p) -> const void* { return p.full_blocks.index; })),
            add({}, "key_index", "i32", "select=keys(N)", row([](P p) -> const void* { return p.key_index; })),
            add({}, "page_index", "i32", "select=pages(N)", row([](P p) -> const void* { return p.key_index; })),
            add({}, "key_count", "i32", "select=keys(N) or select=pages(N)",
                row([](P p) -> const void* { return p.key_count; })),
            add({}, "q_positions", "i32", "a mask beside select= in pages",
                row([](P p) -> const void* { return p.q_positions; })),
            add({}, "k_positions", "i32", "a mask beside select= in pages",
                row([](P p) -> const void* { return p.k_positions; })),
            add(number(), "seed", "i64", "dropout=0.1", row([](P p) -> const void* { return p.seed_at; })),
            add(number(), "offset", "i64", "dropout=0.1", row([](P p) -> const void* { return p.offset_at; }))};
    std::ranges::move(last, std::back_inserter(all));
    return all;
  }();
  return rows;
}

}  // namespace flashjit
