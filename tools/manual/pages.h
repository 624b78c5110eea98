// These texts are made from the definitions of the command: scripts that complete it in shells, and its manual page.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include <CLI/CLI.hpp>

namespace flashjit {

std::string bash_completion(const CLI::App& root);
std::string zsh_completion(const CLI::App& root);
std::string fish_completion(const CLI::App& root);
std::string manual_page(const CLI::App& root);  // roff, with the macros of man(7)

std::string quoted_for_shell(std::string_view text);  // one word for bash and zsh

// Help names these, and the manual page tells more about them.
struct Meaning {
  std::string_view name, about;
};
std::span<const Meaning> exit_codes();
std::span<const Meaning> variables();  // variables of the environment

}  // namespace flashjit
