// Packing: K transposed into panels of keys, V into panels of columns, Q copied to the worker's scratch, all as the
// words the micro-kernels read.
#pragma once

#include "codegen/host/emit/ir.h"

namespace flashjit::host {

// The words `first` .. `first + lanes - 1` of a row of `d` elements; what lies past the row is zero.
Value* load_words(Ir& ir, Value* row, int first, int d);

void emit_pack_k(Ir& ir);  // void flashjit_pack_k(const PackCall*)
void emit_pack_v(Ir& ir);  // void flashjit_pack_v(const PackCall*)

inline constexpr char kPackKName[] = "flashjit_pack_k";
inline constexpr char kPackVName[] = "flashjit_pack_v";

}  // namespace flashjit::host
