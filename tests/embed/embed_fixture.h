// What tests of engines and kernels on the recording driver share. Any machine code runs there, so arguments can be
// anything.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "flashjit/flashjit.hpp"
#include "tests/embed/fake_cuda.h"

namespace flashjit {

constexpr char kSpec[] = "fwd bf16 d=64 heads=4/2 mask=\"causal\"";

inline Arguments arguments() {
  static char memory[4][4096] = {};
  Arguments a;
  a.q = {memory[0], "bf16", {1, 8, 4, 64}, {}};
  a.k = {memory[1], "bf16", {1, 8, 2, 64}, {}};
  a.v = {memory[2], "bf16", {1, 8, 2, 64}, {}};
  a.o = {memory[3], "bf16", {1, 8, 4, 64}, {}};
  return a;
}

// Null where there is no NVRTC: the test is to be skipped.
inline std::shared_ptr<Engine> create_engine(const EngineOptions& options) {
  auto created = Engine::create(options);
  if (created) return *created;
  EXPECT_EQ(created.error().kind, ErrorKind::NotFound) << created.error().message;
  EXPECT_NE(created.error().message.find("NVRTC"), std::string::npos) << created.error().message;
  return nullptr;
}

}  // namespace flashjit
