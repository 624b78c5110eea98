// flashjit cache explain tells whether the kernel of a spec is stored, and if not, in what the nearest one differs.
#include "tools/command/cache.h"

#include <algorithm>
#include <memory>
#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "compiler/spec/spec.h"
#include "compiler/spec/text_form.h"
#include "runtime/compile/compile_host.h"
#include "runtime/store/key_difference.h"
#include "tools/support/device.h"
#include "tools/support/output.h"

namespace flashjit {
namespace {

struct CacheExplainArgs {
  std::string spec, arch, schedule, directory;
  bool json = false;
};

// A neighbour is an entry of a directory, held against the key that is missing.
struct Neighbour {
  StoreListing entry;
  std::string directory;
  std::vector<KeyDifference> differences;
  int distance = 0;
};

// Returns an empty text for a spec of another version, which this one does not read.
std::string meaning_of(const std::string& text) {
  const auto spec = parse_spec(text);
  return spec ? meaning(*spec) : "";
}

// Returns the nearest of all sound entries; among equally near ones it is the one used last. `searched` becomes the
// number of entries.
std::optional<Neighbour> nearest(const StoredSpec& missing, const StorePath& path, std::string_view pins,
                                 std::size_t& searched) {
  std::vector<std::pair<std::string, StoreDirectory::Access>> directories = {
      {path.own, StoreDirectory::Access::Existing}};
  for (const std::string& layer : path.layers) directories.emplace_back(layer, StoreDirectory::Access::Layer);
  const std::string wanted = meaning_of(missing.spec);
  std::optional<Neighbour> best;
  for (const auto& [directory, access] : directories) {
    auto entries = list_store(directory, access);
    if (!entries) continue;  // The miss tells why such a directory is not used.
    for (StoreListing& entry : *entries) {
      if (!entry.sound) continue;
      ++searched;
      const std::string spec = fact(entry, "spec"), schedule = fact(entry, "schedule"), meant = meaning_of(spec);
      auto differences = key_differences({missing.key.text, missing.spec, missing.schedule, wanted},
                                         {entry.key_text, spec, schedule, meant}, pins);
      const int far = distance(differences);
      if (best && std::pair(best->distance, -best->entry.used) <= std::pair(far, -entry.used)) continue;
      best = Neighbour{std::move(entry), directory, std::move(differences), far};
    }
  }
  return best;
}

// Reports the entry that was found. Nothing is compared then.
void report_hit(const Compiled& compiled, Json& line, std::string& text) {
  const Facts& facts = compiled.facts;
  line["hit"] = true;
  line["key"] = facts.key;
  line["layer"] = facts.layer;
  line["notes"] = facts.notes;
  text += fmt::format("  hit       {} in {}\n", facts.key.substr(0, 16), facts.layer);
  for (const std::string& note : facts.notes) text += fmt::format("  note: {}\n", note);
}

std::string shown(const std::string& value) { return value.empty() ? "none" : value; }

void report_miss(const StoredSpec& missing, const std::optional<Neighbour>& found, std::size_t searched, Json& line,
                 std::string& text) {
  line["hit"] = false;
  line["key"] = missing.key.digest;
  line["miss"] = missing.miss;
  line["searched"] = searched;
  line["nearest"] = nullptr;
  text += fmt::format("  miss      {}: {}\n", missing.key.digest.substr(0, 16), missing.miss);
  if (!found) {
    text += "  nearest   there is no sound entry at all\n";
    return;
  }
  const StoreListing& entry = found->entry;
  Json near = {{"key", entry.digest},
               {"spec", fact(entry, "spec")},
               {"target", fact(entry, "target")},
               {"schedule", fact(entry, "schedule")},
               {"directory", found->directory},
               {"differs", Json::array()}};
  text += fmt::format("  nearest   {} of {} in {}: {} for {}\n", entry.digest.substr(0, 16), searched, found->directory,
                      fact(entry, "spec"), fact(entry, "target"));
  std::vector<std::string> follows;
  for (const KeyDifference& d : found->differences) {
    near["differs"].push_back(
        {{"field", d.field}, {"here", d.here}, {"there", d.there}, {"cause", d.cause}, {"remark", d.remark}});
    if (d.cause) {
      text += fmt::format("  differs   {}: {} here, {} there{}\n", d.field, shown(d.here), shown(d.there),
                          d.remark.empty() ? "" : fmt::format(" ({})", d.remark));
    } else {
      follows.push_back(d.field);
    }
  }
  if (!follows.empty()) text += fmt::format("  follows   {}\n", fmt::join(follows, ", "));
  if (found->differences.empty()) text += "  differs   in nothing: it was stored while this ran\n";
  line["nearest"] = std::move(near);
}

Result<StoredSpec> find(const Request& request, const CompileOptions& options) {
  if (request.target.gpu) return find_spec(request, options);
  FLASHJIT_ASSIGN(library, host_library());
  return find_host_spec(request, *library, options);
}

Result<void> explain(const CacheExplainArgs& args, Json& line, std::string& text) {
  FLASHJIT_ASSIGN(settings, read_environment());
  FLASHJIT_ASSIGN(path, store_path(args.directory, settings));
  std::vector<std::string> all = path.layers;
  all.insert(all.begin(), path.own);
  FLASHJIT_ASSIGN(trusted, TrustedList::read(settings.trusted_list));
  KernelStore store({.directory = fmt::format("{}", fmt::join(all, ":")), .trusted = std::move(trusted)});
  FLASHJIT_ASSIGN(device, args.arch.empty() ? figures_of_this_machine() : figures_of(args.arch));
  line["target"] = device.target;
  FLASHJIT_ASSIGN(request, Request::parse(args.spec, device.target, args.schedule, device.units));
  FLASHJIT_ASSIGN(stored, find(request, {.settings = settings, .store = &store}));
  for (const std::string& note : store.notes()) say_note(note);
  line["spec"] = stored.spec;
  line["schedule"] = stored.schedule;
  text = fmt::format("{}\n  target    {}\n  schedule  {}\n", stored.spec, device.target, stored.schedule);
  if (stored.hit) {
    report_hit(*stored.hit, line, text);
    return {};
  }
  std::size_t searched = 0;
  const auto found = nearest(stored, path, args.schedule, searched);
  report_miss(stored, found, searched, line, text);
  return {};
}

int run(const CacheExplainArgs& args) {
  Output output(args.json);
  Json line = result_line(args.spec, args.arch, args.schedule);
  std::string text;
  if (const auto done = explain(args, line, text)) {
    output.result(line, text);
  } else {
    output.failure(std::move(line), done.error());
  }
  return output.exit_code();
}

}  // namespace

void add_cache_explain(CLI::App& cache, int& exit_code) {
  auto args = std::make_shared<CacheExplainArgs>();
  CLI::App* sub =
      cache.add_subcommand("explain", "Is the kernel of a spec stored; if not, in what does the nearest one differ");
  sub->add_option("spec", args->spec, "The problem")->required();
  sub->add_option("--arch", args->arch, "The target (default: this machine's)")->type_name("TARGET");
  sub->add_option("--schedule", args->schedule, "Choices to pin, such as tile_q=128,tile_kv=64; the rest is chosen");
  sub->add_option("--dir", args->directory, kDirHelp)->type_name("DIR");
  sub->add_flag("--json", args->json, "One JSON object");
  sub->footer(
      "\nExamples:\n"
      "  flashjit cache explain 'fwd bf16 d=128 heads=32/8 mask=\"causal\"' --arch sm_90a\n"
      "  flashjit cache explain 'fwd fp16 d=64 heads=16' --arch sm_80 --schedule tile_q=64 --json");
  sub->callback([args, &exit_code] { exit_code = run(*args); });
}

}  // namespace flashjit
