// What a launch and a prepare that has nothing to do cost the processor, beside the driver's own launch of the same
// kernel with the same parameters, in rounds that take turns; and a prepare that finds its kernel in the store, beside
// loading that code. One JSON object per line; times in nanoseconds of one call, the clock's own cost taken off.
// `launch_cost [ordinal]`; figures are in RESULTS.md. Without a GPU: exit code 77. (launch_cost_here is the same on the
// recording driver, which costs nothing: what is left is ours.)
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <thread>
#include <vector>

#include "flashjit/flashjit.h"
#include "runtime/driver/device_memory.h"
#include "runtime/launch/kernels.h"
#include "runtime/launch/tensor_maps.h"
#include "tests/embed/allocations.h"
#include "tests/requests.h"

namespace flashjit {
namespace {

using Clock = std::chrono::steady_clock;
using testing::allocations;

constexpr int kRounds = 60, kPerRound = 200;  // fewer launches than the driver queues, so that none waits for the GPU
constexpr int kBatch = 1, kTokens = 128, kHeads = 4, kDim = 64;

double nanoseconds(Clock::duration time) { return std::chrono::duration<double, std::nano>(time).count(); }

struct Measured {
  std::vector<double> times;
  std::int64_t allocated = 0;

  void call(const std::function<bool()>& once, int times_each = 1) {
    const std::int64_t before = allocations.made;
    const auto start = Clock::now();
    for (int i = 0; i < times_each; ++i) once();
    const auto end = Clock::now();
    allocated += allocations.made - before;
    times.push_back(nanoseconds(end - start) / times_each);
  }
  double at(double share) {
    std::sort(times.begin(), times.end());
    return times[static_cast<std::size_t>(share * static_cast<double>(times.size() - 1))];
  }
  void print(std::string_view what, double clock, int threads = 1) {
    fmt::print(
        "{{\"what\": \"{}\", \"threads\": {}, \"ns\": {:.0f}, \"ns_p10\": {:.0f}, \"ns_p90\": {:.0f}, \"ns_p99\": {:.0f}, "
        "\"calls\": {}, \"allocations\": {}}}\n",
        what, threads, at(0.5) - clock, at(0.1) - clock, at(0.9) - clock, at(0.99) - clock, times.size(), allocated);
  }
};

// One launch as the driver got it.
struct Recorded {
  CuLaunchConfig config;
  CuFunction function = nullptr;
  KernelParams params;
  TensorMaps maps;
  bool has_maps = false;
} recorded;

struct Tensors {
  static constexpr std::int64_t kShape[4] = {kBatch, kTokens, kHeads, kDim};
  std::vector<DeviceBuffer> memory;
  Arguments cpp;
  std::int64_t shape[4] = {kBatch, kTokens, kHeads, kDim};
  flashjit_tensor c_tensors[4] = {};
  flashjit_arguments c = {};

  Result<void> create(const GpuContext& gpu, int ordinal) {
    for (Tensor* tensor : {&cpp.q, &cpp.k, &cpp.v, &cpp.o}) {
      FLASHJIT_ASSIGN(buffer, DeviceBuffer::allocate(gpu, std::size_t{2} * kBatch * kTokens * kHeads * kDim));
      flashjit_tensor& c_tensor = c_tensors[memory.size()];
      *tensor = {buffer.data(), "bf16", {kShape, kShape + 4}, {}};
      c_tensor = {buffer.data(), {2, ordinal}, 4, {4, 16, 1}, shape, nullptr, 0};
      memory.push_back(std::move(buffer));
    }
    c.struct_size = sizeof c;
    c.q = &c_tensors[0], c.k = &c_tensors[1], c.v = &c_tensors[2], c.o = &c_tensors[3];
    return {};
  }
};

class Bench {
 public:
  explicit Bench(int ordinal) : ordinal_(ordinal) {}

  Result<void> run() {
    FLASHJIT_ASSIGN(driver, Driver::open());
    FLASHJIT_ASSIGN(gpu, GpuContext::open(driver, ordinal_));
    driver_ = driver;
    const CurrentContext current(gpu);
    FLASHJIT_ASSIGN(engine, Engine::create({.ordinal = ordinal_}));
    FLASHJIT_TRY(tensors_.create(gpu, ordinal_));
    FLASHJIT_ASSIGN(stream, Stream::create(gpu));
    Measured clock;
    for (int i = 0; i < 10000; ++i) clock.call([] { return true; });
    clock_ = clock.at(0.5);
    for (const char* schedule : {"family=hopper", "family=sync"}) {
      if (engine->target() != "sm_90a" && std::strstr(schedule, "hopper")) continue;
      FLASHJIT_TRY(launches(gpu, *engine, schedule, stream));
    }
    parts(stream);
    FLASHJIT_TRY(prepares(*engine));
    return stored(gpu, engine->target());
  }

 private:
  static std::string spec() { return fmt::format("fwd bf16 d={} heads={} mask=\"causal\"", kDim, kHeads); }

  // The parameters of a launch, by a driver that notes them down in place of launching.
  Result<std::shared_ptr<GpuKernel>> record(const GpuContext& gpu, const std::string& target, const char* schedule,
                                            const Stream& stream) {
    DriverApi api = gpu.driver->api;
    api.launch = [](const CuLaunchConfig* config, CuFunction function, void** arguments, void**) {
      recorded.config = *config;
      recorded.function = function;
      std::memcpy(&recorded.params, arguments[0], sizeof recorded.params);
      if (recorded.has_maps) std::memcpy(&recorded.maps, arguments[1], sizeof recorded.maps);
      return 0;
    };
    GpuContext recording = gpu;
    recording.driver = std::make_shared<Driver>(api, gpu.driver->version());
    FLASHJIT_ASSIGN(compiled, compile_spec(spec(), target, schedule));
    recorded.has_maps = compiled.plan.launches.front().tensor_maps;
    FLASHJIT_ASSIGN(counters, WorkCounters::create(gpu));
    FLASHJIT_ASSIGN(kernel, GpuKernel::load(recording, ordinal_, compiled, counters));
    FLASHJIT_TRY(static_cast<Kernel&>(*kernel).run(tensors_.cpp, stream.get()));
    return std::move(kernel);
  }

  Result<void> launches(const GpuContext& gpu, Engine& engine, const char* schedule, const Stream& stream) {
    const auto recorder = record(gpu, engine.target(), schedule, stream);  // has the code of what was recorded
    FLASHJIT_TRY(recorder);
    FLASHJIT_ASSIGN(kernel, engine.prepare(spec(), {.schedule = schedule}));
    flashjit_engine* c_engine = nullptr;
    flashjit_kernel* c_kernel = nullptr;
    flashjit_prepare_options pins = {sizeof pins, schedule, nullptr};
    flashjit_engine_options options = {};
    options.struct_size = sizeof options;
    options.ordinal = ordinal_;
    if (flashjit_engine_create(&options, &c_engine, nullptr) ||
        flashjit_prepare(c_engine, spec().c_str(), &pins, &c_kernel, nullptr)) {
      return internal("the C interface refuses what the C++ interface takes");
    }
    void* arguments[] = {&recorded.params, &recorded.maps};
    const struct {
      const char* name;
      std::function<bool()> once;
    } ways[] = {
        {"cuLaunchKernelEx",
         [&] { return gpu.driver->api.launch(&recorded.config, recorded.function, arguments, nullptr) == 0; }},
        {"Kernel::run", [&] { return bool(kernel->run(tensors_.cpp, stream.get())); }},
        {"flashjit_run", [&] { return flashjit_run(c_kernel, &tensors_.c, stream.get(), nullptr) == FLASHJIT_OK; }}};
    std::vector<Measured> measured(std::size(ways));
    for (int round = -2; round < kRounds; ++round) {  // two for warming up
      for (std::size_t way = 0; way < measured.size(); ++way) {
        if (!ways[way].once()) return internal(fmt::format("{} failed", ways[way].name));
        Measured ignored;
        for (int i = 0; i < kPerRound; ++i) (round < 0 ? ignored : measured[way]).call(ways[way].once);
        FLASHJIT_TRY(stream.synchronize());
      }
    }
    for (std::size_t way = 0; way < measured.size(); ++way) {
      measured[way].print(fmt::format("{} {}", ways[way].name, schedule), clock_);
    }
    fmt::print("{{\"what\": \"over the driver's launch {}\", \"ns\": {:.0f}, \"ns_c\": {:.0f}, \"limit\": 1500}}\n",
               schedule, measured[1].at(0.5) - measured[0].at(0.5), measured[2].at(0.5) - measured[0].at(0.5));
    flashjit_kernel_destroy(c_kernel);
    flashjit_engine_destroy(c_engine);
    return {};
  }

  // What the driver's other calls in a launch take, ten at a time.
  void parts(const Stream& stream) {
    const DriverApi& api = driver_->api;
    const auto measure = [&](const char* name, const std::function<bool()>& once) {
      Measured measured;
      for (int i = 0; i < 5000; ++i) measured.call(once, 10);
      measured.print(name, clock_ / 10);
    };
    measure("cuCtxGetCurrent", [&] {
      CuContext context;
      return api.get_context(&context) == 0;
    });
    measure("cuStreamIsCapturing", [&] {
      int capturing;
      return api.stream_is_capturing(stream.get(), &capturing) == 0;
    });
    measure("cuStreamGetId", [&] {
      unsigned long long id;
      return api.stream_id(stream.get(), &id) == 0;
    });
    const std::uint64_t head = std::uint64_t{2} * kDim, token = kHeads * head;
    const TensorMapLayout layout{.address = recorded.params.q,
                                 .rank = 4,
                                 .size = {kDim, kTokens, kHeads, kBatch},
                                 .stride = {token, head, kTokens * token},
                                 .box = {64, 128, 1, 1}};
    TensorMap map;
    measure("cuTensorMapEncodeTiled", [&] { return bool(encode(*driver_, layout, map)); });
  }

  // Many threads ask for the same kernel, as often as they can.
  Result<void> prepares(Engine& engine) {
    const std::string text = spec();
    FLASHJIT_ASSIGN(first, engine.prepare(text));
    for (const int count : {1, 2, 4, 16}) {
      std::vector<Measured> measured(static_cast<std::size_t>(count));
      std::vector<std::thread> threads;
      for (Measured& one : measured) {
        threads.emplace_back([&] {
          one.times.reserve(20000);
          for (int i = 0; i < 20000; ++i) one.call([&] { return *engine.prepare(text) == first; }, 10);
        });
      }
      for (std::thread& thread : threads) thread.join();
      for (std::size_t i = 1; i < measured.size(); ++i) {
        measured[0].times.insert(measured[0].times.end(), measured[i].times.begin(), measured[i].times.end());
        measured[0].allocated += measured[i].allocated;
      }
      measured[0].print("prepare again", clock_ / 10, count);
    }
    return {};
  }

  // An engine that is new finds what an engine before it has stored.
  Result<void> stored(const GpuContext& gpu, const std::string& target) {
    std::string folder = (std::filesystem::temp_directory_path() / "launch_cost.XXXXXX").string();
    if (!mkdtemp(folder.data())) return internal("no temporary folder");
    const auto measure = [&]() -> Result<void> {
      FLASHJIT_ASSIGN(counters, WorkCounters::create(gpu));
      for (const char* text : {"fwd bf16 d=64 heads=16", "fwd bf16 d=128 heads=16 mask=\"causal\"",
                               "fwd bf16 d=256 heads=8 mask=\"causal\"",
                               "fwd fp16 d=80 heads=32/8 mask=\"window(1024, 0)\" score=\"softcap(50)\""}) {
        FLASHJIT_ASSIGN(compiled, compile_spec(text, target, ""));
        Measured prepare, load;
        for (int round = -1; round < 25; ++round) {  // the first one compiles
          FLASHJIT_ASSIGN(engine, Engine::create({.ordinal = ordinal_, .cache_dir = folder}));
          std::string source;
          Measured first;
          (round < 0 ? first : prepare).call([&] {
            const auto kernel = engine->prepare(text);
            if (kernel) source = (*kernel)->facts().source;
            return bool(kernel);
          });
          if (round >= 0 && source != "disk") return internal("not found in the store: " + source);
          (round < 0 ? first : load).call([&] { return bool(GpuKernel::load(gpu, ordinal_, compiled, counters)); });
        }
        fmt::print(
            "{{\"what\": \"prepare out of the store\", \"spec\": \"{}\", \"over_load_us\": {:.0f}, \"over_load_us_p90\": {:.0f}, "
            "\"load_us\": {:.0f}, \"limit\": 1000}}\n",
            json_text(text), (prepare.at(0.5) - load.at(0.5)) / 1000, (prepare.at(0.9) - load.at(0.9)) / 1000,
            load.at(0.5) / 1000);
      }
      return {};
    };
    const auto done = measure();
    std::filesystem::remove_all(folder);
    return done;
  }

  // Its quotes escaped.
  static std::string json_text(std::string_view text) {
    std::string escaped;
    for (const char c : text) escaped += c == '"' ? std::string("\\\"") : std::string(1, c);
    return escaped;
  }

  const int ordinal_;
  std::shared_ptr<const Driver> driver_;
  Tensors tensors_;
  double clock_ = 0;
};

}  // namespace
}  // namespace flashjit

int main(int count, char** words) {
  const auto done = flashjit::Bench(count > 1 ? std::atoi(words[1]) : 0).run();
  if (done) return 0;
  fmt::print("{}: {}\n", done.error().kind == flashjit::ErrorKind::NotFound ? "skipped" : "error",
             done.error().message);
  return done.error().kind == flashjit::ErrorKind::NotFound ? 77 : 1;
}
