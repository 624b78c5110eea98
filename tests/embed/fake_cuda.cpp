#include "tests/embed/fake_cuda.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <random>
#include <string_view>
#include <vector>

namespace fake_cuda {
namespace {

enum Code {
  kDone = 0,
  kInvalidValue = 1,
  kNotInitialised = 3,
  kInvalidDevice = 101,
  kInvalidImage = 200,
  kInvalidContext = 201,
  kNoBinary = 209,
  kInvalidHandle = 400,
  kNotFound = 500,
  kUnsupportedInCapture = 900,
  kBrokenCapture = 901
};

constexpr int kMajor[kDevices] = {8, 9, 9}, kSms[kDevices] = {108, 132, 132};
constexpr int kGlobal = 0, kRelaxed = 2;

struct Context {
  int device;
};
struct Stream {
  int device = 0;
  std::uint64_t id = 0;
  bool capturing = false, broken = false;
  int mode = 0, nodes = 0;
};
struct Library;
struct Function {
  Library* library = nullptr;
  int device = 0;
};
struct Library {
  int major = 0;
  Function functions[kDevices] = {};
};
struct Graph {
  int nodes;
};

Counters counters;
std::mutex mutex;
std::array<Context, kDevices> primary = {Context{0}, Context{1}, Context{2}};
std::vector<Stream*> capturing;
std::atomic<std::uint64_t> next_stream = 1;
thread_local std::vector<Context*> current;
thread_local int capture_mode = kGlobal;
thread_local Launch last;

// For tests of who loads a driver at all.
[[gnu::constructor]] void leave_a_mark() {
  if (const char* file = std::getenv("FAKE_CUDA_MARK")) {
    if (std::FILE* mark = std::fopen(file, "w")) std::fclose(mark);
  }
}

// 100 us, up to 30 % more for its shared memory, and up to 0.3 % of noise. With FAKE_CUDA_BUSY no kernel is faster than another, and
// each launch takes up to seven times as long, no two of them alike: were half of them exactly 100 us, a median might see no noise.
double milliseconds_of(unsigned shared_bytes, int number) {
  static const bool busy = std::getenv("FAKE_CUDA_BUSY") != nullptr;
  static thread_local std::minstd_rand random;
  if (busy) return 0.1 * std::pow(7, static_cast<double>(random() % 10000) / 10000);
  return 0.1 * (1 + 0.3 * (shared_bytes % 7919) / 7919) * (1 + 0.003 * (number % 17) / 17);
}

thread_local double milliseconds = 0;  // that the launches of this thread took

Context* top() { return current.empty() ? nullptr : current.back(); }

// Calls that may wait or that need the whole device: they break every capture in the global mode, unless this thread
// has said that it knows what it does.
int unsafe_call() {
  ++counters.calls;
  if (capture_mode == kRelaxed) return kDone;
  const std::lock_guard lock(mutex);
  int result = kDone;
  for (Stream* stream : capturing) {
    if (stream->mode != kGlobal) continue;
    stream->broken = true;
    ++counters.broken_captures;
    result = kUnsupportedInCapture;
  }
  return result;
}

// The default stream waits for all others that do not say otherwise, which a capture cannot have in any mode.
int call_on(const void* stream) {
  if (stream) return kDone;
  const std::lock_guard lock(mutex);
  for (Stream* each : capturing) {
    each->broken = true;
    ++counters.broken_captures;
  }
  return capturing.empty() ? kDone : kUnsupportedInCapture;
}

int init(unsigned) { return ++counters.initialised, kDone; }
int driver_version(int* version) { return *version = 13000, kDone; }
int device_count(int* count) {
  return *count = counters.initialised ? kDevices : 0, counters.initialised ? kDone : kNotInitialised;
}
int device_get(int* device, int ordinal) { return *device = ordinal, ordinal < kDevices ? kDone : kInvalidDevice; }
int device_name(char* name, int bytes, int device) {
  return std::strncpy(name, device == 0 ? "Fake A100" : "Fake H200", static_cast<std::size_t>(bytes)), kDone;
}
int device_uuid(char* uuid, int device) { return std::memset(uuid, device, 16), kDone; }
int device_memory(std::size_t* bytes, int) { return *bytes = std::size_t{80} << 30, kDone; }
int device_attribute(int* value, int attribute, int device) {
  switch (attribute) {
    case 16: *value = kSms[device]; break;
    case 38: *value = 50 << 20; break;
    case 75: *value = kMajor[device]; break;
    case 76: *value = 0; break;
    case 97: *value = kMajor[device] == 8 ? 166912 : 232448; break;
    default: return kInvalidValue;
  }
  return kDone;
}

// The architecture is where the ELF header of a cubin has it.
int library_load(Library** library, const std::uint8_t* code, int*, void**, unsigned, int*, void**, unsigned) {
  if (const int broken = unsafe_call()) return broken;
  if (std::memcmp(code,
                  "\x7f"
                  "ELF",
                  4) != 0)
    return kInvalidImage;
  ++counters.loads;
  *library = new Library{code[0x31] / 10};
  return kDone;
}
int library_unload(Library* library) { return ++counters.unloads, delete library, kDone; }
int library_kernel(Library** kernel, Library* library, const char*) { return *kernel = library, kDone; }
int kernel_set_attribute(int, int, Library* kernel, int device) {
  return kernel->major == kMajor[device] ? kDone : kNoBinary;
}
int kernel_function(Function** function, Library* kernel) {
  Context* context = top();
  if (!context) return kInvalidContext;
  if (kernel->major != kMajor[context->device]) return kNoBinary;
  *function = &kernel->functions[context->device];
  **function = {kernel, context->device};
  return kDone;
}
int function_load(Function*) { return unsafe_call(); }

int stream_id(Stream* stream, unsigned long long* id) { return ++counters.calls, *id = stream ? stream->id : 0, kDone; }
int stream_synchronize(Stream* stream) {
  if (const int broken = call_on(stream)) return broken;
  return unsafe_call();
}
int exchange_capture_mode(int* mode) { return std::swap(*mode, capture_mode), kDone; }

int launch(const unsigned* config, Function* function, void** parameters, void**) {
  ++counters.calls;
  Context* context = top();
  if (!context) return kInvalidContext;
  Stream* stream = nullptr;
  std::memcpy(&stream, config + 8, sizeof(void*));  // after six sizes, the shared memory and padding
  if (function->device != context->device || (stream && stream->device != context->device)) return kInvalidHandle;
  if (stream && stream->broken) return kBrokenCapture;
  if (stream && stream->capturing) ++stream->nodes;
  volatile const std::uint8_t seen = *static_cast<const std::uint8_t*>(parameters[0]);
  static_cast<void>(seen);
  last = {context->device, config[0], config[3], config[6], stream, stream && stream->capturing};
  ++counters.launches;
  milliseconds += milliseconds_of(config[6], counters.launches);
  return kDone;
}

// After the configuration's sizes, stream: attributes, each of an id and what it says from its eighth byte on.
int active_clusters(int* count, Function*, const unsigned* config) {
  const unsigned* attributes = nullptr;
  std::memcpy(&attributes, config + 10, sizeof attributes);
  return *count = static_cast<int>(132 / attributes[2]), kDone;
}

int tensor_map_encode(std::uint64_t* map, int, std::uint32_t rank, void* address, const std::uint64_t* size,
                      const std::uint64_t*, const std::uint32_t*, const std::uint32_t*, int, int, int, int) {
  ++counters.encodings;
  std::fill_n(map, 16, 0);
  map[0] = reinterpret_cast<std::uintptr_t>(address);
  map[1] = rank;
  map[2] = size[0];
  return kDone;
}

int memory_allocate(std::uint64_t* pointer, std::size_t bytes) {
  if (!top()) return kInvalidContext;
  if (const int broken = unsafe_call()) return broken;
  ++counters.allocations;
  constexpr std::size_t kAligned = 256;  // as the driver does
  void* memory = std::aligned_alloc(kAligned, (bytes + kAligned - 1) / kAligned * kAligned);
  *pointer = reinterpret_cast<std::uintptr_t>(std::memset(memory, 0, bytes));
  return kDone;
}
int memory_free(std::uint64_t pointer) { return ++counters.frees, std::free(reinterpret_cast<void*>(pointer)), kDone; }
int memory_set(std::uint64_t, unsigned char, std::size_t, void*) { return kDone; }
int copy_to_device(std::uint64_t to, const void* from, std::size_t bytes, const void* stream) {
  if (const int broken = call_on(stream)) return broken;
  return std::memcpy(reinterpret_cast<void*>(to), from, bytes), kDone;
}
int copy_to_host(void* to, std::uint64_t from, std::size_t bytes, const void* stream) {
  if (const int broken = call_on(stream)) return broken;
  return std::memcpy(to, reinterpret_cast<const void*>(from), bytes), kDone;
}

// Events have the time of the launches before them.
int event_create(double** event, unsigned) { return *event = new double(0), kDone; }
int event_destroy(double* event) { return delete event, kDone; }
int event_record(double* event, void*) { return *event = milliseconds, kDone; }
int event_synchronize(double*) { return kDone; }
int event_elapsed(float* elapsed, const double* begin, const double* end) {
  return *elapsed = static_cast<float>(*end - *begin), kDone;
}

int error_name(int code, const char** name) {
  *name = code == kUnsupportedInCapture ? "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"
          : code == kNoBinary           ? "CUDA_ERROR_NO_BINARY_FOR_GPU"
                                        : "CUDA_ERROR_FAKE";
  return kDone;
}
int error_text(int, const char** text) { return *text = "said the fake driver", kDone; }
int not_here() { return kInvalidValue; }

}  // namespace

extern "C" {

Counters& fake_cuda_counters() { return counters; }
Launch fake_cuda_last_launch() { return last; }

int cuCtxGetCurrent(void** context) { return *context = top(), kDone; }
int cuCtxPushCurrent_v2(void* context) {
  ++counters.pushes;
  current.push_back(static_cast<Context*>(context));
  return kDone;
}
int cuCtxPopCurrent_v2(void** context) {
  if (current.empty()) return kInvalidContext;
  *context = current.back();
  current.pop_back();
  return kDone;
}
int cuDevicePrimaryCtxRetain(void** context, int device) {
  return *context = &primary[static_cast<std::size_t>(device)], kDone;
}

int cuStreamCreate(void** stream, unsigned) {
  if (!top()) return kInvalidContext;
  return *stream = new Stream{.device = top()->device, .id = next_stream++}, kDone;
}
int cuStreamDestroy_v2(void* stream) { return delete static_cast<Stream*>(stream), kDone; }
int cuStreamBeginCapture_v2(void* handle, int mode) {
  auto* stream = static_cast<Stream*>(handle);
  stream->capturing = true;
  stream->broken = false;
  stream->mode = mode;
  stream->nodes = 0;
  const std::lock_guard lock(mutex);
  capturing.push_back(stream);
  return kDone;
}
int cuStreamEndCapture(void* handle, void** graph) {
  auto* stream = static_cast<Stream*>(handle);
  stream->capturing = false;
  const std::lock_guard lock(mutex);
  std::erase(capturing, stream);
  if (stream->broken) return stream->broken = false, *graph = nullptr, kBrokenCapture;
  return *graph = new Graph{stream->nodes}, kDone;
}
int cuStreamIsCapturing(void* stream, int* status) {
  ++counters.calls;
  return *status = stream && static_cast<Stream*>(stream)->capturing ? 1 : 0, kDone;
}
int cuGraphDestroy(void* graph) { return delete static_cast<Graph*>(graph), kDone; }
int cuDriverGetVersion(int* version) { return driver_version(version); }

int cuGetProcAddress_v2(const char* name, void** function, int, std::uint64_t, int*) {
  const struct {
    std::string_view name;
    void* function;
  } rows[] = {{"cuGetErrorName", reinterpret_cast<void*>(error_name)},
              {"cuGetErrorString", reinterpret_cast<void*>(error_text)},
              {"cuInit", reinterpret_cast<void*>(init)},
              {"cuDriverGetVersion", reinterpret_cast<void*>(driver_version)},
              {"cuDeviceGetCount", reinterpret_cast<void*>(device_count)},
              {"cuDeviceGet", reinterpret_cast<void*>(device_get)},
              {"cuDeviceGetName", reinterpret_cast<void*>(device_name)},
              {"cuDeviceGetUuid", reinterpret_cast<void*>(device_uuid)},
              {"cuDeviceGetAttribute", reinterpret_cast<void*>(device_attribute)},
              {"cuDeviceTotalMem", reinterpret_cast<void*>(device_memory)},
              {"cuDevicePrimaryCtxRetain", reinterpret_cast<void*>(cuDevicePrimaryCtxRetain)},
              {"cuCtxGetCurrent", reinterpret_cast<void*>(cuCtxGetCurrent)},
              {"cuCtxPushCurrent", reinterpret_cast<void*>(cuCtxPushCurrent_v2)},
              {"cuCtxPopCurrent", reinterpret_cast<void*>(cuCtxPopCurrent_v2)},
              {"cuLibraryLoadData", reinterpret_cast<void*>(library_load)},
              {"cuLibraryUnload", reinterpret_cast<void*>(library_unload)},
              {"cuLibraryGetKernel", reinterpret_cast<void*>(library_kernel)},
              {"cuKernelSetAttribute", reinterpret_cast<void*>(kernel_set_attribute)},
              {"cuKernelGetFunction", reinterpret_cast<void*>(kernel_function)},
              {"cuFuncLoad", reinterpret_cast<void*>(function_load)},
              {"cuLaunchKernelEx", reinterpret_cast<void*>(launch)},
              {"cuOccupancyMaxActiveClusters", reinterpret_cast<void*>(active_clusters)},
              {"cuTensorMapEncodeTiled", reinterpret_cast<void*>(tensor_map_encode)},
              {"cuThreadExchangeStreamCaptureMode", reinterpret_cast<void*>(exchange_capture_mode)},
              {"cuStreamIsCapturing", reinterpret_cast<void*>(cuStreamIsCapturing)},
              {"cuStreamGetId", reinterpret_cast<void*>(stream_id)},
              {"cuStreamCreate", reinterpret_cast<void*>(cuStreamCreate)},
              {"cuStreamDestroy", reinterpret_cast<void*>(cuStreamDestroy_v2)},
              {"cuStreamSynchronize", reinterpret_cast<void*>(stream_synchronize)},
              {"cuStreamBeginCapture", reinterpret_cast<void*>(cuStreamBeginCapture_v2)},
              {"cuStreamEndCapture", reinterpret_cast<void*>(cuStreamEndCapture)},
              {"cuGraphDestroy", reinterpret_cast<void*>(cuGraphDestroy)},
              {"cuMemAlloc", reinterpret_cast<void*>(memory_allocate)},
              {"cuMemFree", reinterpret_cast<void*>(memory_free)},
              {"cuMemcpyHtoDAsync", reinterpret_cast<void*>(copy_to_device)},
              {"cuMemcpyDtoHAsync", reinterpret_cast<void*>(copy_to_host)},
              {"cuEventCreate", reinterpret_cast<void*>(event_create)},
              {"cuEventDestroy", reinterpret_cast<void*>(event_destroy)},
              {"cuEventRecord", reinterpret_cast<void*>(event_record)},
              {"cuEventSynchronize", reinterpret_cast<void*>(event_synchronize)},
              {"cuEventElapsedTime", reinterpret_cast<void*>(event_elapsed)},
              {"cuMemsetD8Async", reinterpret_cast<void*>(memory_set)}};
  *function = reinterpret_cast<void*>(not_here);
  for (const auto& row : rows) {
    if (row.name == name) *function = row.function;
  }
  return kDone;
}

}  // extern "C"
}  // namespace fake_cuda
