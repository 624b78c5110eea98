#include "codegen/host/emit/ir.h"

namespace flashjit::host {

using llvm::BasicBlock;

Ir::Ir(llvm::Module& module, const HostConfig& config) : module(module), config(config), b(module.getContext()) {
  llvm::LLVMContext& context = module.getContext();
  f32 = llvm::Type::getFloatTy(context);
  i1 = llvm::Type::getInt1Ty(context);
  i8 = llvm::Type::getInt8Ty(context);
  i16 = llvm::Type::getInt16Ty(context);
  i32 = llvm::Type::getInt32Ty(context);
  i64 = llvm::Type::getInt64Ty(context);
  ptr = llvm::PointerType::getUnqual(context);
  nothing = llvm::Type::getVoidTy(context);
  f32v = vector_of(f32);
  i32v = vector_of(i32);
}

Value* Ir::lane_numbers(llvm::Type* element) {
  std::vector<llvm::Constant*> numbers;
  for (int lane = 0; lane < config.lanes; ++lane) numbers.push_back(llvm::ConstantInt::get(element, lane));
  return llvm::ConstantVector::get(numbers);
}

Value* Ir::invariant_load(llvm::Type* type, Value* address, const char* name) {
  llvm::LoadInst* loaded = b.CreateAlignedLoad(type, address, llvm::Align(1), name);
  loaded->setMetadata(llvm::LLVMContext::MD_invariant_load, llvm::MDNode::get(module.getContext(), {}));
  return loaded;
}

Value* Ir::member(Value* block, std::size_t offset, llvm::Type* type, const char* name) {
  return invariant_load(type, byte_offset(block, static_cast<std::int64_t>(offset)), name);
}

void Ir::loop(Value* begin, Value* end, std::int64_t step, const char* name, const std::function<void(Value*)>& body) {
  loop(begin, end, step, name, {}, [&](Value* i, const Values&) {
    body(i);
    return Values{};
  });
}

Ir::Values Ir::loop(Value* begin, Value* end, std::int64_t step, const char* name, const Values& start,
                    const std::function<Values(Value*, const Values&)>& body) {
  llvm::Function* function = b.GetInsertBlock()->getParent();
  BasicBlock* before = b.GetInsertBlock();
  BasicBlock* inside = BasicBlock::Create(module.getContext(), name, function);
  BasicBlock* after = BasicBlock::Create(module.getContext(), std::string(name) + ".end", function);
  b.CreateCondBr(b.CreateICmpSLT(begin, end), inside, after);
  b.SetInsertPoint(inside);
  llvm::PHINode* i = b.CreatePHI(i64, 2, name);
  i->addIncoming(begin, before);
  Values carried;
  for (Value* value : start) {
    llvm::PHINode* phi = b.CreatePHI(value->getType(), 2);
    phi->addIncoming(value, before);
    carried.push_back(phi);
  }
  const Values next = body(i, carried);
  BasicBlock* last = b.GetInsertBlock();
  Value* i_next = b.CreateAdd(i, integer(step), "", true, true);
  i->addIncoming(i_next, last);
  for (std::size_t n = 0; n < next.size(); ++n) llvm::cast<llvm::PHINode>(carried[n])->addIncoming(next[n], last);
  b.CreateCondBr(b.CreateICmpSLT(i_next, end), inside, after);
  b.SetInsertPoint(after);
  Values results;
  for (std::size_t n = 0; n < start.size(); ++n) {
    llvm::PHINode* phi = b.CreatePHI(start[n]->getType(), 2);
    phi->addIncoming(start[n], before);
    phi->addIncoming(next[n], last);
    results.push_back(phi);
  }
  return results;
}

void Ir::if_then(Value* condition, const char* name, const std::function<void()>& body) {
  llvm::Function* function = b.GetInsertBlock()->getParent();
  BasicBlock* inside = BasicBlock::Create(module.getContext(), name, function);
  BasicBlock* after = BasicBlock::Create(module.getContext(), std::string(name) + ".end", function);
  b.CreateCondBr(condition, inside, after);
  b.SetInsertPoint(inside);
  body();
  b.CreateBr(after);
  b.SetInsertPoint(after);
}

llvm::Function* Ir::function(const std::string& name, const std::vector<llvm::Type*>& arguments, bool exported) {
  llvm::Function* function = llvm::Function::Create(
      llvm::FunctionType::get(nothing, arguments, false),
      exported ? llvm::Function::ExternalLinkage : llvm::Function::InternalLinkage, name, module);
  function->addFnAttr(llvm::Attribute::NoUnwind);
  if (!exported) function->addFnAttr(llvm::Attribute::NoInline);
  if (config.avx512) {
    // Without these attributes LLVM may split 512-bit vectors in two.
    function->addFnAttr("prefer-vector-width", "512");
    function->addFnAttr("min-legal-vector-width", "512");
  }
  for (unsigned i = 0; i < arguments.size(); ++i) {
    if (arguments[i]->isPointerTy()) function->addParamAttr(i, llvm::Attribute::NoAlias);
  }
  b.SetInsertPoint(BasicBlock::Create(module.getContext(), "entry", function));
  return function;
}

}  // namespace flashjit::host
