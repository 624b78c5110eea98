#include "codegen/host/emit/dropout.h"

#include <numeric>

#include "templates/dropout.h"

namespace flashjit::host {

KeptBits::KeptBits(Ir& ir, std::int64_t row_bytes) : ir_(ir), b_(ir.b), row_bytes_(row_bytes) {
  function_ = ir.function("keep", {ir.ptr, ir.ptr, ir.i64, ir.i64, ir.i64, ir.i64, ir.i64, ir.i64}, false);
  const auto argument = [&](unsigned i) { return static_cast<Value*>(function_->getArg(i)); };
  const KeptTile tile{argument(0), argument(1), argument(2), argument(3),
                      argument(4), argument(5), argument(6), argument(7)};
  // Eight calls of a column give the queries of a block.
  Value* first = b_.CreateAnd(tile.q_lo, ir.integer(-kRows));
  Value* queries = b_.CreateSub(b_.CreateAdd(tile.q_lo, tile.rows), first);
  Value* rows_of_calls = b_.CreateAnd(b_.CreateAdd(queries, ir.integer(kRows - 1)), ir.integer(-kRows));
  Value* columns = b_.CreateAdd(tile.columns, in_block(tile.k_lo));
  ir.loop(ir.integer(0), b_.CreateSDiv(rows_of_calls, ir.integer(2)), 1, "calls", [&](Value* number) {
    // A vector has calls of neighbouring keys. Each call gives the numbers of eight keys for each of two queries.
    ir.loop(ir.integer(0), columns, 8 * ir.config.lanes, "column",
            [&](Value* column) { emit_calls(tile, number, column); });
  });
  ir.finish();
}

void KeptBits::write(const KeptTile& tile) {
  b_.CreateCall(function_, {tile.bits, tile.key, tile.b, tile.h, tile.q_lo, tile.rows, tile.k_lo, tile.columns});
}

Value* KeptBits::load(const KeptTile& tile, Value* row, Value* column) {
  Value* from_first = b_.CreateAdd(b_.CreateAnd(tile.q_lo, ir_.integer(kRows - 1)), row);
  column = b_.CreateAdd(column, in_block(tile.k_lo));
  Value* at = b_.CreateAdd(b_.CreateMul(from_first, ir_.integer(row_bytes_)), b_.CreateSDiv(column, ir_.integer(8)));
  llvm::Type* bits = b_.getIntNTy(static_cast<unsigned>(ir_.config.lanes));
  return b_.CreateBitCast(ir_.load(bits, ir_.byte_offset(tile.bits, at), 1), ir_.vector_of(ir_.i1));
}

Value* KeptBits::find(KeptTile tile, Value* key) {
  tile.k_lo = key;
  tile.rows = ir_.integer(1);
  tile.columns = ir_.integer(ir_.config.lanes);
  write(tile);
  return load(tile, ir_.integer(0), ir_.integer(0));
}

Value* KeptBits::in_block(Value* key) { return b_.CreateAnd(key, ir_.integer(kKeys - 1)); }

Value* KeptBits::keep(Value* kept, Value* values, bool scaled) {
  if (scaled) values = b_.CreateFMul(values, Ir::real(values->getType(), dropout_factor(ir_.config.dropped)));
  return b_.CreateSelect(kept, values, Ir::real(values->getType(), 0));
}

// Emits a row of calls, eight of which are a block of queries, and the calls of neighbouring keys.
void KeptBits::emit_calls(const KeptTile& tile, Value* number, Value* column) {
  const int lanes = ir_.config.lanes;
  const auto word = [&](Value* x) { return b_.CreateTrunc(x, ir_.i32); };
  Value* first_column = b_.CreateAdd(b_.CreateMul(b_.CreateSDiv(tile.k_lo, ir_.integer(kKeys)), ir_.integer(kKeys / 8)),
                                     b_.CreateSDiv(column, ir_.integer(8)));
  Value* first_row = b_.CreateMul(b_.CreateSDiv(tile.q_lo, ir_.integer(kRows)), ir_.integer(kRows / 2));
  Value* words[] = {ir_.splat(word(tile.h)), b_.CreateAdd(ir_.splat(word(first_column)), ir_.lane_numbers(ir_.i32)),
                    ir_.splat(word(tile.b)), ir_.splat(word(b_.CreateAdd(first_row, number)))};
  for (std::size_t i = 0; i < 4; ++i) {
    Value* key = ir_.splat(ir_.member(tile.key, offsetof(FourWords, word) + i * sizeof(unsigned), ir_.i32, "key"));
    words[i] = b_.CreateAdd(b_.CreateMul(words[i], ir_.splat(b_.getInt32(kCounterFactor))), key);
  }
  add_products(words);
  for (Value*& x : words) x = b_.CreateOr(b_.CreateShl(x, 16), b_.CreateLShr(x, 16));
  add_products(words);
  // Returns the numbers of a word: first those of halves as they are, then those of halves with their bytes exchanged.
  std::vector<int> in_order(static_cast<std::size_t>(4 * lanes));
  std::iota(in_order.begin(), in_order.end(), 0);
  const auto numbers_of = [&](Value* x) {
    llvm::Type *halves = ir_.vector_of(ir_.i16, 2 * lanes), *bytes = ir_.vector_of(ir_.i8, 2 * lanes);
    Value* half = b_.CreateBitCast(x, halves);
    Value* exchanged = b_.CreateOr(b_.CreateShl(half, 1), b_.CreateLShr(half, 15));
    return b_.CreateShuffleVector(b_.CreateTrunc(b_.CreateLShr(half, 7), bytes), b_.CreateTrunc(exchanged, bytes),
                                  in_order);
  };
  // `order` picks the keys in their order from two vectors: one has numbers for the first 16 of each block of keys, the
  // other for the rest.
  std::vector<int> order;
  for (unsigned i = 0; i < 8 * static_cast<unsigned>(lanes); ++i) {
    const unsigned call = i / kKeys * (kKeys / 8) + dropout_column(i % kKeys);
    const unsigned word = call * 2 + dropout_half(i) + (exchanges_bytes(i) ? 2 * lanes : 0);
    order.push_back(static_cast<int>(word + i / 16 % 2 * 4 * lanes));
  }
  Value* limit =
      llvm::ConstantInt::get(ir_.vector_of(ir_.i8, 8 * lanes), static_cast<std::uint64_t>(ir_.config.dropped));
  // `first` is the first query of a call, and the loop's `q` leads to it and to the other query.
  Value* block = b_.CreateMul(b_.CreateSDiv(number, ir_.integer(kRows / 2)), ir_.integer(kRows));
  Value* first = b_.CreateAdd(block, b_.CreateSRem(number, ir_.integer(kRows / 2)));
  for (const unsigned q : {0u, 8u}) {
    Value* numbers =
        b_.CreateShuffleVector(numbers_of(words[dropout_word(q, 0)]), numbers_of(words[dropout_word(q, 16)]), order);
    Value* kept = b_.CreateBitCast(b_.CreateICmpUGE(numbers, limit), b_.getIntNTy(static_cast<unsigned>(8 * lanes)));
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
