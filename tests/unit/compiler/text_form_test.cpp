#include "compiler/spec/text_form.h"

#include <gtest/gtest.h>

namespace flashjit {
namespace {

TEST(TextForm, HarmlessTextIsShownAndNotObeyed) {
  const std::pair<std::string_view, const char*> rows[] = {
      {"", ""},
      {"fwd bf16 d=64 ~", "fwd bf16 d=64 ~"},
      {"two\tfields\nand a line\n", "two\tfields\nand a line\n"},
      {"\x1b[2J\x1b]0;owned\a\r\b\x7f", "\\x1b[2J\\x1b]0;owned\\x07\\x0d\\x08\\x7f"},
      {std::string_view("\0x", 2), "\\x00x"},
      {"gr\u00f6\u00dfe \u20ac \U0001f600", "gr\u00f6\u00dfe \u20ac \U0001f600"},
      {"\u009b31m", "\\xc2\\x9b31m"},                              // the one-character form of ESC [
      {"\u202eevil\u2066", "\\xe2\\x80\\xaeevil\\xe2\\x81\\xa6"},  // turns the text around
      {"\x9b", "\\x9b"},                                           // the same as above to a terminal without UTF-8
      {"\xff\xfe", "\\xff\\xfe"},
      {"\xc0\x9b", "\\xc0\\x9b"},  // overlong
      {"\xe0\x80\x9b", "\\xe0\\x80\\x9b"},
      {"\xed\xa0\x80", "\\xed\\xa0\\x80"},           // a half of a pair
      {"\xf4\x90\x80\x80", "\\xf4\\x90\\x80\\x80"},  // above the last character
      {"cut \xe2\x82", "cut \\xe2\\x82"},
      {"\xc3(", "\\xc3("},
  };
  for (const auto& [text, shown] : rows) EXPECT_EQ(harmless(text, Lines::Many), shown);
  EXPECT_EQ(harmless("a\nb\tc", Lines::One), "a\\x0ab\\x09c");
}

TEST(TextForm, NounsFollowTheirNumber) {
  const std::pair<std::int64_t, std::pair<const char*, const char*>> rows[] = {
      {0, {"kernel", "0 kernels"}}, {1, {"kernel", "1 kernel"}},   {2, {"kernel", "2 kernels"}},
      {1, {"entry", "1 entry"}},    {3, {"entry", "3 entries"}},   {2, {"query head", "2 query heads"}},
      {2, {"key", "2 keys"}},       {16, {"query", "16 queries"}}, {-1, {"key", "-1 keys"}},
  };
  for (const auto& [count, words] : rows) EXPECT_EQ(counted(count, words.first), words.second);
}

}  // namespace
}  // namespace flashjit
