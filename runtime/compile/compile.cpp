#include "runtime/compile/compile.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>
#include <chrono>

#include "codegen/cuda/embedded_templates.h"
#include "compiler/choice/candidates.h"
#include "runtime/bundle/bundle.h"
#include "runtime/compile/dump.h"
#include "runtime/engine/environment.h"
#include "runtime/compile/source_override.h"

namespace flashjit {
namespace {

// How many candidates of a family are compiled before it is given up, or one that spills is accepted: each costs a
// compile.
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

std::string text(const StoreFacts& facts, std::string_view name) {
  const auto found = facts.find(name);
  return found == facts.end() ? "" : found->second;
}

// The same for every compile of the same source: ptxas says how long it took.
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

Result<StoreEntry> run_compiler(const Plan& plan, const KernelSource& source, const Nvrtc& nvrtc,
                                const CompileOptions& options) {
  FLASHJIT_ASSIGN(cubin, nvrtc.compile(source, plan.target, options.bounds, options.effort));
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
                 {"serialised", cubin.facts.serialised},
                 {"setmaxnreg_ignored", cubin.facts.setmaxnreg_ignored},
                 {"warnings", fmt::format("{}", fmt::join(cubin.facts.warnings, " | "))},
                 {"log", without_times(cubin.log)}};
  entry.payload = std::move(cubin.bytes);
  return entry;
}

// What every step of one compile_spec or find_spec shares.
struct Job {
  const CompileOptions& options;
  const EnvironmentSettings& settings;
  StoredSpec* look = nullptr;  // only look, and say here what is missing
};

void add_facts(Compiled& compiled) {
  const Plan& plan = compiled.plan;
  const StoreFacts& stored = compiled.binary->facts;
  Facts& facts = compiled.facts;
  facts.spec = print(plan.spec);
  facts.target = plan.target.name;
  facts.schedule = print(plan.schedule);
  facts.family = name(plan.schedule.family.value_or(Family::Sync));
  facts.key = compiled.key.digest;
  facts.registers = number(stored, "registers");
  facts.spill_bytes = number(stored, "spill_bytes");
  facts.smem_bytes = number(stored, "smem_bytes");
  facts.threads = plan.threads;
  facts.cubin_bytes = static_cast<std::int64_t>(compiled.binary->payload.size());
  facts.notes.insert(facts.notes.begin(), plan.notes.begin(), plan.notes.end());
  if (const std::string warnings = text(stored, "warnings"); !warnings.empty())
    facts.notes.push_back("compiler: " + warnings);
}

// From the store or the compiler.
Result<void> fetch(Compiled& compiled, const Job& job, const Nvrtc& nvrtc) {
  const auto make = [&] { return run_compiler(compiled.plan, compiled.source, nvrtc, job.options); };
  KernelStore::Fetched fetched{.source = "compiled"};
  if (job.look) {
    fetched = job.options.store->find(compiled.key);
    if (!fetched.entry) {
      *job.look = {std::nullopt, compiled.key, print(compiled.plan.spec), print(compiled.plan.schedule), fetched.miss};
      return Error{ErrorKind::NotFound, "the kernel is not stored", {}};
    }
  } else if (job.options.store) {
    FLASHJIT_ASSIGN(found, job.options.store->fetch(compiled.key, make, job.options.bounds));
    fetched = std::move(found);
  } else {
    FLASHJIT_ASSIGN(entry, make());
    fetched.entry = std::make_shared<const StoreEntry>(std::move(entry));
  }
  compiled.binary = std::move(fetched.entry);
  compiled.facts.source = fetched.source;
  compiled.facts.layer = std::move(fetched.layer);
  compiled.facts.miss = std::move(fetched.miss);
  return {};
}

// One plan to one cubin.
Result<Compiled> compile_plan(Plan plan, const Job& job) {
  const auto& [options, settings, look] = job;
  FLASHJIT_ASSIGN(nvrtc, Nvrtc::open(settings.nvrtc, options.compiler_program));
  FLASHJIT_ASSIGN(source, options.naive ? emit_cuda_naive(plan) : emit_cuda(plan));
  Compiled compiled{.plan = std::move(plan), .source = std::move(source)};
  if (!options.override_dir.empty()) {
    FLASHJIT_ASSIGN(replaced, override_source(options.override_dir, compiled.plan, compiled.source));
    compiled.facts.notes.push_back(replaced);
  }
  compiled.key =
      key_of(compiled.plan, compiled.source, nvrtc->identity(), nvrtc->options(compiled.plan.target, options.effort));
  const bool dumps = !settings.dump_dir.empty() && !look;
  if (dumps) dump_source(settings.dump_dir, compiled);  // before: it is there if the compiler hangs
  const Result<void> fetched = fetch(compiled, job, *nvrtc);
  if (fetched) add_facts(compiled);
  if (dumps) dump_result(settings.dump_dir, compiled, fetched, nvrtc.get(), options.bounds);
  if (!fetched) return fetched.error();
  return compiled;
}

// Why a kernel must not run; empty if it may. What the hopper loop is built on, its registers and matrix products that
// run beside other work, is lost with these; kernels of the sync loop only get somewhat slower.
std::string why_rejected(const Compiled& compiled) {
  if (compiled.plan.config.loop != Loop::hopper) return {};
  std::vector<std::string> reasons;
  if (compiled.facts.spill_bytes > 0) {
    reasons.push_back(fmt::format("it would spill {} bytes of registers to memory", compiled.facts.spill_bytes));
  }
  for (const char* fact : {"serialised", "setmaxnreg_ignored"}) {
    if (std::string reason = text(compiled.binary->facts, fact); !reason.empty()) reasons.push_back(std::move(reason));
  }
  return fmt::format("{}", fmt::join(reasons, "; "));
}

// From the cost model's choice to a kernel: schedules whose kernels turn out bad are passed over.
class Search {
 public:
  Search(const Plan& first, const Job& job) : first_(first), job_(job) {}

  Result<Compiled> run() {
    if (job_.options.effort == Effort::Quick) return run_quick();
    if (!job_.options.override_dir.empty()) return run_as_it_is();
    if (job_.options.naive || first_.config.loop != Loop::hopper) return run_sync(first_);
    FLASHJIT_ASSIGN(accepted, run_hopper());
    if (accepted) return std::move(*accepted);
    for (const Candidate& candidate : *first_.candidates) {
      if (!is_legal(candidate, Family::Sync)) continue;
      FLASHJIT_ASSIGN(plan, make_plan(first_.spec, first_.target, candidate.schedule));
      return run_sync(plan);
    }
    return unsupported(fmt::format("schedule {}; the pins leave no other schedule: leave some out, or pin family=sync",
                                   notes_.front()),
                       fmt::format("{}", fmt::join(notes_, "\n")));
  }

  const std::vector<std::string>& notes() const { return notes_; }

 private:
  static bool is_legal(const Candidate& candidate, Family family) {
    return candidate.legal && candidate.schedule.family == family;
  }
  int room(const Schedule& schedule) const { return spare_registers(first_.spec, first_.target, schedule); }

  // The choice itself if it is of the sync family, else the best of that; what spills will do for so short a time.
  Result<Compiled> run_quick() {
    if (first_.config.loop != Loop::hopper) return compile_plan(first_, job_);
    for (const Candidate& candidate : *first_.candidates) {
      if (!is_legal(candidate, Family::Sync)) continue;
      FLASHJIT_ASSIGN(plan, make_plan(first_.spec, first_.target, candidate.schedule));
      return compile_plan(std::move(plan), job_);
    }
    return unsupported("the pins leave no schedule of the sync family, which alone can be compiled quickly");
  }

  // Another schedule would need other edits, and who edits wants to see what becomes of them.
  Result<Compiled> run_as_it_is() {
    FLASHJIT_ASSIGN(compiled, compile_plan(first_, job_));
    if (const std::string why = why_rejected(compiled); !why.empty()) {
      notes_.push_back(fmt::format("without override_dir this kernel would be passed over: {}", why));
    }
    return std::move(compiled);
  }

  // Nothing if the kernel is rejected; a note says why then.
  Result<std::optional<Compiled>> try_hopper(const Plan& plan) {
    auto compiled = compile_plan(plan, job_);
    const std::string why = compiled ? why_rejected(*compiled) : refused_for_registers(compiled.error().detail);
    if (why.empty()) {
      if (!compiled) return compiled.error();
      return std::optional<Compiled>(std::move(*compiled));
    }
    notes_.push_back(fmt::format("{} was passed over: {}", print(plan.schedule), why));
    return std::optional<Compiled>();
  }

  Result<std::optional<Compiled>> run_hopper() {
    FLASHJIT_ASSIGN(accepted, try_hopper(first_));
    int attempts = 1, least = room(first_.schedule);
    for (const Candidate& candidate : *first_.candidates) {
      if (accepted || attempts == kMostAttempts) break;
      // Nearly all that is wrong with a kernel comes from registers: one that is estimated to be as tight would be
      // rejected too.
      if (!is_legal(candidate, Family::Hopper) || room(candidate.schedule) < least + kRegisterStep) continue;
      least = room(candidate.schedule);
      auto plan = make_plan(first_.spec, first_.target, candidate.schedule);
      if (!plan) continue;
      ++attempts;
      FLASHJIT_ASSIGN(next, try_hopper(*plan));
      accepted = std::move(next);
    }
    return std::move(accepted);
  }

  // The first that spills nothing, or the one that spills least.
  Result<Compiled> run_sync(const Plan& plan) {
    FLASHJIT_ASSIGN(best, compile_plan(plan, job_));
    std::string passed_over;
    int attempts = 1, least = room(plan.schedule);
    for (const Candidate& candidate : *first_.candidates) {
      if (best.facts.spill_bytes == 0 || job_.options.naive || attempts == kMostAttempts) break;
      // One that is estimated to be as tight would spill as well.
      if (!is_legal(candidate, Family::Sync) || room(candidate.schedule) < least + kRegisterStep) continue;
      least = room(candidate.schedule);
      auto looser = make_plan(first_.spec, first_.target, candidate.schedule);
      if (!looser) continue;
      ++attempts;
      FLASHJIT_ASSIGN(next, compile_plan(std::move(*looser), job_));
      if (next.facts.spill_bytes >= best.facts.spill_bytes) continue;
      passed_over = fmt::format("{} would spill {} bytes of registers and was passed over", best.facts.schedule,
                                best.facts.spill_bytes);
      best = std::move(next);
    }
    if (!passed_over.empty()) notes_.push_back(passed_over);
    return std::move(best);
  }

  const Plan& first_;
  const Job& job_;
  std::vector<std::string> notes_;  // of schedules that were passed over
};

// Of a template as the build embedded it; empty: its text is another. To compare texts takes a tenth of the time.
std::string_view known_digest(const SourceFile& file) {
  for (const EmbeddedFile& embedded : embedded_templates()) {
    if (embedded.name == file.name) return embedded.text == file.text ? embedded.sha256 : std::string_view();
  }
  return {};
}

}  // namespace

StoreKey key_of(const Plan& plan, const KernelSource& source, std::string_view compiler,
                const std::vector<std::string>& options) {
  KeyBuilder key;
  key.field("spec", print(plan.spec));
  key.field("schedule", print(plan.schedule));
  key.field("target", plan.target.name);
  key.field("compiler", compiler);
  key.field("options", fmt::format("{}", fmt::join(options, " ")));
  for (const SourceFile& file : source.generated) key.field("generated " + file.name, file.text);
  for (const SourceFile& file : source.headers) key.field("header " + file.name, file.text, known_digest(file));
  return key.finish();
}

Result<Plan> plan_spec(std::string_view spec_text, std::string_view target_name, std::string_view schedule,
                       int sm_count, const DumpSink& dump) {
  FLASHJIT_ASSIGN(spec, parse_spec(spec_text));
  return plan_spec(spec, target_name, schedule, sm_count, dump);
}

Result<Plan> plan_spec(const AttentionSpec& spec, std::string_view target_name, std::string_view schedule, int sm_count,
                       const DumpSink& dump) {
  FLASHJIT_TRY(check_supported(spec));
  FLASHJIT_ASSIGN(row, find_target(target_name));
  FLASHJIT_ASSIGN(pins, parse_schedule(schedule));
  Target target = *row;
  if (sm_count > 0) target.sm_count = sm_count;
  return make_plan(spec, target, pins, dump);
}

namespace {

Result<Plan> plan_for_gpu(std::string_view spec, std::string_view target, std::string_view schedule,
                          const CompileOptions& options) {
  FLASHJIT_ASSIGN(first, options.parsed ? plan_spec(*options.parsed, target, schedule, options.sm_count, options.dump)
                                        : plan_spec(spec, target, schedule, options.sm_count, options.dump));
  if (first.target.gpu) return std::move(first);
  return invalid(
      fmt::format("target: {} is a processor, and NVRTC compiles for GPUs; use one of the sm_ targets, or run the spec "
                  "with target host",
                  target));
}

// Nothing: the compiler has to make it, and `note` says why, if a bundle has it and it cannot be used.
Result<std::optional<Compiled>> look_in_bundles(std::string_view spec, std::string_view target,
                                                std::string_view schedule, const CompileOptions& options,
                                                const EnvironmentSettings& settings, std::string& note) {
  const auto start = Clock::now();
  const Bundles none;
  const bool fit = options.bundles && !options.naive && options.override_dir.empty();
  const Bundles& bundles = fit ? *options.bundles : none;
  if (bundles.empty() && settings.jit) return std::optional<Compiled>();
  FLASHJIT_ASSIGN(key, bundle_key(spec, target, schedule));
  auto found = bundles.find(key, options.sm_count);
  if (!found && settings.jit) {
    note = "compiled although a bundle has it: " + found.error().message;
    return std::optional<Compiled>();
  }
  if (found && !*found && !settings.jit) return bundles.missing(key);
  if (found && *found && !settings.dump_dir.empty()) {
    dump_source(settings.dump_dir, **found);
    dump_result(settings.dump_dir, **found, {}, nullptr, options.bounds);
  }
  if (found && *found) (*found)->facts.compile_ms = milliseconds_since(start);
  return found;
}

}  // namespace

Result<Compiled> compile_spec(std::string_view spec, std::string_view target, std::string_view schedule,
                              const CompileOptions& options) {
  const auto start = Clock::now();
  FLASHJIT_ASSIGN(settings, read_environment());
  if (!options.override_dir.empty() && !settings.jit) {
    return invalid("override_dir with FLASHJIT_JIT=off: edited source has to be compiled; unset one of the two");
  }
  std::string note;
  FLASHJIT_ASSIGN(bundled, look_in_bundles(spec, target, schedule, options, settings, note));
  if (bundled) return std::move(*bundled);
  FLASHJIT_ASSIGN(first, plan_for_gpu(spec, target, schedule, options));
  const Job job{options, settings};
  Search search(first, job);
  FLASHJIT_ASSIGN(best, search.run());
  for (const std::string& passed_over : search.notes()) best.facts.notes.push_back(passed_over);
  if (!note.empty()) best.facts.notes.push_back(note);
  if (best.facts.spill_bytes > 0) {
    best.facts.notes.push_back(
        fmt::format("the kernel spills {} bytes of registers to memory; {}", best.facts.spill_bytes,
                    schedule.empty() ? "no candidate does without" : "the pinned schedule leaves no other way"));
  }
  best.facts.compile_ms = milliseconds_since(start);
  return std::move(best);
}

Result<StoredSpec> find_spec(std::string_view spec, std::string_view target, std::string_view schedule,
                             const CompileOptions& options) {
  FLASHJIT_ASSIGN(settings, read_environment());
  StoredSpec stored;
  std::string note;
  FLASHJIT_ASSIGN(bundled, look_in_bundles(spec, target, schedule, options, settings, note));
  if (bundled) {
    stored = {.key = bundled->key, .spec = bundled->facts.spec, .schedule = bundled->facts.schedule};
    stored.hit = std::move(*bundled);
    return stored;
  }
  FLASHJIT_ASSIGN(first, plan_for_gpu(spec, target, schedule, options));
  const Job job{options, settings, &stored};
  Search search(first, job);
  auto found = search.run();
  if (!stored.key.digest.empty()) return stored;
  if (!found) return found.error();
  for (const std::string& note : search.notes()) found->facts.notes.push_back(note);
  stored.key = found->key;
  stored.spec = found->facts.spec;
  stored.schedule = found->facts.schedule;
  stored.hit = std::move(*found);
  return stored;
}

}  // namespace flashjit
