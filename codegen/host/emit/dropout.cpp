#include "codegen/host/emit/dropout.h"

#include "templates/dropout.h"

namespace flashjit::host {

KeptBits::KeptBits(Ir& ir, std::int64_t row_bytes) : ir_(ir), b_(ir.b), row_bytes_(row_bytes) {
  function_ = ir.function("keep", {ir.ptr, ir.ptr, ir.i64, ir.i64, ir.i64, ir.i64, ir.i64, ir.i64}, false);
  const auto argument = [&](unsigned i) { return static_cast<Value*>(function_->getArg(i)); };
  const KeptTile tile{argument(0), argument(1), argument(2), argument(3),
                      argument(4), argument(5), argument(6), argument(7)};
  // Four calls of a column give the 16 queries of a block.
  Value* first = b_.CreateAnd(tile.q_lo, ir.integer(-kBlock));
  Value* queries = b_.CreateSub(b_.CreateAdd(tile.q_lo, tile.rows), first);
  Value* rows_of_calls = b_.CreateAnd(b_.CreateAdd(queries, ir.integer(kBlock - 1)), ir.integer(-kBlock));
  ir.loop(ir.integer(0), b_.CreateSDiv(rows_of_calls, ir.integer(4)), 1, "calls", [&](Value* number) {
    // A vector has calls of neighbouring keys, each of which gives four of them for each of four queries.
    ir.loop(ir.integer(0), tile.columns, 4 * ir.config.lanes, "column",
            [&](Value* column) { emit_calls(tile, number, column); });
  });
  ir.finish();
}

void KeptBits::write(const KeptTile& tile) {
  b_.CreateCall(function_, {tile.bits, tile.key, tile.b, tile.h, tile.q_lo, tile.rows, tile.k_lo, tile.columns});
}

Value* KeptBits::load(const KeptTile& tile, Value* row, Value* column) {
  Value* in_block = b_.CreateAdd(b_.CreateAnd(tile.q_lo, ir_.integer(kBlock - 1)), row);
  Value* at = b_.CreateAdd(b_.CreateMul(in_block, ir_.integer(row_bytes_)), b_.CreateSDiv(column, ir_.integer(8)));
  llvm::Type* bits = b_.getIntNTy(static_cast<unsigned>(ir_.config.lanes));
  return b_.CreateBitCast(ir_.load(bits, ir_.byte_offset(tile.bits, at), 1), ir_.vector_of(ir_.i1));
}

// A block of keys may begin before `key`.
Value* KeptBits::find(KeptTile tile, Value* key) {
  tile.k_lo = b_.CreateAnd(key, ir_.integer(-kBlock));
  tile.rows = ir_.integer(1);
  tile.columns = ir_.integer(kBlock);
  write(tile);
  return load(tile, ir_.integer(0), b_.CreateAnd(key, ir_.integer(kBlock - 1)));
}

Value* KeptBits::keep(Value* kept, Value* values, bool scaled) {
  if (scaled) values = b_.CreateFMul(values, Ir::real(values->getType(), dropout_factor(ir_.config.dropped)));
  return b_.CreateSelect(kept, values, Ir::real(values->getType(), 0));
}

// A row of calls, four of which are a block of queries, and the calls of neighbouring keys.
void KeptBits::emit_calls(const KeptTile& tile, Value* number, Value* column) {
  const int lanes = ir_.config.lanes;
  const auto word = [&](Value* x) { return b_.CreateTrunc(x, ir_.i32); };
  Value* first_column = b_.CreateSDiv(b_.CreateAdd(tile.k_lo, column), ir_.integer(4));
  Value* first_row = b_.CreateMul(b_.CreateSDiv(tile.q_lo, ir_.integer(kBlock)), ir_.integer(4));
  Value* words[] = {ir_.splat(word(tile.h)), b_.CreateAdd(ir_.splat(word(first_column)), ir_.lane_numbers(ir_.i32)),
                    ir_.splat(word(tile.b)), ir_.splat(word(b_.CreateAdd(first_row, number)))};
  for (std::size_t i = 0; i < 4; ++i) {
    Value* key = ir_.splat(ir_.member(tile.key, offsetof(FourWords, word) + i * sizeof(unsigned), ir_.i32, "key"));
    words[i] = b_.CreateAdd(b_.CreateMul(words[i], ir_.splat(b_.getInt32(kCounterFactor))), key);
  }
  add_products(words);
  for (Value*& x : words) x = b_.CreateXor(x, b_.CreateLShr(x, 16));
  add_products(words);
  // Bytes of four calls, those of a block of keys, in the order of the keys.
  std::vector<int> order;
  for (int i = 0; i < 4 * lanes; ++i) {
    const auto k = static_cast<unsigned>(i) % kBlock;
    order.push_back(i / kBlock * kBlock + static_cast<int>(dropout_column(k) * 4 + dropout_byte(k)));
  }
  llvm::Type* bytes = ir_.vector_of(ir_.i8, 4 * lanes);
  Value* limit = llvm::ConstantInt::get(bytes, static_cast<std::uint64_t>(ir_.config.dropped));
  // Of the first query of a call, and of those that share it.
  Value* block = b_.CreateMul(b_.CreateSDiv(number, ir_.integer(4)), ir_.integer(kBlock));
  Value* first = b_.CreateAdd(block, b_.CreateMul(b_.CreateSRem(number, ir_.integer(4)), ir_.integer(2)));
  for (const unsigned q : {0u, 1u, 8u, 9u}) {
    Value* numbers = b_.CreateShuffleVector(b_.CreateBitCast(words[dropout_word(q)], bytes), order);
    Value* kept = b_.CreateBitCast(b_.CreateICmpUGE(numbers, limit), b_.getIntNTy(static_cast<unsigned>(4 * lanes)));
    Value* row = b_.CreateAdd(first, ir_.integer(q));
    Value* at = b_.CreateAdd(b_.CreateMul(row, ir_.integer(row_bytes_)), b_.CreateSDiv(column, ir_.integer(8)));
    ir_.store(kept, ir_.byte_offset(tile.bits, at), 1);
  }
}

void KeptBits::add_products(Value* (&words)[4]) {
  const auto add = [&](int to, int a, int b) { words[to] = b_.CreateAdd(words[to], b_.CreateMul(words[a], words[b])); };
  add(0, 1, 3);
  add(1, 2, 0);
  add(2, 0, 1);
  add(3, 1, 2);
}

}  // namespace flashjit::host
