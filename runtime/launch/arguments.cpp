#include "runtime/launch/arguments.h"

#include "compiler/families/family.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "compiler/spec/text_form.h"
#include "runtime/launch/tensor_maps.h"
#include "templates/key_lists/layout.h"
#include "templates/latents/rows.h"

namespace flashjit {
namespace {

// Persistent kernels count items in ints, and each block counts a little beyond the last item.
constexpr std::int64_t kLargestGrid = std::numeric_limits<std::int32_t>::max() - 65535;

// The blocks of a call write and read the workspace in no order, so outputs and inputs have to lie elsewhere.
constexpr TensorRule kWorkspace{.name = "workspace", .dtype = Dtype::U8, .rank = 1, .output = true};

Result<void> check_bound(std::string_view name, std::int64_t value, const SizeBound& bound) {
  if (value >= bound.min && value <= bound.max) return {};
  if (bound.pinned()) {
    return invalid(
        fmt::format("{}: {}, the spec pins {}={}; prepare a spec without that pin", name, value, name, bound.min));
  }
  return invalid(fmt::format("{}: {} is outside {}..{}, the bound of the spec; prepare a spec with a wider one", name,
                             value, bound.min, bound.max));
}

// Returns the scalar given for an operand that a tensor of one number can hold as well.
Result<Int64> whole_number(const ParamView& param) {
  constexpr double kLargestExact = 0x1p53;  // A double holds every integer up to this one.
  if (std::abs(param.scalar) <= kLargestExact && param.scalar == std::floor(param.scalar))
    return static_cast<Int64>(param.scalar);
  return invalid(fmt::format("scalars.{}: {} is no whole number up to {:.0f}; give larger ones in params, as i64 [1]",
                             param.name, param.scalar, kLargestExact));
}

// Returns how many last dimensions lie without gaps: the columns, or the tokens, head and bytes of a page of latents.
int contiguous_dims(const Operand& operand, const AttentionSpec& spec) {
  if (operand.is_in_bytes_of(spec) && latent_rows(spec.cache_format).scales_behind_page) return 3;
  if (operand.aligned) return 1;
  const bool any = operand.strides_kind == OperandStrides::Table || operand.strides_kind == OperandStrides::Parts;
  return any || operand.repeats ? 0 : 1;
}

}  // namespace

Result<void> check_workspace(const CallArguments& call, std::int64_t bytes) {
  if (bytes == 0) return {};
  if (!call.workspace || call.workspace_bytes < bytes) {
    return invalid(
        fmt::format("workspace: {}, this call needs {} bytes; Kernel::workspace_bytes() and flashjit_workspace_bytes() "
                    "tell how many",
                    call.workspace ? fmt::format("{} bytes", call.workspace_bytes) : "missing", bytes));
  }
  if (reinterpret_cast<std::uintptr_t>(call.workspace) % kWorkspaceAlignment != 0) {
    return invalid(fmt::format("workspace: address {}, must be a multiple of {} bytes; memory of cuMemAlloc is",
                               call.workspace, kWorkspaceAlignment));
  }
  return {};
}

ArgumentChecker::ArgumentChecker(const Plan& plan, int ordinal)
    : spec_(plan.spec),
      workspace_(plan.workspace),
      groups_(plan),
      gpu_(plan.target.gpu),
      tensor_maps_(std::ranges::any_of(plan.launches, &KernelLaunch::tensor_maps)),
      ordinal_(ordinal),
      merged_entries_(plan.config.merged_queries > 0 ? merged_lists(plan.config).entries : 0),
      indices_(spec_) {
  for (const KernelLaunch& launch : plan.launches) grids_.push_back(launch.grid);
  for (const KernelLaunch& launch : plan.before) grids_.push_back(launch.grid);
  for (std::size_t i = 0; i < kOperands.size(); ++i) {
    const Operand& operand = kOperands[i];
    Row& row = rows_[i];
    row.wanted = operand.belongs_to(spec_);
    row.axes = axes_of(operand, spec_);
    row.rule = {.name = operand.name,
                .dtype = operand.dtype_of(spec_),
                .any_bytes = operand.is_in_bytes_of(spec_),
                .rank = row.axes.rank,
                .output = operand.written_by(spec_),
                .contiguous = contiguous_dims(operand, spec_),
                .align_bytes = !gpu_               ? 0
                               : operand.aligned   ? spec_.align_bytes
                               : operand.alignment ? operand.alignment(spec_)
                                                   : 0,
                .device = device(),
                .ordinal = ordinal_};
  }
  rows_[operand("k")].rule.most_bytes = plan.key_reach;
  for (std::size_t i = 0; i < kDims; ++i) extents_[i] = extent_of(static_cast<Dim>(i), spec_);
  for (const Param& param : given_params(spec_)) {
    param_rules_.push_back({.name = param.name,
                            .group = "params.",
                            .dtype = param.dtype,
                            .rank = param.rank,
                            .contiguous = 0,
                            .device = device(),
                            .ordinal = ordinal_});
  }
  gradient_params_ = params_with_gradients(spec_);
  for (const int number : gradient_params_) {
    const Param& param = spec_.params[static_cast<std::size_t>(number)];
    gradient_names_.push_back(gradient_name(param.name));
    gradient_rules_.push_back({.dtype = Dtype::F32,
                               .rank = std::max(param.rank, 1),
                               .output = true,
                               .contiguous = 0,
                               .device = device(),
                               .ordinal = ordinal_});
  }
  for (std::size_t i = 0; i < gradient_rules_.size(); ++i) gradient_rules_[i].name = gradient_names_[i];
}

Result<void> ArgumentChecker::fill(const CallArguments& call, KernelParams& params, CallSizes& sizes) const {
  params = {};
  Given given;
  FLASHJIT_TRY(find_named(call, given));
  Extents extents = extents_;
  Overlaps overlaps;
  FLASHJIT_TRY(fill_operands(call, given, extents, params, overlaps));
  if (has_blocks(spec_)) FLASHJIT_TRY(check_full_blocks(given));
  FLASHJIT_TRY(find_sizes(call, extents, sizes));
  if (writes_scores(spec_)) FLASHJIT_TRY(check_scores(extents, sizes));
  FLASHJIT_TRY(check_sizes(sizes));
  const std::int64_t pages = extents[static_cast<std::size_t>(Dim::Pages)];
  params.pages = static_cast<int>(std::clamp<std::int64_t>(pages, 0, std::numeric_limits<int>::max()));
  const CallSizes of_sequences = sizes;
  if (selects(spec_)) take_lists_for_sequences(extents, sizes, params);
  FLASHJIT_TRY(check_scales(sizes, params));
  params.first_position = static_cast<int>(call.first_position);
  FLASHJIT_TRY(check_positions(extents[static_cast<std::size_t>(Dim::Positions)], sizes, params));
  FLASHJIT_TRY(fill_params(given, params, overlaps));
  FLASHJIT_TRY(fill_gradients(given, params, overlaps));
  if (spec_.places) FLASHJIT_TRY(fill_places(given, sizes, params));
  if (!indices_.nothing()) FLASHJIT_TRY(check_indices(given, of_sequences, params));
  const std::int64_t bytes = workspace_.empty() ? 0 : bytes_of(workspace_, sizes);
  if (has_blocks(spec_)) shape_block_states(sizes, params);
  const TensorView workspace{.data = call.workspace, .dtype = "u8", .rank = 1, .shape = &bytes};
  if (call.workspace) overlaps.add(workspace, kWorkspace, {.bytes = bytes});
  FLASHJIT_TRY(overlaps.check());
  params.batch = static_cast<int>(sizes.batch);
  params.q_len = static_cast<int>(sizes.q_len);
  params.k_len = static_cast<int>(sizes.k_len);
  return fill_grid(sizes, params);
}

Result<void> ArgumentChecker::find_named(const CallArguments& call, Given& given) const {
  for (std::size_t i = 0; i < kOperands.size(); ++i) given.operands[i] = &call.operands[i];
  const int count = std::min(call.param_count, CallArguments::kMostParams);
  for (int i = 0; i < count; ++i) {
    const ParamView& param = call.params[static_cast<std::size_t>(i)];
    const ParamView** const slot = slot_of(param, given);
    if (!slot) {
      FLASHJIT_TRY(find_operand_of(param, given));
      continue;
    }
    if (*slot) return invalid(fmt::format("params.{}: given twice", param.name));
    *slot = &param;
  }
  if (call.param_count == count) return {};
  return invalid(fmt::format("params: {} given, a spec has at most {}, {} gradients of these and {} operands",
                             call.param_count, kMaxParams, kMaxGradients, kOperands.size()));
}

Result<void> ArgumentChecker::find_operand_of(const ParamView& param, Given& given) const {
  const std::size_t operand = find_operand(param.name);
  if (find_place_number(param.name)) {
    return invalid(fmt::format(
        "scalars.{}: given, and the spec does not ask for it; add places to the spec or leave it out", param.name));
  }
  if (operand == kOperands.size()) {
    std::string known;
    for (const Param& p : given_params(spec_)) known += (known.empty() ? "" : ", ") + p.name;
    return invalid(
        fmt::format("params.{}: the spec has no parameter of this name; it has {}; leave it out, or declare it "
                    "in params= of the spec",
                    param.name, known.empty() ? "none" : known));
  }
  if (param.is_scalar && !kOperands[operand].value)
    return invalid(fmt::format("scalars.{}: it is a tensor; give it in params", param.name));
  if (given.operands[operand]->given() || given.values[operand]) {
    return invalid(
        fmt::format("{}: given twice; by its name and in its field, or under its name two times", param.name));
  }
  if (param.is_scalar) given.values[operand] = &param;
  else given.operands[operand] = &param.tensor;
  return {};
}

Result<void> ArgumentChecker::fill_grid(const CallSizes& sizes, KernelParams& params) const {
  const auto tiles = [](std::int64_t size, int of_item) { return of_item == 0 ? 1 : (size + of_item - 1) / of_item; };
  for (const GridRule& grid : grids_) {
    if (items_of(grid, sizes) <= kLargestGrid) continue;
    return invalid(fmt::format(
        "batch: {} with {} heads and {} query tiles{} makes more blocks than a launch can have ({}); split "
        "the batch",
        sizes.batch, grid.heads, tiles(sizes.q_len, grid.queries),
        grid.keys == 0 ? "" : fmt::format(" and {} key tiles", tiles(sizes.k_len, grid.keys)), kLargestGrid));
  }
  if (grids_.empty()) return {};
  const GridRule& first = grids_.front();
  if (first.numbered) params.tiles_q = static_cast<int>(items_of(first, sizes) / first.heads);
  else params.tiles_q = sizes.batch == 0 ? 0 : static_cast<int>(tiles(sizes.q_len, first.queries));
  params.heads_per_group = groups_.heads(sizes);
  return {};
}

Result<std::int64_t> ArgumentChecker::workspace_bytes(const CallArguments& call) const {
  if (workspace_.empty()) return std::int64_t{0};
  KernelParams params;
  CallSizes sizes;
  FLASHJIT_TRY(fill(call, params, sizes));
  return bytes_of(workspace_, sizes);
}

Result<void> ArgumentChecker::find_buffers(const CallArguments& call, const CallSizes& sizes, Buffers& buffers) const {
  FLASHJIT_TRY(check_workspace(call, bytes_of(workspace_, sizes)));
  for (std::size_t i = 0; i < workspace_.size(); ++i)
    if (bytes_of(workspace_[i], sizes) > 0)
      buffers[i] = static_cast<char*>(call.workspace) + offset_of(static_cast<int>(i), sizes);
  return {};
}

// Returns the tensor with all dimensions of its operand. A dimension that it has in another size is left unchanged.
const TensorView& ArgumentChecker::repeat(std::size_t operand, const Extents& extents, Given& given) const {
  const TensorView& tensor = *given.operands[operand];
  const OperandAxes& axes = rows_[operand].axes;
  if (!kOperands[operand].repeats || !tensor.given() || tensor.rank > axes.rank) return tensor;
  Repeated& all = given.repeated[given.repeated_count++];
  all.tensor = tensor;
  const auto dim_at = [&](int i) { return axes.dims[std::ranges::find(axes.at, i) - std::begin(axes.at)]; };
  std::int64_t next = 1;
  for (int i = axes.rank - 1, at = tensor.rank - 1; i >= 0; --i, --at) {
    // If the call gives no extent, the tensor's own counts.
    const std::int64_t extent = extents[static_cast<std::size_t>(dim_at(i))];
    const bool repeats = at < 0 || (tensor.shape[at] == 1 && extent >= 0);
    all.shape[i] = repeats ? extent : tensor.shape[at];
    all.strides[i] = repeats ? 0 : tensor.strides ? tensor.strides[at] : next;
    if (at >= 0) next *= tensor.shape[at];
  }
  all.tensor.rank = axes.rank;
  all.tensor.shape = all.shape;
  all.tensor.strides = all.strides;
  return all.tensor;
}

Result<void> ArgumentChecker::fill_operands(const CallArguments& call, Given& given, Extents& extents,
                                            KernelParams& params, Overlaps& overlaps) const {
  std::string_view first_of_rows;
  for (std::size_t i = 0; i < kOperands.size(); ++i) {
    const Operand& operand = kOperands[i];
    const Row& row = rows_[i];
    const bool is_given = given.operands[i]->given() || given.values[i];
    if (!row.wanted) {
      if (!is_given) continue;
      return invalid(fmt::format("{}: given, and {}", operand.name, operand.absent));
    }
    if (operand.optional && !is_given) continue;
    if (given.values[i]) {
      FLASHJIT_ASSIGN(value, whole_number(*given.values[i]));
      params.*operand.value = value;
      continue;
    }
    const TensorView& tensor = repeat(i, extents, given);
    FLASHJIT_ASSIGN(d, check_tensor(tensor, row.rule));
    FLASHJIT_TRY(check_extents(call, i, d, extents));
    overlaps.add(tensor, row.rule, d);
    std::memcpy(reinterpret_cast<char*>(&params) + operand.pointer, &tensor.data, sizeof tensor.data);
    const auto stride = [&](int dim) { return row.axes.at[dim] < 0 ? 0 : Int64{d.stride[row.axes.at[dim]]}; };
    if (operand.strides_kind == OperandStrides::Token) params.*operand.strides = {stride(0), stride(2), stride(1)};
    if (operand.strides_kind == OperandStrides::Lists) fill_lists(d, params.*operand.lists);
    if (operand.strides_kind == OperandStrides::Table) {
      params.table_stride_batch = stride(0);
      params.table_stride_head = stride(1);
      params.table_stride_page = stride(2);
    }
    if (operand.strides_kind == OperandStrides::Parts) {
      const auto along = [&](Dim dim) {
        return stride(static_cast<int>(std::ranges::find(row.axes.dims, dim) - row.axes.dims));
      };
      params.*operand.part_strides = {along(Dim::Parts), along(Dim::Batch), along(Dim::HeadsQ), along(Dim::Queries)};
    }
    if (operand.strides_kind != OperandStrides::Row) continue;
    const bool differ = params.row_stride_batch != stride(0) || params.row_stride_head != stride(1);
    if (!first_of_rows.empty() && differ) {
      return invalid(fmt::format("{}.strides: differ from those of {}; the kernel writes both with one set of strides",
                                 operand.name, first_of_rows));
    }
    first_of_rows = operand.name;
    params.row_stride_batch = stride(0);
    params.row_stride_head = stride(1);
  }
  if (spec_.v_in_k) {
    params.v = params.k;
    params.v_stride = params.k_stride;
    params.scale_v = params.scale_k;
    params.scale_v_stride = params.scale_k_stride;
  }
  return {};
}

// Returns how many blocks of `rows` rows a sequence has. For packed sequences the call gives the longest length.
std::int64_t ArgumentChecker::blocks_of(const CallArguments& call, Dim tokens, std::int64_t extent, int rows) const {
  const bool of_q = tokens == Dim::Queries, packed = of_q ? is_packed(spec_) : has_packed_keys(spec_);
  const std::int64_t longest = of_q ? call.max_q_len : call.max_k_len;
  return ((packed && longest > 0 ? longest : extent) + rows - 1) / rows;
}

Result<void> ArgumentChecker::check_extents(const CallArguments& call, std::size_t operand, const Dimensions& d,
                                            Extents& extents) const {
  const Row& row = rows_[operand];
  for (int i = 0; i < kMaxTensorRank; ++i) {
    const Dim dim = row.axes.dims[i];
    const int at = row.axes.at[i];
    if (at < 0) continue;
    std::int64_t& extent = extents[static_cast<std::size_t>(dim)];
    if (d.size[at] == extent) continue;
    if (extent >= 0) return check_size(row.rule, d, at, extent, meaning_of(dim, spec_));
    extent = d.size[at];
    if (spec_.scale_block > 0 && (dim == Dim::Queries || dim == Dim::Keys)) {
      const Dim blocks = dim == Dim::Queries ? Dim::QueryBlocks : Dim::KeyBlocks;
      extents[static_cast<std::size_t>(blocks)] = blocks_of(call, dim, extent, spec_.scale_block);
    }
    if (has_blocks(spec_) && dim == Dim::Queries)
      extents[static_cast<std::size_t>(Dim::ListRows)] = blocks_of(call, dim, extent, spec_.blocks.q);
    if (dim != Dim::Offsets) continue;
    if (extent < 1)
      return invalid(fmt::format("{}.shape[0]: 0, must be the number of sequences plus 1", row.rule.name));
    extents[static_cast<std::size_t>(Dim::Batch)] = extent - 1;
  }
  return {};
}

Result<void> ArgumentChecker::find_sizes(const CallArguments& call, const Extents& extents, CallSizes& sizes) const {
  const auto extent = [&](Dim dim) { return extents[static_cast<std::size_t>(dim)]; };
  if (!reads_keys(spec_) && !is_packed(spec_)) {  // Such a spec does not ask which sequence a packed token belongs to.
    const std::int64_t batch = spec_.layout == Layout::Packed ? 1 : extent(Dim::Batch), queries = extent(Dim::Queries);
    sizes = {batch, queries, merges(spec_) ? extent(Dim::Parts) : 1, batch * queries, 0};
    return {};
  }
  const Dim pages = selects(spec_) ? Dim::Pages : Dim::TablePages;
  const std::int64_t room = is_paged(spec_) ? room_in_pages(extent(Dim::Pages), extent(pages)) : 1;
  const std::int64_t keys = is_paged(spec_) || quantizes(spec_) ? room : extent(Dim::Keys);
  // Packed queries with lists of keys belong to one sequence.
  const bool has_batch = is_packed(spec_) || spec_.layout != Layout::Packed;
  sizes = {has_batch ? extent(Dim::Batch) : 1, extent(Dim::Queries), keys, extent(Dim::Queries), keys};
  if (!has_packed_keys(spec_)) sizes.k_tokens = std::min(sizes.k_len, SizeBound::kLargest) * sizes.batch;
  sizes.k_rows = is_paged(spec_) ? extent(Dim::Pages) * spec_.page_size : sizes.k_tokens;
  if (!is_packed(spec_)) {
    if (call.max_q_len != 0 || call.max_k_len != 0)
      return invalid(fmt::format("max_{}_len: {}, and no sequence is packed: the shapes say the lengths; leave it 0",
                                 call.max_q_len ? "q" : "k", call.max_q_len ? call.max_q_len : call.max_k_len));
    sizes.q_tokens *= sizes.batch;
    return {};
  }
  if (call.max_q_len < 0 || call.max_k_len < 0) return invalid("max_q_len, max_k_len: must not be negative");
  if (call.max_q_len == 0 && sizes.q_tokens > 0 && sizes.batch > 0) {
    return invalid(
        fmt::format("max_q_len: missing; give the length of the longest query sequence ({} tokens in all is a safe, "
                    "slower bound)",
                    sizes.q_tokens));
  }
  sizes.q_len = std::min(call.max_q_len, sizes.q_tokens);
  if (call.max_k_len > 0 && has_packed_keys(spec_)) sizes.k_len = std::min(call.max_k_len, sizes.k_tokens);
  return {};
}

// For kernels each query is a sequence, whose keys are the indices into its list, unless a launch merges the lists.
void ArgumentChecker::take_lists_for_sequences(const Extents& extents, CallSizes& sizes, KernelParams& params) const {
  const std::int64_t rows =
      is_paged(spec_) ? extents[static_cast<std::size_t>(Dim::Pages)] * spec_.page_size : sizes.k_len;
  params.key_rows = static_cast<int>(std::min<std::int64_t>(rows, std::numeric_limits<int>::max()));
  params.queries_of_sequence = static_cast<int>(sizes.q_len);
  if (!is_paged(spec_)) params.pages = static_cast<int>(sizes.batch);
  if (merged_entries_ > 0) {
    params.queries_of_sequence = 1;
    sizes.k_len = std::int64_t{merged_entries_} * spec_.page_size;
    return;
  }
  sizes.batch = sizes.q_tokens;
  sizes.q_len = 1;
  sizes.k_len = listed_keys(spec_);
}

// A row of scores has one score for each key that a sequence may have.
Result<void> ArgumentChecker::check_scores(const Extents& extents, const CallSizes& sizes) const {
  const std::int64_t columns = extents[static_cast<std::size_t>(Dim::ScoredKeys)];
  if (columns == sizes.k_len) return {};
  return invalid(fmt::format("scores.shape[{}]: {}, must be {}, the keys that a sequence of this call may have ({})",
                             rows_[operand("scores")].axes.rank - 1, columns, sizes.k_len,
                             is_paged(spec_)          ? "the tokens of all pages in a row of block_table"
                             : has_packed_keys(spec_) ? "max_k_len, or all of k"
                                                      : "those of k"));
}

// Returns the room for a sequence's keys: all its pages, up to the bound of the spec, which the last page may pass.
std::int64_t ArgumentChecker::room_in_pages(std::int64_t pages, std::int64_t of_sequence) const {
  if (pages == 0) return 0;
  const std::int64_t room = std::min(of_sequence, SizeBound::kLargest) * spec_.page_size;
  return room - spec_.k_len.max < spec_.page_size ? std::min(room, spec_.k_len.max) : room;
}

Result<void> ArgumentChecker::check_sizes(const CallSizes& sizes) const {
  FLASHJIT_TRY(check_bound("b", sizes.batch, spec_.batch));
  FLASHJIT_TRY(check_bound("q_len", sizes.q_len, spec_.q_len));
  if (has_block_table(spec_)) FLASHJIT_TRY(check_columns(sizes.k_len));
  FLASHJIT_TRY(check_bound("k_len", sizes.k_len, spec_.k_len));
  if (spec_.append && sizes.batch > 0) FLASHJIT_TRY(check_append(sizes));
  return tensor_maps_ && is_packed(spec_) ? check_packed_reach(sizes) : Result<void>();
}

// Scales are a part of K and V. Sequences share the keys of the prefix and their queries run as those of one sequence,
// so they have to share the scales of queries, too. The scales of keys lie in pages.
Result<void> ArgumentChecker::check_scales(const CallSizes& sizes, const KernelParams& params) const {
  if (!spec_.shared_prefix || sizes.batch <= 1) return {};
  for (const auto& [name, stride] : {std::pair("scale_q", params.scale_q_stride),
                                     {"scale_k", params.scale_k_stride},
                                     {"scale_v", params.scale_v_stride}}) {
    const bool in_pages = has_key_scales(spec_) && name != std::string_view("scale_q");
    if (stride.batch == 0 || in_pages) continue;
    return invalid(
        fmt::format("{}: one for each of {} sequences, which share keys (shared_prefix); give one for all of them, as "
                    "[1], or one for each head",
                    name, sizes.batch));
  }
  return {};
}

Result<void> ArgumentChecker::check_append(const CallSizes& sizes) const {
  if (is_packed(spec_) || sizes.q_len <= sizes.k_len) return {};
  return invalid(fmt::format("q_len: {}, k and v have room for {} of a sequence; give them more",
                             counted(sizes.q_len, "new token"), sizes.k_len));
}

// Lengths lie on the device, so a table must have all positions that the call has room for.
Result<void> ArgumentChecker::check_positions(std::int64_t positions, const CallSizes& sizes,
                                              KernelParams& params) const {
  params.rope_positions = std::numeric_limits<int>::max();
  if (!has_rope_tables(spec_)) return {};
  params.rope_positions = static_cast<int>(std::min<std::int64_t>(positions, params.rope_positions));
  if (quantizes(spec_)) return check_positions_of_x(positions, sizes, params);
  std::int64_t needed = sizes.k_len;
  if (spec_.alignment == Alignment::TopLeft) needed = std::max(needed, sizes.q_len);
  // Queries without keys are rounded, too.
  if (narrows(spec_) && sizes.q_tokens > 0) needed = std::max<std::int64_t>(needed, 1);
  if (positions >= needed) return {};
  return invalid(
      fmt::format("cos.shape[0]: {} positions, sequences of this call can have {} tokens ({}); give longer "
                  "tables, or less room in k and v",
                  positions, needed, needed > sizes.k_len ? "q_len" : "k_len"));
}

// A token before the first position turns like the first one. A token whose position lies on the device may have any
// position.
Result<void> ArgumentChecker::check_positions_of_x(std::int64_t positions, const CallSizes& sizes,
                                                   const KernelParams& params) const {
  if (sizes.q_tokens == 0) return {};
  const std::int64_t last = params.positions ? 0 : std::max<std::int64_t>(params.first_position + sizes.q_len - 1, 0);
  if (positions > last) return {};
  return invalid(fmt::format("cos.shape[0]: {} positions, and a token of x is at position {}; give longer tables",
                             positions, last));
}

// Sequences that are not packed always fit their maps, because the bounds of a spec are smaller.
Result<void> ArgumentChecker::check_packed_reach(const CallSizes& sizes) const {
  for (const auto& [name, tokens, packed] :
       {std::tuple{"q", sizes.q_tokens, true}, std::tuple{"k", sizes.k_tokens, has_packed_keys(spec_)}}) {
    if (!packed || tokens <= kMostSteps) continue;
    return invalid(fmt::format(
        "{}.shape[0]: {} tokens, this kernel reaches {} in packed tensors; split the call, or pin family={} in the "
        "schedule",
        name, tokens, kMostSteps, floor_family(true)->name));
  }
  return {};
}

Result<void> check_readable(const AttentionSpec& spec, const Arguments& arguments) {
  Plan plan;  // The plan is one for a processor, because nothing is launched.
  plan.spec = spec;
  plan.target.gpu = false;
  const ArgumentChecker checker(plan);
  CallArguments call;
  KernelParams params;
  CallSizes sizes;
  FLASHJIT_TRY(view(arguments, call));
  FLASHJIT_TRY(checker.fill(call, params, sizes));
  return checker.check_contents(call, params, sizes);
}

}  // namespace flashjit
