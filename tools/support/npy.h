// .npy is the array format of NumPy: version 1 and 2, little-endian, row-major. bfloat16, which NumPy does not know, is
// '<V2' (as ml_dtypes writes it) or '|V2', or '<u2' if the caller wants bf16.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "compiler/spec/dtype.h"
#include "compiler/result.h"

namespace flashjit {

enum class NpyType { F16, BF16, F32, F64, I32, I64, U32, U16, U8, I8 };
int size_of(NpyType type);
const char* name(NpyType type);

struct NpyArray {
  NpyType type = NpyType::F32;
  std::vector<std::int64_t> shape;
  std::vector<std::uint8_t> bytes;
  std::int64_t elements() const;
};

// Errors name the file and what is wrong with it: NotFound and Io for the file, Invalid for its contents.
Result<NpyArray> read_npy(const std::string& path);
Result<NpyArray> parse_npy(const std::string& label, const std::vector<std::uint8_t>& file);

// bf16 is written as '<V2'. The file is written beside its name and renamed, so that a full disk leaves no half file.
Result<void> write_npy(const std::string& path, const NpyArray& array);

// Returns the elements as `dtype`. Only the same type is taken, because a silent conversion would hide a mix-up. u2 is
// taken as bf16.
Result<std::vector<std::uint8_t>> take_as(const std::string& label, NpyArray array, Dtype dtype);
NpyType npy_type(Dtype dtype);

}  // namespace flashjit
