// Implements the C API over the C++ one.
#include "flashjit/flashjit.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>

#include "compiler/spec/dtype.h"
#include "compiler/spec/text_form.h"
#include "flashjit/flashjit.hpp"
#include "runtime/engine/fork_safe_mutex.h"
#include "runtime/launch/dropout_mask.h"
#include "runtime/launch/kernels.h"

struct flashjit_engine {
  std::shared_ptr<flashjit::Engine> engine;
  std::string target;
};
struct flashjit_kernel {
  std::shared_ptr<flashjit::Kernel> kernel;
  // A kernel makes this text only when it is asked for, because few callers ask and preparing again must be cheap.
  mutable flashjit::ForkSafeMutex describing;
  mutable std::string facts;
};
struct flashjit_error {
  flashjit::Error error;
};
struct flashjit_cancel {
  std::atomic<bool> set = false;
};

namespace flashjit {
namespace {

flashjit_status status_of(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::Invalid: return FLASHJIT_INVALID;
    case ErrorKind::Unsupported: return FLASHJIT_UNSUPPORTED;
    case ErrorKind::NotFound: return FLASHJIT_NOT_FOUND;
    case ErrorKind::Io: return FLASHJIT_IO;
    case ErrorKind::Compile: return FLASHJIT_COMPILE;
    case ErrorKind::Driver: return FLASHJIT_DRIVER;
    case ErrorKind::Capture: return FLASHJIT_CAPTURE;
    case ErrorKind::Internal: return FLASHJIT_INTERNAL;
    case ErrorKind::Timeout: return FLASHJIT_TIMEOUT;
    case ErrorKind::Cancelled: return FLASHJIT_CANCELLED;
  }
  return FLASHJIT_INTERNAL;
}

// This error is made beforehand, because later there may be no memory for it.
flashjit_error out_of_memory = {{ErrorKind::Io, "out of memory", {}}};

flashjit_status fail(flashjit_error** error, const Error& what) {
  if (error) *error = new flashjit_error{what};
  return status_of(what.kind);
}

// Calls `function`. The library's functions let no exception out, so the only exception that can be thrown here is for
// lack of memory for the objects that are handed out.
template <class Function>
flashjit_status guarded(flashjit_error** error, const Function& function) {
  if (error) *error = nullptr;
  try {
    const Result<void> done = function();
    return done ? FLASHJIT_OK : fail(error, done.error());
  } catch (...) {
    if (error) *error = &out_of_memory;
    return FLASHJIT_IO;
  }
}

// These are the sizes of each structure's first version. They never change: see tests/embed/abi.
constexpr std::size_t kFirstEngineOptions = offsetof(flashjit_engine_options, cache_max_bytes),
                      kFirstPrepareOptions = offsetof(flashjit_prepare_options, timeout_ms),
                      kFirstArguments = offsetof(flashjit_arguments, workspace),
                      kFirstCounters = offsetof(flashjit_counters, compile_us) + sizeof(flashjit_counters::compile_us);

// Fills `to`, which is all zero, from the caller's structure. Programs of other versions have smaller or larger
// structures: see flashjit.h. `least` is the size of the first version.
template <class T>
Result<void> copy(const T& from, std::string_view type, std::size_t least, T& to) {
  constexpr std::size_t kMost = 4096;  // A larger size was never set by a program.
  const std::size_t size = from.struct_size;
  if (size < least || size > kMost) {
    return invalid(fmt::format("struct_size: {}, must be {} (sizeof({})); set it after setting everything to zero",
                               size, sizeof(T), type));
  }
  const char* bytes = reinterpret_cast<const char*>(&from);
  for (std::size_t at = sizeof(T); at < size; ++at) {
    if (bytes[at] == 0) continue;
    return unsupported(fmt::format(
        "struct_size: {}, of a newer {} than that of this FlashJIT ({}, {} bytes), and the byte at {} is set; "
        "update the library, or leave what is new in it at zero",
        size, type, version(), sizeof(T), at));
  }
  std::memcpy(static_cast<void*>(&to), bytes, std::min(size, sizeof(T)));
  return {};
}

// Returns a JSON string. Bytes that are no UTF-8, as in paths of another encoding, become text: "\\xe9".
std::string json_text(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : harmless(text, Lines::Many)) {
    if (c == '"' || c == '\\') {
      quoted += '\\';
      quoted += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      quoted += fmt::format("\\u{:04x}", static_cast<int>(c));
    } else {
      quoted += c;
    }
  }
  return quoted + '"';
}

std::string json(const Facts& facts) {
  std::string notes;
  for (const std::string& note : facts.notes) notes += (notes.empty() ? "" : ", ") + json_text(note);
  return fmt::format(
      R"({{"spec": {}, "target": {}, "schedule": {}, "family": {}, "key": {}, "source": {}, "compile_ms": {:.3f}, "registers": {}, )"
      R"("spill_bytes": {}, "smem_bytes": {}, "threads": {}, "cubin_bytes": {}, "notes": [{}], "layer": {}, "miss": {}, "weights": {}}})",
      json_text(facts.spec), json_text(facts.target), json_text(facts.schedule), json_text(facts.family),
      json_text(facts.key), json_text(facts.source), facts.compile_ms, facts.registers, facts.spill_bytes,
      facts.smem_bytes, facts.threads, facts.cubin_bytes, notes, json_text(facts.layer), json_text(facts.miss),
      json_text(facts.weights));
}

std::string_view dtype_name(const flashjit_dtype& dtype) {
  constexpr std::uint8_t kBool = 6;  // A byte that is 0 or 1.
  if (dtype.code == kBool && dtype.bits == 8 && dtype.lanes == 1) return name(Dtype::U8);
  for (const DtypeRow& row : kDtypes) {
    if (row.dlpack_code == dtype.code && 8 * row.bytes == dtype.bits && dtype.lanes == 1) return row.name;
  }
  return "a type that FlashJIT does not know";
}

// No processor gives a process more addresses.
constexpr std::uint64_t kFarthest = std::uint64_t{1} << 57;

Result<void> view(const flashjit_tensor* from, std::string_view name, TensorView& to) {
  if (!from) return {};
  if (from->ndim < 0 || from->ndim > kMaxTensorRank) {
    return invalid(fmt::format("{}.ndim: {} is outside 0..{}", name, from->ndim, kMaxTensorRank));
  }
  if (from->ndim > 0 && !from->shape) return invalid(fmt::format("{}.shape: null", name));
  if (from->byte_offset >
      kFarthest - std::min<std::uint64_t>(reinterpret_cast<std::uintptr_t>(from->data), kFarthest)) {
    return invalid(
        fmt::format("{}.byte_offset: {} from data {} on leads beyond {:#x}, where no process has memory; it counts "
                    "bytes, and forwards only",
                    name, from->byte_offset, from->data, kFarthest));
  }
  to.data = from->data ? static_cast<char*>(from->data) + from->byte_offset : nullptr;
  to.dtype = dtype_name(from->dtype);
  to.rank = from->ndim;
  to.shape = from->shape;
  to.strides = from->strides;
  to.ordinal = from->device.device_id;
  switch (from->device.device_type) {
    case 1: to.device = TensorView::Device::Host; break;
    case 2: to.device = TensorView::Device::Gpu; break;
    case 3:
    case 13: break;  // Host and GPU can both read it.
    default:
      return invalid(
          fmt::format("{}.device: type {} is neither host (1) nor CUDA (2)", name, from->device.device_type));
  }
  return {};
}

// The operands of the first version have fields. Later operands are given by name alone.
constexpr struct {
  std::size_t operand;
  const flashjit_tensor* flashjit_arguments::* field;
} kFields[] = {{operand("q"), &flashjit_arguments::q},
               {operand("k"), &flashjit_arguments::k},
               {operand("v"), &flashjit_arguments::v},
               {operand("o"), &flashjit_arguments::o},
               {operand("lse"), &flashjit_arguments::lse},
               {operand("max_logit"), &flashjit_arguments::max_logit},
               {operand("sink"), &flashjit_arguments::sink},
               {operand("offsets_q"), &flashjit_arguments::offsets_q},
               {operand("offsets_k"), &flashjit_arguments::offsets_k}};

Result<void> view(const flashjit_arguments& from, CallArguments& to) {
  for (const auto& [operand, field] : kFields) {
    FLASHJIT_TRY(view(from.*field, kOperands[operand].name, to.operands[operand]));
  }
  to.max_q_len = from.max_q_len;
  to.max_k_len = from.max_k_len;
  to.workspace = from.workspace;
  to.workspace_bytes = from.workspace_bytes;
  to.sms = from.sms;
  if (from.param_count < 0 || from.param_count > CallArguments::kMostParams || (from.param_count > 0 && !from.params)) {
    return invalid(
        fmt::format("param_count: {} with params {}; a spec has at most {}, {} gradients of these and {} operands",
                    from.param_count, from.params ? "given" : "null", kMaxParams, kMaxGradients, kOperands.size()));
  }
  for (std::int64_t i = 0; i < from.param_count; ++i) {
    const flashjit_param& param = from.params[i];
    if (!param.name) return invalid(fmt::format("params[{}].name: null", i));
    ParamView seen{.name = param.name, .is_scalar = param.tensor == nullptr, .scalar = param.scalar};
    FLASHJIT_TRY(view(param.tensor, param.name, seen.tensor));
    to.add(seen);
  }
  return {};
}

Result<EngineOptions> options_of(const flashjit_engine_options* given) {
  EngineOptions options;
  if (!given) return options;
  flashjit_engine_options from = {};
  FLASHJIT_TRY(copy(*given, "flashjit_engine_options", kFirstEngineOptions, from));
  options.device = from.host ? Device::Host : Device::Gpu;
  options.ordinal = from.ordinal;
  options.target = from.target ? from.target : "";
  options.cache_dir = from.cache_dir ? from.cache_dir : "";
  options.disk_cache = from.no_disk_cache == 0;
  options.threads = from.threads;
  if (from.cache_max_bytes) options.cache_max_bytes = from.cache_max_bytes;
  if (from.bundle_count < 0 || (from.bundle_count > 0 && !from.bundles)) {
    return invalid(fmt::format("bundle_count: {} with bundles {}", from.bundle_count, from.bundles ? "given" : "null"));
  }
  for (std::int64_t i = 0; i < from.bundle_count; ++i) {
    if (!from.bundles[i]) return invalid(fmt::format("bundles[{}]: null", i));
    options.bundles.emplace_back(from.bundles[i]);
  }
  options.required = from.required ? from.required : "";
  options.record = from.record ? from.record : "";
  options.override_dir = from.override_dir ? from.override_dir : "";
  options.isolate_compiler = from.isolate_compiler != 0;
  options.tuned = from.untuned == 0;
  options.trusted_list = from.trusted_list ? from.trusted_list : "";
  options.jit = from.no_jit == 0;
  return options;
}

Result<PrepareOptions> options_of(const flashjit_prepare_options* given) {
  PrepareOptions options;
  if (!given) return options;
  flashjit_prepare_options from = {};
  FLASHJIT_TRY(copy(*given, "flashjit_prepare_options", kFirstPrepareOptions, from));
  options.schedule = from.schedule ? from.schedule : "";
  options.capturing_stream = from.capturing_stream;
  for (const auto& [name, value] : {std::pair("timeout_ms", from.timeout_ms), std::pair("budget_ms", from.budget_ms),
                                    std::pair("tune_ms", from.tune_ms)}) {
    if (value < 0) return invalid(fmt::format("{}: {} is negative; 0 stands for none", name, value));
  }
  options.timeout = std::chrono::milliseconds(from.timeout_ms);
  options.budget = std::chrono::milliseconds(from.budget_ms);
  options.cancel = from.cancel ? &from.cancel->set : nullptr;
  options.shape = from.shape ? from.shape : "";
  options.tune = std::chrono::milliseconds(from.tune_ms);
  options.verify = from.verify != 0;
  options.workspace = from.workspace != 0;
  return options;
}

Result<void> view_of_any_version(const flashjit_arguments& given, CallArguments& call) {
  if (given.struct_size == sizeof given) return view(given, call);
  flashjit_arguments from = {};
  FLASHJIT_TRY(copy(given, "flashjit_arguments", kFirstArguments, from));
  return view(from, call);
}

// Every kernel that an engine makes is a RunnableKernel.
RunnableKernel& runnable(const flashjit_kernel& kernel) { return static_cast<RunnableKernel&>(*kernel.kernel); }

void fill(const Counters& from, flashjit_counters& to) {
  to.memory_hits = from.memory_hits;
  to.disk_hits = from.disk_hits;
  to.layer_hits = from.layer_hits;
  to.bundle_hits = from.bundle_hits;
  to.misses = from.misses;
  to.compiles = from.compiles;
  to.compile_failures = from.compile_failures;
  to.waits = from.waits;
  to.private_compiles = from.private_compiles;
  to.bad_entries = from.bad_entries;
  to.not_persisted = from.not_persisted;
  to.evictions = from.evictions;
  to.bytes_read = from.bytes_read;
  to.bytes_written = from.bytes_written;
  to.quick_kernels = from.quick_kernels;
  to.replaced_kernels = from.replaced_kernels;
  static_assert(FLASHJIT_BUCKETS == Histogram::kBuckets);
  std::copy(std::begin(from.lookup_us.buckets), std::end(from.lookup_us.buckets), to.lookup_us);
  std::copy(std::begin(from.compile_us.buckets), std::end(from.compile_us.buckets), to.compile_us);
}

}  // namespace
}  // namespace flashjit

extern "C" {

flashjit_status flashjit_engine_create(const flashjit_engine_options* options, flashjit_engine** engine,
                                       flashjit_error** error) {
  using namespace flashjit;
  return guarded(error, [&]() -> Result<void> {
    if (!engine) return invalid("engine: null; pass a place for the new engine");
    *engine = nullptr;
    FLASHJIT_ASSIGN(converted, options_of(options));
    FLASHJIT_ASSIGN(created, Engine::create(converted));
    *engine = new flashjit_engine{created, created->target()};
    return {};
  });
}

void flashjit_engine_destroy(flashjit_engine* engine) { delete engine; }

const char* flashjit_engine_target(const flashjit_engine* engine) { return engine ? engine->target.c_str() : ""; }

flashjit_status flashjit_prepare(flashjit_engine* engine, const char* spec, const flashjit_prepare_options* options,
                                 flashjit_kernel** kernel, flashjit_error** error) {
  using namespace flashjit;
  return guarded(error, [&]() -> Result<void> {
    if (!kernel) return invalid("kernel: null; pass a place for the kernel");
    *kernel = nullptr;
    if (!engine || !spec) return invalid("engine, spec: neither may be null");
    FLASHJIT_ASSIGN(converted, options_of(options));
    FLASHJIT_ASSIGN(prepared, engine->engine->prepare(spec, converted));
    *kernel = new flashjit_kernel{.kernel = std::move(prepared)};
    return {};
  });
}

flashjit_status flashjit_engine_counters(const flashjit_engine* engine, flashjit_counters* counters,
                                         flashjit_error** error) {
  using namespace flashjit;
  return guarded(error, [&]() -> Result<void> {
    if (!engine || !counters) return invalid("engine, counters: neither may be null");
    if (counters->struct_size < kFirstCounters) {
      return invalid(fmt::format("struct_size: {}, must be {} (sizeof(flashjit_counters))", counters->struct_size,
                                 sizeof(flashjit_counters)));
    }
    flashjit_counters filled = {.struct_size = counters->struct_size};
    fill(engine->engine->counters(), filled);
    std::memcpy(counters, &filled, std::min(counters->struct_size, sizeof filled));
    return {};
  });
}

flashjit_cancel* flashjit_cancel_create(void) { return new (std::nothrow) flashjit_cancel; }
void flashjit_cancel_set(flashjit_cancel* cancel) {
  if (cancel) cancel->set = true;
}
void flashjit_cancel_destroy(flashjit_cancel* cancel) { delete cancel; }

void flashjit_kernel_destroy(flashjit_kernel* kernel) { delete kernel; }

const char* flashjit_kernel_facts(const flashjit_kernel* kernel) {
  if (!kernel) return "{}";
  try {
    const std::lock_guard lock(kernel->describing);
    if (kernel->facts.empty()) kernel->facts = flashjit::json(kernel->kernel->facts());
    return kernel->facts.c_str();
  } catch (...) {
    return "{}";
  }
}

flashjit_status flashjit_run(flashjit_kernel* kernel, const flashjit_arguments* arguments, void* stream,
                             flashjit_error** error) {
  using namespace flashjit;
  return guarded(error, [&]() -> Result<void> {
    if (!kernel || !arguments) return invalid("kernel, arguments: neither may be null");
    CallArguments call;
    FLASHJIT_TRY(view_of_any_version(*arguments, call));
    return runnable(*kernel).run(call, stream);
  });
}

flashjit_status flashjit_workspace_bytes(const flashjit_kernel* kernel, const flashjit_arguments* arguments,
                                         int64_t* bytes, flashjit_error** error) {
  using namespace flashjit;
  return guarded(error, [&]() -> Result<void> {
    if (!kernel || !arguments || !bytes) return invalid("kernel, arguments, bytes: none may be null");
    *bytes = 0;
    CallArguments call;
    FLASHJIT_TRY(view_of_any_version(*arguments, call));
    FLASHJIT_ASSIGN(needed, runnable(*kernel).workspace_bytes(call));
    *bytes = needed;
    return {};
  });
}

flashjit_status flashjit_dropout_mask(double dropout, int64_t seed, int64_t offset, const flashjit_tensor* kept,
                                      flashjit_error** error) {
  using namespace flashjit;
  return guarded(error, [&]() -> Result<void> {
    TensorView mask;
    FLASHJIT_TRY(view(kept, "kept", mask));
    return write_dropout_mask(dropout, seed, offset, mask);
  });
}

flashjit_status flashjit_error_kind(const flashjit_error* error) {
  return error ? flashjit::status_of(error->error.kind) : FLASHJIT_OK;
}
const char* flashjit_error_message(const flashjit_error* error) { return error ? error->error.message.c_str() : ""; }
const char* flashjit_error_detail(const flashjit_error* error) { return error ? error->error.detail.c_str() : ""; }
void flashjit_error_destroy(flashjit_error* error) {
  if (error != &flashjit::out_of_memory) delete error;
}

const char* flashjit_status_name(flashjit_status status) {
  using flashjit::ErrorKind;
  if (status == FLASHJIT_OK) return "ok";
  for (int kind = 0; kind <= static_cast<int>(ErrorKind::Cancelled); ++kind) {
    if (flashjit::status_of(ErrorKind{kind}) == status) return name(ErrorKind{kind});
  }
  return "unknown";
}

const char* flashjit_version(void) { return flashjit::version(); }
int flashjit_abi_version(void) { return FLASHJIT_ABI_VERSION; }

}  // extern "C"
