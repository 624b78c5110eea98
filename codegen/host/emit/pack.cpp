#include "codegen/host/emit/pack.h"

#include <algorithm>

#include "codegen/host/emit/math.h"

namespace flashjit::host {

Value* load_elements(Ir& ir, llvm::Type* element, Value* address, int lanes, int count) {
  llvm::Type* type = ir.vector_of(element, lanes);
  const llvm::Align align(element->getScalarSizeInBits() / 8);
  if (count >= lanes) return ir.b.CreateAlignedLoad(type, address, align);
  std::vector<llvm::Constant*> mask;
  for (int lane = 0; lane < lanes; ++lane) mask.push_back(ir.b.getInt1(lane < count));
  return ir.b.CreateMaskedLoad(type, address, align, llvm::ConstantVector::get(mask),
                               llvm::Constant::getNullValue(type));
}

llvm::Type* element_type(Ir& ir, Dtype dtype) { return dtype == Dtype::F32 ? ir.f32 : ir.i16; }
llvm::Type* element_type(Ir& ir) { return element_type(ir, ir.config.dtype); }

// Transposes in log2(lanes) rounds, which exchange halves of pairs of rows.
void transpose(Ir& ir, std::vector<Value*>& rows) {
  const int n = static_cast<int>(rows.size());
  for (int half = n / 2; half > 0; half /= 2) {
    std::vector<int> low, high;
    for (int lane = 0; lane < n; ++lane) {
      const bool second = lane & half;
      low.push_back(second ? n + lane - half : lane);
      high.push_back(second ? n + lane : lane + half);
    }
    for (int row = 0; row < n; ++row) {
      if (row & half) continue;
      Value *x = rows[row], *y = rows[row + half];
      rows[row] = ir.b.CreateShuffleVector(x, y, low);
      rows[row + half] = ir.b.CreateShuffleVector(x, y, high);
    }
  }
}

Value* load_words(Ir& ir, Value* row, int first, int d) {
  const HostConfig& c = ir.config;
  llvm::Type* element = element_type(ir);
  const int elements = c.lanes * c.pack;
  const int from = first * c.pack;
  Value* raw = load_elements(ir, element, ir.b.CreateConstGEP1_64(element, row, from), elements, d - from);
  return ir.b.CreateBitCast(c.pack == 2 ? raw : widen(ir, raw, c.dtype), ir.i32v);
}

void emit_pack_k(Ir& ir, const char* name, int d, int words_of_row) {
  auto& b = ir.b;
  const HostConfig& c = ir.config;
  llvm::Type* element = element_type(ir);
  llvm::Function* function = ir.function(name, {ir.ptr}, true);
  Value* call = function->getArg(0);
  Value* sources = ir.member(call, offsetof(PackCall, rows), ir.ptr, "rows");
  Value* target = ir.member(call, offsetof(PackCall, target), ir.ptr, "target");
  Value* keys = ir.member(call, offsetof(PackCall, keys), ir.i64, "keys");
  Value* padded = b.CreateAnd(b.CreateAdd(keys, ir.integer(c.panel - 1)), ir.integer(-c.panel));
  ir.loop(ir.integer(0), padded, c.lanes, "key", [&](Value* key) {
    std::vector<Value*> rows;
    for (int lane = 0; lane < c.lanes; ++lane) rows.push_back(ir.row(sources, b.CreateAdd(key, ir.integer(lane))));
    Value* panel = b.CreateSDiv(key, ir.integer(c.panel));
    Value* column = b.CreateSub(key, b.CreateMul(panel, ir.integer(c.panel)));
    Value* to = ir.word(target, b.CreateAdd(b.CreateMul(panel, ir.integer(words_of_row * c.panel)), column));
    // A block is `words` words of `lanes` keys, of which `elements` elements are inside the row.
    auto block = [&](Value* first, int elements, int words) {
      std::vector<Value*> square;
      for (Value* row : rows) {
        square.push_back(
            load_words(ir, b.CreateGEP(element, row, b.CreateMul(first, ir.integer(c.pack))), 0, elements));
      }
      transpose(ir, square);
      for (int word = 0; word < words; ++word) {
        Value* at = b.CreateMul(b.CreateAdd(first, ir.integer(word)), ir.integer(c.panel));
        ir.store(square[word], ir.word(to, at), 4 * c.lanes);
      }
    };
    const int block_elements = c.lanes * c.pack;
    const int whole = d / block_elements * c.lanes;
    ir.loop(ir.integer(0), ir.integer(whole), c.lanes, "word",
            [&](Value* first) { block(first, block_elements, c.lanes); });
    if (whole < words_of_row) block(ir.integer(whole), d - whole * c.pack, words_of_row - whole);
  });
  ir.finish();
}

// Returns for each element whether it is an infinity or NaN.
static Value* not_finite(Ir& ir, Value* raw) {
  const Dtype dtype = ir.config.dtype;
  const std::int64_t exponent = dtype == Dtype::F32 ? 0x7f800000 : dtype == Dtype::BF16 ? 0x7f80 : 0x7c00;
  llvm::Type* integers = ir.vector_of(dtype == Dtype::F32 ? ir.i32 : ir.i16);
  Value* mask = llvm::ConstantInt::getSigned(integers, exponent);
  return ir.b.CreateICmpEQ(ir.b.CreateAnd(ir.b.CreateBitCast(raw, integers), mask), mask);
}

Value* load_pairs(Ir& ir, const std::vector<Value*>& rows, int column, int d, std::vector<Value*>* found) {
  auto& b = ir.b;
  const HostConfig& c = ir.config;
  llvm::Type* element = element_type(ir);
  std::vector<Value*> values;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    Value* zero = llvm::Constant::getNullValue(ir.vector_of(element));
    values.push_back(zero);
    if (column >= d) continue;
    Value* raw = load_elements(ir, element, b.CreateConstGEP1_64(element, rows[i], column), c.lanes, d - column);
    values.back() = raw;
    if (!found) continue;
    Value* here = not_finite(ir, raw);
    (*found)[i] = b.CreateOr((*found)[i], here);
    values.back() = b.CreateSelect(here, zero, raw);
  }
  if (c.pack == 1) return b.CreateBitCast(widen(ir, values[0], c.dtype), ir.i32v);
  return b.CreateOr(b.CreateZExt(values[0], ir.i32v), b.CreateShl(b.CreateZExt(values[1], ir.i32v), 16));
}

void emit_pack_v(Ir& ir, const char* name, int d, bool with_flags) {
  auto& b = ir.b;
  const HostConfig& c = ir.config;
  llvm::Function* function = ir.function(name, {ir.ptr}, true);
  Value* call = function->getArg(0);
  Value* sources = ir.member(call, offsetof(PackCall, rows), ir.ptr, "rows");
  Value* target = ir.member(call, offsetof(PackCall, target), ir.ptr, "target");
  Value* keys = ir.member(call, offsetof(PackCall, keys), ir.i64, "keys");
  Value* panel_words = ir.member(call, offsetof(PackCall, v_panel_words), ir.i64, "panel_words");
  Value* flags = with_flags ? ir.member(call, offsetof(PackCall, not_finite), ir.ptr, "not_finite") : nullptr;
  Value* padded = b.CreateAnd(b.CreateAdd(keys, ir.integer(c.panel - 1)), ir.integer(-c.panel));
  ir.loop(ir.integer(0), padded, c.pack, "key", [&](Value* key) {
    std::vector<Value*> rows;
    std::vector<Value*> found(static_cast<std::size_t>(c.pack), llvm::Constant::getNullValue(ir.vector_of(ir.i1)));
    for (int i = 0; i < c.pack; ++i) rows.push_back(ir.row(sources, b.CreateAdd(key, ir.integer(i))));
    Value* to = ir.word(target, b.CreateMul(b.CreateSDiv(key, ir.integer(c.pack)), ir.integer(c.panel)));
    for (int column = 0; column < round_up(d, c.panel); column += c.lanes) {
      Value* words = load_pairs(ir, rows, column, d, &found);
      Value* panel = b.CreateMul(panel_words, ir.integer(column / c.panel));
      ir.store(words, ir.word(ir.word(to, panel), column % c.panel), 4 * c.lanes);
    }
    for (int i = 0; i < (flags ? c.pack : 0); ++i) {
      Value* flag = b.CreateZExt(b.CreateOrReduce(found[static_cast<std::size_t>(i)]), ir.i8);
      ir.store(flag, ir.byte_offset(flags, b.CreateAdd(key, ir.integer(i))), 1);
    }
  });
  ir.finish();
}

}  // namespace flashjit::host
