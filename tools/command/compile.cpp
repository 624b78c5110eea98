// flashjit compile turns specs into machine code for any target, without a GPU.
#include <algorithm>
#include <atomic>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <thread>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "compiler/families/family.h"
#include "compiler/spec/spec.h"
#include "runtime/compile/compile_host.h"
#include "runtime/compile/nvrtc/compiler_process.h"
#include "runtime/compile/verify.h"
#include "runtime/engine/environment.h"
#include "runtime/launch/thread_pool.h"
#include "runtime/store/output_file.h"
#include "tools/command/commands.h"
#include "tools/support/engine_options.h"
#include "tools/support/inputs.h"
#include "tools/support/output.h"
#include "tools/support/progress.h"

namespace flashjit {
namespace {

const std::vector<std::string> kKinds = {"spec", "ir", "cuda", "ptx", "cubin", "facts", "llvm"};

// --out writes these if --emit names nothing, as far as the target has them.
const std::vector<std::string> kWritten = {"spec", "cuda", "cubin", "llvm", "facts"};

struct CompileArgs {
  std::vector<std::string> specs, archs, emit;
  std::string schedule, out, dump_after, override_dir, compiler_program;
  int jobs = 0;
  std::int64_t timeout_ms = 0;
  bool no_cache = false, isolate = false, verify = false, line_info = false, json = false;
};

struct Dump {
  std::string pass, text;
};

// A job is one spec for one target, with everything that may be printed about it.
struct CompileJob {
  std::string spec, arch, schedule;  // `schedule` has the pins.
  std::optional<Error> error;
  Facts facts;
  // Registers while its warpgroups run. It is empty if they run as launched.
  std::string redistributed;
  std::string program;
  std::vector<Dump> dumps;
  std::vector<SourceFile> files;  // for --emit; names are relative to the kernel's folder
};

bool is_among(const std::vector<std::string>& kinds, std::string_view kind) {
  return std::ranges::find(kinds, kind) != kinds.end();
}

bool wants(const CompileArgs& args, std::string_view kind) {
  return is_among(args.emit.empty() && !args.out.empty() ? kWritten : args.emit, kind);
}

// The compiler reports the registers of the launch: the same number for all threads of a block. Warpgroups that compute
// have more if others give theirs back. That is so if as many registers for all threads would not fit.
std::string redistributed_registers(const Plan& plan, const Facts& facts) {
  const Family family = plan.schedule.family;
  if (!family->registers) return {};
  const int budget = family->registers(Problem(plan.spec, plan.target, plan.tiles), plan.config).budget;
  if (budget <= facts.registers || budget * plan.threads() <= plan.target.registers_per_sm) return {};
  return fmt::format(
      "  {} registers are those of the launch, the same for all {} threads; then the warps that copy give up most of "
      "theirs, and those that compute have {}\n",
      facts.registers, plan.threads(), budget);
}

std::string facts_json(const CompileJob& job) {
  Json facts = result_line(job.facts.spec, job.facts.target, job.facts.schedule);
  add_facts(facts, job.facts);
  // Times and the kernel's origin differ between runs. Everything else in the folder is reproducible.
  for (const char* field : {"source", "compile_ms"}) facts.erase(field);
  return facts.dump(2) + "\n";
}

void add_common_files(const CompileArgs& args, CompileJob& job) {
  if (wants(args, "spec")) {
    job.files.push_back({"spec.txt", job.facts.spec + "\n"});
    job.files.push_back({"schedule.txt", job.facts.schedule + "\n"});
  }
  if (wants(args, "ir")) job.files.push_back({"program.txt", job.program});
  if (wants(args, "facts")) job.files.push_back({"facts.json", facts_json(job)});
}

// With --verify the code must be the very code that was tried.
Result<void> check_verified(const CompileArgs& args, const Compiled& compiled) {
  if (!args.verify || is_verified(compiled.binary->facts)) return {};
  return Error{
      ErrorKind::Io,
      fmt::format("--verify: the kernel store did not keep the kernel that was tried{}; set FLASHJIT_CACHE_DIR "
                  "to a folder of your own",
                  compiled.facts.miss.empty() ? "" : " (" + compiled.facts.miss + ")"),
      {}};
}

Result<void> compile_gpu(const CompileArgs& args, const EnvironmentSettings& settings, KernelStore* store,
                         const DumpSink& dump, CompileJob& job) {
  if (is_among(args.emit, "llvm"))
    return invalid(fmt::format("--emit llvm: {} is a GPU, which has spec, ir, cuda, ptx, cubin and facts", job.arch));
  CompileOptions options;
  options.settings = settings;
  options.store = store;
  options.dump = dump;
  options.bounds = CompileBounds(std::chrono::milliseconds(args.timeout_ms), nullptr);
  options.override_dir = args.override_dir;
  options.compiler_program = args.compiler_program;
  FLASHJIT_ASSIGN(request, Request::parse(job.spec, job.arch, job.schedule));
  FLASHJIT_ASSIGN(compiled, as_option(compile_spec(request, options)));
  FLASHJIT_TRY(check_verified(args, compiled));
  job.facts = compiled.facts;
  job.redistributed = redistributed_registers(compiled.plan, compiled.facts);
  job.program = flashjit::dump(compiled.plan.program);
  add_common_files(args, job);
  if (wants(args, "cuda")) {
    for (const auto* files : {&compiled.source.generated, &compiled.source.headers}) {
      job.files.insert(job.files.end(), files->begin(), files->end());
    }
  }
  if (wants(args, "ptx")) {
    FLASHJIT_ASSIGN(nvrtc, Nvrtc::open(settings.nvrtc, args.compiler_program, options.bounds));
    FLASHJIT_ASSIGN(ptx, nvrtc->ptx(compiled.source, compiled.plan.target, options.bounds));
    job.files.push_back({"kernel.ptx", std::move(ptx)});
  }
  if (wants(args, "cubin")) {
    const auto& cubin = compiled.binary->payload;
    job.files.push_back({"kernel.cubin", std::string(cubin.begin(), cubin.end())});
  }
  return {};
}

// These options concern code for GPUs only.
Result<void> check_of_processor(const CompileArgs& args, const std::string& arch) {
  for (const char* kind : {"cuda", "ptx", "cubin"}) {
    if (is_among(args.emit, kind))
      return invalid(fmt::format("--emit {}: {} is a processor, which has spec, ir, llvm and facts", kind, arch));
  }
  if (!args.override_dir.empty())
    return invalid(fmt::format("--override: {} is a processor, whose kernels have no source files", arch));
  if (args.line_info) return no_lines_of(arch);
  if (args.isolate)
    return invalid(
        fmt::format("--isolate: {} is a processor, whose kernels are not made by NVRTC; leave it out", arch));
  return {};
}

Result<void> compile_host(const CompileArgs& args, const EnvironmentSettings& settings, KernelStore* store,
                          const DumpSink& dump, CompileJob& job) {
  FLASHJIT_ASSIGN(library, host_library());
  FLASHJIT_ASSIGN(request, Request::parse(job.spec, job.arch, job.schedule));
  CompileOptions options{.settings = settings, .store = store, .dump = dump};
  options.bounds = CompileBounds(std::chrono::milliseconds(args.timeout_ms), nullptr);
  FLASHJIT_ASSIGN(compiled, compile_host_spec(request, *library, options));
  FLASHJIT_TRY(check_verified(args, compiled));
  job.facts = compiled.facts;
  job.program = flashjit::dump(compiled.plan.program);
  add_common_files(args, job);
  if (wants(args, "llvm")) {
    FLASHJIT_ASSIGN(ir, library->backend.llvm_ir(compiled.plan));
    job.files.push_back({"kernel.ll", std::move(ir)});
  }
  return {};
}

// An engine of the target's device puts the kernel into the store if it is right, and later steps find it there.
Result<void> verify(const CompileArgs& args, const EnvironmentSettings& settings, const CompileJob& job) {
  FLASHJIT_ASSIGN(session, Session::open(job.arch, {.isolate_compiler = args.isolate, .tuned = false}, settings));
  PrepareOptions options;
  options.schedule = job.schedule;
  options.timeout = std::chrono::milliseconds(args.timeout_ms);
  options.verify = true;
  FLASHJIT_TRY(session->engine().prepare(job.spec, options));
  return {};
}

void compile_job(const CompileArgs& args, const EnvironmentSettings& settings, KernelStore* store, CompileJob& job) {
  const DumpSink dump = [&](std::string_view pass, const std::string& text) {
    job.dumps.push_back({std::string(pass), text});
  };
  if (job.error) return;
  auto row = find_target(job.arch);
  Result<void> done = row ? Result<void>() : Result<void>(row.error());
  if (done && !(*row)->gpu) done = check_of_processor(args, job.arch);
  if (done && args.verify) done = verify(args, settings, job);
  if (done)
    done = (*row)->gpu ? compile_gpu(args, settings, store, dump, job) : compile_host(args, settings, store, dump, job);
  if (!done) job.error = done.error();
}

std::string summary(const CompileArgs& args, const CompileJob& job) {
  const Facts& f = job.facts;
  std::string text =
      fmt::format("{}\n  target    {} ({} family)\n  schedule  {}\n  {} in {:.0f} ms, {} of code", f.spec, f.target,
                  f.family, f.schedule, f.source, f.compile_ms, bytes_text(static_cast<double>(f.cubin_bytes)));
  if (f.registers > 0) {
    text += fmt::format(", {} registers, {} spilled, {} shared memory", f.registers, bytes_text(f.spill_bytes),
                        bytes_text(f.smem_bytes));
  }
  text += args.verify ? "\n  verified on small random data\n" : "\n";
  text += job.redistributed;
  for (const std::string& note : f.notes) text += fmt::format("  note: {}\n", note);
  return text;
}

// Returns the dumps that were asked for. An unknown name is an error that lists the passes.
Result<std::vector<Dump>> selected_dumps(const CompileArgs& args, const CompileJob& job) {
  std::vector<Dump> selected;
  std::vector<std::string> names;
  for (const Dump& dump : job.dumps) {
    names.push_back(dump.pass);
    if (args.dump_after == "all" || args.dump_after == dump.pass) selected.push_back(dump);
  }
  if (!args.dump_after.empty() && selected.empty()) {
    return invalid(fmt::format("--dump-after: there is no pass '{}'; the passes are: {}, or all", args.dump_after,
                               fmt::join(names, ", ")));
  }
  return selected;
}

// Each kernel has a folder whose name follows from the kernel, so the same command gives the same tree everywhere.
Result<std::string> write_files(const CompileArgs& args, const CompileJob& job) {
  const std::string folder = fmt::format("{}-{}", job.arch, job.facts.key.substr(0, 16));
  const std::filesystem::path path = std::filesystem::path(args.out) / folder;
  for (const SourceFile& file : job.files) FLASHJIT_TRY(write_output(path / file.name, {file.text}));
  return path.string();
}

void report(const CompileArgs& args, const CompileJob& job, Output& output) {
  Json line =
      result_line(job.error ? job.spec : job.facts.spec, job.arch, job.error ? job.schedule : job.facts.schedule);
  if (job.error) return output.failure(std::move(line), *job.error);
  add_facts(line, job.facts);
  auto dumps = selected_dumps(args, job);
  if (!dumps) return output.failure(std::move(line), dumps.error());
  std::string text = summary(args, job);
  for (const Dump& dump : *dumps) {
    line["dumps"][dump.pass] = dump.text;
    text += fmt::format("-- after {}\n{}\n", dump.pass, dump.text);
  }
  if (!args.out.empty()) {
    auto folder = write_files(args, job);
    if (!folder) return output.failure(std::move(line), folder.error());
    line["folder"] = *folder;
    text += fmt::format("  written to {}\n", *folder);
  } else {
    for (const SourceFile& file : job.files) {
      if (file.name == "kernel.cubin") continue;  // It has been refused before.
      line["files"][file.name] = file.text;
      text += fmt::format("-- {}\n{}\n", file.name, file.text);
    }
  }
  output.result(line, text);
}

// Returns one job for each kernel. A spec that cannot be parsed gives a job with that error.
std::vector<CompileJob> jobs_of(const CompileArgs& args) {
  std::vector<CompileJob> jobs;
  for (const std::string& spec : args.specs) {
    for (const std::string& arch : args.archs) {
      const auto request = Request::parse(spec, arch, args.schedule);
      const auto kernels = request ? kernels_of(*request) : Result<std::vector<Request>>(request.error());
      if (!kernels) {
        jobs.push_back({.spec = spec, .arch = arch, .schedule = args.schedule, .error = kernels.error()});
        continue;
      }
      for (const Request& kernel : *kernels)
        jobs.push_back({.spec = kernel.text, .arch = std::string(kernel.target.name), .schedule = print(kernel.pins)});
    }
  }
  return jobs;
}

int compile(CompileArgs args) {
  Output output(args.json);
  if (args.out.empty() && wants(args, "cubin")) {
    output.failure(result_line("", "", args.schedule),
                   invalid("--emit cubin: a cubin is no text; say where it goes with --out DIR"));
    return output.exit_code();
  }

  auto settings = read_environment();
  if (!settings) {
    output.failure(result_line("", "", args.schedule), settings.error());
    return output.exit_code();
  }
  settings->line_info = settings->line_info || args.line_info;
  if (args.isolate) {
    auto program = find_compiler_program();
    if (!program) {
      output.failure(result_line("", "", args.schedule), as_option(program.error()));
      return output.exit_code();
    }
    args.compiler_program = std::move(*program);
  }
  auto trusted = TrustedList::read(settings->trusted_list);
  if (!trusted) {
    output.failure(result_line("", "", args.schedule), trusted.error());
    return output.exit_code();
  }
  std::unique_ptr<KernelStore> store;
  if (!args.no_cache)
    store =
        std::make_unique<KernelStore>(StoreOptions{.directory = settings->cache_dir, .trusted = std::move(*trusted)});

  std::vector<CompileJob> jobs = jobs_of(args);
  const int cores = args.jobs > 0 ? args.jobs : usable_cores();
  const int workers = std::min(cores, static_cast<int>(jobs.size()));
  Progress progress("compiling", static_cast<int>(jobs.size()));
  std::atomic<std::size_t> next = 0;
  const auto work = [&] {
    for (std::size_t i = next++; i < jobs.size(); i = next++) {
      compile_job(args, *settings, store.get(), jobs[i]);
      progress.advance();
    }
  };
  {
    std::vector<std::jthread> threads;
    for (int i = 1; i < workers; ++i) threads.emplace_back(work);
    work();
  }
  for (std::size_t i = 0; i < jobs.size(); ++i) report(args, jobs[i], output);
  if (store) {
    for (const std::string& note : store->notes()) say_note(note);
  }
  return output.exit_code();
}

}  // namespace

void add_compile(CLI::App& app, int& exit_code) {
  auto args = std::make_shared<CompileArgs>();
  CLI::App* sub = app.add_subcommand("compile", "Compile specs for one or more targets; needs no GPU");
  sub->add_option("spec", args->specs, "The problems, one argument each")->required();
  sub->add_option("--arch", args->archs, "Targets: sm_80, sm_90a, x86-64-v3, ..., or cards: a100, h100, b200, ...")
      ->type_name("TARGET")
      ->delimiter(',')
      ->required();
  sub->add_option("--schedule", args->schedule, "Choices to pin, such as tile_q=128,tile_kv=64; the rest is chosen");
  sub->add_option("--emit", args->emit, "What to write or print: spec,ir,cuda,ptx,cubin,facts, and llvm for processors")
      ->delimiter(',')
      ->check(CLI::IsMember(kKinds));
  sub->add_option(
         "--out", args->out,
         "Write into DIR, one folder per kernel (default kinds: spec,cuda,cubin,facts; of processors spec,llvm,facts)")
      ->type_name("DIR");
  sub->add_option("--dump-after", args->dump_after, "Print the tile program after PASS, or after every pass with 'all'")
      ->type_name("PASS");
  sub->add_option("--jobs", args->jobs, "Compiles at a time (default: the cores)")->check(CLI::Range(1, 1024));
  CLI::Option* override_dir =
      sub->add_option("--override", args->override_dir,
                      "Compile the edited source files in DIR, which --out or FLASHJIT_DUMP_DIR wrote");
  override_dir->type_name("DIR");
  add_line_info_option(*sub, args->line_info);
  sub->add_option("--timeout", args->timeout_ms,
                  "Give up a kernel after this many milliseconds; on processors only before LLVM begins")
      ->type_name("MS")
      ->check(CLI::Range(1, 86'400'000));
  sub->add_flag("--isolate", args->isolate,
                "Run NVRTC in processes of its own, so that a crash of it is an error of that kernel");
  CLI::Option* no_cache = sub->add_flag("--no-cache", args->no_cache, "Neither read nor write the kernel store");
  sub->add_flag("--verify", args->verify,
                "Try each kernel on its device, on small random data, before it enters the store")
      ->excludes(no_cache)
      ->excludes(override_dir);
  sub->add_flag("--json", args->json, "One JSON object per kernel");
  sub->footer(
      "\nExamples:\n"
      "  flashjit compile 'fwd bf16 d=128 heads=32/8 mask=\"causal\"' --arch sm_80,sm_90a\n"
      "  flashjit compile 'fwd fp16 d=64 heads=16' --arch sm_90a --emit cuda\n"
      "  flashjit compile 'fwd fp16 d=64 heads=16' --arch sm_90a --dump-after all --no-cache\n"
      "  flashjit compile 'fwd fp32 d=64 heads=16' --arch x86-64-v3 --verify\n"
      "  flashjit compile 'fwd fp16 d=64 heads=16' --arch sm_80 --out kernels --emit cubin,ptx,facts --json");
  sub->callback([args, &exit_code] { exit_code = compile(*args); });
}

}  // namespace flashjit
