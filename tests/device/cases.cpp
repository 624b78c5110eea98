#include "tests/device/cases.h"

namespace flashjit::testing_random {
namespace {

using Lens = std::vector<std::int64_t>;

// About the numbers that a softmax over tiles can get wrong.
FixedCase softmax(std::string_view name, std::string_view spec, Lens q_lens, Lens k_lens, Data data, double jump = 0) {
  return {name, spec, std::move(q_lens), std::move(k_lens), data, false, false, jump, true};
}
// On a GPU, at the same time as others of its kind: more query tiles than SMs, and uneven ones.
FixedCase side_by_side(std::string_view name, std::string_view spec, Lens q_lens, Lens k_lens) {
  return {name, spec, std::move(q_lens), std::move(k_lens), Data::Normal, false, true, 0, false, true};
}

constexpr std::string_view kPlain64 = "fwd bf16 d=64 heads=4 lse=ln", kMax64 = "fwd bf16 d=64 heads=4 lse=ln max_logit",
                           kCausal64 = "fwd bf16 d=64 heads=4 mask=\"causal\" lse=ln",
                           kPlain128 = "fwd bf16 d=128 heads=4/2 lse=ln",
                           kCap128 = "fwd bf16 d=128 heads=4/2 score=\"softcap(50.0)\" lse=ln",
                           kHalf64 = "fwd fp16 d=64 heads=4 lse=ln", kSums128 = "fwd bf16 d=128 heads=4/2",
                           kSumsHalf128 = "fwd fp16 d=128 heads=4/2",
                           kSumsCausal128 = "fwd bf16 d=128 heads=4/2 mask=\"causal\"",
                           kPacked64 = "fwd bf16 d=64 heads=4/2 layout=packed mask=\"causal\" lse=ln";

// clang-format off
const FixedCase kCases[] = {
    // layouts
    {"bshd",            "fwd bf16 d=128 heads=4 lse=ln max_logit", {200, 200}, {200, 200}},
    {"bhsd",            "fwd fp16 d=128 heads=4 layout=bhsd lse=log2 max_logit", {200, 200}, {200, 200}},
    {"packed",          "fwd bf16 d=128 heads=4 layout=packed mask=\"causal\" lse=ln", {70, 1, 0, 129, 64}, {70, 33, 5, 129, 0}},
    {"packed-one",      "fwd fp16 d=64 heads=2 layout=packed lse=ln", {1}, {1}},
    {"packed-uneven",   "fwd bf16 d=64 heads=8/2 layout=packed mask=\"causal\" sink", {1, 1, 1, 1, 700}, {1000, 3, 0, 64, 700}},
    {"packed-all-empty","fwd bf16 d=64 heads=2 layout=packed lse=ln", {0, 0}, {0, 0}},
    // head dims: every class of padding, and those that differ
    {"d8",              "fwd bf16 d=8 heads=2 mask=\"causal\" lse=ln", {150}, {150}},
    {"d16",             "fwd fp16 d=16 heads=2 mask=\"causal\" lse=ln", {150}, {150}},
    {"d24",             "fwd bf16 d=24 heads=2 mask=\"causal\" lse=ln", {150}, {150}},
    {"d40",             "fwd fp16 d=40 heads=2 mask=\"causal\" lse=ln", {150}, {150}},
    {"d64",             "fwd bf16 d=64 heads=2 mask=\"causal\" lse=ln", {300}, {300}},
    {"d72",             "fwd bf16 d=72 heads=2 mask=\"causal\" lse=ln", {150}, {150}},
    {"d80",             "fwd fp16 d=80 heads=2 mask=\"causal\" lse=ln", {150}, {150}},
    {"d96",             "fwd bf16 d=96 heads=2 mask=\"causal\" lse=ln", {150}, {150}},
    {"d104",            "fwd bf16 d=104 heads=2 mask=\"causal\" lse=ln", {150}, {150}},
    {"d112",            "fwd fp16 d=112 heads=2 mask=\"causal\" lse=ln", {150}, {150}},
    {"d136",            "fwd bf16 d=136 heads=2 mask=\"causal\" lse=ln", {150}, {150}},
    {"d160",            "fwd bf16 d=160 heads=2 mask=\"causal\" lse=ln", {150}, {150}},
    {"d192",            "fwd fp16 d=192 heads=2 mask=\"causal\" lse=ln", {150}, {150}},
    {"d200",            "fwd bf16 d=200 heads=2 mask=\"causal\" lse=ln", {150}, {150}},
    {"d248",            "fwd fp16 d=248 heads=2 mask=\"causal\" lse=ln", {150}, {150}},
    {"d256",            "fwd bf16 d=256 heads=2 mask=\"causal\" lse=ln", {300}, {300}},
    {"d192-128",        "fwd bf16 d=192/128 heads=4 mask=\"causal\" lse=ln", {200}, {260}},
    {"d8-256",          "fwd fp16 d=8/256 heads=2 lse=ln", {100}, {100}},
    {"d256-8",          "fwd bf16 d=256/8 heads=2 lse=ln", {100}, {100}},
    // lengths
    {"decode",          "fwd bf16 d=128 heads=32/8 lse=ln", {1, 1, 1}, {1500, 1500, 1500}},
    {"one-by-one",      "fwd bf16 d=64 heads=1 lse=ln max_logit", {1}, {1}},
    {"long-keys",       "fwd bf16 d=128 heads=1 lse=ln", {40}, {20000}},
    // some of 32 columns are hidden from all rows, the others seen by all
    {"keys-end-in-32",  "fwd fp16 d=24 heads=7/1 layout=bhsd lse=log2", {257}, {136}},
    {"mask-ends-in-32", "fwd bf16 d=64 heads=2 mask=\"chunk(40)\" lse=ln", {160}, {160}},
    {"more-queries",    "fwd bf16 d=64 heads=2 mask=\"causal\" lse=ln max_logit", {300}, {100}},
    {"more-queries-tl", "fwd bf16 d=64 heads=2 mask=\"causal\" align=top_left lse=ln", {300}, {100}},
    {"no-keys",         "fwd bf16 d=64 heads=2 lse=ln max_logit", {65}, {0}},
    {"no-keys-sink",    "fwd bf16 d=64 heads=2 sink lse=ln", {65}, {0}},
    {"no-queries",      "fwd bf16 d=64 heads=2 lse=ln", {0}, {65}},
    {"no-batch",        "fwd bf16 d=64 heads=2 lse=ln", {}, {}},
    {"tile-edges-63",   "fwd bf16 d=128 heads=2 mask=\"causal\" lse=ln", {63}, {63}},
    {"tile-edges-64",   "fwd bf16 d=128 heads=2 mask=\"causal\" lse=ln", {64}, {64}},
    {"tile-edges-65",   "fwd bf16 d=128 heads=2 mask=\"causal\" lse=ln", {65}, {65}},
    {"tile-edges-128",  "fwd bf16 d=128 heads=2 mask=\"causal\" lse=ln", {128}, {128}},
    {"tile-edges-129",  "fwd bf16 d=128 heads=2 mask=\"causal\" lse=ln", {129}, {129}},
    // heads
    {"gqa",             "fwd bf16 d=128 heads=28/4 mask=\"causal\" lse=ln", {130}, {130}},
    {"mqa",             "fwd fp16 d=64 heads=9/1 mask=\"causal\" lse=ln", {130}, {130}},
    // masks
    {"window",          "fwd bf16 d=64 heads=2 mask=\"window(100, 20)\" lse=ln", {700}, {700}},
    {"causal-window",   "fwd bf16 d=64 heads=2 mask=\"causal & window(128, 0)\" lse=ln", {700}, {900}},
    {"chunk",           "fwd bf16 d=64 heads=2 mask=\"chunk(96)\" lse=ln", {500}, {500}},
    {"prefix",          "fwd bf16 d=64 heads=2 mask=\"prefix(200)\" lse=ln", {500}, {500}},
    {"document",        "fwd bf16 d=64 heads=2 mask=\"document(doc) & causal\" lse=ln", {500, 500}, {500, 500}},
    {"tree",            "fwd bf16 d=64 heads=2 mask=\"tree(branches)\" lse=ln", {100}, {400}},
    {"checkerboard",    "fwd bf16 d=64 heads=2 mask=\"(q + k) % 2 == 0\" lse=ln", {300}, {300}},
    {"holes",           "fwd bf16 d=64 heads=2 mask=\"k < 64 | (k >= 512 & k < 520)\" lse=ln", {300}, {1000}},
    {"nothing-visible", "fwd bf16 d=64 heads=2 mask=\"k < 0\" lse=ln max_logit", {100}, {100}},
    {"nothing-but-sink","fwd bf16 d=64 heads=2 mask=\"k < 0\" sink lse=ln", {100}, {100}},
    {"some-rows-empty", "fwd bf16 d=64 heads=2 mask=\"q % 3 == 0\" lse=ln max_logit", {200}, {200}},
    {"mask-by-head",    "fwd bf16 d=64 heads=4 mask=\"k <= q + h * 16\" align=top_left lse=ln", {200}, {200}},
    // scores
    {"softcap",         "fwd bf16 d=128 heads=2 mask=\"causal\" score=\"softcap(20.0)\" lse=ln max_logit", {300}, {300}, Data::Sharp},
    {"alibi",           "fwd bf16 d=64 heads=4 mask=\"causal\" score=\"alibi\" lse=ln", {300}, {300}},
    {"bias",            "fwd bf16 d=64 heads=2 score=\"bias(extra)\" lse=ln max_logit", {150}, {170}},
    {"bias-bf16-batch", "fwd bf16 d=64 heads=2 score=\"bias_b(extra, bf16)\" lse=ln", {150, 150}, {170, 170}},
    // ... that read a tensor at every key: fetched ahead where pairs of elements are words, one by one where rows are odd, where a tensor
    // is read elsewhere too, and where it may not be read
    softmax("bias-fetched",       "fwd bf16 d=128 heads=2 mask=\"causal\" score=\"bias(extra, bf16)\"", {700}, {700}, Data::Normal),
    softmax("bias-fetched-fp32",  "fwd bf16 d=128 heads=2 score=\"bias(extra)\" lse=ln", {300}, {900}, Data::LateJump, 100),
    {"bias-fetched-64",  "fwd bf16 d=64 heads=2 mask=\"causal\" score=\"bias(extra)\" lse=ln", {700}, {700}},
    {"bias-fetched-256", "fwd bf16 d=256 heads=2 mask=\"causal\" score=\"bias(extra, bf16)\" lse=ln", {500}, {500}},
    {"bias-fetched-h",   "fwd fp16 d=128 heads=8/2 q_len<=40 mask=\"causal\" score=\"bias(extra, fp16)\"", {40}, {800}},
    {"bias-packed",      "fwd bf16 d=128 heads=2 layout=packed mask=\"causal\" score=\"bias_b(extra, bf16)\" lse=ln", {700, 1, 300, 64}, {700, 300, 1, 640}},
    {"bias-odd",         "fwd bf16 d=128 heads=2 mask=\"causal\" score=\"bias(extra, bf16)\" lse=ln", {700}, {701}},
    {"bias-odd-fp32",    "fwd bf16 d=64 heads=2 score=\"bias(extra)\" lse=ln", {301}, {701}},
    {"bias-twice",       "fwd bf16 d=128 heads=2 mask=\"causal\" params=\"a: bf16[3], c: fp32[4]\" score=\"s + a[h, q, k] * 0.5 - c[b, h, q, k]\" lse=ln", {500, 500}, {600, 600}},
    {"bias-of-no-query", "fwd bf16 d=128 heads=2 params=\"a: bf16[3]\" score=\"s + a[0, 0, k]\" lse=ln", {300}, {700}},
    {"bias-of-rows",     "fwd bf16 d=128 heads=2 params=\"a: fp16[3]\" score=\"s * (1.5 + a[h, q % 7, k] * 0.1)\" lse=ln", {300}, {700}},
    {"bias-and-distance","fwd bf16 d=128 heads=2 mask=\"causal\" params=\"a: bf16[3], slope: fp32[1]\" score=\"s + a[h, q, k] + slope[h] * (k - qpos) * 0.01\" lse=ln", {500}, {600}},
    {"bias-two-rows",    "fwd bf16 d=128 heads=2 params=\"a: bf16[3]\" score=\"s + a[h, q, k] - a[h, 0, k]\" lse=ln", {300}, {700}},
    {"bias-before",      "fwd bf16 d=128 heads=2 params=\"a: bf16[3]\" score=\"s + a[h, q, max(k - 1, 0)]\" lse=ln", {300}, {700}},
    {"bias-somewhere",   "fwd bf16 d=128 heads=2 params=\"a: bf16[3]\" score=\"where(k < 500, s + a[h, q, k], s)\" lse=ln", {300}, {700}},
    {"bias-gate",        "fwd bf16 d=128 heads=2 params=\"a: bf16[3]\" score=\"where(a[h, q, k] > 0.5, s, -inf)\" lse=ln", {300}, {700}},
    {"bias-documents",   "fwd bf16 d=128 heads=2 params=\"doc: i32[2]\" score=\"where(doc[b, q] == doc[b, k], s, s - 4.0)\" lse=ln", {300}, {700}},
    {"bias-of-ints",     "fwd bf16 d=128 heads=2 params=\"doc: i32[2]\" score=\"s + doc[b, k] * 0.25\" lse=ln", {300}, {700}},
    // ... with tanh of small arguments, of some on either side of where a polynomial ends, of large ones, infinities and NaN
    softmax("tanh-small",         "fwd bf16 d=128 heads=2 mask=\"causal\" score=\"softcap(50.0)\"", {700}, {700}, Data::Normal),
    softmax("tanh-some-small",    "fwd bf16 d=128 heads=2 mask=\"causal\" score=\"softcap(7.0)\" lse=ln", {700}, {700}, Data::Normal),
    softmax("tanh-large",         "fwd bf16 d=64 heads=2 score=\"softcap(5.0)\" lse=ln", {300}, {900}, Data::Sharp),
    softmax("tanh-huge",          "fwd fp16 d=64 heads=2 score=\"softcap(50.0)\" lse=ln", {300}, {700}, Data::Huge),
    softmax("tanh-poisoned",      "fwd bf16 d=128 heads=30/15 mask=\"causal\" score=\"softcap(50.0)\" lse=ln", {400}, {400}, Data::Poisoned),
    // ... whose cap the main step relies on: scores that leave the polynomial's range late, by a little and by much, above and below
    softmax("cap-jump-15",        kCap128, {300}, {900}, Data::LateJump, 15),
    softmax("cap-jump-20",        kCap128, {300}, {900}, Data::LateJump, 20),
    softmax("cap-jump-25",        kCap128, {300}, {900}, Data::LateJump, 25),
    softmax("cap-jump-60",        kCap128, {300}, {900}, Data::LateJump, 60),
    softmax("cap-jump-1e4",       kCap128, {300}, {900}, Data::LateJump, 1e4),
    softmax("cap-low-15",         kCap128, {300}, {900}, Data::EarlyLow, 15),
    softmax("cap-low-25",         kCap128, {300}, {900}, Data::EarlyLow, 25),
    softmax("cap-peak-15",        kCap128, {300}, {900}, Data::EarlyPeak, 15),
    softmax("cap-peak-40",        kCap128, {300}, {900}, Data::EarlyPeak, 40),
    softmax("cap-staircase",      kCap128, {300}, {1500}, Data::Staircase, 3),
    softmax("cap-30-fp16",        "fwd fp16 d=128 heads=4/2 score=\"softcap(30.0)\"", {300}, {900}, Data::EarlyPeak, 10),
    softmax("cap-21-fp16",        "fwd fp16 d=64 heads=4/2 score=\"softcap(21.0)\" lse=ln", {300}, {900}, Data::LateJump, 7),
    softmax("cap-negated",        "fwd bf16 d=128 heads=2 score=\"-(tanh(s / -40.0) * 40.0)\" lse=ln", {300}, {900}, Data::LateJump, 20),
    softmax("cap-tiny",           "fwd bf16 d=128 heads=2 score=\"softcap(0.01)\" lse=ln", {300}, {900}, Data::LateJump, 20),
    softmax("cap-sink",           "fwd bf16 d=128 heads=2 score=\"softcap(50.0)\" sink lse=ln", {300}, {900}, Data::LateJump, 25),
    softmax("cap-window",         "fwd bf16 d=128 heads=2 mask=\"causal & window(500, 0)\" score=\"softcap(50.0)\" lse=ln", {900}, {900}, Data::LateJump, 25),
    {"tanh-of-tanh",     "fwd bf16 d=128 heads=2 score=\"8.0 * tanh(tanh(s * 0.1) + 0.03 * s)\" lse=ln", {300}, {700}},
    {"tanh-of-bias",     "fwd bf16 d=128 heads=2 params=\"a: bf16[3]\" score=\"20.0 * tanh((s + a[h, q, k]) * 0.05)\" lse=ln", {300}, {700}},
    {"tanh-chosen",      "fwd bf16 d=128 heads=2 score=\"where(tanh(s) > 0.4, 4.0 * tanh(s * 0.1), s)\" lse=ln", {300}, {700}},
    {"tanh-tiny-scale",  "fwd bf16 d=128 heads=2 score=\"1e6 * tanh(s * 1e-6)\" lse=ln", {300}, {700}},
    {"tanh-and-distance","fwd bf16 d=128 heads=4 mask=\"causal\" params=\"slope: fp32[1]\" score=\"softcap(30.0) + slope[h] * (k - qpos) * 0.01\" lse=ln", {500}, {500}},
    // ... of positions and of s in odd ways
    {"distance-abs",     "fwd bf16 d=128 heads=2 score=\"s - abs(k - qpos) * 0.05\" lse=ln", {300}, {700}},
    {"distance-clamped", "fwd bf16 d=128 heads=2 mask=\"causal\" score=\"s - min(abs(k - qpos), 128) * 0.02\" lse=ln", {300}, {700}},
    {"distance-divided", "fwd bf16 d=128 heads=2 score=\"s / (1.0 + abs(k - q) / 64.0) + (q - k) / 512.0\" lse=ln", {300}, {700}},
    {"distance-chosen",  "fwd bf16 d=128 heads=2 score=\"where(k < q, s * 2.0, where(k % 3 == 0, s - (k - q) * 0.01, 1.0))\" lse=ln", {300}, {700}},
    {"score-negated",    "fwd bf16 d=128 heads=2 scale=-0.1 mask=\"causal\" score=\"1.0 - s * 0.5\"", {500}, {500}},
    {"score-squared",    "fwd bf16 d=128 heads=2 score=\"abs(s) - s * s * 0.1 + max(s, -s)\" lse=ln", {300}, {700}},
    {"score-wide-ints",  "fwd bf16 d=128 heads=2 score=\"s + (k * k % 1000) * 0.001\" lse=ln", {200}, {50000}},
    {"score-constant",   "fwd bf16 d=128 heads=2 score=\"0.5\" lse=ln", {300}, {700}},
    {"sink",            "fwd bf16 d=64 heads=4 mask=\"causal\" sink lse=ln", {200}, {200}},
    // types of the output
    {"out-fp32",        "fwd bf16 d=128 heads=2 out=fp32 mask=\"causal\" lse=ln", {200}, {200}},
    // alignment
    {"bytes8",          "fwd bf16 d=64 heads=2 bytes=8 mask=\"causal\" lse=ln", {200}, {200}},
    {"bytes4",          "fwd bf16 d=64 heads=2 bytes=4 mask=\"causal\" lse=ln", {200}, {200}},
    {"bytes2",          "fwd fp16 d=72 heads=2 bytes=2 mask=\"causal\" lse=ln", {200}, {200}},
    {"bytes2-packed",   "fwd bf16 d=64 heads=2 layout=packed bytes=2 lse=ln", {60, 90}, {61, 91}},
    // data
    {"sharp",           "fwd bf16 d=64 heads=2 lse=ln max_logit", {200}, {200}, Data::Sharp},
    {"equal",           "fwd bf16 d=64 heads=2 lse=ln max_logit", {200}, {200}, Data::Equal},
    {"huge",            "fwd fp16 d=64 heads=2 lse=ln", {200}, {200}, Data::Huge},
    {"zero",            "fwd bf16 d=64 heads=2 lse=ln max_logit", {200}, {200}, Data::Zero},
    {"inf-nan",         "fwd bf16 d=64 heads=2 mask=\"causal\" lse=ln", {200}, {200}, Data::NotFinite},
    // scale
    {"scale-negative",  "fwd bf16 d=64 heads=2 scale=-0.125 lse=ln max_logit", {100}, {100}},
    // jumps of the logits between tiles. exp(88) is the end of fp32, 65504 = exp(11.09) that of fp16
    softmax("late-jump-12-fp16",  kHalf64, {300}, {700}, Data::LateJump, 12),
    softmax("late-jump-16-fp16",  kHalf64, {300}, {700}, Data::LateJump, 16),
    softmax("late-jump-20-fp16",  kHalf64, {300}, {700}, Data::LateJump, 20),
    softmax("late-jump-11-fp16",  kHalf64, {300}, {700}, Data::LateJump, 10.9),
    softmax("late-jump-40",       kPlain64, {300}, {700}, Data::LateJump, 40),
    softmax("late-jump-40-128",   kPlain128, {300}, {700}, Data::LateJump, 40),
    softmax("late-jump-69",       kPlain128, {300}, {700}, Data::LateJump, 69),
    softmax("late-jump-88",       kPlain64, {300}, {700}, Data::LateJump, 88),
    softmax("late-jump-100",      kPlain128, {300}, {700}, Data::LateJump, 100),
    softmax("late-jump-300",      kPlain64, {300}, {700}, Data::LateJump, 300),
    softmax("late-jump-1e4",      kPlain64, {300}, {700}, Data::LateJump, 1e4),
    softmax("late-jump-1e4-max",  kMax64, {300}, {700}, Data::LateJump, 1e4),
    softmax("late-jump-40-max",   kMax64, {300}, {700}, Data::LateJump, 40),
    softmax("late-jump-1e4-128",  kPlain128, {300}, {700}, Data::LateJump, 1e4),
    softmax("late-jump-causal",   kCausal64, {900}, {900}, Data::LateJump, 100),
    softmax("late-jump-packed",   kPacked64, {300, 1, 0, 450}, {300, 500, 20, 450}, Data::LateJump, 100),
    softmax("late-jump-softcap",  "fwd bf16 d=64 heads=4 score=\"softcap(60.0)\" lse=ln", {300}, {700}, Data::LateJump, 1e3),
    softmax("late-jump-sink",     "fwd bf16 d=64 heads=4 sink lse=ln", {300}, {700}, Data::LateJump, 100),
    softmax("early-peak-100",     kPlain64, {300}, {700}, Data::EarlyPeak, 100),
    softmax("early-peak-20-fp16", kHalf64, {300}, {700}, Data::EarlyPeak, 20),
    softmax("early-low-15-fp16",  kHalf64, {300}, {700}, Data::EarlyLow, 15),
    softmax("early-low-30",       kPlain128, {300}, {700}, Data::EarlyLow, 30),
    softmax("early-low-200",      kPlain64, {300}, {700}, Data::EarlyLow, 200),
    softmax("early-low-1e4",      kPlain64, {300}, {700}, Data::EarlyLow, 1e4),
    softmax("staircase-3",        kPlain64, {300}, {1500}, Data::Staircase, 3),
    softmax("staircase-3-max",    kMax64, {300}, {1500}, Data::Staircase, 3),
    softmax("staircase-10-fp16",  kHalf64, {300}, {1500}, Data::Staircase, 10),
    softmax("staircase-15",       kPlain128, {300}, {1500}, Data::Staircase, 15),
    softmax("staircase-50-causal",kCausal64, {1500}, {1500}, Data::Staircase, 50),
    softmax("large-values-fp16",  kHalf64, {300}, {700}, Data::LargeValues, 0),
    softmax("large-values-fp16-8",kHalf64, {300}, {700}, Data::LargeValues, 8),
    softmax("large-values",       kPlain64, {300}, {700}, Data::LargeValues, 0),
    softmax("large-values-30",    kPlain128, {300}, {700}, Data::LargeValues, 30),
    softmax("equal-long",         kPlain128, {300}, {1500}, Data::Equal),
    softmax("huge-long",          kPlain128, {300}, {1500}, Data::Huge),
    softmax("sharp-long",         kCausal64, {900}, {900}, Data::Sharp),
    // without lse: row sums from a column of ones, and polynomial exponentials, which lse excludes
    softmax("sums-jump-12",       kSums128, {300}, {700}, Data::LateJump, 12),
    softmax("sums-jump-40",       kSums128, {300}, {700}, Data::LateJump, 40),
    softmax("sums-jump-100",      kSumsCausal128, {900}, {900}, Data::LateJump, 100),
    softmax("sums-jump-1e4",      kSums128, {300}, {700}, Data::LateJump, 1e4),
    softmax("sums-jump-11-fp16",  kSumsHalf128, {300}, {700}, Data::LateJump, 10.9),
    softmax("sums-jump-20-fp16",  kSumsHalf128, {300}, {700}, Data::LateJump, 20),
    softmax("sums-staircase-15",  kSums128, {300}, {1500}, Data::Staircase, 15),
    softmax("sums-early-low-30",  kSums128, {300}, {700}, Data::EarlyLow, 30),
    softmax("sums-large-values",  kSums128, {300}, {700}, Data::LargeValues, 30),
    softmax("sums-equal",         kSumsHalf128, {300}, {1500}, Data::Equal),
    softmax("sums-poisoned",      "fwd bf16 d=128 heads=30/15 mask=\"causal\"", {400}, {400}, Data::Poisoned),
    softmax("sums-neighbours",    "fwd bf16 d=128 heads=4/2 layout=packed mask=\"causal\"", {70, 33, 200, 1, 129, 64, 0}, {70, 50, 333, 65, 129, 500, 40}, Data::Neighbours),
    softmax("sums-without-keys",  "fwd bf16 d=128 heads=4 mask=\"q % 3 != 0\"", {300}, {700}, Data::LateJump, 60),
    softmax("sums-half-empty",    kSumsCausal128, {700}, {300}, Data::Normal),
    // what the first visited tile, or none, shows to a row
    softmax("first-tile-empty",   "fwd bf16 d=64 heads=4 mask=\"q % 2 == 0 | k < 100\" lse=ln", {300}, {700}, Data::LateJump, 60),
    softmax("first-tile-hidden",  "fwd bf16 d=64 heads=4 mask=\"k < 50 | (q % 4 == 1 & k > 690)\" lse=ln", {300}, {700}, Data::Normal),
    softmax("rows-without-keys",  "fwd bf16 d=64 heads=4 mask=\"q % 3 != 0\" lse=ln", {300}, {700}, Data::LateJump, 60),
    softmax("half-without-keys",  kCausal64, {700}, {300}, Data::LateJump, 60),
    // infinities and NaN
    softmax("poisoned",           "fwd bf16 d=64 heads=30 lse=ln", {300}, {500}, Data::Poisoned),
    softmax("poisoned-causal",    "fwd bf16 d=128 heads=30/15 mask=\"causal\" lse=ln", {400}, {400}, Data::Poisoned),
    softmax("poisoned-fp16",      "fwd fp16 d=64 heads=15 lse=ln", {200}, {300}, Data::Poisoned),
    softmax("neighbours",         "fwd bf16 d=128 heads=4/2 lse=ln", {177, 177, 177}, {333, 333, 333}, Data::Neighbours),
    softmax("neighbours-bhsd",    "fwd fp16 d=64 heads=4/2 layout=bhsd mask=\"causal\" lse=ln", {130, 130, 130}, {190, 190, 190}, Data::Neighbours),
    softmax("neighbours-packed",  kPacked64, {70, 33, 200, 1, 129, 64, 0}, {70, 50, 333, 65, 129, 500, 40}, Data::Neighbours),
    softmax("neighbours-keyless", "fwd bf16 d=64 heads=2 layout=packed lse=ln", {40, 70, 33, 10, 100}, {0, 64, 5, 300, 191}, Data::Neighbours),
    // heads of a group in one tile
    softmax("group-decode",       "fwd bf16 d=128 heads=32/8 q_len=1 lse=ln", {1, 1, 1}, {1500, 1500, 1500}, Data::Normal),
    softmax("group-decode-jump",  "fwd bf16 d=64 heads=32/4 q_len<=5 lse=ln", {5, 5}, {700, 700}, Data::LateJump, 100),
    softmax("group-causal",       "fwd fp16 d=64 heads=16/2 q_len<=40 mask=\"causal\" sink lse=ln", {33, 33}, {190, 190}, Data::Normal),
    softmax("group-alibi",        "fwd bf16 d=128 heads=8/2 mask=\"causal\" score=\"alibi\" lse=ln", {177}, {333}, Data::Normal),
    softmax("group-bhsd",         "fwd bf16 d=64 heads=8/1 layout=bhsd mask=\"window(100, 0)\" lse=ln", {65}, {400}, Data::Normal),
    softmax("group-poisoned",     "fwd bf16 d=64 heads=60/15 q_len<=20 lse=ln", {17}, {300}, Data::Poisoned),
    // lengths that are no multiple of any tile
    softmax("ragged",             kPlain128, {191}, {577}, Data::Normal),
    softmax("ragged-causal",      kCausal64, {449}, {449}, Data::Normal),
    softmax("ragged-few-keys",    kPlain64, {300}, {3}, Data::Normal),
    softmax("no-keys-at-all",     kPlain64, {300}, {0}, Data::Normal),
    softmax("no-queries-at-all",  kPlain64, {0}, {300}, Data::Normal),
    // tiles that only some warpgroups of a block see, and warpgroups without queries, on blocks that have several items
    softmax("left-out-window",    "fwd bf16 d=64 heads=120 mask=\"window(150, 40)\" lse=ln", {450}, {450}, Data::Normal),
    softmax("left-out-causal",    "fwd bf16 d=128 heads=120 mask=\"causal\"", {300}, {400}, Data::Normal),
    softmax("left-out-bias",      "fwd bf16 d=64 heads=90 mask=\"causal & window(200, 0)\" score=\"bias(extra, bf16)\" lse=ln", {333}, {450}, Data::Normal),
    softmax("idle-packed",        "fwd bf16 d=64 heads=60 layout=packed mask=\"causal\" lse=ln", {193, 65, 1, 129, 0, 385}, {193, 365, 64, 129, 70, 385}, Data::Normal),
    softmax("idle-full",          "fwd fp16 d=64 heads=150 lse=ln", {200}, {700}, Data::LateJump, 40),
    softmax("idle-bias",          "fwd bf16 d=128 heads=150 score=\"bias(extra, bf16)\" lse=ln", {60}, {500}, Data::Normal),
    softmax("idle-holes",         "fwd bf16 d=64 heads=150 mask=\"k < 64 | (k >= 512 & k < 520)\"", {70}, {700}, Data::Normal),
    // at the same time
    side_by_side("side-by-side",        "fwd bf16 d=64 heads=32/8 mask=\"causal\" lse=ln", {1000}, {1000}),
    side_by_side("side-by-side-128",    "fwd bf16 d=128 heads=32/8 mask=\"causal\" numerics=deterministic lse=ln", {700}, {900}),
    side_by_side("side-by-side-packed", "fwd bf16 d=64 heads=24 layout=packed mask=\"causal\" lse=ln", {900, 64, 500, 300}, {900, 64, 500, 300}),
    // 64-bit offsets and large grids
    {"far-batches",     "fwd bf16 d=64 heads=2 lse=ln", {70, 70}, {130, 130}, Data::Normal, true, true},
    {"many-blocks",     "fwd bf16 d=8 heads=32", Lens(70000, 1), Lens(70000, 2), Data::Normal, false, true},
    {"long-sequence",   "fwd bf16 d=64 heads=1 mask=\"causal & window(300, 0)\" lse=ln", {150000}, {150000}, Data::Normal, false, true},
};
// clang-format on

}  // namespace

std::span<const FixedCase> fixed_cases() { return kCases; }

}  // namespace flashjit::testing_random
