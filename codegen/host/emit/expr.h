// Turns Expr into LLVM IR. A value that depends on k or s is a vector over neighbouring keys, and any other value is a
// scalar.
#pragma once

#include <array>
#include <string>
#include <unordered_map>

#include "codegen/host/emit/ir.h"
#include "compiler/analysis/interval.h"
#include "compiler/spec/spec.h"

namespace flashjit::host {

class ExprEmitter {
 public:
  // `params` is the KernelParams block. Ints have 64 bits when `wide`, else 32. `lanes_valid` (or null) tells which
  // keys exist: only their parameters are read. With places, the queries, keys and lengths that are set belong to the
  // call's rows, and expressions see the positions of these in the whole sequence.
  ExprEmitter(Ir& ir, Value* params, const AttentionSpec& spec, bool wide, Value* lanes_valid);

  void set(Variable variable, Value* value) { variables_[static_cast<std::size_t>(variable)] = value; }
  // Sets a scalar int, in the width of this emitter's ints.
  void set_int(Variable variable, Value* i64_value);
  // Sets a scalar parameter that is not one of the call's.
  void set_scalar(const Param& param, Value* i64_value);
  void set_keys(Value* first_key);  // Sets k = first_key + <0, 1, 2, ...>.

  Value* scalar(const Expr& expr);  // The expression must use neither k nor s.
  // The expression is the end of a range of positions. This returns the first row of the call that does not stand
  // before the end.
  Value* row(const Expr& expr, Axis axis);
  Value* vector(const Expr& expr);

 private:
  Value* emit(const Expr& expr);
  Value* emit_node(const Node& node);
  Value* arithmetic(const Node& node, Value* x, Value* y);
  Value* divide(const Node& node, Value* x, Value* y);
  Value* function(const Node& node, Value* x);
  Value* read_param(const Node& node);
  Value* read_vector(const Param& param, Value* base, const std::vector<Value*>& index,
                     const std::vector<Value*>& stride, bool unit_step);
  Value* raw_to_value(Value* raw, Dtype dtype);
  void widen_together(Value*& x, Value*& y);
  llvm::Type* raw_type(Dtype dtype);
  bool steps_with_keys(const Expr& expr);
  Value* place(Axis axis, std::size_t number);
  Value* position_of(Axis axis, Value* row);

  Ir& ir_;
  Value* params_;
  const std::vector<Param>& order_;
  const bool placed_;
  llvm::Type* int_;
  Value* lanes_valid_;
  std::array<Value*, 12> variables_{};
  std::unordered_map<std::string, Value*> scalars_;
  std::unordered_map<const Node*, Value*> done_;
};

}  // namespace flashjit::host
