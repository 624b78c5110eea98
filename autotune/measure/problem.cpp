#include "autotune/measure/problem.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "autotune/measure/cache_data.h"
#include "autotune/measure/gradient_data.h"
#include "autotune/measure/latent_data.h"
#include "autotune/measure/random_data.h"
#include "autotune/reference/reference.h"
#include "compiler/spec/config_words.h"
#include "compiler/spec/fields/places.h"
#include "compiler/spec/half.h"
#include "compiler/spec/operands.h"
#include "compiler/spec/spec_names.h"
#include "runtime/launch/arguments.h"
#include "runtime/launch/call.h"
#include "runtime/launch/index_check.h"

namespace flashjit {
namespace {

using Role = NamedTensor::Role;

std::uint64_t byte_count(const NamedTensor& tensor) {
  // The size is a floating point number, because hostile shapes do not fit 64 bits.
  double bytes = size_of(tensor.dtype);
  for (const std::int64_t extent : tensor.shape) bytes *= static_cast<double>(extent);
  return static_cast<std::uint64_t>(std::min(bytes, 1e18));
}

std::int64_t blocks_of(std::int64_t rows, const AttentionSpec& spec) {
  return (rows + spec.scale_block - 1) / spec.scale_block;
}

std::int64_t extent_of(Dim dim, const AttentionSpec& spec, const ProblemShape& shape) {
  switch (dim) {
    case Dim::Batch: return shape.batch;
    case Dim::Parts: return shape.longest_k();
    case Dim::Queries: return spec.layout == Layout::Packed ? shape.q_tokens() : shape.longest_q();
    case Dim::QueryBlocks: return blocks_of(shape.longest_q(), spec);
    case Dim::KeyBlocks: return blocks_of(shape.longest_k(), spec);
    case Dim::Keys: return spec.layout == Layout::Packed ? shape.k_tokens() : shape.longest_k();
    case Dim::ListRows: return (shape.longest_q() + spec.blocks.q - 1) / spec.blocks.q;
    case Dim::Listed:
    case Dim::ListedFull: return (shape.longest_k() + spec.blocks.k - 1) / spec.blocks.k;
    case Dim::Pages: return drawn_pages(spec, shape);
    case Dim::TablePages: return (shape.longest_k() + spec.page_size - 1) / spec.page_size;
    // These are all positions that there is room for: whole pages, or all positions of rows of x or Q.
    case Dim::Positions: {
      const std::int64_t page = std::max(spec.page_size, 1);
      const std::int64_t tokens = spec.append ? shape.longest_k() : std::max(shape.longest_k(), shape.longest_q());
      return (tokens + page - 1) / page * page;
    }
    case Dim::ScoredKeys: {
      const std::int64_t page = std::max(spec.page_size, 1);
      return std::min((shape.longest_k() + page - 1) / page * page, spec.k_len.max);
    }
    case Dim::Offsets: return static_cast<std::int64_t>(shape.q.size()) + 1;
    default: return extent_of(dim, spec);
  }
}

bool is_offsets(const Operand& operand) { return operand.dims[0] == Dim::Offsets; }

// Makes the tensor without its contents.
NamedTensor tensor_of(const Operand& operand, const AttentionSpec& spec, const ProblemShape& shape) {
  NamedTensor tensor{std::string(operand.name), Role::Input, operand.dtype_of(spec), {}, {}};
  if (is_offsets(operand)) tensor.role = Role::Offsets;
  if (operand.is_output_of(spec)) tensor.role = Role::Output;
  if (operand.updated_by(spec)) tensor.role = Role::Updated;
  if (operand.name == "k_lens") tensor.role = Role::Lengths;
  if (operand.name == "block_table") tensor.role = Role::Table;
  if (operand.name == "shared_prefix") tensor.role = Role::Prefix;
  if (selects(spec) && (operand.name == "key_index" || operand.name == "page_index")) tensor.role = Role::Chosen;
  if (operand.name == "q_positions" || operand.name == "k_positions") tensor.role = Role::Positions;
  if (operand.repeats) tensor.role = Role::Scales;
  if (operand.lists) tensor.role = Role::Blocks;
  if (operand.name == "cos" || operand.name == "sin") tensor.role = Role::Angles;
  if (operand.value) tensor.role = Role::Number;
  const OperandAxes axes = axes_of(operand, spec);
  tensor.shape.resize(static_cast<std::size_t>(axes.rank));
  for (std::size_t i = 0; i < std::size(axes.at); ++i) {
    if (axes.at[i] >= 0) tensor.shape[static_cast<std::size_t>(axes.at[i])] = extent_of(axes.dims[i], spec, shape);
  }
  if (tensor.role == Role::Scales && spec.shared_prefix && axes.dims[0] == Dim::Batch)
    tensor.shape[0] = 1;  // Scales are a part of K and V, which sequences share.
  return tensor;
}

NamedTensor with_offsets(NamedTensor tensor, const std::vector<std::int64_t>& lengths) {
  std::vector<std::int32_t> values = {0};
  for (const std::int64_t length : lengths) values.push_back(static_cast<std::int32_t>(values.back() + length));
  set_ints(tensor, values);
  return tensor;
}

// Returns how large each tensor parameter has to be for the indices that mask and score compute, because the launch
// will check that. A tensor that comes from a file has the size of the file, and the launch refuses an index that runs
// below 0. `room` is that for the keys of a sequence.
Result<std::map<std::string, std::vector<std::int64_t>>> param_shapes(const AttentionSpec& spec,
                                                                      const ProblemShape& shape, std::int64_t room,
                                                                      const InputFiles& inputs,
                                                                      const std::map<std::string, double>& scalars) {
  std::map<std::string, std::vector<std::int64_t>> shapes;
  std::vector<std::int64_t> values;  // parallel to the parameters
  std::string with;
  for (const Param& param : spec.params) {
    std::int64_t& value = values.emplace_back(0);
    if (param.rank > 0) {
      shapes[param.name].assign(static_cast<std::size_t>(param.rank), 1);
    } else if (!is_float(param.dtype)) {
      FLASHJIT_ASSIGN(bits, scalar_bits(param, scalars.at(param.name)));
      value = bits;
      with += fmt::format(" {}={}", param.name, value);
    }
  }
  CallSizes sizes = {std::max<std::int64_t>(shape.batch, 1), std::max<std::int64_t>(shape.longest_q(), 1),
                     std::max<std::int64_t>(room, 1)};
  if (spec.list_mask && spec.layout == Layout::Packed) {  // Such a mask takes all tokens for one sequence.
    sizes = {1, std::max<std::int64_t>(shape.q_tokens(), 1), std::max<std::int64_t>(shape.k_tokens(), 1)};
  }
  const auto total = [&](const char* name, std::int64_t& length) {
    if (scalars.contains(name)) length = std::max<std::int64_t>(static_cast<std::int64_t>(scalars.at(name)), 1);
  };
  if (spec.places) total("q_total", sizes.q_len), total("k_total", sizes.k_len);
  const auto range_of_read = [&](int number, std::span<const IntInterval>) {
    const Param& param = spec.params[static_cast<std::size_t>(number)];
    return inputs.files.contains(param.name) ? range_of(param.dtype) : range_of_random(param.dtype, param.contents);
  };
  for (const IndexChecker::IndexRange& index : IndexChecker(spec).ranges(spec, sizes, values.data(), range_of_read)) {
    const std::string& name = spec.params[static_cast<std::size_t>(index.param)].name;
    if (inputs.files.contains(name)) continue;
    if (index.range.hi > SizeBound::kLargest) {
      return invalid(
          fmt::format("params.{}: index {} (`{}`) runs to {} with{}, and a random tensor has at most {} there; choose "
                      "other scalars, or give it with --param {}=FILE.npy",
                      name, index.dimension, index.text, index.range.hi, with.empty() ? " these sizes" : with,
                      SizeBound::kLargest, name));
    }
    std::int64_t& extent = shapes[name][static_cast<std::size_t>(index.dimension)];
    extent = std::max(extent, index.range.hi + 1);
  }
  return shapes;
}

class Builder {
 public:
  Builder(const AttentionSpec& spec, const ProblemShape& shape, const InputFiles& inputs, std::uint64_t seed,
          double most_bytes)
      : spec_(spec), shape_(shape), inputs_(inputs), seed_(seed), most_bytes_(most_bytes) {}

  Result<void> input(NamedTensor tensor, bool exact_shape) {
    const auto file = inputs_.files.find(tensor.name);
    if (file == inputs_.files.end()) {
      FLASHJIT_TRY(room_for(tensor));
      tensor.bytes.resize(byte_count(tensor));
      fill(tensor);
    } else {
      FLASHJIT_TRY(inputs_.read(file->second, exact_shape, tensor));
    }
    tensors.push_back(std::move(tensor));
    return {};
  }

  Result<void> output(NamedTensor tensor) {
    FLASHJIT_TRY(room_for(tensor));
    tensor.bytes.resize(byte_count(tensor));
    tensors.push_back(std::move(tensor));
    return {};
  }

  // Gradients are as long as the parameters, which have been drawn.
  Result<void> gradients_of_parameters() {
    for (const int number : params_with_gradients(spec_)) {
      const Param& param = spec_.params[static_cast<std::size_t>(number)];
      std::vector<std::int64_t> shape = {1};
      const auto drawn = std::ranges::find_if(
          tensors, [&](const NamedTensor& t) { return t.role == Role::Param && t.name == param.name; });
      if (param.rank > 0) shape = drawn->shape;
      FLASHJIT_TRY(output({gradient_name(param.name), Role::Output, Dtype::F32, std::move(shape), {}}));
    }
    return {};
  }

  std::vector<NamedTensor> tensors;

 private:
  void fill(NamedTensor& tensor) const {
    if (tensor.role == Role::Lengths) return set_lengths(tensor, shape_);
    if (tensor.role == Role::Table) return set_table(tensor, spec_, shape_, seed_);
    if (tensor.role == Role::Blocks) return set_blocks(tensor, shape_, spec_, seed_);
    if (tensor.role == Role::Chosen) return set_chosen(tensor, spec_, shape_, seed_);
    if (tensor.role == Role::Positions) return set_positions(tensor, spec_, shape_, seed_);
    if (tensor.role == Role::Prefix) return set_ints(tensor, {drawn_prefix(spec_, shape_)});
    if (tensor.role == Role::Angles) return set_angles(tensor);
    if (tensor.role == Role::Number) return set_number(tensor, number(tensor.name));
    if (has_latent_rows(spec_) && tensor.name == "k") return set_latents(tensor, spec_, seed_);
    fill_random(tensor, seed_);
    if (tensor.role == Role::Scales) set_scales(tensor, spec_);
  }

  // The seed of everything is the seed of dropout, too.
  std::int64_t number(const std::string& name) const {
    if (const auto given = inputs_.scalars.find(name); given != inputs_.scalars.end())
      return static_cast<std::int64_t>(given->second);
    return name == "seed" ? static_cast<std::int64_t>(seed_) : 0;
  }

  // Linux hands out memory that it does not have, and ends the process later. Refusing beforehand gives a message.
  Result<void> room_for(const NamedTensor& tensor) {
    planned_ += static_cast<double>(byte_count(tensor));
    if (most_bytes_ > 0) {
      if (planned_ <= most_bytes_) return {};
      return invalid(fmt::format("the tensors up to {} need {:.1f} GB, more than {:.1f} GB", tensor.name,
                                 planned_ * 1e-9, most_bytes_ * 1e-9));
    }
    const double memory =
        static_cast<double>(::sysconf(_SC_PHYS_PAGES)) * static_cast<double>(::sysconf(_SC_PAGE_SIZE));
    if (planned_ <= 0.8 * memory) return {};
    return invalid(fmt::format(
        "--shape: the tensors up to {} need {:.1f} GB, this machine has {:.1f} GB of memory; choose a smaller b, q or k, or "
        "scalars that index less",
        tensor.name, planned_ * 1e-9, memory * 1e-9));
  }

  const AttentionSpec& spec_;
  const ProblemShape& shape_;
  const InputFiles& inputs_;
  const std::uint64_t seed_;
  const double most_bytes_;
  double planned_ = 0;
};

Result<void> check_names(const AttentionSpec& spec, const InputFiles& inputs) {
  const auto is_param = [&](const std::string& name, bool scalar) {
    return std::ranges::any_of(given_params(spec),
                               [&](const Param& p) { return p.name == name && (p.rank == 0) == scalar; });
  };
  std::string known;
  for (const Param& param : given_params(spec))
    known += fmt::format("{}{} ({})", known.empty() ? "" : ", ", param.name, param.rank == 0 ? "a number" : "a file");
  if (known.empty()) known = "none";
  for (const auto& [name, file] : inputs.files) {
    const std::size_t operand = find_operand(name);
    const bool is_input = operand < kOperands.size() && comes_from_files(kOperands[operand], spec);
    if (is_input || is_param(name, false)) continue;
    if (operand < kOperands.size() && !kOperands[operand].belongs_to(spec))
      return invalid(fmt::format("{}: given, and {}", name, kOperands[operand].absent));
    return invalid(
        fmt::format("{}={}: this spec has no tensor parameter of that name; its parameters: {}", name, file, known));
  }
  for (const auto& [name, value] : inputs.scalars) {
    const std::size_t operand = find_operand(name);
    const bool is_number =
        operand < kOperands.size() && kOperands[operand].value && kOperands[operand].belongs_to(spec);
    if (is_number || is_param(name, true) || (spec.places && find_place_number(name))) continue;
    return invalid(
        fmt::format("{}={}: this spec has no number parameter of that name; its parameters: {}", name, value, known));
  }
  return {};
}

void poison_caches(ProblemData& data, const AttentionSpec& spec, const ProblemShape& shape, const InputFiles& inputs) {
  const char* index = selects_pages(spec) ? "page_index" : "key_index";
  for (const char* name : {"k", "v"}) {
    NamedTensor* tensor = data.find(name);
    if (!tensor || inputs.files.contains(name)) continue;
    if (selects(spec)) poison_unchosen(*tensor, spec, *data.find(index), data.find("key_count"));
    else poison_unused(*tensor, spec, data.find("k_lens"), data.find("block_table"), shape);
  }
}

Result<void> check_shapes_logits(const AttentionSpec& spec, const InputFiles& inputs) {
  if (!attends(spec)) {
    return invalid(
        fmt::format("--data: only normal goes with {}, which has no logits that could be others; "
                    "leave it out or use fwd or bwd",
                    kOperationNames[static_cast<std::size_t>(spec.operation)]));
  }
  if (inputs.files.contains("q") || inputs.files.contains("k"))
    return invalid("--data: it says what q and k are drawn like; leave it out, or both files");
  if (!has_scaled_keys(spec) && !has_latent_rows(spec)) return {};
  return invalid(
      fmt::format("--data: logits are shaped by elements of k, which kv={} would round; leave one of them out",
                  has_latent_rows(spec) ? word(spec.cache_format) : name(spec.kv_dtype)));
}

}  // namespace

// Returns all scalars of mask and score, and the numbers of places that are given.
std::map<std::string, double> scalars_of(const AttentionSpec& spec, const InputFiles& inputs) {
  std::map<std::string, double> scalars;
  for (const Param& param : given_params(spec)) {
    const auto given = inputs.scalars.find(param.name);
    if (param.rank == 0) scalars[param.name] = given == inputs.scalars.end() ? 1.0 : given->second;
  }
  for (const PlaceNumber& number : kPlaceNumbers) {
    const auto given = inputs.scalars.find(std::string(number.name));
    if (spec.places && given != inputs.scalars.end()) scalars[given->first] = given->second;
  }
  return scalars;
}

// Some rows have seen nothing yet, so O may hold anything there.
void forget_rows(NamedTensor& o, NamedTensor& lse, const AttentionSpec& spec) {
  const bool packed = spec.layout == Layout::Packed, bhsd = spec.layout == Layout::Bhsd;
  const std::int64_t heads = spec.heads_q, tokens = lse.shape.back();
  const std::int64_t rows = static_cast<std::int64_t>(lse.bytes.size() / sizeof(float));
  for (std::int64_t i = 2; i < rows; i += 5) {
    const std::int64_t token = i % tokens, head = i / tokens % heads, b = i / tokens / heads;
    const std::int64_t row = bhsd ? i : ((packed ? 0 : b * tokens) + token) * heads + head;
    store_float(Dtype::F32, lse.bytes.data(), i, -INFINITY);
    for (std::int64_t c = 0; c < spec.d_v; ++c) store_float(Dtype::F32, o.bytes.data(), row * spec.d_v + c, NAN);
  }
}

bool comes_from_files(const Operand& operand, const AttentionSpec& spec) {
  return operand.belongs_to(spec) && !operand.is_output_of(spec) && !is_offsets(operand);
}

Result<ProblemData> ProblemData::create(const AttentionSpec& spec, const ProblemShape& shape, const InputFiles& inputs,
                                        std::uint64_t seed, double most_bytes) {
  FLASHJIT_TRY(check_names(spec, inputs));
  const bool packed = is_packed(spec);
  if (packed && std::max(shape.q_tokens(), has_packed_keys(spec) ? shape.k_tokens() : 0) > SizeBound::kLargest) {
    return invalid(
        fmt::format("--shape: the sequences have more than {} tokens together, the most a packed tensor can have",
                    SizeBound::kLargest));
  }
  Builder builder(spec, shape, inputs, seed, most_bytes);
  for (const Operand& operand : kOperands) {
    if (!operand.belongs_to(spec)) continue;
    // Scales and lists of blocks are drawn in any case, and results are written. Any other operand that a call may
    // leave out is left out.
    const bool is_asked_for = operand.is_output_of(spec) || inputs.files.contains(std::string(operand.name));
    if (operand.optional && !operand.repeats && !is_asked_for) continue;
    NamedTensor tensor = tensor_of(operand, spec, shape);
    if (tensor.role == Role::Offsets) {
      builder.tensors.push_back(with_offsets(tensor, operand.name == "offsets_q" ? shape.q : shape.k));
      continue;
    }
    // A pool, tables and lists have room for any number of pages, positions or blocks. Scales and lists may count for
    // several heads.
    const bool exact = tensor.role != Role::Blocks && tensor.role != Role::Table && tensor.role != Role::Angles &&
                       tensor.role != Role::Scales && axes_of(operand, spec).dims[0] != Dim::Pages;
    FLASHJIT_TRY(tensor.role == Role::Output ? builder.output(std::move(tensor))
                                             : builder.input(std::move(tensor), exact));
  }

  ProblemData data;
  for (std::size_t i = 0; i < shape.q.size(); ++i)
    data.score_count_ += static_cast<std::uint64_t>(spec.heads_q) * static_cast<std::uint64_t>(shape.q[i]) *
                         static_cast<std::uint64_t>(shape.k[i]);
  data.scalars_ = scalars_of(spec, inputs);
  const auto table = std::ranges::find(builder.tensors, Role::Table, &NamedTensor::role);
  const std::int64_t room = table == builder.tensors.end()
                                ? shape.longest_k()
                                : std::min(table->shape.back() * spec.page_size, SizeBound::kLargest);
  FLASHJIT_ASSIGN(shapes, param_shapes(spec, shape, room, inputs, data.scalars_));
  for (const Param& param : given_params(spec)) {
    if (param.rank == 0) continue;
    FLASHJIT_TRY(builder.input({param.name, Role::Param, param.dtype, shapes[param.name], {}, param.contents}, false));
  }

  FLASHJIT_TRY(builder.gradients_of_parameters());
  data.tensors_ = std::move(builder.tensors);
  if (packed) data.longest_q_ = shape.longest_q();
  if (has_packed_keys(spec)) data.longest_k_ = shape.longest_k();
  // The table may come from a file, so it is checked before anything here follows it.
  if (has_block_table(spec)) FLASHJIT_TRY(check_readable(spec, data.host_arguments()));
  if (inputs.logits.name != LogitKind::Name::Normal) {
    FLASHJIT_TRY(check_shapes_logits(spec, inputs));
    shape_logits(inputs.logits, spec, shape, seed, data);
  }
  if (((spec.k_lens || spec.append) && !has_packed_keys(spec)) || selects(spec))
    poison_caches(data, spec, shape, inputs);
  if (is_backward(spec)) set_results_of_forward(data, spec, shape, inputs);
  if (spec.accumulate) data.keep_earlier(spec);
  return data;
}

void ProblemData::keep_earlier(const AttentionSpec& spec) {
  if (goes_on_from_results(spec)) forget_rows(*find("o"), *find("lse"), spec);
  for (const NamedTensor& tensor : tensors_) {
    const std::size_t number = find_operand(tensor.name);
    const bool is_result = number < kOperands.size() && kOperands[number].role == OperandRole::Output;
    if (tensor.role == Role::Updated && is_result) earlier_.push_back(tensor);
  }
}

void ProblemData::poison() {
  for (const NamedTensor& tensor : earlier_) find(tensor.name)->bytes = tensor.bytes;
  for (NamedTensor& tensor : tensors_) {
    // A NaN of every float type has all bits set.
    if (tensor.role == Role::Output) std::fill(tensor.bytes.begin(), tensor.bytes.end(), std::uint8_t{0xff});
  }
}

NamedTensor* ProblemData::find(std::string_view name) {
  for (NamedTensor& tensor : tensors_) {
    if (tensor.name == name && tensor.role != Role::Param) return &tensor;
  }
  return nullptr;
}

std::uint64_t ProblemData::bytes() const {
  std::uint64_t total = 0;
  for (const NamedTensor& tensor : tensors_) total += tensor.bytes.size();
  return total;
}

Arguments ProblemData::arguments_at(const std::vector<void*>& pointers) const {
  Arguments a;
  a.max_q_len = longest_q_;
  a.max_k_len = longest_k_;
  a.sms = sms_;
  for (const auto& [name, value] : scalars_) a.scalars[name] = value;
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const NamedTensor& t = tensors_[i];
    const Tensor view{pointers[i], std::string(name(t.dtype)), t.shape, {}};
    (t.role == Role::Param ? a.params[t.name] : operand_of(a, t.name)) = view;
  }
  return a;
}

Arguments ProblemData::host_arguments() {
  std::vector<void*> pointers;
  for (NamedTensor& tensor : tensors_) pointers.push_back(tensor.bytes.data());
  return arguments_at(pointers);
}

Arguments ProblemData::reference_arguments() {
  Arguments arguments = host_arguments();
  for (NamedTensor& t : earlier_)
    arguments.params[reference::earlier(t.name)] = {t.bytes.data(), std::string(name(t.dtype)), t.shape, {}};
  return arguments;
}

Result<DeviceProblem> DeviceProblem::create(const GpuContext& gpu, ProblemData& data, CuStream stream) {
  DeviceProblem problem;
  std::vector<void*> pointers;
  for (const NamedTensor& tensor : data.tensors()) {
    FLASHJIT_ASSIGN(buffer, DeviceBuffer::allocate(gpu, tensor.bytes.size()));
    if (!tensor.bytes.empty()) FLASHJIT_TRY(buffer.upload(tensor.bytes.data(), stream));
    pointers.push_back(buffer.data());
    for (const NamedTensor& earlier : data.earlier_)
      if (earlier.name == tensor.name) problem.earlier_[problem.buffers_.size()] = earlier.bytes;
    problem.buffers_.push_back(std::move(buffer));
    problem.roles_.push_back(tensor.role);
  }
  problem.arguments_ = data.arguments_at(pointers);
  return problem;
}

Result<std::uint64_t> DeviceProblem::make_workspace(const GpuContext& gpu, const Kernel& kernel) {
  FLASHJIT_ASSIGN(bytes, kernel.workspace_bytes(arguments_));
  if (bytes <= arguments_.workspace_bytes) return static_cast<std::uint64_t>(bytes);
  FLASHJIT_ASSIGN(buffer, DeviceBuffer::allocate(gpu, static_cast<std::size_t>(bytes)));
  arguments_.workspace = buffer.data();
  arguments_.workspace_bytes = bytes;
  workspace_ = std::move(buffer);
  return static_cast<std::uint64_t>(bytes);
}

Result<void> DeviceProblem::poison(const Stream& stream) const {
  for (std::size_t i = 0; i < buffers_.size(); ++i) {
    if (roles_[i] == Role::Output) FLASHJIT_TRY(buffers_[i].fill(0xff, stream.get()));
  }
  for (const auto& [number, bytes] : earlier_)
    if (!bytes.empty()) FLASHJIT_TRY(buffers_[number].upload(bytes.data(), stream.get()));
  return {};
}

Result<void> DeviceProblem::download_outputs(ProblemData& data, CuStream stream) const {
  for (std::size_t i = 0; i < buffers_.size(); ++i) {
    std::vector<std::uint8_t>& bytes = data.tensors()[i].bytes;
    const bool written = roles_[i] == Role::Output || roles_[i] == Role::Updated;
    if (written && !bytes.empty()) FLASHJIT_TRY(buffers_[i].download(bytes.data(), stream));
  }
  return {};
}

}  // namespace flashjit
