// Help is as wide as the terminal that it is shown on.
#pragma once

#include <string>
#include <string_view>

#include <CLI/CLI.hpp>

namespace flashjit {

class HelpFormatter : public CLI::Formatter {
 public:
  explicit HelpFormatter(std::size_t columns);
  std::string make_option(const CLI::Option* option, bool is_positional) const override;
  std::string make_subcommand(const CLI::App* sub) const override;
  std::string make_description(const CLI::App* app) const override;
  std::string make_footer(const CLI::App* app) const override;

 private:
  std::size_t columns_;
};

// Words that would stand beyond `columns` go to a new line, behind `indent` blanks. Lines that begin with a blank are
// commands to copy, and stay whole.
std::string wrap(std::string_view text, std::size_t columns, std::size_t indent);

}  // namespace flashjit
