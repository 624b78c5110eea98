// Packing: K transposed into panels of keys, V into panels of columns, Q copied to the worker's scratch, all as the
// words the micro-kernels read.
#pragma once

#include "codegen/host/emit/ir.h"

namespace flashjit::host {

// `count` elements from `address`, the rest of `lanes` zero.
Value* load_elements(Ir& ir, llvm::Type* element, Value* address, int lanes, int count);
llvm::Type* element_type(Ir& ir, Dtype dtype);  // raw
llvm::Type* element_type(Ir& ir);               // of Q, K and V

// The words `first` .. `first + lanes - 1` of a row of `d` elements; what lies past the row is zero.
Value* load_words(Ir& ir, Value* row, int first, int d);

// Transposes `lanes` vectors of words.
void transpose(Ir& ir, std::vector<Value*>& rows);

// Words of `pack` rows of `d` elements, which stand one above the other, from `column` on; zero past the rows. With
// `found` infinities and NaN become zeros, and it gets for each row and lane whether there was one.
Value* load_pairs(Ir& ir, const std::vector<Value*>& rows, int column, int d, std::vector<Value*>* found);

// void name(const PackCall*): rows of `d` elements, as columns of `words` words in panels of keys.
void emit_pack_k(Ir& ir, const char* name, int d, int words);
// void name(const PackCall*): rows of `d` elements, as rows of panels of columns. `flags`: it writes PackCall::not_finite.
void emit_pack_v(Ir& ir, const char* name, int d, bool flags);

inline constexpr char kPackKName[] = "flashjit_pack_k";
inline constexpr char kPackVName[] = "flashjit_pack_v";

}  // namespace flashjit::host
