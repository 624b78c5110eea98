// Turns a Plan into CUDA source. The loops are templates; a few small files are emitted, as a kernel engineer would
// write them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "compiler/plan.h"
#include "compiler/result.h"

namespace flashjit {

struct SourceFile {
  std::string name;  // The name by which it is #included: "variant.gen.cuh", "templates/sync/forward.cuh".
  std::string text;
};

struct KernelSource {
  // These are config.gen.cuh, variant.gen.cuh, [matrix.gen.cuh,] and entry.cu, which comes last and is compiled.
  std::vector<SourceFile> generated;
  std::vector<SourceFile> headers;  // The embedded templates that these include, transitively.
};

Result<KernelSource> emit_cuda(const Plan& plan);

}  // namespace flashjit
