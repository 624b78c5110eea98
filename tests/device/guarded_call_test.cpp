// Calls of any scalars and sizes on a GPU: none of them reads or writes beyond its tensors.
#include <dlfcn.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <vector>

#include "runtime/driver/device_memory.h"
#include "tests/random/guarded_calls.h"

namespace flashjit {
namespace {

using testing_random::Guarded;
using testing_random::GuardedCalls;

// The driver's calls for addresses without memory, which only this test needs.
struct VirtualMemory {
  struct Location {
    int type = 1;  // a device
    int ordinal = 0;
  };
  struct Properties {
    int type = 1;  // pinned
    int handle_types = 0;
    Location location;
    void* windows = nullptr;
    unsigned char flags[8] = {};
  };
  struct Access {
    Location location;
    int flags = 3;  // read and write
  };
  template <class F>
  static F* find(const char* name) {
    return reinterpret_cast<F*>(dlsym(dlopen("libcuda.so.1", RTLD_NOW), name));
  }
  using Pointer = unsigned long long;
  CuResult (*granularity)(std::size_t*, const Properties*,
                          int) = find<CuResult(std::size_t*, const Properties*, int)>("cuMemGetAllocationGranularity");
  CuResult (*reserve)(Pointer*, std::size_t, std::size_t, Pointer, Pointer) =
      find<CuResult(Pointer*, std::size_t, std::size_t, Pointer, Pointer)>("cuMemAddressReserve");
  CuResult (*create)(Pointer*, std::size_t, const Properties*,
                     Pointer) = find<CuResult(Pointer*, std::size_t, const Properties*, Pointer)>("cuMemCreate");
  CuResult (*map)(Pointer, std::size_t, std::size_t, Pointer,
                  Pointer) = find<CuResult(Pointer, std::size_t, std::size_t, Pointer, Pointer)>("cuMemMap");
  CuResult (*set_access)(Pointer, std::size_t, const Access*, std::size_t) =
      find<CuResult(Pointer, std::size_t, const Access*, std::size_t)>("cuMemSetAccess");
  CuResult (*upload)(Pointer, const void*,
                     std::size_t) = find<CuResult(Pointer, const void*, std::size_t)>("cuMemcpyHtoD_v2");
};

// Kept until the process ends.
class GpuGuarded : public Guarded {
 public:
  explicit GpuGuarded(const VirtualMemory& driver) : driver_(driver) {
    const VirtualMemory::Properties properties;
    const VirtualMemory::Access access;
    VirtualMemory::Pointer base = 0, memory = 0;
    if (driver.granularity(&size_, &properties, 0) != 0 || driver.reserve(&base, 3 * size_, 0, 0, 0) != 0) return;
    if (driver.create(&memory, size_, &properties, 0) != 0 || driver.map(base + size_, size_, 0, memory, 0) != 0)
      return;
    if (driver.set_access(base + size_, size_, &access, 1) != 0) return;
    begin_ = reinterpret_cast<char*>(base + size_);
  }
  char* begin() const override { return begin_; }
  char* end() const override { return begin_ + size_; }
  void write(void* to, const void* from, std::size_t bytes) const override {
    EXPECT_EQ(driver_.upload(reinterpret_cast<VirtualMemory::Pointer>(to), from, bytes), 0);
  }

 private:
  const VirtualMemory& driver_;
  std::size_t size_ = 0;
  char* begin_ = nullptr;
};

TEST(GuardedCalls, AreRefusedOrStayInside) {
  auto driver = Driver::open();
  if (!driver) GTEST_SKIP() << driver.error().message;
  const auto gpu = GpuContext::open(*driver, 0);
  ASSERT_TRUE(gpu) << gpu.error().message;
  auto engine = Engine::create({.disk_cache = false});
  if (!engine && engine.error().kind == ErrorKind::NotFound) GTEST_SKIP() << engine.error().message;
  ASSERT_TRUE(engine) << engine.error().message;
  const CurrentContext current(*gpu);
  const VirtualMemory virtual_memory;
  std::vector<std::unique_ptr<GpuGuarded>> owned;
  std::vector<const Guarded*> memory;
  for (std::size_t i = 0; i < GuardedCalls::kTensors; ++i) {
    owned.push_back(std::make_unique<GpuGuarded>(virtual_memory));
    ASSERT_TRUE(owned.back()->begin());
    memory.push_back(owned.back().get());
  }
  auto stream = Stream::create(*gpu);
  ASSERT_TRUE(stream);
  constexpr std::size_t kWorkspace = 64 << 20;  // more than any of these kernels needs
  const auto workspace = DeviceBuffer::allocate(*gpu, kWorkspace);
  ASSERT_TRUE(workspace);
  const auto start = std::chrono::steady_clock::now();
  const auto first = static_cast<std::uint64_t>(start.time_since_epoch().count());
  fmt::print("seeds from {} on\n", first);
  int ran = 0, refused = 0;
  for (std::uint64_t seed = first; std::chrono::steady_clock::now() - start < std::chrono::seconds(60); ++seed) {
    GuardedCalls calls(seed, true);
    auto kernel = (*engine)->prepare(calls.spec());
    ASSERT_TRUE(kernel) << "seed " << seed << ": " << calls.spec() << "\n" << kernel.error().message;
    for (int i = 0; i < 300; ++i) {
      Arguments call = calls.draw(memory);
      call.workspace = workspace->data();
      call.workspace_bytes = kWorkspace;
      const std::string text =
          fmt::format("seed {}, call {}, {}\n{}\n", seed, i, calls.spec(), GuardedCalls::text(call));
      const auto done = (*kernel)->run(call, stream->get());
      (done ? ran : refused) += 1;
      if (done) {
        ASSERT_TRUE(stream->synchronize()) << "a fault: " << text;
        continue;
      }
      ASSERT_EQ(done.error().kind, ErrorKind::Invalid) << text;
      ASSERT_NE(done.error().message.find("clamp the index"), std::string::npos) << text << done.error().message;
    }
  }
  fmt::print("{} calls ran, {} were refused\n", ran, refused);
  EXPECT_GT(ran, 20);
  EXPECT_GT(refused, 20);
}

}  // namespace
}  // namespace flashjit
