// The micro-kernels: C (+)= A B for one block of rows and one panel of columns.
#pragma once

#include "codegen/host/emit/ir.h"

namespace flashjit::host {

struct MicroKernel {
  const char* name;
  int a_stride, c_stride;  // words
  bool accumulate;         // C += A B instead of C = A B
  int unroll;              // words of the summed dimension per round; divides the number of words
};

// void(A, B, C, words): A is row-major words, B a packed panel, C row-major fp32.
llvm::Function* emit_micro_kernel(Ir& ir, const MicroKernel& kernel);

// The tile registers' configuration around every use of an AMX micro-kernel.
void emit_amx_begin(Ir& ir);
void emit_amx_end(Ir& ir);

}  // namespace flashjit::host
