// This is a thin layer over llvm::IRBuilder: vectors of the target's width, byte addressing, counted loops.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/Intrinsics.h>
#include <llvm/IR/Module.h>

#include "codegen/host/config.h"

namespace flashjit::host {

using llvm::Value;

class Ir {
 public:
  Ir(llvm::Module& module, const HostConfig& config);

  llvm::Module& module;
  const HostConfig& config;
  llvm::IRBuilder<> b;
  llvm::Type *f32, *i1, *i8, *i16, *i32, *i64, *ptr, *nothing;
  llvm::Type *f32v, *i32v;  // They are `lanes` wide.

  Value* integer(std::int64_t value) { return llvm::ConstantInt::getSigned(i64, value); }
  // Returns a float constant of type `type`, or of a vector of floats.
  static Value* real(llvm::Type* type, double value) { return llvm::ConstantFP::get(type, value); }
  Value* splat(Value* scalar) { return b.CreateVectorSplat(config.lanes, scalar); }
  llvm::Type* vector_of(llvm::Type* element, int lanes = 0) {
    return llvm::FixedVectorType::get(element, lanes ? lanes : config.lanes);
  }
  // Returns <0, 1, 2, ...> of integers of type `element`.
  Value* lane_numbers(llvm::Type* element);

  Value* byte_offset(Value* base, Value* bytes) { return b.CreateGEP(i8, base, bytes); }
  Value* byte_offset(Value* base, std::int64_t bytes) { return b.CreateConstGEP1_64(i8, base, bytes); }
  Value* word(Value* base, Value* index) { return b.CreateGEP(i32, base, index); }
  Value* word(Value* base, std::int64_t index) { return b.CreateConstGEP1_64(i32, base, index); }
  // Loads a member of a call block. Such memory does not change while a kernel runs.
  Value* member(Value* block, std::size_t offset, llvm::Type* type, const char* name);
  Value* invariant_load(llvm::Type* type, Value* address, const char* name = "");
  // Loads an element of an array of addresses that does not change while a kernel runs.
  Value* row(Value* rows, Value* number) { return invariant_load(ptr, b.CreateGEP(ptr, rows, number), "row"); }
  Value* load(llvm::Type* type, Value* address, int align = 4) {
    return b.CreateAlignedLoad(type, address, llvm::Align(align));
  }
  void store(Value* value, Value* address, int align = 4) { b.CreateAlignedStore(value, address, llvm::Align(align)); }

  // Emits for (i = begin; i < end; i += step) body(i). The second form passes values from one round to the next.
  using Values = std::vector<Value*>;
  void loop(Value* begin, Value* end, std::int64_t step, const char* name, const std::function<void(Value* i)>& body);
  Values loop(Value* begin, Value* end, std::int64_t step, const char* name, const Values& start,
              const std::function<Values(Value* i, const Values& carried)>& body);
  void if_then(Value* condition, const char* name, const std::function<void()>& body);

  // Starts a function: void name(arguments...). `exported` functions can be looked up; the others are internal.
  llvm::Function* function(const std::string& name, const std::vector<llvm::Type*>& arguments, bool exported);
  void finish() { b.CreateRetVoid(); }

  Value* call(llvm::Intrinsic::ID id, const std::vector<llvm::Type*>& types, const std::vector<Value*>& arguments) {
    return b.CreateIntrinsic(id, types, arguments);
  }
  Value* fma(Value* x, Value* y, Value* z) { return call(llvm::Intrinsic::fma, {x->getType()}, {x, y, z}); }
  // Returns the larger value, by one instruction. Where x or y is NaN the result is y.
  Value* max(Value* x, Value* y) { return b.CreateSelect(b.CreateFCmpOGT(x, y), x, y); }
};

}  // namespace flashjit::host
