// Plan -> CUDA source. The loops are templates; what is emitted is a few small files a kernel engineer would write.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "compiler/plan.h"
#include "compiler/result.h"

namespace flashjit {

struct SourceFile {
  std::string name;  // as #included: "variant.gen.cuh", "templates/sync/forward.cuh"
  std::string text;
};

struct KernelSource {
  std::vector<SourceFile> generated;  // config.gen.cuh, variant.gen.cuh, [matrix.gen.cuh,] entry.cu (last: compiled)
  std::vector<SourceFile> headers;    // the embedded templates these include, transitively
  std::vector<std::string> entries;   // extern "C" names: "flashjit_forward"
};

Result<KernelSource> emit_cuda(const Plan& plan);

// The textbook version, three kernels through memory: flashjit_naive_scores, _softmax, _product, launched in this order
// with kNaiveThreads threads. Each takes (KernelParams, float* scores, void* probabilities).
Result<KernelSource> emit_cuda_naive(const Plan& plan);

struct NaiveLaunch {
  std::int64_t grid[3] = {};  // blocks, x only; 0: nothing to launch
  int smem[3] = {};           // dynamic shared memory
  std::int64_t scores_bytes = 0, probabilities_bytes = 0;
};
NaiveLaunch naive_launch(const KernelConfig& config, std::int64_t batch, int q_len, int k_len);

}  // namespace flashjit
