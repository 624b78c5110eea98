// Several ways share a sequence among ranks. Here it is counted what each computes, sends and waits for.
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

// A kernel's predicted time: what it takes to begin and to end, and the rest, which grows with the scores that are seen.
struct StepTime {
  double fixed_us = 0, work_us = 0;
  double at(double seen) const { return seen > 0 ? fixed_us + seen * work_us : 0; }
};

enum class Direction { Forward, Backward };

// Asks for the time of a kernel that has one of `head_shares` of the heads. Masked: with the mask of the spec, else every
// score is seen. Beside an exchange it has fewer SMs.
struct StepQuestion {
  Direction direction = Direction::Forward;
  int head_shares = 1;
  Shape shape;
  bool masked = false, beside = false;
};
using StepTimes = std::function<Result<StepTime>(const StepQuestion&)>;

struct RankProblem {
  AttentionSpec spec;
  Shape whole;  // of all ranks together
  Network network;
  double memory_tbs = 0;  // of a rank's own memory; 0: passes over it are not counted
};

// The bytes of a token that travel: of Q and O all heads, of K and V those of one of `head_shares` of the heads.
struct TokenBytes {
  explicit TokenBytes(const AttentionSpec& spec, int head_shares = 1);
  double q = 0, kv = 0, o = 0;
  double dkv = 0;  // gradients of K and V are added up in fp32
};

struct Way {
  std::string name;     // gather, ring, ulysses, mesh
  int heads_over = 1;   // so many ranks share the heads of a run of tokens ...
  int ring_of = 1;      // ... and so many of such groups share the tokens
  std::string why_not;  // not empty: the way is refused
  std::optional<TokenOrder> order;
  Course forward;
  std::optional<Course> backward;  // none: the spec has no gradients
  double most_kv_bytes = 0;        // of K and V that a rank holds at a time
};

// Why `head_shares` ranks cannot share the heads; empty: they can.
std::string why_not_heads(const AttentionSpec& spec, int head_shares);

// Every way, the meshes too, with the order of tokens that is faster. Error: the lengths cannot be shared, or a kernel cannot
// be predicted; without gradients `backward` is none.
Result<std::vector<Way>> ways_of(const RankProblem& problem, const StepTimes& times, bool gradients);

}  // namespace flashjit
