#include "codegen/host/emit/attention.h"

#include <numbers>
#include <optional>

#include "codegen/host/emit/dropout.h"
#include "codegen/host/emit/expr.h"
#include "codegen/host/emit/gemm.h"
#include "codegen/host/emit/math.h"
#include "codegen/host/emit/pack.h"
#include "codegen/host/emit/softmax.h"
#include "codegen/host/tile_map/tile_map.h"

namespace flashjit::host {
namespace {

// The members of TileCall are loaded where they are used.
class Tile {
 public:
  Tile(Ir& ir, const Plan& plan, Value* call) : ir_(ir), plan_(plan), call_(call) {}
  Value* pointer(std::size_t offset, const char* name) const { return ir_.member(call_, offset, ir_.ptr, name); }
  Value* integer(std::size_t offset, const char* name) const { return ir_.member(call_, offset, ir_.i64, name); }
  Value* scratch(std::int64_t at) const { return ir_.byte_offset(pointer(offsetof(TileCall, scratch), "scratch"), at); }
  Value* rows() const { return integer(offsetof(TileCall, rows), "rows"); }
  Value* q_lo() const { return integer(offsetof(TileCall, q_lo), "q_lo"); }
  RowContext context(Value* row) const {
    return {pointer(offsetof(TileCall, params), "params"),
            ir_.b.CreateAdd(q_lo(), row),
            integer(offsetof(TileCall, b), "b"),
            integer(offsetof(TileCall, h), "h"),
            integer(offsetof(TileCall, hk), "hk"),
            integer(offsetof(TileCall, q_len), "q_len"),
            integer(offsetof(TileCall, k_len), "k_len"),
            scale(offsetof(TileCall, scale_k), "scale_k"),
            scales(offsetof(TileCall, scales_k), "scales_k")};
  }
  // Describes the dropout of the KV tile from k_lo on.
  KeptTile kept(Value* k_lo, Value* columns) const {
    return {scratch(ir_.config.kept_at()),
            ir_.byte_offset(call_, std::int64_t{offsetof(TileCall, key)}),
            integer(offsetof(TileCall, b), "b"),
            integer(offsetof(TileCall, h), "h"),
            q_lo(),
            rows(),
            k_lo,
            columns};
  }
  // Returns null if keys have no scales of their own.
  Value* scales(std::size_t offset, const char* name) const {
    return has_key_scales(plan_.spec) ? pointer(offset, name) : nullptr;
  }
  // Returns null if K and V have no scale.
  Value* scale(std::size_t offset, const char* name) const {
    return has_scaled_keys(plan_.spec) ? ir_.member(call_, offset, ir_.f32, name) : nullptr;
  }

 private:
  Ir& ir_;
  const Plan& plan_;
  Value* call_;
};

// Returns a row of a scratch matrix with `stride` words per row.
Value* row_of(Ir& ir, Value* matrix, Value* row, int stride) {
  return ir.word(matrix, ir.b.CreateMul(row, ir.integer(stride)));
}

class TileEmitter {
 public:
  TileEmitter(Ir& ir, const Plan& plan, bool mapped) : ir_(ir), b_(ir.b), c_(ir.config), plan_(plan), mapped_(mapped) {}

  void emit() {
    const int qk_unroll = c_.words_qk % 4 == 0 ? 4 : c_.words_qk % 2 == 0 ? 2 : 1;
    scores_ = emit_micro_kernel(ir_, {"scores", c_.q_stride(), c_.s_stride(), false, qk_unroll});
    const int p_stride = c_.pack == 1 ? c_.s_stride() : c_.p_stride();
    outputs_ = emit_micro_kernel(ir_, {"outputs", p_stride, c_.o_stride(), true, 4});
    if (c_.dropped > 0) kept_.emplace(ir_, c_.kept_row_bytes());
    full_tile_ = emit_kv_tile("full_tile", false, emit_softmax("softmax_full", false));
    mixed_tile_ = emit_kv_tile("mixed_tile", true, emit_softmax("softmax_mixed", true));
    llvm::Function* function = ir_.function(kTileName, {ir_.ptr}, true);
    call_ = function->getArg(0);
    Tile tile(ir_, plan_, call_);
    if (c_.product == Product::Amx) emit_amx_begin(ir_);
    emit_start(tile);
    emit_kv_loop(tile);
    emit_end(tile);
    if (c_.product == Product::Amx) emit_amx_end(ir_);
    ir_.finish();
    emit_seen_keys();
  }

 private:
  // Emits one pass of the online softmax over the scores of a KV tile: P in place of (or beside) S, and O and l
  // rescaled.
  llvm::Function* emit_softmax(const char* name, bool masked);
  void emit_softmax_row(const Tile& tile, Value* row, Value* first_key, Value* columns, Value* end_key);
  Value* emit_row_maximum(const RowContext& context, Value* s, Value* first_key, Value* columns, Value* end_key);
  using Kept = std::function<Value*(Value* column)>;
  void emit_row_exponentials(Value* s, Value* p, Value* l, Value* columns, Value* m, Value* unit, Value* scales,
                             const Kept& kept);
  void emit_start(const Tile& tile);
  struct Range {
    Value *begin, *end, *full_begin, *full_end;
  };
  void set_variables(ExprEmitter& expressions, const RowContext& context, Value* q_lo, Value* q_hi);
  Range emit_range(const RowContext& context, Value* q_lo, Value* q_hi);
  void emit_seen_keys();
  void emit_kv_loop(const Tile& tile);
  Value* first_of_tile(Value* key);
  void emit_mapped_tiles(const Tile& tile, const Range& whole);
  llvm::Function* emit_kv_tile(const char* name, bool masked, llvm::Function* softmax);
  void emit_values_that_are_not_finite(const Tile& tile, Value* k_lo, Value* columns,
                                       const std::function<Value*(Value* row)>& seen);
  Value* seen_columns(const Tile& tile, Value* row, Value* k_lo, Value* columns);
  Value* padded(Value* columns) {
    return b_.CreateAnd(b_.CreateAdd(columns, ir_.integer(c_.panel - 1)), ir_.integer(-c_.panel));
  }
  Value* smaller(Value* x, Value* y) { return b_.CreateSelect(b_.CreateICmpSLT(x, y), x, y); }
  Value* larger(Value* x, Value* y) { return b_.CreateSelect(b_.CreateICmpSGT(x, y), x, y); }
  void emit_end(const Tile& tile);

  // S holds products until something other than a multiplication makes them logits.
  bool logits_stored(bool masked) const {
    return masked || static_cast<bool>(plan_.spec.score) || has_key_scales(plan_.spec);
  }

  Ir& ir_;
  llvm::IRBuilder<>& b_;
  const HostConfig& c_;
  const Plan& plan_;
  const bool mapped_;
  Value* call_ = nullptr;
  std::optional<KeptBits> kept_;  // It is set with dropout.
  llvm::Function *scores_ = nullptr, *outputs_ = nullptr, *full_tile_ = nullptr, *mixed_tile_ = nullptr;
};

llvm::Function* TileEmitter::emit_softmax(const char* name, bool masked) {
  // The arguments are call, first key and columns. Without a mask the columns are a multiple of the panel.
  llvm::Function* function = ir_.function(name, {ir_.ptr, ir_.i64, ir_.i64}, false);
  Tile tile(ir_, plan_, function->getArg(0));
  Value *first_key = function->getArg(1), *columns = function->getArg(2);
  ir_.loop(ir_.integer(0), tile.rows(), 1, "row", [&](Value* row) {
    if (!masked) return emit_softmax_row(tile, row, first_key, columns, nullptr);
    Value* seen = seen_columns(tile, row, first_key, columns);
    ir_.if_then(b_.CreateICmpSGT(seen, ir_.integer(0)), "seen",
                [&] { emit_softmax_row(tile, row, first_key, padded(seen), b_.CreateAdd(first_key, seen)); });
  });
  ir_.finish();
  return function;
}

void TileEmitter::emit_softmax_row(const Tile& tile, Value* row, Value* first_key, Value* columns, Value* end_key) {
  Value* s = row_of(ir_, tile.scratch(c_.s_at()), row, c_.s_stride());
  Value* m_address = ir_.word(tile.scratch(c_.m_at()), row);
  Value* l_address = row_of(ir_, tile.scratch(c_.l_at()), row, c_.lanes);
  Value* found = emit_row_maximum(tile.context(row), s, first_key, columns, end_key);
  Value* before = ir_.load(ir_.f32, m_address);
  Value* m = ir_.max(found, before);
  // Nothing has to be rescaled while nothing has been added.
  Value* rises = b_.CreateAnd(b_.CreateFCmpOGT(m, before), b_.CreateFCmpOGT(before, Ir::real(ir_.f32, -kInfinity)));
  ir_.if_then(rises, "rescale", [&] {
    Value* factor = ir_.splat(exp2(ir_, emit_power(ir_, plan_, b_.CreateFSub(before, m))));
    ir_.store(b_.CreateFMul(ir_.load(ir_.f32v, l_address), factor), l_address);
    Value* o = row_of(ir_, tile.scratch(c_.o_at()), row, c_.o_stride());
    for (int first = 0; first < c_.width_v; first += c_.lanes) {
      Value* address = ir_.word(o, first);
      ir_.store(b_.CreateFMul(ir_.load(ir_.f32v, address), factor), address);
    }
  });
  ir_.store(m, m_address);
  Value* p = c_.pack == 1 ? s : row_of(ir_, tile.scratch(c_.p_at()), row, c_.p_stride());
  Value* unit = logits_stored(end_key != nullptr) ? Ir::real(ir_.f32v, 1)
                                                  : emit_product_unit(ir_, plan_, tile.context(row), logit_unit(plan_));
  Value* scales = tile.scales(offsetof(TileCall, scales_v), "scales_v");
  if (scales) scales = ir_.word(scales, first_key);
  Kept kept;
  if (kept_) kept = [&](Value* column) { return kept_->load(tile.kept(first_key, columns), row, column); };
  emit_row_exponentials(s, p, l_address, columns, reference_of(ir_, m), unit, scales, kept);
}

Value* TileEmitter::emit_row_maximum(const RowContext& context, Value* s, Value* first_key, Value* columns,
                                     Value* end_key) {
  Value* least = Ir::real(ir_.f32v, -kInfinity);
  const Ir::Values maxima = ir_.loop(
      ir_.integer(0), columns, c_.panel, "column", {least, least}, [&](Value* column, const Ir::Values& carried) {
        Ir::Values next = carried;
        for (int v = 0; v < 2; ++v) {
          Value* at = b_.CreateAdd(column, ir_.integer(v * c_.lanes));
          Value* address = ir_.word(s, at);
          Value* logits =
              emit_logits(ir_, plan_, context, ir_.load(ir_.f32v, address), b_.CreateAdd(first_key, at), end_key);
          if (logits_stored(end_key != nullptr)) ir_.store(logits, address);
          next[v] = ir_.max(logits, next[v]);
        }
        return next;
      });
  return max_lanes(ir_, ir_.max(maxima[0], maxima[1]));
}

// `unit` turns S into logits. `scales` are those of V, by column, or null if there are none. `kept` tells which of the
// lanes from a column on dropout keeps; if empty, all are kept.
void TileEmitter::emit_row_exponentials(Value* s, Value* p, Value* l, Value* columns, Value* m, Value* unit,
                                        Value* scales, const Kept& kept) {
  Value* minus_m = ir_.splat(b_.CreateFNeg(m));
  const Ir::Values sums =
      ir_.loop(ir_.integer(0), columns, c_.panel, "column", {ir_.load(ir_.f32v, l), Ir::real(ir_.f32v, 0)},
               [&](Value* column, const Ir::Values& carried) {
                 Ir::Values next = carried;
                 for (int v = 0; v < 2; ++v) {
                   Value* at = b_.CreateAdd(column, ir_.integer(v * c_.lanes));
                   Value* x = ir_.load(ir_.f32v, ir_.word(s, at));
                   // This is not fused: the largest logit was rounded after the multiplication, and its difference from
                   // itself must be 0.
                   Value* logit = b_.CreateFMul(x, unit);
                   Value* power = emit_power(ir_, plan_, b_.CreateFAdd(logit, minus_m));
                   Value* value = exp2(ir_, power);
                   next[v] = b_.CreateFAdd(next[v], value);
                   if (scales) value = b_.CreateFMul(value, ir_.load(ir_.f32v, ir_.word(scales, at)));
                   if (kept) value = kept_->keep(kept(at), value, false);
                   if (c_.pack == 1) {
                     ir_.store(value, ir_.word(p, at));
                   } else {
                     ir_.store(narrow(ir_, value, Dtype::BF16), b_.CreateGEP(ir_.i16, p, at), 2);
                   }
                 }
                 return next;
               });
  ir_.store(b_.CreateFAdd(sums[0], sums[1]), l);
}

// Writes Q as words into the scratch, and sets O, m and l as if no key had been seen.
void TileEmitter::emit_start(const Tile& tile) {
  Value* source = tile.pointer(offsetof(TileCall, q), "q");
  Value* token = tile.integer(offsetof(TileCall, q_token), "q_token");
  Value *q_matrix = tile.scratch(c_.q_at()), *o_matrix = tile.scratch(c_.o_at());
  Value *m_rows = tile.scratch(c_.m_at()), *l_rows = tile.scratch(c_.l_at());
  llvm::Type* element = c_.dtype == Dtype::F32 ? ir_.f32 : ir_.i16;
  ir_.loop(ir_.integer(0), tile.rows(), 1, "row", [&](Value* row) {
    Value* from = b_.CreateGEP(element, source, b_.CreateMul(row, token));
    Value* q = row_of(ir_, q_matrix, row, c_.q_stride());
    // The last vector may run into the padding between rows, which nothing reads.
    for (int first = 0; first < c_.words_qk; first += c_.lanes) {
      ir_.store(load_words(ir_, from, first, c_.d_qk), ir_.word(q, first));
    }
    Value* o = row_of(ir_, o_matrix, row, c_.o_stride());
    for (int first = 0; first < c_.width_v; first += c_.lanes) ir_.store(Ir::real(ir_.f32v, 0), ir_.word(o, first));
    ir_.store(Ir::real(ir_.f32, -kInfinity), ir_.word(m_rows, row));
    ir_.store(Ir::real(ir_.f32v, 0), row_of(ir_, l_rows, row, c_.lanes));
  });
}

void TileEmitter::set_variables(ExprEmitter& expressions, const RowContext& context, Value* q_lo, Value* q_hi) {
  expressions.set_int(Variable::B, context.b);
  expressions.set_int(Variable::H, context.h);
  expressions.set_int(Variable::Hk, context.hk);
  expressions.set_int(Variable::QLen, context.q_len);
  expressions.set_int(Variable::KLen, context.k_len);
  expressions.set_int(Variable::QLo, q_lo);
  expressions.set_int(Variable::QHi, q_hi);
}

// Returns the keys that the queries q_lo..q_hi can see, clipped to the keys that exist.
TileEmitter::Range TileEmitter::emit_range(const RowContext& context, Value* q_lo, Value* q_hi) {
  ExprEmitter range(ir_, context.params, plan_.spec, true, nullptr);
  set_variables(range, context, q_lo, q_hi);
  const TileAnalysis& tiles = plan_.tiles;
  auto bound = [&](const Expr& expr, Value* otherwise) { return expr ? range.row(expr, Axis::Keys) : otherwise; };
  return {larger(bound(tiles.begin, ir_.integer(0)), ir_.integer(0)),
          smaller(bound(tiles.end, context.k_len), context.k_len), bound(tiles.full_begin, ir_.integer(0)),
          bound(tiles.full_end, context.k_len)};
}

// Emits the function that finds the keys which all queries of a call see together.
void TileEmitter::emit_seen_keys() {
  llvm::Function* function = ir_.function(kSeenKeysName, {ir_.ptr, ir_.ptr}, true);
  call_ = function->getArg(0);
  const Tile tile(ir_, plan_, call_);
  const RowContext context = tile.context(ir_.integer(0));
  const Range range =
      emit_range(context, context.q, b_.CreateSub(b_.CreateAdd(context.q, tile.rows()), ir_.integer(1)));
  Value* keys = function->getArg(1);
  ir_.store(mapped_ ? first_of_tile(range.begin) : range.begin,
            ir_.byte_offset(keys, std::int64_t{offsetof(SeenKeys, begin)}), 8);
  ir_.store(range.end, ir_.byte_offset(keys, std::int64_t{offsetof(SeenKeys, end)}), 8);
  ir_.finish();
}

// Returns the first key of the tile that a key lies in.
Value* TileEmitter::first_of_tile(Value* key) {
  return b_.CreateMul(b_.CreateSDiv(key, ir_.integer(c_.tile_kv)), ir_.integer(c_.tile_kv));
}

// Visits the tiles of a map. A tile in which everything is seen may still end inside a panel.
void TileEmitter::emit_mapped_tiles(const Tile& tile, const Range& whole) {
  Value* states = tile.pointer(offsetof(TileCall, tiles), "tiles");
  ir_.loop(first_of_tile(whole.begin), whole.end, c_.tile_kv, "tile", [&](Value* k_lo) {
    Value* columns = smaller(b_.CreateSub(whole.end, k_lo), ir_.integer(c_.tile_kv));
    Value* state = ir_.load(ir_.i8, ir_.byte_offset(states, b_.CreateSDiv(k_lo, ir_.integer(c_.tile_kv))), 1);
    Value* in_panels = b_.CreateICmpEQ(b_.CreateAnd(columns, ir_.integer(c_.panel - 1)), ir_.integer(0));
    Value* full = b_.CreateAnd(b_.CreateICmpEQ(state, b_.getInt8(kFullTile)), in_panels);
    ir_.if_then(full, "full", [&] { b_.CreateCall(full_tile_, {call_, k_lo, columns}); });
    Value* mixed = b_.CreateAnd(b_.CreateICmpNE(state, b_.getInt8(kEmptyTile)), b_.CreateNot(full));
    ir_.if_then(mixed, "mixed", [&] { b_.CreateCall(mixed_tile_, {call_, k_lo, columns}); });
  });
}

// Visits KV tiles in three runs: mixed, full, mixed. Packed keys can only be entered at a panel, so each run starts at
// one.
void TileEmitter::emit_kv_loop(const Tile& tile) {
  const RowContext context = tile.context(ir_.integer(0));
  Value* last = b_.CreateSub(b_.CreateAdd(context.q, tile.rows()), ir_.integer(1));
  const Range whole = emit_range(context, context.q, last);
  Value* ranges = tile.scratch(c_.ranges_at());
  ir_.loop(ir_.integer(0), tile.rows(), c_.row_block, "rows", [&](Value* row) {
    Value* q_lo = b_.CreateAdd(context.q, row);
    const Range range = emit_range(context, q_lo, smaller(b_.CreateAdd(q_lo, ir_.integer(c_.row_block - 1)), last));
    Value* block = b_.CreateSDiv(row, ir_.integer(c_.row_block));
    Value* address = ir_.byte_offset(ranges, b_.CreateMul(block, ir_.integer(HostConfig::kRangeBytes)));
    ir_.store(range.begin, address, 8);
    ir_.store(range.end, ir_.byte_offset(address, std::int64_t{8}), 8);
  });
  if (mapped_) return emit_mapped_tiles(tile, whole);
  Value* begin = b_.CreateAnd(whole.begin, ir_.integer(-c_.panel));
  Value* full_begin = padded(larger(whole.full_begin, begin));
  Value* full_end = b_.CreateAnd(smaller(whole.full_end, whole.end), ir_.integer(-c_.panel));
  Value* any_full = b_.CreateICmpSLT(full_begin, full_end);
  full_begin = b_.CreateSelect(any_full, full_begin, whole.end);
  full_end = b_.CreateSelect(any_full, full_end, whole.end);
  auto run = [&](Value* from, Value* to, const char* name, llvm::Function* kv_tile, bool may_be_empty) {
    ir_.loop(from, to, c_.tile_kv, name, [&](Value* k_lo) {
      Value* columns = smaller(b_.CreateSub(to, k_lo), ir_.integer(c_.tile_kv));
      auto visit = [&] { b_.CreateCall(kv_tile, {call_, k_lo, columns}); };
      if (!may_be_empty) return visit();
      ExprEmitter here(ir_, context.params, plan_.spec, true, nullptr);
      set_variables(here, context, context.q, last);
      here.set_int(Variable::KLo, k_lo);
      here.set_int(Variable::KHi, b_.CreateSub(b_.CreateAdd(k_lo, columns), ir_.integer(1)));
      ir_.if_then(here.scalar(plan_.tiles.may_see), "may_see", visit);
    });
  };
  const bool holes = static_cast<bool>(plan_.tiles.may_see);
  run(begin, full_begin, "before", mixed_tile_, holes);
  run(full_begin, full_end, "full", full_tile_, false);
  run(full_end, whole.end, "after", mixed_tile_, holes);
}

// Returns how many of the tile's first columns the block of rows around `row` has to look at.
Value* TileEmitter::seen_columns(const Tile& tile, Value* row, Value* k_lo, Value* columns) {
  Value* block = b_.CreateUDiv(row, ir_.integer(c_.row_block));
  Value* address =
      ir_.byte_offset(tile.scratch(c_.ranges_at()), b_.CreateMul(block, ir_.integer(HostConfig::kRangeBytes)));
  Value* begin = ir_.load(ir_.i64, address, 8);
  Value* end = ir_.load(ir_.i64, ir_.byte_offset(address, std::int64_t{8}), 8);
  Value* seen = larger(smaller(b_.CreateSub(end, k_lo), columns), ir_.integer(0));
  return b_.CreateSelect(b_.CreateICmpSLT(begin, b_.CreateAdd(k_lo, columns)), seen, ir_.integer(0));
}

// Emits void(call, first key, columns): S = Q K^T, softmax, O += P V.
llvm::Function* TileEmitter::emit_kv_tile(const char* name, bool masked, llvm::Function* softmax) {
  llvm::Function* function = ir_.function(name, {ir_.ptr, ir_.i64, ir_.i64}, false);
  Value *call = function->getArg(0), *k_lo = function->getArg(1), *columns = function->getArg(2);
  Tile tile(ir_, plan_, call);
  Value *q = tile.scratch(c_.q_at()), *s = tile.scratch(c_.s_at()), *p = tile.scratch(c_.p_at());
  Value* o = tile.scratch(c_.o_at());
  auto seen = [&](Value* row) { return masked ? padded(seen_columns(tile, row, k_lo, columns)) : columns; };
  Value* k = ir_.word(tile.pointer(offsetof(TileCall, k), "k"), b_.CreateMul(k_lo, ir_.integer(c_.words_qk)));
  ir_.loop(ir_.integer(0), columns, c_.panel, "column", [&](Value* column) {
    Value* panel = ir_.word(k, b_.CreateMul(column, ir_.integer(c_.words_qk)));
    ir_.loop(ir_.integer(0), tile.rows(), c_.row_block, "row", [&](Value* row) {
      ir_.if_then(b_.CreateICmpSLT(column, seen(row)), "product", [&] {
        b_.CreateCall(scores_, {row_of(ir_, q, row, c_.q_stride()), panel,
                                ir_.word(row_of(ir_, s, row, c_.s_stride()), column), ir_.integer(c_.words_qk)});
      });
    });
  });
  if (kept_) kept_->write(tile.kept(k_lo, columns));
  b_.CreateCall(softmax, {call, k_lo, columns});
  Value* v = ir_.word(tile.pointer(offsetof(TileCall, v), "v"),
                      b_.CreateMul(b_.CreateSDiv(k_lo, ir_.integer(c_.pack)), ir_.integer(c_.panel)));
  Value* panel_words = tile.integer(offsetof(TileCall, v_panel_words), "v_panel_words");
  const int p_stride = c_.pack == 1 ? c_.s_stride() : c_.p_stride();
  ir_.loop(ir_.integer(0), ir_.integer(c_.width_v / c_.panel), 1, "panel", [&](Value* index) {
    Value* panel = ir_.word(v, b_.CreateMul(index, panel_words));
    Value* column = b_.CreateMul(index, ir_.integer(c_.panel));
    ir_.loop(ir_.integer(0), tile.rows(), c_.row_block, "row", [&](Value* row) {
      Value* words = b_.CreateSDiv(seen(row), ir_.integer(c_.pack));
      ir_.if_then(b_.CreateICmpSGT(words, ir_.integer(0)), "product", [&] {
        b_.CreateCall(outputs_, {row_of(ir_, p, row, p_stride), panel,
                                 ir_.word(row_of(ir_, o, row, c_.o_stride()), column), words});
      });
    });
  });
  emit_values_that_are_not_finite(tile, k_lo, columns, seen);
  ir_.finish();
  return function;
}

// Zeros were packed in place of keys whose V has an infinity or NaN, because 0 times those is NaN, and hidden keys have
// probability 0. This code brings such values to the rows in which their key has a probability above 0.
void TileEmitter::emit_values_that_are_not_finite(const Tile& tile, Value* k_lo, Value* columns,
                                                  const std::function<Value*(Value* row)>& seen) {
  llvm::Type* element = c_.dtype == Dtype::F32 ? ir_.f32 : ir_.i16;
  Value* flags = tile.pointer(offsetof(TileCall, not_finite), "not_finite");
  Value* sources = tile.pointer(offsetof(TileCall, v_rows), "v_rows");
  Value* p = tile.scratch(c_.pack == 1 ? c_.s_at() : c_.p_at());
  const int p_stride = c_.pack == 1 ? c_.s_stride() : c_.p_stride();
  auto weighs = [&](Value* row, Value* column) {
    Value* of_row = row_of(ir_, p, row, p_stride);
    if (c_.pack == 1) return b_.CreateFCmpUNE(ir_.load(ir_.f32, ir_.word(of_row, column)), Ir::real(ir_.f32, 0));
    Value* bits = ir_.load(ir_.i16, b_.CreateGEP(ir_.i16, of_row, column), 2);
    return b_.CreateICmpNE(bits, llvm::ConstantInt::get(ir_.i16, 0));
  };
  auto add = [&](Value* row, Value* values) {
    Value* o = row_of(ir_, tile.scratch(c_.o_at()), row, c_.o_stride());
    ir_.loop(ir_.integer(0), ir_.integer(c_.d_v), 1, "d", [&](Value* d) {
      Value* raw = ir_.load(element, b_.CreateGEP(element, values, d), size_of(c_.dtype));
      Value* value = widen(ir_, raw, c_.dtype);
      Value* size = ir_.call(llvm::Intrinsic::fabs, {ir_.f32}, {value});
      Value* finite = b_.CreateFCmpOLT(size, Ir::real(ir_.f32, kInfinity));
      Value* address = ir_.word(o, d);
      Value* sum = b_.CreateFAdd(ir_.load(ir_.f32, address), value);
      ir_.store(b_.CreateSelect(finite, ir_.load(ir_.f32, address), sum), address);
    });
  };
  auto each_key = [&](Value* column) {
    Value* key = b_.CreateAdd(k_lo, column);
    Value* flag = ir_.load(ir_.i8, ir_.byte_offset(flags, key), 1);
    ir_.if_then(b_.CreateIsNotNull(flag), "not_finite", [&] {
      Value* values = ir_.row(sources, key);
      ir_.loop(ir_.integer(0), tile.rows(), 1, "row", [&](Value* row) {
        ir_.if_then(b_.CreateICmpSLT(column, seen(row)), "seen",
                    [&] { ir_.if_then(weighs(row, column), "weighs", [&] { add(row, values); }); });
      });
    });
  };
  ir_.if_then(b_.CreateIsNotNull(flags), "any", [&] { ir_.loop(ir_.integer(0), columns, 1, "column", each_key); });
}

void TileEmitter::emit_end(const Tile& tile) {
  const AttentionSpec& spec = plan_.spec;
  Value *o_matrix = tile.scratch(c_.o_at()), *m_rows = tile.scratch(c_.m_at()), *l_rows = tile.scratch(c_.l_at());
  llvm::Type* element = element_type(ir_, c_.out_dtype);
  ir_.loop(ir_.integer(0), tile.rows(), 1, "row", [&](Value* row) {
    RowOutputs outputs{};
    auto element_of = [&](std::size_t offset, const char* name) { return ir_.word(tile.pointer(offset, name), row); };
    if (spec.lse != Lse::none) outputs.lse = element_of(offsetof(TileCall, lse), "lse");
    if (spec.max_logit) outputs.max_logit = element_of(offsetof(TileCall, max_logit), "max_logit");
    if (spec.sink) outputs.sink = ir_.member(call_, offsetof(TileCall, sink), ir_.f32, "sink");
    Value* l = sum_lanes(ir_, ir_.load(ir_.f32v, row_of(ir_, l_rows, row, c_.lanes)));
    Value* m = ir_.load(ir_.f32, ir_.word(m_rows, row));
    ContinuedRow continued{};
    if (spec.accumulate) continued = emit_continued_end(ir_, plan_, outputs.lse, m, l);
    Value* factor = spec.accumulate ? continued.factor : emit_row_end(ir_, plan_, outputs, m, l);
    if (Value* scale = tile.scale(offsetof(TileCall, scale_v), "scale_v")) factor = b_.CreateFMul(factor, scale);
    if (kept_) factor = b_.CreateFMul(factor, Ir::real(ir_.f32, dropout_factor(c_.dropped)));
    Value* o = row_of(ir_, o_matrix, row, c_.o_stride());
    Value* token = tile.integer(offsetof(TileCall, o_token), "o_token");
    Value* target = b_.CreateGEP(element, tile.pointer(offsetof(TileCall, o), "o"), b_.CreateMul(row, token));
    const auto store = [&] {
      emit_store_row(
          ir_, target, c_.out_dtype, c_.d_v, factor, [&](int first) { return ir_.load(ir_.f32v, ir_.word(o, first)); },
          continued.before);
    };
    if (spec.accumulate) ir_.if_then(b_.CreateNot(continued.keeps), "goes_on", store);
    else store();
  });
}

}  // namespace

void emit_tile(Ir& ir, const Plan& plan, bool mapped) { TileEmitter(ir, plan, mapped).emit(); }

}  // namespace flashjit::host
