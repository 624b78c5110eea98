#include "autotune/measure/logits.h"

#include <fmt/format.h>

#include <cmath>
#include <functional>
#include <numeric>
#include <random>

#include "autotune/measure/cache_data.h"
#include "autotune/measure/problem.h"
#include "compiler/spec/half.h"

namespace flashjit {
namespace {

using Name = LogitKind::Name;

constexpr struct {
  std::string_view text;
  Name name;
  bool has_number;
} kKinds[] = {{"normal", Name::Normal, false},  {"wide", Name::Wide, true},   {"equal", Name::Equal, false},
              {"sink", Name::Sink, true},       {"key", Name::Key, true},     {"rising", Name::Rising, true},
              {"falling", Name::Falling, true}, {"combs", Name::Combs, true}, {"outliers", Name::Outliers, false}};

// Larger numbers are not the logits of models, and fp16 has no such elements.
constexpr double kMostNumber = 1000;
constexpr std::int64_t kComb = 64;

// The rows of one head of a sequence lie there: `row` gives the first element of a token's row.
struct Tokens {
  std::int64_t count;
  std::function<std::int64_t(std::int64_t token)> row;
};

// Visits the rows of Q or K by (sequence, head), contiguous in the spec's layout.
class Rows {
 public:
  Rows(NamedTensor& tensor, int heads, std::function<Tokens(std::int64_t b, std::int64_t h)> tokens, std::int64_t batch)
      : tensor_(tensor), heads_(heads), tokens_(std::move(tokens)), batch_(batch) {}

  void each(const std::function<void(const Tokens& tokens)>& visit) const {
    for (std::int64_t b = 0; b < batch_; ++b) {
      for (std::int64_t h = 0; h < heads_; ++h) visit(tokens_(b, h));
    }
  }
  float get(std::int64_t i) const { return load_float(tensor_.dtype, tensor_.bytes.data(), i); }
  void set(std::int64_t i, double value) {
    store_float(tensor_.dtype, tensor_.bytes.data(), i, static_cast<float>(value));
  }
  std::int64_t width() const { return tensor_.shape.back(); }

 private:
  NamedTensor& tensor_;
  const std::int64_t heads_;
  const std::function<Tokens(std::int64_t b, std::int64_t h)> tokens_;
  const std::int64_t batch_;
};

void multiply(Rows& rows, double factor) {
  rows.each([&](const Tokens& tokens) {
    for (std::int64_t t = 0; t < tokens.count; ++t) {
      const std::int64_t row = tokens.row(t);
      for (std::int64_t i = row; i < row + rows.width(); ++i) rows.set(i, factor * rows.get(i));
    }
  });
}

void repeat_first(Rows& rows) {
  rows.each([&](const Tokens& tokens) {
    for (std::int64_t t = 1; t < tokens.count; ++t) {
      for (std::int64_t i = 0; i < rows.width(); ++i) rows.set(tokens.row(t) + i, rows.get(tokens.row(0) + i));
    }
  });
}

// This is the mixture that papers on attention in 8 bits measure errors on: N(0, 1) + N(0, 100) Bernoulli(0.001).
void add_outliers(NamedTensor& tensor, std::uint64_t seed) {
  constexpr std::uint64_t kOneOf = 1000;
  constexpr double kDeviation = 10;
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal(0, kDeviation);
  const std::int64_t elements = static_cast<std::int64_t>(tensor.bytes.size()) / size_of(tensor.dtype);
  for (std::int64_t i = 0; i < elements; ++i) {
    if (random() % kOneOf != 0) continue;
    const double value = load_float(tensor.dtype, tensor.bytes.data(), i) + normal(random);
    store_float(tensor.dtype, tensor.bytes.data(), i, static_cast<float>(value));
  }
}

// Returns how far key `t` of `tokens` is above the rest. `chosen` is the key that stands out by chance.
double height(const LogitKind& kind, std::int64_t t, std::int64_t tokens, std::int64_t chosen) {
  const double along = static_cast<double>(t) / static_cast<double>(tokens);
  switch (kind.name) {
    case Name::Sink: return t == 0 ? kind.number : 0;
    case Name::Key: return t == chosen ? kind.number : 0;
    case Name::Rising: return kind.number * along;
    case Name::Falling: return kind.number * (1 - along);
    case Name::Combs: return t % kComb == 0 ? kind.number : 0;
    case Name::Normal:
    case Name::Wide:
    case Name::Equal:
    case Name::Outliers: break;
  }
  return 0;
}

// The first element of a head is the same in all queries, so that of a key moves all logits of the key alike.
void raise_keys(const LogitKind& kind, double scale, std::uint64_t seed, Rows& q, Rows& k) {
  constexpr double kOfQueries = 8;
  q.each([&](const Tokens& tokens) {
    for (std::int64_t t = 0; t < tokens.count; ++t) q.set(tokens.row(t), kOfQueries);
  });
  std::mt19937_64 random(seed);
  k.each([&](const Tokens& tokens) {
    const auto chosen =
        static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(std::max<std::int64_t>(tokens.count, 1)));
    for (std::int64_t t = 0; t < tokens.count; ++t)
      k.set(tokens.row(t), height(kind, t, tokens.count, chosen) / (scale * kOfQueries));
  });
}

}  // namespace

Result<LogitKind> parse_logit_kind(std::string_view text) {
  const std::size_t open = text.find('(');
  for (const auto& kind : kKinds) {
    if (text.substr(0, open) != kind.text || (open != text.npos) != kind.has_number) continue;
    if (!kind.has_number) return LogitKind{kind.name};
    const bool closed = text.ends_with(')');
    const std::string number(text.substr(open + 1, text.size() - open - 1 - closed));
    char* end = nullptr;
    const double value = std::strtod(number.c_str(), &end);
    if (!closed || number.empty() || *end != '\0' || !(value >= 0 && value <= kMostNumber))
      return invalid(fmt::format("--data: '{}' needs a number from 0 to {:g} in parentheses", text, kMostNumber));
    return LogitKind{kind.name, value};
  }
  return invalid(fmt::format("--data: there is no '{}'; there are {}", text, kLogitKinds));
}

void shape_logits(const LogitKind& kind, const AttentionSpec& spec, const ProblemShape& shape, std::uint64_t seed,
                  ProblemData& data) {
  if (kind.name == Name::Outliers) {
    for (const char* name : {"q", "k", "v"}) {
      if (NamedTensor* tensor = data.find(name)) add_outliers(*tensor, seed + static_cast<std::uint64_t>(name[0]));
    }
    return;
  }
  NamedTensor &q = *data.find("q"), &k = *data.find("k");
  const NamedTensor *k_lens = data.find("k_lens"), *block_table = data.find("block_table");
  const RowLocator of_queries(spec, q, nullptr, nullptr), of_keys(spec, k, k_lens, block_table);
  const auto rows = [&](NamedTensor& tensor, int heads, const std::vector<std::int64_t>& lengths, bool packed,
                        const RowLocator& located) {
    return Rows(
        tensor, heads,
        [&lengths, &located, heads, packed, d = tensor.shape.back()](std::int64_t b, std::int64_t h) {
          if (!packed)
            return Tokens{located.length(b), [&located, b, h](std::int64_t t) { return located.row(b, h, t); }};
          const std::int64_t start = std::accumulate(lengths.begin(), lengths.begin() + b, std::int64_t{0});
          return Tokens{lengths[static_cast<std::size_t>(b)],
                        [=](std::int64_t t) { return ((start + t) * heads + h) * d; }};
        },
        shape.batch);
  };
  Rows queries = rows(q, spec.heads_q, shape.q, spec.layout == Layout::Packed, of_queries);
  Rows keys = rows(k, spec.heads_kv, shape.k, k.shape.size() == 3, of_keys);
  switch (kind.name) {
    case Name::Normal: return;
    case Name::Wide: return multiply(queries, kind.number);
    case Name::Equal: return repeat_first(keys);
    default: return raise_keys(kind, spec.effective_scale(), seed, queries, keys);
  }
}

}  // namespace flashjit
