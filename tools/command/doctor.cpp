// flashjit doctor lists what this machine has, and what to do about missing things.
#include <cstdlib>
#include <memory>

#include <fmt/format.h>

#include "compiler/spec/target.h"
#include "compiler/spec/text_form.h"
#include "runtime/driver/driver.h"
#include "runtime/engine/create.h"
#include "runtime/engine/environment.h"
#include "runtime/engine/host_library.h"
#include "runtime/compile/nvrtc/compiler_process.h"
#include "runtime/compile/nvrtc/nvrtc.h"
#include "runtime/store/store.h"
#include "runtime/store/directory.h"
#include "tools/command/commands.h"
#include "tools/support/output.h"

namespace flashjit {
namespace {

// A finding is one thing that was looked for. `detail` holds what was found, or the reason and the remedy.
struct Finding {
  const char* name;
  bool found = false;
  std::string detail;
  Json fields = Json::object();
  bool stops_all = false;  // No engine can be made while this is so.
};

Finding failed(const char* name, const Error& error) {
  Finding finding{name, false, error.message};
  if (!error.detail.empty()) finding.detail += "\n" + error.detail;
  return finding;
}

Finding look_for_driver() {
  auto driver = Driver::open();
  if (!driver) return failed("driver", driver.error());
  const int version = (*driver)->version();
  Finding finding{"driver", true,
                  fmt::format("CUDA {}.{} ({})", version / 1000, version % 1000 / 10, (*driver)->path())};
  finding.fields = {{"version", version}, {"path", (*driver)->path()}};
  return finding;
}

Finding look_for_gpus() {
  auto driver = Driver::open();
  if (!driver) return failed("gpu", driver.error());
  Finding finding{"gpu", false, ""};
  finding.fields["devices"] = Json::array();
  for (int i = 0; i < (*driver)->device_count(); ++i) {
    auto info = (*driver)->device(i);
    if (!info) return failed("gpu", info.error());
    const Target* target = target_for_compute_capability(info->major, info->minor);
    finding.found |= target != nullptr;
    finding.fields["devices"].push_back({{"ordinal", i},
                                         {"name", info->name},
                                         {"uuid", info->uuid},
                                         {"target", target ? Json(target->name) : Json()},
                                         {"sm_count", info->sm_count},
                                         {"memory_bytes", info->memory_bytes},
                                         {"l2_bytes", info->l2_bytes}});
    finding.detail +=
        fmt::format("{}{}: {}, {} SMs, {}, {}", i == 0 ? "" : "\n", i, info->name, info->sm_count,
                    bytes_text(static_cast<double>(info->memory_bytes)),
                    target ? fmt::format("target {}", target->name)
                           : fmt::format("compute capability {}.{} has no target here; sm_80 is the oldest",
                                         info->major, info->minor));
  }
  if (finding.detail.empty()) finding.detail = "the driver lists no GPU (is CUDA_VISIBLE_DEVICES empty?)";
  return finding;
}

Finding look_for_nvrtc(const EnvironmentSettings& settings) {
  // NVRTC is opened in another process if possible, because somebody may be looking for a library that ends the process
  // that loads it.
  auto elsewhere = find_compiler_program();
  auto nvrtc = Nvrtc::open(settings.nvrtc, elsewhere ? *elsewhere : std::string());
  if (!nvrtc) return failed("nvrtc", nvrtc.error());
  // If this variable has a value, NVRTC compiles one program at a time, however many threads ask.
  const char* serial = std::getenv("NVRTC_DISABLE_CONCURRENT_NVVM");
  Finding finding{"nvrtc", true, fmt::format("{}.{} ({})", (*nvrtc)->major(), (*nvrtc)->minor(), (*nvrtc)->path())};
  if (serial)
    finding.detail +=
        fmt::format("\nNVRTC_DISABLE_CONCURRENT_NVVM={} is set: compiles wait for each other; unset it", serial);
  if (!settings.jit)
    finding.detail +=
        "\nFLASHJIT_JIT=off is set: it is not opened, and kernels come from bundles alone; unset it to compile";
  finding.fields = {{"version", fmt::format("{}.{}", (*nvrtc)->major(), (*nvrtc)->minor())},
                    {"path", (*nvrtc)->path()},
                    {"concurrent", serial == nullptr}};
  return finding;
}

Finding look_for_host(const EnvironmentSettings& settings) {
  const auto library = host_library();
  if (!library) return failed("host", library.error());
  const HostBackend& backend = (*library)->backend;
  const auto target = backend.best_target();
  if (!target) return failed("host", target.error());
  const int threads = host_threads({}, settings);
  Finding finding{"host", settings.jit,
                  fmt::format("LLVM {}, target {}, {}", backend.llvm_version(), *target, counted(threads, "thread"))};
  if (!settings.jit)
    finding.detail += "\nFLASHJIT_JIT=off is set: kernels of processors are in no bundle, so none runs; unset it";
  finding.fields = {{"llvm", backend.llvm_version()}, {"target", *target}, {"threads", threads}};
  return finding;
}

std::string size_text(const StoreStat& stat) {
  return fmt::format("{}, {}", counted(stat.entries, "kernel"), bytes_text(static_cast<double>(stat.bytes)));
}

void look_at_layers(const std::vector<std::string>& layers, Finding& finding) {
  finding.fields["layers"] = Json::array();
  for (const std::string& layer : layers) {
    const auto stat = stat_store(layer, StoreDirectory::Access::Layer);
    const std::string detail = stat ? fmt::format("{}: {}, shared, only read", layer, size_text(*stat))
                                    : stat.error().message + "; passed over";
    finding.fields["layers"].push_back({{"directory", layer}, {"used", static_cast<bool>(stat)}, {"detail", detail}});
    finding.detail += "\n" + detail;
  }
}

void look_at_own(const std::string& directory, Finding& finding) {
  finding.fields["directory"] = directory;
  const auto stat = stat_store(directory);
  const bool is_missing = !stat && stat.error().kind == ErrorKind::NotFound;
  finding.found = stat || is_missing;
  finding.detail = stat         ? fmt::format("{}: {}, nobody else can write it", directory, size_text(*stat))
                   : is_missing ? directory + ": has no kernels yet; the first compile creates what is missing"
                                : stat.error().message + "; new kernels are kept in memory only";
}

// Looks without creating anything, because a store that does not exist yet is fine.
Finding look_for_store(const EnvironmentSettings& settings) {
  if (settings.cache_dir.empty()) {
    return {"store", false, fmt::format("no directory, so kernels are kept in memory only: {}", kNoDirectory)};
  }
  const auto path = parse_store_path(settings.cache_dir);
  if (!path) return failed("store", path.error());
  Finding finding{"store", true, ""};
  look_at_own(path->own, finding);
  look_at_layers(path->layers, finding);
  if (const auto trusted = TrustedList::read(settings.trusted_list); !trusted) {
    finding = failed("store", trusted.error());
    finding.stops_all = true;
  }
  return finding;
}

int run(bool json) {
  Output output(json);
  auto settings = read_environment();
  if (!settings) {
    output.failure(result_line("", "", ""), settings.error());
    return output.exit_code();
  }
  const Finding findings[] = {look_for_driver(), look_for_gpus(), look_for_nvrtc(*settings), look_for_host(*settings),
                              look_for_store(*settings)};
  Json line = result_line("", "", "");
  std::string text = fmt::format("flashjit {}\n", version());
  bool compiles = false, runs = false, is_stopped = false;
  for (const Finding& finding : findings) {
    Json fields = {{"found", finding.found}, {"detail", finding.detail}};
    fields.update(finding.fields);
    line[finding.name] = std::move(fields);
    std::string detail = finding.detail;
    for (std::size_t at = 0; (at = detail.find('\n', at)) != std::string::npos; at += 12)
      detail.replace(at, 1, "\n            ");
    text += fmt::format("  {:7} {:3}{}\n", finding.name, finding.found ? "ok" : "--", detail);
    const std::string_view name = finding.name;
    compiles |= finding.found && settings->jit && name == "nvrtc";
    runs |= finding.found && (name == "gpu" || name == "host");
    is_stopped |= finding.stops_all;
  }
  compiles &= !is_stopped;
  runs &= !is_stopped;
  std::string names;
  for (const Target& target : targets()) names += fmt::format("{}{}", names.empty() ? "" : " ", target.name);
  text += fmt::format("  targets    {}\n", names);
  text += fmt::format("CUDA kernels {} be compiled here; kernels {} be run here.\n", compiles ? "can" : "cannot",
                      runs ? "can" : "cannot");
  line["can_compile"] = compiles;
  line["can_run"] = runs;
  output.result(line, text);
  return output.exit_code();
}

}  // namespace

void add_doctor(CLI::App& app, int& exit_code) {
  auto json = std::make_shared<bool>(false);
  CLI::App* sub = app.add_subcommand("doctor", "What this machine has, and what to do about what it lacks");
  sub->add_flag("--json", *json, "One JSON object");
  sub->footer("\nExamples:\n  flashjit doctor\n  FLASHJIT_NVRTC=/opt/cuda-13.0/lib64 flashjit doctor --json");
  sub->callback([json, &exit_code] { exit_code = run(*json); });
}

}  // namespace flashjit
