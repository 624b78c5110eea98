#include "tools/manual/help.h"

#include <algorithm>

#include "tools/manual/definitions.h"

namespace flashjit {
namespace {

constexpr std::size_t kFewestColumns = 50;  // The longest word of a type has this many.
constexpr std::size_t kNameColumns = 30;

void wrap_help_line(std::string_view line, std::size_t columns, std::size_t indent, std::string& out) {
  std::size_t at = indent;
  bool is_first = true;
  while (!line.empty()) {
    const std::size_t length = std::min(line.find(' '), line.size());
    if (!is_first && at + 1 + length > columns) {
      out += '\n' + std::string(indent, ' ');
      at = indent;
    } else if (!is_first) {
      out += ' ';
      ++at;
    }
    out += line.substr(0, length);
    at += length;
    is_first = false;
    line.remove_prefix(std::min(length + 1, line.size()));
  }
}

// An entry is a name, and its meaning in a column of its own, or below the name if the name reaches into the column.
std::string help_entry(const std::string& name, std::string_view about, std::size_t columns, std::size_t column) {
  std::string out = "  " + wrap(name, columns, 4);
  const std::size_t line = out.rfind('\n') == out.npos ? 0 : out.rfind('\n') + 1;
  const std::size_t used = out.size() - line;
  if (about.empty()) return out + '\n';
  out += used + 1 < column && line == 0 ? std::string(column - used, ' ') : '\n' + std::string(column, ' ');
  return out + wrap(about, columns, column) + '\n';
}

}  // namespace

std::string wrap(std::string_view text, std::size_t columns, std::size_t indent) {
  std::string out;
  while (true) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    if (line.starts_with(' ')) {
      out += line;
    } else {
      wrap_help_line(line, columns, indent, out);
    }
    if (end == text.size()) return out;
    out += '\n';
    text.remove_prefix(end + 1);
  }
}

HelpFormatter::HelpFormatter(std::size_t columns) : columns_(std::max(columns, kFewestColumns)) {}

std::string HelpFormatter::make_option(const CLI::Option* option, bool is_positional) const {
  return help_entry(make_option_name(option, is_positional) + make_option_opts(option), make_option_desc(option),
                    columns_, std::min(kNameColumns, columns_ / 3));
}

// The column is as narrow as the names allow, so that most descriptions are one line.
std::string HelpFormatter::make_subcommand(const CLI::App* sub) const {
  std::size_t longest = 0;
  for (const CLI::App* each : subcommands_of(*sub->get_parent())) longest = std::max(longest, each->get_name().size());
  return help_entry(sub->get_display_name(true), sub->get_description(), columns_, longest + 4);
}

std::string HelpFormatter::make_description(const CLI::App* app) const {
  return wrap(CLI::Formatter::make_description(app), columns_, 0);
}

std::string HelpFormatter::make_footer(const CLI::App* app) const {
  return wrap(CLI::Formatter::make_footer(app), columns_, 0);
}

}  // namespace flashjit
