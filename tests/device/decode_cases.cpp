// Few queries over many keys, whose keys are split among blocks.
#include "tests/device/cases.h"

namespace flashjit::testing_random {
namespace {

using Lens = std::vector<std::int64_t>;

// clang-format off
const FixedCase kCases[] = {
    // row tiles of teams: of as many blocks as there may be, of seven or so, of two, of one with several parts, whose rows
    // lie in several warps; fixed parts that blocks push, of which some have none, and that are more than blocks
    {"decode-team-14",  "fwd bf16 d=80 heads=32/8 q_len=1 lse=ln max_logit", {1}, {3000}},
    {"decode-team-16",  "fwd bf16 d=128 heads=32/4 q_len=2 lse=ln", {2}, {8000}},
    {"decode-team-7",   "fwd fp16 d=128 heads=32/8 q_len=1 layout=paged(16) lse=ln", {1, 1}, {3000, 1700}},
    {"decode-team-2",   "fwd fp16 d=128/72 heads=16/8 q_len=1 sink lse=ln", Lens(8, 1), Lens(8, 500)},
    {"decode-parts-8",  "fwd bf16 d=80 heads=32/8 q_len=1 lse=ln numerics=batch_invariant", {1}, {1000}},
    {"decode-parts-5",  "fwd fp16 d=128 heads=32/8 q_len=1 layout=paged(64) lse=ln max_logit numerics=batch_invariant", {1, 1}, {600, 300}},
    {"decode-parts-20", "fwd bf16 d=80 heads=32/8 q_len=1 lse=ln numerics=batch_invariant", {1}, {20000}},
    {"decode-parts-1",  "fwd bf16 d=80 heads=16/8 q_len=1 lse=ln numerics=batch_invariant", Lens(16, 1), Lens(16, 1700)},
    // ranges of four heads side by side, and of two
    {"decode-ranges-4", "fwd bf16 d=128 heads=32/8 q_len=1 layout=bhsd k_lens lse=ln max_logit", {1, 1, 1}, {9000, 7, 2500}},
    {"decode-ranges-2", "fwd fp16 d=64/80 heads=6 q_len=1 layout=bhsd k_lens lse=ln", {1, 1, 1}, {3000, 0, 1999}},
    // more than 16 rows: 24, 32, several tiles of them, tiles that end early; ranges that begin within a tile or have several
    {"decode-rows-24",  "fwd bf16 d=128 heads=64/8 q_len=3 mask=\"causal\" lse=ln max_logit", {3, 3}, {3000, 3000}},
    {"decode-rows-32",  "fwd fp16 d=128 heads=64/8 layout=paged(64) q_len=4 mask=\"causal\" lse=ln", {4, 4, 4, 4}, {3000, 2, 700, 65}},
    {"decode-rows-20",  "fwd bf16 d=96 heads=20/5 layout=bhsd q_len=5 mask=\"causal\" sink lse=ln", Lens(3, 5), Lens(3, 999)},
    {"decode-rows-64",  "fwd bf16 d=128 heads=32/4 layout=paged(16) q_len=8 mask=\"causal\" lse=ln", {8, 8}, {4000, 1700}},
    {"decode-rows-many","fwd fp16 d=64 heads=32/4 k_lens q_len=4 mask=\"causal\" lse=ln", Lens(40, 4), Lens(40, 333)},
    {"decode-rows-mixed","fwd bf16 d=128 heads=16/2 layout=packed/paged(64) q_len<=16 mask=\"causal\" lse=ln max_logit", {16, 1, 0, 5, 3}, {700, 2000, 5, 64, 2}},
    {"decode-rows-tree","fwd bf16 d=64 heads=8/1 layout=paged(64) q_len=12 mask=\"tree(ancestors)\" lse=ln", {12, 12}, {2000, 300}},
    {"decode-rows-cap", "fwd bf16 d=80/112 heads=8/2 q_len=7 mask=\"window(300, 0) | k < 4\" score=\"softcap(20)\" lse=ln", {7, 7}, {1000, 1000}},
    {"decode-rows-e4m3","fwd bf16 kv=e4m3 d=128 heads=32/4 layout=paged(64) q_len=3 mask=\"causal\" lse=ln", {3, 3}, {3000, 90}},
    {"decode-rows-int8","fwd fp16 kv=int8 d=64 heads=16/2 k_lens q_len=4 mask=\"causal\" lse=ln", {4, 4}, {1500, 31}},
    {"decode-rows-token","fwd fp16 kv=e5m2 d=64 heads=8/1 layout=paged(16) q_len=4 mask=\"causal\" token_scales lse=ln", {4, 4}, {700, 90}},
    {"decode-rows-fp8", "fwd e4m3 d=64 heads=16/2 q_len=4 mask=\"causal\" lse=ln", {4, 4}, {1500, 1500}},
    {"decode-rows-append","fwd bf16 d=128 heads=32/4 layout=paged(64) q_len=4 mask=\"causal\" append rope=half(128)", {4, 4}, {3000, 66}},
    {"decode-rows-v-in-k","fwd fp16 d=128/72 heads=8/1 q_len=4 v_in_k k_lens lse=ln", {4, 4, 4}, {700, 0, 65}},
    {"decode-rows-256", "fwd bf16 d=256 heads=8/4 layout=paged(64) q_len=5 mask=\"causal\" lse=ln max_logit", {5, 5, 5}, {3000, 66, 700}},
    {"decode-rows-256-group", "fwd fp16 d=256 heads=16/1 k_lens q_len=2 mask=\"causal & window(500, 0)\" lse=ln sink", {2, 2, 2}, {2500, 3, 900}},
    {"decode-rows-224-e4m3", "fwd bf16 kv=e4m3 d=224 heads=12/1 layout=paged(16) q_len=1 lse=ln", {1, 1, 1}, {2100, 40, 333}},
    {"decode-rows-256-bits", "fwd bf16 d=256 heads=12/1 layout=paged(64) q_len=1 numerics=batch_invariant lse=ln", {1, 1, 1}, {2100, 40, 333}},
    {"decode-rows-prefix","fwd bf16 d=128 heads=8/1 layout=paged(64) q_len=4 mask=\"causal\" lse=ln shared_prefix", {4, 4, 4}, {4000, 4100, 5000}},
};
// clang-format on

}  // namespace

std::span<const FixedCase> decode_cases() { return kCases; }

}  // namespace flashjit::testing_random
