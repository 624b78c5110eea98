#include "compiler/language/named.h"

#include <algorithm>
#include <iterator>

#include "compiler/language/expr_lex.h"

namespace flashjit {
namespace {

using enum RowArgument::Kind;

constexpr RowArgument kTensorArgument = {Tensor, "name"};

// clang-format off
constexpr NamedRow kRows[] = {
    {"causal", {}, "k <= qpos", false, {},
     "keys up to the query's own position; how positions line up follows align="},
    {"causal_top_left", {}, "k <= q", false, {}, "causal with the first query at the first key"},
    {"causal_bottom_right", {}, "k <= q + k_len - q_len", false, {}, "causal with the last query at the last key"},
    {"window", {{Int, "l", -1}, {Int, "r", -1}}, "(l < 0 | k >= qpos - l) & (r < 0 | k <= qpos + r)", false, {},
     "l keys before the query's position, itself, and r after; -1: no limit on that side"},
    {"chunk", {{Int, "n", 1}}, "k >= qpos / n * n & k < qpos / n * n + n", false, {},
     "keys in the same block of n positions"},
    {"prefix", {{Int, "n", 0}}, "k < n | k <= qpos", false, {}, "the first n keys for everyone, causal after them"},
    {"document", {kTensorArgument}, "name[b, max(qpos, 0)] == name[b, k]", false, {"name", "i32", 2, Contents::Documents},
     "keys of the query's document; the tensor holds a document number per [batch, position]"},
    {"tree", {kTensorArgument},
     "k < k_len - q_len | bit(name[b, q, max(k + q_len - k_len, 0) / 64], max(k + q_len - k_len, 0) % 64)", false,
     {"name", "i64", 3, Contents::Tree},
     "all keys before the newest q_len, and of those the ones whose bit is set in [batch, query, word of 64 bits]"},
    {"alibi", {}, "s + slope[h] * (k - qpos)", true, {"slope", "fp32", 1, Contents::Slopes},
     "a bias linear in distance, slope[head]"},
    // The reciprocal is folded when c is a constant, while a division for each score would be expensive.
    {"softcap", {{Float, "c", 0}}, "c * tanh(s * (1.0 / c))", true, {}, "scores bent smoothly into -c..c"},
    {"bias", {kTensorArgument, {Dtype, "dtype", 0, "fp32"}}, "s + name[h, q, k]", true, {"name", "dtype", 3},
     "an additive tensor [head, query, key]"},
    {"bias_b", {kTensorArgument, {Dtype, "dtype", 0, "fp32"}}, "s + name[b, h, q, k]", true, {"name", "dtype", 4},
     "an additive tensor [batch, head, query, key]"},
};
// clang-format on

}  // namespace

std::span<const NamedRow> named_rows() { return kRows; }

const NamedRow* find_named_row(std::string_view name) {
  const auto row = std::find_if(std::begin(kRows), std::end(kRows), [&](const NamedRow& r) { return r.name == name; });
  return row == std::end(kRows) ? nullptr : row;
}

std::string signature(const NamedRow& row) {
  std::string text(row.name);
  const char* separator = "(";
  for (const RowArgument& argument : row.arguments) {
    if (argument.kind == RowArgument::Kind::None) continue;
    text += separator;
    text += argument.name;
    if (!argument.fallback.empty()) text.append(" = ").append(argument.fallback);
    separator = ", ";
  }
  if (separator[0] == ',') text += ')';
  return text;
}

bool is_reserved_name(std::string_view name) { return is_language_name(name) || find_named_row(name); }

}  // namespace flashjit
