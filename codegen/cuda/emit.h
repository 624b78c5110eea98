// Plan -> CUDA source. The loops are templates; what is emitted is a few small files a kernel engineer would write.
#pragma once

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
};

Result<KernelSource> emit_cuda(const Plan& plan);

// The textbook version, three kernels through memory: `plan` with the launches and the workspace of that, and its
// source.
Plan naive_plan(Plan plan);
Result<KernelSource> emit_cuda_naive(const Plan& naive);

}  // namespace flashjit
