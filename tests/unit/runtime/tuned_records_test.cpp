// Records of tunings: their text, where they are kept, and which of them decides.
#include "runtime/tuned/records.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <random>

#include "flashjit/flashjit.hpp"
#include "runtime/tuned/hint.h"

namespace flashjit {
namespace {

namespace fs = std::filesystem;

constexpr const char* kRecorded = "fwd bf16 d=64 heads=8";
constexpr const char* kTarget = "x86-64-v3";

Schedule schedule(const std::string& text) {
  auto parsed = parse_schedule(text);
  EXPECT_TRUE(parsed) << text;
  return parsed ? *parsed : Schedule();
}

TunedRecord record_of(const std::string& shape, int tile_q, const std::string& spec = kRecorded) {
  auto parsed = parse_shape_hint(shape);
  EXPECT_TRUE(parsed);
  return {.spec = spec,
          .machine = {kTarget, "Processor A", 8, ""},
          .version = version(),
          .shape = *parsed,
          .schedule = schedule("family=host,tile_q=" + std::to_string(tile_q) + ",tile_kv=256"),
          .us = 10,
          .us_low = 9.5,
          .us_high = 10.5,
          .default_us = 12,
          .date = "2026-11-21"};
}

class TunedRecords : public ::testing::Test {
 protected:
  TunedRecords() {
    fs::remove_all(folder);
    fs::create_directories(folder);
    fs::permissions(folder, fs::perms::owner_all);
  }
  ~TunedRecords() override { fs::remove_all(folder); }
  const std::string folder = ::testing::TempDir() + "flashjit_records_" + std::to_string(::getpid());

  int chosen(const std::vector<TunedRecord>& records, const std::string& shape,
             Machine machine = {kTarget, "Processor A", 8, ""}, const std::string& spec_text = kRecorded) {
    auto spec = parse_spec(spec_text);
    auto target = find_target(kTarget);
    std::optional<Shape> hint;
    if (!shape.empty()) hint = *parse_shape_hint(shape);
    const TunedRecord* found =
        find_record(records, *spec, machine, **target, hint, schedule("family=host,tile_q=64,tile_kv=256"));
    return found ? *found->schedule.tile_q : 0;
  }
};

TEST_F(TunedRecords, TextRoundTrip) {
  TunedRecord r = record_of("b=2,q=100,k=300", 32, "fwd bf16 d=64 heads=8 mask=\"causal\t&\nwindow(9,\\ 0)\"");
  r.machine.driver = "13.0";
  const std::string line = print(r);
  EXPECT_EQ(line.find('\n'), std::string::npos);
  const auto back = parse_tuned_record(line);
  ASSERT_TRUE(back);
  EXPECT_EQ(*back, r);
  EXPECT_EQ(back->spec, r.spec);
}

TEST_F(TunedRecords, EveryCutOfALineIsSkipped) {
  const std::string line = print(record_of("b=1,q=64", 64));
  for (std::size_t length = 0; length + 1 < line.size(); ++length) {
    const auto parsed = parse_tuned_record(line.substr(0, length));
    // Only within the date, the last field, what is left can pass for a whole record.
    if (parsed) {
      EXPECT_GT(length, line.find("\tdate="));
    }
  }
  EXPECT_EQ(parse_tuned_records("# a comment\n\nnonsense\n" + line + "\n" + line.substr(0, 40)).size(), 1u);
}

TEST_F(TunedRecords, NumbersOutsideTheirRangeMakeALineForeign) {
  const std::string line = print(record_of("b=1,q=64", 64));
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = line;
    return text.replace(text.find(from), from.size(), to);
  };
  EXPECT_FALSE(parse_tuned_record(with("us=10.000", "us=-1")));
  EXPECT_FALSE(parse_tuned_record(with("us=10.000", "us=nan")));
  EXPECT_FALSE(parse_tuned_record(with("units=8", "units=0")));
  EXPECT_FALSE(parse_tuned_record(with("shape=b=1", "shape=b=0")));
  EXPECT_FALSE(parse_tuned_record(with("tile_q=64", "tile_q=x")));
  EXPECT_TRUE(parse_tuned_record(line + "\tlater_field=1"));
}

TEST_F(TunedRecords, ClassesAreTheSameForTuningAndLookUp) {
  std::mt19937 random(7);
  std::uniform_int_distribution<std::int64_t> size(1, 200000);
  for (int i = 0; i < 2000; ++i) {
    const Shape shape{size(random) % 300 + 1, size(random), size(random)};
    const Shape up = rounded(shape);
    EXPECT_EQ(rounded(up), up);
    EXPECT_TRUE(up.q_len >= shape.q_len && up.q_len < 2 * shape.q_len) << print(shape);
    const auto hint = canonical_hint(print(shape));
    ASSERT_TRUE(hint);
    EXPECT_EQ(*hint, print(up));
    // A record of a shape is found for that shape and for its class, and nothing else is nearer.
    TunedRecord own = record_of(print(shape), 32);
    const std::vector<TunedRecord> records = {record_of(print(Shape{up.b * 2, up.q_len, up.k_len}), 64), own};
    EXPECT_EQ(chosen(records, print(shape)), 32) << print(shape);
    EXPECT_EQ(chosen(records, *hint), 32) << print(shape);
  }
}

TEST_F(TunedRecords, NearestWithinTwoDoublings) {
  const std::vector<TunedRecord> records = {record_of("b=1,q=1024", 32), record_of("b=1,q=4096", 128)};
  EXPECT_EQ(chosen(records, "b=1,q=1024"), 32);
  EXPECT_EQ(chosen(records, "b=1,q=1000"), 32);
  EXPECT_EQ(chosen(records, "b=1,q=2000"), 32);  // both are two away; 1024 is nearer by its text alone, in any order
  EXPECT_EQ(chosen({records[1], records[0]}, "b=1,q=2000"), 32);
  EXPECT_EQ(chosen(records, "b=2,q=4000"), 128);
  EXPECT_EQ(chosen(records, "b=1,q=16384"), 0);  // four away
  EXPECT_EQ(chosen(records, "b=8,q=4096"), 0);   // three
}

TEST_F(TunedRecords, WithoutAHintOnlyTheReferenceShapeCounts) {
  EXPECT_EQ(chosen({record_of("b=4,q=4096", 128)}, ""), 128);  // assumed_shape: 16k tokens in sequences of 4k
  EXPECT_EQ(chosen({record_of("b=2,q=4096", 128)}, ""), 0);
}

TEST_F(TunedRecords, AnotherMachineSpecOrIllegalScheduleIsAMiss) {
  const std::vector<TunedRecord> records = {record_of("b=1,q=1024", 32)};
  EXPECT_EQ(chosen(records, "b=1,q=1024", {kTarget, "Processor B", 8, ""}), 0);
  EXPECT_EQ(chosen(records, "b=1,q=1024", {kTarget, "Processor A", 4, ""}), 0);
  EXPECT_EQ(chosen(records, "b=1,q=1024", {"x86-64-v4", "Processor A", 8, ""}), 0);
  EXPECT_EQ(chosen(records, "b=1,q=1024", {kTarget, "Processor A", 8, "13.1"}), 32);  // another driver: inherited
  EXPECT_EQ(chosen(records, "b=1,q=1024", {kTarget, "Processor A", 8, ""}, "fwd bf16 d=128 heads=8"), 0);
  TunedRecord illegal = records[0];
  illegal.schedule = schedule("family=host,tile_q=64,tile_kv=17");
  EXPECT_EQ(chosen({illegal}, "b=1,q=1024"), 0);
  illegal.schedule = schedule("family=sync,tile_q=64,tile_kv=64");
  EXPECT_EQ(chosen({illegal}, "b=1,q=1024"), 0);
}

TEST_F(TunedRecords, APinnedNumericsClassIsNotCrossed) {
  for (const char* numerics : {"deterministic", "batch_invariant"}) {
    const std::string spec = std::string(kRecorded) + " numerics=" + numerics;
    TunedRecord same = record_of("b=1,q=1024", 32, spec), other = same;
    other.schedule = schedule("family=host,tile_q=32,tile_kv=512");
    EXPECT_EQ(chosen({same}, "b=1,q=1024", same.machine, spec), 32);
    EXPECT_EQ(chosen({other}, "b=1,q=1024", same.machine, spec), 0);
  }
}

TEST_F(TunedRecords, OrderOfRecordsDoesNotMatter) {
  std::vector<TunedRecord> records;
  for (const char* shape : {"b=1,q=1024", "b=1,q=1023", "b=1,q=900", "b=2,q=600", "b=1,q=512,k=2048"}) {
    records.push_back(record_of(shape, 16 + 16 * static_cast<int>(records.size())));
  }
  const int first = chosen(records, "b=1,q=950");
  std::mt19937 random(3);
  for (int i = 0; i < 50; ++i) {
    std::shuffle(records.begin(), records.end(), random);
    EXPECT_EQ(chosen(records, "b=1,q=950"), first);
  }
}

TEST_F(TunedRecords, StoreKeepsTheNewerAndSurvivesDamage) {
  ASSERT_TRUE(store_records(folder, {record_of("b=1,q=64", 32), record_of("b=1,q=128", 32)}));
  ASSERT_TRUE(store_records(folder, {record_of("b=1,q=64", 64)}));
  const std::string file = folder + "/v1/tuned.txt";
  auto stored = read_records(file);
  ASSERT_TRUE(stored);
  ASSERT_EQ(stored->records.size(), 2u);
  EXPECT_EQ(stored->records, merge({record_of("b=1,q=128", 32)}, {record_of("b=1,q=64", 64)}));
  std::ofstream(file, std::ios::app) << "spec=cut off";
  EXPECT_EQ(read_records(file)->records.size(), 2u);
  EXPECT_EQ(read_records(file)->others, 1);
  ASSERT_TRUE(store_records(folder, {record_of("b=1,q=256", 64)}));
  EXPECT_EQ(read_records(file)->records.size(), 3u);
  EXPECT_EQ(stored_records(folder).size(), 3 + built_in_records().size());
}

TEST_F(TunedRecords, OwnRecordsGoBeforeThoseOfALayer) {
  const std::string layer = folder + "/layer", own = folder + "/own";
  ASSERT_TRUE(store_records(layer, {record_of("b=1,q=64", 32), record_of("b=1,q=256", 32)}));
  ASSERT_TRUE(store_records(own, {record_of("b=1,q=64", 128)}));
  const std::vector<TunedRecord> records = stored_records(own + ":" + layer);
  EXPECT_EQ(chosen(records, "b=1,q=64"), 128);
  EXPECT_EQ(chosen(records, "b=1,q=256"), 32);
}

TEST_F(TunedRecords, ADirectoryThatOthersCanWriteIsAsIfNotThere) {
  ASSERT_TRUE(store_records(folder, {record_of("b=1,q=64", 32)}));
  fs::permissions(folder, fs::perms::all);
  EXPECT_EQ(stored_records(folder).size(), built_in_records().size());
}

TEST_F(TunedRecords, BuiltInOnesAreSound) {
  for (const TunedRecord& r : built_in_records()) {
    const auto spec = parse_spec(r.spec);
    ASSERT_TRUE(spec) << r.spec;
    EXPECT_EQ(print(*spec), r.spec);
    const auto target = find_target(r.machine.target);
    ASSERT_TRUE(target) << print(r);
    const TunedRecord* found = find_record(built_in_records(), *spec, r.machine, **target, r.shape, r.schedule);
    EXPECT_NE(found, nullptr) << print(r);
  }
}

TEST_F(TunedRecords, HintsAreChecked) {
  for (const char* bad : {"q=0", "b=2", "q=1x", "x=3", "q=99999999999999", "q", "=", ",", "q=-1", "q=1,q=2"}) {
    EXPECT_FALSE(parse_shape_hint(bad)) << bad;
  }
  EXPECT_EQ(print(*parse_shape_hint("q=7")), "b=1,q=7,k=7");
  EXPECT_EQ(*canonical_hint(""), "");
}

}  // namespace
}  // namespace flashjit
