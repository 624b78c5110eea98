// Trained models have logits and elements that independent random numbers lack: sinks, outliers, wide ones.
#pragma once

#include <string>
#include <string_view>

#include "autotune/measure/shape.h"
#include "compiler/result.h"
#include "compiler/spec/spec.h"

namespace flashjit {

class ProblemData;

struct LogitKind {
  enum class Name { Normal, Wide, Equal, Sink, Key, Rising, Falling, Combs, Outliers };
  Name name = Name::Normal;
  double number = 0;
};

//   normal       as Q and K are drawn: a standard deviation of 1
//   wide(N)      a standard deviation of N
//   equal        all logits of a query are the same
//   sink(N)      the first key of a sequence is N above the rest
//   key(N)       one key is, by chance; another one for each batch index and KV head
//   rising(N)    along the keys, by N in all; falling(N)
//   combs(N)     every 64th key is N above the rest
//   outliers     to one of 1000 elements of Q, K and V, by chance, 10 times a normal number is added
Result<LogitKind> parse_logit_kind(std::string_view text);
inline constexpr std::string_view kLogitKinds =
    "normal, wide(N), equal, sink(N), key(N), rising(N), falling(N), combs(N), outliers";

// Changes a Q and K of normal numbers so that their logits, scaled by the spec, are of this kind. Outliers change V,
// too.
void shape_logits(const LogitKind& kind, const AttentionSpec& spec, const ProblemShape& shape, std::uint64_t seed,
                  ProblemData& data);

}  // namespace flashjit
