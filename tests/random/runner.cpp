#include "tests/random/runner.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <utility>

#include "compiler/spec/fields/blocks.h"
#include "compiler/spec/schedule.h"
#include "compiler/spec/spec.h"
#include "fmt/format.h"
#include "runtime/driver/device_memory.h"
#include "templates/block_lists/layout.h"
#include "tests/device/side_by_side.h"
#include "tests/random/random.h"
#include "tests/random/schedule_generator.h"
#include "compiler/spec/half.h"

namespace flashjit::testing_random {
namespace {

// Memory that ends (up to 15 bytes) at a page that must not be touched.
class FencedMemory {
 public:
  explicit FencedMemory(const std::vector<std::uint8_t>& image) {
    const std::size_t page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    const std::size_t usable = (image.size() + 16 + page - 1) / page * page;
    mapped_ = usable + page;
    base_ =
        static_cast<std::uint8_t*>(mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    mprotect(base_ + usable, page, PROT_NONE);
    data_ = base_ + (usable - image.size()) / 16 * 16;
    std::memcpy(data_, image.data(), image.size());
  }
  ~FencedMemory() { munmap(base_, mapped_); }
  FencedMemory(const FencedMemory&) = delete;
  FencedMemory& operator=(const FencedMemory&) = delete;
  std::uint8_t* data() const { return data_; }

 private:
  std::uint8_t *base_ = nullptr, *data_ = nullptr;
  std::size_t mapped_ = 0;
};

std::string text_of(const Error& error) {
  return fmt::format("{}: {}{}{}", name(error.kind), error.message, error.detail.empty() ? "" : "\n", error.detail);
}

// The environment of compiler/'s evaluator for one position.
Value evaluate_at(const AttentionSpec& spec, const Expr& expr, const Arguments& arguments,
                  const reference::Position& at, float s) {
  std::vector<ParamValue> values(spec.params.size());
  std::vector<std::array<std::uint8_t, 8>> scalars(spec.params.size());
  for (std::size_t i = 0; i < spec.params.size(); ++i) {
    const Param& param = spec.params[i];
    if (param.rank == 0) {
      const double value = arguments.scalars.find(param.name)->second;
      const auto put = [&](auto typed) { std::memcpy(scalars[i].data(), &typed, sizeof typed); };
      if (param.dtype == Dtype::I64) put(static_cast<std::int64_t>(value));
      else if (param.dtype == Dtype::I32) put(static_cast<std::int32_t>(value));
      else if (param.dtype == Dtype::U32) put(static_cast<std::uint32_t>(value));
      else if (param.dtype == Dtype::U8) put(static_cast<std::uint8_t>(value));
      else if (param.dtype == Dtype::F32) put(static_cast<float>(value));
      else if (param.dtype == Dtype::F16) put(float_to_half(static_cast<float>(value)));
      else if (param.dtype == Dtype::BF16) put(float_to_bf16(static_cast<float>(value)));
      values[i].data = scalars[i].data();
      continue;
    }
    if (param.name == kBlockStates) {  // in a listed block; the reference looks at lists by itself
      static constexpr std::uint8_t kListed = kBlockListed;
      values[i].data = &kListed;
      for (std::int64_t& size : values[i].shape) size = SizeBound::kLargest;
      continue;
    }
    const Tensor& tensor = arguments.params.find(param.name)->second;
    values[i].data = tensor.data;
    for (int j = 0; j < param.rank; ++j) {
      values[i].shape[j] = tensor.shape[j];
      values[i].stride[j] = tensor.strides[j];
    }
  }
  Environment environment;
  const auto set = [&](Variable variable, std::int64_t value) {
    environment.variables[static_cast<int>(variable)] = value;
  };
  set(Variable::Q, at.q), set(Variable::K, at.k), set(Variable::B, at.b), set(Variable::H, at.h),
      set(Variable::Hk, at.hk);
  set(Variable::QLen, at.q_len), set(Variable::KLen, at.k_len);
  environment.s = s;
  environment.params = &spec.params;
  environment.values = values.data();
  return evaluate(expr, environment);
}

// Three meanings of one expression must agree: the generator's own functions, the reference's evaluator and the
// compiler's.
std::string check_semantics(const AttentionSpec& spec, const Case& c, const reference::Problem& problem) {
  const Arguments& arguments = problem.arguments();
  const reference::Semantics parsed = reference::semantics_of(spec, arguments);
  const std::vector<reference::RowId> rows = problem.rows();
  Random random(c.seed ^ 0x5eed);
  for (int i = 0; i < 60 && !rows.empty(); ++i) {
    const reference::RowId row = rows[random.integer(0, static_cast<std::int64_t>(rows.size()) - 1)];
    const std::int64_t k_len = problem.k_len(row.b);
    if (k_len == 0) continue;
    reference::Position at{
        row.q, random.integer(0, k_len - 1), row.b, row.h, problem.kv_head(row.h), problem.q_len(row.b), k_len};
    if (reads_positions(spec)) at.q_len = at.k_len = at.q + 1;
    const auto place = [&] { return fmt::format("q={} k={} b={} h={}", at.q, at.k, at.b, at.h); };
    if (written_mask(spec)) {
      const auto& visible = c.independent ? c.semantics.visible : parsed.visible;
      const bool expected = !visible || visible(at);
      if (parsed.visible(at) != expected) return fmt::format("the mask as parsed is {} at {}", !expected, place());
      if ((evaluate_at(spec, written_mask(spec), arguments, at, 0).integer != 0) != expected) {
        return fmt::format("evaluate() of the mask gives {} at {}", !expected, place());
      }
    }
    if (spec.score) {
      const float s = static_cast<float>(random.normal() * 2);
      const double expected = (c.independent ? c.semantics.score : parsed.score)(at, reference::Dual(s)).d;
      const double others[] = {parsed.score(at, reference::Dual(s)).d,
                               evaluate_at(spec, spec.score, arguments, at, s).real};
      for (const double other : others) {
        const bool same = other == expected || std::fabs(other - expected) <= 1e-4 * (1 + std::fabs(expected));
        if (!same) return fmt::format("the score is {} instead of {} at {} for s={}", other, expected, place(), s);
      }
    }
  }
  return {};
}

std::string check_text_form(const AttentionSpec& spec) {
  const std::string once = print(spec);
  auto again = parse_spec(once);
  if (!again) return fmt::format("print(spec) does not parse: {}\n{}", once, text_of(again.error()));
  const std::string twice = print(*again);
  return once == twice ? "" : fmt::format("print(parse(print(spec))) differs:\n{}\n{}", once, twice);
}

std::vector<Arguments> one_call(const AttentionSpec&, const Arguments& whole) { return {whole}; }

// The tensor from this index of its first dimension on.
void cut_first(Tensor& tensor, std::int64_t from, std::int64_t count) {
  if (tensor.shape.empty()) return;
  const std::int64_t element = size_of(*parse_dtype(tensor.dtype));
  tensor.data = static_cast<char*>(tensor.data) + from * tensor.strides[0] * element;
  tensor.shape[0] = count;
}

// Each sequence in a call of its own, whose results lie where they lie in a call of all.
std::vector<Arguments> calls_alone(const AttentionSpec& spec, const Arguments& whole) {
  const std::int64_t batch = is_packed(spec) ? whole.offsets_q.shape[0] - 1 : whole.q.shape[0];
  std::vector<Arguments> calls;
  for (std::int64_t b = 0; b < batch; ++b) {
    Arguments call = whole;
    for (const char* name :
         {"k_lens", "block_table", "key_index", "page_index", "key_count", "q_positions", "k_positions"}) {
      if (call.params.contains(name)) cut_first(call.params[name], b, 1);
    }
    for (const std::string name : {"scale_q", "scale_k", "scale_v"}) {  // of one for all there is nothing to cut
      const auto scale = call.params.find(name);
      if (scale == call.params.end() || scale->second.shape[0] == 1) continue;
      const bool of_keys = has_key_scales(spec) && name != "scale_q";
      const bool has_batch = of_keys && is_paged(spec) ? false
                             : of_keys && spec.token_scales
                                 ? !is_packed(spec)
                                 : scale->second.shape.size() == (spec.scale_block > 0 ? 3u : 2u);
      if (has_batch) cut_first(scale->second, b, 1);
    }
    if (is_packed(spec)) {
      cut_first(call.offsets_q, b, 2);
      cut_first(call.offsets_k, b, 2);
    } else {
      for (Tensor* tensor : {&call.q, &call.o, &call.lse, &call.max_logit}) cut_first(*tensor, b, 1);
      if (!is_paged(spec)) cut_first(call.k, b, 1), cut_first(call.v, b, 1);
    }
    calls.push_back(std::move(call));
  }
  return calls;
}

// The arguments as the reference takes them: of tensors that a call goes on from it needs what `first` then keeps.
Arguments reference_arguments(const Case& c, const AttentionSpec& spec, std::optional<Case>& first) {
  Arguments arguments = c.host_arguments();
  if (!spec.accumulate) return arguments;
  first = c;
  const Arguments earlier = first->host_arguments();
  arguments.params[reference::earlier("o")] = earlier.o;
  arguments.params[reference::earlier("lse")] = earlier.lse;
  for (const char* name : {"dq", "dk", "dv"}) {
    if (const auto found = earlier.params.find(name); found != earlier.params.end())
      arguments.params[reference::earlier(name)] = found->second;
  }
  return arguments;
}

// Returns the bytes of tensors that a call both reads and writes.
std::map<const CaseTensor*, std::vector<std::uint8_t>> images_of_updated(Case& c) {
  std::map<const CaseTensor*, std::vector<std::uint8_t>> images;
  c.each([&](const std::string&, CaseTensor& tensor) {
    if (tensor.updated) images[&tensor] = tensor.image;
  });
  return images;
}

// Nothing that the sequences share, or that says which of a batch a sequence is.
bool can_be_alone(const AttentionSpec& spec) {
  const bool share_scales = narrows(spec) && is_packed(spec) && spec.scale_block == 0;
  const bool is_one = selects(spec) && spec.layout == Layout::Packed;
  return is_forward(spec) && !is_one && !spec.append && !spec.shared_prefix && !share_scales && !drops(spec) &&
         spec.params.empty() && !(written_mask(spec) && uses(written_mask(spec), Variable::B)) &&
         !(spec.score && uses(spec.score, Variable::B));
}

}  // namespace

Result<std::unique_ptr<Runner>> Runner::create(const Options& options) {
  auto runner = std::make_unique<Runner>();
  runner->options_ = options;
  FLASHJIT_ASSIGN(engine, Engine::create({.device = options.device,
                                          .target = options.target,
                                          .disk_cache = options.device == Device::Gpu,
                                          .threads = options.threads}));
  runner->engine_ = engine;
  if (options.device == Device::Gpu) {
    FLASHJIT_ASSIGN(driver, Driver::open());
    FLASHJIT_ASSIGN(context, GpuContext::open(driver, 0));
    runner->gpu_ = context;
  }
  return runner;
}

Result<void> Runner::launch_on_host(Case& c, const AttentionSpec& spec, Kernel& kernel, Calls calls) const {
  std::map<const CaseTensor*, std::unique_ptr<FencedMemory>> memory;
  c.each(
      [&](const std::string&, CaseTensor& tensor) { memory[&tensor] = std::make_unique<FencedMemory>(tensor.image); });
  const Arguments whole = c.arguments([&](const CaseTensor& tensor) { return memory.at(&tensor)->data(); });
  for (const Arguments& call : calls(spec, whole)) FLASHJIT_TRY(kernel.run(call));
  c.each([&](const std::string&, CaseTensor& tensor) {
    if (tensor.output || tensor.updated)
      std::memcpy(tensor.image.data(), memory.at(&tensor)->data(), tensor.image.size());
  });
  return {};
}

Result<void> Runner::launch_on_gpu(Case& c, const AttentionSpec& spec, Kernel& kernel, Calls calls) const {
  const CurrentContext current(gpu_);
  FLASHJIT_TRY(current.status());
  std::map<const CaseTensor*, FencedDeviceMemory> memory;
  const auto place = [&](const CaseTensor& tensor) { return memory.at(&tensor).last(tensor.image.size()); };
  Result<void> status;
  c.each([&](const std::string&, CaseTensor& tensor) {
    if (!status) return;
    auto fenced = memory_.take(gpu_, tensor.image.size());
    if (!fenced) {
      status = fenced.error();
      return;
    }
    const FencedDeviceMemory& placed = memory.emplace(&tensor, std::move(*fenced)).first->second;
    if (!tensor.image.empty()) status = placed.upload(place(tensor), tensor.image.data(), tensor.image.size());
  });
  FLASHJIT_TRY(status);
  FLASHJIT_ASSIGN(stream, Stream::create(gpu_));
  Arguments arguments = c.arguments(place);
  const auto workspace = give_workspace(gpu_, kernel, arguments);
  FLASHJIT_TRY(workspace);
  for (Arguments& call : calls(spec, arguments)) {
    call.workspace = arguments.workspace;
    call.workspace_bytes = arguments.workspace_bytes;
    FLASHJIT_TRY(kernel.run(call, stream.get()));
  }
  FLASHJIT_TRY(stream.synchronize());
  c.each([&](const std::string&, CaseTensor& tensor) {
    const bool written = tensor.output || tensor.updated;
    if (status && written && !tensor.image.empty())
      status = memory.at(&tensor).download(tensor.image.data(), place(tensor), tensor.image.size());
  });
  for (auto& [tensor, placed] : memory) memory_.give_back(std::move(placed));
  return status;
}

Result<void> Runner::launch(Case& c, const AttentionSpec& spec, Kernel& kernel, Calls calls) const {
  return options_.device == Device::Host ? launch_on_host(c, spec, kernel, calls)
                                         : launch_on_gpu(c, spec, kernel, calls);
}

Outcome Runner::run(Case& c) const {
  Outcome outcome;
  const auto fail = [&](std::string problem) {
    outcome.problem = std::move(problem);
    return outcome;
  };
  const auto has = [&](const char* word) { return c.spec.find(word) != std::string::npos; };
  const bool share_scales = has(" compute=") && has("packed") && !has(" scales=");
  if (options_.alone && !has(" numerics=") && !has(" shared_prefix") && !share_scales)
    c.spec += " numerics=batch_invariant";
  auto spec = parse_spec(c.spec);
  if (!spec) return fail("parse: " + text_of(spec.error()));
  if (std::string problem = check_text_form(*spec); !problem.empty()) return fail(problem);
  std::optional<Case> first;
  const Arguments arguments = reference_arguments(c, *spec, first);
  reference::Semantics semantics = c.independent ? c.semantics : reference::semantics_of(*spec, arguments);
  semantics.unseen_from = c.semantics.unseen_from;
  auto problem = reference::Problem::create(*spec, arguments, std::move(semantics));
  if (!problem) return fail(text_of(problem.error()));
  if (std::string wrong = check_semantics(*spec, c, *problem); !wrong.empty()) return fail(wrong);

  auto kernel = prepare(c, outcome);
  if (!kernel) return fail("prepare: " + text_of(kernel.error()));
  outcome.schedule = (*kernel)->facts().schedule;
  Images before = images_of_updated(c);
  if (auto status = launch(c, *spec, **kernel, one_call); !status) return fail("run: " + text_of(status.error()));

  problem->round_weights_to((*kernel)->facts().weights);
  outcome.comparison = reference::compare(*problem, {.work = options_.work, .seed = c.seed});
  if (!outcome.comparison.ok) return fail(outcome.comparison.problem);
  if (!outcome.comparison.unchecked.empty())
    return fail(outcome.comparison.unchecked + " would take too long to check");
  std::string damage;
  c.each([&](const std::string& name, CaseTensor& tensor) {
    if (tensor.image.size() > std::size_t{1} << 28) return;  // looking at every byte of gigabytes would take minutes
    if (const std::int64_t at = first_damaged_byte(tensor); at >= 0) {
      damage = fmt::format("{}: byte {} was written and belongs to no element (the first element is at {})", name, at,
                           tensor.begin);
    }
    if (!tensor.updated) return;
    if (const std::int64_t at = first_changed_byte(tensor, before[&tensor]); at >= 0) {
      damage = fmt::format("{}: byte {} was changed and belongs to no new row (the first element is at {})", name, at,
                           tensor.begin);
    }
  });
  if (!damage.empty()) return fail(damage);

  if (c.side_by_side && options_.device == Device::Gpu) {
    if (std::string wrong = run_side_by_side(gpu_, c, **kernel); !wrong.empty()) return fail(wrong);
  }
  // Sums of gradients may be in any order.
  const bool same_bits = !is_backward(*spec) || spec->numerics != Numerics::Fast;
  if (same_bits && (c.seed % 4 == 0 || options_.alone)) {
    if (std::string wrong = check_second_run(c, *spec, **kernel, before); !wrong.empty()) return fail(wrong);
  }
  outcome.ok = true;
  return outcome;
}

// With the pins of the case, of the command line, or drawn ones. A kernel may turn out bad, and the engine then refuses
// pins that leave no other: unless they are the command line's that is as it should be, and the case is run as the cost
// model likes it.
Result<std::shared_ptr<Kernel>> Runner::prepare(const Case& c, Outcome& outcome) const {
  std::string pins = c.schedule.empty() ? options_.schedule : c.schedule;
  if (pins.empty() && c.any_schedule && options_.device == Device::Gpu)
    pins = draw_schedule(c.seed, c.spec, engine_->target());
  // Those of the command line are for the specs that can have them where nothing but bits is asked for.
  if (options_.alone && !pins.empty() && !can_pin(c.spec, engine_->target(), pins)) pins.clear();
  auto kernel = engine_->prepare(c.spec, {.schedule = pins});
  const bool must = pins == options_.schedule && !options_.alone;
  if (kernel || pins.empty() || must || kernel.error().kind != ErrorKind::Unsupported) return kernel;
  outcome.refused = fmt::format("{}: {}", pins, kernel.error().message);
  return engine_->prepare(c.spec);
}

// The same bits again.
std::string Runner::check_second_run(Case& c, const AttentionSpec& spec, Kernel& kernel, const Images& before) const {
  const bool alone = options_.alone && can_be_alone(spec);
  std::map<const CaseTensor*, std::vector<std::uint8_t>> first;
  c.each([&](const std::string&, CaseTensor& tensor) {
    if (!tensor.output && !tensor.updated) return;
    first[&tensor] = tensor.image;
    if (tensor.output) std::fill(tensor.image.begin(), tensor.image.end(), 0xff);
    else tensor.image = before.at(&tensor);
  });
  if (auto status = launch(c, spec, kernel, alone ? calls_alone : one_call); !status)
    return "second run: " + text_of(status.error());
  for (const auto& [tensor, image] : first) {
    if (tensor->image != image) return alone ? "each sequence alone gave other bits" : "a second run gave other bits";
  }
  return "";
}

}  // namespace flashjit::testing_random
