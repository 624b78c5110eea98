#include "runtime/driver/driver.h"

#include <fmt/format.h>

#include "runtime/driver/dynamic_library.h"
#include "runtime/engine/fork_safe_mutex.h"

namespace flashjit {
namespace {

constexpr int kOldestDriver = 12000;  // cuLibrary* begins with this version.

// The driver numbers its attributes: CUdevice_attribute and CUfunction_attribute.
constexpr int kMultiprocessors = 16, kL2Bytes = 38, kMajor = 75, kMinor = 76, kSmemPerBlockOptin = 97;
constexpr int kMaxDynamicSmem = 8;

struct Remedy {
  CuResult code;
  ErrorKind kind;
  const char* text;
};
constexpr Remedy kRemedies[] = {
    {2, ErrorKind::Driver, "the GPU's memory is full; free some or use a smaller problem"},
    {3, ErrorKind::Driver,
     "the driver was not initialised, or the process forked after it was; start the GPU work after fork"},
    {100, ErrorKind::NotFound, "the driver sees no GPU; look at CUDA_VISIBLE_DEVICES and nvidia-smi"},
    {101, ErrorKind::NotFound, "there is no GPU with this number; `flashjit doctor` lists them"},
    {200, ErrorKind::Driver,
     "the driver does not understand this cubin; `flashjit cache verify`, or update the driver"},
    {209, ErrorKind::Driver, "the cubin is for another GPU architecture; prepare the spec with the target of this GPU"},
    {222, ErrorKind::Driver,
     "the driver is older than the compiler; update the driver or use an older NVRTC (FLASHJIT_NVRTC)"},
    {700, ErrorKind::Driver,
     "a kernel touched memory it may not; the context is lost. Are all pointers device pointers of this GPU, "
     "and all tensors as large as their shapes and strides say?"},
    {701, ErrorKind::Driver, "the launch asks for more registers or shared memory than the GPU has"},
    {802, ErrorKind::Driver, "the system is not ready yet; is the fabric manager (nvidia-fabricmanager) running?"},
    {803, ErrorKind::Driver,
     "libcuda and the kernel driver do not fit together; reboot after a driver update, or remove the "
     "cuda-compat package"},
    {804, ErrorKind::Driver, "the cuda-compat package does not support this GPU; remove it"},
    {900, ErrorKind::Capture, "a stream captures a graph; prepare before the capture begins"},
    {901, ErrorKind::Capture, "the capture was broken by an earlier call; begin it again"},
    {906, ErrorKind::Capture,
     "the default stream cannot be used while another stream captures; pass a stream of your own"},
    {999, ErrorKind::Driver, "the driver failed for a reason of its own; dmesg may say which"},
};

using GetProcAddress = CuResult (*)(const char*, void**, int, std::uint64_t, int*);

}  // namespace

Error Driver::error(CuResult code, const char* call) const {
  const char *name = nullptr, *text = nullptr;
  if (api.get_error_name) api.get_error_name(code, &name);
  if (api.get_error_string) api.get_error_string(code, &text);
  std::string message =
      fmt::format("{}: {} ({}): {}", call, name ? name : "unknown error", code, text ? text : "no text");
  for (const Remedy& remedy : kRemedies) {
    if (remedy.code == code) return {remedy.kind, fmt::format("{}; {}", message, remedy.text), {}};
  }
  return {ErrorKind::Driver, std::move(message), {}};
}

Result<std::shared_ptr<const Driver>> Driver::open() {
  static auto* const mutex = new ForkSafeMutex;
  static auto* const opened = new std::shared_ptr<const Driver>;
  const std::lock_guard lock(*mutex);
  if (!*opened) {
    FLASHJIT_ASSIGN(driver, load());
    *opened = driver;
  }
  return *opened;
}

Result<std::shared_ptr<const Driver>> Driver::load() {
  auto library = DynamicLibrary::open("libcuda.so.1");
  if (!library) {
    return Error{ErrorKind::NotFound,
                 "no NVIDIA driver: libcuda.so.1 was not found; install the driver (containers: run with --gpus all)",
                 library.error().message};
  }
  const auto look_up = reinterpret_cast<GetProcAddress>(library->symbol("cuGetProcAddress_v2"));
  DriverApi api;
  int version = 0;
  if (const auto get = reinterpret_cast<CuResult (*)(int*)>(library->symbol("cuDriverGetVersion")); get) get(&version);
  std::string missing = look_up ? "" : "cuGetProcAddress_v2";
  if (look_up) {
    const auto bind = [&](auto& function, const char* name, int since) {
      void* address = nullptr;
      if (look_up(name, &address, since, 0, nullptr) != 0) address = nullptr;
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(address);
      return address != nullptr;
    };
#define FLASHJIT_BIND(member, name, type, since) \
  if (!bind(api.member, name, since)) missing += missing.empty() ? name : ", " name;
    FLASHJIT_DRIVER_FUNCTIONS(FLASHJIT_BIND)
#undef FLASHJIT_BIND
    bind(api.function_load, "cuFuncLoad", 12040);
  }
  if (!missing.empty() || version < kOldestDriver) {
    return Error{
        ErrorKind::Unsupported,
        fmt::format(
            "the NVIDIA driver supports CUDA {}.{}, and 12.0 is the oldest that works; update it to 525 or newer",
            version / 1000, version % 1000 / 10),
        missing.empty() ? "" : fmt::format("{} has no {}", library->path(), missing)};
  }
  auto driver = std::make_shared<Driver>(api, version);
  driver->path_ = library->path();
  FLASHJIT_TRY(driver->check(api.init(0), "cuInit"));
  FLASHJIT_TRY(driver->check(api.device_count(&driver->device_count_), "cuDeviceGetCount"));
  if (driver->device_count_ == 0) return driver->error(100, "cuDeviceGetCount");
  return std::shared_ptr<const Driver>(std::move(driver));
}

Result<GpuInfo> Driver::device(int ordinal) const {
  if (ordinal < 0 || ordinal >= device_count_) {
    return Error{ErrorKind::NotFound,
                 fmt::format("ordinal: there is no GPU {}; this machine has {} (0 to {})", ordinal, device_count_,
                             device_count_ - 1),
                 {}};
  }
  CuDevice device = 0;
  GpuInfo info{.ordinal = ordinal};
  FLASHJIT_TRY(check(api.device_get(&device, ordinal), "cuDeviceGet"));
  char name[256] = {};
  FLASHJIT_TRY(check(api.device_name(name, sizeof name - 1, device), "cuDeviceGetName"));
  info.name = name;
  char uuid[16] = {};
  if (api.device_uuid(uuid, device) == 0) {
    info.uuid = "GPU-";
    for (int i = 0; i < 16; ++i) {
      if (i == 4 || i == 6 || i == 8 || i == 10) info.uuid += '-';
      info.uuid += fmt::format("{:02x}", static_cast<unsigned char>(uuid[i]));
    }
  }
  int l2 = 0;
  std::size_t memory = 0;
  const struct {
    int attribute;
    int* value;
  } attributes[] = {{kMajor, &info.major},
                    {kMinor, &info.minor},
                    {kMultiprocessors, &info.sm_count},
                    {kSmemPerBlockOptin, &info.smem_per_block},
                    {kL2Bytes, &l2}};
  for (const auto& [attribute, value] : attributes) {
    FLASHJIT_TRY(check(api.device_attribute(value, attribute, device), "cuDeviceGetAttribute"));
  }
  FLASHJIT_TRY(check(api.device_memory(&memory, device), "cuDeviceTotalMem"));
  info.l2_bytes = l2;
  info.memory_bytes = static_cast<std::int64_t>(memory);
  return info;
}

Result<GpuContext> GpuContext::open(std::shared_ptr<const Driver> driver, int ordinal) {
  GpuContext gpu;
  FLASHJIT_TRY(driver->check(driver->api.device_get(&gpu.device, ordinal), "cuDeviceGet"));
  FLASHJIT_TRY(driver->check(driver->api.retain_context(&gpu.context, gpu.device), "cuDevicePrimaryCtxRetain"));
  gpu.driver = std::move(driver);
  return gpu;
}

Result<std::unique_ptr<LoadedLibrary>> LoadedLibrary::load(const GpuContext& gpu, std::span<const std::uint8_t> cubin) {
  std::unique_ptr<LoadedLibrary> loaded(new LoadedLibrary(gpu));
  const CurrentContext current(gpu);
  FLASHJIT_TRY(current.status());
  const RelaxedCapture relaxed(*gpu.driver);
  FLASHJIT_TRY(gpu.driver->check(
      gpu.driver->api.library_load(&loaded->library_, cubin.data(), nullptr, nullptr, 0, nullptr, nullptr, 0),
      "cuLibraryLoadData"));
  return loaded;
}

LoadedLibrary::~LoadedLibrary() {
  // At exit the driver may be gone already. Then this call fails, and nothing is lost.
  if (library_) gpu_.driver->api.library_unload(library_);
}

Result<CuFunction> LoadedLibrary::function(const std::string& name, int dynamic_smem_bytes) const {
  const Driver& driver = *gpu_.driver;
  const CurrentContext current(gpu_);
  FLASHJIT_TRY(current.status());
  const RelaxedCapture relaxed(driver);
  CuKernel kernel = nullptr;
  CuFunction function = nullptr;
  FLASHJIT_TRY(driver.check(driver.api.library_kernel(&kernel, library_, name.c_str()), "cuLibraryGetKernel"));
  FLASHJIT_TRY(driver.check(driver.api.kernel_set_attribute(kMaxDynamicSmem, dynamic_smem_bytes, kernel, gpu_.device),
                            "cuKernelSetAttribute(max dynamic shared memory)"));
  FLASHJIT_TRY(driver.check(driver.api.kernel_function(&function, kernel), "cuKernelGetFunction"));
  if (driver.api.function_load) FLASHJIT_TRY(driver.check(driver.api.function_load(function), "cuFuncLoad"));
  return function;
}

}  // namespace flashjit
