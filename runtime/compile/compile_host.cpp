#include "runtime/compile/compile_host.h"

#include <fmt/format.h>

#include <chrono>

#include "runtime/compile/compiler_pass.h"
#include "runtime/compile/dump.h"
#include "runtime/compile/facts.h"
#include "runtime/compile/kernel_key.h"
#include "runtime/compile/verify.h"

namespace flashjit {
namespace {

Result<StoreEntry> run_llvm(const Plan& plan, const HostLibrary& library, const CompileBounds& bounds) {
  if (auto over = bounds.over()) return std::move(*over);  // Nothing can stop LLVM once it works.
  const CompilerPass pass;
  FLASHJIT_TRY(pass.status());
  FLASHJIT_TRY(verify_plan(plan));
  FLASHJIT_ASSIGN(object, library.backend.compile(plan, false));
  return StoreEntry{.key_text = {},
                    .facts = {{"spec", print(plan.spec)},
                              {"schedule", print(plan.schedule)},
                              {"target", std::string(plan.target.name)}},
                    .payload = std::move(object)};
}

Result<Compiled> begin(const Request& request, const HostLibrary& library, const DumpSink& dump) {
  FLASHJIT_ASSIGN(plan, plan_spec(request, dump));
  Compiled compiled{.plan = std::move(plan)};
  compiled.key = host_key_of(compiled.plan, library.identity);
  return compiled;
}

std::optional<SourceFile> ir_of(const Compiled& compiled, const HostLibrary& library) {
  auto ir = library.backend.llvm_ir(compiled.plan);
  if (!ir) return std::nullopt;
  return SourceFile{"kernel.ll", std::move(*ir)};
}

void finish(Compiled& compiled, KernelStore::Fetched fetched) {
  compiled.binary = std::move(fetched.entry);
  compiled.facts = facts_of(
      compiled.plan, compiled.key.digest, compiled.binary->facts, compiled.binary->payload.size(),
      {.source = fetched.source, .layer = std::move(fetched.layer), .miss = std::move(fetched.miss), .notes = {}});
}

}  // namespace

Result<void> check_host_jit(const EnvironmentSettings& settings) {
  if (settings.jit) return {};
  return invalid(
      fmt::format("device=Host with {}: kernels of a processor are made, and linked when they are stored, by LLVM, and "
                  "bundles hold none; leave one of the two out",
                  kNoJit));
}

Result<Compiled> compile_host_spec(const Request& request, const HostLibrary& library, const CompileOptions& options) {
  FLASHJIT_TRY(check_host_jit(options.settings));
  const auto start = std::chrono::steady_clock::now();
  FLASHJIT_ASSIGN(compiled, begin(request, library, options.dump));
  const std::string& dump_dir = options.settings.dump_dir;
  std::string undumped;
  // The source is written before LLVM runs, so that it is there if LLVM hangs.
  if (!dump_dir.empty()) undumped = dump_source(dump_dir, compiled);
  auto fetched = fetch_kernel(compiled, options, [&] { return run_llvm(compiled.plan, library, options.bounds); });
  if (fetched) finish(compiled, std::move(*fetched));
  const Result<void> outcome = fetched ? Result<void>() : Result<void>(fetched.error());
  if (!dump_dir.empty()) undumped += dump_result(dump_dir, compiled, outcome, ir_of(compiled, library));
  if (!outcome) return outcome.error();
  if (!undumped.empty()) compiled.facts.notes.push_back(std::move(undumped));
  if (const std::string_view wrong = known_wrong(compiled.binary->facts); !wrong.empty())
    return unsupported(fmt::format("the only kernel for {} computes wrong results: {}", request.target.name, wrong));
  compiled.facts.compile_ms =
      std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  return std::move(compiled);
}

Result<StoredSpec> find_host_spec(const Request& request, const HostLibrary& library, const CompileOptions& options) {
  FLASHJIT_ASSIGN(compiled, begin(request, library, options.dump));
  auto found = options.store->find(compiled.key);
  StoredSpec stored{.key = compiled.key,
                    .spec = print(compiled.plan.spec),
                    .schedule = print(compiled.plan.schedule),
                    .miss = found.miss};
  if (!found.entry) return stored;
  finish(compiled, std::move(found));
  stored.hit = std::move(compiled);
  return stored;
}

}  // namespace flashjit
