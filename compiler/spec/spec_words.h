// The words of a spec's text are `key`, `key=value` and `key<=value`, and values may be in quotes.
#pragma once

#include <string>
#include <string_view>

#include <fmt/format.h>

#include "compiler/result.h"
#include "compiler/spec/text_form.h"

namespace flashjit {

inline bool blank(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

// One word of the text, which is `key`, `key=value` or `key<=value`.
struct Word {
  std::string_view key;
  std::string_view sign;  // It is "", "=" or "<=".
  std::string_view value;
  bool in_quotes = false;
  std::size_t position = 0, value_position = 0;
};

struct Cursor {
  std::string_view text;
  std::size_t at = 0;

  Error error(std::string message, std::size_t position) const {
    return invalid(std::move(message), caret(text, position));
  }

  Result<Word> word() {
    Word word;
    word.position = at;
    while (at < text.size() && !blank(text[at]) && text[at] != '=' && text[at] != '<' && text[at] != '"') ++at;
    word.key = text.substr(word.position, at - word.position);
    if (at == text.size() || blank(text[at])) return word;
    if (text[at] == '"') return error("a quote must follow a field, as in mask=\"causal\"", at);
    if (text[at] == '<' && text.substr(at, 2) != "<=") {
      return error(fmt::format("{}: `<` is not a bound; write {}<=N", quoted(word.key), quoted(word.key)), at);
    }
    word.sign = text.substr(at, text[at] == '<' ? 2 : 1);
    if (word.key.empty()) return error(fmt::format("there is no field name before `{}`", word.sign), at);
    at += word.sign.size();
    return at < text.size() && text[at] == '"' ? quoted_value(word) : bare_value(word);
  }

  Result<Word> bare_value(Word word) {
    word.value_position = at;
    while (at < text.size() && !blank(text[at])) {
      if (text[at] == '"')
        return error(fmt::format("{}: the quote must open right after `{}`", word.key, word.sign), at);
      ++at;
    }
    word.value = text.substr(word.value_position, at - word.value_position);
    if (word.value.empty()) return error(fmt::format("{}: the value is missing", word.key), at);
    if (word.value.front() == '\'') {
      return error(fmt::format("{}: use double quotes around a value", word.key), word.value_position);
    }
    return word;
  }

  Result<Word> quoted_value(Word word) {
    word.in_quotes = true;
    const std::size_t open = at++;
    const std::size_t close = text.find('"', at);
    if (close == text.npos) return error(fmt::format("{}: the quote that opens here is never closed", word.key), open);
    word.value_position = at;
    word.value = text.substr(at, close - at);
    at = close + 1;
    if (at < text.size() && !blank(text[at])) {
      return error(fmt::format("{}: a space must follow the closing quote", word.key), at);
    }
    return word;
  }
};

}  // namespace flashjit
