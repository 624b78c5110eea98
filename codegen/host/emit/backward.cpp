// Emits the products of a tile of keys with all queries of a head.
#include "codegen/host/emit/backward.h"

#include <optional>

#include "codegen/host/emit/dropout.h"
#include "codegen/host/emit/expr.h"
#include "codegen/host/emit/gemm.h"
#include "codegen/host/emit/math.h"
#include "codegen/host/emit/softmax.h"
#include "codegen/host/tile_map/tile_map.h"

namespace flashjit::host {
namespace {

class BackwardEmitter {
 public:
  BackwardEmitter(Ir& ir, const Plan& plan, const ScoreGradients& gradients, const std::vector<GradientRead>& reads,
                  bool mapped)
      : ir_(ir), b_(ir.b), c_(ir.config), plan_(plan), gradients_(gradients), reads_(reads), mapped_(mapped) {}

  void emit() {
    const auto unroll = [](int words) { return words % 4 == 0 ? 4 : words % 2 == 0 ? 2 : 1; };
    const int of_rows = unroll(c_.row_block / c_.pack);
    scores_ = emit_micro_kernel(ir_, {"scores", c_.q_stride(), c_.panel, false, unroll(c_.words_qk)});
    dp_ = emit_micro_kernel(ir_, {"dp", c_.do_stride(), c_.panel, false, unroll(c_.words_v)});
    of_keys_ = emit_micro_kernel(ir_, {"of_keys", c_.tile_words, c_.gradient_stride(), true, of_rows});
    of_queries_ = emit_micro_kernel(ir_, {"of_queries", c_.ds_stride(), c_.width_qk, true, 4});
    if (c_.dropped > 0) kept_.emplace(ir_, c_.kept_row_bytes());
    llvm::Function* full = emit_tile("full_tile", false);
    llvm::Function* mixed = emit_tile("mixed_tile", true);
    start(ir_.function(kBackwardName, {ir_.ptr}, true));
    if (c_.product == Product::Amx) emit_amx_begin(ir_);
    emit_query_loop(full, mixed);
    if (c_.product == Product::Amx) emit_amx_end(ir_);
    ir_.finish();
  }

 private:
  struct Range {
    Value *begin, *end;
  };
  // A tile of queries has its rows in blocks, and the addresses of its data.
  struct Tile {
    Value *q_lo, *rows, *padded;
    Value *q, *d_o, *q_transposed, *do_transposed, *lse, *delta, *dq;
  };

  void start(llvm::Function* function) { call_ = function->getArg(0); }
  Value* pointer(std::size_t offset, const char* name) { return ir_.member(call_, offset, ir_.ptr, name); }
  Value* integer(std::size_t offset, const char* name) { return ir_.member(call_, offset, ir_.i64, name); }
  Value* scratch(std::int64_t at) { return ir_.byte_offset(pointer(offsetof(BackwardCall, scratch), "scratch"), at); }
  Value* smaller(Value* x, Value* y) { return b_.CreateSelect(b_.CreateICmpSLT(x, y), x, y); }
  Value* larger(Value* x, Value* y) { return b_.CreateSelect(b_.CreateICmpSGT(x, y), x, y); }
  Value* times(Value* x, std::int64_t y) { return b_.CreateMul(x, ir_.integer(y)); }
  Value* plus(Value* x, Value* y) { return b_.CreateAdd(x, y); }
  Value* minus(Value* x, Value* y) { return b_.CreateSub(x, y); }
  Value* down(Value* x, int multiple) { return minus(x, b_.CreateSRem(x, ir_.integer(multiple))); }
  Value* up(Value* x, int multiple) { return down(plus(x, ir_.integer(multiple - 1)), multiple); }
  Value* words(Value* elements) { return b_.CreateSDiv(elements, ir_.integer(c_.pack)); }
  Value* columns() { return up(integer(offsetof(BackwardCall, keys), "keys"), c_.panel); }

  RowContext context(Value* q) {
    return {pointer(offsetof(BackwardCall, params), "params"), q,
            integer(offsetof(BackwardCall, b), "b"),           integer(offsetof(BackwardCall, h), "h"),
            integer(offsetof(BackwardCall, hk), "hk"),         integer(offsetof(BackwardCall, q_len), "q_len"),
            integer(offsetof(BackwardCall, k_len), "k_len"),   nullptr};
  }
  KeptTile kept(const Tile& tile) {
    return {scratch(c_.kept_at()),
            ir_.byte_offset(call_, std::int64_t{offsetof(BackwardCall, key)}),
            integer(offsetof(BackwardCall, b), "b"),
            integer(offsetof(BackwardCall, h), "h"),
            tile.q_lo,
            tile.padded,
            integer(offsetof(BackwardCall, k_lo), "k_lo"),
            columns()};
  }
  ExprEmitter expressions() {
    const RowContext here = context(nullptr);
    ExprEmitter e(ir_, here.params, plan_.spec, true, nullptr);
    e.set_int(Variable::B, here.b);
    e.set_int(Variable::H, here.h);
    e.set_int(Variable::Hk, here.hk);
    e.set_int(Variable::QLen, here.q_len);
    e.set_int(Variable::KLen, here.k_len);
    return e;
  }
  // Returns the range that one analysis leaves of its axis, inside of 0..length, for the positions lo..last of the
  // other axis.
  Range emit_range(const TileAnalysis& tiles, Value* lo, Value* last, Value* length, bool full) {
    ExprEmitter e = expressions();
    const AxisVariables of = variables_of(other(tiles.along));
    e.set_int(of.lo, lo);
    e.set_int(of.hi, last);
    const Expr &begin = full ? tiles.full_begin : tiles.begin, &end = full ? tiles.full_end : tiles.end;
    return {begin ? larger(e.row(begin, tiles.along), ir_.integer(0)) : ir_.integer(0),
            end ? smaller(e.row(end, tiles.along), length) : length};
  }

  void emit_query_loop(llvm::Function* full, llvm::Function* mixed);
  Value* state_at(Value* q_lo);
  llvm::Function* emit_tile(const char* name, bool masked);
  Tile tile_at(Value* q_lo);
  Range rows_of_panel(const Tile& tile, Value* column, bool masked);
  Range columns_of_block(const Tile& tile, Value* row, bool masked);
  void emit_panel(const Tile& tile, Value* column, bool masked);
  void emit_gradients(const Tile& tile, Value* column, const Range& rows, bool masked);
  struct Gradient {
    Value *p, *ds;
  };
  Gradient emit_gradient(const Tile& tile, Value* row, Value* column, int vector, bool masked);
  void emit_parameter_gradients(const LogitsAndSlopes& s, Value* by_logit);
  void add_to_elements(Value* base, Value* offsets, Value* exists, Value* values);
  void emit_blank(Value* column, Value* from, Value* to);

  Ir& ir_;
  llvm::IRBuilder<>& b_;
  const BackwardConfig c_;
  const Plan& plan_;
  const ScoreGradients& gradients_;
  const std::vector<GradientRead>& reads_;  // They have the order of gradients_.by_params.
  const bool mapped_;
  Value* call_ = nullptr;
  std::optional<KeptBits> kept_;  // It is set with dropout.
  llvm::Function *scores_ = nullptr, *dp_ = nullptr, *of_keys_ = nullptr, *of_queries_ = nullptr;
};

// Returns the state that the map has for the tile of queries that begins at q_lo.
Value* BackwardEmitter::state_at(Value* q_lo) {
  Value* keys = integer(offsetof(BackwardCall, k_len), "k_len");
  Value* in_row = b_.CreateSDiv(plus(keys, ir_.integer(c_.tile_kv - 1)), ir_.integer(c_.tile_kv));
  Value* tile = b_.CreateSDiv(q_lo, ir_.integer(c_.tile_q));
  return ir_.load(ir_.i8, ir_.byte_offset(pointer(offsetof(BackwardCall, tiles), "tiles"), b_.CreateMul(tile, in_row)),
                  1);
}

// Visits tiles of queries that see the keys, from the first one on. Tiles inside of the full range have no mask code.
void BackwardEmitter::emit_query_loop(llvm::Function* full, llvm::Function* mixed) {
  Value *k_lo = integer(offsetof(BackwardCall, k_lo), "k_lo"), *keys = integer(offsetof(BackwardCall, keys), "keys");
  Value* q_len = integer(offsetof(BackwardCall, q_len), "q_len");
  Value* last = minus(plus(k_lo, keys), ir_.integer(1));
  const Range seen = emit_range(plan_.query_tiles, k_lo, last, q_len, false);
  Range whole = emit_range(plan_.query_tiles, k_lo, last, q_len, true);
  // The mask code alone hides columns behind the last key.
  Value* panels = b_.CreateICmpEQ(keys, columns());
  whole.end = b_.CreateSelect(panels, whole.end, ir_.integer(0));
  ir_.loop(down(seen.begin, c_.tile_q), seen.end, c_.tile_q, "q_lo", [&](Value* q_lo) {
    Value* q_end = smaller(plus(q_lo, ir_.integer(c_.tile_q)), q_len);
    Value* state = mapped_ ? state_at(q_lo) : nullptr;
    Value* is_full = mapped_ ? b_.CreateAnd(panels, b_.CreateICmpEQ(state, b_.getInt8(kFullTile)))
                             : b_.CreateAnd(b_.CreateICmpSGE(q_lo, whole.begin), b_.CreateICmpSLE(q_end, whole.end));
    ir_.if_then(is_full, "full", [&] { b_.CreateCall(full, {call_, q_lo}); });
    Value* visits = b_.CreateNot(is_full);
    if (mapped_) {
      visits = b_.CreateAnd(visits, b_.CreateICmpNE(state, b_.getInt8(kEmptyTile)));
    } else if (plan_.query_tiles.may_see) {
      ExprEmitter e = expressions();
      e.set_int(Variable::QLo, q_lo);
      e.set_int(Variable::QHi, minus(q_end, ir_.integer(1)));
      e.set_int(Variable::KLo, k_lo);
      e.set_int(Variable::KHi, last);
      visits = b_.CreateAnd(visits, e.scalar(plan_.query_tiles.may_see));
    }
    ir_.if_then(visits, "mixed", [&] { b_.CreateCall(mixed, {call_, q_lo}); });
  });
}

BackwardEmitter::Tile BackwardEmitter::tile_at(Value* q_lo) {
  Tile t{};
  t.q_lo = q_lo;
  t.rows = smaller(minus(integer(offsetof(BackwardCall, q_len), "q_len"), q_lo), ir_.integer(c_.tile_q));
  t.padded = up(t.rows, c_.row_block);
  t.q = ir_.word(pointer(offsetof(BackwardCall, q_rows), "q"), times(q_lo, c_.q_stride()));
  t.d_o = ir_.word(pointer(offsetof(BackwardCall, do_rows), "do"), times(q_lo, c_.do_stride()));
  Value* number = b_.CreateSDiv(q_lo, ir_.integer(c_.tile_q));
  t.q_transposed = ir_.byte_offset(pointer(offsetof(BackwardCall, q_transposed), "q_transposed"),
                                   times(number, c_.transposed_tile_bytes(c_.d_qk)));
  t.do_transposed = ir_.byte_offset(pointer(offsetof(BackwardCall, do_transposed), "do_transposed"),
                                    times(number, c_.transposed_tile_bytes(c_.d_v)));
  t.lse = ir_.word(pointer(offsetof(BackwardCall, lse_facts), "lse"), q_lo);
  t.delta = ir_.word(pointer(offsetof(BackwardCall, delta), "delta"), q_lo);
  t.dq = ir_.word(pointer(offsetof(BackwardCall, dq), "dq"), times(q_lo, c_.width_qk));
  return t;
}

// Returns whole blocks of rows in which some row sees a key of the panel.
BackwardEmitter::Range BackwardEmitter::rows_of_panel(const Tile& tile, Value* column, bool masked) {
  if (!masked) return {ir_.integer(0), tile.padded};
  Value* k_len = integer(offsetof(BackwardCall, k_len), "k_len");
  Value* first = plus(integer(offsetof(BackwardCall, k_lo), "k_lo"), column);
  Value* last = minus(smaller(plus(first, ir_.integer(c_.panel)), k_len), ir_.integer(1));
  const Range seen = emit_range(plan_.query_tiles, first, last, integer(offsetof(BackwardCall, q_len), "q_len"), false);
  Value* begin = smaller(down(larger(minus(seen.begin, tile.q_lo), ir_.integer(0)), c_.row_block), tile.padded);
  Value* end = up(larger(smaller(minus(seen.end, tile.q_lo), tile.rows), ir_.integer(0)), c_.row_block);
  return {begin, larger(begin, end)};
}

// Returns whole panels of keys that some row of the block sees.
BackwardEmitter::Range BackwardEmitter::columns_of_block(const Tile& tile, Value* row, bool masked) {
  if (!masked) return {ir_.integer(0), columns()};
  Value* first = plus(tile.q_lo, row);
  Value* last = minus(smaller(plus(first, ir_.integer(c_.row_block)), plus(tile.q_lo, tile.rows)), ir_.integer(1));
  const Range seen = emit_range(plan_.tiles, first, last, integer(offsetof(BackwardCall, k_len), "k_len"), false);
  Value* k_lo = integer(offsetof(BackwardCall, k_lo), "k_lo");
  Value* begin = down(larger(minus(seen.begin, k_lo), ir_.integer(0)), c_.panel);
  return {begin, up(smaller(minus(seen.end, k_lo), columns()), c_.panel)};
}

// Emits void(call, first query).
llvm::Function* BackwardEmitter::emit_tile(const char* name, bool masked) {
  llvm::Function* function = ir_.function(name, {ir_.ptr, ir_.i64}, false);
  start(function);
  const Tile tile = tile_at(function->getArg(1));
  if (kept_) kept_->write(kept(tile));
  ir_.loop(ir_.integer(0), columns(), c_.panel, "column", [&](Value* column) { emit_panel(tile, column, masked); });
  Value *ds = scratch(c_.ds_rows_at()), *k = pointer(offsetof(BackwardCall, k_rows), "k_rows");
  Value* panel_words = integer(offsetof(BackwardCall, k_panel_words), "k_panel_words");
  ir_.loop(ir_.integer(0), tile.padded, c_.row_block, "row", [&](Value* row) {
    const Range seen = columns_of_block(tile, row, masked);
    Value* count = words(minus(seen.end, seen.begin));
    ir_.if_then(b_.CreateICmpSGT(count, ir_.integer(0)), "seen", [&] {
      Value* left = ir_.word(ir_.word(ds, times(row, c_.ds_stride())), words(seen.begin));
      Value* right = ir_.word(k, times(words(seen.begin), c_.panel));
      Value* to = ir_.word(tile.dq, times(row, c_.width_qk));
      ir_.loop(ir_.integer(0), ir_.integer(c_.width_qk / c_.panel), 1, "panel", [&](Value* panel) {
        b_.CreateCall(of_queries_, {left, ir_.word(right, b_.CreateMul(panel, panel_words)),
                                    ir_.word(to, times(panel, c_.panel)), count});
      });
    });
  });
  ir_.finish();
  return function;
}

// Emits one panel of keys: S and dP, their gradients, and what keys get of them.
void BackwardEmitter::emit_panel(const Tile& tile, Value* column, bool masked) {
  const Range rows = rows_of_panel(tile, column, masked);
  Value* k = ir_.word(pointer(offsetof(BackwardCall, k_columns), "k_columns"), times(column, c_.words_qk));
  Value* v = ir_.word(pointer(offsetof(BackwardCall, v_columns), "v_columns"), times(column, c_.words_v));
  Value *s = scratch(c_.s_at()), *dp = scratch(c_.dp_at());
  ir_.loop(rows.begin, rows.end, c_.row_block, "row", [&](Value* row) {
    Value* at = times(row, c_.panel);
    b_.CreateCall(scores_, {ir_.word(tile.q, times(row, c_.q_stride())), k, ir_.word(s, at), ir_.integer(c_.words_qk)});
    b_.CreateCall(dp_, {ir_.word(tile.d_o, times(row, c_.do_stride())), v, ir_.word(dp, at), ir_.integer(c_.words_v)});
  });
  emit_gradients(tile, column, rows, masked);
  if (masked) {
    emit_blank(column, ir_.integer(0), rows.begin);
    emit_blank(column, rows.end, tile.padded);
  }
  Value *first = words(rows.begin), *count = words(minus(rows.end, rows.begin));
  auto add = [&](Value* left, std::int64_t right_at, std::int64_t sums_at, int d) {
    Value* right = ir_.word(scratch(right_at), times(first, c_.panel));
    Value* sums = ir_.word(scratch(sums_at), column);
    ir_.loop(ir_.integer(0), ir_.integer(d), c_.row_block, "d", [&](Value* at) {
      b_.CreateCall(of_keys_, {ir_.word(ir_.word(left, first), times(at, c_.tile_words)), right,
                               ir_.word(sums, times(at, c_.gradient_stride())), count});
    });
  };
  ir_.if_then(b_.CreateICmpSGT(count, ir_.integer(0)), "seen", [&] {
    add(tile.do_transposed, c_.p_at(), c_.dv_at(), c_.d_v);
    add(tile.q_transposed, c_.ds_at(), c_.dk_at(), c_.d_qk);
  });
}

// Turns S and dP of a panel into P and dS, in words of queries; dS goes to its rows as well, in words of keys.
void BackwardEmitter::emit_gradients(const Tile& tile, Value* column, const Range& rows, bool masked) {
  Value *p = scratch(c_.p_at()), *ds = scratch(c_.ds_at()), *ds_rows = scratch(c_.ds_rows_at());
  auto in_row = [&](Value* row, int vector) {
    llvm::Type* element = c_.pack == 1 ? ir_.f32 : ir_.i16;
    Value* of_row = ir_.word(ds_rows, times(row, c_.ds_stride()));
    return b_.CreateGEP(element, of_row, plus(column, ir_.integer(vector * c_.lanes)));
  };
  ir_.loop(rows.begin, rows.end, c_.pack, "row", [&](Value* row) {
    Value* at = times(words(row), c_.panel);
    for (int vector = 0; vector < 2; ++vector) {
      Value *p_at = ir_.word(ir_.word(p, at), vector * c_.lanes),
            *ds_at = ir_.word(ir_.word(ds, at), vector * c_.lanes);
      const Gradient low = emit_gradient(tile, row, column, vector, masked);
      if (c_.pack == 1) {
        ir_.store(low.p, p_at);
        ir_.store(low.ds, ds_at);
        ir_.store(low.ds, in_row(row, vector));
        continue;
      }
      Value* next = plus(row, ir_.integer(1));
      const Gradient high = emit_gradient(tile, next, column, vector, masked);
      auto narrowed = [&](Value* values) { return narrow(ir_, values, Dtype::BF16); };
      auto pair = [&](Value* x, Value* y) {
        return b_.CreateOr(b_.CreateZExt(x, ir_.i32v), b_.CreateShl(b_.CreateZExt(y, ir_.i32v), 16));
      };
      Value *ds_low = narrowed(low.ds), *ds_high = narrowed(high.ds);
      ir_.store(pair(narrowed(low.p), narrowed(high.p)), p_at);
      ir_.store(pair(ds_low, ds_high), ds_at);
      ir_.store(ds_low, in_row(row, vector), 2);
      ir_.store(ds_high, in_row(next, vector), 2);
    }
  });
}

BackwardEmitter::Gradient BackwardEmitter::emit_gradient(const Tile& tile, Value* row, Value* column, int vector,
                                                         bool masked) {
  Value* at = plus(times(row, c_.panel), ir_.integer(vector * c_.lanes));
  Value* products = ir_.load(ir_.f32v, ir_.word(scratch(c_.s_at()), at));
  Value* dp = ir_.load(ir_.f32v, ir_.word(scratch(c_.dp_at()), at));
  Value* k_lo = integer(offsetof(BackwardCall, k_lo), "k_lo");
  Value* end_key = masked ? plus(k_lo, integer(offsetof(BackwardCall, keys), "keys")) : nullptr;
  // Rows behind the last one read the last row's data, and their logarithm is infinity.
  Value* q = plus(tile.q_lo, smaller(row, minus(tile.rows, ir_.integer(1))));
  Value* first_key = plus(plus(k_lo, column), ir_.integer(vector * c_.lanes));
  const LogitsAndSlopes s = emit_logits_and_slopes(ir_, plan_, gradients_, context(q), products, first_key, end_key);
  auto fact = [&](Value* of) { return ir_.splat(ir_.load(ir_.f32, ir_.word(of, row))); };
  Value* p = exp2(ir_, emit_power(ir_, plan_, b_.CreateFSub(s.logits, fact(tile.lse))));
  if (plan_.spec.score) {  // A score of the zeros behind the last row may be no number.
    Value* is_row = b_.CreateICmpSLT(row, tile.rows);
    p = b_.CreateSelect(is_row, p, Ir::real(ir_.f32v, 0));
  }
  Value* of_v = p;  // Its factor is missing, which dV gets in the end.
  if (kept_) {
    Value* is_kept = kept_->load(kept(tile), row, plus(column, ir_.integer(vector * c_.lanes)));
    of_v = kept_->keep(is_kept, p, false);
    dp = kept_->keep(is_kept, dp, true);
  }
  Value* ds = b_.CreateFMul(p, b_.CreateFSub(dp, fact(tile.delta)));
  // Where P is 0 nothing is added, whatever dP is: for hidden keys dP may be anything.
  Value* zero = Ir::real(ir_.f32v, 0);
  Value* is_zero = b_.CreateFCmpOEQ(p, zero);
  if (!s.reads.empty()) emit_parameter_gradients(s, b_.CreateSelect(is_zero, zero, ds));
  if (s.slopes) ds = b_.CreateFMul(ds, s.slopes);
  return {of_v, b_.CreateSelect(is_zero, zero, ds)};
}

// `by_logit` are the gradients of the logits.
void BackwardEmitter::emit_parameter_gradients(const LogitsAndSlopes& s, Value* by_logit) {
  Value* zero = Ir::real(ir_.f32v, 0);
  for (std::size_t i = 0; i < reads_.size(); ++i) {
    const LogitsAndSlopes::Read& read = s.reads[i];
    // 0 times an infinite derivative is 0, and counts for nothing.
    Value* values = b_.CreateSelect(b_.CreateFCmpOEQ(by_logit, zero), zero, b_.CreateFMul(by_logit, read.derivative));
    const std::size_t at = static_cast<std::size_t>(reads_[i].gradient) * sizeof(ParamGradient);
    Value* gradients = pointer(offsetof(BackwardCall, d_extra), "gradients");
    Value* base = ir_.member(gradients, at + offsetof(ParamGradient, data), ir_.ptr, "gradient");
    Value *offset = ir_.integer(0), *offsets = nullptr;
    for (std::size_t j = 0; j < read.indices.size(); ++j) {
      const std::size_t dimension = kMaxParamRank - read.indices.size() + j;
      Value* stride =
          ir_.member(gradients, at + offsetof(ParamGradient, stride) + dimension * sizeof(Int64), ir_.i64, "stride");
      Value* index = read.indices[j];
      if (!index->getType()->isVectorTy()) {
        offset = plus(offset, b_.CreateMul(b_.CreateSExt(index, ir_.i64), stride));
        continue;
      }
      Value* term = b_.CreateMul(b_.CreateSExt(index, ir_.vector_of(ir_.i64)), ir_.splat(stride));
      offsets = offsets ? plus(offsets, term) : term;
    }
    base = b_.CreateGEP(ir_.f32, base, offset);
    if (offsets) add_to_elements(base, offsets, s.exists, values);
    else ir_.store(b_.CreateFAdd(ir_.load(ir_.f32, base), sum_lanes(ir_, values)), base);
  }
}

// Lanes are added one after the other, because neighbouring keys may have the same element. A key that does not exist
// has no known element, so it gets one that is not used.
void BackwardEmitter::add_to_elements(Value* base, Value* offsets, Value* exists, Value* values) {
  Value* addresses = b_.CreateGEP(ir_.f32, base, offsets);
  if (exists) addresses = b_.CreateSelect(exists, addresses, ir_.splat(scratch(c_.unused_row_at())));
  for (int lane = 0; lane < c_.lanes; ++lane) {
    const auto of_lane = [&](Value* of) { return b_.CreateExtractElement(of, static_cast<std::uint64_t>(lane)); };
    Value* to = of_lane(addresses);
    ir_.store(b_.CreateFAdd(ir_.load(ir_.f32, to), of_lane(values)), to);
  }
}

// Writes zeros to the rows of dS that see no key of the panel.
void BackwardEmitter::emit_blank(Value* column, Value* from, Value* to) {
  llvm::Type* type = c_.pack == 1 ? ir_.f32v : ir_.vector_of(ir_.i16);
  ir_.loop(from, to, 1, "row", [&](Value* row) {
    Value* of_row = ir_.word(scratch(c_.ds_rows_at()), times(row, c_.ds_stride()));
    for (int vector = 0; vector < 2; ++vector) {
      Value* at = ir_.word(of_row, words(plus(column, ir_.integer(vector * c_.lanes))));
      ir_.store(llvm::Constant::getNullValue(type), at);
    }
  });
}

}  // namespace

void emit_backward(Ir& ir, const Plan& plan, const ScoreGradients& gradients, const std::vector<GradientRead>& reads,
                   bool mapped) {
  BackwardEmitter(ir, plan, gradients, reads, mapped).emit();
}

}  // namespace flashjit::host
