#include "tests/replay/launch.h"

#include <span>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "runtime/launch/kernels.h"

namespace flashjit::replay {
namespace {

// The driver's functions carry no state of their own.
std::string record;
bool has_maps = false;  // the kernel has a second argument
int left_before = 0;    // launches before those of the family: they take no tensor maps

std::string strides_text(const Strides& s) {
  return fmt::format("batch {} head {} token {}", s.batch, s.head, s.token);
}

std::string params_text(const KernelParams& p) {
  std::string text;
  const auto line = [&](std::string_view name, const auto& value) { text += fmt::format("  {}: {}\n", name, value); };
  line("q", p.q), line("k", p.k), line("v", p.v), line("o", fmt::ptr(p.o));
  line("lse", fmt::ptr(p.lse)), line("max_logit", fmt::ptr(p.max_logit)), line("sink", fmt::ptr(p.sink));
  line("offsets_q", fmt::ptr(p.offsets_q)), line("offsets_k", fmt::ptr(p.offsets_k));
  line("q_stride", strides_text(p.q_stride)), line("k_stride", strides_text(p.k_stride));
  line("v_stride", strides_text(p.v_stride)), line("o_stride", strides_text(p.o_stride));
  line("row_stride_batch", p.row_stride_batch), line("row_stride_head", p.row_stride_head);
  line("batch", p.batch), line("q_len", p.q_len), line("k_len", p.k_len);
  line("tiles_q", p.tiles_q), line("heads_per_group", p.heads_per_group);
  line("work_counters", p.work_counters ? "given" : "none");
  if (p.team > 0) line("team", fmt::format("{}, {} items of a sequence", p.team, p.team_items));
  if (p.k_lens) line("k_lens", fmt::ptr(p.k_lens));
  if (p.block_table) {
    line("block_table", fmt::format("{} strides {} {} of {} pages", fmt::ptr(p.block_table), p.table_stride_batch,
                                    p.table_stride_page, p.pages));
    if (p.table_stride_head != 0) line("table_stride_head", p.table_stride_head);
  }
  if (p.key_index) {
    line("key_index", fmt::format("{} strides {} of {} pages, {} rows, {} queries of a sequence", fmt::ptr(p.key_index),
                                  strides_text(p.key_index_stride), p.pages, p.key_rows, p.queries_of_sequence));
  }
  if (p.q_positions) {
    line("positions",
         fmt::format("{} strides {}, {} strides {}", fmt::ptr(p.q_positions), strides_text(p.q_positions_stride),
                     fmt::ptr(p.k_positions), strides_text(p.k_positions_stride)));
  }
  if (p.scale_q) line("scale_q", fmt::format("{} strides {}", fmt::ptr(p.scale_q), strides_text(p.scale_q_stride)));
  if (p.scale_k) line("scale_k", fmt::format("{} strides {}", fmt::ptr(p.scale_k), strides_text(p.scale_k_stride)));
  if (p.scale_v) line("scale_v", fmt::format("{} strides {}", fmt::ptr(p.scale_v), strides_text(p.scale_v_stride)));
  if (p.seed_at) line("seed", fmt::ptr(p.seed_at)), line("offset", fmt::ptr(p.offset_at));
  for (const ExtraParam& extra : p.extra) {
    if (extra.data || extra.stride[0])
      line("extra", fmt::format("{} strides {}", extra.data, fmt::join(extra.stride, " ")));
  }
  return text;
}

CuResult record_map(TensorMap* map, int type, std::uint32_t rank, void* data, const std::uint64_t* size,
                    const std::uint64_t* stride, const std::uint32_t* box, const std::uint32_t* element_stride,
                    int interleave, int swizzle, int promotion, int fill) {
  const auto list = [](const auto* values, std::size_t count) {
    return fmt::format("{}", fmt::join(std::span(values, count), " "));
  };
  record += fmt::format(
      "tensor map: type {} at {} size {} stride {} box {} element strides {} interleave {} swizzle {} promotion {} fill {}\n",
      type, data, list(size, rank), list(stride, rank - 1), list(box, rank), list(element_stride, rank), interleave,
      swizzle, promotion, fill);
  *map = {};
  return 0;
}

CuResult record_launch(const CuLaunchConfig* config, CuFunction, void** arguments, void**) {
  record += fmt::format("grid {} {} {} block {} {} {} shared {} attributes {}\n", config->grid_x, config->grid_y,
                        config->grid_z, config->block_x, config->block_y, config->block_z, config->shared_bytes,
                        config->attribute_count);
  for (unsigned i = 0; i < config->attribute_count; ++i) {
    const CuLaunchAttribute& attribute = config->attributes[i];
    if (attribute.id == CuLaunchAttribute::kCluster) record += fmt::format("clusters of {}\n", attribute.dims[0]);
  }
  record += params_text(*static_cast<const KernelParams*>(arguments[0]));
  if (has_maps && left_before-- <= 0)
    record += fmt::format("  has_inputs: {}\n", static_cast<const TensorMaps*>(arguments[1])->has_inputs);
  return 0;
}

DriverApi recording_driver() {
  DriverApi api;
  api.get_error_name = [](CuResult, const char** name) {
    *name = "CUDA_ERROR_UNKNOWN";
    return 0;
  };
  api.get_error_string = [](CuResult, const char** text) {
    *text = "unknown";
    return 0;
  };
  api.get_context = [](CuContext* context) {
    *context = reinterpret_cast<CuContext>(0x10);
    return 0;
  };
  api.push_context = [](CuContext) { return 0; };
  api.pop_context = [](CuContext*) { return 0; };
  api.exchange_capture_mode = [](int*) { return 0; };
  api.library_load = [](CuLibrary*, const void*, int*, void**, unsigned, int*, void**, unsigned) { return 0; };
  api.library_unload = [](CuLibrary) { return 0; };
  api.library_kernel = [](CuKernel*, CuLibrary, const char* name) {
    record += fmt::format("entry {}\n", name);
    return 0;
  };
  api.kernel_set_attribute = [](int attribute, int value, CuKernel, CuDevice) {
    record += fmt::format("attribute {} = {}\n", attribute, value);
    return 0;
  };
  api.kernel_function = [](CuFunction*, CuKernel) { return 0; };
  api.function_load = [](CuFunction) { return 0; };
  api.tensor_map_encode = record_map;
  api.memory_allocate = [](CuPointer* pointer, std::size_t) {
    *pointer = 0x7000000;
    return 0;
  };
  api.memory_free = [](CuPointer) { return 0; };
  api.memory_set = [](CuPointer, unsigned char, std::size_t, CuStream) { return 0; };
  api.stream_create = [](CuStream*, unsigned) { return 0; };
  api.stream_destroy = [](CuStream) { return 0; };
  api.stream_synchronize = [](CuStream) { return 0; };
  api.stream_is_capturing = [](CuStream, int* capturing) {
    *capturing = 0;
    return 0;
  };
  api.stream_id = [](CuStream, unsigned long long* id) {
    *id = 1;
    return 0;
  };
  api.launch = record_launch;
  api.active_clusters = [](int* count, CuFunction, const CuLaunchConfig* config) {
    *count = static_cast<int>(132 / config->attributes[0].dims[0]);
    return 0;
  };
  return api;
}

Result<void> load_and_run(const Plan& plan, const KernelSource& source, const Arguments& arguments) {
  GpuContext gpu;
  gpu.driver = std::make_shared<Driver>(recording_driver());
  gpu.context = reinterpret_cast<CuContext>(0x10);
  Compiled compiled;
  compiled.plan = plan;
  compiled.source = source;
  compiled.binary = std::make_shared<const StoreEntry>();
  FLASHJIT_ASSIGN(counters, WorkCounters::create(gpu));
  FLASHJIT_ASSIGN(kernel, GpuKernel::load(gpu, 0, compiled, counters));
  return static_cast<Kernel&>(*kernel).run(arguments, nullptr);
}

}  // namespace

std::string launch_text(const Plan& plan, const KernelSource& source, const Arguments& arguments) {
  record.clear();
  has_maps = plan.launches.front().tensor_maps;
  left_before = static_cast<int>(plan.before.size());
  if (const auto done = load_and_run(plan, source, arguments); !done)
    record += fmt::format("{}: {}\n", name(done.error().kind), done.error().message);
  return record;
}

}  // namespace flashjit::replay
