// The words of KernelConfig's enums: in specs and schedules, dumps and generated files.
#pragma once

#include <array>
#include <string_view>

#include "templates/kernel_config.h"

namespace flashjit {

// The values of an enum in their order, and the name of its type.
template <class Enum>
struct Words;

template <>
struct Words<Element> {
  static constexpr std::string_view type = "Element";
  static constexpr std::array<std::string_view, 3> values = {"f16", "bf16", "f32"};
};
template <>
struct Words<Lse> {
  static constexpr std::string_view type = "Lse";
  static constexpr std::array<std::string_view, 3> values = {"none", "ln", "log2"};
};
template <>
struct Words<Sequences> {
  static constexpr std::string_view type = "Sequences";
  static constexpr std::array<std::string_view, 2> values = {"dense", "packed"};
};
template <>
struct Words<Reference> {
  static constexpr std::string_view type = "Reference";
  static constexpr std::array<std::string_view, 3> values = {"lazy", "tile", "first"};
};
template <>
struct Words<Exclusive> {
  static constexpr std::string_view type = "Exclusive";
  static constexpr std::array<std::string_view, 2> values = {"none", "issue"};
};
template <>
struct Words<QueryPlace> {
  static constexpr std::string_view type = "QueryPlace";
  static constexpr std::array<std::string_view, 2> values = {"shared", "registers"};
};
template <>
struct Words<TileOrder> {
  static constexpr std::string_view type = "TileOrder";
  static constexpr std::array<std::string_view, 2> values = {"natural", "longest_first"};
};
template <>
struct Words<Overlap> {
  static constexpr std::string_view type = "Overlap";
  static constexpr std::array<std::string_view, 2> values = {"none", "qk_pv"};
};
template <>
struct Words<RowSum> {
  static constexpr std::string_view type = "RowSum";
  static constexpr std::array<std::string_view, 2> values = {"adds", "matrix"};
};
template <>
struct Words<GridKind> {
  static constexpr std::string_view type = "GridKind";
  static constexpr std::array<std::string_view, 2> values = {"tiles", "persistent"};
};
template <>
struct Words<HeadTiles> {
  static constexpr std::string_view type = "HeadTiles";
  static constexpr std::array<std::string_view, 2> values = {"single", "grouped"};
};

template <class Enum>
constexpr std::string_view word(Enum value) {
  return Words<Enum>::values[static_cast<std::size_t>(value)];
}

}  // namespace flashjit
