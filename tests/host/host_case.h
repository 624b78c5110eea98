// A case of the host backend's tests: a spec with its tensors, compiled for one target and run on threads.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "codegen/host/backend.h"
#include "autotune/reference/compare.h"

namespace flashjit {

HostBackend* backend();  // null: built without it

ParallelFor threads(int count);

// Host targets up to the best one here.
std::vector<const Target*> runnable_targets();

// A contiguous tensor with its memory.
struct Owned {
  std::vector<std::uint8_t> bytes;
  Tensor tensor;
};

struct Row {
  std::string spec;  // without the dtype: "{}" stands for it
  std::int64_t batch = 1, q = 1, k = 1;
  reference::Semantics semantics;
  std::vector<int> q_lengths, k_lengths;  // packed
  std::string pins = "tile_q=24,tile_kv=64";
  // Parameters: name, dtype, shape, value by index in memory order.
  struct Data {
    std::string name;
    Dtype dtype;
    std::vector<std::int64_t> shape;
    std::function<double(std::int64_t)> value;
  };
  std::vector<Data> data;
  std::vector<int> k_lens = {};  // where the spec has them; `k` is then the room of a sequence
};

// The specs that every target is tested with; masks and scores are written a second time by hand.
std::vector<Row> rows();

class HostCase {
 public:
  // `poison` may change inputs: called with "q", "k" or "v" and the index.
  using Poison = std::function<double(char which, std::int64_t index, double value)>;

  HostCase(const Row& row, Dtype dtype, const Target& target, bool naive, const Poison& poison = {});

  bool ok() const { return kernel_ != nullptr; }
  const std::string& problem() const { return problem_; }
  void run(int workers);
  const AttentionSpec& spec() const { return spec_; }
  const Arguments& arguments() const { return arguments_; }
  std::vector<std::uint8_t> output_bytes() const;

 private:
  void fail(const char* where, const Error& error);
  std::vector<std::int64_t> shape(std::int64_t batch, std::int64_t tokens, std::int64_t heads, std::int64_t d) const;
  void make_tensors(const Row& row, const Poison& poison);
  std::int64_t pages(const Row& row) const;  // of a sequence
  void make_cache(const Row& row);
  void make_params(const Row& row, const Plan& plan);
  const Owned& values() const { return spec_.v_in_k ? k_ : v_; }

  AttentionSpec spec_;
  std::unique_ptr<HostKernel> kernel_;
  std::string problem_;
  Owned q_, k_, v_, o_, lse_, max_logit_, sink_, offsets_q_, offsets_k_, k_lens_, block_table_;
  std::vector<Owned> data_;
  Arguments arguments_;
  KernelParams params_{};
};

}  // namespace flashjit
