#include "autotune/measure/verify.h"

#include <algorithm>
#include <optional>

#include "autotune/measure/problem.h"
#include "autotune/reference/compare.h"
#include "runtime/launch/thread_pool.h"

namespace flashjit {
namespace {

// Any schedule has more than one tile in each direction with these sizes, and the last ones are not full.
constexpr std::int64_t kQueries = 197, kKeys = 525;
constexpr double kWork = 2e7;  // multiply-adds of the reference; rows are sampled if there are many heads
constexpr int kMostThreads = 8;
// A problem is not small if the spec pins large sizes. Beyond these limits, trying takes seconds and more.
constexpr double kMostBytes = 1e9, kMostHostWork = 1e12, kMostGpuWork = 1e13;
constexpr std::uint64_t kSeed = 1;

std::int64_t within(const SizeBound& bound, std::int64_t size) { return std::clamp(size, bound.min, bound.max); }

// Returns the small sizes as far as the spec allows them. Lengths that may differ do, and one is 0. A pin fixes the
// longest.
ProblemShape small_shape(const AttentionSpec& spec) {
  const bool differ = has_own_q_lens(spec) || has_own_k_lens(spec);
  ProblemShape shape;
  shape.batch = within(spec.batch, differ ? 3 : 2);
  const auto length = [](const SizeBound& bound, bool own, std::int64_t usual, std::int64_t b) {
    return within(bound, usual) * (own ? 2 - b % 3 : 2) / 2;
  };
  for (std::int64_t b = 0; b < shape.batch; ++b) {
    shape.q.push_back(length(spec.q_len, has_own_q_lens(spec), kQueries, b));
    shape.k.push_back(length(spec.k_len, has_own_k_lens(spec), kKeys, b));
    if (spec.append) shape.q.back() = std::min(shape.q.back(), shape.k.back());
  }
  return shape;
}

Error cannot_be_tried(const std::string& why) {
  return unsupported(fmt::format(
      "verify: this kernel cannot be tried on small random data: {}; leave verify out, and see what `flashjit run "
      "--check` says of it",
      why));
}

Result<void> check_work(const AttentionSpec& spec, const ProblemShape& shape, double most) {
  constexpr double kScore = 64;  // cost of the exponential of a score, in multiply-adds
  double scores = 0;
  for (std::size_t b = 0; b < shape.q.size(); ++b)
    scores += static_cast<double>(shape.q[b]) * static_cast<double>(shape.k[b]);
  const double work = scores * spec.heads_q * (spec.d_qk + spec.d_v + kScore);
  if (work <= most) return {};
  return cannot_be_tried(
      fmt::format("the sizes that the spec pins take {:.1g} multiply-adds, more than {:.1g}", work, most));
}

Result<void> run_on_gpu(Kernel& kernel, const GpuContext& gpu, ProblemData& data) {
  // Another thread may be capturing a graph, which forbids waiting as usual, and the default stream.
  const RelaxedCapture relaxed(*gpu.driver);
  FLASHJIT_ASSIGN(stream, Stream::create(gpu));
  FLASHJIT_ASSIGN(device, DeviceProblem::create(gpu, data, stream.get()));
  FLASHJIT_TRY(device.make_workspace(gpu, kernel));
  FLASHJIT_TRY(device.poison(stream));
  FLASHJIT_TRY(kernel.run(device.arguments(), stream.get()));
  FLASHJIT_TRY(stream.synchronize());
  return device.download_outputs(data, stream.get());
}

}  // namespace

Result<std::string> verify_here(const AttentionSpec& spec, Kernel& kernel, const GpuContext* gpu) {
  const ProblemShape shape = small_shape(spec);
  FLASHJIT_TRY(check_work(spec, shape, gpu ? kMostGpuWork : kMostHostWork));
  auto data = ProblemData::create(spec, shape, {}, kSeed, kMostBytes);
  if (!data) return cannot_be_tried(data.error().message);
  data->poison();
  const Arguments arguments = data->host_arguments();
  const Arguments checked = data->reference_arguments();  // The problem points into it.
  if (auto ran = gpu ? run_on_gpu(kernel, *gpu, *data) : kernel.run(arguments); !ran) {
    // The drawn problem is no call of this spec: for example, an index runs below 0 with a scalar of 1.
    return ran.error().kind == ErrorKind::Invalid ? cannot_be_tried(ran.error().message) : ran.error();
  }
  FLASHJIT_ASSIGN(problem, reference::Problem::create(spec, checked));
  problem.round_weights_to(kernel.facts().weights);
  const reference::Comparison compared =
      reference::compare(problem, {.work = kWork, .seed = kSeed, .threads = std::min(usable_cores(), kMostThreads)});
  if (compared.ok) return std::string();
  return fmt::format("{} (seen with --shape {} --seed {})", compared.problem, print(shape), kSeed);
}

}  // namespace flashjit
