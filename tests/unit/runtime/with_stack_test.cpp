#include "runtime/engine/with_stack.h"

#include <gtest/gtest.h>
#include <pthread.h>

#include <functional>
#include <stdexcept>
#include <thread>

namespace flashjit {
namespace {

std::thread::id used_by(const std::function<void()>& more = [] {}) {
  const auto id = with_stack("test", [&]() -> Result<std::thread::id> {
    more();
    return std::this_thread::get_id();
  });
  return id ? *id : std::thread::id();
}

void on_thread(std::size_t stack, std::function<void()> work) {
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  ASSERT_EQ(pthread_attr_setstacksize(&attributes, stack), 0);
  pthread_t thread;
  const auto call = [](void* at) -> void* { return (*static_cast<std::function<void()>*>(at))(), nullptr; };
  ASSERT_EQ(pthread_create(&thread, &attributes, call, &work), 0);
  pthread_join(thread, nullptr);
  pthread_attr_destroy(&attributes);
}

TEST(WithStack, HereWhereThereIsEnough) {
  EXPECT_EQ(used_by(), std::this_thread::get_id());
  on_thread(std::size_t{2} << 20, [] { EXPECT_EQ(used_by(), std::this_thread::get_id()); });
}

TEST(WithStack, OneThreadWhereThereIsLittle) {
  on_thread(std::size_t{256} << 10, [] {
    std::thread::id nested;
    const std::thread::id outer = used_by([&] {
      nested = used_by();
      volatile char memory[4 << 20];  // so much is there
      for (std::size_t i = 0; i < sizeof memory; i += 4096) memory[i] = 1;
    });
    EXPECT_NE(outer, std::this_thread::get_id());
    EXPECT_EQ(nested, outer);
  });
}

TEST(WithStack, WhatIsThrownIsAnError) {
  on_thread(std::size_t{256} << 10, [] {
    const auto result = with_stack("test", []() -> Result<void> { throw std::runtime_error("words"); });
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().message, "test: words");
  });
}

}  // namespace
}  // namespace flashjit
