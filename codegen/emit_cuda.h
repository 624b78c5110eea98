// Plan -> CUDA source. The loops are templates; what is emitted is three small files a kernel engineer would write.
#pragma once

#include <string>
#include <vector>

#include "compiler/plan.h"
#include "compiler/result.h"

namespace flashjit {

struct SourceFile {
  std::string name;  // as #included: "variant.gen.cuh", "templates/sync_forward.cuh"
  std::string text;
};

struct KernelSource {
  std::vector<SourceFile> generated;          // config.gen.cuh, variant.gen.cuh, entry.cu (last: the one to compile)
  std::vector<SourceFile> headers;            // the embedded templates these include, transitively
  std::vector<std::string> entries;           // extern "C" names: "flashjit_forward"
};

Result<KernelSource> emit_cuda(const Plan& plan);

// The textbook version, three kernels through memory: flashjit_naive_scores, _softmax, _product.
Result<KernelSource> emit_cuda_naive(const Plan& plan);

}  // namespace flashjit
