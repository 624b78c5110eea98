// This is the command flashjit. It has one file per subcommand.
#include <algorithm>
#include <charconv>
#include <cstdint>
#include <exception>
#include <memory>
#include <new>
#include <optional>
#include <sstream>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "compiler/spec/text_form.h"
#include "flashjit/flashjit.hpp"
#include "tools/command/commands.h"
#include "tools/manual/definitions.h"
#include "tools/manual/help.h"
#include "tools/manual/pages.h"
#include "tools/command/command_line.h"
#include "tools/support/output.h"

namespace {

constexpr char kAbout[] =
    "FlashJIT: attention kernels, generated for exactly your problem and your GPU.\n"
    "\n"
    "A problem is one line, the spec:\n"
    "  'fwd bf16 d=128 heads=32/8 mask=\"causal & window(4096, 0)\" score=\"softcap(50)\"'\n";

constexpr char kExamples[] =
    "\nExamples:\n"
    "  flashjit doctor\n"
    "  flashjit explain 'fwd bf16 d=128 heads=32/8 mask=\"causal\"' --arch sm_90a --shape b=1,q=4096\n"
    "  flashjit compile 'fwd fp16 d=64 heads=16' --arch sm_80,sm_90a --out kernels\n"
    "  flashjit run 'fwd bf16 d=128 heads=32/8 mask=\"causal\"' --shape b=1,q=1024 --check\n";

constexpr char kHelpHint[] = "\nRun with --help for more information.\n";

std::string footer() {
  std::vector<std::string> codes, names;
  for (const flashjit::Meaning& code : flashjit::exit_codes())
    codes.push_back(fmt::format("{} {}", code.name, code.about));
  for (const flashjit::Meaning& variable : flashjit::variables()) names.emplace_back(variable.name);
  return fmt::format("{}\nExit codes: {}.\nEnvironment: {}; `flashjit man` says what they do.", kExamples,
                     fmt::join(codes, ", "), fmt::join(names, ", "));
}

// Returns the subcommand that was asked for, or the command itself.
const CLI::App& innermost(const CLI::App& app) {
  const CLI::App* at = &app;
  while (!at->get_subcommands().empty()) at = at->get_subcommands().back();
  return *at;
}

// CLI11 lists everything that was left over, also values of unknown options. Returns nothing if all options are known.
std::optional<std::string> unknown_option(const CLI::App& app) {
  std::vector<std::string> unknown = app.remaining(true);
  std::ranges::stable_sort(unknown, {}, [](const std::string& word) { return !word.starts_with('-'); });
  if (unknown.empty() || !unknown.front().starts_with('-')) return std::nullopt;
  const std::string given = unknown.front().substr(0, unknown.front().find('='));
  std::vector<std::string> own;
  for (const CLI::Option* option : innermost(app).get_options()) {
    for (const std::string& name : option->get_lnames()) own.push_back("--" + name);
    for (const std::string& name : option->get_snames()) own.push_back("-" + name);
  }
  const std::vector<std::string_view> names(own.begin(), own.end());
  // If a subcommand is missing, that is the error to report, unless the option is a known one mistyped.
  const bool incomplete = !innermost(app).get_subcommands([](const CLI::App*) { return true; }).empty();
  if (incomplete && flashjit::nearest_name(given, names).empty()) return std::nullopt;
  if (std::ranges::count(names, given) > 0)
    return fmt::format("{0}: is an option of {1}, and stands behind its name: flashjit {1} {0}", given,
                       innermost(app).get_name()) +
           kHelpHint;
  return flashjit::there_is_no("option", given, names) + kHelpHint;
}

// CLI11 says only that a subcommand is missing. Returns nothing if that is not the error.
std::optional<std::string> unknown_subcommand(const CLI::App& app) {
  const CLI::App* at = &innermost(app);
  const std::vector<std::string> unknown = app.remaining(true);
  std::vector<std::string_view> names;
  for (const CLI::App* each : at->get_subcommands([](const CLI::App*) { return true; }))
    names.push_back(each->get_name());
  if (names.empty() || unknown.empty() || unknown.front().starts_with('-')) return std::nullopt;
  return flashjit::there_is_no("subcommand", unknown.front(), names) + kHelpHint;
}

// Lists the subcommands for a user who gave none. Returns nothing if that is not the error.
std::optional<std::string> list_of_subcommands(const CLI::App& app, const CLI::ParseError& error,
                                               const CLI::Formatter& formatter) {
  const CLI::App& at = innermost(app);
  const bool is_missing = error.get_exit_code() == static_cast<int>(CLI::ExitCodes::RequiredError);
  if (!is_missing || !app.remaining(true).empty() || flashjit::subcommands_of(at).empty()) return std::nullopt;
  return "A subcommand is required\n" + formatter.make_subcommands(&at, CLI::AppFormatMode::Normal) + kHelpHint;
}

// A name that a script left empty would be looked for, or written, where nobody meant it.
void refuse_empty_names(CLI::App& app) {
  const CLI::Validator named([](std::string& name) { return name.empty() ? "the name is empty" : std::string(); }, "");
  for (CLI::Option* option : app.get_options()) {
    const std::string type = option->get_type_name();
    if (type.find("FILE") != type.npos || type.find("DIR") != type.npos) option->check(named);
  }
  for (CLI::App* each : app.get_subcommands([](CLI::App*) { return true; })) refuse_empty_names(*each);
}

// CLI11 would take a number that is too large, or below 0, for the largest there is.
void refuse_other_seeds(CLI::App& app) {
  const CLI::Validator seed(
      [](std::string& text) {
        std::uint64_t value = 0;
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
        if (error == std::errc() && end == text.data() + text.size()) return std::string();
        return fmt::format("{} is not a whole number from 0 to 18446744073709551615", text);
      },
      "");
  for (CLI::App* each : app.get_subcommands([](CLI::App*) { return true; }))
    if (CLI::Option* option = each->get_option_no_throw("--seed")) option->check(seed);
}

int run(int argc, char** argv) {
  using namespace flashjit;
  CLI::App app{kAbout, "flashjit"};
  const auto formatter = std::make_shared<HelpFormatter>(help_columns());
  app.formatter(formatter);  // Subcommands take it over.
  app.footer(footer());
  app.require_subcommand(1);
  app.set_version_flag("--version", std::string("flashjit ") + version());
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::Throw);
  int exit_code = static_cast<int>(Exit::Done);
  add_compile(app, exit_code);
  const std::string command = command_line("flashjit", {argv + std::min(argc, 1), argv + argc});
  add_explain(app, command, exit_code);
  add_run(app, exit_code);
  add_bench(app, exit_code);
  add_tune(app, command, exit_code);
  add_doctor(app, exit_code);
  add_cache(app, exit_code);
  add_build(app, exit_code);
  add_bundle(app, exit_code);
  add_completion(app, exit_code);
  add_man(app, exit_code);
  refuse_empty_names(app);
  refuse_other_seeds(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const bool asked = error.get_exit_code() == 0;  // These errors stand for --help and --version.
    std::ostringstream out, err;
    app.exit(error, out, err);
    if (asked) {
      Output output(false);
      output.help(out.str());
      return output.exit_code();
    }
    // An option that is missing may be one that was mistyped.
    auto says = unknown_option(app);
    if (!says) says = unknown_subcommand(app);
    if (!says) says = list_of_subcommands(app, error, *formatter);
    say(says.value_or(err.str()));
    return static_cast<int>(Exit::Usage);
  }
  return exit_code;
}

}  // namespace

int main(int argc, char** argv) {
  flashjit::notice_closed_pipes();
  try {
    return run(argc, argv);
  } catch (const std::bad_alloc&) {
    flashjit::say("error: out of memory; choose a smaller shape\n");
  } catch (const std::exception& error) {
    flashjit::say(std::string("error: ") + error.what() + "\n");
  }
  return static_cast<int>(flashjit::Exit::Failed);
}
