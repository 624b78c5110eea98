// Input that has to be refused, with the kind of the error and the essential words of its message: specs.table, and
// texts that are too large or too strange for a table.
#include <gtest/gtest.h>

#include <cctype>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/result.h"
#include "runtime/compile/compile.h"

namespace flashjit {
namespace {

std::string trim(std::string_view text) {
  const auto space = [](char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; };
  while (!text.empty() && space(text.front())) text.remove_prefix(1);
  while (!text.empty() && space(text.back())) text.remove_suffix(1);
  return std::string(text);
}

std::vector<std::string> split(const std::string& text, const std::string& separator) {
  std::vector<std::string> parts;
  std::size_t begin = 0;
  for (std::size_t end; (end = text.find(separator, begin)) != text.npos; begin = end + separator.size()) {
    parts.push_back(text.substr(begin, end - begin));
  }
  parts.push_back(text.substr(begin));
  return parts;
}

// A well-formed error, whatever it is about.
void expect_decent(const Error& error, const std::string& about) {
  EXPECT_FALSE(error.message.empty()) << about;
  EXPECT_EQ(error.message.find('\n'), std::string::npos) << "a message is one line: " << error.message;
  EXPECT_LT(error.message.size(), 1500u) << about;
  for (const char c : error.message) EXPECT_TRUE(static_cast<unsigned char>(c) >= 0x20) << about;
  EXPECT_NE(error.kind, ErrorKind::Internal) << about << ": " << error.message;
}

TEST(MustFail, Table) {
  std::ifstream file(FLASHJIT_TESTS_DIR "/mustfail/specs.table");
  ASSERT_TRUE(file);
  int rows = 0, line_number = 0;
  for (std::string line; std::getline(file, line);) {
    ++line_number;
    if (line.empty() || line[0] == '#') continue;
    const std::string place = "specs.table:" + std::to_string(line_number) + ": " + line;
    const std::vector<std::string> columns = split(line, "|");
    ASSERT_GE(columns.size(), 5u) << place;
    std::string spec = columns[2];  // which may hold the separator: two columns stand before it, two behind
    for (std::size_t i = 3; i + 2 < columns.size(); ++i) spec += "|" + columns[i];
    const std::string kind = trim(columns[columns.size() - 2]);
    const auto plan = plan_spec(trim(spec), trim(columns[0]), trim(columns[1]));
    ++rows;
    if (plan) {
      ADD_FAILURE() << place << "\n  was accepted";
      continue;
    }
    const Error& error = plan.error();
    expect_decent(error, place);
    if (kind != "any") {
      EXPECT_EQ(std::string(name(error.kind)), kind) << place << "\n  " << error.message;
    }
    for (const std::string& word : split(columns.back(), ",")) {
      const std::string wanted = trim(word);
      const bool in_detail = wanted[0] == '^';
      const std::string& text = in_detail ? error.detail : error.message;
      EXPECT_NE(text.find(in_detail ? wanted.substr(1) : wanted), std::string::npos)
          << place << "\n  message: " << error.message << "\n  detail: " << error.detail << "\n  has no: " << wanted;
    }
  }
  EXPECT_GT(rows, 100);
}

std::string repeat(std::string_view text, int count) {
  std::string result;
  for (int i = 0; i < count; ++i) result += text;
  return result;
}

struct Hostile {
  const char* name;
  std::string spec;
};

TEST(MustFail, HostileText) {
  const std::string head = "fwd bf16 d=64 ";
  std::string doubling = "q";
  for (int i = 0; i < 12; ++i) doubling = "(" + doubling + " + " + doubling + ")";
  const std::vector<Hostile> rows = {
      {"deep parentheses", head + "mask=\"" + repeat("(", 2000) + "k<q" + repeat(")", 2000) + "\""},
      {"deep negation", head + "mask=\"" + repeat("!(", 1000) + "k<q" + repeat(")", 1000) + "\""},
      {"deep minus", head + "score=\"" + repeat("-", 3000) + "s\""},
      {"deep calls", head + "score=\"" + repeat("exp(", 900) + "s" + repeat(")", 900) + "\""},
      {"deep where", head + "score=\"" + repeat("where(k<q,s,", 300) + "s" + repeat(")", 300) + "\""},
      {"text above the limit", head + "mask=\"" + repeat("k<q & ", 3000) + "k<q\""},
      {"long chain", head + "mask=\"" + repeat("k<q+1 | ", 500) + "k<q\""},
      {"doubling", head + "mask=\"k < " + doubling + "\""},
      {"spec of a megabyte", repeat("x", 1 << 20)},
      {"million spaces", "fwd bf16" + repeat(" ", 1 << 20) + "d=64"},
      {"name of 3000 letters", head + "score=\"s * " + repeat("a", 3000) + "\""},
      {"field of 3000 letters", head + repeat("a", 3000) + "=1"},
      {"zero byte", head + std::string("mask=\"k<q\0&q<k\"", 15)},
      {"zero byte in the middle", std::string("fwd\0bf16 d=64", 13)},
      {"UTF-8", head + "mask=\"k \xe2\x89\xa4 q\""},
      {"invalid UTF-8", head + "mask=\"\xff\xfe\""},
      {"control characters", head + "mask=\"k\x1b[31m < q\""},
      {"digits", head + "mask=\"k < " + repeat("9", 3000) + "\""},
      {"fraction digits", head + "score=\"s * 1e" + repeat("9", 3000) + "\""},
      {"params without end", head + "score=\"s\" params=\"" + repeat("a: fp32,", 1500) + "\""},
      {"only quotes", repeat("\"", 100)},
      {"only equals", repeat("=", 100)},
      {"format placeholders", head + "{}{}%s%n=1"},
      {"brace in a mask", head + "mask=\"k < {0}\""},
  };
  for (const Hostile& row : rows) {
    const auto plan = plan_spec(row.spec, "sm_90a", "");
    if (plan) {
      ADD_FAILURE() << row.name << " was accepted";
      continue;
    }
    expect_decent(plan.error(), row.name);
    EXPECT_EQ(plan.error().kind, ErrorKind::Invalid) << row.name << ": " << plan.error().message;
  }
}

// Cut anywhere, a spec is accepted or refused decently.
TEST(MustFail, EveryPrefix) {
  const std::string spec =
      "fwd bf16 out=fp32 d=192/128 heads=32/8 layout=bhsd mask=\"causal & !(window(64, -1) | k % 7 == bit(k, 3))\" "
      "score=\"where(k < lim, softcap(50.0), s + t[h, q % 3])\" params=\"lim: i32, t: fp16[2]\" scale=0.125 lse=log2 b<=64 bytes=8";
  for (std::size_t length = 0; length <= spec.size(); ++length) {
    const auto plan = plan_spec(spec.substr(0, length), "sm_80", "");
    if (!plan) expect_decent(plan.error(), spec.substr(0, length));
  }
  // And with one character replaced.
  for (const char replacement : {'"', '(', ')', '0', '-', '\\', ' ', ';'}) {
    for (std::size_t at = 0; at < spec.size(); ++at) {
      std::string damaged = spec;
      damaged[at] = replacement;
      const auto plan = plan_spec(damaged, "sm_80", "");
      if (!plan) expect_decent(plan.error(), damaged);
    }
  }
}

}  // namespace
}  // namespace flashjit
