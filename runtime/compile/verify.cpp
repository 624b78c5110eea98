#include "runtime/compile/verify.h"

#include <fmt/format.h>

#include <atomic>
#include <optional>

namespace flashjit {
namespace {

// These are the newest versions with which the whole table of tests/device has passed. tests/device/RESULTS.md has the
// runs.
constexpr int kTestedNvrtc = 13000;
constexpr int kTestedDriver = 13000;

constexpr std::string_view kVerified = "verified", kWrong = "wrong";

std::atomic<Verifier> verifier = nullptr;

bool is_tried(const StoreFacts& facts) { return is_verified(facts) || !known_wrong(facts).empty(); }

Result<void> try_out(const Compiled& compiled, const CompileOptions& options, StoreEntry& entry) {
  if (auto over = options.bounds.over()) return std::move(*over);  // Nothing can stop a kernel once it runs.
  Compiled candidate = compiled;
  candidate.binary = std::make_shared<const StoreEntry>(entry);
  FLASHJIT_ASSIGN(problem, options.verify(candidate));
  if (!problem) return {};
  if (problem->empty()) {
    entry.facts.emplace(kVerified, "on small random data");
  } else {
    entry.facts.emplace(kWrong, std::move(*problem));
  }
  return {};
}

std::string version_text(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

}  // namespace

void set_verifier(Verifier own) { verifier = own; }

Result<std::string> verify_kernel(const AttentionSpec& spec, Kernel& kernel, const GpuContext* gpu) {
  const Verifier own = verifier;
  if (!own) return unsupported("verify: what tries kernels is not part of this program; link libflashjit");
  return own(spec, kernel, gpu);
}

std::string_view known_wrong(const StoreFacts& facts) {
  const auto found = facts.find(kWrong);
  return found == facts.end() ? std::string_view() : std::string_view(found->second);
}

bool is_verified(const StoreFacts& facts) { return facts.contains(kVerified); }

Result<KernelStore::Fetched> fetch_kernel(const Compiled& compiled, const CompileOptions& options,
                                          const std::function<Result<StoreEntry>()>& make) {
  std::optional<StoreEntry> untried;
  const auto is_enough = [&](const StoreEntry& entry) {
    if (!options.verify || is_tried(entry.facts)) return true;
    untried = entry;
    return false;
  };
  const auto make_tried = [&]() -> Result<StoreEntry> {
    if (!untried) {
      FLASHJIT_ASSIGN(made, make());
      untried = std::move(made);
    }
    if (options.verify) FLASHJIT_TRY(try_out(compiled, options, *untried));
    return std::move(*untried);
  };
  if (options.store) return options.store->fetch(compiled.key, make_tried, options.bounds, is_enough);
  FLASHJIT_ASSIGN(entry, make_tried());
  return KernelStore::Fetched{.entry = std::make_shared<const StoreEntry>(std::move(entry)), .source = "compiled"};
}

std::string why_untested(int nvrtc, int driver) {
  for (const auto& [what, version, tested] :
       {std::tuple{"NVRTC", nvrtc, kTestedNvrtc}, std::tuple{"the driver", driver, kTestedDriver}}) {
    if (version > tested)
      return fmt::format("{} {} is newer than {}, the newest tested", what, version_text(version),
                         version_text(tested));
  }
  return {};
}

}  // namespace flashjit
