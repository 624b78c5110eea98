// The arguments of one run are checked against the spec and against each other, and become the parameter block of the
// kernel. Nothing here allocates unless there is an error to report.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/plan.h"
#include "compiler/result.h"
#include "compiler/spec/fields/places.h"
#include "runtime/launch/call.h"
#include "runtime/launch/grid.h"
#include "runtime/launch/index_check.h"
#include "runtime/launch/overlap.h"
#include "runtime/launch/tensor_check.h"
#include "templates/kernel_params.h"

namespace flashjit {

// Returns the value as the kernel reads it: the bits of the declared type. A value that this type does not have is
// refused.
Result<Int64> scalar_bits(const Param& param, double value);

// Checks that the call brings at least this many bytes of workspace.
Result<void> check_workspace(const CallArguments& call, std::int64_t bytes);

// Checks calls of one kernel. It is immutable, so any number of threads may use it.
class ArgumentChecker {
 public:
  // `ordinal` is the GPU that the kernel runs on. Host kernels ignore it.
  explicit ArgumentChecker(const Plan& plan, int ordinal = 0);
  ArgumentChecker(const ArgumentChecker&) = delete;  // Rules point to names of the spec.

  // Fills `params` and `sizes`.
  Result<void> fill(const CallArguments& call, KernelParams& params, CallSizes& sizes) const;

  std::int64_t workspace_bytes(const CallSizes& sizes) const { return bytes_of(workspace_, sizes); }
  std::int64_t offset_of(int buffer, const CallSizes& sizes) const {
    return flashjit::offset_of(workspace_, buffer, sizes);
  }
  // Returns the workspace that a call needs. The call has to be right in all but its workspace.
  Result<std::int64_t> workspace_bytes(const CallArguments& call) const;
  // Finds where the buffers lie in the caller's workspace. It has to be called after fill().
  using Buffers = std::array<void*, kMaxBuffers>;
  Result<void> find_buffers(const CallArguments& call, const CallSizes& sizes, Buffers& buffers) const;

  // Checks what offsets and tables hold. That is for host kernels only, because there they can be read. `params` and
  // `sizes` come from fill() for the same call.
  Result<void> check_contents(const CallArguments& call, const KernelParams& params, const CallSizes& sizes) const;

 private:
  // This is a tensor that has all dimensions of its operand. Along some of them it repeats the caller's tensor.
  struct Repeated {
    TensorView tensor;
    std::int64_t shape[kMaxTensorRank], strides[kMaxTensorRank];
  };
  static constexpr auto kRepeating = static_cast<std::size_t>(std::ranges::count(kOperands, true, &Operand::repeats));
  // This structure points to all that the caller gave, whether by a field or by name.
  struct Given {
    const TensorView* operands[kOperands.size()];
    const ParamView* values[kOperands.size()] = {};  // operands that can be given as a number
    const ParamView* params[kMaxParams] = {};        // parallel to the parameters of the spec
    const ParamView* gradients[kMaxGradients] = {};  // gradients of parameters that the spec asks for
    const ParamView* places[kPlaceNumbers.size()] = {};
    Repeated repeated[kRepeating];
    std::size_t repeated_count = 0;
  };
  // One row describes an operand in calls of this spec.
  struct Row {
    bool wanted = false;
    OperandAxes axes;
    TensorRule rule;
  };
  using Extents = std::array<std::int64_t, kDims>;  // by Dim; negative if not known yet
  Result<void> find_named(const CallArguments& call, Given& given) const;
  const ParamView** slot_of(const ParamView& param, Given& given) const;
  Result<void> find_operand_of(const ParamView& param, Given& given) const;
  const TensorView& repeat(std::size_t operand, const Extents& extents, Given& given) const;
  Result<void> fill_operands(const CallArguments& call, Given& given, Extents& extents, KernelParams& params,
                             Overlaps& overlaps) const;
  Result<void> check_extents(const CallArguments& call, std::size_t operand, const Dimensions& d,
                             Extents& extents) const;
  std::int64_t blocks_of(const CallArguments& call, Dim tokens, std::int64_t extent, int rows) const;
  void take_lists_for_sequences(const Extents& extents, CallSizes& sizes, KernelParams& params) const;
  std::int64_t room_in_pages(std::int64_t pages, std::int64_t of_sequence) const;
  Result<void> find_sizes(const CallArguments& call, const Extents& extents, CallSizes& sizes) const;
  Result<void> check_scores(const Extents& extents, const CallSizes& sizes) const;
  Result<void> check_columns(std::int64_t room) const;
  Result<void> check_sizes(const CallSizes& sizes) const;
  Result<void> check_scales(const CallSizes& sizes, const KernelParams& params) const;
  static Result<void> check_full_blocks(const Given& given);
  static void fill_lists(const Dimensions& tensor, BlockLists& lists);
  void shape_block_states(const CallSizes& sizes, KernelParams& params) const;
  Result<void> check_append(const CallSizes& sizes) const;
  Result<void> check_positions(std::int64_t positions, const CallSizes& sizes, KernelParams& params) const;
  Result<void> check_positions_of_x(std::int64_t positions, const CallSizes& sizes, const KernelParams& params) const;
  Result<void> check_given_positions(const KernelParams& params, const CallSizes& sizes) const;
  Result<void> check_offsets(const CallArguments& call) const;
  Result<void> check_table(const KernelParams& params, const CallSizes& sizes) const;
  Result<void> check_line(const KernelParams& params, std::int64_t b, int head, std::int64_t keys) const;
  Result<void> check_packed_reach(const CallSizes& sizes) const;
  Result<void> fill_params(const Given& given, KernelParams& params, Overlaps& overlaps) const;
  Result<void> fill_gradients(const Given& given, KernelParams& params, Overlaps& overlaps) const;
  Result<void> fill_places(const Given& given, const CallSizes& sizes, KernelParams& params) const;
  Result<void> check_indices(const Given& given, const CallSizes& sizes, const KernelParams& params) const;
  Result<void> fill_grid(const CallSizes& sizes, KernelParams& params) const;

  TensorView::Device device() const { return gpu_ ? TensorView::Device::Gpu : TensorView::Device::Host; }

  AttentionSpec spec_;
  std::array<Row, kOperands.size()> rows_;
  Extents extents_;  // extents that the spec fixes
  std::vector<GridRule> grids_;
  std::vector<WorkspaceBuffer> workspace_;
  HeadGroups groups_;
  bool gpu_, tensor_maps_;
  int ordinal_;
  int merged_entries_;                   // number of entries of a list that a launch merges, or 0
  std::vector<TensorRule> param_rules_;  // parallel to the parameters that calls give
  std::vector<int> gradient_params_;     // parameters whose gradients are wanted
  std::vector<std::string> gradient_names_;
  std::vector<TensorRule> gradient_rules_;  // parallel to gradient_params_
  IndexChecker indices_;
};

// Checks a call of this spec, wherever it will run, if all its tensors can be read here. That includes what only the
// kernel would find on a GPU: the contents of offsets and tables.
Result<void> check_readable(const AttentionSpec& spec, const Arguments& arguments);

}  // namespace flashjit
