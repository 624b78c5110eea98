#include "tests/random/pairs/factors.h"

#include <algorithm>
#include <map>
#include <stdexcept>

#include "compiler/spec/flags.h"
#include "fmt/format.h"

namespace flashjit::testing_random {
namespace {

constexpr std::pair<Operation, std::string_view> kOperations[] = {{Operation::Forward, "fwd"},
                                                                  {Operation::Backward, "bwd"},
                                                                  {Operation::Merge, "merge"},
                                                                  {Operation::Quantize, "quantize"},
                                                                  {Operation::Index, "index"}};

std::string_view word_of(Operation operation) {
  return std::ranges::find(kOperations, operation, &std::pair<Operation, std::string_view>::first)->second;
}

bool computes(const FamilyRow& family, Operation operation) {
  AttentionSpec spec;
  spec.operation = operation;
  return family.computes(spec);
}

// clang-format off
// Layouts and bounds of the queries stand in one factor: which sequence a row belongs to, and how many rows a tile has, is
// decided by both together, and each pair of them is to meet every other choice.
std::vector<std::string> sequences(bool reads_keys) {
  const std::vector<std::string_view> layouts =
      reads_keys ? std::vector<std::string_view>{"", "layout=bhsd", "layout=packed", "layout=paged(64)", "layout=paged(24)",
                                              "layout=packed/paged(64)", "layout=packed/paged(16)"}
              : std::vector<std::string_view>{"", "layout=bhsd", "layout=packed"};
  const std::vector<std::string_view> bounds =
      reads_keys ? std::vector<std::string_view>{"", "q_len=1", "q_len<=1", "q_len<=4"} : std::vector<std::string_view>{""};
  std::vector<std::string> values;
  for (const std::string_view bound : bounds) {
    for (const std::string_view layout : layouts)
      values.push_back(fmt::format("{}{}{}", layout, layout.empty() || bound.empty() ? "" : " ", bound));
  }
  return values;
}

const std::vector<Factor> kOfAttention = {
    {"kv", {"", "kv=e4m3", "kv=e5m2", "kv=int8"}},
    {"compute", {"", "compute=e4m3", "compute=e5m2"}},
    {"out", {"", "out=fp32"}},
    {"select", {"", "select=keys(70)", "select=keys(16)", "select=pages(3)"}},
    {"blocks", {"", "blocks=64", "blocks=64/128/1"}},
    {"mask", {"", "mask=\"causal\"", "mask=\"window(40, 0)\"", "mask=\"chunk(48)\"", "mask=\"prefix(20)\"",
              "mask=\"k % 3 != 1\"", "mask=\"qpos - k <= 40 * h & qpos >= k\"", "mask=\"document(doc)\""}},
    {"score", {"", "score=\"softcap(20)\"", "score=\"alibi\"", "score=\"bias(extra, bf16)\"", "score=\"bias(extra, fp32)\"",
               "score=\"s * slope[h] + c\" params=\"slope: fp32[1], c: fp32\""}},
    {"scale", {"", "scale=0.3"}},
    {"align", {"", "align=top_left"}},
    {"dropout", {"", "dropout=0.25"}},
    {"k_len", {"", "k_len<=700"}},
    {"numerics", {"", "numerics=deterministic", "numerics=batch_invariant"}},
};
const std::vector<Factor> kOfIndex = {
    {"select", {"", "select=keys(70)", "select=keys(16)"}},
    {"mask", {"", "mask=\"causal\"", "mask=\"window(40, 0)\"", "mask=\"k % 3 != 1\"", "mask=\"document(doc)\"",
              "mask=\"k >= first[b, q] & k % max(w, 1) != 1\" params=\"first: i32[2], w: u8\""}},
    {"align", {"", "align=top_left"}},
    {"k_len", {"", "k_len<=700"}},
};
// clang-format on

const std::vector<std::string> kDimsOfAttention = {"d=128",   "d=64",      "d=256", "d=72",     "d=192/128",
                                                   "d=96/64", "d=576/512", "d=512", "d=320/256"};

std::vector<std::string> heads_of(Operation operation) {
  switch (operation) {
    case Operation::Forward: return {"heads=8/2", "heads=4", "heads=6/1", "heads=16/1", "heads=64/1", "heads=128/1"};
    // The reference takes its time for the gradients of many heads.
    case Operation::Backward: return {"heads=8/2", "heads=4", "heads=6/1", "heads=16/1"};
    case Operation::Index: return {"heads=8/2", "heads=4", "heads=64/1", "heads=20/1"};
    default: return {"heads=8", "heads=3", "heads=40"};
  }
}

}  // namespace

std::string SpecKind::name() const { return fmt::format("{} {}", family->name, word_of(operation)); }

std::vector<SpecKind> spec_kinds(bool gpu) {
  std::vector<SpecKind> kinds;
  for (const Family family : families()) {
    for (const auto& [operation, word] : kOperations) {
      if (family->gpu == gpu && computes(*family, operation)) kinds.push_back({family, operation});
    }
  }
  return kinds;
}

std::vector<Factor> factors_of(Operation operation) {
  const bool attends = operation == Operation::Forward || operation == Operation::Backward;
  std::vector<Factor> factors = {
      {"dtype", {"bf16", "fp16", "fp32", "e4m3", "e5m2"}},
      {"d", attends ? kDimsOfAttention : std::vector<std::string>{"d=128", "d=64", "d=256", "d=72"}},
      {"heads", heads_of(operation)},
      {"sequences", sequences(attends || operation == Operation::Index)},
      {"lse", {"", "lse=ln", "lse=log2"}},
      {"bytes", {"", "bytes=4"}},
      {"scales", {"", "scales=block(64)"}},
      {"rope", {"", "rope=half(32)", "rope=half(24) rope_from=40", "rope=interleaved(16) rope_base=10000"}},
  };
  if (attends) factors.insert(factors.end(), kOfAttention.begin(), kOfAttention.end());
  if (operation == Operation::Index) factors.insert(factors.end(), kOfIndex.begin(), kOfIndex.end());
  if (operation == Operation::Backward)
    factors.push_back({"grads", {"", "grads=\"sink\"", "grads=\"extra\"", "grads=\"slope, c\""}});
  if (operation == Operation::Merge) factors.push_back({"out", {"", "out=fp32", "out=fp16"}});
  if (operation == Operation::Quantize) factors.push_back({"out", {"", "out=e5m2"}});
  for (const SpecFlag& flag : kSpecFlags) factors.push_back({std::string(flag.name), {"", std::string(flag.name)}});
  return factors;
}

Choices first_choices(const FamilyRow& family, const std::vector<Factor>& factors) {
  static const std::map<std::string_view, std::vector<std::string_view>> kNeeded = {
      {"mla", {"d=576/512", "heads=128/1", "v_in_k"}}, {"sync_narrow", {"e4m3"}}, {"decode", {"q_len=1"}}};
  Choices choices(factors.size(), 0);
  const auto needed = kNeeded.find(family.name);
  if (needed == kNeeded.end()) return choices;
  for (const std::string_view word : needed->second) {
    const auto take = [&](std::size_t factor) {
      const std::vector<std::string>& values = factors[factor].values;
      const auto found = std::ranges::find(values, word);
      if (found != values.end()) choices[factor] = static_cast<std::size_t>(found - values.begin());
      return found != values.end();
    };
    std::size_t factor = 0;
    while (factor < factors.size() && !take(factor)) ++factor;
    if (factor == factors.size()) throw std::logic_error(fmt::format("no factor has {}", word));
  }
  return choices;
}

std::string spec_of(Operation operation, const std::vector<Factor>& factors, const Choices& choices) {
  std::string text(word_of(operation));
  for (std::size_t i = 0; i < factors.size(); ++i) {
    const std::string& word = factors[i].values[choices[i]];
    if (!word.empty()) text += " " + word;
  }
  return text;
}

}  // namespace flashjit::testing_random
