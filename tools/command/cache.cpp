// flashjit cache shows and cleans the kernel store on disk.
#include <ctime>
#include <limits>
#include <memory>
#include <optional>

#include <fmt/format.h>

#include "compiler/spec/text_form.h"
#include "runtime/compile/verify.h"
#include "runtime/store/store.h"
#include "tools/command/cache.h"
#include "tools/command/commands.h"
#include "tools/support/output.h"

namespace flashjit {
namespace {

constexpr std::int64_t kSecondsPerDay = 86400;

struct CacheArgs {
  std::string directory;
  bool json = false;
  std::optional<std::uint64_t> max_bytes;       // for prune
  std::optional<std::int64_t> older_than_days;  // for prune
};

std::string day(std::int64_t seconds) {
  const auto when = static_cast<std::time_t>(seconds);
  std::tm utc = {};
  gmtime_r(&when, &utc);
  return fmt::format("{:04}-{:02}-{:02}", utc.tm_year + 1900, utc.tm_mon + 1, utc.tm_mday);
}

// This is one of the directories of the store.
struct StoreChoice {
  std::string directory;
  bool shared = false;  // A shared directory is only read.
  StoreDirectory::Access access() const {
    return shared ? StoreDirectory::Access::Layer : StoreDirectory::Access::Existing;
  }
};

// A store that does not exist yet is an empty one.
template <class T>
Result<T> or_empty(Result<T> found, const StoreChoice& choice) {
  if (found || choice.shared || found.error().kind != ErrorKind::NotFound) return found;
  return T();
}

Result<void> stat(const CacheArgs&, const StoreChoice& choice, Output& output) {
  auto found = stat_store(choice.directory, choice.access());
  const bool is_there = static_cast<bool>(found);
  FLASHJIT_ASSIGN(stat, or_empty(std::move(found), choice));
  Json line = result_line("", "", "");
  line["directory"] = choice.directory;
  line["entries"] = stat.entries;
  line["bytes"] = stat.bytes;
  line["shared"] = choice.shared;
  line["max_bytes"] = choice.shared ? Json() : Json(kDefaultStoreBytes);
  line["oldest_use"] = stat.entries ? Json(stat.oldest_use) : Json();
  line["newest_use"] = stat.entries ? Json(stat.newest_use) : Json();
  std::string text =
      fmt::format("{}: {}, {}", choice.directory, counted(stat.entries, "kernel"), size_text(stat.bytes));
  text += choice.shared ? ", shared, only read" : fmt::format(" of at most {}", size_text(kDefaultStoreBytes));
  if (!is_there) text += "; it does not exist yet, the first compile creates it";
  if (stat.entries) text += fmt::format(", last used {} to {}", day(stat.oldest_use), day(stat.newest_use));
  output.result(line, text + "\n");
  return {};
}

Result<void> list(const StoreChoice& choice, Output& output, bool only_bad) {
  const std::string& directory = choice.directory;
  FLASHJIT_ASSIGN(entries, or_empty(list_store(directory, choice.access()), choice));
  int bad = 0;
  for (const StoreListing& entry : entries) {
    bad += !entry.sound;
    if (only_bad && entry.sound) continue;
    Json line = result_line(fact(entry, "spec"), fact(entry, "target"), fact(entry, "schedule"));
    line["key"] = entry.digest;
    line["bytes"] = entry.bytes;
    line["used"] = entry.used;
    line["sound"] = entry.sound;
    const std::string_view wrong = known_wrong(entry.facts);
    line["verified"] = is_verified(entry.facts) ? Json(true) : wrong.empty() ? Json() : Json(false);
    if (!wrong.empty()) line["wrong"] = wrong;
    line["directory"] = directory;
    output.result(line, fmt::format("{}  {}  {:>8}  {:8} {}{}\n", entry.digest.substr(0, 16), day(entry.used),
                                    size_text(entry.bytes), fact(entry, "target"), fact(entry, "spec"),
                                    !entry.sound    ? "  DAMAGED"
                                    : wrong.empty() ? ""
                                                    : "  WRONG"));
  }
  if (!only_bad) return {};
  if (bad > 0 && choice.shared) {
    return Error{
        ErrorKind::Io,
        fmt::format("damaged: {} of {} in {}; the directory is shared, so its owner has to remove what is damaged", bad,
                    counted(entries.size(), "entry"), directory),
        {}};
  }
  if (bad > 0) {
    FLASHJIT_ASSIGN(removed, remove_bad_entries(directory));
    return Error{ErrorKind::Io,
                 fmt::format("damaged: {} of {} in {}; {} removed, to be compiled again when needed", bad,
                             counted(entries.size(), "entry"), directory, removed),
                 {}};
  }
  Json line = result_line("", "", "");
  line["directory"] = directory;
  line["entries"] = entries.size();
  output.result(line, fmt::format("{}: {}, all sound\n", directory, counted(entries.size(), "kernel")));
  return {};
}

Result<void> clear(const CacheArgs&, const StoreChoice& choice, Output& output) {
  const std::string& directory = choice.directory;
  FLASHJIT_ASSIGN(removed, or_empty(clear_store(directory), choice));
  Json line = result_line("", "", "");
  line["directory"] = directory;
  line["removed"] = removed;
  output.result(line, fmt::format("{}: {} removed\n", directory, counted(removed, "kernel")));
  return {};
}

Result<void> prune(const CacheArgs& args, const StoreChoice& choice, Output& output) {
  const std::string& directory = choice.directory;
  // If only an age is given, entries do not go because of the size.
  const std::uint64_t all = std::numeric_limits<std::uint64_t>::max();
  EvictionGoal goal;
  goal.max_bytes = goal.remaining_bytes = args.max_bytes.value_or(args.older_than_days ? all : kDefaultStoreBytes);
  if (args.older_than_days) {
    goal.unused_since_ns = (std::time(nullptr) - *args.older_than_days * kSecondsPerDay) * kNsPerSecond;
  }
  FLASHJIT_ASSIGN(outcome, or_empty(prune_store(directory, goal), choice));
  Json line = result_line("", "", "");
  line["directory"] = directory;
  line["removed"] = outcome.removed;
  line["removed_bytes"] = outcome.removed_bytes;
  line["entries"] = outcome.left;
  line["bytes"] = outcome.left_bytes;
  output.result(line, fmt::format("{}: {} removed, {}; {} left, {}\n", directory, counted(outcome.removed, "kernel"),
                                  size_text(outcome.removed_bytes), outcome.left, size_text(outcome.left_bytes)));
  return {};
}

using Action = Result<void> (*)(const CacheArgs&, const StoreChoice&, Output&);

// A layer that cannot be used is not looked in when compiling either, so this is a note and no failure.
void look_in_layers(const CacheArgs& args, Action action, const std::vector<std::string>& layers, Output& output) {
  for (const std::string& layer : layers) {
    if (const auto opened = StoreDirectory::open(layer, StoreDirectory::Access::Layer); !opened) {
      say_note("a shared layer of kernels is passed over: " + opened.error().message);
    } else if (const auto done = action(args, {layer, true}, output); !done) {
      output.failure(result_line("", "", ""), done.error());
    }
  }
}

int run(const CacheArgs& args, Action action, bool looks_in_layers) {
  Output output(args.json);
  Result<EnvironmentSettings> settings = EnvironmentSettings();
  if (args.directory.empty()) settings = read_environment();
  const auto path = settings ? store_path(args.directory, *settings) : Result<StorePath>(settings.error());
  const Result<void> done = path ? action(args, {path->own, false}, output) : Result<void>(path.error());
  if (!done) output.failure(result_line("", "", ""), done.error());
  if (path && looks_in_layers) look_in_layers(args, action, path->layers, output);
  return output.exit_code();
}

}  // namespace

std::string fact(const StoreListing& entry, const char* name) {
  const auto found = entry.facts.find(name);
  return found == entry.facts.end() ? "" : found->second;
}

Result<StorePath> store_path(const std::string& directory, const EnvironmentSettings& settings) {
  if (!directory.empty()) return parse_store_path(directory);
  if (settings.cache_dir.empty()) {
    return Error{ErrorKind::NotFound, fmt::format("no store directory: {} or give --dir", kNoDirectory), {}};
  }
  return parse_store_path(settings.cache_dir);
}

void add_cache(CLI::App& app, int& exit_code) {
  CLI::App* sub =
      app.add_subcommand("cache", "The kernel store: what is in it, is it sound, why is a kernel not, empty it");
  sub->require_subcommand(1);
  struct Row {
    const char* name;
    const char* about;
    Action action;
    bool looks_in_layers;
    const char* examples;
  };
  const Row rows[] = {
      {"stat", "How many kernels, how many bytes, when they were used", stat, true,
       "  flashjit cache stat\n  FLASHJIT_CACHE_DIR=$HOME/kernels:/opt/kernels flashjit cache stat --json"},
      {"ls", "One line per kernel, with the day of its last use",
       [](const auto&, const StoreChoice& choice, Output& output) { return list(choice, output, false); }, true,
       "  flashjit cache ls\n  flashjit cache ls --dir /var/cache/flashjit --json"},
      {"verify", "Check every entry; remove the damaged ones, except from shared directories",
       [](const auto&, const StoreChoice& choice, Output& output) { return list(choice, output, true); }, true,
       "  flashjit cache verify\n  flashjit cache verify --dir /var/cache/flashjit --json"},
      {"prune", "Remove what was used longest ago, until the rest is small enough", prune, false,
       "  flashjit cache prune --max-bytes 500000000\n  flashjit cache prune --older-than 30"},
      {"clear", "Remove all kernels", clear, false,
       "  flashjit cache clear\n  flashjit cache clear --dir /var/cache/flashjit"},
  };
  for (const Row& row : rows) {
    auto args = std::make_shared<CacheArgs>();
    CLI::App* action = sub->add_subcommand(row.name, row.about);
    action->add_option("--dir", args->directory, kDirHelp)->type_name("DIR");
    action->footer(fmt::format("\nExamples:\n{}", row.examples));
    action->add_flag("--json", args->json, "JSON lines");
    if (row.action == prune) {
      action
          ->add_option("--max-bytes", args->max_bytes,
                       fmt::format("What may stay (default: {}, the cap of the store)", kDefaultStoreBytes))
          ->type_name("N")
          ->check(CLI::Range(0.0, 9e18));
      action
          ->add_option("--older-than", args->older_than_days,
                       "Also remove what was not used for DAYS; alone: only that")
          ->type_name("DAYS")
          ->check(CLI::Range(0, 36500));
    }
    action->callback([args, &exit_code, row] { exit_code = run(*args, row.action, row.looks_in_layers); });
  }
  add_cache_explain(*sub, exit_code);
  sub->footer(
      "\nExamples:\n  flashjit cache stat\n  flashjit cache ls --json\n  flashjit cache verify --dir /var/cache/flashjit\n"
      "  flashjit cache prune --max-bytes 500000000\n  flashjit cache prune --older-than 30\n"
      "  FLASHJIT_CACHE_DIR=$HOME/kernels:/opt/kernels flashjit cache stat\n"
      "  flashjit cache explain 'fwd bf16 d=128 heads=32/8 mask=\"causal\"' --arch sm_90a");
}

}  // namespace flashjit
