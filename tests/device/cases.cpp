#include "tests/device/cases.h"

namespace flashjit::testing_random {
namespace {

using Lens = std::vector<std::int64_t>;

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
    // 64-bit offsets and large grids
    {"far-batches",     "fwd bf16 d=64 heads=2 lse=ln", {70, 70}, {130, 130}, Data::Normal, true, true},
    {"many-blocks",     "fwd bf16 d=8 heads=32", Lens(70000, 1), Lens(70000, 2), Data::Normal, false, true},
    {"long-sequence",   "fwd bf16 d=64 heads=1 mask=\"causal & window(300, 0)\" lse=ln", {150000}, {150000}, Data::Normal, false, true},
};
// clang-format on

}  // namespace

std::span<const FixedCase> fixed_cases() { return kCases; }

}  // namespace flashjit::testing_random
