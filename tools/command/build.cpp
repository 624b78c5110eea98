// flashjit build: the kernels of a manifest, for one or more targets, into a bundle. Needs no GPU.
#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <set>
#include <thread>

#include <fmt/format.h>

#include "runtime/bundle/bundle.h"
#include "runtime/engine/environment.h"
#include "runtime/launch/thread_pool.h"
#include "tools/command/commands.h"
#include "tools/support/files.h"
#include "tools/support/output.h"
#include "tools/support/progress.h"

namespace flashjit {
namespace {

struct BuildArgs {
  std::string manifest, out;
  std::vector<std::string> archs;
  int jobs = 0;
  bool no_cache = false, json = false;
};

// One kernel of the bundle.
struct BuildJob {
  BundleKey key;                   // as written while `error` says that it cannot be read
  std::string place;               // "manifest:3"
  std::optional<Request> request;  // none: `error` says why
  std::optional<Error> error;
  Facts facts;
  BundleItem item;
  PackedCode code;
};

// Each kernel once, however often the manifest asks for it.
std::vector<BuildJob> jobs_of(const BuildArgs& args, const std::vector<ManifestLine>& lines) {
  std::vector<BuildJob> jobs;
  std::set<BundleKey> known;
  for (const ManifestLine& line : lines) {
    for (const std::string& arch : line.archs.empty() ? args.archs : line.archs) {
      const std::string place = fmt::format("{}:{}", args.manifest, line.number);
      auto request = Request::parse(line.spec, arch, line.schedule);
      auto kernels = request ? kernels_of(*request) : Result<std::vector<Request>>(request.error());
      if (!kernels) {
        const BundleKey key = {arch, line.spec, line.schedule};
        if (known.insert(key).second) jobs.push_back({.key = key, .place = place, .error = kernels.error()});
        continue;
      }
      for (Request& kernel : *kernels) {
        const BundleKey key = bundle_key(kernel);
        if (known.insert(key).second) jobs.push_back({.key = key, .place = place, .request = std::move(kernel)});
      }
    }
  }
  return jobs;
}

Result<void> build(const CompileOptions& options, const std::string& compiler, BuildJob& job) {
  FLASHJIT_ASSIGN(compiled, compile_spec(*job.request, options));
  job.facts = compiled.facts;
  job.item = bundle_item(job.key, compiled, compiler);
  job.code = pack(compiled.binary->payload);
  return {};
}

void build_all(const BuildArgs& args, const CompileOptions& options, const std::string& compiler,
               std::vector<BuildJob>& jobs) {
  const int cores = args.jobs > 0 ? args.jobs : usable_cores();
  Progress progress("building", static_cast<int>(jobs.size()));
  std::atomic<std::size_t> next = 0;
  const auto work = [&] {
    for (std::size_t i = next++; i < jobs.size(); i = next++) {
      if (!jobs[i].error) {
        if (const auto done = build(options, compiler, jobs[i]); !done) jobs[i].error = done.error();
      }
      progress.advance();
    }
  };
  std::vector<std::jthread> threads;
  for (int i = 1; i < std::min(cores, static_cast<int>(jobs.size())); ++i) threads.emplace_back(work);
  work();
}

void report(BuildJob& job, Output& output) {
  Json line = result_line(job.key.spec, job.key.target, job.error ? job.key.pins : job.facts.schedule);
  if (job.error) {
    job.error->message = fmt::format("{}: {}", job.place, job.error->message);
    return output.failure(std::move(line), *job.error);
  }
  line["pins"] = job.key.pins;
  add_facts(line, job.facts);
  output.result(line, fmt::format("{:8} {}\n         {} in {:.0f} ms, {} of code, schedule {}\n", job.key.target,
                                  print(ManifestLine{.spec = job.key.spec, .schedule = job.key.pins}), job.facts.source,
                                  job.facts.compile_ms, bytes_text(static_cast<double>(job.facts.cubin_bytes)),
                                  job.facts.schedule));
}

Result<void> finish(const BuildArgs& args, std::vector<BuildJob>& jobs, Output& output) {
  BundleIndex index{.templates = templates_digest()};
  std::vector<PackedCode> codes;
  std::uint64_t code_bytes = 0;
  for (BuildJob& job : jobs) {
    code_bytes += job.code.code_bytes;
    index.items.push_back(std::move(job.item));
    codes.push_back(std::move(job.code));
  }
  const auto bytes = encode_bundle(std::move(index), std::move(codes));
  FLASHJIT_TRY(write_bundle(args.out, bytes));
  Json line = result_line("", "", "");
  line["bundle"] = args.out;
  line["kernels"] = jobs.size();
  line["bytes"] = bytes.size();
  line["code_bytes"] = code_bytes;
  output.result(
      line, fmt::format("{}: {} kernels, {} ({} of code)\n", args.out, jobs.size(),
                        bytes_text(static_cast<double>(bytes.size())), bytes_text(static_cast<double>(code_bytes))));
  return {};
}

Result<void> run_build(const BuildArgs& args, Output& output) {
  FLASHJIT_ASSIGN(settings, read_environment());
  FLASHJIT_TRY(check_files_differ({{"--out", args.out}}, {{"the manifest", args.manifest}}));
  FLASHJIT_ASSIGN(lines, read_manifest(args.manifest == "-" ? "/dev/stdin" : args.manifest));
  for (const std::string& arch : args.archs) {
    FLASHJIT_ASSIGN(row, find_target(arch));
    if (!row->gpu)
      return invalid(fmt::format(
          "--arch: {} is a processor, and bundles hold kernels for GPUs; host kernels are compiled where they run",
          arch));
  }
  if (lines.empty()) return invalid(fmt::format("{}: no specs; write one per line", args.manifest));
  if (!settings.jit) return invalid("FLASHJIT_JIT=off: building compiles; unset it");
  FLASHJIT_ASSIGN(nvrtc, Nvrtc::open(settings.nvrtc));
  FLASHJIT_ASSIGN(trusted, TrustedList::read(settings.trusted_list));
  KernelStore store({.directory = settings.cache_dir, .disk = !args.no_cache, .trusted = std::move(trusted)});
  std::vector<BuildJob> jobs = jobs_of(args, lines);
  build_all(args, {.settings = settings, .store = &store}, nvrtc->identity(), jobs);
  for (BuildJob& job : jobs) report(job, output);
  for (const std::string& note : store.notes()) say_note(note);
  const auto failed = std::ranges::count_if(jobs, [](const BuildJob& job) { return job.error.has_value(); });
  if (failed == 0) return finish(args, jobs, output);
  return Error{ErrorKind::Invalid,
               fmt::format("{} was not written: {} of {} kernels cannot be built", args.out, failed, jobs.size()),
               {}};
}

int build_command(const BuildArgs& args) {
  Output output(args.json);
  if (const auto done = run_build(args, output); !done) output.failure(result_line("", "", ""), done.error());
  return output.exit_code();
}

}  // namespace

void add_build(CLI::App& app, int& exit_code) {
  auto args = std::make_shared<BuildArgs>();
  CLI::App* sub =
      app.add_subcommand("build", "Build the kernels of a manifest into a bundle, ahead of time; needs no GPU");
  sub->add_option("manifest", args->manifest, "A spec per line, as --record writes it; '-': standard input")
      ->required()
      ->type_name("FILE");
  sub->add_option("--arch", args->archs, "Targets of the lines that name none: sm_80, sm_90a, ...")
      ->type_name("TARGET")
      ->delimiter(',')
      ->required();
  sub->add_option("-o,--out", args->out, "The bundle")->required()->type_name("FILE.fjb");
  sub->add_option("--jobs", args->jobs, "Compiles at a time (default: the cores)")->check(CLI::Range(1, 1024));
  sub->add_flag("--no-cache", args->no_cache, "Neither read nor write the kernel store");
  sub->add_flag("--json", args->json, "One JSON object per kernel, then one for the bundle");
  sub->footer(
      "\nA line of a manifest: SPEC, or SPEC ;; schedule=PINS ;; arch=TARGETS, or # and a comment.\n"
      "\nExamples:\n"
      "  flashjit run 'fwd bf16 d=64 heads=8' --shape q=128 --record kernels.txt\n"
      "  flashjit build kernels.txt --arch sm_80,sm_90a -o kernels.fjb\n"
      "  FLASHJIT_JIT=off flashjit run 'fwd bf16 d=64 heads=8' --shape q=128 --bundle kernels.fjb");
  sub->callback([args, &exit_code] { exit_code = build_command(*args); });
}

}  // namespace flashjit
