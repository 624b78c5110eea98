// Element types of tensors and run-time parameters, with the names that specs, code and other libraries use for them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace flashjit {

enum class Dtype : std::uint8_t { F16, BF16, F32, E4M3, E5M2, I32, I64, U32, U8, I8 };

struct DtypeRow {
  Dtype dtype;
  std::string_view name;       // Specs use this name.
  std::string_view code_name;  // Generated code and PTX use this name, and an Element has it as well.
  int bytes;
  bool is_float;
  std::uint8_t dlpack_code;  // It is a DLDataTypeCode, whose bits are those of `bytes`.
  // It is a CUtensorMapDataType. TMA copies without a look at the values, so only the width counts.
  std::uint8_t tensor_map_type;
};

// The rows are in the order of the enum.
inline constexpr DtypeRow kDtypes[] = {
    {Dtype::F16, "fp16", "f16", 2, true, 2, 6},    {Dtype::BF16, "bf16", "bf16", 2, true, 4, 9},
    {Dtype::F32, "fp32", "f32", 4, true, 2, 7},    {Dtype::E4M3, "e4m3", "e4m3", 1, true, 10, 0},
    {Dtype::E5M2, "e5m2", "e5m2", 1, true, 12, 0}, {Dtype::I32, "i32", "i32", 4, false, 0, 3},
    {Dtype::I64, "i64", "i64", 8, false, 0, 5},    {Dtype::U32, "u32", "u32", 4, false, 1, 2},
    {Dtype::U8, "u8", "u8", 1, false, 1, 0},       {Dtype::I8, "int8", "int8", 1, false, 0, 0},
};

constexpr const DtypeRow& row_of(Dtype dtype) { return kDtypes[static_cast<std::size_t>(dtype)]; }
constexpr std::string_view name(Dtype dtype) { return row_of(dtype).name; }
constexpr std::string_view code_name(Dtype dtype) { return row_of(dtype).code_name; }
constexpr int size_of(Dtype dtype) { return row_of(dtype).bytes; }
constexpr bool is_float(Dtype dtype) { return row_of(dtype).is_float; }
constexpr bool is_unsigned(Dtype dtype) { return row_of(dtype).dlpack_code == 1; }

constexpr std::optional<Dtype> parse_dtype(std::string_view text) {
  for (const DtypeRow& row : kDtypes) {
    if (row.name == text) return row.dtype;
  }
  return std::nullopt;
}

}  // namespace flashjit
