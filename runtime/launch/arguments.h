// The arguments of one run: checked against the spec and against each other, and turned into the parameter block of the
// kernel. Nothing here allocates unless there is an error to report.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "compiler/plan.h"
#include "compiler/result.h"
#include "runtime/launch/grid.h"
#include "templates/kernel_params.h"

namespace flashjit {

struct Arguments;

// A tensor of the caller, whichever API it came through.
struct TensorView {
  enum class Place { Unknown, Host, Gpu };
  void* data = nullptr;
  std::string_view dtype;
  int rank = 0;
  const std::int64_t* shape = nullptr;
  const std::int64_t* strides = nullptr;  // null: contiguous
  Place place = Place::Unknown;
  int ordinal = 0;  // which GPU
  bool given() const { return data != nullptr || rank > 0; }
};

struct ParamView {
  std::string_view name;
  bool is_scalar = false;
  TensorView tensor;
  double scalar = 0;
};

struct CallArguments {
  TensorView q, k, v, o, lse, max_logit, sink, offsets_q, offsets_k;
  std::int64_t max_q_len = 0, max_k_len = 0;
  // Room for twice what a spec can have; more are counted, and found to be unknown.
  std::array<ParamView, 2 * kMaxParams> params;
  int param_count = 0;

  void add(const ParamView& param) {
    if (param_count < static_cast<int>(params.size())) params[static_cast<std::size_t>(param_count)] = param;
    ++param_count;
  }
};

Result<void> view(const Arguments& arguments, CallArguments& call);

// Checks calls of one kernel. Immutable, so any number of threads may use it.
class ArgumentChecker {
 public:
  // `ordinal`: the GPU that the kernel runs on; ignored for host kernels.
  explicit ArgumentChecker(const Plan& plan, int ordinal = 0);

  // Fills `params`. With batch or q_len of 0 there is nothing to launch and params.tiles_q is 0.
  Result<void> fill(const CallArguments& call, KernelParams& params) const;

  // Host kernels only, whose offsets can be read here.
  Result<void> check_offsets(const CallArguments& call) const;

 private:
  struct Sizes {
    std::int64_t batch = 0, q_len = 0, k_len = 0;  // packed: the longest sequences
    std::int64_t q_tokens = 0, k_tokens = 0;       // of one sequence; packed: of all
  };
  // An index of a tensor parameter, as it stands in the mask or score.
  struct Index {
    int param = 0, dimension = 0;
    Expr expr;
  };
  void collect_indices(const Expr& expr);
  Result<void> check_sizes(const Sizes& sizes) const;
  Result<void> check_packed_reach(const Sizes& sizes) const;
  Result<void> fill_inputs(const CallArguments& call, Sizes& sizes, KernelParams& params) const;
  Result<void> fill_row_outputs(const CallArguments& call, const Sizes& sizes, KernelParams& params) const;
  Result<void> fill_params(const CallArguments& call, const Sizes& sizes, KernelParams& params) const;
  Result<void> check_index(const Index& index, const TensorView& tensor, const Sizes& sizes) const;

  Result<void> fill_grid(const Sizes& sizes, KernelParams& params) const;

  AttentionSpec spec_;
  Grid grid_;
  bool gpu_, hopper_;
  int ordinal_;
  std::vector<Index> indices_;
};

}  // namespace flashjit
