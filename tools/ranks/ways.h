// There are several ways to share a sequence among ranks. This counts what each computes, sends and waits for.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "compiler/choice/cost_model.h"
#include "compiler/spec/spec.h"
#include "tools/ranks/course.h"
#include "tools/ranks/network.h"
#include "tools/ranks/sights.h"

namespace flashjit {

// A kernel's predicted time is a fixed part, to begin and to end, and the rest, which grows with the visible scores.
struct StepTime {
  double fixed_us = 0, work_us = 0;
  double at(double seen) const { return seen > 0 ? fixed_us + seen * work_us : 0; }
};

enum class Direction { Forward, Backward };

// Asks for the time of a kernel that has one of `head_shares` of the heads. `masked` applies the mask of the spec;
// otherwise every score is seen. `beside` means that it runs beside an exchange, on fewer SMs.
struct StepQuestion {
  Direction direction = Direction::Forward;
  int head_shares = 1;
  Shape shape;
  bool masked = false, beside = false;
};
using StepTimes = std::function<Result<StepTime>(const StepQuestion&)>;

struct RankProblem {
  AttentionSpec spec;
  Shape whole;  // all ranks together
  Network network;
  double memory_tbs = 0;  // speed of a rank's own memory; if it is 0, passes over it are not counted
};

// These bytes of a token travel: all heads of Q and O, and one of `head_shares` of the heads of K and V.
struct TokenBytes {
  explicit TokenBytes(const AttentionSpec& spec, int head_shares = 1);
  double q = 0, kv = 0, o = 0;
  double dkv = 0;  // Gradients of K and V are added up in fp32.
};

struct Way {
  std::string name;     // gather, ring, ulysses, mesh
  int heads_over = 1;   // number of ranks that share the heads of a run of tokens
  int ring_of = 1;      // number of such groups that share the tokens
  std::string why_not;  // If it is not empty, the way is refused.
  std::optional<TokenOrder> order;
  Course forward;
  std::optional<Course> backward;  // It is absent if the spec has no gradients.
  double most_kv_bytes = 0;        // the most bytes of K and V that a rank holds at a time
};

// Returns why `head_shares` ranks cannot share the heads, or an empty text if they can.
std::string why_not_heads(const AttentionSpec& spec, int head_shares);

// Returns every way, also the meshes, with its faster order of tokens. It is an error if the lengths cannot be shared,
// or if a kernel cannot be predicted. Without gradients `backward` is absent.
Result<std::vector<Way>> ways_of(const RankProblem& problem, const StepTimes& times, bool gradients);

}  // namespace flashjit
