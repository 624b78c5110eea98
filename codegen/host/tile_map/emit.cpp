#include "codegen/host/tile_map/emit.h"

#include "codegen/host/emit/expr.h"

namespace flashjit::host {
namespace {

class MapEmitter {
 public:
  MapEmitter(Ir& ir, const Plan& plan, const PairAnalysis& pairs) : ir_(ir), b_(ir.b), plan_(plan), pairs_(pairs) {}

  void emit() {
    call_ = ir_.function(kTileMapName, {ir_.ptr}, true)->getArg(0);
    params_ = ir_.member(call_, offsetof(TileMapCall, params), ir_.ptr, "params");
    q_len_ = integer(offsetof(TileMapCall, q_len), "q_len");
    k_len_ = integer(offsetof(TileMapCall, k_len), "k_len");
    Value* values = ir_.member(call_, offsetof(TileMapCall, values), ir_.ptr, "values");
    for (const TileValue& value : pairs_.values) {
      found_.push_back(values);
      emit_value(value, values);
      values = ir_.byte_offset(values, b_.CreateMul(tiles(value.axis), ir_.integer(kBytes)));
    }
    emit_states();
    ir_.finish();
  }

 private:
  static constexpr std::int64_t kBytes = 2 * sizeof(std::int64_t);  // They hold the least and the most of a tile.

  Value* integer(std::size_t offset, const char* name) { return ir_.member(call_, offset, ir_.i64, name); }
  std::int64_t size(Axis axis) const { return axis == Axis::Keys ? ir_.config.tile_kv : ir_.config.tile_q; }
  Value* length(Axis axis) const { return axis == Axis::Keys ? k_len_ : q_len_; }
  Value* tiles(Axis axis) {
    return b_.CreateSDiv(b_.CreateAdd(length(axis), ir_.integer(size(axis) - 1)), ir_.integer(size(axis)));
  }
  Value* smaller(Value* x, Value* y) { return b_.CreateSelect(b_.CreateICmpSLT(x, y), x, y); }
  // Returns the end of the tile that begins at `lo`.
  Value* end_of(Axis axis, Value* lo) { return smaller(b_.CreateAdd(lo, ir_.integer(size(axis))), length(axis)); }

  // `exists` tells which keys of a vector exist.
  ExprEmitter expressions(Value* exists = nullptr) {
    ExprEmitter made(ir_, params_, plan_.spec, !exists || plan_.wide_ints, exists);
    made.set_int(Variable::B, integer(offsetof(TileMapCall, b), "b"));
    made.set_int(Variable::H, integer(offsetof(TileMapCall, h), "h"));
    made.set_int(Variable::Hk, integer(offsetof(TileMapCall, hk), "hk"));
    made.set_int(Variable::QLen, q_len_);
    made.set_int(Variable::KLen, k_len_);
    return made;
  }

  void emit_value(const TileValue& value, Value* to) {
    const auto at = [&](Value* position) {
      ExprEmitter here = expressions();
      here.set_int(variables_of(value.axis).position, position);
      return here.scalar(value.value);
    };
    ir_.loop(ir_.integer(0), tiles(value.axis), 1, "tile", [&](Value* tile) {
      Value* lo = b_.CreateMul(tile, ir_.integer(size(value.axis)));
      Value* first = at(lo);
      const Ir::Values ends = ir_.loop(b_.CreateAdd(lo, ir_.integer(1)), end_of(value.axis, lo), 1, "position",
                                       {first, first}, [&](Value* position, const Ir::Values& so_far) -> Ir::Values {
                                         Value* own = at(position);
                                         return {smaller(own, so_far[0]),
                                                 b_.CreateSelect(b_.CreateICmpSGT(own, so_far[1]), own, so_far[1])};
                                       });
      Value* address = ir_.byte_offset(to, b_.CreateMul(tile, ir_.integer(kBytes)));
      ir_.store(ends[0], address, 8);
      ir_.store(ends[1], ir_.byte_offset(address, kBytes / 2), 8);
    });
  }

  // These are two tiles, with all that is known of them before any pair of positions is asked.
  struct TilePair {
    Value *number_q, *number_kv, *lo[2], *end[2];  // The ranges of queries and of keys.
  };
  void set_variables(ExprEmitter& expressions, const TilePair& pair) {
    for (const Axis axis : {Axis::Queries, Axis::Keys}) {
      const int i = axis == Axis::Keys;
      expressions.set_int(variables_of(axis).lo, pair.lo[i]);
      expressions.set_int(variables_of(axis).hi, b_.CreateSub(pair.end[i], ir_.integer(1)));
    }
  }
  struct Asked {
    Value *some, *all;
  };
  ExprEmitter expressions_of(const TilePair& pair, const std::vector<Asked>& asked) {
    ExprEmitter here = expressions();
    set_variables(here, pair);
    for (std::size_t i = 0; i < pairs_.values.size(); ++i) {
      const TileValue& value = pairs_.values[i];
      Value* tile = value.axis == Axis::Keys ? pair.number_kv : pair.number_q;
      Value* address = ir_.byte_offset(found_[i], b_.CreateMul(tile, ir_.integer(kBytes)));
      here.set_scalar(value.least, ir_.load(ir_.i64, address, 8));
      here.set_scalar(value.most, ir_.load(ir_.i64, ir_.byte_offset(address, kBytes / 2), 8));
    }
    for (std::size_t i = 0; i < pairs_.conditions.size(); ++i) {
      here.set_scalar(pairs_.conditions[i].some, asked[i].some);
      here.set_scalar(pairs_.conditions[i].all, asked[i].all);
    }
    return here;
  }

  // Evaluates a condition for all pairs of positions, a vector of keys at a time, and for one of several queries with
  // the same answers.
  Asked ask(const TileCondition& asked, const TilePair& pair) {
    llvm::Type* bits = ir_.vector_of(ir_.i1);
    const Ir::Values none = {llvm::Constant::getNullValue(bits), llvm::Constant::getAllOnesValue(bits)};
    const auto of_query = [&](Value* q, const Ir::Values& so_far) {
      return ir_.loop(pair.lo[1], pair.end[1], ir_.config.lanes, "keys", so_far,
                      [&](Value* k, const Ir::Values& of_row) -> Ir::Values {
                        Value* left = smaller(b_.CreateSub(pair.end[1], k), ir_.integer(ir_.config.lanes));
                        Value* exists =
                            b_.CreateICmpSLT(ir_.lane_numbers(ir_.i32), ir_.splat(b_.CreateTrunc(left, ir_.i32)));
                        ExprEmitter here = expressions(exists);
                        set_variables(here, pair);
                        here.set_int(Variable::Q, q);
                        here.set_keys(k);
                        Value* holds = here.vector(asked.condition);
                        return {b_.CreateOr(of_row[0], b_.CreateAnd(holds, exists)),
                                b_.CreateAnd(of_row[1], b_.CreateOr(holds, b_.CreateNot(exists)))};
                      });
    };
    const Ir::Values found = ir_.loop(pair.lo[0], pair.end[0], asked.step_q, "query", none, of_query);
    return {b_.CreateZExt(b_.CreateOrReduce(found[0]), ir_.i64), b_.CreateZExt(b_.CreateAndReduce(found[1]), ir_.i64)};
  }

  void emit_state(const TilePair& pair, Value* to) {
    const std::vector<Asked> unknown(pairs_.conditions.size(), {ir_.integer(1), ir_.integer(0)});
    ir_.store(b_.getInt8(kEmptyTile), to, 1);
    ir_.if_then(expressions_of(pair, unknown).scalar(pairs_.sees), "may_see", [&] {
      std::vector<Asked> asked;
      for (const TileCondition& condition : pairs_.conditions) asked.push_back(ask(condition, pair));
      ExprEmitter here = expressions_of(pair, asked);
      Value* of_seen = b_.CreateSelect(here.scalar(pairs_.full), b_.getInt8(kFullTile), b_.getInt8(kMixedTile));
      ir_.store(b_.CreateSelect(here.scalar(pairs_.sees), of_seen, b_.getInt8(kEmptyTile)), to, 1);
    });
  }

  void emit_states() {
    Value* states = ir_.member(call_, offsetof(TileMapCall, tiles), ir_.ptr, "tiles");
    Value *tiles_q = tiles(Axis::Queries), *tiles_kv = tiles(Axis::Keys);
    ir_.loop(ir_.integer(0), tiles_q, 1, "query_tile", [&](Value* tile_q) {
      ir_.loop(ir_.integer(0), tiles_kv, 1, "key_tile", [&](Value* tile_kv) {
        Value *q_lo = b_.CreateMul(tile_q, ir_.integer(size(Axis::Queries))),
              *k_lo = b_.CreateMul(tile_kv, ir_.integer(size(Axis::Keys)));
        const TilePair pair = {tile_q, tile_kv, {q_lo, k_lo}, {end_of(Axis::Queries, q_lo), end_of(Axis::Keys, k_lo)}};
        emit_state(pair, ir_.byte_offset(states, b_.CreateAdd(b_.CreateMul(tile_q, tiles_kv), tile_kv)));
      });
    });
  }

  Ir& ir_;
  llvm::IRBuilder<>& b_;
  const Plan& plan_;
  const PairAnalysis& pairs_;
  Value *call_ = nullptr, *params_ = nullptr, *q_len_ = nullptr, *k_len_ = nullptr;
  std::vector<Value*> found_;  // They are where the tiles of a value begin.
};

}  // namespace

void emit_tile_map(Ir& ir, const Plan& plan, const PairAnalysis& pairs) { MapEmitter(ir, plan, pairs).emit(); }

}  // namespace flashjit::host
