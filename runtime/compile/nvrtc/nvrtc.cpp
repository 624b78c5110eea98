#include "runtime/compile/nvrtc/nvrtc.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <filesystem>

#include "runtime/compile/compiler_pass.h"
#include "runtime/compile/nvrtc/compiler_process.h"
#include "runtime/driver/dynamic_library.h"
#include "runtime/engine/fork_safe_mutex.h"

namespace flashjit {

// These are our own declarations of the few functions of NVRTC's stable C interface that are used.
struct NvrtcApi {
  using Program = void*;
  const char* (*error_string)(int) = nullptr;
  int (*version)(int*, int*) = nullptr;
  int (*create)(Program*, const char* source, const char* name, int headers, const char* const* texts,
                const char* const* names) = nullptr;
  int (*destroy)(Program*) = nullptr;
  int (*compile)(Program, int options, const char* const*) = nullptr;
  int (*log_size)(Program, std::size_t*) = nullptr;
  int (*log)(Program, char*) = nullptr;
  int (*cubin_size)(Program, std::size_t*) = nullptr;
  int (*cubin)(Program, char*) = nullptr;
  int (*ptx_size)(Program, std::size_t*) = nullptr;
  int (*ptx)(Program, char*) = nullptr;
  int (*set_flow_callback)(Program, int (*)(void* payload, void* reserved), void* payload) = nullptr;  // from 12.8 on
};

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kIdentity = "nvrtc ";  // An identity begins with this text; major.minor follows.
constexpr const char* kSonames[] = {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"};

void add_if_file(std::vector<std::string>& list, const fs::path& file) {
  std::error_code ignored;
  if (fs::exists(file, ignored)) list.push_back(file.string());
}

// Adds the files of a folder as a toolkit (lib64), a wheel (nvidia/cuda_nvrtc/lib) or a person (the files themselves)
// lays it out.
void add_folder(std::vector<std::string>& list, const fs::path& folder) {
  std::vector<fs::path> folders = {folder, folder / "lib", folder / "lib64"};
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder / "nvidia", ignored)) folders.push_back(entry.path() / "lib");
  std::sort(folders.begin() + 3, folders.end());
  for (const fs::path& each : folders) {
    for (const char* name : kSonames) add_if_file(list, each / name);
  }
}

std::vector<std::string> files_to_try(const std::string& where) {
  std::vector<std::string> list;
  if (!where.empty()) {
    std::error_code ignored;
    if (fs::is_directory(where, ignored)) {
      add_folder(list, where);
    } else {
      list.push_back(where);
    }
    return list;  // Silently using another compiler than the user named would hide a mistake.
  }
  if (const fs::path own = own_directory(); !own.empty()) {
    for (const fs::path& base : {own, own.parent_path() / "lib", own.parent_path()}) {
      add_folder(list, base / "nvrtc");
      for (const char* name : kSonames) add_if_file(list, base / name);
    }
  }
  for (const char* name : kSonames) list.emplace_back(name);
  for (const char* folder : {"/usr/local/cuda", "/opt/cuda", "/usr/lib/x86_64-linux-gnu"}) add_folder(list, folder);
  return list;
}

template <class Function>
bool bind(const DynamicLibrary& library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(library.symbol(name));
  return function != nullptr;
}

bool bind_all(const DynamicLibrary& library, NvrtcApi& api) {
  bind(library, "nvrtcSetFlowCallback", api.set_flow_callback);
  return bind(library, "nvrtcGetErrorString", api.error_string) && bind(library, "nvrtcVersion", api.version) &&
         bind(library, "nvrtcCreateProgram", api.create) && bind(library, "nvrtcDestroyProgram", api.destroy) &&
         bind(library, "nvrtcCompileProgram", api.compile) && bind(library, "nvrtcGetProgramLogSize", api.log_size) &&
         bind(library, "nvrtcGetProgramLog", api.log) && bind(library, "nvrtcGetCUBINSize", api.cubin_size) &&
         bind(library, "nvrtcGetCUBIN", api.cubin) && bind(library, "nvrtcGetPTXSize", api.ptx_size) &&
         bind(library, "nvrtcGetPTX", api.ptx);
}

// NVRTC calls this in place of __cxa_atexit. It makes static objects while it first compiles, and exit() would destroy
// them, as the newest, before it waits for threads that compile (CompilerPass). Most exits by another thread than the
// main one during a compile were crashes or hangs.
int never_destroy(void (*)(void*), void*, void*) { return 0; }

// One NVRTC program goes from source to output.
class NvrtcProgram {
 public:
  NvrtcProgram(const NvrtcApi& api, int major, int minor) : version(fmt::format("{}.{}", major, minor)), api_(api) {}
  ~NvrtcProgram() {
    if (program_) api_.destroy(&program_);
  }
  NvrtcProgram(const NvrtcProgram&) = delete;
  NvrtcProgram& operator=(const NvrtcProgram&) = delete;

  Result<void> compile(const KernelSource& source, const std::vector<std::string>& options,
                       const CompileBounds& bounds) {
    if (source.generated.empty()) return internal("nvrtc: the kernel source has no file");
    const CompilerPass pass;
    FLASHJIT_TRY(pass.status());
    const SourceFile& main = source.generated.back();
    std::vector<const char*> texts, names;
    const auto add = [&](const SourceFile& file) {
      texts.push_back(file.text.c_str());
      names.push_back(file.name.c_str());
    };
    std::for_each(source.generated.begin(), source.generated.end() - 1, add);
    std::for_each(source.headers.begin(), source.headers.end(), add);
    int code = api_.create(&program_, main.text.c_str(), main.name.c_str(), static_cast<int>(texts.size()),
                           texts.data(), names.data());
    if (code != 0) return failure("cannot create a program", code);
    FLASHJIT_TRY(heed(bounds));
    std::vector<const char*> arguments;
    for (const std::string& option : options) arguments.push_back(option.c_str());
    code = api_.compile(program_, static_cast<int>(arguments.size()), arguments.data());
    if (stopped_) return bounds.error();
    std::size_t size = 0;
    if (api_.log_size(program_, &size) == 0 && size > 1) {
      log.resize(size);
      if (api_.log(program_, log.data()) != 0) log.clear();
      log.resize(log.find_last_not_of(std::string_view("\0\n", 2)) + 1);
    }
    if (code == kInvalidOption) {
      return Error{
          ErrorKind::Compile,
          fmt::format(
              "NVRTC {} refused its options ({}); if it does not know the target, a newer NVRTC will (FLASHJIT_NVRTC)",
              version, fmt::join(options, " ")),
          log};
    }
    if (code != 0) return failure(fmt::format("refused {}", main.name), code);
    return {};
  }

  Result<std::vector<std::uint8_t>> output(int (*size_of)(void*, std::size_t*), int (*get)(void*, char*),
                                           const char* what) const {
    std::size_t size = 0;
    if (const int code = size_of(program_, &size); code != 0) return failure(fmt::format("has no {}", what), code);
    std::vector<std::uint8_t> bytes(size);
    if (const int code = get(program_, reinterpret_cast<char*>(bytes.data())); code != 0) {
      return failure(fmt::format("cannot hand over the {}", what), code);
    }
    return bytes;
  }

  const std::string version;
  std::string log;

 private:
  static constexpr int kInvalidOption = 5;

  // NVRTC asks now and then whether to go on, in the thread in which it works.
  Result<void> heed(const CompileBounds& bounds) {
    if (!bounds.any()) return {};
    if (auto over = bounds.over()) return std::move(*over);
    if (!api_.set_flow_callback) {
      return unsupported(fmt::format(
          "timeout, cancel: NVRTC {} cannot be stopped; use 12.8 or later (FLASHJIT_NVRTC), or isolate_compiler",
          version));
    }
    bounds_ = &bounds;
    const auto ask = [](void* self, void*) -> int {
      auto& program = *static_cast<NvrtcProgram*>(self);
      if (program.bounds_->is_over()) program.stopped_ = true;
      return program.stopped_ ? 1 : 0;
    };
    const int code = api_.set_flow_callback(program_, ask, this);
    return code == 0 ? Result<void>() : failure("cannot be given a flow callback", code);
  }

  Error failure(const std::string& what, int code) const {
    return {ErrorKind::Compile, fmt::format("NVRTC {}: {} ({})", what, api_.error_string(code), code), log};
  }

  const NvrtcApi& api_;
  void* program_ = nullptr;
  const CompileBounds* bounds_ = nullptr;
  std::atomic<bool> stopped_ = false;
};

// An empty or cut cubin must never reach the store or the driver.
bool is_elf(const std::vector<std::uint8_t>& bytes) {
  return bytes.size() > 64 && bytes[0] == 0x7f && bytes[1] == 'E' && bytes[2] == 'L' && bytes[3] == 'F';
}

}  // namespace

Nvrtc::~Nvrtc() = default;

Result<std::shared_ptr<const Nvrtc>> Nvrtc::open(const std::string& where, const std::string& program,
                                                 const CompileBounds& bounds) {
  using Opened = std::vector<std::pair<std::string, std::shared_ptr<const Nvrtc>>>;
  // These objects are leaked on purpose: a thread may still compile while static objects are destroyed.
  static auto* const mutex = new ForkSafeMutex;
  static auto* const opened = new Opened;
  const auto find = [&]() -> std::shared_ptr<const Nvrtc> {
    for (const auto& [file, library] : *opened) {
      if (file == where && library->program_ == program) return library;
    }
    return nullptr;
  };
  {
    const std::lock_guard lock(*mutex);
    if (auto library = find()) return library;
  }
  // The lock is not held here, because a library that hangs in another process must not hold up callers who have less
  // time.
  FLASHJIT_ASSIGN(found, search(where, program, bounds));
  const std::lock_guard lock(*mutex);
  if (auto library = find()) return library;
  opened->emplace_back(where, found);
  return found;
}

Result<std::shared_ptr<const Nvrtc>> Nvrtc::search(const std::string& where, const std::string& program,
                                                   const CompileBounds& bounds) {
  std::vector<std::string> tried;
  for (const std::string& file : files_to_try(where)) {
    std::unique_ptr<Nvrtc> nvrtc;
    if (program.empty()) {
      if (auto library = load(file)) {
        nvrtc = std::move(*library);
      } else {
        tried.push_back(library.error().message);
      }
    } else {
      FLASHJIT_ASSIGN(identity, ask(file, program, bounds));
      nvrtc.reset(new Nvrtc);
      if (!nvrtc->take(identity)) {
        tried.push_back(identity.log);
        nvrtc.reset();
      }
    }
    if (!nvrtc) continue;
    nvrtc->program_ = program;
    return std::shared_ptr<const Nvrtc>(std::move(nvrtc));
  }
  if (tried.empty()) tried.push_back(fmt::format("{}: no {} there", where, fmt::join(kSonames, " or ")));
  return Error{
      ErrorKind::NotFound,
      where.empty()
          ? "NVRTC (libnvrtc.so) was not found; install the CUDA toolkit's NVRTC or the wheel nvidia-cuda-nvrtc, "
            "or set FLASHJIT_NVRTC to the library or its folder"
          : fmt::format("FLASHJIT_NVRTC: no usable libnvrtc at '{}'; name the library or the folder that "
                        "holds it, or unset the variable to search the usual places",
                        where),
      fmt::format("tried:\n  {}", fmt::join(tried, "\n  "))};
}

Result<std::unique_ptr<Nvrtc>> Nvrtc::load(const std::string& file) {
  FLASHJIT_ASSIGN(library, DynamicLibrary::open(file));
  std::unique_ptr<Nvrtc> nvrtc(new Nvrtc);
  nvrtc->api_ = std::make_unique<NvrtcApi>();
  if (!bind_all(library, *nvrtc->api_) || nvrtc->api_->version(&nvrtc->major_, &nvrtc->minor_) != 0)
    return Error{ErrorKind::NotFound, fmt::format("{}: not NVRTC 11.1 or newer", library.path()), {}};
  nvrtc->path_ = library.path();
  const std::string builtins = fmt::format("{}/libnvrtc-builtins.so.{}.{}",
                                           fs::path(nvrtc->path_).parent_path().string(), nvrtc->major_, nvrtc->minor_);
  // NVRTC opens this library by its bare name, and the wheel's library has no run path. A library that is loaded
  // already is found.
  [[maybe_unused]] const auto loaded = DynamicLibrary::open(builtins);
  // nvrtcVersion has no patch level.
  nvrtc->identity_ = fmt::format("{}{}.{} build {} builtins {}", kIdentity, nvrtc->major_, nvrtc->minor_,
                                 file_identity(nvrtc->path_), file_identity(builtins));
  library.redirect("__cxa_atexit", reinterpret_cast<void*>(&never_destroy));
  CompilerPass::library_was_loaded();
  return nvrtc;
}

CompilerResult Nvrtc::identify(const std::string& file) {
  const auto nvrtc = load(file);
  if (!nvrtc) return {nvrtc.error().message, {}};
  const std::string& identity = (*nvrtc)->identity_;
  return {(*nvrtc)->path_, {identity.begin(), identity.end()}};
}

Result<CompilerResult> Nvrtc::ask(const std::string& file, const std::string& program, const CompileBounds& bounds) {
  auto answer = run_compiler_process(program, {file, {}, {}, {}, CompilerOutput::Identity}, bounds);
  if (!answer && answer.error().kind == ErrorKind::Compile) {
    return Error{ErrorKind::Compile,
                 fmt::format("{}: is no NVRTC that can be loaded; name another one (FLASHJIT_NVRTC)\n{}", file,
                             answer.error().message),
                 {}};
  }
  return answer;
}

// Returns false if the text is no identity of NVRTC.
bool Nvrtc::take(const CompilerResult& identity) {
  path_ = identity.log;
  identity_.assign(identity.bytes.begin(), identity.bytes.end());
  if (!identity_.starts_with(kIdentity)) return false;
  const char* const end = identity_.data() + identity_.size();
  const auto major = std::from_chars(identity_.data() + kIdentity.size(), end, major_);
  return major.ec == std::errc() && major.ptr != end && std::from_chars(major.ptr + 1, end, minor_).ec == std::errc();
}

std::vector<std::string> Nvrtc::options(const Target& target, CompileMode mode) const {
  // Quotients and roots are right to 2 ulp. If they were right to half an ulp, they would branch, and four of them in a score
  // took 13 s to compile instead of 0.9.
  std::vector<std::string> list = {fmt::format("--gpu-architecture={}", target.name),
                                   "-std=c++17",
                                   "-default-device",
                                   "--prec-div=false",
                                   "--prec-sqrt=false",
                                   "--ptxas-options=-v"};
  const auto since_12 = [&](int minor) { return major_ > 12 || (major_ == 12 && minor_ >= minor); };
  // Textures and launches from kernels are not needed, and leaving them out saves 5 ms.
  if (since_12(8)) list.emplace_back("-minimal");
  // From 12.9 on NVRTC uses the driver's compute cache, unless told otherwise. It would call cuInit inside a compile,
  // and a hit has no ptxas log.
  if (since_12(9)) list.emplace_back("--no-cache");
  // The level is mid, because min takes longer than no level, and max makes calls of what has to be inlined.
  if (mode.effort == Effort::Quick) list.emplace_back("--Ofast-compile=mid");
  if (mode.line_info) list.emplace_back("-lineinfo");
  return list;
}

Result<CompilerResult> Nvrtc::run(const KernelSource& source, const std::vector<std::string>& options,
                                  CompilerOutput output, const CompileBounds& bounds) const {
  if (!program_.empty()) return run_compiler_process(program_, {path_, identity_, options, source, output}, bounds);
  NvrtcProgram program(*api_, major_, minor_);
  FLASHJIT_TRY(program.compile(source, options, bounds));
  const bool cubin = output == CompilerOutput::Cubin;
  FLASHJIT_ASSIGN(bytes, program.output(cubin ? api_->cubin_size : api_->ptx_size, cubin ? api_->cubin : api_->ptx,
                                        cubin ? "cubin" : "PTX"));
  return CompilerResult{std::move(program.log), std::move(bytes)};
}

Result<Cubin> Nvrtc::compile(const KernelSource& source, const Target& target, const CompileBounds& bounds,
                             CompileMode mode) const {
  FLASHJIT_ASSIGN(made, run(source, options(target, mode), CompilerOutput::Cubin, bounds));
  if (!is_elf(made.bytes)) {
    return Error{ErrorKind::Compile, fmt::format("NVRTC returned {} bytes that are no cubin", made.bytes.size()),
                 made.log};
  }
  CompileLog facts = parse_compile_log(made.log);
  return Cubin{std::move(made.bytes), std::move(made.log), std::move(facts)};
}

Result<std::string> Nvrtc::ptx(const KernelSource& source, const Target& target, const CompileBounds& bounds) const {
  std::vector<std::string> list = options(target);
  const std::string name(target.name);
  list[0] = "--gpu-architecture=compute_" + name.substr(name.find('_') + 1);
  std::erase(list, "--ptxas-options=-v");
  FLASHJIT_ASSIGN(made, run(source, list, CompilerOutput::Ptx, bounds));
  std::string text(made.bytes.begin(), made.bytes.end());
  while (!text.empty() && text.back() == '\0') text.pop_back();
  return text;
}

}  // namespace flashjit
