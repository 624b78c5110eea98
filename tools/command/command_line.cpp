#include "tools/command/command_line.h"

#include "tools/manual/pages.h"

namespace flashjit {

std::string command_line(std::string_view program, const std::vector<std::string>& words) {
  constexpr std::string_view kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=+,./:@%";
  std::string line(program);
  for (const std::string& word : words) {
    const bool plain = !word.empty() && word.find_first_not_of(kPlain) == std::string::npos;
    line += " " + (plain ? word : quoted_for_shell(word));
  }
  return line;
}

}  // namespace flashjit
