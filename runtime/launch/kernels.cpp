#include "runtime/launch/kernels.h"

#include <fmt/format.h>

#include <algorithm>

#include "compiler/launches/merged_lists.h"
#include "compiler/launches/shown_keys.h"
#include "runtime/engine/without_exceptions.h"
#include "templates/values/layout.h"

namespace flashjit {

Kernel::~Kernel() = default;

Result<void> RunnableKernel::run(const Arguments& arguments, void* stream) {
  return without_exceptions("run", [&]() -> Result<void> {
    CallArguments call;
    FLASHJIT_TRY(view(arguments, call));
    return launch(call, stream);
  });
}

Result<void> RunnableKernel::run(const CallArguments& call, void* stream) {
  return without_exceptions("run", [&] { return launch(call, stream); });
}

Result<std::int64_t> RunnableKernel::workspace_bytes(const Arguments& arguments) const {
  return without_exceptions("workspace_bytes", [&]() -> Result<std::int64_t> {
    CallArguments call;
    FLASHJIT_TRY(view(arguments, call));
    return workspace_bytes(call);
  });
}

Result<std::int64_t> RunnableKernel::workspace_bytes(const CallArguments& call) const {
  return without_exceptions("workspace_bytes", [&] { return checker_.workspace_bytes(call); });
}

GpuKernel::GpuKernel(const GpuContext& gpu, int ordinal, const Compiled& compiled)
    : RunnableKernel(compiled.plan, compiled.facts, ordinal),
      gpu_(gpu),
      maps_(compiled.plan.maps),
      input_maps_(compiled.plan.input_maps),
      config_(compiled.plan.config),
      sm_count_(compiled.plan.target.sm_count) {}

namespace {

CuLaunchConfig config_of(const KernelLaunch& launch, int blocks) {
  CuLaunchConfig config = {};
  config.grid_x = static_cast<unsigned>(blocks);
  config.grid_y = config.grid_z = 1;
  config.block_x = static_cast<unsigned>(launch.threads);
  config.block_y = config.block_z = 1;
  config.shared_bytes = static_cast<unsigned>(launch.smem_bytes);
  return config;
}

CuLaunchAttribute clusters_of(int blocks) {
  CuLaunchAttribute attribute = {.id = CuLaunchAttribute::kCluster, .value = 0};
  attribute.dims[0] = static_cast<unsigned>(blocks);
  attribute.dims[1] = attribute.dims[2] = 1;
  return attribute;
}

Result<ResidentClusters> resident_clusters(const GpuContext& gpu, CuFunction function, const KernelLaunch& launch) {
  ResidentClusters resident = {};
  const CurrentContext current(gpu);
  FLASHJIT_TRY(current.status());
  for (std::size_t i = 0; i < resident.size(); ++i) {
    CuLaunchAttribute cluster = clusters_of(1 << i);
    CuLaunchConfig config = config_of(launch, 1 << i);
    config.attributes = &cluster;
    config.attribute_count = 1;
    FLASHJIT_TRY(gpu.driver->check(gpu.driver->api.active_clusters(&resident[i], function, &config),
                                   "cuOccupancyMaxActiveClusters"));
  }
  return resident;
}

}  // namespace

Result<std::shared_ptr<GpuKernel>> GpuKernel::load(const GpuContext& gpu, int ordinal, const Compiled& compiled,
                                                   std::shared_ptr<WorkCounters> counters) {
  const Plan& plan = compiled.plan;
  if (plan.launches.empty()) return internal("the plan launches nothing");
  if (plan.workspace.size() > kMaxBuffers) {
    return internal(fmt::format("the plan has {} buffers, a launch takes {}", plan.workspace.size(), kMaxBuffers));
  }
  std::shared_ptr<GpuKernel> kernel(new GpuKernel(gpu, ordinal, compiled));
  FLASHJIT_ASSIGN(library, LoadedLibrary::load(gpu, compiled.binary->payload));
  for (const KernelLaunch& launch : plan.launches) {
    FLASHJIT_ASSIGN(function, library->function(launch.entry, launch.smem_bytes));
    if (launch.of_teams) {
      FLASHJIT_ASSIGN(resident, resident_clusters(gpu, function, launch));
      kernel->resident_ = resident;
    }
    kernel->entries_.push_back({function, launch});
  }
  for (const KernelLaunch& launch : plan.before) {
    FLASHJIT_ASSIGN(function, library->function(launch.entry, launch.smem_bytes));
    kernel->before_.push_back({function, launch});
  }
  kernel->library_ = std::move(library);
  if (takes_items(plan)) kernel->counters_ = std::move(counters);
  return kernel;
}

bool GpuKernel::has_blocks(const CallSizes& sizes) const {
  if (sizes.batch > 0 && sizes.q_len > 0 && sizes.k_len > 0) return true;
  return std::any_of(entries_.begin(), entries_.end(),
                     [&](const Entry& entry) { return items_of(entry.launch.grid, sizes) > 0; });
}

Result<int> GpuKernel::sms_for(std::int64_t limit) const {
  if (limit == 0) return sm_count_;
  if (limit < 0 || limit > sm_count_) {
    return invalid(fmt::format("sms: {} is outside 0..{}, the SMs of the device; 0 stands for all", limit, sm_count_));
  }
  int least = 0;
  for (const auto& [function, launch] : entries_) {
    const GridRule& grid = launch.grid;
    const int of_sm = std::max(grid.blocks_per_sm, grid.of_sm), blocks = std::max(grid.together, grid.cluster);
    if (grid.counts_sms()) least = std::max(least, (blocks + of_sm - 1) / of_sm);
  }
  if (least == 0) {
    return invalid(fmt::format(
        "sms: {}, and the loop of this kernel (family {}) has a block for each tile, which the device deals "
        "to all of its SMs; leave sms out, or pin a schedule whose grid counts SMs (flashjit explain)",
        limit, facts_.family));
  }
  if (limit >= least) return static_cast<int>(limit);
  return invalid(
      fmt::format("sms: {} is below {}, on which the blocks fit that work together on a tile; give {} or more", limit,
                  least, least));
}

Result<void> GpuKernel::launch(const CallArguments& call, void* stream) {
  FLASHJIT_ASSIGN(sms, sms_for(call.sms));
  KernelParams params;
  CallSizes sizes;
  FLASHJIT_TRY(checker_.fill(call, params, sizes));
  if (!has_blocks(sizes)) return {};
  ArgumentChecker::Buffers buffers = {};
  FLASHJIT_TRY(checker_.find_buffers(call, sizes, buffers));
  const CurrentContext current(gpu_);
  FLASHJIT_TRY(current.status());
  if (counters_) {
    FLASHJIT_ASSIGN(pair, counters_->take(static_cast<CuStream>(stream)));
    params.work_counters = pair;
  }
  const Entry& first = entries_.front();
  const Teams teams =
      teams_of(first.launch.grid, sizes, call.sms > 0 ? limited(first.launch.grid, resident_, sms) : resident_);
  // ArgumentChecker::fill refuses calls with more items than an int holds.
  const auto items = [&](const GridRule& grid) {
    return static_cast<int>(items_of(grid, sizes)) * parts_of(grid, sizes, sms).count;
  };
  params.blocks = blocks_of(first.launch.grid, items(first.launch.grid), sms);
  params.team = teams.blocks;
  params.team_items = teams.items;
  params.parts = 1;
  for (const Entry& entry : entries_) {
    const GridRule& grid = entry.launch.grid;
    if (!grid.part.cuts()) continue;
    const Parts parts = parts_of(grid, sizes, sms);
    params.parts = parts.count;
    params.part_tiles = parts.tiles;
    params.key_items = static_cast<int>(items_of(grid, sizes)) / grid.cluster;
  }
  TensorMaps maps;
  const auto start = [&](const Entry& entry) {
    const bool has_teams = teams.count > 0 && entry.launch.grid.team.most > 1;
    params.items = items(entry.launch.grid);
    const int blocks = has_teams ? teams.count * teams.blocks : blocks_of(entry.launch.grid, params.items, sms);
    // An overlapping launch waits on its SMs for the end of the launch before it. With a limit on SMs, these may be SMs
    // that are left to others.
    const bool overlaps = entry.launch.overlaps && sms == sm_count_;
    return launch(entry, static_cast<CuStream>(stream), blocks, overlaps, params, maps, buffers);
  };
  if (block_states_ >= 0) params.extra[last_param_].data = buffers[static_cast<std::size_t>(block_states_)];
  if (tile_lists_ >= 0) params.tile_lists = static_cast<int*>(buffers[static_cast<std::size_t>(tile_lists_)]);
  for (const Entry& entry : before_) FLASHJIT_TRY(start(entry));
  use_buffers(params, sizes, buffers);
  if (!maps_.empty()) {
    FLASHJIT_TRY(encode_operands(*gpu_.driver, maps_, params, sizes, maps));
    FLASHJIT_TRY(encode_inputs(*gpu_.driver, input_maps_, call, params, maps));
  }
  for (const Entry& entry : entries_) {
    if (entry.launch.of_teams != (teams.blocks > 1) || (teams.count > 0 && entry.launch.adds_up)) continue;
    if (entry.launch.of_parts && params.parts == 1) continue;
    FLASHJIT_TRY(start(entry));
  }
  return {};
}

void GpuKernel::use_buffers(KernelParams& params, const CallSizes& sizes,
                            const ArgumentChecker::Buffers& buffers) const {
  const auto buffer = [&](int number) { return buffers[static_cast<std::size_t>(number)]; };
  if (rotated_q_ >= 0) use_rotated_q(params, sizes, buffer(rotated_q_));
  if (value_rows_ >= 0) use_value_rows(params, sizes, buffer(value_rows_));
  if (wide_rows_ >= 0) use_wide_rows(params, sizes, buffer(wide_rows_));
  if (merged_lists_ >= 0) read_merged_lists(params, config_, static_cast<int*>(buffer(merged_lists_)));
  if (shown_keys_ < 0) return;
  read_shown_keys(params, config_.heads_kv, config_.selected, static_cast<int*>(buffer(shown_keys_)));
}

void GpuKernel::use_value_rows(KernelParams& params, const CallSizes& sizes, void* rows) const {
  const Int64 head = value_row_bytes(config_), token = head * config_.heads_kv;
  params.v = rows;
  params.v_stride = {.batch = sizes.k_len * token, .head = head, .token = token};
}

void GpuKernel::use_wide_rows(KernelParams& params, const CallSizes& sizes, void* rows) const {
  const Int64 row = config_.head_dim_qk, of_batch = config_.selected > 0 ? Int64{params.key_rows} : sizes.k_len;
  params.k = params.v = rows;
  params.k_stride = {.batch = (config_.page_size > 0 ? config_.page_size : of_batch) * row, .head = 0, .token = row};
  params.v_stride = params.k_stride;
}

void GpuKernel::use_rotated_q(KernelParams& params, const CallSizes& sizes, void* rotated) const {
  const Int64 head = config_.head_dim_qk, token = head * config_.heads_q;
  params.q = rotated;
  params.q_stride = {.batch = sizes.q_len * token, .head = head, .token = token};
}

Result<void> GpuKernel::launch(const Entry& entry, CuStream stream, int blocks, bool overlaps, KernelParams& params,
                               TensorMaps& maps, ArgumentChecker::Buffers& buffers) const {
  if (blocks == 0) return {};
  CuLaunchConfig config = config_of(entry.launch, blocks);
  config.stream = stream;
  CuLaunchAttribute attributes[2];
  config.attributes = attributes;
  if (overlaps) attributes[config.attribute_count++] = {.id = CuLaunchAttribute::kOverlaps, .value = 1};
  if (entry.launch.grid.team.most > 1 && params.team > 1) {
    attributes[config.attribute_count++] = clusters_of(params.team);
  }
  void* arguments[2 + kMaxBuffers] = {&params};
  int count = 1;
  if (entry.launch.tensor_maps) arguments[count++] = &maps;
  for (const int buffer : entry.launch.buffers) arguments[count++] = &buffers[static_cast<std::size_t>(buffer)];
  return gpu_.driver->check(gpu_.driver->api.launch(&config, entry.function, arguments, nullptr), "cuLaunchKernelEx");
}

namespace {

// Waking threads takes longer than a forward call, or the gradients of one, with this many products.
constexpr double kFewProducts = 1 << 17;

}  // namespace

HostRunner::HostRunner(const Plan& plan, Facts facts, std::unique_ptr<HostKernel> kernel,
                       std::shared_ptr<ThreadPool> pool)
    : RunnableKernel(plan, std::move(facts), 0),
      kernel_(std::move(kernel)),
      writes_without_queries_(is_backward(plan.spec) || quantizes(plan.spec)),
      writes_always_(!plan.spec.grads.empty()),
      products_(static_cast<double>(plan.spec.heads_q) * (plan.spec.d_qk + plan.spec.d_v)),
      pool_(std::move(pool)) {
  parallel_.workers = pool_->workers();
  parallel_.run = [pool = pool_.get()](std::int64_t items, const ThreadPool::Body& body) { pool->run(items, body); };
  alone_.run = [](std::int64_t items, const ThreadPool::Body& body) {
    for (std::int64_t item = 0; item < items; ++item) body(item, 0);
  };
}

Result<void> HostRunner::launch(const CallArguments& call, void*) {
  if (call.sms != 0) {
    return invalid(fmt::format(
        "sms: {}, and this kernel runs on a processor; leave it out, or give the engine fewer threads", call.sms));
  }
  KernelParams params;
  CallSizes sizes;
  FLASHJIT_TRY(checker_.fill(call, params, sizes));
  const bool is_empty =
      writes_without_queries_ ? sizes.batch == 0 && sizes.k_rows == 0 : sizes.batch == 0 || sizes.q_len == 0;
  if (is_empty && !writes_always_) return {};
  FLASHJIT_TRY(checker_.check_contents(call, params, sizes));
  const double pairs = static_cast<double>(sizes.batch) * static_cast<double>(std::max<std::int64_t>(sizes.q_len, 1)) *
                       static_cast<double>(std::max<std::int64_t>(sizes.k_len, 1));
  return kernel_->run(params, pairs * products_ < kFewProducts ? alone_ : parallel_);
}

}  // namespace flashjit
