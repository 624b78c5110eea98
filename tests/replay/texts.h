// Everything that is made of a case before a compiler or a GPU is needed, as text.
#pragma once

#include <array>
#include <string>
#include <string_view>

#include "tests/replay/case.h"

namespace flashjit::replay {

constexpr std::array<std::string_view, 4> kColumns = {"plan", "program", "source", "launch"};

struct Texts {
  std::array<std::string, kColumns.size()> columns;  // as kColumns
  int plans = 0, launches = 0;
};

// On every target, without pins and with each of the case's. Without predicted times: floats may differ between
// compilers.
Texts texts_of(const ReplayCase& c);

}  // namespace flashjit::replay
