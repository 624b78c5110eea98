#include "compiler/spec/dtype.h"

namespace flashjit {
namespace {

struct Row {
  Dtype dtype;
  std::string_view name;
};
constexpr Row kRows[] = {
    {Dtype::F16, "fp16"}, {Dtype::BF16, "bf16"}, {Dtype::F32, "fp32"}, {Dtype::E4M3, "e4m3"}, {Dtype::E5M2, "e5m2"},
    {Dtype::I32, "i32"},  {Dtype::I64, "i64"},   {Dtype::U32, "u32"},  {Dtype::U8, "u8"},
};

}  // namespace

std::string_view name(Dtype dtype) {
  for (const Row& row : kRows) {
    if (row.dtype == dtype) return row.name;
  }
  return "unknown";
}

std::optional<Dtype> parse_dtype(std::string_view text) {
  for (const Row& row : kRows) {
    if (row.name == text) return row.dtype;
  }
  return std::nullopt;
}

}  // namespace flashjit
