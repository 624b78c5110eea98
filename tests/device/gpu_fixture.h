// The first GPU and an engine on it, and tensors there; tests are skipped where there is none.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "compiler/spec/half.h"
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

class GpuTensorsTest : public GpuTest {
 protected:
  // Of normal numbers, or of ones that nobody should read.
  Tensor tensor(const char* dtype, std::vector<std::int64_t> shape, bool random = false) {
    const Dtype type = *parse_dtype(dtype);
    std::int64_t count = 1;
    for (const std::int64_t size : shape) count *= size;
    std::vector<std::uint8_t> bytes(static_cast<std::size_t>(count * size_of(type)), 0xff);
    for (std::int64_t i = 0; random && i < count; ++i)
      store_float(type, bytes.data(), i, std::normal_distribution<float>()(numbers));
    auto buffer = DeviceBuffer::allocate(gpu, bytes.size());
    EXPECT_TRUE(buffer && buffer->upload(bytes.data()));
    memory.push_back(std::move(*buffer));
    return {memory.back().data(), dtype, std::move(shape), {}};
  }
  // Workspace for these arguments, where a kernel wants some.
  void give_workspace(const Kernel& kernel, Arguments& a) {
    const auto bytes = kernel.workspace_bytes(a);
    ASSERT_TRUE(bytes) << bytes.error().message;
    a.workspace = tensor("u8", {*bytes}).data;
    a.workspace_bytes = *bytes;
  }
  // What comes from this tensor on, in another way each run.
  void spoil(std::size_t first, int run, const Stream& on) {
    for (std::size_t i = first; i < memory.size(); ++i)
      ASSERT_TRUE(memory[i].fill(static_cast<unsigned char>(0xff - run), on.get()));
  }

  std::vector<DeviceBuffer> memory;
  std::mt19937_64 numbers{20261124};
};

}  // namespace flashjit
