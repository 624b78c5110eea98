// Rounding to 8 bits, by itself and before attention; attention in 8 bits with scores.
#include "tests/device/cases.h"

namespace flashjit::testing_random {
namespace {

using Lens = std::vector<std::int64_t>;

// clang-format off
const FixedCase kCases[] = {
    // rows of 8 bits: of every way to rotate, to share a scale and to lie in memory
    {"quantize-128",        "quantize bf16 d=128 heads=4 rotate scales=block(128)", {300, 300}, {}},
    {"quantize-128-plain",  "quantize bf16 d=128 heads=4 scales=block(128)", {256}, {}},
    {"quantize-128-heads",  "quantize bf16 d=128 heads=3 rotate", {1000, 1000}, {}},
    {"quantize-heads",      "quantize fp16 d=64 heads=5 out=e5m2", {515}, {}},
    {"quantize-64",         "quantize fp16 d=64 heads=2 layout=bhsd rotate scales=block(64)", {200, 200}, {}, Data::Sharp},
    {"quantize-256",        "quantize bf16 d=256 heads=2 rotate scales=block(128)", {140, 140}, {}},
    {"quantize-256-more",   "quantize bf16 d=256 heads=2 rotate scales=block(512)", {1300}, {}, Data::Sharp},
    {"quantize-192",        "quantize bf16 d=192 heads=3 rotate scales=block(192)", {500}, {}},
    {"quantize-160",        "quantize fp16 d=160 heads=2 rotate scales=block(128) out=e5m2", {130}, {}},
    {"quantize-96",         "quantize fp16 d=96 heads=2 rotate scales=block(64)", {100, 100}, {}},
    {"quantize-80",         "quantize bf16 d=80 heads=2 rotate", {130}, {}},
    {"quantize-48",         "quantize bf16 d=48 heads=3 layout=packed rotate", {333}, {}},
    {"quantize-32",         "quantize bf16 d=32 heads=3 rotate scales=block(1024)", {1100}, {}},
    {"quantize-16",         "quantize fp16 d=16 heads=1 rotate scales=block(64) bytes=2", {70}, {}},
    {"quantize-72",         "quantize bf16 d=72 heads=3 scales=block(64) bytes=8", {65}, {}},
    {"quantize-8",          "quantize bf16 d=8 heads=3 bytes=4", {65, 65}, {}},
    {"quantize-zero",       "quantize bf16 d=128 heads=2 rotate scales=block(64)", {100}, {}, Data::Zero},
    {"quantize-huge",       "quantize bf16 d=128 heads=2 rotate", {300}, {}, Data::Huge},
    {"quantize-codes",      "quantize bf16 d=128 heads=2 scales=block(64)", {300}, {}, Data::Codes},
    {"quantize-codes-e5m2", "quantize bf16 d=128 heads=2 out=e5m2", {300}, {}, Data::Codes},
    {"quantize-nan",        "quantize bf16 d=128 heads=2 rotate scales=block(128)", {300}, {}, Data::NotFinite},
    {"quantize-nan-heads",  "quantize fp16 d=64 heads=2", {300, 300}, {}, Data::NotFinite},
    {"quantize-nan-e5m2",   "quantize bf16 d=64 heads=2 out=e5m2 scales=block(64)", {300}, {}, Data::NotFinite},
    {"quantize-rope",       "quantize bf16 d=128 heads=3 rotate scales=block(128) rope=half(128)", {300, 300}, {}},
    {"quantize-rope-64",    "quantize fp16 d=64 heads=2 layout=bhsd rotate rope=half(64) rope_base=10000", {515}, {}},
    {"quantize-rope-256",   "quantize bf16 d=256 heads=2 rotate scales=block(64) rope=interleaved(256)", {140, 140}, {}},
    {"quantize-rope-192",   "quantize bf16 d=192 heads=2 rotate rope=half(64)", {200}, {}, Data::Sharp},
    {"quantize-rope-part",  "quantize bf16 d=96 heads=2 rotate scales=block(128) rope=half(96)", {300}, {}},
    {"quantize-rope-odd",   "quantize fp16 d=80 heads=3 rotate scales=block(64) rope=half(26)", {170}, {}},
    {"quantize-rope-few",   "quantize bf16 d=128 heads=2 rotate rope=interleaved(10) rope_base=500000", {300, 300}, {}},
    {"quantize-rope-plain", "quantize bf16 d=128 heads=2 scales=block(64) rope=interleaved(64) out=e5m2", {130}, {}},
    {"quantize-rope-72",    "quantize fp16 d=72 heads=3 bytes=8 rope=half(72) rope_base=10000", {65}, {}},
    {"quantize-rope-8",     "quantize bf16 d=8 heads=2 bytes=2 rope=half(6)", {65, 65}, {}},
    {"quantize-rope-packed", "quantize bf16 d=64 heads=3 layout=packed rotate rope=half(32)", {333}, {}},
    {"quantize-rope-nan",   "quantize bf16 d=128 heads=2 rotate scales=block(128) rope=half(64)", {300}, {}, Data::NotFinite},
    {"quantize-rope-huge",  "quantize fp16 d=64 heads=2 scales=block(64) rope=half(64)", {300}, {}, Data::Huge},
    {"quantize-rope-none",  "quantize bf16 d=64 heads=2 rotate rope=half(64)", {0, 0}, {}},
    {"quantize-block-packed", "quantize bf16 d=128 heads=3 layout=packed rotate scales=block(128)", {300, 0, 1, 129}, {}},
    {"quantize-block-packed-64", "quantize fp16 d=96 heads=4 layout=packed scales=block(64) out=e5m2", {64, 65, 200}, {}},
    {"quantize-block-packed-more", "quantize bf16 d=64 heads=2 layout=packed rotate scales=block(256) rope=half(64)", {700, 5, 256, 0, 257}, {}, Data::Sharp},
    {"quantize-none",       "quantize bf16 d=128 heads=4 rotate scales=block(128)", {0, 0}, {}},
    // attention to Q, K and V that are rounded to 8 bits first
    {"compute-128",         "fwd bf16 d=128 heads=4/2 compute=e4m3 rotate scales=block(128)", {300, 300}, {400, 400}},
    {"compute-causal",      "fwd bf16 d=64 heads=4 mask=\"causal\" lse=ln compute=e4m3 rotate", {200, 200}, {500, 500}},
    {"compute-packed",      "fwd fp16 d=96 heads=2 layout=packed mask=\"causal\" lse=ln compute=e4m3 rotate", {100, 0, 37}, {100, 20, 300}},
    {"compute-block-packed", "fwd bf16 d=128 heads=4/2 layout=packed mask=\"causal\" lse=ln compute=e4m3 rotate scales=block(64)", {100, 0, 137}, {150, 20, 300}},
    {"compute-bhsd",        "fwd bf16 d=128/64 heads=2 layout=bhsd compute=e4m3 scales=block(64)", {130}, {257}},
    {"compute-plain",       "fwd bf16 d=72 heads=3 out=fp32 score=\"softcap(20)\" compute=e4m3", {100}, {300}},
    {"compute-e5m2",        "fwd fp16 d=64 heads=2 compute=e5m2", {70}, {333}},
    {"compute-256",         "fwd bf16 d=256 heads=2/1 mask=\"window(100, 0)\" compute=e4m3 rotate scales=block(64)", {300}, {300}},
    {"compute-decode",      "fwd bf16 d=128 heads=8/2 q_len=1 max_logit compute=e4m3 rotate", {1, 1, 1}, {700, 700, 700}},
    {"compute-rope",        "fwd bf16 d=128 heads=4/2 mask=\"causal\" compute=e4m3 rotate scales=block(128) rope=half(128)", {300, 300}, {400, 400}},
    {"compute-rope-base",   "fwd fp16 d=64 heads=4 layout=bhsd lse=ln compute=e4m3 rope=interleaved(64) rope_base=10000", {200, 200}, {333, 333}},
    {"compute-rope-top",    "fwd bf16 d=96/64 heads=2 mask=\"causal\" align=top_left compute=e4m3 rotate rope=half(96)", {200}, {130}},
    {"compute-rope-behind", "fwd bf16 d=64 heads=2 lse=ln compute=e5m2 rope=half(32)", {90}, {70}},
    {"compute-rope-one",    "fwd bf16 d=128 heads=8/2 q_len=1 compute=e4m3 rotate rope=half(128) rope_base=500000", {1, 1, 1}, {700, 700, 700}},
    {"compute-rope-none",   "fwd bf16 d=64 heads=2 lse=ln compute=e4m3 rotate rope=half(64)", {5, 5}, {0, 0}},
    {"compute-none",        "fwd bf16 d=64 heads=2 lse=ln compute=e4m3 rotate", {5, 5}, {0, 0}},
    {"compute-none-sink",   "fwd fp16 d=112 heads=6/3 sink bytes=8 compute=e4m3", {35, 35}, {0, 0}},
    // Q of 8 bits with scores, which read tensors beside K or have a main step of their own
    {"fp8-bias-fetched", "fwd e4m3 d=128 heads=4/2 mask=\"causal\" score=\"bias(extra, bf16)\" lse=ln", {700, 700}, {800, 800}},
    {"fp8-bias-fp32",   "fwd e4m3 d=128 heads=2 score=\"bias(extra)\" out=fp32 scales=block(128)", {300}, {900}},
    {"fp8-bias-64",     "fwd e4m3 d=64 heads=2 mask=\"causal\" score=\"bias(extra, bf16)\"", {700}, {700}},
    {"fp8-bias-jump",   "fwd e4m3 d=128 heads=2 score=\"bias(extra)\" lse=ln", {300}, {900}, Data::LateJump, false, false, 100},
    {"fp8-bias-packed", "fwd e4m3 d=128 heads=2 layout=packed mask=\"causal\" score=\"bias_b(extra, bf16)\" lse=ln", {700, 1, 300, 64}, {700, 300, 1, 640}},
    {"fp8-cap",         "fwd e4m3 d=128 heads=4/2 mask=\"causal\" score=\"softcap(50)\" lse=ln", {700, 700}, {900, 900}},
    {"fp8-cap-jump",    "fwd e4m3 d=128 heads=4/2 score=\"softcap(50)\" lse=ln", {300}, {900}, Data::LateJump, false, false, 25},
    {"fp8-cap-peak",    "fwd e4m3 d=64 heads=2 score=\"softcap(30)\" out=fp16", {300}, {900}, Data::EarlyPeak, false, false, 40},
    // weights that are the bits of their exponents
    {"linear-128",      "fwd e4m3 d=128 heads=4/2 mask=\"causal\" linear_exp", {700, 700}, {1900, 1900}},
    {"linear-64",       "fwd e4m3 d=64 heads=4 linear_exp", {700, 700}, {1900, 1900}},
    {"linear-64-causal", "fwd e4m3 d=64 heads=4/2 mask=\"causal\" linear_exp", {1000}, {1000}},
    {"linear-32-window", "fwd e4m3 d=32 heads=2 mask=\"window(300, 100)\" sink linear_exp", {900}, {900}},
    {"linear-96-holes", "fwd e4m3 d=96 heads=2 mask=\"(q - k) % 512 < 128\" linear_exp out=fp32", {900}, {1500}},
    {"linear-192-128",  "fwd e4m3 d=192/128 heads=2 mask=\"causal\" linear_exp", {500}, {900}},
    {"linear-blocks",   "fwd e4m3 d=128 heads=4/2 linear_exp scales=block(128)", {700, 700}, {1900, 1900}},
    {"linear-packed",   "fwd e4m3 d=64 heads=4/2 layout=packed mask=\"causal\" linear_exp", {700, 1, 0, 300}, {700, 300, 5, 1640}},
    {"linear-paged",    "fwd e4m3 d=128 heads=8/2 layout=packed/paged(64) mask=\"causal\" linear_exp", {700, 1, 300, 1}, {900, 300, 300, 1640}},
    {"linear-jump",     "fwd e4m3 d=128 heads=2 linear_exp", {300}, {900}, Data::LateJump, false, false, 100},
    {"linear-jump-64",  "fwd e4m3 d=64 heads=2 linear_exp", {300}, {2000}, Data::LateJump, false, false, 20},
    {"linear-peak",     "fwd e4m3 d=64 heads=2 linear_exp out=fp16", {300}, {900}, Data::EarlyPeak, false, false, 40},
    {"linear-huge",     "fwd e4m3 d=128 heads=2 linear_exp", {300}, {900}, Data::Huge},
    {"linear-nan",      "fwd e4m3 d=64 heads=2 linear_exp", {300}, {900}, Data::NotFinite},
    {"linear-zero",     "fwd e4m3 d=64 heads=2 linear_exp", {300}, {900}, Data::Zero},
    {"linear-cap",      "fwd e4m3 d=128 heads=4/2 mask=\"causal\" score=\"softcap(50)\" linear_exp", {700, 700}, {900, 900}},
    {"linear-alibi",    "fwd e4m3 d=64 heads=4/2 mask=\"causal\" score=\"alibi\" linear_exp", {700, 700}, {900, 900}},
    {"linear-bias",     "fwd e4m3 d=128 heads=2 score=\"bias(extra, bf16)\" linear_exp", {300}, {900}},
    {"linear-max",      "fwd e4m3 d=128 heads=2 max_logit linear_exp", {300}, {900}},
    {"linear-exact",    "fwd e4m3 d=256 heads=2 linear_exp", {300}, {900}},
    {"linear-compute",  "fwd bf16 d=128 heads=4/2 mask=\"causal\" compute=e4m3 rotate linear_exp", {900, 900}, {900, 900}},
};
// clang-format on

}  // namespace

std::span<const FixedCase> narrow_cases() { return kCases; }

}  // namespace flashjit::testing_random
