#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "flashjit/flashjit.hpp"
#include "tools/manual/definitions.h"
#include "tools/manual/pages.h"

namespace flashjit {
namespace {

constexpr std::string_view kSeeAlso =
    "The source describes specs in compiler/SPEC.md, and in runtime/OBSERVE.md all that the variables do, the "
    "log, the store and what bounds a compile. The C++ and the C interface are described in flashjit.hpp and flashjit.h.";

// Escapes characters that have a meaning for roff, or that it would print as others than a shell knows.
std::string roff_text(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '\\': out += "\\e"; break;
      case '-': out += "\\-"; break;
      case '\'': out += "\\(aq"; break;
      case '"': out += "\\(dq"; break;
      case '`': out += "\\(ga"; break;
      case '^': out += "\\(ha"; break;
      case '~': out += "\\(ti"; break;
      default: out += c;
    }
  }
  return out.starts_with('.') ? "\\&" + out : out;
}

std::string roff_bold(std::string_view text) { return "\\fB" + roff_text(text) + "\\fR"; }

std::string roff_section(std::string_view title) { return fmt::format(".SH {}\n", title); }

// Makes paragraphs. Lines that begin with a blank are for copying, and stay as they are.
std::string roff_paragraphs(std::string_view text) {
  std::string out;
  bool is_copied = false;
  const auto copy = [&](bool on) {
    if (on != is_copied) out += on ? ".PP\n.nf\n.RS 2\n" : ".RE\n.fi\n";
    is_copied = on;
  };
  bool begins = true;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    copy(line.starts_with(' '));
    if (line.empty()) {
      begins = true;
      continue;
    }
    if (begins && !is_copied) out += ".PP\n";
    begins = false;
    line.remove_prefix(std::min(line.find_first_not_of(' '), line.size()));
    out += roff_text(line) + "\n";
  }
  copy(false);
  return out;
}

std::string roff_examples(const std::string& footer) {
  const std::size_t first = footer.find("\n  "), last = footer.find("\n\n", first);
  return first == footer.npos ? "" : roff_paragraphs(std::string_view(footer).substr(first + 1, last - first));
}

std::string roff_usage(const CLI::App& app) {
  const std::string name = "flashjit " + path_of(app);
  const std::string line = CLI::Formatter().make_usage(&app, name);
  const std::size_t at = line.find(name) + name.size(), end = line.find_last_not_of('\n') + 1;
  return roff_bold(name) + roff_text(std::string_view(line).substr(at, end - at)) + "\n";
}

std::string roff_argument(const CLI::Option& option) {
  std::vector<std::string> names;
  for (const std::string& name : names_of(option)) names.push_back(roff_bold(name));
  if (names.empty()) names.push_back("\\fI" + roff_text(option.get_name(true)) + "\\fR");
  return fmt::format(".TP\n{}{}\n{}\n", fmt::join(names, ", "), roff_text(CLI::Formatter().make_option_opts(&option)),
                     roff_text(option.get_description()));
}

std::string roff_arguments(const CLI::App& app) {
  std::string out;
  for (const CLI::Option* option : positionals_of(app)) out += roff_argument(*option);
  for (const CLI::Option* option : options_of(app)) out += roff_argument(*option);
  return out;
}

std::string roff_meanings(std::span<const Meaning> rows) {
  std::string out;
  for (const Meaning& row : rows) out += fmt::format(".TP\n{}\n{}\n", roff_bold(row.name), roff_text(row.about));
  return out;
}

std::string roff_subcommand(const CLI::App& app) {
  return fmt::format(".SS flashjit {}\n{}\n{}{}", path_of(app), roff_text(app.get_description()), roff_arguments(app),
                     roff_paragraphs(app.get_footer()));
}

}  // namespace

std::string manual_page(const CLI::App& root) {
  // The description is "FlashJIT: what it is", and below it what to know first.
  const std::string about = root.get_description();
  const std::size_t colon = about.find(": "), line = about.find(".\n");
  std::string page = fmt::format(
      ".\\\" `flashjit man` made this page.\n.TH FLASHJIT 1 \"\" \"flashjit {}\" \"User Commands\"\n", version());
  page += roff_section("NAME") + fmt::format("flashjit \\- {}\n", roff_text(about.substr(colon + 2, line - colon - 2)));
  std::string synopsis, subcommands;
  for (const CLI::App* app : commands_of(root)) {
    if (subcommands_of(*app).empty()) synopsis += (synopsis.empty() ? "" : ".br\n") + roff_usage(*app);
    if (app != &root) subcommands += roff_subcommand(*app);
  }
  page += roff_section("SYNOPSIS") + synopsis;
  page += roff_section("DESCRIPTION") + roff_paragraphs(about.substr(line + 1)) + roff_section("OPTIONS") +
          roff_arguments(root);
  page += roff_section("SUBCOMMANDS") + subcommands;
  page += roff_section("EXIT STATUS") + roff_meanings(exit_codes()) + roff_section("ENVIRONMENT") +
          roff_meanings(variables());
  return page + roff_section("EXAMPLES") + roff_examples(root.get_footer()) + roff_section("SEE ALSO") +
         roff_text(kSeeAlso) + "\n";
}

}  // namespace flashjit
