// Words of NumPy, PyTorch and other kernels that people write where a spec has one of its own. None is taken for it:
// messages say what was meant.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "compiler/result.h"
#include "compiler/spec/dtype.h"

namespace flashjit {

// Error: the text is none of `names`; those of `shown`, which may be fewer, are what the message offers.
Result<Dtype> read_dtype(std::string_view field, std::string_view text, std::span<const std::string_view> names,
                         std::span<const std::string_view> shown);

// "`float32` is none of fp16, fp32, did you mean `fp32`?"
std::string no_dtype(std::string_view text, std::span<const std::string_view> names);

// "there is no field `batch`, did you mean `b`? The fields are ..."
std::string no_field(std::string_view text, std::span<const std::string_view> names);

}  // namespace flashjit
