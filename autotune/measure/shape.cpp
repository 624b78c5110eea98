#include "autotune/measure/shape.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>
#include <random>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "runtime/tuned/records.h"

namespace flashjit {
namespace {

constexpr std::int64_t kMaxSequences = 1 << 20;

std::int64_t largest(const std::vector<std::int64_t>& lengths) {
  return lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end());
}
std::int64_t sum(const std::vector<std::int64_t>& lengths) {
  return std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
}

Result<std::vector<std::int64_t>> parse_lengths(std::string_view name, std::string_view text) {
  std::vector<std::int64_t> lengths;
  std::string_view rest = text;
  while (true) {
    const std::size_t plus = rest.find('+');
    const std::string_view number = rest.substr(0, plus);
    std::int64_t value = 0;
    const auto [stop, error] = std::from_chars(number.data(), number.data() + number.size(), value);
    if (number.empty() || error != std::errc() || stop != number.data() + number.size() || value < 0 ||
        value > SizeBound::kLargest) {
      return invalid(
          fmt::format("--shape: {}={} is not a size from 0 to {}; write {}=4096, or {}=100+37+0 for packed sequences",
                      name, text.substr(0, 40), SizeBound::kLargest, name, name));
    }
    lengths.push_back(value);
    if (plus == std::string_view::npos) break;
    rest = rest.substr(plus + 1);
  }
  return lengths;
}

// Lists of keys know no sequences. Here sequences tell from which rows the keys of a list are drawn.
bool has_lengths_of_q(const AttentionSpec& spec) {
  return has_own_q_lens(spec) || (selects(spec) && spec.layout == Layout::Packed);
}
bool has_lengths_of_k(const AttentionSpec& spec) {
  return has_own_k_lens(spec) || (selects(spec) && (spec.layout == Layout::Packed || is_paged(spec)));
}

// Draws `count` lengths from a range such as "64..32768".
Result<std::vector<std::int64_t>> draw_key_lengths(std::string_view text, const AttentionSpec& spec,
                                                   std::int64_t count) {
  if (!has_lengths_of_k(spec))
    return invalid(
        "--shape: a range of lengths of k needs layout=packed or k_lens in the spec; dense layouts have one k");
  const std::size_t dots = text.find("..");
  FLASHJIT_ASSIGN(least, parse_lengths("k", text.substr(0, dots)));
  FLASHJIT_ASSIGN(most, parse_lengths("k", text.substr(dots + 2)));
  if (least.size() != 1 || most.size() != 1 || least[0] < 1 || least[0] > most[0])
    return invalid(fmt::format("--shape: k={} is no range; write k=64..32768", text.substr(0, 40)));
  std::mt19937_64 random(1);
  std::vector<std::int64_t> lengths;
  for (std::int64_t i = 0; i < count; ++i) {
    const double at = static_cast<double>(random() >> 11) * 0x1p-53, low = static_cast<double>(least[0]);
    lengths.push_back(static_cast<std::int64_t>(low * std::pow(static_cast<double>(most[0]) / low, at)));
  }
  return lengths;
}

Result<void> within(std::string_view name, const SizeBound& bound, std::int64_t value) {
  if (value >= bound.min && value <= bound.max) return {};
  return invalid(
      fmt::format("--shape: {}={} is outside what the spec allows ({} to {}); change the shape or the spec's bound",
                  name, value, bound.min, bound.max));
}

// Only some layouts have sequences of several lengths.
Result<void> check_lists(const AttentionSpec& spec, std::size_t of_q, std::size_t of_k) {
  if (of_q > 1 && !has_lengths_of_q(spec)) {
    return invalid(!reads_keys(spec)
                       ? "--shape: a list of lengths of q, and this operation knows no sequences; give their sum"
                       : "--shape: a list of lengths of q needs layout=packed in the spec; dense layouts have one q");
  }
  if (of_k > 1 && !has_lengths_of_k(spec)) {
    return invalid(
        "--shape: a list of lengths of k needs layout=packed or k_lens in the spec; dense layouts have one k");
  }
  return {};
}

}  // namespace

std::int64_t ProblemShape::q_tokens() const { return sum(q); }
std::int64_t ProblemShape::k_tokens() const { return sum(k); }
std::int64_t ProblemShape::longest_q() const { return largest(q); }
std::int64_t ProblemShape::longest_k() const { return largest(k); }

Result<ProblemShape> parse_shape(std::string_view text, const AttentionSpec& spec) {
  std::vector<std::int64_t> batch, q, k;
  std::string_view drawn;  // lengths of k that are drawn
  for (std::string_view rest = text; !rest.empty();) {
    const std::string_view item = rest.substr(0, rest.find(','));
    rest = item.size() < rest.size() ? rest.substr(item.size() + 1) : std::string_view();
    const std::string_view name = item.substr(0, item.find('='));
    const bool of_keys = (name == "k" && !quantizes(spec)) || (name == "parts" && merges(spec));
    std::vector<std::int64_t>* into = name == "b" ? &batch : name == "q" ? &q : of_keys ? &k : nullptr;
    if (!into || name.size() == item.size()) {
      return invalid(fmt::format("--shape: '{}' is not one of b=, q={}", item.substr(0, 40),
                                 quantizes(spec) ? "; write b=2,q=4096"
                                 : merges(spec)  ? ", parts=; write b=2,q=4096,parts=2"
                                                 : ", k=; write b=2,q=4096,k=4096"));
    }
    if (!into->empty()) return invalid(fmt::format("--shape: {} is given twice", name));
    const std::string_view value = item.substr(name.size() + 1);
    if (into == &k && value.find("..") != value.npos) {
      drawn = value;
      *into = {1};
      continue;
    }
    FLASHJIT_ASSIGN(lengths, parse_lengths(name, value));
    *into = std::move(lengths);
  }
  if (q.empty() && spec.q_len.pinned()) q = {spec.q_len.min};
  if (k.empty() && spec.k_len.pinned()) k = {spec.k_len.min};
  if (q.empty()) return invalid("--shape: q is missing; write b=2,q=4096,k=4096");
  if (quantizes(spec)) k = {1};  // A quantize has no keys.
  if (k.empty()) k = merges(spec) ? std::vector<std::int64_t>{2} : q;

  ProblemShape shape;
  shape.batch = !batch.empty() ? batch[0] : static_cast<std::int64_t>(std::max(q.size(), k.size()));
  if (batch.size() > 1) return invalid("--shape: b is one number");
  FLASHJIT_TRY(check_lists(spec, q.size(), k.size()));
  if (shape.batch > kMaxSequences) return invalid(fmt::format("--shape: b={} is above {}", shape.batch, kMaxSequences));
  if (!drawn.empty()) {
    FLASHJIT_ASSIGN(lengths, draw_key_lengths(drawn, spec, shape.batch));
    k = std::move(lengths);
  }
  for (auto* lengths : {&q, &k}) {
    if (lengths->size() == 1) lengths->assign(static_cast<std::size_t>(shape.batch), (*lengths)[0]);
    if (lengths->size() != static_cast<std::size_t>(shape.batch)) {
      return invalid(fmt::format("--shape: {} lists {} lengths for {} sequences; give one for each",
                                 lengths == &q ? "q" : "k", lengths->size(), shape.batch));
    }
  }
  shape.q = std::move(q);
  shape.k = std::move(k);
  FLASHJIT_TRY(within("b", spec.batch, shape.batch));
  if (shape.batch > 0) FLASHJIT_TRY(within("q", spec.q_len, shape.longest_q()));
  if (shape.batch > 0) FLASHJIT_TRY(within("k", spec.k_len, shape.longest_k()));
  return shape;
}

Shape shape_of(const ProblemShape& shape) {
  const auto sequences = static_cast<std::int64_t>(shape.q.size());
  const auto mean = [&](std::int64_t tokens) { return sequences == 0 ? 0 : (tokens + sequences - 1) / sequences; };
  return {shape.batch, mean(shape.q_tokens()), mean(shape.k_tokens())};
}

std::string hint_of(const ProblemShape& shape) {
  const Shape one = shape_of(shape);
  return std::min({one.b, one.q_len, one.k_len}) < 1 ? std::string() : print(one);
}

std::string print(const ProblemShape& shape) {
  const auto one = [](const std::vector<std::int64_t>& lengths) {
    const bool same = std::all_of(lengths.begin(), lengths.end(), [&](std::int64_t l) { return l == lengths[0]; });
    if (same) return fmt::format("{}", lengths.empty() ? 0 : lengths[0]);
    return fmt::format("{}", fmt::join(lengths, "+"));
  };
  return fmt::format("b={},q={},k={}", shape.batch, one(shape.q), one(shape.k));
}

}  // namespace flashjit
