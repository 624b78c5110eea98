// The specs that a spec with shared_prefix is computed by.
#include "compiler/cascade.h"

#include <gtest/gtest.h>

#include "compiler/families/family.h"
#include "compiler/plan.h"

namespace flashjit {
namespace {

Cascade cascade(const char* text, const char* target, const char* pins = "") {
  const auto spec = parse_spec(text);
  EXPECT_TRUE(spec) << text;
  auto made = cascade_of(*spec, **find_target(target), *parse_schedule(pins));
  EXPECT_TRUE(made) << made.error().message;
  return made ? std::move(*made) : Cascade{};
}

const char* const kText =
    "fwd bf16 d=128 heads=32/8 layout=paged(64) mask=\"causal\" score=\"softcap(20)\" lse=log2 "
    "max_logit sink append shared_prefix rope=half(64) q_len=1";

// Where they differ from what they were made of: nothing is done twice, and nothing is lost.
TEST(Cascade, PartsShareTheWork) {
  const Cascade made = cascade(kText, "sm_90a");
  const AttentionSpec &prefix = made.prefix.spec, &own = made.own.spec, &merge = made.merge.spec;
  for (const AttentionSpec* component : {&prefix, &own}) {
    EXPECT_EQ(component->out_dtype, Dtype::F32);
    EXPECT_EQ(component->lse, Lse::log2);
    EXPECT_TRUE(component->max_logit && !component->shared_prefix);
    EXPECT_EQ(component->score_text, "softcap(20)");
    // The text is a spec like any other.
    const auto again = parse_spec(print(*component));
    ASSERT_TRUE(again) << print(*component) << again.error().message;
    EXPECT_EQ(print(*again), print(*component));
  }
  EXPECT_TRUE(!prefix.sink && own.sink) << "the sink counts once";
  EXPECT_TRUE(!prefix.append && own.append) << "rows are written once";
  EXPECT_TRUE(prefix.rope == Rope::none && own.rope == Rope::half) << "and rotated once";
  EXPECT_EQ(prefix.batch.max, kMostPieces);
  EXPECT_EQ(merge.out_dtype, Dtype::BF16);
  EXPECT_TRUE(merge.shared_prefix && merge.k_lens && merge.max_logit && merge.lse == Lse::log2);
}

// A prefix of 32k with 64 sequences is bound by the rate of matrix products, and what is each one's own by reading.
TEST(Cascade, EachComponentHasAFamilyOfItsOwn) {
  const Cascade made = cascade("fwd bf16 d=128 heads=32/8 layout=paged(64) q_len=1 shared_prefix", "sm_90a");
  const auto family = [](const Cascade::Component& component) {
    const auto plan = make_plan(component.spec, **find_target("sm_90a"), component.pins);
    return plan ? std::string(plan->schedule.family->name) : plan.error().message;
  };
  EXPECT_EQ(family(made.prefix), "hopper");
  EXPECT_EQ(print(made.prefix.pins), "tile_q=128,head_tiles=grouped");
  EXPECT_EQ(family(made.own), "decode");
  EXPECT_EQ(family(made.merge), "merge");
  const Cascade pinned = cascade("fwd bf16 d=128 heads=32/8 layout=paged(64) shared_prefix", "sm_90a", "family=sync");
  EXPECT_EQ(family(pinned.prefix), "sync");
  EXPECT_EQ(family(pinned.own), "sync");
}

// Other specs are those of one kernel, which says why.
TEST(Cascade, IsNotForSequencesThatSeeOtherKeys) {
  const auto note = [](const std::string& fields, const char* target) {
    const auto spec = parse_spec("fwd bf16 d=64 heads=8/2 shared_prefix " + fields);
    EXPECT_TRUE(spec) << fields;
    if (!spec || is_cascade(*spec, **find_target(target))) return std::string("a cascade");
    const auto plan = make_plan(*spec, **find_target(target));
    for (const std::string& text : plan->notes) {
      if (text.starts_with("shared_prefix: ")) return text.substr(text.find("since ") + 6);
    }
    return std::string("no note");
  };
  const char* const hides = "the mask may hide some of those before the first query";
  EXPECT_EQ(note("layout=paged(16) mask=\"window(64, 0)\"", "sm_90a"), hides);
  EXPECT_EQ(note("layout=paged(16) mask=\"causal\" align=top_left", "sm_80"), hides);
  EXPECT_EQ(note("layout=paged(16) mask=\"document(doc)\"", "sm_90a"), hides);
  EXPECT_EQ(note("layout=paged(16) mask=\"causal & k != 3\"", "sm_90a"), hides);
  EXPECT_EQ(note("layout=paged(16) score=\"alibi\" bytes=2", "sm_90a"), "the score reads `q`, of its own for each");
  EXPECT_EQ(note("layout=paged(16) score=\"s + float(b)\"", "sm_90a"), "the score reads `b`, of its own for each");
  EXPECT_EQ(note("layout=packed/paged(16)", "sm_90a"), "they have different numbers of queries");
  EXPECT_EQ(note("layout=paged(16) mask=\"causal\"", "sm_90a"), "a cascade");
  EXPECT_EQ(note("layout=paged(16) mask=\"window(64, 0)\"", "x86-64-v3"), "no note") << "processors have no other way";
}

// Begin and end of piece b, and the first key of a sequence's own, as the kernels' masks have them.
struct Sizes {
  std::int64_t prefix, first_length, capacity, pieces;
};

bool visible(const AttentionSpec& spec, const Sizes& sizes, std::int64_t b, std::int64_t k, std::int64_t k_len) {
  const auto prefix = static_cast<std::int32_t>(sizes.prefix), length = static_cast<std::int32_t>(sizes.first_length);
  const auto pieces = static_cast<std::uint8_t>(sizes.pieces);
  std::vector<ParamValue> values;
  for (const Param& param : spec.params) {
    ParamValue value{.data = &pieces};
    if (param.name == "shared_prefix") value.data = &prefix;
    if (param.name == "prefix_lens") value.data = &length;
    if (param.rank == 1) value.shape[0] = value.stride[0] = 1;
    values.push_back(value);
  }
  Environment at{.params = &spec.params, .values = values.data()};
  at.variables[static_cast<int>(Variable::K)] = k;
  at.variables[static_cast<int>(Variable::B)] = b;
  at.variables[static_cast<int>(Variable::QLen)] = 1;
  at.variables[static_cast<int>(Variable::KLen)] = k_len;
  return evaluate(spec.mask, at).integer != 0;
}

TEST(Cascade, EveryKeyIsReadOnce) {
  const Cascade made = cascade("fwd bf16 d=64 heads=8/2 layout=paged(16) q_len=1 shared_prefix", "sm_90a");
  for (const Sizes& sizes : {Sizes{100, 300, 512, 1},
                             {100, 300, 512, 3},
                             {64, 65, 512, 5},
                             {64, 64, 512, 5},
                             {511, 512, 512, 7},
                             {511, 9999, 512, 7},
                             {512, 9999, 512, 7},
                             {0, 300, 512, 4},
                             {-5, 300, 512, 4},
                             {1 << 30, 300, 512, 4},
                             {200, -1, 512, 4},
                             {3, 300, 512, 32}}) {
    const bool has = std::min(sizes.first_length, sizes.capacity) - 1 >= sizes.prefix;
    const std::int64_t shared = has ? std::max<std::int64_t>(sizes.prefix, 0) : 0;
    for (std::int64_t k = 0; k < sizes.capacity; ++k) {
      int pieces = 0;
      for (std::int64_t b = 0; b < sizes.pieces; ++b) pieces += visible(made.prefix.spec, sizes, b, k, sizes.capacity);
      EXPECT_EQ(pieces, k < shared ? 1 : 0) << k << " of " << sizes.prefix << ", " << sizes.pieces << " pieces";
      // Of a sequence that is long enough, and of one that is not.
      EXPECT_EQ(visible(made.own.spec, sizes, 1, k, sizes.capacity), k >= shared) << k << " of " << sizes.prefix;
      const std::int64_t shorter = std::max<std::int64_t>(std::min(sizes.prefix, sizes.capacity), 0);
      EXPECT_TRUE(k >= shorter || visible(made.own.spec, sizes, 1, k, shorter)) << k << " of " << sizes.prefix;
    }
  }
}

TEST(Cascade, PiecesFillTheDevice) {
  const auto spec = parse_spec("fwd bf16 d=128 heads=32/8 layout=paged(64) shared_prefix");
  Target target = **find_target("sm_90a");
  target.sm_count = 132;
  EXPECT_EQ(pieces_of(*spec, target, 64), 8) << "2 tiles of 8 KV heads";
  EXPECT_EQ(pieces_of(*spec, target, 1), 16);
  EXPECT_EQ(pieces_of(*spec, target, 1 << 20), 1);
  EXPECT_EQ(pieces_of(*parse_spec("fwd bf16 d=128 heads=8/1 layout=paged(64) shared_prefix"), target, 1), kMostPieces);
}

}  // namespace
}  // namespace flashjit
