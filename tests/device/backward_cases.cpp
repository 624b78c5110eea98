#include "tests/device/cases.h"

namespace flashjit::testing_random {
namespace {

using Lens = std::vector<std::int64_t>;

// clang-format off
const FixedCase kCases[] = {
    {"bwd-d64",          "bwd bf16 d=64 heads=4/2", {200, 200}, {260, 260}},
    {"bwd-d8",           "bwd bf16 d=8 heads=2 mask=\"causal\"", {150}, {150}},
    {"bwd-d40",          "bwd fp16 d=40 heads=2 mask=\"causal\"", {150}, {150}},
    {"bwd-d64-causal",   "bwd fp16 d=64 heads=4 mask=\"causal\"", {300}, {300}},
    {"bwd-d72",          "bwd bf16 d=72 heads=2 mask=\"causal\"", {150}, {150}},
    {"bwd-d96",          "bwd fp16 d=96 heads=2 mask=\"causal\"", {200}, {200}},
    {"bwd-d128",         "bwd bf16 d=128 heads=4/2", {200, 200}, {200, 200}},
    {"bwd-d128-causal",  "bwd bf16 d=128 heads=4 mask=\"causal\"", {300}, {300}},
    {"bwd-d160",         "bwd bf16 d=160 heads=2 mask=\"causal\"", {150}, {150}},
    {"bwd-d192-128",     "bwd bf16 d=192/128 heads=2 mask=\"causal\"", {150}, {200}},
    {"bwd-d256",         "bwd fp16 d=256 heads=2 mask=\"causal\"", {150}, {150}},
    {"bwd-d64-128",      "bwd bf16 d=64/128 heads=2", {100}, {130}},
    {"bwd-few-keys",     "bwd fp16 d=192/128 heads=2", {79, 79}, {1, 3}, Data::Sharp},
    {"bwd-bhsd",         "bwd fp16 d=128 heads=4/2 layout=bhsd lse=log2", {129, 129}, {129, 129}},
    {"bwd-packed",       "bwd bf16 d=128 heads=4/2 layout=packed mask=\"causal\"", {70, 1, 0, 129, 64}, {70, 33, 5, 129, 0}},
    {"bwd-packed-inside","bwd fp16 d=64 heads=4/2 layout=packed mask=\"causal\" dlse", {70, 0, 129, 64}, {70, 5, 150, 0}, Data::Normal, false, false, 0, false, false, 37},
    {"bwd-packed-d256",  "bwd bf16 d=256 heads=4/2 layout=packed mask=\"causal\" dlse", {70, 1, 0, 129, 300}, {70, 33, 5, 129, 0}},
    {"bwd-packed-wide",  "bwd fp16 d=192/128 heads=2/1 layout=packed mask=\"window(60, 0)\"", {200, 70}, {300, 64}, Data::Neighbours},
    {"bwd-window",       "bwd bf16 d=64 heads=2 mask=\"window(40, 0)\"", {300}, {300}},
    {"bwd-window-d256",  "bwd bf16 d=256 heads=7/1 mask=\"window(100, 0)\"", {200, 200}, {333, 333}},
    {"bwd-softcap-d256", "bwd fp16 d=256 heads=2 mask=\"causal\" score=\"softcap(20)\"", {200}, {200}},
    {"bwd-holes-d256",   "bwd bf16 d=256 heads=2 mask=\"q % 3 != 1 & k >= 70\"", {200}, {200}},
    {"bwd-window-sides", "bwd fp16 d=128 heads=2 mask=\"window(30, 50)\"", {200}, {330}},
    {"bwd-documents",    "bwd bf16 d=64 heads=2 layout=packed mask=\"document(ids) & causal\"", {130, 200}, {130, 200}},
    {"bwd-prefix",       "bwd bf16 d=64 heads=2 mask=\"causal | k < 20\"", {200}, {200}},
    {"bwd-softcap",      "bwd bf16 d=64 heads=4 score=\"softcap(20)\"", {200}, {200}},
    {"bwd-softcap-low",  "bwd fp16 d=128 heads=2 mask=\"causal\" score=\"softcap(2)\"", {200}, {200}},
    {"bwd-alibi",        "bwd bf16 d=128 heads=8/2 mask=\"causal\" score=\"alibi\"", {177}, {177}},
    {"bwd-bias",         "bwd bf16 d=64 heads=4/2 params=\"t: bf16[3]\" score=\"s + t[h, q, k]\"", {130}, {200}},
    {"bwd-scores-bend",  "bwd bf16 d=64 heads=2 score=\"where(s > 0, s, 0.1 * s) + 0.2 * tanh(s)\"", {130}, {130}},
    {"bwd-empty-rows",   "bwd bf16 d=64 heads=2 mask=\"q % 3 != 1 & k >= 70\"", {200}, {200}},
    {"bwd-no-keys",      "bwd bf16 d=64 heads=2", {65}, {0}},
    {"bwd-no-queries",   "bwd bf16 d=64 heads=2", {0}, {65}},
    {"bwd-no-batch",     "bwd bf16 d=64 heads=2", {}, {}},
    {"bwd-one-query",    "bwd bf16 d=128 heads=8/2", {1, 1}, {500, 500}},
    {"bwd-one-key",      "bwd fp16 d=64 heads=4", {200}, {1}},
    {"bwd-more-queries", "bwd bf16 d=64 heads=2 mask=\"causal\"", {300}, {100}},
    {"bwd-top-left",     "bwd fp16 d=64 heads=2 mask=\"causal\" align=top_left", {100}, {300}},
    {"bwd-group-of-8",   "bwd bf16 d=128 heads=16/2 mask=\"causal\"", {130}, {130}},
    {"bwd-group-of-7",   "bwd bf16 d=64 heads=7/1 scale=0.3", {65}, {129}},
    {"bwd-sink-dlse",    "bwd bf16 d=64 heads=4/2 out=fp32 lse=log2 dlse sink mask=\"causal\"", {130, 130}, {130, 130}},
    {"bwd-out-mixed",    "bwd bf16 d=128 heads=4/2 out=fp32/bf16/fp16 mask=\"causal\"", {200, 200}, {260, 260}},
    {"bwd-out-packed",   "bwd fp16 d=64 heads=4/2 layout=packed out=bf16/fp32/fp16 mask=\"causal\"", {70, 1, 0, 129, 64}, {70, 33, 5, 129, 0}},
    {"bwd-out-d256",     "bwd bf16 d=256 heads=2 out=fp16/fp32/bf16", {150}, {200}},
    {"bwd-out-same-bits","bwd bf16 d=192/128 heads=2 out=bf16/fp16/fp32 numerics=deterministic", {150}, {200}},
    {"bwd-out-bytes-4",  "bwd fp16 d=72 heads=2 out=fp32/fp16/bf16 bytes=4", {100}, {130}},
    {"bwd-bytes-2",      "bwd fp16 d=72 heads=2 bytes=2", {100}, {130}},
    {"bwd-bytes-4",      "bwd bf16 d=64 heads=4/2 layout=bhsd bytes=4 mask=\"causal\"", {100}, {130}},
    {"bwd-same-bits",    "bwd bf16 d=128 heads=4/2 mask=\"causal\" numerics=deterministic", {300, 300}, {300, 300}},
    {"bwd-neighbours",   "bwd bf16 d=64 heads=2 layout=packed mask=\"causal\"", {70, 65, 129, 64}, {70, 65, 150, 64}, Data::Neighbours},
    {"bwd-sharp",        "bwd fp16 d=64 heads=2", {200}, {200}, Data::Sharp},
    {"bwd-equal",        "bwd bf16 d=64 heads=2", {200}, {200}, Data::Equal},
    {"bwd-late-jump",    "bwd bf16 d=64 heads=2", {200}, {700}, Data::LateJump, false, false, 40},
    // gradients of parameters
    {"bwd-grads-slopes",   "bwd bf16 d=128 heads=8/2 mask=\"causal\" score=\"alibi\" grads=\"slope\"", {177, 177}, {177, 177}},
    {"bwd-grads-sink",     "bwd bf16 d=64 heads=4/2 mask=\"causal\" sink dlse lse=log2 grads=\"sink\"", {130, 200}, {130, 200}},
    {"bwd-grads-bias",     "bwd bf16 d=128 heads=4/2 mask=\"causal\" score=\"bias(t, bf16)\" grads=\"t\"", {200, 200}, {260, 260}},
    {"bwd-grads-bias-one", "bwd bf16 d=128 heads=4/2 mask=\"causal\" score=\"bias(t, bf16)\" grads=\"t\" b=1", {200}, {260}},
    {"bwd-grads-bias-b",   "bwd fp16 d=64 heads=4/2 score=\"bias_b(t)\" grads=\"t\"", {100, 100}, {130, 130}},
    {"bwd-grads-bias-qk",  "bwd bf16 d=40 heads=4 params=\"t: fp32[2]\" mask=\"causal\" score=\"s + t[q, k]\" grads=\"t\"", {130}, {130}},
    {"bwd-grads-table",    "bwd bf16 d=64 heads=4/2 params=\"t: bf16[2]\" mask=\"causal\" score=\"s + t[h, min(abs(q - k), 31)]\" grads=\"t\"", {200, 100}, {200, 100}},
    {"bwd-grads-of-keys",  "bwd bf16 d=64 heads=4/2 layout=packed params=\"w: fp32[2]\" score=\"s * w[b, k]\" grads=\"w\"", {70, 0, 129}, {70, 40, 150}},
    {"bwd-grads-queries",  "bwd fp16 d=96 heads=2 params=\"w: fp32[2]\" mask=\"causal\" score=\"s + w[h, q] * w[b, k]\" grads=\"w\"", {150, 150}, {150, 150}},
    {"bwd-grads-scalar",   "bwd bf16 d=128 heads=4/2 params=\"c: fp32\" mask=\"causal\" score=\"c * tanh(s / c)\" grads=\"c\"", {200, 200}, {200, 200}},
    {"bwd-grads-ragged",   "bwd bf16 d=64 heads=2/1 params=\"c: fp32\" score=\"c * tanh(s / c)\" grads=\"c\"", {300, 130}, {70, 70}},
    {"bwd-grads-several",  "bwd bf16 d=64 heads=4/2 mask=\"window(60, 0)\" score=\"alibi; bias(t); softcap(20)\" grads=\"slope, t, sink\" sink", {200}, {200}},
    {"bwd-grads-d256",     "bwd bf16 d=256 heads=2 mask=\"causal\" score=\"bias(t); alibi\" grads=\"slope, t\"", {150}, {150}},
    {"bwd-grads-d192",     "bwd fp16 d=192/128 heads=4/2 layout=bhsd params=\"c: fp32\" score=\"c * tanh(s / c)\" grads=\"c, sink\" sink", {130}, {130}},
    {"bwd-grads-packed",   "bwd bf16 d=64 heads=4/2 layout=packed mask=\"document(ids) & causal\" score=\"bias_b(t, bf16)\" params=\"ids: i32[2]\" grads=\"t\"", {70, 0, 129, 64}, {70, 5, 150, 0}},
    {"bwd-grads-same-bits","bwd bf16 d=128 heads=4/2 mask=\"causal\" score=\"bias_b(t); alibi\" grads=\"slope, t, sink\" sink numerics=deterministic", {200, 200}, {200, 200}},
    {"bwd-grads-none",     "bwd bf16 d=64 heads=2 score=\"alibi\" grads=\"slope, sink\" sink", {0}, {65}},
    {"bwd-grads-no-keys",  "bwd bf16 d=64 heads=2 score=\"bias(t)\" grads=\"t, sink\" sink", {65}, {0}},
    // dropout
    {"bwd-dropout",        "bwd bf16 d=128 heads=4/2 mask=\"causal\" dropout=0.1", {200, 200}, {333, 333}},
    {"bwd-dropout-packed", "bwd bf16 d=64 heads=16/2 layout=packed mask=\"window(40, 3)\" sink dlse grads=\"sink\" dropout=0.25", {70, 1, 0, 129, 64}, {70, 33, 5, 129, 0}},
    {"bwd-dropout-d256",   "bwd fp16 d=256 heads=2 dlse lse=log2 out=fp32 dropout=0.5", {150}, {200}},
    {"bwd-dropout-slopes", "bwd bf16 d=128/64 heads=8/2 layout=bhsd mask=\"causal\" score=\"alibi\" grads=\"slope\" dropout=0.1 numerics=deterministic", {177}, {177}},
};
// clang-format on

}  // namespace

std::span<const FixedCase> backward_cases() { return kCases; }

}  // namespace flashjit::testing_random
