#include "runtime/engine/environment.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <map>
#include <string>

namespace flashjit {
namespace {

class EnvironmentTest : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : kNames) {
      if (const char* value = getenv(name)) saved[name] = value;
      unsetenv(name);
    }
  }
  void TearDown() override {
    for (const char* name : kNames) unsetenv(name);
    for (const auto& [name, value] : saved) setenv(name.c_str(), value.c_str(), 1);
  }
  static constexpr const char* kNames[] = {"FLASHJIT_CACHE_DIR", "FLASHJIT_JIT",     "FLASHJIT_LOG",
                                           "FLASHJIT_DUMP_DIR",  "FLASHJIT_NVRTC",   "FLASHJIT_TRUSTED_LIST",
                                           "FLASHJIT_LINE_INFO", "FLASHJIT_THREADS", "FLASHJIT_BUNDLES",
                                           "FLASHJIT_RECORD",    "XDG_CACHE_HOME",   "HOME"};
  std::map<std::string, std::string> saved;
};

TEST_F(EnvironmentTest, WhereKernelsAreKept) {
  EXPECT_EQ(read_environment()->cache_dir, "");
  setenv("HOME", "/", 1);  // containers without a user: writing to /.cache is not meant
  EXPECT_EQ(read_environment()->cache_dir, "");
  setenv("HOME", "/users/ada", 1);
  EXPECT_EQ(read_environment()->cache_dir, "/users/ada/.cache/flashjit");
  setenv("XDG_CACHE_HOME", "relative", 1);
  EXPECT_EQ(read_environment()->cache_dir, "/users/ada/.cache/flashjit");
  setenv("XDG_CACHE_HOME", "/xdg", 1);
  EXPECT_EQ(read_environment()->cache_dir, "/xdg/flashjit");
  setenv("HOME", "/odd:name", 1);  // ':' separates directories
  setenv("XDG_CACHE_HOME", "/xdg:odd", 1);
  EXPECT_EQ(read_environment()->cache_dir, "");
  setenv("FLASHJIT_CACHE_DIR", "/own", 1);
  EXPECT_EQ(read_environment()->cache_dir, "/own");
}

TEST_F(EnvironmentTest, Values) {
  const auto nothing = read_environment();
  ASSERT_TRUE(nothing);
  EXPECT_TRUE(nothing->jit);
  EXPECT_EQ(nothing->threads, 0);
  EXPECT_FALSE(nothing->line_info);
  EXPECT_TRUE(nothing->bundles.empty());
  EXPECT_EQ(nothing->record, "");
  setenv("FLASHJIT_JIT", "off", 1);
  setenv("FLASHJIT_LINE_INFO", "on", 1);
  setenv("FLASHJIT_THREADS", "12", 1);
  setenv("FLASHJIT_BUNDLES", "/a.fjb:b.fjb", 1);
  setenv("FLASHJIT_RECORD", "kernels.txt", 1);
  const auto set = read_environment();
  ASSERT_TRUE(set);
  EXPECT_FALSE(set->jit);
  EXPECT_EQ(set->threads, 12);
  EXPECT_EQ(set->bundles, (std::vector<std::string>{"/a.fjb", "b.fjb"}));
  EXPECT_EQ(set->record, "kernels.txt");
  EXPECT_TRUE(set->line_info);
}

TEST_F(EnvironmentTest, BadValuesAreNamed) {
  for (const auto& [name, value] :
       std::initializer_list<std::pair<const char*, const char*>>{{"FLASHJIT_JIT", "maybe"},
                                                                  {"FLASHJIT_LINE_INFO", "1"},
                                                                  {"FLASHJIT_BUNDLES", ":a"},
                                                                  {"FLASHJIT_BUNDLES", "a:"},
                                                                  {"FLASHJIT_BUNDLES", "a::b"},
                                                                  {"FLASHJIT_THREADS", "0"},
                                                                  {"FLASHJIT_THREADS", "-1"},
                                                                  {"FLASHJIT_THREADS", "4x"},
                                                                  {"FLASHJIT_THREADS", "99999999999999999999"},
                                                                  {"FLASHJIT_THREADS", "1025"}}) {
    setenv(name, value, 1);
    const auto settings = read_environment();
    ASSERT_FALSE(settings) << name << "=" << value;
    EXPECT_EQ(settings.error().kind, ErrorKind::Invalid);
    EXPECT_EQ(settings.error().message.find(name), 0u) << settings.error().message;
    EXPECT_NE(settings.error().message.find(value), std::string::npos) << settings.error().message;
    unsetenv(name);
  }
}

}  // namespace
}  // namespace flashjit
