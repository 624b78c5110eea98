#include "runtime/compile/compile_plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "runtime/compile/dump.h"
#include "runtime/compile/facts.h"
#include "runtime/compile/kernel_key.h"
#include "runtime/compile/source_override.h"
#include "runtime/compile/verify.h"

namespace flashjit {
namespace {

// Leaves out how long ptxas took, so that the log is the same for every compile of the same source.
std::string without_times(std::string_view log) {
  std::string kept;
  while (!log.empty()) {
    const std::string_view line = log.substr(0, std::min(log.find('\n'), log.size() - 1) + 1);
    log.remove_prefix(line.size());
    if (line.find("Compile time = ") == line.npos) kept += line;
  }
  if (kept.ends_with('\n')) kept.pop_back();
  return kept;
}

CompileMode mode_of(const CompileOptions& options) { return {options.effort, options.settings.line_info}; }

// Generated source has every kernel that is launched. Source that somebody edited may have lost some.
Result<void> check_kernels(const Plan& plan, const std::vector<EntryUsage>& compiled, const std::string& override_dir) {
  if (override_dir.empty()) return {};
  for (const std::vector<KernelLaunch>* launches : {&plan.before, &plan.launches}) {
    for (const KernelLaunch& launch : *launches) {
      if (std::ranges::count(compiled, launch.entry, &EntryUsage::entry) > 0) continue;
      return invalid(
          fmt::format("override_dir: {} makes code without the kernel `{}`, which is launched; keep it in entry.cu, or "
                      "remove that file for the generated one",
                      override_dir, launch.entry));
    }
  }
  return {};
}

Result<StoreEntry> run_compiler(const Plan& plan, const KernelSource& source, const Nvrtc& nvrtc,
                                const CompileOptions& options) {
  FLASHJIT_TRY(verify_plan(plan));
  FLASHJIT_ASSIGN(cubin, nvrtc.compile(source, plan.target, options.bounds, mode_of(options)));
  FLASHJIT_TRY(check_kernels(plan, cubin.facts.entries, options.override_dir));
  EntryUsage most;
  for (const EntryUsage& usage : cubin.facts.entries) {
    most.registers = std::max(most.registers, usage.registers);
    most.spill_bytes += usage.spill_bytes;
    most.static_smem_bytes = std::max(most.static_smem_bytes, usage.static_smem_bytes);
  }
  StoreEntry entry;
  entry.facts = {{"spec", print(plan.spec)},
                 {"schedule", print(plan.schedule)},
                 {"target", std::string(plan.target.name)},
                 {"registers", std::to_string(most.registers)},
                 {"spill_bytes", std::to_string(most.spill_bytes)},
                 {"smem_bytes", std::to_string(plan.smem_bytes() + most.static_smem_bytes)},
                 {"threads", std::to_string(plan.threads())},
                 {"serialised", cubin.facts.serialised},
                 {"setmaxnreg_ignored", cubin.facts.setmaxnreg_ignored},
                 {"warnings", fmt::format("{}", fmt::join(cubin.facts.warnings, " | "))},
                 {"log", without_times(cubin.log)}};
  entry.payload = std::move(cubin.bytes);
  return entry;
}

// A kernel on its way has all but its code, and the notes that were made.
struct Begun {
  Compiled compiled;
  std::vector<std::string> notes;
};

Result<Begun> begin(Plan plan, const CompileOptions& options, const Nvrtc& nvrtc) {
  FLASHJIT_ASSIGN(source, emit_cuda(plan));
  Begun begun{.compiled = {.plan = std::move(plan), .source = std::move(source)}};
  Compiled& compiled = begun.compiled;
  if (!options.override_dir.empty()) {
    FLASHJIT_ASSIGN(replaced, override_source(options.override_dir, compiled.plan, compiled.source));
    begun.notes.push_back(std::move(replaced));
  }
  compiled.key =
      key_of(compiled.plan, compiled.source, nvrtc.identity(), nvrtc.options(compiled.plan.target, mode_of(options)));
  return begun;
}

Result<KernelStore::Fetched> fetch(const Compiled& compiled, const CompileOptions& options, const Nvrtc& nvrtc) {
  return fetch_kernel(compiled, options, [&] { return run_compiler(compiled.plan, compiled.source, nvrtc, options); });
}

void finish(Begun& begun, KernelStore::Fetched fetched) {
  Compiled& compiled = begun.compiled;
  compiled.binary = std::move(fetched.entry);
  compiled.facts = facts_of(compiled.plan, compiled.key.digest, compiled.binary->facts, compiled.binary->payload.size(),
                            {.source = fetched.source,
                             .layer = std::move(fetched.layer),
                             .miss = std::move(fetched.miss),
                             .notes = std::move(begun.notes)});
}

// The front half of the compiler runs once more. A kernel that was refused has PTX, too, if the assembler refused it.
std::optional<SourceFile> ptx_of(const Compiled& compiled, const Nvrtc& nvrtc, const CompileOptions& options) {
  auto ptx = nvrtc.ptx(compiled.source, compiled.plan.target, options.bounds);
  if (!ptx) return std::nullopt;
  return SourceFile{"kernel.ptx", std::move(*ptx)};
}

Error with_note(Error error, const std::string& note) {
  if (!note.empty()) error.detail += fmt::format("{}note: {}\n", error.detail.empty() ? "" : "\n", note);
  return error;
}

}  // namespace

Result<Compiled> compile_plan(Plan plan, const CompileOptions& options) {
  const std::string& dump_dir = options.settings.dump_dir;
  FLASHJIT_ASSIGN(nvrtc, Nvrtc::open(options.settings.nvrtc, options.compiler_program, options.bounds));
  FLASHJIT_ASSIGN(begun, begin(std::move(plan), options, *nvrtc));
  std::string undumped;
  // The source is written before the compiler runs, so that it is there if the compiler hangs.
  if (!dump_dir.empty()) undumped = dump_source(dump_dir, begun.compiled);
  auto fetched = fetch(begun.compiled, options, *nvrtc);
  if (fetched) finish(begun, std::move(*fetched));
  const Result<void> outcome = fetched ? Result<void>() : Result<void>(fetched.error());
  if (!dump_dir.empty())
    undumped += dump_result(dump_dir, begun.compiled, outcome, ptx_of(begun.compiled, *nvrtc, options));
  if (!outcome) return with_note(outcome.error(), undumped);
  if (!undumped.empty()) begun.compiled.facts.notes.push_back(std::move(undumped));
  return std::move(begun.compiled);
}

Result<Compiled> find_plan(Plan plan, const CompileOptions& options) {
  FLASHJIT_ASSIGN(nvrtc, Nvrtc::open(options.settings.nvrtc, options.compiler_program, options.bounds));
  FLASHJIT_ASSIGN(begun, begin(std::move(plan), options, *nvrtc));
  auto found = options.store->find(begun.compiled.key);
  if (found.entry) {
    finish(begun, std::move(found));
  } else {
    begun.compiled.facts.miss = std::move(found.miss);
  }
  return std::move(begun.compiled);
}

}  // namespace flashjit
