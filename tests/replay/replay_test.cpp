// The replay gate: what is made of the specs of cases.txt is what it was when expected.txt was written.
//
//   replay_tests --update                  writes expected.txt anew
//   replay_tests --dump DIR [--case N]     writes the texts behind the digests: of two builds, for `diff -r`
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "runtime/store/sha256.h"
#include "tests/replay/texts.h"

namespace flashjit::replay {
namespace {

constexpr const char* kCases = FLASHJIT_TESTS_DIR "/replay/cases.txt";
constexpr const char* kExpected = FLASHJIT_TESTS_DIR "/replay/expected.txt";
constexpr std::size_t kDigits = 12;  // of a digest

std::vector<std::string> lines_of(const std::string& path) {
  std::vector<std::string> lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.empty() && !line.starts_with('#')) lines.push_back(line);
  }
  return lines;
}

// The digests of a case, and the spec: a line of expected.txt. The columns are as wide as a digest.
std::string expected_line(const ReplayCase& c, const Texts& texts) {
  std::string line;
  for (const std::string& text : texts.columns) line += sha256_hex(text).substr(0, kDigits) + " ";
  return line + c.text;
}

std::string differing_columns(const std::string& expected, const std::string& line) {
  std::string names;
  for (std::size_t i = 0; i < kColumns.size(); ++i) {
    const std::size_t at = i * (kDigits + 1);
    if (expected.size() > at && expected.compare(at, kDigits, line, at, kDigits) == 0) continue;
    names += fmt::format("{}{}", names.empty() ? "" : ", ", kColumns[i]);
  }
  return names.empty() ? "spec" : names;
}

TEST(Replay, IsAsExpected) {
  const std::vector<std::string> cases = lines_of(kCases), expected = lines_of(kExpected);
  ASSERT_GE(cases.size(), 300u) << kCases;
  ASSERT_EQ(cases.size(), expected.size()) << "cases.txt and expected.txt belong together: replay_tests --update";
  int different = 0;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const auto c = parse_case(cases[i]);
    ASSERT_TRUE(c) << c.error().message;
    const std::string line = expected_line(*c, texts_of(*c));
    if (line == expected[i]) continue;
    ++different;
    ADD_FAILURE() << fmt::format("case {}: {} differs: {}", i + 1, differing_columns(expected[i], line), c->text);
  }
  EXPECT_EQ(different, 0) << "To see what changed, in this build and in one of the commit before:\n"
                             "  replay_tests --dump DIR [--case N], then diff -r\n"
                             "Meant to change: replay_tests --update, in a commit of its own that says why.";
}

struct Options {
  bool update = false;
  std::string dump;        // folder
  std::size_t number = 0;  // of the only case; 0: all
};

// Every case of cases.txt that is asked for; false after an error.
bool replay_all(const Options& options) {
  const std::vector<std::string> cases = lines_of(kCases);
  std::string expected =
      "# Written by replay_tests --update: digests of plan, program, source and launch of each case of cases.txt\n";
  int plans = 0, launches = 0;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    if (options.number != 0 && options.number != i + 1) continue;
    const auto c = parse_case(cases[i]);
    if (!c) {
      fmt::print(stderr, "case {}: {}\n", i + 1, c.error().message);
      return false;
    }
    const Texts texts = texts_of(*c);
    plans += texts.plans, launches += texts.launches;
    expected += expected_line(*c, texts) + "\n";
    for (std::size_t column = 0; !options.dump.empty() && column < kColumns.size(); ++column) {
      std::filesystem::create_directories(options.dump);
      std::ofstream(fmt::format("{}/{:03}.{}", options.dump, i + 1, kColumns[column])) << c->text << "\n"
                                                                                       << texts.columns[column];
    }
  }
  if (options.update) std::ofstream(kExpected) << expected;
  fmt::print("{} plans, {} launches\n", plans, launches);
  return true;
}

}  // namespace
}  // namespace flashjit::replay

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  flashjit::replay::Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    const char* value = i + 1 < argc ? argv[i + 1] : "";
    if (argument == "--update") options.update = true;
    else if (argument == "--dump" && *value) options.dump = value, ++i;
    else if (argument == "--case" && *value) options.number = std::strtoul(value, nullptr, 10), ++i;
    else return fmt::print(stderr, "usage: replay_tests [--update | --dump DIR [--case N]]\n"), 2;
  }
  if (argc == 1) return RUN_ALL_TESTS();
  if (options.number != 0 && options.dump.empty())
    return fmt::print(stderr, "--case: chooses what --dump DIR writes\n"), 2;
  if (options.number != 0 && options.update)
    return fmt::print(stderr, "--update writes all cases; leave out --case\n"), 2;
  return flashjit::replay::replay_all(options) ? 0 : 1;
}
