#include "runtime/tensor_map_cache.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <thread>
#include <vector>

namespace flashjit {
namespace {

KernelParams params_of(std::uintptr_t seed) {
  KernelParams p = {};
  const auto pointer = [&](std::uintptr_t at) { return reinterpret_cast<void*>(seed * 0x100000 + at * 0x1000); };
  p.q = pointer(1), p.k = pointer(2), p.v = pointer(3), p.o = pointer(4);
  p.q_stride = p.k_stride = p.v_stride = p.o_stride = {4096, 64, 256};
  p.batch = 2, p.q_len = 17, p.k_len = 33;
  return p;
}

constexpr std::size_t kBytes = sizeof(TensorMap) * 4;  // those of Q, K, V and O come first

// Every word says which parameters it belongs to, and where it stands.
TensorMaps maps_of(std::uintptr_t seed) {
  TensorMaps maps = {};
  unsigned long long words[kBytes / sizeof(unsigned long long)];
  for (std::size_t i = 0; i < std::size(words); ++i) words[i] = seed * 1000 + i;
  std::memcpy(static_cast<void*>(&maps), words, kBytes);
  return maps;
}

bool same(const TensorMaps& a, const TensorMaps& b) { return std::memcmp(&a, &b, kBytes) == 0; }

TEST(TensorMapCache, FindsWhatWasKept) {
  const auto cache = std::make_unique<TensorMapCache>();
  const KernelConfig config;
  TensorMaps found;
  EXPECT_FALSE(cache->find(config, {}, found)) << "nothing has been kept, nor for parameters that are all zero";
  cache->keep(config, params_of(1), maps_of(1));
  ASSERT_TRUE(cache->find(config, params_of(1), found));
  EXPECT_TRUE(same(found, maps_of(1)));
  EXPECT_FALSE(cache->find(config, params_of(2), found));
  for (std::uintptr_t seed = 0; seed < 1000; ++seed) cache->keep(config, params_of(seed), maps_of(seed));
  int kept = 0;
  for (std::uintptr_t seed = 0; seed < 1000; ++seed) {
    if (!cache->find(config, params_of(seed), found)) continue;
    ++kept;
    EXPECT_TRUE(same(found, maps_of(seed))) << seed;
  }
  EXPECT_GT(kept, 32);
  EXPECT_LE(kept, 64);
}

TEST(TensorMapCache, EveryNumberThatAMapHasCounts) {
  const auto cache = std::make_unique<TensorMapCache>();
  KernelConfig config;
  cache->keep(config, params_of(1), maps_of(1));
  TensorMaps found;
  const auto is_found = [&](auto change) {
    KernelParams p = params_of(1);
    change(p);
    return cache->find(config, p, found);
  };
  EXPECT_TRUE(is_found([](KernelParams&) {}));
  EXPECT_TRUE(is_found([](KernelParams& p) { p.lse = reinterpret_cast<float*>(0x100); p.tiles_q = 5; }));
  EXPECT_FALSE(is_found([](KernelParams& p) { p.q = p.k; }));
  EXPECT_FALSE(is_found([](KernelParams& p) { p.k = p.q; }));
  EXPECT_FALSE(is_found([](KernelParams& p) { p.v = p.q; }));
  EXPECT_FALSE(is_found([](KernelParams& p) { p.o = nullptr; }));
  for (Strides KernelParams::* stride : {&KernelParams::q_stride, &KernelParams::k_stride, &KernelParams::v_stride, &KernelParams::o_stride}) {
    EXPECT_FALSE(is_found([&](KernelParams& p) { ++(p.*stride).batch; }));
    EXPECT_FALSE(is_found([&](KernelParams& p) { ++(p.*stride).head; }));
    EXPECT_FALSE(is_found([&](KernelParams& p) { ++(p.*stride).token; }));
  }
  EXPECT_FALSE(is_found([](KernelParams& p) { ++p.batch; }));
  EXPECT_FALSE(is_found([](KernelParams& p) { ++p.q_len; }));
  EXPECT_FALSE(is_found([](KernelParams& p) { ++p.k_len; }));

  config.packed = true;  // these maps reach as far as any sequence may
  cache->keep(config, params_of(2), maps_of(2));
  KernelParams longer = params_of(2);
  longer.batch = 9, longer.q_len = 100, longer.k_len = 200;
  EXPECT_TRUE(cache->find(config, longer, found));
  longer.k_len = 0;
  EXPECT_FALSE(cache->find(config, longer, found));
}

TEST(TensorMapCache, ThreadsNeverSeeHalfOfOneAndHalfOfAnother) {
  const auto cache = std::make_unique<TensorMapCache>();
  constexpr std::uintptr_t kSets = 300;  // several for each place
  std::atomic<int> torn = 0, found = 0;
  std::vector<std::thread> threads;
  for (std::uintptr_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      const KernelConfig config;
      TensorMaps maps;
      for (std::uintptr_t i = 0; i < 20000; ++i) {
        const std::uintptr_t seed = (i * 7 + t * 13) % kSets;
        if (cache->find(config, params_of(seed), maps)) {
          ++found;
          torn += !same(maps, maps_of(seed));
        } else {
          cache->keep(config, params_of(seed), maps_of(seed));
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(torn, 0);
  EXPECT_GT(found, 0);
}

}  // namespace
}  // namespace flashjit
