#include "tools/fleet/bundle_merge.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "compiler/spec/text_form.h"
#include "runtime/compile/facts.h"
#include "tools/fleet/completeness.h"
#include "tools/fleet/wanted.h"

namespace flashjit {
namespace {

constexpr std::size_t kShown = 5;

using Opened = std::vector<std::shared_ptr<const Bundle>>;

// Returns the first of several lines, and how many there are beyond them.
std::string first_of(const std::vector<std::string>& lines) {
  const auto shown = static_cast<std::ptrdiff_t>(std::min(lines.size(), kShown));
  const std::string text = fmt::format("{}", fmt::join(lines.begin(), lines.begin() + shown, "; "));
  return lines.size() > kShown ? text + fmt::format("; and {} more", lines.size() - kShown) : text;
}

std::string kernel_text(const BundleKey& key) {
  return fmt::format("{} for {}", print(ManifestLine{.spec = key.spec, .schedule = key.pins, .archs = {}}), key.target);
}

Result<Opened> open_all(const std::vector<std::string>& files) {
  Opened opened;
  std::vector<std::string> others, foreign;
  const std::string own = templates_digest();
  for (const std::string& path : files) {
    FLASHJIT_ASSIGN(bundle, Bundle::open(path));
    opened.push_back(std::move(bundle));
    const std::string& templates = opened.back()->index().templates;
    if (templates != opened.front()->index().templates) others.push_back(path);
    if (templates != own) foreign.push_back(path);
  }
  if (others.empty()) return opened;
  if (foreign.size() < files.size())
    return unsupported(
        fmt::format("built by another version of FlashJIT: {}; the rest by this one; build with this one what is named",
                    fmt::join(foreign, ", ")));
  return unsupported(fmt::format("{} and {} were built by different versions of FlashJIT; build all with one",
                                 files.front(), fmt::join(others, ", ")));
}

// This goes into the new bundle.
struct Collected {
  BundleIndex index;
  std::vector<PackedCode> codes;
  std::size_t twice = 0;
  std::vector<std::string> differing;
};

Result<Collected> collect(const Opened& bundles) {
  Collected all;
  std::map<BundleKey, std::pair<std::size_t, std::string>> from;  // position in `all`, and the file
  all.index.templates = bundles.front()->index().templates;
  for (const auto& bundle : bundles) {
    for (const BundleItem& item : bundle->index().items) {
      FLASHJIT_TRY(bundle->code(item));
      const auto [there, is_new] = from.try_emplace(item.key, all.index.items.size(), bundle->path());
      if (!is_new) {
        const auto& [position, file] = there->second;
        const BundleItem& first = all.index.items[position];
        ++all.twice;
        if (first.checksum != item.checksum || first.facts != item.facts) {
          all.differing.push_back(fmt::format("{}: {} was compiled by {}, {} by {}", kernel_text(item.key), file,
                                              fact(first.facts, "compiler"), bundle->path(),
                                              fact(item.facts, "compiler")));
        }
        continue;
      }
      FLASHJIT_ASSIGN(frame, bundle->frame(item));
      all.index.items.push_back(item);
      all.codes.push_back({item.code_bytes, std::move(frame)});
    }
  }
  return all;
}

HeldShards held_by(const Bundle& bundle) {
  const BundleShards& shards = *bundle.index().shards;
  return {.file = bundle.path(),
          .whole = fmt::format("the {} {}", counted(shards.kernels, "kernel"), short_digest(shards.whole)),
          .count = static_cast<int>(shards.count),
          .numbers = {shards.numbers.begin(), shards.numbers.end()}};
}

Result<void> check_shards(const Opened& bundles) {
  std::vector<HeldShards> held;
  for (const auto& bundle : bundles)
    if (bundle->index().shards) held.push_back(held_by(*bundle));
  return check_complete(held);
}

// The version that builds shards decides how they are dealt. Two builds with the same templates may still deal
// differently, and then a kernel is in no shard though no shard is missing.
Result<void> check_wholes(const Opened& bundles) {
  std::map<std::string, std::vector<BundleKey>> keys;
  std::map<std::string, std::uint32_t> wanted;
  for (const auto& bundle : bundles) {
    if (!bundle->index().shards) continue;
    const BundleShards& shards = *bundle->index().shards;
    wanted[shards.whole] = shards.kernels;
    for (const BundleItem& item : bundle->index().items) keys[shards.whole].push_back(item.key);
  }
  for (const auto& [whole, kernels] : wanted) {
    std::vector<BundleKey>& own = keys[whole];
    std::ranges::sort(own);
    own.erase(std::unique(own.begin(), own.end()), own.end());
    if (whole_of(own) == whole) continue;
    return unsupported(
        fmt::format("all shards of the {} {} are there, but together they have {}, and not the same: they were dealt "
                    "by different builds of FlashJIT; build all shards with one",
                    counted(kernels, "kernel"), short_digest(whole), counted(own.size(), "kernel")));
  }
  return {};
}

Result<void> check_manifest(const MergeArgs& args, const Opened& bundles, const BundleIndex& merged) {
  FLASHJIT_ASSIGN(lines, read_manifest(args.manifest == "-" ? "/dev/stdin" : args.manifest));
  if (lines.empty()) return invalid(fmt::format("{}: no specs; write one per line", args.manifest));
  const auto has_none = std::ranges::find_if(lines, [](const ManifestLine& line) { return line.archs.empty(); });
  if (args.archs.empty() && has_none != lines.end())
    return invalid(fmt::format("--arch: missing, and {}:{} names no target; give what `build` was given", args.manifest,
                               has_none->number));
  std::vector<BundleKey> wanted;
  for (const WantedKernel& kernel : wanted_kernels(args.manifest, lines, args.archs)) {
    if (kernel.error) {
      Error error = *kernel.error;
      error.message = fmt::format("{}: {}", kernel.location, error.message);
      return error;
    }
    wanted.push_back(kernel.key);
  }
  const std::string whole = whole_of(wanted);
  std::vector<std::string> others, missing;
  for (const auto& bundle : bundles)
    if (bundle->index().shards && bundle->index().shards->whole != whole) others.push_back(bundle->path());
  if (!others.empty())
    return invalid(
        fmt::format("--manifest: {} {} shards of another manifest, or of other targets, than {} with --arch {}",
                    fmt::join(others, ", "), others.size() == 1 ? "has" : "have", args.manifest,
                    args.archs.empty() ? "as its lines say" : fmt::format("{}", fmt::join(args.archs, ","))));
  for (const BundleKey& key : wanted)
    if (std::ranges::find(merged.items, key, &BundleItem::key) == merged.items.end())
      missing.push_back(kernel_text(key));
  if (missing.empty()) return {};
  return Error{ErrorKind::NotFound,
               fmt::format("--manifest: the bundles lack {} of the {} of {}: {}", missing.size(),
                           counted(wanted.size(), "kernel"), args.manifest, first_of(missing)),
               {}};
}

// Returns which shards the result has. That is possible only if all bundles are shards of one whole.
Result<std::optional<BundleShards>> union_of(const Opened& bundles) {
  std::optional<BundleShards> all;
  const auto sharded =
      std::ranges::find_if(bundles, [](const auto& bundle) { return bundle->index().shards.has_value(); });
  if (sharded == bundles.end() || check_shards(bundles)) return all;
  all = (*sharded)->index().shards;
  for (const auto& bundle : bundles) {
    const auto& own = bundle->index().shards;
    if (!own || own->whole != all->whole || own->count != all->count)
      return invalid(fmt::format(
          "--partial: {} has shards of one whole and {} does not, and a bundle says of one whole alone what it lacks; "
          "merge the shards of each whole by themselves",
          (*sharded)->path(), bundle->path()));
    all->numbers.insert(all->numbers.end(), own->numbers.begin(), own->numbers.end());
  }
  std::ranges::sort(all->numbers);
  all->numbers.erase(std::unique(all->numbers.begin(), all->numbers.end()), all->numbers.end());
  return all;
}

}  // namespace

Result<MergedBundle> merge_bundles(const MergeArgs& args) {
  FLASHJIT_ASSIGN(bundles, open_all(args.files));
  FLASHJIT_ASSIGN(all, collect(bundles));
  const bool sharded =
      std::ranges::any_of(bundles, [](const auto& bundle) { return bundle->index().shards.has_value(); });
  if ((sharded || !args.manifest.empty()) && !all.differing.empty())
    return invalid(fmt::format("{} in several bundles with different code: {}; build one of the bundles again",
                               counted(all.differing.size(), "kernel"), first_of(all.differing)));
  if (!args.manifest.empty()) FLASHJIT_TRY(check_manifest(args, bundles, all.index));
  if (!args.partial) FLASHJIT_TRY(check_shards(bundles));
  FLASHJIT_ASSIGN(held, union_of(bundles));
  if (!held) FLASHJIT_TRY(check_wholes(bundles));
  MergedBundle merged{.bytes = {},
                      .kernels = all.index.items.size(),
                      .twice = all.twice,
                      .differing = all.differing.size(),
                      .shards = held};
  all.index.shards = std::move(held);
  merged.bytes = encode_bundle(std::move(all.index), std::move(all.codes));
  return merged;
}

}  // namespace flashjit
