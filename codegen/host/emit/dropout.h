// Finds which weights dropout keeps (templates/dropout.h), as bits: a row for each query, a bit for each key.
#pragma once

#include "codegen/host/emit/ir.h"

namespace flashjit::host {

// Ints are i64 scalars. Bits begin with the block of 16 queries that contains q_lo, and the block of 32 keys that
// contains k_lo.
struct KeptTile {
  Value *bits, *key;  // The addresses of the first row, and of the call's key.
  Value *b, *h;
  Value *q_lo, *rows;
  Value *k_lo, *columns;  // Bits are written for whole vectors of calls.
};

class KeptBits {
 public:
  // Emits the function that write() calls. `row_bytes` lead from one row to the next.
  KeptBits(Ir& ir, std::int64_t row_bytes);

  void write(const KeptTile& tile);
  // Returns which of `lanes` neighbouring keys are kept, as a vector of i1, for query q_lo + row and keys from k_lo +
  // column on, of a tile that has been written.
  Value* load(const KeptTile& tile, Value* row, Value* column);
  // Writes and loads for one query alone, and only the bits for these keys, at tile.bits.
  Value* find(KeptTile tile, Value* key);
  static std::int64_t bytes_to_find(const HostConfig& config) {
    return HostConfig::kept_bytes(config.kept_row_bytes(config.lanes), 1);
  }
  // Returns `values` where they are kept, times the factor of kept weights if `scaled`, and 0 elsewhere.
  Value* keep(Value* kept, Value* values, bool scaled);

 private:
  // These are the rows and keys of a block.
  static constexpr std::int64_t kRows = HostConfig::kKeptRows, kKeys = HostConfig::kKeptKeys;
  Value* in_block(Value* key);
  void emit_calls(const KeptTile& tile, Value* number, Value* column);
  void add_products(Value* (&words)[4]);

  Ir& ir_;
  llvm::IRBuilder<>& b_;
  std::int64_t row_bytes_;
  llvm::Function* function_ = nullptr;
};

}  // namespace flashjit::host
