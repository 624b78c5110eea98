// flashjit build puts the kernels of a manifest, for one or more targets, into a bundle. It needs no GPU.
#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <thread>

#include <fmt/format.h>

#include "compiler/spec/text_form.h"
#include "runtime/bundle/bundle.h"
#include "runtime/engine/environment.h"
#include "runtime/launch/thread_pool.h"
#include "runtime/store/output_file.h"
#include "tools/command/commands.h"
#include "tools/fleet/shard.h"
#include "tools/fleet/wanted.h"
#include "tools/support/files.h"
#include "tools/support/output.h"
#include "tools/support/progress.h"

namespace flashjit {
namespace {

struct BuildArgs {
  std::string manifest, out;
  std::optional<std::string> shard;
  std::vector<std::string> archs;
  int jobs = 0;
  bool no_cache = false, json = false;
};

// A job has a kernel of the bundle, and the results of its compile.
struct BuildJob {
  WantedKernel kernel;
  Facts facts;
  BundleItem item;
  PackedCode code;
};

Result<void> build(const CompileOptions& options, const std::string& compiler, BuildJob& job) {
  FLASHJIT_ASSIGN(compiled, compile_spec(*job.kernel.request, options));
  job.facts = compiled.facts;
  job.item = bundle_item(job.kernel.key, compiled, compiler);
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
      std::optional<Error>& error = jobs[i].kernel.error;
      if (!error) {
        if (const auto done = build(options, compiler, jobs[i]); !done) error = done.error();
      }
      progress.advance();
    }
  };
  std::vector<std::jthread> threads;
  for (int i = 1; i < std::min(cores, static_cast<int>(jobs.size())); ++i) threads.emplace_back(work);
  work();
}

void report(BuildJob& job, Output& output) {
  auto& [key, location, request, error] = job.kernel;
  Json line = result_line(key.spec, key.target, error ? key.pins : job.facts.schedule);
  if (error) {
    error->message = fmt::format("{}: {}", location, error->message);
    return output.failure(std::move(line), *error);
  }
  line["pins"] = key.pins;
  add_facts(line, job.facts);
  output.result(line, fmt::format("{:8} {}\n         {} in {:.0f} ms, {} of code, schedule {}\n", key.target,
                                  print(ManifestLine{.spec = key.spec, .schedule = key.pins}), job.facts.source,
                                  job.facts.compile_ms, bytes_text(static_cast<double>(job.facts.cubin_bytes)),
                                  job.facts.schedule));
}

std::string kernels_text(const BuildArgs& args, const std::optional<BundleShards>& shards, std::size_t kernels) {
  if (!shards) return counted(kernels, "kernel");
  if (kernels > 0) return fmt::format("shard {}, {} of {}", *args.shard, kernels, counted(shards->kernels, "kernel"));
  return fmt::format("no kernels: shard {} is empty, and others have the {} of {}", *args.shard, shards->kernels,
                     args.manifest);
}

Result<void> finish(const BuildArgs& args, std::vector<BuildJob>& jobs, std::optional<BundleShards> shards,
                    Output& output) {
  BundleIndex index{.templates = templates_digest(), .items = {}, .shards = shards};
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
  line["shard"] = shards ? Json(*args.shard) : Json();
  line["manifest_kernels"] = shards ? shards->kernels : jobs.size();
  output.result(
      line, fmt::format("{}: {}, {} ({} of code)\n", args.out, kernels_text(args, shards, jobs.size()),
                        bytes_text(static_cast<double>(bytes.size())), bytes_text(static_cast<double>(code_bytes))));
  return {};
}

// Leaves the kernels that this run builds: all of the manifest, or those of its shard.
Result<std::optional<BundleShards>> leave_shard(const BuildArgs& args, std::vector<WantedKernel>& wanted) {
  if (!args.shard) return std::optional<BundleShards>();
  FLASHJIT_ASSIGN(shard, parse_shard(*args.shard));
  return std::optional(take_shard(shard, wanted));
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
  std::vector<WantedKernel> wanted = wanted_kernels(args.manifest, lines, args.archs);
  const std::size_t all = wanted.size();
  FLASHJIT_ASSIGN(shards, leave_shard(args, wanted));
  FLASHJIT_TRY(check_output(args.out));
  FLASHJIT_ASSIGN(nvrtc, Nvrtc::open(settings.nvrtc));
  FLASHJIT_ASSIGN(trusted, TrustedList::read(settings.trusted_list));
  KernelStore store({.directory = settings.cache_dir, .disk = !args.no_cache, .trusted = std::move(trusted)});
  std::vector<BuildJob> jobs;
  for (WantedKernel& kernel : wanted)
    jobs.push_back({.kernel = std::move(kernel), .facts = {}, .item = {}, .code = {}});
  build_all(args, {.settings = settings, .store = &store}, nvrtc->identity(), jobs);
  for (BuildJob& job : jobs) report(job, output);
  for (const std::string& note : store.notes()) say_note(note);
  const auto failed = std::ranges::count_if(jobs, [](const BuildJob& job) { return job.kernel.error.has_value(); });
  if (failed == 0) return finish(args, jobs, std::move(shards), output);
  return Error{ErrorKind::Invalid,
               fmt::format("{} was not written: {} of {} cannot be built", args.out, failed, counted(all, "kernel")),
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
  sub->add_option("--shard", args->shard,
                  "Build one share of the kernels: 3/16 is the third of 16, numbered from 1; bundle merge joins them")
      ->type_name("NUMBER/COUNT");
  sub->add_option("--jobs", args->jobs, "Compiles at a time (default: the cores)")->check(CLI::Range(1, 1024));
  sub->add_flag("--no-cache", args->no_cache, "Neither read nor write the kernel store");
  sub->add_flag("--json", args->json, "One JSON object per kernel, then one for the bundle");
  sub->footer(
      "\nA line of a manifest: SPEC, or SPEC ;; schedule=PINS ;; arch=TARGETS, or # and a comment.\n"
      "\nExamples:\n"
      "  flashjit run 'fwd bf16 d=64 heads=8' --shape q=128 --record kernels.txt\n"
      "  flashjit build kernels.txt --arch sm_80,sm_90a -o kernels.fjb\n"
      "  flashjit build kernels.txt --arch sm_80,sm_90a --shard 3/16 -o shard-3.fjb\n"
      "  FLASHJIT_JIT=off flashjit run 'fwd bf16 d=64 heads=8' --shape q=128 --bundle kernels.fjb");
  sub->callback([args, &exit_code] { exit_code = build_command(*args); });
}

}  // namespace flashjit
