// 64 KB of stack suffice for every function of the API, whatever the spec.
#include <pthread.h>
#include <sys/mman.h>

#include <functional>
#include <string>

#include "tests/embed/embed_fixture.h"

namespace flashjit {
namespace {

constexpr std::size_t kPage = 4096, kStack = 64 * 1024;

// The stack that is left when `work` begins is less: the thread's own data lies on it, too. Below is a page that cannot be
// touched.
void on_small_stack(const std::function<void()>& work) {
  char* const memory = static_cast<char*>(
      mmap(nullptr, kPage + kStack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0));
  ASSERT_NE(memory, MAP_FAILED);
  mprotect(memory, kPage, PROT_NONE);
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  ASSERT_EQ(pthread_attr_setstack(&attributes, memory + kPage, kStack), 0);
  pthread_t thread;
  const auto call = [](void* at) -> void* { return (*static_cast<const std::function<void()>*>(at))(), nullptr; };
  ASSERT_EQ(pthread_create(&thread, &attributes, call, const_cast<std::function<void()>*>(&work)), 0);
  pthread_join(thread, nullptr);
  pthread_attr_destroy(&attributes);
  munmap(memory, kPage + kStack);
}

std::string repeated(int times, const std::string& text) {
  std::string all;
  for (int i = 0; i < times; ++i) all += text;
  return all;
}
// open(open(... middle close)close)
std::string nested(int times, const std::string& open, const std::string& middle, const std::string& close) {
  return repeated(times, open) + middle + repeated(times, close);
}

// The deepest that the limits of the language allow, in each of the ways to get there.
const std::string kDeep[] = {
    "mask=\"" + nested(60, "(", "k <= q", ")") + "\"",
    "mask=\"" + repeated(60, "!") + "(k <= q)\"",
    "mask=\"k" + repeated(120, " + k - q") + " < 7\"",
    "mask=\"" + nested(60, "min(k, ", "q", ")") + " < q\"",
    "mask=\"" + nested(30, "max(1 - abs(", "q - k", "), 2)") + " < q\"",
    "mask=\"k == q" + repeated(120, " | k == 9") + "\"",
    "score=\"" + nested(60, "(", "s", ")") + "\"",
    "score=\"" + repeated(60, "-") + "s\"",
    "score=\"s" + repeated(500, " + s") + "\"",
    "score=\"max(s" + repeated(400, ", s") + ")\"",
    "score=\"s" + repeated(200, "; s + 0.5") + "\"",
    "score=\"" + nested(60, "where(k < q, s, ", "s", ")") + "\"",
    "score=\"" + nested(30, "min(s, max(s, ", "s", "))") + "\"",
    "params=\"t: fp32[1]\" score=\"s + t[" + nested(30, "min(max(", "k", ", 0), 7)") + "]\"",
    "params=\"t: fp32[1]\" score=\"s + t[k" + repeated(120, " + 1 - 1") + "]\"",
};

void prepares_and_runs(Device device) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the sanitizer makes frames larger";
#endif
  if (const auto engine = Engine::create({.device = device}); !engine) GTEST_SKIP() << engine.error().message;
  for (const std::string& spec : kDeep) {
    SCOPED_TRACE(spec);
    on_small_stack([&] {
      auto engine = Engine::create({.device = device, .disk_cache = false, .threads = 2});
      ASSERT_TRUE(engine) << engine.error().message;
      auto kernel = (*engine)->prepare("fwd bf16 d=64 heads=4/2 " + spec);
      ASSERT_TRUE(kernel) << kernel.error().message;
      Arguments call = arguments();
      static float table[8] = {};
      if (spec.find("t[") != std::string::npos) call.params["t"] = {table, "fp32", {8}, {}};
      const auto done = (*kernel)->run(call);
      EXPECT_TRUE(done) << done.error().message;
      if (call.params.empty()) return;
      call.params["t"].shape = {1};
      EXPECT_FALSE((*kernel)->run(call));
    });
  }
}

TEST(SmallStacks, PrepareAndRunOnAGpu) { prepares_and_runs(Device::Gpu); }
TEST(SmallStacks, PrepareAndRunOnAProcessor) { prepares_and_runs(Device::Host); }

}  // namespace
}  // namespace flashjit
