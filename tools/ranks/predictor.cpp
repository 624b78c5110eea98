#include "tools/ranks/predictor.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "runtime/tuned/hint.h"

namespace flashjit {
namespace {

// Parameters that only the mask reads go with it.
void remove_mask(AttentionSpec& spec) {
  const std::vector<Param> read = spec.score ? params_of(spec.score) : std::vector<Param>();
  std::erase_if(spec.declared, [&](const Param& param) { return std::ranges::find(read, param) == read.end(); });
  spec.mask = Expr();
  spec.mask_text.clear();
}

// Parts are put together by their LSE, and gradients of parts are those of the whole, so neither kernel has other
// outputs of its own. Sizes are those of shares.
AttentionSpec spec_of(const AttentionSpec& given, const StepQuestion& question) {
  AttentionSpec spec = given;
  spec.operation = question.direction == Direction::Forward ? Operation::Forward : Operation::Backward;
  spec.heads_q = std::max(1, given.heads_q / question.head_shares);
  spec.heads_kv = std::max(1, given.heads_kv / question.head_shares);
  spec.lse = Lse::ln;
  spec.max_logit = spec.dlse = false;
  spec.grads.clear();
  spec.batch = spec.q_len = spec.k_len = {};
  if (!question.masked) remove_mask(spec);
  return spec;
}

}  // namespace

Result<void> check_ranks(const Request& request) {
  const AttentionSpec& spec = request.spec;
  const std::pair<bool, const char*> rows[] = {
      {!attends(spec), "an operation that does not attend"},
      {is_packed(spec), "layout=packed"},
      {is_paged(spec), "pages"},
      {has_blocks(spec), "blocks="},
      {selects(spec), "select="},
      {spec.k_lens, "k_lens"},
      {appends(spec), "append"},
      {drops(spec), "dropout"},
      {spec.v_in_k, "v_in_k"},
      {is_composite(request), "a spec that several kernels compute together"},
  };
  for (const auto& [refused, what] : rows) {
    if (refused)
      return unsupported(
          fmt::format("--ranks: {} is not counted over ranks: sequences are whole there, of one length, and "
                      "computed by one kernel; explain it without --ranks, or leave that out",
                      what));
  }
  return {};
}

Result<Plan> Predictor::plan_for(const StepQuestion& question) const {
  FLASHJIT_ASSIGN(spec, parse_spec(print(spec_of(request_.spec, question))));
  FLASHJIT_TRY(check_supported(spec));
  Target target = request_.target;
  if (target.gpu && question.beside) target.sm_count = std::max(1, target.sm_count - kSmsForExchanges);
  FLASHJIT_ASSIGN(plan, draft_plan(spec, target, request_.pins));
  const bool is_pinned = !print(request_.pins).empty();
  const auto hinted = is_pinned ? HintedChoice() : schedule_for(plan, plan.schedule, question.shape, true);
  if (hinted.schedule) {
    FLASHJIT_ASSIGN(told, draft_plan(spec, target, *hinted.schedule));
    plan = std::move(told);
  }
  plan.target.memory_tbs = device_.memory_tbs;
  return std::move(plan);
}

Result<StepTime> Predictor::operator()(const StepQuestion& question) {
  const Key key{question.direction, question.head_shares, question.masked, question.beside, print(question.shape)};
  auto known = plans_.find(key);
  if (known == plans_.end()) {
    FLASHJIT_ASSIGN(plan, plan_for(question));
    known = plans_.emplace(key, std::move(plan)).first;
  }
  const Prediction predicted = roofline(known->second, question.shape).predicted;
  return StepTime{predicted.latency, std::max(0.0, predicted.total - predicted.latency)};
}

}  // namespace flashjit
