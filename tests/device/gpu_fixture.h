// The first GPU and an engine on it; tests are skipped where there is none.
#pragma once

#include <gtest/gtest.h>

#include <memory>

#include "flashjit/flashjit.hpp"
#include "runtime/driver/device_memory.h"

namespace flashjit {

class GpuTest : public testing::Test {
 protected:
  void SetUp() override {
    auto driver = Driver::open();
    if (!driver) GTEST_SKIP() << driver.error().message;
    auto opened = GpuContext::open(*driver, 0);
    ASSERT_TRUE(opened) << opened.error().message;
    gpu = *opened;
    auto created = Engine::create({.disk_cache = false});
    if (!created && created.error().kind == ErrorKind::NotFound) GTEST_SKIP() << created.error().message;
    ASSERT_TRUE(created) << created.error().message;
    engine = *created;
  }

  GpuContext gpu;
  std::shared_ptr<Engine> engine;
};

}  // namespace flashjit
