// Words of NumPy, PyTorch and other kernels that people write where a spec has one of its own. The parser accepts none
// of them, but messages name the spec's word.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "compiler/result.h"
#include "compiler/spec/dtype.h"

namespace flashjit {

// Returns the dtype. It is an error if the text is none of `names`; the message offers those of `shown`, which may be
// fewer.
Result<Dtype> read_dtype(std::string_view field, std::string_view text, std::span<const std::string_view> names,
                         std::span<const std::string_view> shown);

// "`float32` is none of fp16, fp32, did you mean `fp32`?"
std::string no_dtype(std::string_view text, std::span<const std::string_view> names);

// "there is no field `batch`, did you mean `b`? The fields are ..."
std::string no_field(std::string_view text, std::span<const std::string_view> names);

}  // namespace flashjit
