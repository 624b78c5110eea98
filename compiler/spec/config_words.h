// The words of KernelConfig's enums, as specs, schedules, dumps and generated files write them.
#pragma once

#include <array>
#include <string_view>

#include "templates/kernel_config.h"

namespace flashjit {

// The name of an enum's type, and the words of its values in their order.
template <std::size_t n>
struct WordTable {
  std::string_view type;
  std::array<std::string_view, n> values;
};

template <class Enum>
extern const WordTable<0> kWords;  // Every enum has a line below.
template <>
inline constexpr WordTable<4> kWords<Element> = {"Element", {"f16", "bf16", "f32", "f8"}};
template <>
inline constexpr WordTable<4> kWords<Narrow> = {"Narrow", {"none", "e4m3", "e5m2", "int8"}};
template <>
inline constexpr WordTable<3> kWords<CacheFormat> = {"CacheFormat", {"elements", "latent656", "latent584"}};
template <>
inline constexpr WordTable<3> kWords<Lse> = {"Lse", {"none", "ln", "log2"}};
template <>
inline constexpr WordTable<2> kWords<Sequences> = {"Sequences", {"dense", "packed"}};
template <>
inline constexpr WordTable<3> kWords<Rope> = {"Rope", {"none", "half", "interleaved"}};
template <>
inline constexpr WordTable<3> kWords<Reference> = {"Reference", {"lazy", "tile", "first"}};
template <>
inline constexpr WordTable<2> kWords<Exclusive> = {"Exclusive", {"none", "issue"}};
template <>
inline constexpr WordTable<2> kWords<QueryStorage> = {"QueryStorage", {"shared", "registers"}};
template <>
inline constexpr WordTable<2> kWords<TileOrder> = {"TileOrder", {"natural", "longest_first"}};
template <>
inline constexpr WordTable<2> kWords<Overlap> = {"Overlap", {"none", "qk_pv"}};
template <>
inline constexpr WordTable<2> kWords<RowSum> = {"RowSum", {"adds", "matrix"}};
template <>
inline constexpr WordTable<2> kWords<GridKind> = {"GridKind", {"tiles", "persistent"}};
template <>
inline constexpr WordTable<2> kWords<Copies> = {"Copies", {"rows", "boxes"}};
template <>
inline constexpr WordTable<2> kWords<HeadTiles> = {"HeadTiles", {"single", "grouped"}};
template <>
inline constexpr WordTable<3> kWords<Transpose> = {"Transpose", {"none", "loop", "launch"}};
template <>
inline constexpr WordTable<2> kWords<Keys> = {"Keys", {"whole", "parts"}};
template <>
inline constexpr WordTable<2> kWords<TileSource> = {"TileSource", {"range", "list"}};
template <>
inline constexpr WordTable<3> kWords<DqSums> = {"DqSums", {"launch", "atomics", "ordered"}};

template <>
inline constexpr WordTable<6> kWords<GradientSum> = {"GradientSum",
                                                     {"own", "pairs", "queries", "keys", "heads", "runs"}};

template <class Enum>
struct Words {
  static constexpr std::string_view type = kWords<Enum>.type;
  static constexpr const auto& values = kWords<Enum>.values;
};

template <class Enum>
constexpr std::string_view word(Enum value) {
  return Words<Enum>::values[static_cast<std::size_t>(value)];
}

}  // namespace flashjit
