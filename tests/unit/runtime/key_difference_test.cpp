// What `flashjit cache explain` says of two keys: texts by hand, and which entry is the nearest.
#include "runtime/store/key_difference.h"

#include <gtest/gtest.h>

#include <fmt/format.h>

#include "runtime/store/key.h"

namespace flashjit {
namespace {

// A key as compile.cpp builds it, of parts that can be varied one by one.
struct Parts {
  std::string spec = "fwd bf16 d=64 heads=4/2 mask=\"causal & window(64, 0)\"";
  std::string schedule = "family=sync,tile_q=128,stages=2";
  std::string target = "sm_80", compiler = "nvrtc 13.0 build aa", options = "--gpu-architecture=sm_80";
  std::string config = "config", header = "header", extra_header;

  std::string text() const {
    KeyBuilder key;
    key.field("spec", spec);
    key.field("schedule", schedule);
    key.field("target", target);
    key.field("compiler", compiler);
    key.field("options", options);
    key.field("generated config.gen.cuh", config + "\n");
    key.field("header templates/device.cuh", header + "\n");
    if (!extra_header.empty()) key.field("header templates/extra.cuh", extra_header + "\n");
    return key.finish().text;
  }
};

std::vector<KeyDifference> differences(const Parts& here, const Parts& there, const char* pins = "") {
  const std::string one = here.text(), other = there.text();
  return key_differences({one, here.spec, here.schedule}, {other, there.spec, there.schedule}, pins);
}

// "cause field=here|there;" of each, without the values of files.
std::string shown(const std::vector<KeyDifference>& list) {
  std::string text;
  for (const KeyDifference& d : list) {
    const bool file = d.field.find(' ') != std::string::npos;
    text +=
        fmt::format("{}{}{}; ", d.cause ? "" : "follows ", d.field, file ? "" : fmt::format("={}|{}", d.here, d.there));
  }
  return text;
}

TEST(KeyDifference, NothingDiffers) {
  EXPECT_EQ(shown(differences({}, {})), "");
  EXPECT_EQ(distance({}), 0);
}

TEST(KeyDifference, FieldsOfTheSpec) {
  const Parts here;
  Parts there;
  there.spec = "fwd fp16 d=64 heads=4/2 mask=\"causal\" b<=8 sink";
  there.schedule = "family=sync,tile_q=64,stages=2";
  there.config = "another";
  there.extra_header = "used there";
  EXPECT_EQ(shown(differences(here, there)),
            "spec.dtype=bf16|fp16; spec.mask=\"causal & window(64, 0)\"|\"causal\"; spec.b=|<=8; spec.sink=|yes; "
            "follows schedule.tile_q=128|64; follows generated config.gen.cuh; follows header templates/extra.cuh; ");
}

TEST(KeyDifference, FieldsOfTheSchedule) {
  const Parts here;
  Parts there;
  there.schedule = "family=sync,tile_q=64,stages=2,order=natural";
  there.config = "another";
  EXPECT_EQ(shown(differences(here, there)),
            "schedule.tile_q=128|64; schedule.order=|natural; follows generated config.gen.cuh; ");
}

TEST(KeyDifference, APinIsACauseAlsoWhenTheSpecDiffers) {
  const Parts here;
  Parts there;
  there.spec = "fwd bf16 d=128 heads=4/2 mask=\"causal & window(64, 0)\"";
  there.schedule = "family=sync,tile_q=64,stages=3";
  EXPECT_EQ(shown(differences(here, there, "tile_q=128")),
            "spec.d=64|128; schedule.tile_q=128|64; follows schedule.stages=2|3; ");
}

TEST(KeyDifference, AnotherTarget) {
  const Parts here;
  Parts there;
  there.target = "sm_90a";
  there.options = "--gpu-architecture=sm_90a";
  there.config = "another";
  EXPECT_EQ(
      shown(differences(here, there)),
      "target=sm_80|sm_90a; follows options=--gpu-architecture=sm_80|--gpu-architecture=sm_90a; follows generated config.gen.cuh; ");
}

TEST(KeyDifference, AnotherBuild) {
  const Parts here;
  Parts compiler, files, options;
  compiler.compiler = "nvrtc 12.9 build bb";
  compiler.options += " --no-cache";
  EXPECT_EQ(shown(differences(here, compiler)),
            "compiler=nvrtc 13.0 build aa|nvrtc 12.9 build bb; follows options=--gpu-architecture=sm_80|"
            "--gpu-architecture=sm_80 --no-cache; ");
  files.config = "edited";
  files.header = "edited";
  const auto list = differences(here, files);
  EXPECT_EQ(shown(list), "generated config.gen.cuh; header templates/device.cuh; ");
  for (const KeyDifference& d : list) EXPECT_NE(d.remark.find("override_dir"), std::string::npos);
  options.options += " -lineinfo";
  EXPECT_EQ(shown(differences(here, options)), "options=--gpu-architecture=sm_80|--gpu-architecture=sm_80 -lineinfo; ");
}

TEST(KeyDifference, OtherWordsOfTheSameMeaningAreNone) {
  Parts here, there;
  here.spec = "fwd bf16 d=64 mask=\"k<=q\"";
  there.spec = "fwd bf16 d=64 mask=\"k <= q\" params=\"n: u8\" lse=ln";
  const std::string one = here.text(), other = there.text();
  const char *meant = "fwd bf16 d=64 mask=\"(k <= q)\"", *meant_there = "fwd bf16 d=64 mask=\"(k <= q)\" lse=ln";
  const auto found = [&](const char* here_means, const char* there_means) {
    return shown(key_differences({one, here.spec, here.schedule, here_means},
                                 {other, there.spec, there.schedule, there_means}, ""));
  };
  EXPECT_EQ(found(meant, meant_there), "spec.lse=|ln; ");
  const std::string all = "spec.mask=\"k<=q\"|\"k <= q\"; spec.params=|\"n: u8\"; spec.lse=|ln; ";
  EXPECT_EQ(found("", meant_there), all) << "a spec that this version does not read";
  EXPECT_EQ(found("", ""), all);
}

TEST(KeyDifference, AChangedTemplateIsACauseBesideOthers) {
  const Parts here;
  Parts there;
  there.spec = "fwd bf16 d=128 heads=4/2 mask=\"causal & window(64, 0)\"";
  there.header = "older";
  EXPECT_EQ(shown(differences(here, there)), "spec.d=64|128; header templates/device.cuh; ");
}

TEST(KeyDifference, LongValuesAreComparedWhole) {
  Parts here, there;
  here.spec = "fwd bf16 d=64 heads=4 mask=\"" + std::string(300, 'q') + "\"";
  there.spec = "fwd bf16 d=64 heads=8 mask=\"" + std::string(300, 'q') + "\"";
  ASSERT_NE(here.text().find("sha256"), std::string::npos);
  EXPECT_EQ(shown(differences(here, there)), "spec.heads=4|8; ");
}

TEST(KeyDifference, TheNearestIsAnotherBuildThenAnotherScheduleThenAnotherKernel) {
  const Parts here;
  Parts build, schedule, target, spec;
  build.compiler = build.header = build.config = "other";
  schedule.schedule = "family=sync,tile_q=64,stages=2";
  target.target = "sm_89";
  spec.spec = "fwd fp16 d=64 heads=4/2 mask=\"causal & window(64, 0)\"";
  int last = 0;
  for (const Parts& there : {build, schedule, target, spec}) {
    const int far = distance(differences(here, there));
    EXPECT_GT(far, last);
    last = far;
  }
}

TEST(KeyDifference, AnyTextIsTaken) {
  for (const char* text : {"", "\n", ": ", "no colon", "a: b", "spec: \n\n:", "schedule: =,=,,="}) {
    EXPECT_NO_FATAL_FAILURE(key_differences({text, text, text}, {"x: y\n", "fwd \"open", ",=,"}, text));
  }
}

}  // namespace
}  // namespace flashjit
