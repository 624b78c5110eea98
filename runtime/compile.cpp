#include "runtime/compile.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>
#include <chrono>
#include <filesystem>
#include <fstream>

#include "compiler/candidates.h"
#include "runtime/environment.h"

namespace flashjit {
namespace {

// How many candidates are compiled before one that spills is accepted: each costs a compile.
constexpr int kMostAttempts = 4;
constexpr int kRegisterStep = 16;  // estimated registers by which each further attempt is looser

using Clock = std::chrono::steady_clock;

double milliseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

int number(const StoreFacts& facts, std::string_view name) {
  const auto found = facts.find(name);
  int value = 0;
  if (found != facts.end()) std::from_chars(found->second.data(), found->second.data() + found->second.size(), value);
  return value;
}

StoreKey key_of(const Plan& plan, const KernelSource& source, const Nvrtc& nvrtc) {
  KeyBuilder key;
  key.field("spec", print(plan.spec));
  key.field("schedule", print(plan.schedule));
  key.field("target", plan.target.name);
  key.field("compiler", nvrtc.identity());
  key.field("options", fmt::format("{}", fmt::join(nvrtc.options(plan.target), " ")));
  for (const SourceFile& file : source.generated) key.field("generated " + file.name, file.text);
  for (const SourceFile& file : source.headers) key.field("header " + file.name, file.text);
  return key.finish();
}

Result<StoreEntry> run_compiler(const Plan& plan, const KernelSource& source, const Nvrtc& nvrtc) {
  FLASHJIT_ASSIGN(cubin, nvrtc.compile(source, plan.target));
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
                 {"smem_bytes", std::to_string(plan.smem_bytes + most.static_smem_bytes)},
                 {"threads", std::to_string(plan.threads)},
                 {"warnings", fmt::format("{}", fmt::join(cubin.facts.warnings, " | "))},
                 {"log", cubin.log}};
  entry.payload = std::move(cubin.bytes);
  return entry;
}

// Best effort: the dump serves a person who looks, and must not stop the work.
void write_dump(const std::string& folder, const Compiled& compiled) {
  namespace fs = std::filesystem;
  const fs::path place = fs::path(folder) / compiled.key.digest.substr(0, 16);
  std::error_code error;
  const auto write = [&](const std::string& name, std::string_view text) {
    const fs::path file = place / name;
    fs::create_directories(file.parent_path(), error);
    std::ofstream(file, std::ios::binary).write(text.data(), static_cast<std::streamsize>(text.size()));
  };
  const Plan& plan = compiled.plan;
  write("spec.txt", print(plan.spec) + "\n");
  write("schedule.txt", print(plan.schedule) + "\n");
  write("program.txt", plan.program);
  write("key.txt", compiled.key.text);
  for (const SourceFile& file : compiled.source.generated) write(file.name, file.text);
  for (const SourceFile& file : compiled.source.headers) write(file.name, file.text);
  if (!compiled.binary) return;
  for (const auto& [name, value] : compiled.binary->facts) write("facts/" + name + ".txt", value + "\n");
  const auto& cubin = compiled.binary->payload;
  write("kernel.cubin", {reinterpret_cast<const char*>(cubin.data()), cubin.size()});
}

Error jit_is_off(const Plan& plan) {
  return {ErrorKind::NotFound,
          fmt::format("FLASHJIT_JIT=off and the store has no kernel for this spec; build it with: flashjit compile '{}' --arch {} "
                      "--schedule {}",
                      print(plan.spec), plan.target.name, print(plan.schedule)),
          {}};
}

// One plan to one cubin.
Result<Compiled> compile_plan(Plan plan, const CompileOptions& options, const EnvironmentSettings& settings) {
  FLASHJIT_ASSIGN(nvrtc, Nvrtc::open(settings.nvrtc));
  FLASHJIT_ASSIGN(source, options.naive ? emit_cuda_naive(plan) : emit_cuda(plan));
  Compiled compiled{.plan = std::move(plan), .source = std::move(source)};
  const Plan& made = compiled.plan;
  compiled.key = key_of(made, compiled.source, *nvrtc);
  if (!settings.dump_dir.empty()) write_dump(settings.dump_dir, compiled);  // also for what the compiler refuses
  const auto make = [&]() -> Result<StoreEntry> {
    if (!settings.jit) return jit_is_off(made);
    return run_compiler(made, compiled.source, *nvrtc);
  };
  if (options.store) {
    FLASHJIT_ASSIGN(fetched, options.store->fetch(compiled.key, make));
    compiled.binary = fetched.entry;
    compiled.facts.source = fetched.source;
  } else {
    FLASHJIT_ASSIGN(entry, make());
    compiled.binary = std::make_shared<const StoreEntry>(std::move(entry));
    compiled.facts.source = "compiled";
  }
  Facts& facts = compiled.facts;
  facts.spec = print(made.spec);
  facts.target = made.target.name;
  facts.schedule = print(made.schedule);
  facts.family = name(made.schedule.family.value_or(Family::Sync));
  facts.key = compiled.key.digest;
  facts.registers = number(compiled.binary->facts, "registers");
  facts.spill_bytes = number(compiled.binary->facts, "spill_bytes");
  facts.smem_bytes = number(compiled.binary->facts, "smem_bytes");
  facts.threads = made.threads;
  facts.cubin_bytes = static_cast<std::int64_t>(compiled.binary->payload.size());
  facts.notes = made.notes;
  if (const auto warnings = compiled.binary->facts.find("warnings");
      warnings != compiled.binary->facts.end() && !warnings->second.empty()) {
    facts.notes.push_back("compiler: " + warnings->second);
  }
  if (!settings.dump_dir.empty()) write_dump(settings.dump_dir, compiled);
  return compiled;
}

}  // namespace

Result<Plan> plan_spec(std::string_view spec_text, std::string_view target_name, std::string_view schedule, int sm_count,
                       const DumpSink& dump) {
  FLASHJIT_ASSIGN(spec, parse_spec(spec_text));
  FLASHJIT_TRY(check_supported(spec));
  FLASHJIT_ASSIGN(row, find_target(target_name));
  FLASHJIT_ASSIGN(pins, parse_schedule(schedule));
  Target target = *row;
  if (sm_count > 0) target.sm_count = sm_count;
  return make_plan(spec, target, pins, dump);
}

Result<Compiled> compile_spec(std::string_view spec, std::string_view target, std::string_view schedule,
                              const CompileOptions& options) {
  const auto start = Clock::now();
  FLASHJIT_ASSIGN(settings, read_environment());
  FLASHJIT_ASSIGN(first, plan_spec(spec, target, schedule, options.sm_count, options.dump));
  if (!first.target.gpu) {
    return invalid(fmt::format("target: {} is a processor, and NVRTC compiles for GPUs; use one of the sm_ targets, or run the spec "
                               "with target host",
                               target));
  }
  FLASHJIT_ASSIGN(best, compile_plan(first, options, settings));
  std::string passed_over;
  int attempts = 1;
  int room = spare_registers(first.spec, first.target, first.schedule);
  for (const Candidate& candidate : first.candidates) {
    if (best.facts.spill_bytes == 0 || options.naive || attempts == kMostAttempts) break;
    if (!candidate.why_illegal.empty()) continue;
    // One that is estimated to be as tight would spill as well.
    const int more = spare_registers(first.spec, first.target, candidate.schedule);
    if (more < room + kRegisterStep) continue;
    room = more;
    auto plan = make_plan(first.spec, first.target, candidate.schedule);
    if (!plan) continue;
    ++attempts;
    FLASHJIT_ASSIGN(next, compile_plan(std::move(*plan), options, settings));
    if (next.facts.spill_bytes >= best.facts.spill_bytes) continue;
    passed_over = fmt::format("{} would spill {} bytes of registers and was passed over", best.facts.schedule,
                              best.facts.spill_bytes);
    best = std::move(next);
  }
  if (!passed_over.empty()) best.facts.notes.push_back(passed_over);
  if (best.facts.spill_bytes > 0) {
    best.facts.notes.push_back(fmt::format("the kernel spills {} bytes of registers to memory; {}", best.facts.spill_bytes,
                                           schedule.empty() ? "no candidate does without" : "the pinned schedule leaves no other way"));
  }
  best.facts.compile_ms = milliseconds_since(start);
  return std::move(best);
}

}  // namespace flashjit
