#include "tools/fleet/tune_shard.h"

#include <map>

#include <gtest/gtest.h>

namespace flashjit {
namespace {

const Machine kMachine = {"sm_90a", "NVIDIA H200", 132, "13.0"};

TuneJob job_of(const char* spec, const char* shape) {
  const auto parsed = parse_spec(spec);
  EXPECT_TRUE(parsed) << spec;
  const auto sizes = parse_shape(shape, *parsed);
  EXPECT_TRUE(sizes) << shape;
  return {.spec = *parsed, .shape = *sizes, .pins = {}, .inputs = {}, .also = {}};
}

std::vector<TuneJob> jobs() {
  std::vector<TuneJob> all;
  for (const char* spec :
       {"fwd bf16 d=64 heads=8", "fwd bf16 d=128 heads=32/8 mask=\"causal\"", "bwd bf16 d=128 heads=8"})
    for (const char* shape : {"q=512", "b=2,q=4096", "q=65536"}) all.push_back(job_of(spec, shape));
  return all;
}

TEST(TuneShard, EveryProblemIsInOne) {
  for (const int count : {1, 2, 4, 12}) {
    std::map<std::string, int> numbers;
    for (int number = 1; number <= count; ++number) {
      auto own = jobs();
      const TuneShard shard = take_shard({number, count}, kMachine, own);
      EXPECT_EQ(shard.problems, 9);
      EXPECT_FALSE(shard.ended);
      for (const TuneJob& job : own)
        EXPECT_TRUE(numbers.emplace(print(job.spec) + print(job.shape), number).second) << count << " shards";
    }
    EXPECT_EQ(numbers.size(), 9u) << count << " shards";
  }
}

TEST(TuneShard, LargeProblemsCostMoreAndGradientsMoreStill) {
  const auto forward = tune_cost(job_of("fwd bf16 d=128 heads=64", "q=131072"));
  EXPECT_LT(tune_cost(job_of("fwd bf16 d=128 heads=64", "q=512")), forward);
  EXPECT_LT(forward, tune_cost(job_of("bwd bf16 d=128 heads=64", "q=131072")));
  EXPECT_LT(forward, tune_cost(job_of("fwd bf16 d=128 heads=64", "b=2,q=131072")));
}

TEST(TuneShard, ALineSaysAllOfIt) {
  auto own = jobs();
  TuneShard shard = take_shard({3, 4}, kMachine, own);
  for (const bool ended : {false, true}) {
    shard.ended = ended;
    const std::string line = print(shard);
    EXPECT_TRUE(line.starts_with("#shard=3/4\t")) << line;
    const auto read = parse_tune_shard(line);
    ASSERT_TRUE(read) << line;
    EXPECT_EQ(print(*read), line);
    EXPECT_EQ(held_shards(*read, "f").numbers, ended ? std::vector{3} : std::vector<int>());
  }
  shard.machine.device = "a\tname\nof lines";
  ASSERT_TRUE(parse_tune_shard(print(shard)));
  EXPECT_EQ(print(shard).find('\n'), std::string::npos);
}

TEST(TuneShard, LinesThatSaySomethingElseAreNone) {
  auto own = jobs();
  const std::string line = print(take_shard({3, 4}, kMachine, own));
  const std::string bad[] = {"",
                             "# a comment",
                             "#shard=5/4" + line.substr(10),
                             line.substr(0, 30),
                             line + "\tx",
                             "#shard=3/4\tended=maybe" + line.substr(line.find("\tproblems"))};
  for (const std::string& text : bad) EXPECT_FALSE(parse_tune_shard(text)) << text;
}

TEST(TuneShard, MachinesAndVersionsAreToldApart) {
  auto a = jobs(), b = jobs(), c = jobs();
  const TuneShard one = take_shard({1, 2}, kMachine, a), other = take_shard({2, 2}, {"sm_80", "A100", 108, ""}, b);
  TuneShard older = take_shard({2, 2}, kMachine, c);
  EXPECT_EQ(held_shards(one, "f").whole, held_shards(older, "f").whole);
  EXPECT_NE(held_shards(one, "f").whole, held_shards(other, "f").whole);
  older.version = "0";
  EXPECT_NE(held_shards(one, "f").whole, held_shards(older, "f").whole);
}

TEST(TuneShard, AShardIsSaidOnce) {
  auto own = jobs();
  TuneShard shard = take_shard({3, 4}, kMachine, own);
  std::vector<std::string> lines = with_shard({"#shard=other"}, shard);
  shard.ended = true;
  lines = with_shard(with_shard(lines, shard), shard);
  EXPECT_EQ(lines, (std::vector<std::string>{"#shard=other", print(shard)}));
  auto fewer = jobs();
  fewer.pop_back();
  const TuneShard changed = take_shard({3, 4}, kMachine, fewer);
  EXPECT_NE(changed.whole, shard.whole);
  lines = with_shard(lines, changed);
  EXPECT_EQ(lines, (std::vector<std::string>{"#shard=other", print(changed)})) << "the sweep was another then";
  auto elsewhere = jobs();
  lines = with_shard(lines, take_shard({3, 4}, {"sm_80", "A100", 108, ""}, elsewhere));
  EXPECT_EQ(lines.size(), 3u);
}

}  // namespace
}  // namespace flashjit
