#include "tools/fleet/wanted.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace flashjit {
namespace {

// These are milliseconds, fitted to the times of NVRTC for some hundred kernels of all kinds on one machine. Half of
// the predictions are within a fifth. Only shares matter here, and a machine of another speed changes none of them.
struct CompileCosts {
  std::uint64_t merge = 100, quantize = 200, index = 300;
  std::uint64_t forward = 350, forward_wgmma = 300;
  std::uint64_t backward = 700, backward_wgmma = 250;
  std::uint64_t few_queries = 600, few_queries_tma = 300;  // families that split the keys between warps
  std::uint64_t latents_wgmma = 2300;
  std::uint64_t narrow_keys = 250;  // such keys are widened in registers
  std::uint64_t tensors = 150;      // tensors that mask or score read
  std::uint64_t column_thirds = 2;  // costs per three columns of d_qk + d_v
};
constexpr CompileCosts kCosts;
constexpr std::int64_t kFewQueries = 8;

std::uint64_t loop_cost(const AttentionSpec& spec, const Capabilities& can) {
  if (is_backward(spec)) return kCosts.backward + (can.wgmma ? kCosts.backward_wgmma : 0);
  if (spec.v_in_k && can.wgmma) return kCosts.latents_wgmma;
  if (spec.q_len.max <= kFewQueries && !spec.v_in_k) return kCosts.few_queries + (can.tma ? kCosts.few_queries_tma : 0);
  return kCosts.forward + (can.wgmma ? kCosts.forward_wgmma : 0);
}

std::string sort_key(const BundleKey& key) { return key.target + "\n" + key.spec + "\n" + key.pins; }

}  // namespace

std::vector<WantedKernel> wanted_kernels(const std::string& manifest, const std::vector<ManifestLine>& lines,
                                         const std::vector<std::string>& archs) {
  std::vector<WantedKernel> wanted;
  std::set<BundleKey> known;
  for (const ManifestLine& line : lines) {
    for (const std::string& arch : line.archs.empty() ? archs : line.archs) {
      const std::string location = fmt::format("{}:{}", manifest, line.number);
      auto request = Request::parse(line.spec, arch, line.schedule);
      auto kernels = request ? kernels_of(*request) : Result<std::vector<Request>>(request.error());
      if (!kernels) {
        const BundleKey key = {arch, line.spec, line.schedule};
        if (known.insert(key).second)
          wanted.push_back({.key = key, .location = location, .request = {}, .error = kernels.error()});
        continue;
      }
      for (Request& kernel : *kernels) {
        const BundleKey key = bundle_key(kernel);
        if (known.insert(key).second)
          wanted.push_back({.key = key, .location = location, .request = std::move(kernel), .error = {}});
      }
    }
  }
  return wanted;
}

std::uint64_t compile_cost(const Request& kernel) {
  const AttentionSpec& spec = kernel.spec;
  if (merges(spec)) return kCosts.merge;
  if (quantizes(spec)) return kCosts.quantize;
  if (indexes(spec)) return kCosts.index;
  std::uint64_t cost = loop_cost(spec, kernel.target.can);
  cost += kCosts.column_thirds * static_cast<std::uint64_t>(spec.d_qk + spec.d_v) / 3;
  if (spec.kv_dtype != spec.dtype) cost += kCosts.narrow_keys;
  const auto is_tensor = [](const Param& param) { return param.rank > 0; };
  if (std::ranges::any_of(spec.params, is_tensor)) cost += kCosts.tensors;
  return cost;
}

std::vector<int> deal_kernels(const std::vector<WantedKernel>& wanted, int count) {
  std::vector<Piece> pieces;
  for (const WantedKernel& kernel : wanted) pieces.push_back({sort_key(kernel.key), compile_cost(*kernel.request)});
  return deal(pieces, count);
}

BundleShards take_shard(const Shard& shard, std::vector<WantedKernel>& wanted) {
  std::vector<BundleKey> keys;
  for (const WantedKernel& kernel : wanted) keys.push_back(kernel.key);
  BundleShards shards{.whole = whole_of(std::move(keys)),
                      .kernels = static_cast<std::uint32_t>(wanted.size()),
                      .count = static_cast<std::uint32_t>(shard.count),
                      .numbers = {static_cast<std::uint32_t>(shard.number)}};
  const auto has_error = [](const WantedKernel& kernel) { return kernel.error.has_value(); };
  std::vector<WantedKernel> taken;
  if (std::ranges::any_of(wanted, has_error)) {
    std::ranges::copy_if(wanted, std::back_inserter(taken), has_error);
  } else {
    const std::vector<int> numbers = deal_kernels(wanted, shard.count);
    for (std::size_t i = 0; i < wanted.size(); ++i)
      if (numbers[i] == shard.number) taken.push_back(std::move(wanted[i]));
  }
  wanted = std::move(taken);
  return shards;
}

}  // namespace flashjit
