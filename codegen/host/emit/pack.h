// Packs K, transposed, into panels of keys, V into panels of columns, and Q into the worker's scratch, all as the words
// that the micro-kernels read.
#pragma once

#include "codegen/host/emit/ir.h"

namespace flashjit::host {

// Loads `count` elements from `address`; the rest of `lanes` is zero.
Value* load_elements(Ir& ir, llvm::Type* element, Value* address, int lanes, int count);
llvm::Type* element_type(Ir& ir, Dtype dtype);  // Returns the raw type.
llvm::Type* element_type(Ir& ir);               // Returns the type of Q, K and V.

// Loads the words `first` .. `first + lanes - 1` of a row of `d` elements; words behind the row are zero.
Value* load_words(Ir& ir, Value* row, int first, int d);

// Transposes `lanes` vectors of words.
void transpose(Ir& ir, std::vector<Value*>& rows);

// Loads words of `pack` rows of `d` elements, which stand one above the other, from `column` on; words behind the rows
// are zero. With `found`, infinities and NaN become zeros, and `found` tells for each row and lane whether there was
// one.
Value* load_pairs(Ir& ir, const std::vector<Value*>& rows, int column, int d, std::vector<Value*>* found);

// Emits void name(const PackCall*): it packs rows of `d` elements, as columns of `words` words in panels of keys.
void emit_pack_k(Ir& ir, const char* name, int d, int words);
// Emits void name(const PackCall*): it packs rows of `d` elements, as rows of panels of columns. With `flags`, it
// writes PackCall::not_finite.
void emit_pack_v(Ir& ir, const char* name, int d, bool flags);

inline constexpr char kPackKName[] = "flashjit_pack_k";
inline constexpr char kPackVName[] = "flashjit_pack_v";

}  // namespace flashjit::host
