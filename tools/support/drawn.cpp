#include "tools/support/drawn.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "autotune/reference/narrowed.h"
#include "runtime/launch/call.h"

namespace flashjit {
namespace {

constexpr std::array kRounded = {"q", "k", "v", "scale_q", "scale_k", "scale_v"};

// Sequences that share keys share their scales, too, which `quantize` does not know. Scores of an index are held
// against those of the elements as they are.
bool can_round(const AttentionSpec& spec, const InputFiles& inputs) {
  return attends(spec) && has_scaled_queries(spec) && !spec.shared_prefix && !spec.accumulate &&
         std::ranges::none_of(kRounded, [&](const char* name) { return inputs.files.contains(name); });
}

// Returns the same problem in fp32.
AttentionSpec numbers_of(AttentionSpec spec) {
  spec.dtype = spec.kv_dtype = Dtype::F32;
  spec.token_scales = false;
  spec.scale_block = 0;
  return spec;
}

// Several sequences may share a scale, which then counts for each of them.
void repeat(const Tensor& from, std::vector<std::uint8_t>& to) {
  std::size_t bytes = static_cast<std::size_t>(size_of(*parse_dtype(from.dtype)));
  for (const std::int64_t extent : from.shape) bytes *= static_cast<std::size_t>(extent);
  for (std::size_t i = 0; bytes > 0 && i + bytes <= to.size(); i += bytes) std::memcpy(to.data() + i, from.data, bytes);
}

}  // namespace

Result<DrawnProblem> DrawnProblem::create(const AttentionSpec& spec, const ProblemShape& shape,
                                          const InputFiles& inputs, std::uint64_t seed) {
  DrawnProblem problem;
  if (!can_round(spec, inputs)) {
    FLASHJIT_ASSIGN(data, ProblemData::create(spec, shape, inputs, seed));
    problem.data = std::move(data);
    return problem;
  }
  InputFiles of_rounded = inputs;
  of_rounded.logits = {};
  FLASHJIT_ASSIGN(data, ProblemData::create(spec, shape, of_rounded, seed));
  FLASHJIT_ASSIGN(numbers, ProblemData::create(numbers_of(spec), shape, inputs, seed));
  problem.data = std::move(data);
  problem.unrounded = Unrounded{numbers_of(spec), std::move(numbers)};
  const reference::Narrowed rounded(problem.unrounded->spec, spec, problem.unrounded->data.host_arguments());
  Arguments arguments = rounded.arguments();
  for (const char* name : kRounded) {
    NamedTensor* tensor = problem.data.find(name);
    if (!tensor) continue;  // V is in K.
    repeat(operand_of(arguments, name), tensor->bytes);
  }
  return problem;
}

}  // namespace flashjit
