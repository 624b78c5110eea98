#include "compiler/spec/other_words.h"

#include <algorithm>
#include <vector>

#include <fmt/format.h>

#include "compiler/language/named.h"
#include "compiler/spec/text_form.h"

namespace flashjit {

namespace {

struct OtherWord {
  std::string_view word, ours;
};

constexpr OtherWord kDtypeWords[] = {
    {"float16", "fp16"},     {"half", "fp16"},  {"f16", "fp16"}, {"bfloat16", "bf16"},
    {"float32", "fp32"},     {"float", "fp32"}, {"f32", "fp32"}, {"float8_e4m3fn", "e4m3"},
    {"float8_e5m2", "e5m2"}, {"fp8", "e4m3"},   {"i8", "int8"},  {"int32", "i32"},
    {"int", "i32"},          {"int64", "i64"},  {"long", "i64"}, {"uint32", "u32"},
    {"uint8", "u8"},         {"bool", "u8"}};

constexpr OtherWord kFieldWords[] = {{"tokens", "`q_len` or `k_len`"},
                                     {"seqlen", "`q_len` or `k_len`"},
                                     {"batch", "`b`"},
                                     {"head_dim", "`d`"},
                                     {"kv_heads", "`heads`, as in heads=32/8"},
                                     {"dtype", "`out`, or the word behind the operation"},
                                     {"bias", "`score=\"bias(t)\"`"},
                                     {"softmax_scale", "`scale`"}};

std::string_view ours(std::string_view text, std::span<const OtherWord> words) {
  const auto found = std::ranges::find(words, text, &OtherWord::word);
  return found == words.end() ? std::string_view() : found->ours;
}

// Returns the mask or score that `text` names, or that it nearly names if it is no slip in one of `names`; null: none.
const NamedRow* meant_row(std::string_view text, std::span<const std::string_view> names) {
  const std::string_view word = text.substr(0, text.find('('));
  if (const NamedRow* row = find_named_row(word)) return row;
  if (!nearest_name(text, names).empty()) return nullptr;
  std::vector<std::string_view> rows;
  for (const NamedRow& row : named_rows()) rows.push_back(row.name);
  return find_named_row(nearest_name(word, rows));
}

}  // namespace

std::string no_dtype(std::string_view text, std::span<const std::string_view> names) {
  const std::string_view other = ours(text, kDtypeWords);
  const bool offered = std::ranges::find(names, other) != names.end();
  return fmt::format("{} is none of {}{}", quoted(text), join(names),
                     offered ? fmt::format(", did you mean `{}`?", other) : did_you_mean(text, names));
}

Result<Dtype> read_dtype(std::string_view field, std::string_view text, std::span<const std::string_view> names,
                         std::span<const std::string_view> shown) {
  const auto dtype = parse_dtype(text);
  if (dtype && std::ranges::find(names, text) != names.end()) return *dtype;
  return invalid(fmt::format("{}: {}", field, no_dtype(text, shown)));
}

std::string no_field(std::string_view text, std::span<const std::string_view> names) {
  std::string meant(ours(text, kFieldWords));
  const NamedRow* row = meant_row(text, names);
  if (meant.empty() && row) meant = fmt::format("`{}=\"{}\"`", row->score ? "score" : "mask", signature(*row));
  if (meant.empty()) return there_is_no("field", text, names);
  return fmt::format("there is no field {}, did you mean {}? The fields are {}", quoted(text), meant, join(names));
}

}  // namespace flashjit
