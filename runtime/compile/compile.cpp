#include "runtime/compile/compile.h"

#include <fmt/format.h>

#include <chrono>

#include "runtime/bundle/bundle.h"
#include "runtime/compile/compile_plan.h"
#include "runtime/compile/dump.h"
#include "runtime/compile/search.h"

namespace flashjit {
namespace {

using Clock = std::chrono::steady_clock;

double milliseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

Result<Plan> plan_for_gpu(const Request& request, const CompileOptions& options) {
  FLASHJIT_ASSIGN(first, plan_spec(request, options.dump));
  if (first.target.gpu) return std::move(first);
  return invalid(
      fmt::format("target: {} is a processor, and NVRTC compiles for GPUs; use one of the sm_ targets, or run the spec "
                  "with target host",
                  first.target.name));
}

// Returns nothing if the compiler has to make the kernel. If a bundle has it but cannot be used, `note` tells why.
Result<std::optional<Compiled>> look_in_bundles(const Request& request, const CompileOptions& options,
                                                std::string& note) {
  const auto start = Clock::now();
  const EnvironmentSettings& settings = options.settings;
  const Bundles none;
  const bool fit = options.bundles && options.override_dir.empty();
  const Bundles& bundles = fit ? *options.bundles : none;
  if (bundles.empty() && settings.jit) return std::optional<Compiled>();
  auto found = bundles.find(request);
  if (!found && settings.jit) {
    note = "compiled although a bundle has it: " + found.error().message;
    return std::optional<Compiled>();
  }
  if (found && !*found && !settings.jit) return bundles.missing(request);
  if (found && *found && !settings.dump_dir.empty()) {
    std::string undumped = dump_source(settings.dump_dir, **found);
    undumped += dump_result(settings.dump_dir, **found, {}, std::nullopt);
    if (!undumped.empty()) (*found)->facts.notes.push_back(std::move(undumped));
  }
  if (found && *found) (*found)->facts.compile_ms = milliseconds_since(start);
  return found;
}

StoredSpec stored_as(Compiled compiled) {
  StoredSpec stored{.key = compiled.key, .spec = compiled.facts.spec, .schedule = compiled.facts.schedule};
  stored.hit = std::move(compiled);
  return stored;
}

}  // namespace

Result<Compiled> compile_spec(const Request& request, const CompileOptions& options) {
  const auto start = Clock::now();
  if (!options.override_dir.empty() && !options.settings.jit) {
    return invalid(
        fmt::format("override_dir with {}: edited source has to be compiled; leave one of the two out", kNoJit));
  }
  std::string note;
  FLASHJIT_ASSIGN(bundled, look_in_bundles(request, options, note));
  if (bundled) return std::move(*bundled);
  FLASHJIT_ASSIGN(first, plan_for_gpu(request, options));
  FLASHJIT_ASSIGN(best,
                  search_kernel(first, options, [&](Plan plan) { return compile_plan(std::move(plan), options); }));
  if (!note.empty()) best.facts.notes.push_back(note);
  if (best.facts.spill_bytes > 0) {
    best.facts.notes.push_back(fmt::format(
        "the kernel spills {} bytes of registers to memory; {}", best.facts.spill_bytes,
        request.pins == Schedule() ? "no candidate does without" : "the pinned schedule leaves no other way"));
  }
  best.facts.compile_ms = milliseconds_since(start);
  return std::move(best);
}

Result<StoredSpec> find_spec(const Request& request, const CompileOptions& options) {
  std::string note;
  FLASHJIT_ASSIGN(bundled, look_in_bundles(request, options, note));
  if (bundled) return stored_as(std::move(*bundled));
  FLASHJIT_ASSIGN(first, plan_for_gpu(request, options));
  std::optional<StoredSpec> missing;
  const auto look = [&](Plan plan) -> Result<Compiled> {
    FLASHJIT_ASSIGN(found, find_plan(std::move(plan), options));
    if (found.binary) return std::move(found);
    missing = {.key = std::move(found.key),
               .spec = print(found.plan.spec),
               .schedule = print(found.plan.schedule),
               .miss = std::move(found.facts.miss)};
    return Error{ErrorKind::NotFound, "the kernel is not stored", {}};
  };
  auto found = search_kernel(first, options, look);
  if (missing) return std::move(*missing);
  if (!found) return found.error();
  return stored_as(std::move(*found));
}

}  // namespace flashjit
