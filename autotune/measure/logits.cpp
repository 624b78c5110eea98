#include "autotune/measure/logits.h"

#include <fmt/format.h>

#include <cmath>
#include <functional>
#include <random>

#include "autotune/measure/problem.h"
#include "compiler/spec/half.h"

namespace flashjit {
namespace {

using Name = LogitKind::Name;

constexpr struct {
  std::string_view text;
  Name name;
  bool has_number;
} kKinds[] = {{"normal", Name::Normal, false},  {"wide", Name::Wide, true},  {"equal", Name::Equal, false},
              {"sink", Name::Sink, true},       {"key", Name::Key, true},    {"rising", Name::Rising, true},
              {"falling", Name::Falling, true}, {"combs", Name::Combs, true}};

constexpr double kMostNumber = 1000;  // beyond, logits are not those of models, and fp16 has no such elements
constexpr std::int64_t kComb = 64;

// The rows of one (batch index, head) in a tensor of heads of d elements, contiguous in the spec's layout.
class Rows {
 public:
  Rows(NamedTensor& tensor, const AttentionSpec& spec, int heads, const std::vector<std::int64_t>& lengths)
      : tensor_(tensor), layout_(spec.layout), heads_(heads), lengths_(lengths), d_(tensor.shape.back()) {
    if (layout_ != Layout::Packed) room_ = tensor.shape[layout_ == Layout::Bhsd ? 2 : 1];
  }

  // Each sequence of each head; `first` is the element where its row of token 0 begins, and then every `step`.
  void each(const std::function<void(std::int64_t first, std::int64_t step, std::int64_t tokens)>& visit) const {
    std::int64_t start = 0;  // tokens of the sequences before
    for (const std::int64_t tokens : lengths_) {
      for (std::int64_t h = 0; h < heads_; ++h) {
        if (layout_ == Layout::Bhsd) {
          visit((start * heads_ + h * room_) * d_, d_, tokens);
        } else {
          visit((start * heads_ + h) * d_, heads_ * d_, tokens);
        }
      }
      start += layout_ == Layout::Packed ? tokens : room_;
    }
  }
  float get(std::int64_t i) const { return reference::load_float(tensor_.dtype, tensor_.bytes.data(), i); }
  void set(std::int64_t i, double value) {
    reference::store_float(tensor_.dtype, tensor_.bytes.data(), i, static_cast<float>(value));
  }
  std::int64_t width() const { return d_; }

 private:
  NamedTensor& tensor_;
  const Layout layout_;
  const std::int64_t heads_;
  const std::vector<std::int64_t>& lengths_;
  const std::int64_t d_;
  std::int64_t room_ = 0;  // dense: tokens that a sequence has room for
};

void multiply(Rows& rows, double factor) {
  rows.each([&](std::int64_t first, std::int64_t step, std::int64_t tokens) {
    for (std::int64_t t = 0; t < tokens; ++t) {
      for (std::int64_t i = first + t * step; i < first + t * step + rows.width(); ++i)
        rows.set(i, factor * rows.get(i));
    }
  });
}

void repeat_first(Rows& rows) {
  rows.each([&](std::int64_t first, std::int64_t step, std::int64_t tokens) {
    for (std::int64_t t = 1; t < tokens; ++t) {
      for (std::int64_t i = 0; i < rows.width(); ++i) rows.set(first + t * step + i, rows.get(first + i));
    }
  });
}

// How far above the rest key `t` of `tokens` is; `chosen` is the one that stands out by chance.
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
    case Name::Equal: break;
  }
  return 0;
}

// The first element of a head is the same in all queries, so that of a key moves all logits of the key alike.
void raise_keys(const LogitKind& kind, double scale, std::uint64_t seed, Rows& q, Rows& k) {
  constexpr double kOfQueries = 8;
  q.each([&](std::int64_t first, std::int64_t step, std::int64_t tokens) {
    for (std::int64_t t = 0; t < tokens; ++t) q.set(first + t * step, kOfQueries);
  });
  std::mt19937_64 random(seed);
  k.each([&](std::int64_t first, std::int64_t step, std::int64_t tokens) {
    const auto chosen =
        static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(std::max<std::int64_t>(tokens, 1)));
    for (std::int64_t t = 0; t < tokens; ++t)
      k.set(first + t * step, height(kind, t, tokens, chosen) / (scale * kOfQueries));
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
                  NamedTensor& q, NamedTensor& k) {
  Rows queries(q, spec, spec.heads_q, shape.q), keys(k, spec, spec.heads_kv, shape.k);
  switch (kind.name) {
    case Name::Normal: return;
    case Name::Wide: return multiply(queries, kind.number);
    case Name::Equal: return repeat_first(keys);
    default: return raise_keys(kind, spec.effective_scale(), seed, queries, keys);
  }
}

}  // namespace flashjit
