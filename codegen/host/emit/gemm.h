// Emits the micro-kernels: C (+)= A B for one block of rows and one panel of columns.
#pragma once

#include "codegen/host/emit/ir.h"

namespace flashjit::host {

struct MicroKernel {
  const char* name;
  int a_stride, c_stride;  // Both count words.
  bool accumulate;         // If true, C += A B instead of C = A B.
  int unroll;              // Words of the summed dimension per round; it divides the number of words.
};

// Emits void(A, B, C, words), where A is row-major words, B a packed panel, and C row-major fp32.
llvm::Function* emit_micro_kernel(Ir& ir, const MicroKernel& kernel);

// These configure the tile registers around every use of an AMX micro-kernel.
void emit_amx_begin(Ir& ir);
void emit_amx_end(Ir& ir);

}  // namespace flashjit::host
