// Turns text into an AttentionSpec. Values are checked by validate(); only mistakes of the text itself are found here.
#include <algorithm>
#include <array>
#include <vector>

#include <fmt/format.h>

#include "compiler/spec/spec.h"
#include "compiler/spec/config_words.h"
#include "compiler/spec/flags.h"
#include "compiler/spec/fields/outputs.h"
#include "compiler/spec/other_words.h"
#include "compiler/spec/spec_names.h"
#include "compiler/spec/spec_words.h"
#include "compiler/spec/text_form.h"
#include "compiler/spec/whole_numbers.h"

namespace flashjit {

namespace {

constexpr auto kFlagNames = [] {
  std::array<std::string_view, kSpecFlags.size()> names;
  std::ranges::transform(kSpecFlags, names.begin(), &SpecFlag::name);
  return names;
}();
constexpr auto kFieldNames = [] {
  constexpr std::array<std::string_view, 25> with_values = {
      "kv",    "out",       "d",         "heads",   "layout",  "mask",   "score", "params", "grads",
      "scale", "align",     "lse",       "dropout", "b",       "q_len",  "k_len", "bytes",  "numerics",
      "rope",  "rope_from", "rope_base", "scales",  "compute", "blocks", "select"};
  std::array<std::string_view, with_values.size() + kFlagNames.size()> names;
  std::ranges::copy(kFlagNames, std::ranges::copy(with_values, names.begin()).out);
  return names;
}();
constexpr std::array<std::string_view, 3> kBoundNames = {"b", "q_len", "k_len"};

template <std::size_t n>
bool contains(const std::array<std::string_view, n>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// ---- values ----

Error bad_value(const Word& word, std::string_view expected) {
  return invalid(fmt::format("{}: {} is not {}", word.key, quoted(word.value), expected));
}

// Whole numbers are read as 64 bits and must fit `int` here. The limits of the field are checked later.
Result<int> parse_int(const Word& word, std::string_view text) {
  const auto value = parse_integer(text);
  if (value && *value <= SizeBound::kLargest && *value >= -SizeBound::kLargest) return static_cast<int>(*value);
  const auto* const field = std::ranges::find(kWholeNumberFields, word.key, &WholeNumberField::name);
  if (field == std::end(kWholeNumberFields)) return bad_value(word, "a whole number");
  return bad_value(word, fmt::format("written as {}, in whole numbers up to {}", field->written, field->most));
}

// Reads "128" or "192/128".
Result<void> parse_pair(const Word& word, int& first, int& second) {
  const std::size_t slash = word.value.find('/');
  FLASHJIT_ASSIGN(a, parse_int(word, word.value.substr(0, slash)));
  first = second = a;
  if (slash != word.value.npos) {
    FLASHJIT_ASSIGN(b, parse_int(word, word.value.substr(slash + 1)));
    second = b;
  }
  return {};
}

Result<double> parse_number(const Word& word) {
  const auto value = parse_real(word.value);
  if (!value) return bad_value(word, "a finite number");
  return *value;
}

template <class Enum, std::size_t n>
Result<void> parse_name(const Word& word, const std::array<std::string_view, n>& names, Enum& field) {
  const auto found = std::find(names.begin(), names.end(), word.value);
  if (found == names.end()) {
    return invalid(fmt::format("{}: {} is none of {}{}", word.key, quoted(word.value), join(names),
                               did_you_mean(word.value, names)));
  }
  field = static_cast<Enum>(found - names.begin());
  return {};
}

constexpr std::array<std::string_view, 4> kRoundedNames = {"e4m3", "e5m2", "latent656", "latent584"};

// Reads a format of rows of latents. Returns false if the value is none.
bool parse_format(const Word& word, AttentionSpec& spec) {
  const auto& formats = Words<CacheFormat>::values;
  const auto at = std::find(formats.begin() + 1, formats.end(), word.value);  // `elements` is no word of a spec.
  if (at == formats.end()) return false;
  spec.cache_format = static_cast<CacheFormat>(at - formats.begin());
  return true;
}

// Reads "fp32", for bwd also "fp32/bf16/bf16" for dq, dk and dv, and for quantize also "latent656".
Result<void> parse_out(const Word& word, AttentionSpec& spec) {
  const std::span<const OutField> fields = out_fields(spec);
  const auto count = static_cast<std::size_t>(std::ranges::count(word.value, '/')) + 1;
  if (count > 1 && fields.size() == 1) {
    return invalid(
        fmt::format("out: {} is a list of dtypes, for the dq/dk/dv of bwd, and {} writes o alone; write out=fp32",
                    quoted(word.value), kOperationNames[static_cast<std::size_t>(spec.operation)]));
  }
  if (count > 1 && count != fields.size()) {
    return invalid(
        fmt::format("out: {} has {} dtypes; bwd takes one for all of its gradients, or {} for dq/dk/dv, as in "
                    "out=fp32/bf16/bf16",
                    quoted(word.value), count, fields.size()));
  }
  if (quantizes(spec) && parse_format(word, spec)) {
    set_out(spec, usual_out(spec));
    return {};
  }
  std::string_view rest = word.value;
  std::span<const std::string_view> dtypes = kWideDtypeNames;
  if (quantizes(spec)) dtypes = kRoundedNames;
  for (const OutField& field : fields) {
    const std::string_view text = rest.substr(0, rest.find('/'));
    FLASHJIT_ASSIGN(dtype, read_dtype(word.key, text, kTensorDtypeNames, dtypes));
    spec.*field.dtype = dtype;
    if (count > 1) rest.remove_prefix(std::min(text.size() + 1, rest.size()));
  }
  return {};
}

// Reads "paged(16)".
Result<int> parse_pages(const Word& word, std::string_view text) {
  constexpr std::string_view kPaged = "paged(";
  if (text == "paged") return invalid("layout: paged needs the tokens per page, as in layout=paged(16)");
  if (!text.starts_with(kPaged))
    return invalid(fmt::format("layout: {} is not paged(N); K and V are packed where Q is, or paged", quoted(text)));
  if (!text.ends_with(')')) return invalid("layout: paged( is not closed; write layout=paged(16)");
  FLASHJIT_ASSIGN(size, parse_int(word, text.substr(kPaged.size(), text.size() - kPaged.size() - 1)));
  if (size == 0) return invalid("layout: a page of 0 tokens holds nothing; the least is 1");
  return size;
}

// Reads the layout of all tensors, or that of Q and O and behind a slash that of K and V: "bhsd", "paged(16)",
// "packed/paged(16)".
Result<void> parse_layout(const Word& word, AttentionSpec& spec) {
  const std::size_t slash = word.value.find('/');
  const bool one = slash == word.value.npos;
  if (one && !word.value.starts_with("paged")) {
    constexpr std::array<std::string_view, 4> kNames = {kLayoutNames[0], kLayoutNames[1], kLayoutNames[2], "paged(N)"};
    return parse_name(word, kNames, spec.layout);
  }
  if (!one) {
    Word queries = word;
    queries.value = word.value.substr(0, slash);
    FLASHJIT_TRY(parse_name(queries, kLayoutNames, spec.layout));
  }
  FLASHJIT_ASSIGN(size, parse_pages(word, word.value.substr(one ? 0 : slash + 1)));
  spec.page_size = size;
  return {};
}

// Returns N of a value "function(N)", for example of "block(128)".
Result<int> parse_argument(const Word& word, std::string_view function, std::string_view expected) {
  std::string_view text = word.value;
  if (!text.starts_with(function) || !text.substr(function.size()).starts_with('(') || !text.ends_with(')'))
    return bad_value(word, expected);
  text.remove_prefix(function.size() + 1);
  return parse_int(word, text.substr(0, text.size() - 1));
}

Result<void> parse_scales(const Word& word, AttentionSpec& spec) {
  FLASHJIT_ASSIGN(rows, parse_argument(word, "block", "block(N), rows that share a scale, as in scales=block(128)"));
  spec.scale_block = rows;
  return rows != 0 ? Result<void>() : invalid("scales: a block of 0 rows holds nothing; use block(128)");
}

Result<void> parse_select(const Word& word, AttentionSpec& spec) {
  spec.whole_pages = word.value.starts_with("pages");
  FLASHJIT_ASSIGN(entries, parse_argument(word, spec.whole_pages ? "pages" : "keys",
                                          "keys(N) or pages(N), as many as a list has room for, as in "
                                          "select=keys(2048) or select=pages(16)"));
  spec.selected = entries;
  if (entries != 0) return {};
  return invalid(spec.whole_pages ? "select: a list with room for 0 pages holds nothing; use pages(16)"
                                  : "select: a list with room for 0 keys holds nothing; use keys(2048)");
}

// Reads "128", "64/128" or "64/128/8".
Result<void> parse_blocks(const Word& word, BlockSizes& blocks) {
  const std::size_t slash = word.value.find('/');
  const std::size_t second = slash == word.value.npos ? slash : word.value.find('/', slash + 1);
  Word sizes = word;
  sizes.value = word.value.substr(0, second);
  FLASHJIT_TRY(parse_pair(sizes, blocks.q, blocks.k));
  if (blocks.q == 0) return invalid("blocks: a block of 0 queries holds nothing; use blocks=128");
  if (second == word.value.npos) return {};
  FLASHJIT_ASSIGN(heads, parse_int(word, word.value.substr(second + 1)));
  blocks.heads = heads;
  return heads != 0 ? Result<void>() : invalid("blocks: lists for 0 heads; use 1, whose lists count for all");
}

// Reads "half(64)" or "interleaved(128)".
Result<void> parse_rope(const Word& word, AttentionSpec& spec) {
  const std::size_t open = word.value.find('(');
  Word kind = word;
  kind.value = word.value.substr(0, open);
  constexpr std::array<std::string_view, 2> kNames = {Words<Rope>::values[1], Words<Rope>::values[2]};
  FLASHJIT_TRY(parse_name(kind, kNames, spec.rope));
  spec.rope = static_cast<Rope>(static_cast<int>(spec.rope) + 1);  // `none` is no word of a spec.
  if (open == word.value.npos || !word.value.ends_with(')')) {
    return invalid(fmt::format("rope: {} needs the number of columns that rotate, as in rope={}(64)",
                               quoted(word.value), kind.value));
  }
  FLASHJIT_ASSIGN(dims, parse_int(word, word.value.substr(open + 1, word.value.size() - open - 2)));
  spec.rope_dims = dims;
  return {};
}

std::string_view trim(std::string_view text) {
  while (!text.empty() && blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && blank(text.back())) text.remove_suffix(1);
  return text;
}

// Returns the error about a value without quotes that ends at a blank, so that the rest was not taken.
Error cut_off(const Word& word) {
  return invalid(fmt::format(
      "{0}: the value ends at the blank; one with blanks in it stands in double quotes, as in {0}=\"...\"", word.key));
}

// Reads "slope: fp32[1], cap: fp32": name, type, and the rank in brackets unless it is a scalar.
Result<void> parse_params(const Word& word, std::vector<Param>& params) {
  std::string_view rest = word.value;
  if (!word.in_quotes && (rest.ends_with(':') || rest.ends_with(','))) return cut_off(word);
  while (true) {
    const std::size_t comma = rest.find(',');
    const std::string_view item = trim(rest.substr(0, comma));
    const std::size_t colon = item.find(':');
    if (colon == item.npos) {
      return invalid(
          fmt::format("params: {} is not name: type; for example params=\"slope: fp32[1], cap: fp32\"", quoted(item)));
    }
    Param param;
    param.name = trim(item.substr(0, colon));
    std::string_view type = trim(item.substr(colon + 1));
    if (const std::size_t open = type.find('['); open != type.npos) {
      const auto rank =
          type.ends_with(']') ? parse_integer(trim(type.substr(open + 1, type.size() - open - 2))) : std::nullopt;
      if (!rank || *rank < 1 || *rank > kMaxParamRank) {
        return invalid(
            fmt::format("params: {} must end with its number of dimensions in brackets, [1] to [{}]; a scalar has none",
                        quoted(item), kMaxParamRank));
      }
      param.rank = static_cast<int>(*rank);
      type = trim(type.substr(0, open));
    }
    const auto dtype = parse_dtype(type);
    if (!dtype) return invalid(fmt::format("params: {}: {}", quoted(param.name), no_dtype(type, kParamDtypeNames)));
    param.dtype = *dtype;
    params.push_back(std::move(param));
    if (comma == rest.npos) return {};
    rest.remove_prefix(comma + 1);
  }
}

Result<void> parse_bound(const Word& word, SizeBound& bound) {
  const auto value = parse_integer(word.value);
  if (!value || *value < 1 || *value > SizeBound::kLargest) {
    return bad_value(word, fmt::format("a size from 1 to {}", SizeBound::kLargest));
  }
  bound.max = *value;
  bound.min = word.sign == "=" ? *value : 0;
  return {};
}

// Reads "slope, sink".
Result<void> parse_names(const Word& word, std::vector<std::string>& names) {
  for (std::string_view rest = word.value;;) {
    const std::size_t comma = rest.find(',');
    const std::string_view name = trim(rest.substr(0, comma));
    if (name.empty())
      return invalid(fmt::format("{}: a name is missing; write {}=\"slope, sink\"", word.key, word.key));
    names.emplace_back(name);
    if (comma == rest.npos) return {};
    rest.remove_prefix(comma + 1);
  }
}

// Returns the text as it was written, but on one line.
std::string one_line(std::string_view text) {
  std::string line(trim(text));
  for (char& c : line) {
    if (blank(c)) c = ' ';
  }
  return line;
}

Result<void> parse_text(const Word& word, std::string& field) {
  field = one_line(word.value);
  if (field.empty()) return invalid(fmt::format("{}: the text is empty; leave the field out", word.key));
  return {};
}

// ---- fields ----

Result<void> parse_cache(const Word& word, AttentionSpec& spec) {
  if (parse_format(word, spec)) {
    if (!quantizes(spec)) return {};
    return invalid(fmt::format("kv: {0} is a cache that fwd reads; quantize writes it with out={0}", word.value));
  }
  // A dtype of 16 bits is offered only if it is the spec's own.
  std::vector<std::string_view> shown = {name(spec.dtype)};
  shown.insert(shown.end(), kCacheNames.begin() + 3, kCacheNames.end());
  FLASHJIT_ASSIGN(dtype, read_dtype(word.key, word.value, kCacheNames, shown));
  spec.kv_dtype = dtype;
  return {};
}

Result<void> parse_field(const Word& word, AttentionSpec& spec) {
  const std::string_view key = word.key;
  if (key == "kv") return parse_cache(word, spec);
  if (key == "compute") {
    FLASHJIT_ASSIGN(dtype, read_dtype(key, word.value, kNarrowDtypeNames, kNarrowDtypeNames));
    spec.compute = dtype;
    return {};
  }
  if (key == "out") return parse_out(word, spec);
  if (key == "d") return parse_pair(word, spec.d_qk, spec.d_v);
  if (key == "heads") return parse_pair(word, spec.heads_q, spec.heads_kv);
  if (key == "layout") return parse_layout(word, spec);
  if (key == "blocks") return parse_blocks(word, spec.blocks);
  if (key == "select") return parse_select(word, spec);
  if (key == "mask") return parse_text(word, spec.mask_text);
  if (key == "score") return parse_text(word, spec.score_text);
  if (key == "params") return parse_params(word, spec.declared);
  if (key == "grads") return parse_names(word, spec.grads);
  if (key == "align") return parse_name(word, kAlignmentNames, spec.alignment);
  if (key == "lse") return parse_name(word, Words<Lse>::values, spec.lse);
  if (key == "numerics") return parse_name(word, kNumericsNames, spec.numerics);
  if (key == "b") return parse_bound(word, spec.batch);
  if (key == "q_len") return parse_bound(word, spec.q_len);
  if (key == "k_len") return parse_bound(word, spec.k_len);
  if (key == "scale") {
    FLASHJIT_ASSIGN(scale, parse_number(word));
    spec.scale = scale;
    if (scale == 0) return invalid("scale: 0 makes every score equal; leave it out for 1/sqrt(d)");
    return {};
  }
  if (key == "scales") return parse_scales(word, spec);
  if (key == "rope") return parse_rope(word, spec);
  if (key == "rope_from") {
    FLASHJIT_ASSIGN(from, parse_int(word, word.value));
    spec.rope_from = from;
    return {};
  }
  if (key == "rope_base") {
    FLASHJIT_ASSIGN(base, parse_number(word));
    spec.rope_base = base;
    return base != 0 ? Result<void>() : invalid("rope_base: 0 is no base; leave it out to give tables, cos and sin");
  }
  if (key == "dropout") {
    FLASHJIT_ASSIGN(dropout, parse_number(word));
    spec.dropout = dropout;
    return {};
  }
  if (key == "bytes") {
    FLASHJIT_ASSIGN(bytes, parse_int(word, word.value));
    spec.align_bytes = bytes;
    return {};
  }
  spec.*std::ranges::find(kSpecFlags, key, &SpecFlag::name)->of_spec = true;
  return {};
}

// Checks the shape of the word: the field is known, it has a value where one belongs, and `<=` stands only behind
// sizes.
Result<void> check_word(const Word& word) {
  if (!contains(kFieldNames, word.key)) {
    return invalid(no_field(word.key, kFieldNames));
  }
  const bool flag = contains(kFlagNames, word.key);
  if (flag && !word.sign.empty()) return invalid(fmt::format("{0}: this is a flag; write {0} alone", word.key));
  if (!flag && word.sign.empty()) return invalid(fmt::format("{0}: the value is missing; write {0}=...", word.key));
  if (word.sign == "<=" && !contains(kBoundNames, word.key)) {
    return invalid(fmt::format("{0}: only b, q_len and k_len take `<=`; write {0}=...", word.key));
  }
  return {};
}

Result<void> check_bytes(std::string_view text) {
  if (text.size() > kMaxSpecText) {
    return invalid(fmt::format("the spec has {} bytes, the limit is {}", text.size(), kMaxSpecText));
  }
  for (std::size_t i = 0; i < text.size(); ++i) {
    const unsigned char c = static_cast<unsigned char>(text[i]);
    if (!blank(text[i]) && (c < 0x20 || c >= 0x7f)) {
      return invalid(fmt::format("byte 0x{:02x} at position {} is no printable ASCII character", c, i), caret(text, i));
    }
  }
  return {};
}

Result<Word> parse_word(Cursor& cursor) {
  FLASHJIT_ASSIGN(word, cursor.word());
  if (auto checked = check_word(word); !checked) return cursor.error(checked.error().message, word.position);
  return word;
}

// Returns true if the text, which is no field, is the rest of the expression before it. A text of letters alone is a
// misspelt field instead.
bool continues(const Word& before, std::string_view text) {
  if (before.in_quotes ||
      (before.key != "mask" && before.key != "score" && before.key != "params" && before.key != "grads"))
    return false;
  const std::string_view name = text.substr(0, text.find_first_of(" \t\n\r=<\""));
  return name.empty() || name.find_first_not_of("abcdefghijklmnopqrstuvwxyz_") != name.npos;
}

Result<void> parse_fields(Cursor& cursor, AttentionSpec& spec) {
  std::vector<std::string_view> seen;
  Word before;
  while (true) {
    while (cursor.at < cursor.text.size() && blank(cursor.text[cursor.at])) ++cursor.at;
    if (cursor.at == cursor.text.size()) break;
    const std::size_t start = cursor.at;
    auto parsed_word = parse_word(cursor);
    if (!parsed_word && continues(before, cursor.text.substr(start))) {
      return cursor.error(cut_off(before).message, start);
    }
    FLASHJIT_ASSIGN(word, std::move(parsed_word));
    if (std::find(seen.begin(), seen.end(), word.key) != seen.end()) {
      return cursor.error(fmt::format("{}: the field is given twice", word.key), word.position);
    }
    seen.push_back(word.key);
    if (auto parsed = parse_field(word, spec); !parsed) {
      return cursor.error(parsed.error().message, word.sign.empty() ? word.position : word.value_position);
    }
    before = word;
  }
  const auto is_given = [&](std::string_view key) { return std::ranges::find(seen, key) != seen.end(); };
  if (!is_given("out")) set_out(spec, usual_out(spec));  // The default depends on flags.
  if (!is_given("d")) {
    return cursor.error("d: the head dim is missing; write for example d=128", cursor.text.size());
  }
  return {};
}

}  // namespace

Result<AttentionSpec> parse_spec(std::string_view text) {
  FLASHJIT_TRY(check_bytes(text));
  AttentionSpec spec;
  Cursor cursor{text};
  constexpr std::string_view kExample = "a spec reads like: fwd bf16 d=128 heads=32/8 mask=\"causal\"";
  std::string_view first[2];
  std::size_t position[2];
  for (int i = 0; i < 2; ++i) {
    while (cursor.at < text.size() && blank(text[cursor.at])) ++cursor.at;
    position[i] = cursor.at;
    while (cursor.at < text.size() && !blank(text[cursor.at])) ++cursor.at;
    first[i] = text.substr(position[i], cursor.at - position[i]);
    if (first[i].empty()) {
      return cursor.error(fmt::format("the {} is missing; {}",
                                      i == 0 ? "operation (fwd, bwd, merge, quantize or index)" : "dtype", kExample),
                          position[i]);
    }
  }
  const auto operation = std::find(kOperationNames.begin(), kOperationNames.end(), first[0]);
  if (operation == kOperationNames.end()) {
    return cursor.error(
        fmt::format("operation: {} is none of {}; {}", quoted(first[0]), join(kOperationNames), kExample), position[0]);
  }
  spec.operation = static_cast<Operation>(operation - kOperationNames.begin());
  std::span<const std::string_view> dtypes = kTensorDtypeNames;
  if (!is_forward(spec) && !indexes(spec)) dtypes = kWideDtypeNames;
  auto dtype = read_dtype("dtype", first[1], kTensorDtypeNames, dtypes);
  if (!dtype) return cursor.error(dtype.error().message, position[1]);
  spec.dtype = spec.kv_dtype = *dtype;
  set_out(spec, usual_out(spec));
  FLASHJIT_TRY(parse_fields(cursor, spec));
  FLASHJIT_TRY(validate(spec));
  return spec;
}

}  // namespace flashjit
