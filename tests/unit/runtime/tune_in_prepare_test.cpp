// Records and hints as `prepare` sees them, on the host backend; PrepareOptions::tune.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <thread>

#include "autotune/measure/in_process.h"
#include "autotune/search/tune.h"
#include "flashjit/flashjit.hpp"
#include "runtime/engine/host_library.h"
#include "runtime/tuned/choice.h"

namespace flashjit {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;

constexpr const char* kTuned = "fwd fp32 d=16 heads=2";

bool tuned(const Kernel& kernel) {
  return std::ranges::any_of(kernel.facts().notes,
                             [](const std::string& note) { return note.find("tuning record") != std::string::npos; });
}

// On a busy machine nothing may be decided, and nothing is recorded then: another attempt may.
Result<std::shared_ptr<Kernel>> prepare_tuned(const std::function<std::shared_ptr<Engine>()>& engine,
                                              const PrepareOptions& tune) {
  auto made = engine()->prepare(kTuned, tune);
  for (int attempt = 0; attempt < 10 && made && !tuned(**made); ++attempt) made = engine()->prepare(kTuned, tune);
  return made;
}
constexpr const char* kBusy = "this machine is too busy to tell which kernel is faster";

class TuneInPrepare : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!host_library()) GTEST_SKIP() << "built without the host backend (LLVM 19)";
    fs::remove_all(folder);
    enable_in_prepare();
  }
  void TearDown() override { fs::remove_all(folder); }
  std::shared_ptr<Engine> engine(bool use_records = true) {
    auto made = Engine::create({.device = Device::Host, .cache_dir = folder, .threads = 2, .tuned = use_records});
    EXPECT_TRUE(made);
    return made ? *made : nullptr;
  }
  // Nothing is recorded on a busy machine; a record that is there has to be used.
  void expect_no_record() const {
    const auto records = read_records(folder + "/v1/tuned.txt");
    EXPECT_TRUE(!records || records->records.empty()) << "there is a record, and prepare does not use it";
  }
  const std::string folder = ::testing::TempDir() + "flashjit_tune_" + std::to_string(::getpid());
};

TEST_F(TuneInPrepare, MeasuresOnceAndIsRemembered) {
  PrepareOptions tune;
  tune.shape = "b=1,q=20";
  tune.tune = milliseconds(300);
  const auto first = prepare_tuned([this] { return engine(); }, tune);
  ASSERT_TRUE(first) << first.error().message;
  if (!tuned(**first)) expect_no_record();
  if (!tuned(**first)) GTEST_SKIP() << kBusy;
  const auto records = read_records(folder + "/v1/tuned.txt");
  ASSERT_TRUE(records);
  ASSERT_EQ(records->records.size(), 1u);
  EXPECT_EQ(print(records->records.front().shape), "b=1,q=20,k=20");
  EXPECT_EQ(print(records->records.front().schedule), (*first)->facts().schedule);
  // Another process: no measuring, the same choice, for every shape of the class.
  PrepareOptions hint;
  hint.shape = "q=30,k=32";
  const auto again = engine()->prepare(kTuned, hint);
  ASSERT_TRUE(again);
  EXPECT_EQ((*again)->facts().schedule, (*first)->facts().schedule);
  EXPECT_TRUE(tuned(**again));
  // A record of the class is there: this does not measure, or the file would have changed.
  tune.shape = "q=25";
  ASSERT_TRUE(engine()->prepare(kTuned, tune));
  EXPECT_EQ(read_records(folder + "/v1/tuned.txt")->records, records->records);
  // Without a hint the assumed shape is meant, which is another class.
  const auto plain = engine()->prepare(kTuned);
  ASSERT_TRUE(plain);
  EXPECT_FALSE(tuned(**plain));
  const auto without = engine(false)->prepare(kTuned, hint);
  ASSERT_TRUE(without);
  EXPECT_FALSE(tuned(**without));
}

TEST_F(TuneInPrepare, RefusesWhatContradictsItself) {
  PrepareOptions tune;
  tune.tune = milliseconds(100);
  tune.schedule = "tile_q=64";
  EXPECT_EQ(engine()->prepare(kTuned, tune).error().kind, ErrorKind::Invalid);
  tune.schedule.clear();
  EXPECT_EQ(engine(false)->prepare(kTuned, tune).error().kind, ErrorKind::Invalid);
  tune.shape = "q=banana";
  EXPECT_EQ(engine()->prepare(kTuned, tune).error().kind, ErrorKind::Invalid);
  PrepareOptions hint;
  hint.shape = "q=0";
  EXPECT_EQ(engine()->prepare(kTuned, hint).error().kind, ErrorKind::Invalid);
}

TEST_F(TuneInPrepare, HintsOfAClassShareAKernel) {
  const auto own = engine();
  PrepareOptions a, b, other;
  a.shape = "q=100", b.shape = "b=1,q=120,k=128", other.shape = "q=3000";
  const auto first = own->prepare(kTuned, a), second = own->prepare(kTuned, b), third = own->prepare(kTuned, other),
             plain = own->prepare(kTuned);
  ASSERT_TRUE(first && second && third && plain);
  EXPECT_EQ(first->get(), second->get());
  EXPECT_NE(first->get(), third->get());
  EXPECT_NE(first->get(), plain->get());
  EXPECT_EQ(own->prepare(kTuned, a)->get(), first->get());
}

TEST_F(TuneInPrepare, ManyThreadsTuneOnce) {
  PrepareOptions tune;
  tune.shape = "q=16";
  tune.tune = milliseconds(1000);  // also where others keep the machine busy
  bool decided = false;
  for (int attempt = 0; attempt < 10 && !decided; ++attempt) {
    const auto own = engine();
    std::vector<std::shared_ptr<Kernel>> kernels(6);
    {
      std::vector<std::jthread> threads;
      for (auto& kernel : kernels) {
        threads.emplace_back([&] {
          if (auto made = own->prepare(kTuned, tune)) kernel = *made;
        });
      }
    }
    for (const auto& kernel : kernels) EXPECT_EQ(kernel, kernels.front());
    ASSERT_NE(kernels.front(), nullptr);
    decided = tuned(*kernels.front());
    if (!decided) expect_no_record();
  }
  if (!decided) GTEST_SKIP() << kBusy;
}

// A record is of as many threads as the engine has, whatever the machine has.
TEST_F(TuneInPrepare, TheRecordIsOfTheEnginesThreads) {
  PrepareOptions tune;
  tune.shape = "q=20";
  tune.tune = milliseconds(200);
  const auto engine_of_one = [this] {
    return *Engine::create({.device = Device::Host, .cache_dir = folder, .threads = 1});
  };
  const auto kernel = prepare_tuned(engine_of_one, tune);
  ASSERT_TRUE(kernel) << kernel.error().message;
  if (!tuned(**kernel)) expect_no_record();
  if (!tuned(**kernel)) GTEST_SKIP() << kBusy;
}

TEST_F(TuneInPrepare, APinnedNumericsClassIgnoresHints) {
  const auto own = engine();
  const std::string spec = std::string(kTuned).append(" numerics=batch_invariant");
  const auto plain = own->prepare(spec);
  ASSERT_TRUE(plain);
  for (const char* shape : {"q=1,k=100", "q=64", "b=64,q=5000"}) {
    PrepareOptions hint;
    hint.shape = shape;
    const auto hinted = own->prepare(spec, hint);
    ASSERT_TRUE(hinted);
    EXPECT_EQ((*hinted)->facts().schedule, (*plain)->facts().schedule) << shape;
  }
}

TEST_F(TuneInPrepare, TheLibraryCallGivesEverythingThatWasMeasured) {
  EngineOptions options{.device = Device::Host, .cache_dir = folder, .threads = 2, .tuned = false};
  auto session = Session::open("host", options, *read_environment());
  ASSERT_TRUE(session);
  auto spec = parse_spec(kTuned);
  auto shape = parse_shape("q=40", *spec);
  TuneOptions how;
  how.seconds = 0.5;
  int checked = 0;
  how.check = [&](const AttentionSpec&, const Facts&, ProblemData&) -> Result<void> {
    return ++checked, Result<void>();
  };
  const auto outcome = tune(**session, {*spec, *shape, {}, {}, {}}, how);
  ASSERT_TRUE(outcome) << outcome.error().message;
  EXPECT_EQ(checked, 1);
  EXPECT_GT(outcome->candidates.size(), 3u);
  for (const TunedCandidate& c : outcome->candidates) {
    EXPECT_TRUE(c.status == "measured" || c.status == "stopped") << c.status << " " << c.why;
    EXPECT_TRUE(0 < c.us_low && c.us_low <= c.us && c.us <= c.us_high);
  }
  EXPECT_EQ(outcome->candidates[outcome->best].status, "measured");
  // The best is the fastest, or is said why not; what was stopped as slower has a time that is.
  const double fastest = outcome->of(outcome->fastest).us, best = outcome->of(outcome->best).us;
  for (const TunedCandidate& c : outcome->candidates) EXPECT_GE(c.us, fastest) << print(c.schedule) << ": " << c.why;
  EXPECT_EQ(outcome->candidates[outcome->untuned].status, "measured");
  if (outcome->decided()) {
    EXPECT_LE(best, fastest * (1 + tie_of(outcome->noise)));
    EXPECT_EQ(outcome->why_best().find(" is a tie ") == std::string::npos, outcome->best == outcome->fastest);
  } else {  // a busy machine
    EXPECT_EQ(outcome->best, outcome->untuned);
  }
  const auto record = parse_tuned_record(print(record_of(*outcome, (*session)->machine(), "2026-11-21")));
  ASSERT_TRUE(record);
  EXPECT_EQ(record->schedule, outcome->candidates[outcome->best].schedule);
  // A check that fails ends it before anything is timed.
  how.check = [](const AttentionSpec&, const Facts&, ProblemData&) -> Result<void> { return internal("wrong"); };
  EXPECT_FALSE(tune(**session, {*spec, *shape, {}, {}, {}}, how));
}

}  // namespace
}  // namespace flashjit
