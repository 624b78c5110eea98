// compiler/SPEC.md names every function, named row and limit as the compiler has them.
#include <fstream>
#include <sstream>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "compiler/language/expr_lex.h"
#include "compiler/language/named.h"
#include "compiler/spec/spec.h"
#include "templates/kernel_config.h"

namespace flashjit {
namespace {

// With the bars of its tables as they are meant.
std::string page() {
  std::ifstream file(FLASHJIT_TESTS_DIR "/../compiler/SPEC.md");
  std::stringstream read;
  read << file.rdbuf();
  std::string text = read.str();
  for (std::size_t at = 0; (at = text.find("\\|", at)) != text.npos;) text.erase(at, 1);
  return text;
}

TEST(SpecDoc, FunctionsAreNamed) {
  const std::string text = page();
  for (const Function& function : functions()) {
    EXPECT_NE(text.find(fmt::format("`{}(", function.name)), text.npos) << "SPEC.md does not name " << function.name;
  }
}

TEST(SpecDoc, NamedRowsAreThoseOfTheTable) {
  const std::string text = page();
  constexpr std::size_t kWidest = 90;  // what is longer has a line of its own, behind the table
  for (const NamedRow& row : named_rows()) {
    const bool is_long = row.body.size() > kWidest;
    const std::string line =
        fmt::format("| `{}` | {} |", signature(row), is_long ? "written out below" : fmt::format("`{}`", row.body));
    EXPECT_NE(text.find(line), text.npos) << "SPEC.md has no line that begins: " << line;
    if (is_long) {
      EXPECT_NE(text.find(fmt::format("\n{}\n", row.body)), text.npos) << "SPEC.md has no line: " << row.body;
    }
  }
}

TEST(SpecDoc, LimitsAreThoseOfTheCompiler) {
  const std::string text = page();
  const std::string lines[] = {
      fmt::format("| text of a spec; of a mask or score | {} bytes; {} bytes |", kMaxSpecText, kMaxExprText),
      fmt::format("| nesting | {} levels |", kMaxExprDepth),
      fmt::format("| operations, numbers and names of a mask or score, named rows written out | {};", kMaxExprNodes),
      fmt::format("| of those `exp`, `log`, `tanh` and `sigmoid` | {}:", kMaxFunctions),
      fmt::format("| run-time parameters; dimensions of one | {}; {} |", kMaxParams, kMaxParamRank),
      fmt::format("| length of a sequence, batch | {} |", SizeBound::kLargest),
  };
  for (const std::string& line : lines)
    EXPECT_NE(text.find(line), text.npos) << "SPEC.md has no line that begins: " << line;
}

}  // namespace
}  // namespace flashjit
