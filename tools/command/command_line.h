// The line of a command is shown as somebody would type it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace flashjit {

// Returns the program and its words, each quoted where a POSIX shell would otherwise read it differently.
std::string command_line(std::string_view program, const std::vector<std::string>& words);

}  // namespace flashjit
