// flashjit cache: the kernel store on disk.
#include <ctime>
#include <memory>

#include <fmt/format.h>

#include "runtime/environment.h"
#include "runtime/store.h"
#include "tools/commands.h"
#include "tools/output.h"

namespace flashjit {
namespace {

struct CacheArgs {
  std::string directory;
  bool json = false;
};

std::string fact(const StoreListing& entry, const char* name) {
  const auto found = entry.facts.find(name);
  return found == entry.facts.end() ? "" : found->second;
}

Result<std::string> directory_of(const CacheArgs& args) {
  if (!args.directory.empty()) return args.directory;
  FLASHJIT_ASSIGN(settings, read_environment());
  if (settings.cache_dir.empty()) {
    return Error{ErrorKind::NotFound, "no store directory: HOME is not set; set FLASHJIT_CACHE_DIR or give --dir", {}};
  }
  return settings.cache_dir;
}

Result<void> stat(const std::string& directory, Output& output) {
  FLASHJIT_ASSIGN(stat, stat_store(directory));
  Json line = result_line("", "", "");
  line["directory"] = stat.directory;
  line["entries"] = stat.entries;
  line["bytes"] = stat.bytes;
  output.result(line, fmt::format("{}: {} kernels, {}\n", stat.directory, stat.entries, bytes_text(static_cast<double>(stat.bytes))));
  return {};
}

Result<void> list(const std::string& directory, Output& output, bool only_bad) {
  FLASHJIT_ASSIGN(entries, list_store(directory));
  int bad = 0;
  for (const StoreListing& entry : entries) {
    bad += !entry.sound;
    if (only_bad && entry.sound) continue;
    Json line = result_line(fact(entry, "spec"), fact(entry, "target"), fact(entry, "schedule"));
    line["key"] = entry.digest;
    line["bytes"] = entry.bytes;
    line["written"] = entry.written;
    line["sound"] = entry.sound;
    const auto when = static_cast<std::time_t>(entry.written);
    std::tm utc = {};
    gmtime_r(&when, &utc);
    output.result(line, fmt::format("{}  {:04}-{:02}-{:02}  {:>8}  {:8} {}{}\n", entry.digest.substr(0, 16), utc.tm_year + 1900, utc.tm_mon + 1,
                                    utc.tm_mday, bytes_text(static_cast<double>(entry.bytes)), fact(entry, "target"), fact(entry, "spec"),
                                    entry.sound ? "" : "  DAMAGED"));
  }
  if (!only_bad) return {};
  if (bad > 0) {
    FLASHJIT_ASSIGN(removed, remove_bad_entries(directory));
    return Error{ErrorKind::Io, fmt::format("{} of {} entries in {} are damaged; {} removed, they will be compiled again when needed", bad,
                                            entries.size(), directory, removed), {}};
  }
  Json line = result_line("", "", "");
  line["directory"] = directory;
  line["entries"] = entries.size();
  output.result(line, fmt::format("{}: {} kernels, all sound\n", directory, entries.size()));
  return {};
}

Result<void> clear(const std::string& directory, Output& output) {
  FLASHJIT_ASSIGN(removed, clear_store(directory));
  Json line = result_line("", "", "");
  line["directory"] = directory;
  line["removed"] = removed;
  output.result(line, fmt::format("{}: {} kernels removed\n", directory, removed));
  return {};
}

using Action = Result<void> (*)(const std::string&, Output&);

int run(const CacheArgs& args, Action action) {
  Output output(args.json);
  auto directory = directory_of(args);
  const Result<void> done = directory ? action(*directory, output) : Result<void>(directory.error());
  if (!done) output.failure(result_line("", "", ""), done.error());
  return output.exit_code();
}

}  // namespace

void add_cache(CLI::App& app, int& exit_code) {
  CLI::App* sub = app.add_subcommand("cache", "The kernel store: what is in it, is it sound, empty it");
  sub->require_subcommand(1);
  struct Row {
    const char* name;
    const char* about;
    Action action;
  };
  const Row rows[] = {
      {"stat", "How many kernels, how many bytes", stat},
      {"ls", "One line per kernel", [](const std::string& directory, Output& output) { return list(directory, output, false); }},
      {"verify", "Check every entry; remove the damaged ones", [](const std::string& directory, Output& output) { return list(directory, output, true); }},
      {"clear", "Remove all kernels", clear},
  };
  for (const Row& row : rows) {
    auto args = std::make_shared<CacheArgs>();
    CLI::App* action = sub->add_subcommand(row.name, row.about);
    action->add_option("--dir", args->directory, "The store (default: FLASHJIT_CACHE_DIR, then $XDG_CACHE_HOME/flashjit, then ~/.cache/flashjit)");
    action->add_flag("--json", args->json, "JSON lines");
    action->callback([args, &exit_code, call = row.action] { exit_code = run(*args, call); });
  }
  sub->footer("\nExamples:\n  flashjit cache stat\n  flashjit cache ls --json\n  flashjit cache verify --dir /var/cache/flashjit");
}

}  // namespace flashjit
