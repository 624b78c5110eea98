// Both APIs turn the arguments of a run into these views of the caller's tensors. Nothing is copied, and nothing is
// checked against a spec.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "compiler/result.h"
#include "compiler/spec/operands.h"

namespace flashjit {

struct Arguments;
struct Tensor;

// This is a tensor of the caller, whichever API it came through.
struct TensorView {
  enum class Device { Unknown, Host, Gpu };
  void* data = nullptr;
  std::string_view dtype;
  int rank = 0;
  const std::int64_t* shape = nullptr;
  const std::int64_t* strides = nullptr;  // null if contiguous
  Device device = Device::Unknown;
  int ordinal = 0;  // number of the GPU
  bool given() const { return data != nullptr || rank > 0; }
};

// A parameter of the spec, the gradient of one, or an operand, that the caller gives by name.
struct ParamView {
  std::string_view name;
  bool is_scalar = false;
  TensorView tensor;
  double scalar = 0;
};

struct CallArguments {
  std::array<TensorView, kOperands.size()> operands;  // operands that were given by a field
  std::int64_t max_q_len = 0, max_k_len = 0;
  std::int64_t first_position = 0;  // position of the first token of x, for rope in calls that do a part of another
  std::int64_t sms = 0;             // number of SMs that persistent loops may run on; 0 is all
  void* workspace = nullptr;
  std::int64_t workspace_bytes = 0;
  // A call can have at most this many. More are counted but not kept: some of them are wrong in any case.
  static constexpr int kMostParams = kMaxParams + kMaxGradients + static_cast<int>(kOperands.size());
  std::array<ParamView, kMostParams> params;
  int param_count = 0;

  void add(const ParamView& param) {
    if (param_count < kMostParams) params[static_cast<std::size_t>(param_count)] = param;
    ++param_count;
  }
};

Result<void> view(const Arguments& arguments, CallArguments& call);
Result<void> view(const Tensor& tensor, std::string_view name, TensorView& result);

// Returns the place where the C++ API takes the operand of this name: its field, or a new entry of `params`.
Tensor& operand_of(Arguments& arguments, std::string_view name);

}  // namespace flashjit
