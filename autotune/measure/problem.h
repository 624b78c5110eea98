// These are the tensors of one run, from files or drawn at random from a seed, on the host, and copied to a GPU.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "compiler/result.h"
#include "compiler/spec/operands.h"
#include "compiler/spec/spec.h"
#include "flashjit/flashjit.hpp"
#include "runtime/driver/device_memory.h"
#include "autotune/measure/logits.h"
#include "autotune/measure/shape.h"

namespace flashjit {

struct NamedTensor {
  enum class Role {
    Input,
    Output,
    Updated,
    Offsets,
    Lengths,
    Table,
    Chosen,
    Positions,  // positions of queries and of the entries of lists
    Prefix,
    Scales,
    Blocks,
    Angles,
    Number,
    Param
  };
  std::string name;
  Role role = Role::Input;
  Dtype dtype = Dtype::F32;
  std::vector<std::int64_t> shape;
  std::vector<std::uint8_t> bytes;
  Contents contents = Contents::Plain;  // the kind of contents that is drawn for it
};

// Returns whether an input can be drawn or read. Offsets follow from the shape.
bool comes_from_files(const Operand& operand, const AttentionSpec& spec);

// Inputs come from these files, by the name of an operand or a parameter. Everything else is drawn.
struct InputFiles {
  std::map<std::string, std::string> files;
  std::map<std::string, double> scalars;
  LogitKind logits;  // applies to a Q and K that are drawn
  // Fills shape and bytes. `exact_shape` means that only the tensor's own shape fits. It is needed if there are files.
  std::function<Result<void>(const std::string& file, bool exact_shape, NamedTensor& tensor)> read;
};

class ProblemData {
 public:
  // `most_bytes` limits all tensors together; 0 stands for the memory of this machine.
  static Result<ProblemData> create(const AttentionSpec& spec, const ProblemShape& shape, const InputFiles& inputs,
                                    std::uint64_t seed, double most_bytes = 0);

  // Overwrites the outputs with NaN, which shows elements that a kernel does not write. Results that calls go on from
  // get their first values again.
  void poison();
  // Returns the arguments, which point into this object.
  Arguments host_arguments();
  // Returns the arguments for the reference. They also hold the results before a call that goes on from them.
  Arguments reference_arguments();
  NamedTensor* find(std::string_view name);
  std::vector<NamedTensor>& tensors() { return tensors_; }
  Arguments arguments_at(const std::vector<void*>& pointers) const;  // `pointers` are parallel to tensors().
  std::uint64_t bytes() const;
  std::uint64_t score_count() const { return score_count_; }  // one per query, key and head
  // Sets Arguments::sms of the arguments that arguments_at() gives from now on.
  void limit_sms(std::int64_t sms) { sms_ = sms; }

 private:
  friend class DeviceProblem;
  void keep_earlier(const AttentionSpec& spec);
  std::vector<NamedTensor> tensors_;
  std::vector<NamedTensor> earlier_;  // copies of the tensors that calls go on from
  std::map<std::string, double> scalars_;
  std::int64_t longest_q_ = 0, longest_k_ = 0;  // of packed sequences only
  std::int64_t sms_ = 0;
  std::uint64_t score_count_ = 0;
};

// This is a copy of the tensors in GPU memory.
class DeviceProblem {
 public:
  static Result<DeviceProblem> create(const GpuContext& gpu, ProblemData& data, CuStream stream = nullptr);
  // Allocates the workspace that the kernel needs beside the tensors, if there is not enough yet, and returns its
  // bytes. Memory that was allocated before must not be in use.
  Result<std::uint64_t> make_workspace(const GpuContext& gpu, const Kernel& kernel);
  Result<void> poison(const Stream& stream) const;
  Result<void> download_outputs(ProblemData& data, CuStream stream = nullptr) const;
  const Arguments& arguments() const { return arguments_; }

 private:
  std::vector<DeviceBuffer> buffers_;
  // The tensors that calls go on from, by their numbers.
  std::map<std::size_t, std::vector<std::uint8_t>> earlier_;
  std::vector<NamedTensor::Role> roles_;
  std::optional<DeviceBuffer> workspace_;
  Arguments arguments_;
};

}  // namespace flashjit
