// The verifier finds what passes could get wrong: each case takes a sound program and breaks one thing.
#include "compiler/program/ir.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "compiler/choice/candidates.h"
#include "compiler/program/passes.h"
#include "compiler/families/family.h"
#include "compiler/plan.h"
#include "compiler/program/edit.h"
#include "tests/unit/compiler/asked.h"

namespace flashjit {
namespace {

Result<Program> final_program(const std::string& text, const std::string& pins, const char* target_name = "sm_90a") {
  FLASHJIT_ASSIGN(schedule, parse_schedule(pins));
  const Asked asked(text, target_name);
  const KernelConfig config = config_of(asked.problem, schedule);
  Program program;
  for (const std::span<const Pass> passes : {shared_passes(), schedule.family->passes}) {
    for (const Pass& pass : passes) {
      FLASHJIT_ASSIGN(next, pass.run(std::move(program), {asked.problem, schedule, config}));
      program = std::move(next);
      program.passes.push_back(pass.name);
    }
  }
  return program;
}

constexpr char kTwoStages[] =
    "family=sync,tile_q=64,tile_kv=64,warps=4,stages=2,q_in=shared,blocks_per_sm=1,unroll_d=4,order=natural";
constexpr char kOneStage[] =
    "family=sync,tile_q=64,tile_kv=64,warps=4,stages=1,q_in=registers,blocks_per_sm=1,unroll_d=4,order=natural";

constexpr char kWide[] = "fwd bf16 d=64 heads=8 mask=\"causal\"";
constexpr char kNarrow[] = "fwd e4m3 d=64 heads=8 mask=\"causal\"";

Program sound(const char* pins, const char* spec = kWide) {
  auto program = final_program(spec, pins);
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

TEST(Verify, LoopsAndPhasesAreOfOneAxis) {
  Program unnamed = sound(kTwoStages);
  loop_of(unnamed).along.reset();
  expect_broken(unnamed, "loop: along which axis?");
  Program named = sound(kTwoStages);
  named.body.front().along = Axis::Keys;
  expect_broken(named, "only loops run along an axis");
  Program other = sound(kTwoStages);
  loop_of(other).along = Axis::Queries;
  expect_broken(other, "the phases do not cover the range of the queries from q_begin to q_end");
  other.phases.front().begin = "q_begin";
  other.phases.back().end = "q_end";
  const auto verified = verify(other);
  EXPECT_TRUE(verified) << verified.error().message;
  EXPECT_NE(dump(other).find("\n  loop queries ["), std::string::npos) << dump(other);
  other.body.push_back(loop_of(other));
  other.body.back().along = Axis::Keys;
  expect_broken(other, "loop keys: another one runs along queries");
}

TEST(Verify, MixedPhaseWithoutMask) {
  Program p = sound(kTwoStages);
  remove(loop_of(p).body, Kind::Mask, 0);
  expect_broken(p, "a mixed phase needs a mask statement for each softmax, there are 0 for 1");
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
  expect_broken(p, "attribute `registers` is there before pass budget_registers has run");
}

// ---- producer and consumers ----

constexpr char kOverlapped[] =
    "family=hopper,tile_q=128,tile_kv=64,warpgroups=2,stages=2,q_stages=2,overlap=qk_pv,exclusive=issue,reference=tile,"
    "row_sum=adds,grid=persistent,head_tiles=single,order=natural";
const std::string kTransposing = std::string(kOverlapped) + ",transpose=loop";
constexpr char kOneByOne[] =
    "family=hopper,tile_q=64,tile_kv=64,warpgroups=1,stages=1,q_stages=1,overlap=none,exclusive=none,reference=first,"
    "row_sum=matrix,grid=tiles,head_tiles=single,order=natural";

std::vector<Statement>& role(Program& p, Kind kind) {
  return std::find_if(p.body.begin(), p.body.end(), [&](const Statement& s) { return s.kind == kind; })->body;
}
std::vector<Statement>& loop_in(std::vector<Statement>& body) {
  return std::find_if(body.begin(), body.end(), [](const Statement& s) { return s.kind == Kind::Loop; })->body;
}
std::vector<Statement>& keys_copied(Program& p) { return find_body(p, "copy_tile_keys")->body; }
std::vector<Statement>& values_copied(Program& p) { return find_body(p, "copy_waiting_values")->body; }
std::vector<Statement>& consumed(Program& p) { return find_body(p, "main_step")->body; }

TEST(VerifyRoles, BothLoopsAreSoundWithAnyNumberOfStages) {
  for (const char* overlap : {"overlap=none", "overlap=qk_pv"}) {
    for (const char* stages : {"stages=2", "stages=3", "stages=4"}) {
      for (const char* q_stages : {"q_stages=1", "q_stages=2"}) {
        const std::string pins =
            std::string("family=hopper,tile_q=64,tile_kv=64,exclusive=none,") + overlap + "," + stages + "," + q_stages;
        const auto spec = parse_spec("fwd bf16 d=64 mask=\"causal\" score=\"softcap(50)\" lse=ln max_logit sink");
        const auto plan = make_plan(*spec, **find_target("sm_90a"), *parse_schedule(pins));
        EXPECT_TRUE(plan) << pins << ": " << plan.error().message;
      }
    }
  }
  sound(kOverlapped);
  sound(kOneByOne);
}

TEST(VerifyRoles, ReadBeforeItsBarrier) {
  Program keys = sound(kOverlapped);
  remove(consumed(keys), Kind::Await, 0);
  expect_broken(keys, "reads Ks before it has awaited that it is full");
  Program values = sound(kOneByOne);
  remove(consumed(values), Kind::Await, 1);
  expect_broken(values, "reads Vs before it has awaited that it is full");
  Program queries = sound(kOneByOne);
  find_site(queries, find_body(queries, "careful_step")->body, Kind::Call, "look_up").statement().inside.clear();
  expect_broken(queries, "release Qs (item 0): releases a slot that it has not awaited");
}

TEST(VerifyRoles, SlotOverwrittenBeforeItIsEmpty) {
  Program p = sound(kOverlapped);
  remove(values_copied(p), Kind::Await, 0);
  expect_broken(p, "expect Vs (item 0, tile 0): speaks of a slot before it has awaited that it is empty");
}

TEST(VerifyRoles, ReleaseWhileAProductReads) {
  Program keys = sound(kOneByOne);
  remove(consumed(keys), Kind::Wait, 1);
  expect_broken(keys, "release Ks (item 0, tile 1): releases a slot that a product under way reads");
  Program values = sound(kOverlapped);
  remove(consumed(values), Kind::Wait, 1);
  expect_broken(values, "release Vs (item 0, tile 1): releases a slot that a product under way reads");
  Program uncommitted = sound(kOneByOne);
  remove(consumed(uncommitted), Kind::Commit, 0);
  expect_broken(uncommitted, "releases a slot that a product under way reads");
}

TEST(VerifyRoles, MissingRelease) {
  for (const int n : {0, 1}) {
    Program p = sound(kOneByOne);
    remove(consumed(p), Kind::Release, n);
    expect_broken(p, "deadlock: producer waits at await");
  }
  Program queries = sound(kOverlapped);
  find_site(queries, find_body(queries, "consume")->body, Kind::Items).statement().inside.clear();
  expect_broken(queries, "await Qs");
}

TEST(VerifyRoles, NothingIsLoaded) {
  Program p = sound(kOverlapped);
  remove(keys_copied(p), Kind::Load, 0);
  expect_broken(p, "deadlock");
  Program unexpected = sound(kOverlapped);
  remove(keys_copied(unexpected), Kind::Expect, 0);
  expect_broken(unexpected, "deadlock");
}

TEST(VerifyRoles, BarriersAreSetUpForWhoArrives) {
  const auto first_of = [](Program& p, std::string_view what) {
    return find_site(p, find_body(p, "set_up")->body, Kind::Init, what);
  };
  Program forgotten = sound(kOverlapped);
  first_of(forgotten, "Ks").take(1);
  expect_broken(forgotten, "barrier full of Ks: nobody sets it up");
  Program another = sound(kOverlapped);
  Statement& queries = first_of(another, "Qs").statement();
  Attributes changed;
  for (const Attribute& a : queries.attributes.all())
    ASSERT_TRUE(changed.set(a.key, a.key == std::string_view("arrivals") ? AttributeValue(std::int64_t{2}) : a.value,
                            a.writer));
  queries.attributes = changed;
  expect_broken(another, "barrier full of Qs: set up for 2 arrivals, and 1 arrive");
  Program untold = sound(kOverlapped);
  find_site(untold, find_body(untold, "set_up")->body, Kind::Publish).take(1);
  expect_broken(untold, "body set_up: barriers are not published");
  Program unseen = sound(kOverlapped);
  find_site(unseen, find_body(unseen, "set_up")->body, Kind::Barrier).take(1);
  expect_broken(unseen, "body set_up: no barrier behind what is set up");
}

TEST(VerifyRoles, ReleasedTwice) {
  Program p = sound(kOneByOne);
  const Site release = find_site(p, consumed(p), Kind::Release);
  release.insert_after({release.statement()});
  expect_broken(p, "is the next to be released");
}

TEST(VerifyRoles, TurnsAreGivenAndTaken) {
  const std::string turns = "family=hopper,tile_q=128,warpgroups=2,exclusive=issue";
  for (const Kind kind : {Kind::BeginTurn, Kind::EndTurn}) {
    Program p = make_plan(*parse_spec(kWide), **find_target("sm_90a"), *parse_schedule(turns))->program;
    find_site(p, consumed(p), kind).take(1);
    EXPECT_FALSE(verify(p));
  }
}

TEST(VerifyRoles, FencesAndWhatIsKept) {
  Program p = sound(kOverlapped);
  remove(consumed(p), Kind::Fence, 0);
  expect_broken(p, "takes S as it was: a fence is missing");
  Program read = sound(kOverlapped);
  find_site(read, consumed(read), Kind::Keep, "S").take(1);
  expect_broken(read, "uses S behind a wait, and nothing keeps it there");
}

TEST(VerifyRoles, RegistersOfAProductUnderWay) {
  // The softmax beside P V may have S, which is waited for, and must not touch P and O, which are not.
  Program p = sound(kOverlapped);
  std::vector<Statement>& body = consumed(p);
  const auto convert =
      std::find_if(body.begin(), body.end(), [](const Statement& s) { return s.kind == Kind::Convert; });
  const Statement moved = *convert;
  body.erase(convert);
  const auto second_wait =
      std::find_if(body.rbegin(), body.rend(), [](const Statement& s) { return s.kind == Kind::Wait; });
  body.insert(second_wait.base() - 1, moved);
  expect_broken(p, "convert P <- S (item 0, tile 1): changes P while a product reads it");

  Program early = sound(kOverlapped);
  remove(consumed(early), Kind::Wait, 0);
  expect_broken(early, "releases a slot that a product under way reads");
}

// V of 8 bits passes through the hands of a third role.
TEST(VerifyRoles, ValuesAreTransposedInStep) {
  const auto transposed = [](Program& p) -> std::vector<Statement>& {
    return loop_in(find_body(p, "transpose")->body);
  };
  Program early = sound(kTransposing.c_str(), kNarrow);
  remove(transposed(early), Kind::Await, 0);
  expect_broken(early, "transpose Vs <- Vc (item 0, tile 0): reads Vc before it has awaited that it is full");
  Program over = sound(kTransposing.c_str(), kNarrow);
  remove(transposed(over), Kind::Await, 1);
  expect_broken(over, "transpose Vs <- Vc (item 0, tile 0): overwrites a slot before it has awaited that it is empty");
  Program kept = sound(kTransposing.c_str(), kNarrow);
  find_site(kept, transposed(kept), Kind::Release).take(1);
  expect_broken(kept, "deadlock");
  Program idle = sound(kTransposing.c_str(), kNarrow);
  remove(transposed(idle), Kind::Transpose, 0);
  EXPECT_FALSE(verify(idle));
  Program unseen = sound(kTransposing.c_str(), kNarrow);
  remove(transposed(unseen), Kind::Publish, 0);
  expect_broken(unseen, "is not seen by products: a publish is missing");
}

TEST(VerifyRoles, LoadsInTheWrongOrder) {
  Program p = sound(kOverlapped);
  std::swap(find_body(p, "copy_tile_keys")->body, find_body(p, "announce")->body);  // K in the place of Q
  EXPECT_FALSE(verify(p));
}

TEST(VerifyRoles, TilesMustNotOverlapOrLieAskew) {
  Program p = sound(kOverlapped);
  p.buffers[p.buffer("Vs")].offset -= 1024;
  expect_broken(p, "Ks and Vs overlap in shared memory");
  Program askew = sound(kOverlapped);
  askew.buffers[askew.buffer("Vs")].offset += 128;
  expect_broken(askew, "where the swizzle repeats");
}

TEST(VerifyRoles, RolesKeepToTheirWork) {
  Program p = sound(kOverlapped);
  Statement release;
  release.kind = Kind::Release;
  release.writes = {p.buffer("Qs")};
  find_body(p, "end_tile")->body.push_back(release);
  expect_broken(p, "the producer does not do that");
  Program outside = sound(kOverlapped);
  outside.body.push_back(role(outside, Kind::Consumer).back());
  expect_broken(outside, "body is outside of a role");
}

TEST(Attributes, OneWriterEach) {
  Attributes a;
  ASSERT_TRUE(a.set("smem_bytes", std::int64_t{64}, "place_buffers"));
  const auto twice = a.set("smem_bytes", std::int64_t{128}, "place_buffers");
  ASSERT_FALSE(twice);
  EXPECT_EQ(twice.error().message, "pass place_buffers: attribute `smem_bytes` is already 64");
  const auto stranger = a.set("registers", std::string("1/2"), "place_buffers");
  ASSERT_FALSE(stranger);
  EXPECT_EQ(stranger.error().message, "pass place_buffers: attribute `registers` belongs to pass budget_registers");
  EXPECT_FALSE(a.set("colour", std::int64_t{4}, "choose_tiling"));
}

}  // namespace
}  // namespace flashjit
