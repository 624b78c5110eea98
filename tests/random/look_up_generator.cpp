#include "tests/random/look_up_generator.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "fmt/format.h"
#include "compiler/spec/half.h"

namespace flashjit::testing_random {
namespace {

using reference::Dual;
using reference::Position;

constexpr std::int64_t kKinds = 6;
constexpr std::size_t kMostParams = 3;  // with more of them there may be no room for what other fields of a spec bring
constexpr double kShare = 0.12;

struct Kind {
  std::string text;
  std::function<std::int64_t(const Position&)> value;
};

template <class F>
const DrawnParam& add(std::vector<DrawnParam>& params, std::string name, Dtype dtype, std::vector<std::int64_t> shape,
                      F fill) {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) count *= size;
  auto values = std::make_shared<std::vector<double>>(count);
  for (double& value : *values)
    value = is_float(dtype) ? round_to(dtype, static_cast<float>(fill())) : static_cast<double>(fill());
  params.push_back({std::move(name), dtype, std::move(shape), std::move(values), true});
  return params.back();
}

// A table of the kind of each key. Where the text cuts what it holds, that may be anything.
Kind draw_kind(Random& random, const ExpressionContext& context, std::vector<DrawnParam>& params, const char* name) {
  const Dtype dtype = random.pick({Dtype::I32, Dtype::I64, Dtype::U8});
  const std::int64_t keys = std::max<std::int64_t>(1, context.max_k_len);
  const bool cut = random.chance(0.5);
  const std::int64_t least = cut && dtype != Dtype::U8 ? -9 : 0, most = cut ? 20 : kKinds - 1;
  const DrawnParam& table =
      add(params, name, dtype, {context.batch, keys}, [&] { return random.integer(least, most); });
  return {cut ? fmt::format("min(max({}[b, k], 0), {})", name, kKinds - 1) : fmt::format("{}[b, k]", name),
          [=, values = table.values](const Position& at) {
            return std::clamp<std::int64_t>(static_cast<std::int64_t>((*values)[at.b * keys + at.k]), 0, kKinds - 1);
          }};
}

// `random` is a copy: the caller's stream stays where it is.
void add_look_ups(Random random, const ExpressionContext& context, std::vector<DrawnParam>& params,
                  DrawnExpression& mask, DrawnExpression& score) {
  Random own(random.bits() ^ 0x6c6f6f6b20757073u);
  if (params.size() <= kMostParams && own.chance(kShare)) {
    const Kind kind = draw_kind(own, context, params, "kind_of");
    const DrawnParam& starts =
        add(params, "starts", Dtype::I32, {kKinds}, [&] { return own.integer(-5, context.max_k_len / 2); });
    const std::string all = mask.text.empty() ? "" : fmt::format("({}) & ", mask.text);
    mask.text = fmt::format("{}k >= starts[{}]", all, kind.text);
    mask.semantics.visible = [old = mask.semantics.visible, kind, values = starts.values](const Position& at) {
      return (!old || old(at)) && at.k >= static_cast<std::int64_t>((*values)[kind.value(at)]);
    };
  }
  if (params.size() <= kMostParams && own.chance(kShare)) {
    const Kind kind = draw_kind(own, context, params, "type_of");
    const DrawnParam& bonus = add(params, "bonus", own.pick({Dtype::F32, Dtype::BF16, Dtype::F16}),
                                  {context.heads_q, kKinds}, [&] { return own.normal(); });
    score.text = fmt::format("{}s + bonus[h, {}]", score.text.empty() ? "" : score.text + "; ", kind.text);
    score.semantics.score = [old = score.semantics.score, kind, values = bonus.values](const Position& at, Dual s) {
      const Dual x = old ? old(at, s) : s;
      const double more = (*values)[at.h * kKinds + kind.value(at)];
      return Dual(x.f + static_cast<float>(more), x.d + more);
    };
  }
}

void join(Random& own, DrawnExpression& mask, std::string text, std::function<bool(const Position&)> visible) {
  const bool both = mask.text.empty() || own.chance(0.7);
  if (!mask.text.empty()) text = fmt::format("({}) {} ({})", mask.text, both ? "&" : "|", text);
  mask.text = std::move(text);
  mask.semantics.visible = [old = mask.semantics.visible, visible = std::move(visible), both](const Position& at) {
    const bool seen = !old || old(at);
    return both ? seen && visible(at) : seen || visible(at);
  };
}

// Blocks of queries and keys, and keys of each query from one on, up to one: tiles of these are left out or need no mask.
void add_blocks_and_bounds(Random random, const ExpressionContext& context, std::vector<DrawnParam>& params,
                           DrawnExpression& mask) {
  Random own(random.bits() ^ 0x626c6f636b73u);
  const std::int64_t queries = std::max<std::int64_t>(1, context.max_q_len);
  if (params.size() <= kMostParams && own.chance(kShare)) {
    const std::int64_t of_q = own.pick({64, 128, 32, 100}), of_k = own.pick({64, 128, 32, 100});
    const std::int64_t rows = queries / of_q + 1, columns = context.max_k_len / of_k + 1;
    const bool by_head = own.chance(0.5);
    const double share = own.pick({0.1, 0.5, 0.9});
    const DrawnParam& keep = add(params, "keep", Dtype::U8, {by_head ? context.heads_q : 1, rows, columns},
                                 [&] { return own.chance(share) ? own.integer(1, 3) : 0; });
    join(own, mask, fmt::format("keep[{}, q / {}, k / {}] != 0", by_head ? "h" : "0", of_q, of_k),
         [=, values = keep.values](const Position& at) {
           return (*values)[((by_head ? at.h : 0) * rows + at.q / of_q) * columns + at.k / of_k] != 0;
         });
  }
  if (params.size() <= kMostParams && own.chance(kShare)) {
    const bool grows = own.chance(0.5);  // or leaps from query to query
    std::int64_t row = 0;
    const DrawnParam& ends = add(params, "ends", Dtype::I32, {context.batch, queries}, [&] {
      const std::int64_t at = row++ % queries * context.max_k_len / queries;
      return grows ? at + own.integer(-3, 20) : own.integer(-5, context.max_k_len + 5);
    });
    const std::int64_t width = own.pick({30, 300, 100000});
    join(own, mask, fmt::format("k < ends[b, q] & k >= ends[b, q] - {}", width),
         [=, values = ends.values](const Position& at) {
           const auto end = static_cast<std::int64_t>((*values)[at.b * queries + at.q]);
           return at.k < end && at.k >= end - width;
         });
  }
}

}  // namespace

DrawnExpressions draw_mask_and_score(Random& random, const ExpressionContext& context,
                                     std::vector<DrawnParam>& params) {
  DrawnExpressions drawn;
  drawn.mask = draw_mask(random, context, params);
  drawn.score = draw_score(random, context, params);
  add_look_ups(random, context, params, drawn.mask, drawn.score);
  add_blocks_and_bounds(random, context, params, drawn.mask);
  return drawn;
}

}  // namespace flashjit::testing_random
