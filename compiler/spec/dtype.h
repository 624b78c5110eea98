// Element types of tensors and run-time parameters.
#pragma once

#include <optional>
#include <string_view>

namespace flashjit {

enum class Dtype { F16, BF16, F32, E4M3, E5M2, I32, I64, U32, U8 };

// Names as a spec writes them: fp16 bf16 fp32 e4m3 e5m2 i32 i64 u32 u8.
std::string_view name(Dtype dtype);
std::optional<Dtype> parse_dtype(std::string_view text);

constexpr int size_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::E4M3:
    case Dtype::E5M2:
    case Dtype::U8: return 1;
    case Dtype::F16:
    case Dtype::BF16: return 2;
    case Dtype::F32:
    case Dtype::I32:
    case Dtype::U32: return 4;
    case Dtype::I64: return 8;
  }
  return 0;
}

constexpr bool is_float(Dtype dtype) { return dtype <= Dtype::E5M2; }

}  // namespace flashjit
