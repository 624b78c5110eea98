// This file says which weights dropout keeps (templates/dropout.h), as bits: a row for each query, a bit for each key.
#pragma once

#include "codegen/host/emit/ir.h"

namespace flashjit::host {

// Ints are i64 scalars. Bits begin with the block of 16 queries that q_lo is in, and that of 32 keys that k_lo is in.
struct KeptTile {
  Value *bits, *key;  // addresses: of the first row, of the key of the call
  Value *b, *h;
  Value *q_lo, *rows;
  Value *k_lo, *columns;  // bits are written for whole vectors of calls
};

class KeptBits {
 public:
  // Emits the function that write() calls. `row_bytes`: from one row to the next.
  KeptBits(Ir& ir, std::int64_t row_bytes);

  void write(const KeptTile& tile);
  // Says which of `lanes` neighbouring keys are kept, as a vector of i1: for query q_lo + row and keys k_lo + column
  // on, of a tile that is written.
  Value* load(const KeptTile& tile, Value* row, Value* column);
  // Both, for a query alone: bits are only those that are asked for, at tile.bits.
  Value* find(KeptTile tile, Value* key);
  static std::int64_t bytes_to_find(const HostConfig& config) {
    return HostConfig::kept_bytes(config.kept_row_bytes(config.lanes), 1);
  }
  // `values` where they are kept, times what such are multiplied with if `scaled`, and 0 where they are not.
  Value* keep(Value* kept, Value* values, bool scaled);

 private:
  static constexpr std::int64_t kRows = HostConfig::kKeptRows, kKeys = HostConfig::kKeptKeys;  // of a block
  Value* in_block(Value* key);
  void emit_calls(const KeptTile& tile, Value* number, Value* column);
  void add_products(Value* (&words)[4]);

  Ir& ir_;
  llvm::IRBuilder<>& b_;
  std::int64_t row_bytes_;
  llvm::Function* function_ = nullptr;
};

}  // namespace flashjit::host
