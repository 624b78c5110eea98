#include "compiler/analysis/gradient_reads.h"

#include <algorithm>

#include "compiler/analysis/score_inputs.h"
#include "compiler/language/gradient.h"

namespace flashjit {
namespace {

GradientSum sum_of(const GradientRead& read) {
  const ReadIndex& index = read.index;
  if (!index.by_q && !index.by_k) return GradientSum::heads;
  if (!index.by_k) return GradientSum::queries;
  if (!index.by_q) return GradientSum::keys;
  if (!index.apart) return GradientSum::runs;
  return read.alone && index.own_b && index.own_h ? GradientSum::own : GradientSum::pairs;
}

bool is_ordered(const GradientRead& read) {
  if (read.sum == GradientSum::own || read.sum == GradientSum::heads) return true;
  const bool of_key = read.sum == GradientSum::keys || read.sum == GradientSum::pairs;
  return of_key && read.alone && read.index.apart && read.index.own_b && read.index.own_hk;
}

}  // namespace

std::vector<std::string> names_of_gradients(const AttentionSpec& spec) {
  std::vector<std::string> names;
  for (const int number : params_with_gradients(spec))
    names.push_back(spec.params[static_cast<std::size_t>(number)].name);
  return names;
}

int heads_that_share(const GradientRead& read, const AttentionSpec& spec) {
  if (read.index.own_h) return 1;
  return read.index.own_hk ? spec.heads_q / spec.heads_kv : spec.heads_q;
}

Result<std::vector<GradientRead>> gradient_reads(const AttentionSpec& spec) {
  const std::vector<std::string> names = names_of_gradients(spec);
  FLASHJIT_ASSIGN(gradients, gradients_of(spec.score, spec.mask, names));
  std::vector<GradientRead> reads;
  for (const ReadGradient& of : gradients.by_params) {
    GradientRead& read = reads.emplace_back();
    read.read = of.read;
    read.derivative = of.derivative;
    read.gradient = static_cast<int>(std::ranges::find(names, of.read->param.name) - names.begin());
    read.index = read_index(of.read);
    if (spec.batch.max == 1) read.index.own_b = true;
    if (spec.heads_q == 1) read.index.own_h = true;
    if (spec.heads_kv == 1 || read.index.own_h) read.index.own_hk = true;
  }
  for (GradientRead& read : reads) {
    read.alone = std::ranges::count(reads, read.gradient, &GradientRead::gradient) == 1;
    read.sum = sum_of(read);
    read.ordered = is_ordered(read);
  }
  return reads;
}

bool is_in_tiles(const GradientRead& read, const std::vector<Expr>& inputs) {
  return std::ranges::any_of(inputs, [&](const Expr& input) { return same(input, read.read); });
}

Result<bool> loads_by_position(const AttentionSpec& spec, const KernelConfig& config) {
  FLASHJIT_ASSIGN(gradients, gradients_of(spec.score, spec.mask, names_of_gradients(spec)));
  const auto derivative_does = [](const ReadGradient& of) { return loads_by_position(of.derivative); };
  return loads_by_position(gradients.score, copied_inputs(spec, config)) ||
         std::ranges::any_of(gradients.by_params, derivative_does);
}

}  // namespace flashjit
