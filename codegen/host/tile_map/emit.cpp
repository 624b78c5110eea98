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
  static constexpr std::int64_t kBytes = 2 * sizeof(std::int64_t);  // the least and the most of a tile

  Value* integer(std::size_t offset, const char* name) { return ir_.member(call_, offset, ir_.i64, name); }
  std::int64_t size(Axis axis) const { return axis == Axis::Keys ? ir_.config.tile_kv : ir_.config.tile_q; }
  Value* length(Axis axis) const { return axis == Axis::Keys ? k_len_ : q_len_; }
  Value* tiles(Axis axis) {
    return b_.CreateSDiv(b_.CreateAdd(length(axis), ir_.integer(size(axis) - 1)), ir_.integer(size(axis)));
  }
  Value* smaller(Value* x, Value* y) { return b_.CreateSelect(b_.CreateICmpSLT(x, y), x, y); }
  // Behind the last position of the tile that begins at `lo`.
  Value* end_of(Axis axis, Value* lo) { return smaller(b_.CreateAdd(lo, ir_.integer(size(axis))), length(axis)); }

  ExprEmitter expressions() {
    ExprEmitter made(ir_, params_, plan_.spec.params, true, nullptr);
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

  void emit_states() {
    Value* states = ir_.member(call_, offsetof(TileMapCall, tiles), ir_.ptr, "tiles");
    Value *tiles_q = tiles(Axis::Queries), *tiles_kv = tiles(Axis::Keys);
    ir_.loop(ir_.integer(0), tiles_q, 1, "query_tile", [&](Value* tile_q) {
      ir_.loop(ir_.integer(0), tiles_kv, 1, "key_tile", [&](Value* tile_kv) {
        ExprEmitter here = expressions();
        for (const Axis axis : {Axis::Queries, Axis::Keys}) {
          Value* lo = b_.CreateMul(axis == Axis::Keys ? tile_kv : tile_q, ir_.integer(size(axis)));
          here.set_int(variables_of(axis).lo, lo);
          here.set_int(variables_of(axis).hi, b_.CreateSub(end_of(axis, lo), ir_.integer(1)));
        }
        for (std::size_t i = 0; i < pairs_.values.size(); ++i) {
          const TileValue& value = pairs_.values[i];
          Value* tile = value.axis == Axis::Keys ? tile_kv : tile_q;
          Value* address = ir_.byte_offset(found_[i], b_.CreateMul(tile, ir_.integer(kBytes)));
          here.set_scalar(value.least, ir_.load(ir_.i64, address, 8));
          here.set_scalar(value.most, ir_.load(ir_.i64, ir_.byte_offset(address, kBytes / 2), 8));
        }
        Value* of_seen = b_.CreateSelect(here.scalar(pairs_.full), b_.getInt8(kFullTile), b_.getInt8(kMixedTile));
        Value* state = b_.CreateSelect(here.scalar(pairs_.sees), of_seen, b_.getInt8(kEmptyTile));
        ir_.store(state, ir_.byte_offset(states, b_.CreateAdd(b_.CreateMul(tile_q, tiles_kv), tile_kv)), 1);
      });
    });
  }

  Ir& ir_;
  llvm::IRBuilder<>& b_;
  const Plan& plan_;
  const PairAnalysis& pairs_;
  Value *call_ = nullptr, *params_ = nullptr, *q_len_ = nullptr, *k_len_ = nullptr;
  std::vector<Value*> found_;  // where the tiles of a value begin
};

}  // namespace

void emit_tile_map(Ir& ir, const Plan& plan, const PairAnalysis& pairs) { MapEmitter(ir, plan, pairs).emit(); }

}  // namespace flashjit::host
