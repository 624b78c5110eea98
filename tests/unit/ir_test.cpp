// The verifier finds what passes could get wrong: each case takes a sound program and breaks one thing.
#include "compiler/ir.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "compiler/candidates.h"
#include "compiler/passes.h"
#include "compiler/plan.h"

namespace flashjit {
namespace {

Result<Program> final_program(const std::string& text, const std::string& pins, const char* target_name = "sm_90a") {
  FLASHJIT_ASSIGN(spec, parse_spec(text));
  FLASHJIT_ASSIGN(target, find_target(target_name));
  FLASHJIT_ASSIGN(schedule, parse_schedule(pins));
  const TileAnalysis tiles = analyse_tiles(spec.mask);
  Program program;
  for (const Pass& pass : passes()) {
    FLASHJIT_ASSIGN(next, pass.run(std::move(program), {spec, *target, tiles, schedule}));
    program = std::move(next);
    program.passes.push_back(pass.name);
  }
  return program;
}

constexpr char kTwoStages[] =
    "family=sync,tile_q=64,tile_kv=64,warps=4,stages=2,q_in=shared,blocks_per_sm=1,unroll_d=4,order=natural";
constexpr char kOneStage[] =
    "family=sync,tile_q=64,tile_kv=64,warps=4,stages=1,q_in=registers,blocks_per_sm=1,unroll_d=4,order=natural";

Program sound(const char* pins) {
  auto program = final_program("fwd bf16 d=64 heads=8 mask=\"causal\"", pins);
  EXPECT_TRUE(program) << program.error().message;
  const auto verified = verify(*program);
  EXPECT_TRUE(verified) << verified.error().message;
  return *program;
}

Statement& loop_of(Program& p) {
  return *std::find_if(p.body.begin(), p.body.end(), [](const Statement& s) { return s.kind == Kind::Loop; });
}

// Removes the n-th statement of a kind.
void remove(std::vector<Statement>& body, Kind kind, int n) {
  const auto found =
      std::find_if(body.begin(), body.end(), [&](const Statement& s) { return s.kind == kind && n-- == 0; });
  ASSERT_NE(found, body.end());
  body.erase(found);
}

void expect_broken(const Program& p, const std::string& message) {
  const auto verified = verify(p);
  ASSERT_FALSE(verified) << "not found: " << message << "\n" << dump(p);
  EXPECT_EQ(verified.error().kind, ErrorKind::Internal);
  EXPECT_NE(verified.error().message.find(message), std::string::npos) << verified.error().message;
}

TEST(Verify, MissingWaitInLoop) {
  Program p = sound(kTwoStages);
  remove(loop_of(p).body, Kind::Wait, 0);
  expect_broken(p, "before its copy is waited for");
}

TEST(Verify, MissingBarrierInLoop) {
  Program p = sound(kTwoStages);
  remove(loop_of(p).body, Kind::Barrier, 0);
  expect_broken(p, "before a barrier has made other threads' copies visible");
}

TEST(Verify, MissingCommit) {
  Program p = sound(kTwoStages);
  remove(loop_of(p).body, Kind::Commit, 0);
  expect_broken(p, "before its copy is waited for");
}

TEST(Verify, MissingSecondBarrierOfOneStage) {
  Program p = sound(kOneStage);
  remove(loop_of(p).body, Kind::Barrier, 1);
  expect_broken(p, "barrier");
}

TEST(Verify, QueriesOverwrittenBeforeAllWarpsHaveThem) {
  Program p = sound(kOneStage);
  remove(p.body, Kind::Barrier, 1);
  expect_broken(p, "load Ks overwrites Qs (tile -1) while another warp may still read it");
}

TEST(Verify, OutputStagedOverQueriesThatAreStillCopied) {
  // The loop of a query tile that sees no key never waits for Q.
  Program p = sound(kTwoStages);
  remove(p.body, Kind::Wait, 0);
  expect_broken(p, "stage Os overwrites Qs (tile -1) while a copy into it is under way");
}

TEST(Verify, SlotsThatAreTooFew) {
  Program p = sound(kTwoStages);
  for (Buffer& b : p.buffers) {
    if (b.name == "Ks") b.stages = 1;
  }
  expect_broken(p, "mma reads tile 0 of Ks, but tile 1 is there");
}

TEST(Verify, BufferOutsideTheBlock) {
  Program p = sound(kTwoStages);
  p.buffers[p.buffer("Vs")].offset += 1024;
  expect_broken(p, "Vs: 2 x 8192 bytes");
}

TEST(Verify, OverlappingBuffers) {
  Program p = sound(kTwoStages);
  p.buffers[p.buffer("Vs")].offset = p.buffers[p.buffer("Ks")].offset;
  expect_broken(p, "load Vs overwrites Ks");
}

TEST(Verify, PhasesWithAGap) {
  Program p = sound(kTwoStages);
  p.phases.erase(p.phases.begin() + 1);
  expect_broken(p, "phase 1 begins at full_end, the one before ends at full_begin");
}

TEST(Verify, MixedPhaseWithoutMask) {
  Program p = sound(kTwoStages);
  remove(loop_of(p).body, Kind::Mask, 0);
  expect_broken(p, "needs one mask statement in the loop, there are 0");
}

TEST(Verify, ReadBeforeWrite) {
  Program p = sound(kTwoStages);
  remove(loop_of(p).body, Kind::Convert, 0);
  expect_broken(p, "mma: reads P before anything is in it");
}

TEST(Verify, OutputNeverStored) {
  Program p = sound(kTwoStages);
  remove(p.body, Kind::Store, 0);
  expect_broken(p, "the output o is never stored");
}

TEST(Verify, AttributeBeforeItsPass) {
  Program p = sound(kTwoStages);
  p.passes.pop_back();  // budget_registers
  expect_broken(p, "attribute `blocks_per_sm` is there before pass budget_registers has run");
}

TEST(Attributes, OneWriterEach) {
  Attributes a;
  ASSERT_TRUE(a.set("tile_q", std::int64_t{64}, "choose_tiling"));
  const auto twice = a.set("tile_q", std::int64_t{128}, "choose_tiling");
  ASSERT_FALSE(twice);
  EXPECT_EQ(twice.error().message, "pass choose_tiling: attribute `tile_q` is already 64");
  const auto stranger = a.set("warps", std::int64_t{4}, "choose_tiling");
  ASSERT_FALSE(stranger);
  EXPECT_EQ(stranger.error().message, "pass choose_tiling: attribute `warps` belongs to pass assign_warps");
  EXPECT_FALSE(a.set("colour", std::int64_t{4}, "choose_tiling"));
}

}  // namespace
}  // namespace flashjit
