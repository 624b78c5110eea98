// flashjit bundle shows what is in bundles, verifies them, and puts several into one.
#include <memory>

#include <fmt/format.h>

#include "compiler/spec/text_form.h"
#include "runtime/bundle/bundle.h"
#include "tools/command/commands.h"
#include "tools/fleet/bundle_merge.h"
#include "tools/fleet/shard.h"
#include "tools/support/output.h"

namespace flashjit {
namespace {

struct BundleArgs : MergeArgs {
  std::string out;
  bool json = false;
};

std::string fact(const BundleItem& item, const char* name) {
  const auto found = item.facts.find(name);
  return found == item.facts.end() ? "" : found->second;
}

Json line_of(const BundleItem& item) {
  Json line = result_line(item.key.spec, item.key.target, fact(item, "schedule"));
  line["pins"] = item.key.pins;
  line["cubin_bytes"] = item.code_bytes;
  line["packed_bytes"] = item.packed_bytes;
  for (const char* name : {"key", "compiler", "source"}) line[name] = fact(item, name);
  return line;
}

// Returns a text such as "shard 3 of 16, of 180 kernels", or an empty text for a whole bundle.
std::string shards_text(const std::optional<BundleShards>& shards) {
  if (!shards) return "";
  const std::vector<int> numbers(shards->numbers.begin(), shards->numbers.end());
  return fmt::format("{} {} of {}, of {}", numbers.size() == 1 ? "shard" : "shards", numbers_text(numbers),
                     shards->count, counted(shards->kernels, "kernel"));
}

std::string empty_text(const Bundle& bundle) {
  const std::optional<BundleShards>& shards = bundle.index().shards;
  return fmt::format("{}: no kernels{}\n", bundle.path(), shards ? ": " + shards_text(shards) : "");
}

// Returns null for a whole bundle.
Json shards_json(const std::optional<BundleShards>& shards) {
  if (!shards) return Json();
  return {
      {"numbers", shards->numbers}, {"count", shards->count}, {"kernels", shards->kernels}, {"whole", shards->whole}};
}

Result<void> list(const std::string& path, Output& output) {
  FLASHJIT_ASSIGN(bundle, Bundle::open(path));
  if (bundle->index().items.empty()) output.text(empty_text(*bundle));
  for (const BundleItem& item : bundle->index().items) {
    Json line = line_of(item);
    line["bundle"] = path;
    output.result(
        line, fmt::format("{:8} {:>8}  {}\n", harmless(item.key.target, Lines::One), size_text(item.code_bytes),
                          harmless(print(ManifestLine{.spec = item.key.spec, .schedule = item.key.pins}), Lines::One)));
  }
  return {};
}

Result<void> verify(const std::string& path, Output& output) {
  FLASHJIT_ASSIGN(bundle, Bundle::open(path));
  std::size_t bad = 0;
  for (const BundleItem& item : bundle->index().items) {
    const auto sound = check_kernel(*bundle, item);
    if (sound) continue;
    ++bad;
    output.failure(line_of(item), sound.error());
  }
  const std::size_t kernels = bundle->index().items.size();
  if (bad > 0)
    return Error{ErrorKind::Io,
                 fmt::format("{}: not sound: {} of {}; copy or build it again", path, bad, counted(kernels, "kernel")),
                 {}};
  Json line = result_line("", "", "");
  line["bundle"] = path;
  line["kernels"] = kernels;
  line["templates"] = bundle->index().templates;
  const bool usable = bundle->index().templates == templates_digest();
  line["usable"] = usable;
  line["shards"] = shards_json(bundle->index().shards);
  line["checked"] = usable ? Json{"bytes", "cubin", "target", "source", "entries"} : Json{"bytes", "cubin", "target"};
  if (kernels == 0) {
    output.result(line, empty_text(*bundle));
    return {};
  }
  output.result(line, fmt::format("{}: {}{}: bytes are as written, and cubins for their targets{}\n", path,
                                  bundle->index().shards ? shards_text(bundle->index().shards) + ": " : "",
                                  counted(kernels, "kernel"),
                                  usable ? "; sources are those of this version, and all entries are there"
                                         : "; built by another version of FlashJIT, which this one does not use, so "
                                           "sources and entries were not compared"));
  return {};
}

Result<void> merge(const BundleArgs& args, Output& output) {
  FLASHJIT_ASSIGN(merged, merge_bundles(args));
  FLASHJIT_TRY(write_bundle(args.out, merged.bytes));
  Json line = result_line("", "", "");
  line["bundle"] = args.out;
  line["kernels"] = merged.kernels;
  line["twice"] = merged.twice;
  line["differing"] = merged.differing;
  line["shards"] = shards_json(merged.shards);
  line["bytes"] = merged.bytes.size();
  std::string text =
      fmt::format("{}: {}, {}", args.out, counted(merged.kernels, "kernel"), size_text(merged.bytes.size()));
  if (merged.shards) text += "; " + shards_text(merged.shards);
  if (merged.twice > 0)
    text += fmt::format("; passed over {} that an earlier bundle has", counted(merged.twice, "kernel"));
  if (merged.differing > 0) text += fmt::format(", {} of them of other code", merged.differing);
  output.result(line, text + "\n");
  return {};
}

int run_each(const BundleArgs& args, Result<void> (*action)(const std::string&, Output&)) {
  Output output(args.json);
  for (const std::string& path : args.files) {
    if (const auto done = action(path, output); !done) {
      Json line = result_line("", "", "");
      line["bundle"] = path;
      output.failure(std::move(line), done.error());
    }
  }
  return output.exit_code();
}

int run_merge(const BundleArgs& args) {
  Output output(args.json);
  if (const auto done = merge(args, output); !done) output.failure(result_line("", "", ""), done.error());
  return output.exit_code();
}

void add_merge(CLI::App& action, BundleArgs& args) {
  action.add_option("-o,--out", args.out, "The new one")->required()->type_name("FILE.fjb");
  CLI::Option* manifest =
      action.add_option("--manifest", args.manifest, "All kernels of this manifest must be there; '-': standard input")
          ->type_name("FILE");
  action.add_option("--arch", args.archs, "Targets of the manifest's lines that name none, as `build` was given")
      ->type_name("TARGET")
      ->delimiter(',')
      ->needs(manifest);
  action
      .add_flag("--partial", args.partial,
                "Shards may be missing: the result says which it has, and can be merged with the rest later")
      ->excludes(manifest);
}

}  // namespace

void add_bundle(CLI::App& app, int& exit_code) {
  CLI::App* sub =
      app.add_subcommand("bundle", "Bundles of kernels: what is in them, are they sound, put several into one");
  sub->require_subcommand(1);
  struct Row {
    const char* name;
    const char* about;
    int (*run)(const BundleArgs&);
    const char* examples;
  };
  const Row rows[] = {
      {"ls", "One line per kernel", [](const BundleArgs& args) { return run_each(args, list); },
       "  flashjit bundle ls kernels.fjb\n  flashjit bundle ls kernels.fjb more.fjb --json"},
      {"verify", "Check every byte, and what else can be told without a GPU",
       [](const BundleArgs& args) { return run_each(args, verify); },
       "  flashjit bundle verify kernels.fjb\n  flashjit bundle verify kernels.fjb more.fjb --json"},
      {"merge", "Put several into one; what more than one has is taken from the first, and shards must all be there",
       run_merge,
       "  flashjit bundle merge kernels.fjb more.fjb -o all.fjb\n"
       "  flashjit bundle merge shard-*.fjb -o all.fjb\n"
       "  flashjit bundle merge shard-*.fjb --manifest kernels.txt --arch sm_80,sm_90a -o all.fjb"},
  };
  for (const Row& row : rows) {
    auto args = std::make_shared<BundleArgs>();
    CLI::App* action = sub->add_subcommand(row.name, row.about);
    action->add_option("bundle", args->files, "The bundles")->required()->type_name("FILE.fjb");
    if (row.run == run_merge) add_merge(*action, *args);
    action->add_flag("--json", args->json, "JSON lines");
    action->footer(fmt::format("\nExamples:\n{}", row.examples));
    action->callback([args, &exit_code, row] { exit_code = row.run(*args); });
  }
  sub->footer(
      "\nExamples:\n  flashjit bundle ls kernels.fjb\n  flashjit bundle verify kernels.fjb --json\n"
      "  flashjit bundle merge kernels.fjb more.fjb -o all.fjb");
}

}  // namespace flashjit
