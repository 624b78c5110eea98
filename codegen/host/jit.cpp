#include "codegen/host/jit.h"

#include <cstring>
#include <mutex>

#include <llvm/BinaryFormat/ELF.h>
#include <llvm/ExecutionEngine/Orc/CompileUtils.h>
#include <llvm/MC/TargetRegistry.h>
#include <llvm/Passes/PassBuilder.h>
#include <llvm/Support/TargetSelect.h>

namespace flashjit::host {
namespace {

constexpr char kTriple[] = "x86_64-unknown-linux-gnu";

Error compile_error(llvm::Error error) {
  return {ErrorKind::Compile, "LLVM refused the generated code", llvm::toString(std::move(error))};
}

std::string features_of(const Capabilities& can) {
  std::string features;
  if (can.avx512_bf16) features += "+avx512bf16,";
  if (can.amx_bf16) features += "+amx-tile,+amx-bf16,";
  return features;
}

void initialise() {
  static std::once_flag once;
  std::call_once(once, [] {
    LLVMInitializeX86TargetInfo();
    LLVMInitializeX86Target();
    LLVMInitializeX86TargetMC();
    LLVMInitializeX86AsmPrinter();
  });
}

// The linker takes objects of every kind that it knows, and would make code of those, too.
Result<void> check_object(std::span<const std::uint8_t> object) {
  llvm::ELF::Elf64_Ehdr header = {};
  if (object.size() >= sizeof header) std::memcpy(&header, object.data(), sizeof header);
  if (header.checkMagic() && header.getFileClass() == llvm::ELF::ELFCLASS64 &&
      header.getDataEncoding() == llvm::ELF::ELFDATA2LSB && header.e_type == llvm::ELF::ET_REL &&
      header.e_machine == llvm::ELF::EM_X86_64) {
    return {};
  }
  return Error{ErrorKind::Compile, std::to_string(object.size()) + " bytes that are no object file for x86-64", {}};
}

}  // namespace

Result<std::unique_ptr<llvm::TargetMachine>> make_target_machine(const Target& target) {
  initialise();
  std::string problem;
  const llvm::Target* x86 = llvm::TargetRegistry::lookupTarget(kTriple, problem);
  if (!x86) return Error{ErrorKind::Compile, "LLVM has no x86-64 target: " + problem, {}};
  std::unique_ptr<llvm::TargetMachine> machine(
      x86->createTargetMachine(kTriple, target.can.avx512 ? "x86-64-v4" : "x86-64-v3", features_of(target.can), {},
                               llvm::Reloc::PIC_, llvm::CodeModel::Small, llvm::CodeGenOptLevel::Default, true));
  if (!machine) return internal("no LLVM target machine for " + std::string(target.name));
  return machine;
}

// Where loops are vectors already, LLVM's own vectorisers and unrollers find nothing to do and take half of its time.
// The other passes remain: they find what a kernel computes twice, or needlessly in a loop, and branches that are
// known.
constexpr const char* kPassesForVectors =
    "function(sroa,early-cse<memssa>,simplifycfg,instcombine<no-verify-fixpoint>,loop-mssa(licm),gvn,"
    "loop(loop-unroll-full),instcombine<no-verify-fixpoint>,simplifycfg,adce)";

void optimise(llvm::Module& module, llvm::TargetMachine& machine, Emitted emitted) {
  llvm::LoopAnalysisManager loops;
  llvm::FunctionAnalysisManager functions;
  llvm::CGSCCAnalysisManager components;
  llvm::ModuleAnalysisManager modules;
  llvm::PassBuilder builder(&machine);
  builder.registerModuleAnalyses(modules);
  builder.registerCGSCCAnalyses(components);
  builder.registerFunctionAnalyses(functions);
  builder.registerLoopAnalyses(loops);
  builder.crossRegisterProxies(loops, functions, components, modules);
  llvm::ModulePassManager passes;
  if (emitted == Emitted::Vectors) llvm::cantFail(builder.parsePassPipeline(passes, kPassesForVectors));
  else passes = builder.buildPerModuleDefaultPipeline(llvm::OptimizationLevel::O2);
  passes.run(module, modules);
}

Result<std::vector<std::uint8_t>> object_of(llvm::Module& module, llvm::TargetMachine& machine) {
  llvm::orc::SimpleCompiler compiler(machine);
  auto object = compiler(module);
  if (!object) return compile_error(object.takeError());
  return std::vector<std::uint8_t>((*object)->getBufferStart(), (*object)->getBufferEnd());
}

Result<std::unique_ptr<Code>> Code::link(std::span<const std::uint8_t> object) {
  FLASHJIT_TRY(check_object(object));
  initialise();
  auto jit = llvm::orc::LLJITBuilder()
                 .setJITTargetMachineBuilder(llvm::orc::JITTargetMachineBuilder(llvm::Triple(kTriple)))
                 .setLinkProcessSymbolsByDefault(false)
                 .setPlatformSetUp(llvm::orc::setUpInactivePlatform)
                 .create();
  if (!jit) return compile_error(jit.takeError());
  auto code = std::make_unique<Code>();
  code->jit_ = std::move(*jit);
  // Without this LLVM prints errors; the caller that looks a function up learns of them as well.
  code->jit_->getExecutionSession().setErrorReporter(llvm::consumeError);
  // LLVM may call only these functions on its own: it turns loops into them.
  llvm::orc::SymbolMap known;
  auto add = [&](const char* name, auto* function) {
    known[code->jit_->mangleAndIntern(name)] = {llvm::orc::ExecutorAddr::fromPtr(function),
                                                llvm::JITSymbolFlags::Exported};
  };
  add("memcpy", &std::memcpy);
  add("memset", &std::memset);
  add("memmove", &std::memmove);
  if (auto error = code->jit_->getMainJITDylib().define(llvm::orc::absoluteSymbols(std::move(known)))) {
    return compile_error(std::move(error));
  }
  const llvm::StringRef bytes(reinterpret_cast<const char*>(object.data()), object.size());
  if (auto error = code->jit_->addObjectFile(llvm::MemoryBuffer::getMemBufferCopy(bytes))) {
    return compile_error(std::move(error));
  }
  return code;
}

Result<std::uintptr_t> Code::address_of(const char* name) const {
  auto found = jit_->lookup(name);
  if (!found) return compile_error(found.takeError());
  return static_cast<std::uintptr_t>(found->getValue());
}

}  // namespace flashjit::host
