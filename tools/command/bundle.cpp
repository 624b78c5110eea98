// flashjit bundle: what is in bundles, is it sound, put several into one.
#include <map>
#include <memory>

#include <fmt/format.h>

#include "compiler/spec/text_form.h"
#include "runtime/bundle/bundle.h"
#include "tools/command/commands.h"
#include "tools/support/output.h"

namespace flashjit {
namespace {

struct BundleArgs {
  std::vector<std::string> files;
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

Result<void> list(const std::string& path, Output& output) {
  FLASHJIT_ASSIGN(bundle, Bundle::open(path));
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
                 fmt::format("{}: {} of {} kernels are not sound; copy or build it again", path, bad, kernels),
                 {}};
  Json line = result_line("", "", "");
  line["bundle"] = path;
  line["kernels"] = kernels;
  line["templates"] = bundle->index().templates;
  const bool usable = bundle->index().templates == templates_digest();
  line["usable"] = usable;
  line["checked"] = usable ? Json{"bytes", "cubin", "target", "source", "entries"} : Json{"bytes", "cubin", "target"};
  output.result(
      line, fmt::format("{}: {} kernels: their bytes are as written, and cubins for their targets{}\n", path, kernels,
                        usable ? "; sources are those of this version, and all entries are there"
                               : "; built by another version of FlashJIT, which this one does not use, so "
                                 "sources and entries were not compared"));
  return {};
}

// A kernel that several bundles have is taken from the first that has it. Code is checked, but neither made anew nor
// compressed again.
Result<void> merge(const BundleArgs& args, Output& output) {
  BundleIndex merged;
  std::vector<PackedCode> codes;
  std::map<BundleKey, std::string> from;
  std::size_t twice = 0;
  for (const std::string& path : args.files) {
    FLASHJIT_ASSIGN(bundle, Bundle::open(path));
    if (merged.templates.empty()) merged.templates = bundle->index().templates;
    if (merged.templates != bundle->index().templates) {
      return unsupported(fmt::format("{} and {} were built by different versions of FlashJIT; build one of them again",
                                     args.files.front(), path));
    }
    for (const BundleItem& item : bundle->index().items) {
      FLASHJIT_TRY(bundle->code(item));
      if (!from.emplace(item.key, path).second) {
        ++twice;
        continue;
      }
      FLASHJIT_ASSIGN(frame, bundle->frame(item));
      merged.items.push_back(item);
      codes.push_back({item.code_bytes, std::move(frame)});
    }
  }
  const auto bytes = encode_bundle(std::move(merged), std::move(codes));
  FLASHJIT_TRY(write_bundle(args.out, bytes));
  Json line = result_line("", "", "");
  line["bundle"] = args.out;
  line["kernels"] = from.size();
  line["twice"] = twice;
  line["bytes"] = bytes.size();
  output.result(line, fmt::format("{}: {} kernels, {}{}\n", args.out, from.size(), size_text(bytes.size()),
                                  twice ? fmt::format("; {} more are in several, the first was taken", twice) : ""));
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
      {"merge", "Put several into one; what more than one has is taken from the first", run_merge,
       "  flashjit bundle merge kernels.fjb more.fjb -o all.fjb"},
  };
  for (const Row& row : rows) {
    auto args = std::make_shared<BundleArgs>();
    CLI::App* action = sub->add_subcommand(row.name, row.about);
    action->add_option("bundle", args->files, "The bundles")->required()->type_name("FILE.fjb");
    if (row.run == run_merge)
      action->add_option("-o,--out", args->out, "The new one")->required()->type_name("FILE.fjb");
    action->add_flag("--json", args->json, "JSON lines");
    action->footer(fmt::format("\nExamples:\n{}", row.examples));
    action->callback([args, &exit_code, row] { exit_code = row.run(*args); });
  }
  sub->footer(
      "\nExamples:\n  flashjit bundle ls kernels.fjb\n  flashjit bundle verify kernels.fjb --json\n"
      "  flashjit bundle merge kernels.fjb more.fjb -o all.fjb");
}

}  // namespace flashjit
