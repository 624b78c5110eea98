#include "tests/host/host_case.h"

#include <gtest/gtest.h>

#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <random>
#include <thread>

namespace flashjit {
namespace {

std::uint32_t bits_of(float value, Dtype dtype) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, 4);
  if (dtype == Dtype::F32) return bits;
  if (dtype == Dtype::F16) {
    const auto half = static_cast<_Float16>(value);
    std::uint16_t raw;
    std::memcpy(&raw, &half, 2);
    return raw;
  }
  if (std::isnan(value)) return 0x7fc0;
  return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

Owned tensor_of(std::vector<std::int64_t> shape, Dtype dtype, const std::function<double(std::int64_t)>& value) {
  std::int64_t count = 1;
  for (const std::int64_t extent : shape) count *= extent;
  Owned owned;
  const auto size = static_cast<std::size_t>(size_of(dtype));
  owned.bytes.assign(static_cast<std::size_t>(count) * size + 1, 0);
  for (std::int64_t i = 0; i < count; ++i) {
    const double number = value(i);
    const auto integer = static_cast<std::int64_t>(is_float(dtype) ? 0 : number);
    const std::uint32_t real = is_float(dtype) ? bits_of(static_cast<float>(number), dtype) : 0;
    std::memcpy(&owned.bytes[static_cast<std::size_t>(i) * size],
                is_float(dtype) ? static_cast<const void*>(&real) : &integer, size);
  }
  owned.tensor = {owned.bytes.data(), std::string(name(dtype)), std::move(shape), {}};
  return owned;
}

Strides strides_of(const Layout layout, const Tensor& tensor) {
  const auto& s = tensor.shape;
  if (layout == Layout::Packed) return {0, s[2], s[1] * s[2]};
  if (layout == Layout::Bhsd) return {s[1] * s[2] * s[3], s[2] * s[3], s[3]};
  return {s[1] * s[2] * s[3], s[3], s[2] * s[3]};
}

}  // namespace

ParallelFor threads(int count) {
  return {count, [count](std::int64_t items, const std::function<void(std::int64_t, int)>& body) {
            std::atomic<std::int64_t> next{0};
            std::vector<std::thread> pool;
            for (int worker = 0; worker < count; ++worker) {
              pool.emplace_back([&, worker] {
                for (std::int64_t item; (item = next++) < items;) body(item, worker);
              });
            }
            for (std::thread& thread : pool) thread.join();
          }};
}

HostBackend* backend() {
  static HostBackend* const found = []() -> HostBackend* {
    void* library = dlopen(FLASHJIT_BINARY_DIR "/lib/libflashjit_host.so", RTLD_NOW | RTLD_LOCAL);
    if (!library) return nullptr;
    return reinterpret_cast<HostBackend* (*)()>(dlsym(library, kHostBackendSymbol))();
  }();
  return found;
}

std::vector<const Target*> runnable_targets() {
  std::vector<const Target*> found;
  if (!backend()) return found;
  const std::string best = *backend()->best_target();
  for (const Target& target : targets()) {
    if (target.gpu) continue;
    found.push_back(&target);
    if (target.name == best) break;
  }
  return found;
}

HostCase::HostCase(const Row& row, Dtype dtype, const Target& target, bool naive, const Poison& poison) {
  std::string text = row.spec;
  text.replace(text.find("{}"), 2, name(dtype));
  Result<AttentionSpec> spec = parse_spec(text);
  if (!spec) {
    fail("spec", spec.error());
    return;
  }
  spec_ = *spec;
  const Result<Schedule> pins = parse_schedule(row.pins);
  if (!pins) {
    fail("schedule", pins.error());
    return;
  }
  const Result<Plan> plan = make_plan(spec_, target, *pins);
  if (!plan) {
    fail("plan", plan.error());
    return;
  }
  const Result<std::vector<std::uint8_t>> object = backend()->compile(*plan, naive);
  if (!object) {
    fail("compile", object.error());
    return;
  }
  Result<std::unique_ptr<HostKernel>> kernel = backend()->link(*plan, naive, *object);
  if (!kernel) {
    fail("link", kernel.error());
    return;
  }
  kernel_ = std::move(*kernel);
  make_tensors(row, poison);
  make_params(row, *plan);
}

void HostCase::run(int workers) {
  const Result<void> done = kernel_->run(params_, threads(workers));
  ASSERT_TRUE(done) << done.error().message;
}

std::vector<std::uint8_t> HostCase::output_bytes() const {
  std::vector<std::uint8_t> all = o_.bytes;
  all.insert(all.end(), lse_.bytes.begin(), lse_.bytes.end());
  all.insert(all.end(), max_logit_.bytes.begin(), max_logit_.bytes.end());
  return all;
}

void HostCase::fail(const char* where, const Error& error) {
  problem_ = std::string(where) + ": " + error.message + "\n" + error.detail;
}

std::vector<std::int64_t> HostCase::shape(std::int64_t batch, std::int64_t tokens, std::int64_t heads,
                                          std::int64_t d) const {
  if (spec_.layout == Layout::Packed) return {tokens, heads, d};
  if (spec_.layout == Layout::Bhsd) return {batch, heads, tokens, d};
  return {batch, tokens, heads, d};
}

void HostCase::make_tensors(const Row& row, const Poison& poison) {
  std::mt19937_64 random(20240607);
  std::normal_distribution<double> normal;
  const bool packed = spec_.layout == Layout::Packed;
  std::int64_t q = row.q, k = row.k;
  if (packed) {
    q = k = 0;
    for (const int length : row.q_lengths) q += length;
    for (const int length : row.k_lengths) k += length;
  }
  auto draw = [&](char which) {
    return [&, which](std::int64_t i) {
      const double value = normal(random);
      return poison ? poison(which, i, value) : value;
    };
  };
  q_ = tensor_of(shape(row.batch, q, spec_.heads_q, spec_.d_qk), spec_.dtype, draw('q'));
  const auto key_shape = [&](std::int64_t d) {
    if (!is_paged(spec_)) return shape(row.batch, k, spec_.heads_kv, d);
    return std::vector<std::int64_t>{row.batch * pages(row) + 1, spec_.page_size, spec_.heads_kv, d};
  };
  k_ = tensor_of(key_shape(spec_.d_qk), spec_.dtype, draw('k'));
  if (!spec_.v_in_k) v_ = tensor_of(key_shape(spec_.d_v), spec_.dtype, draw('v'));
  auto nan = [](std::int64_t) { return std::nan(""); };
  o_ = tensor_of(shape(row.batch, q, spec_.heads_q, spec_.d_v), spec_.out_dtype, nan);
  const std::vector<std::int64_t> row_shape =
      packed ? std::vector<std::int64_t>{spec_.heads_q, q} : std::vector<std::int64_t>{row.batch, spec_.heads_q, q};
  lse_ = tensor_of(row_shape, Dtype::F32, nan);
  max_logit_ = tensor_of(row_shape, Dtype::F32, nan);
  sink_ = tensor_of({spec_.heads_q}, Dtype::F32, [](std::int64_t i) { return 0.5 * static_cast<double>(i) - 1; });
  arguments_.q = q_.tensor;
  arguments_.k = k_.tensor;
  if (!spec_.v_in_k) arguments_.v = v_.tensor;
  arguments_.o = o_.tensor;
  if (spec_.lse != Lse::none) arguments_.lse = lse_.tensor;
  if (spec_.max_logit) arguments_.max_logit = max_logit_.tensor;
  if (spec_.sink) arguments_.sink = sink_.tensor;
  auto offsets = [](const std::vector<int>& lengths) {
    std::vector<int> sums{0};
    for (const int length : lengths) sums.push_back(sums.back() + length);
    return tensor_of({static_cast<std::int64_t>(sums.size())}, Dtype::I32,
                     [&](std::int64_t i) { return sums[static_cast<std::size_t>(i)]; });
  };
  if (packed) {
    offsets_q_ = offsets(row.q_lengths);
    arguments_.offsets_q = offsets_q_.tensor;
    if (has_packed_keys(spec_)) {
      offsets_k_ = offsets(row.k_lengths);
      arguments_.offsets_k = offsets_k_.tensor;
    }
    arguments_.max_q_len = row.q;
    arguments_.max_k_len = row.k;
  }
}

std::int64_t HostCase::pages(const Row& row) const { return (row.k + spec_.page_size - 1) / spec_.page_size; }

// Pages from the last to the first, of which the last is no sequence's.
void HostCase::make_cache(const Row& row) {
  if (!spec_.k_lens) return;
  k_lens_ = tensor_of({row.batch}, Dtype::I32, [&](std::int64_t b) { return row.k_lens[static_cast<std::size_t>(b)]; });
  arguments_.params["k_lens"] = k_lens_.tensor;
  params_.k_lens = reinterpret_cast<const int*>(k_lens_.bytes.data());
  if (!is_paged(spec_)) return;
  const std::int64_t all = row.batch * pages(row);
  block_table_ = tensor_of({row.batch, pages(row)}, Dtype::I32, [&](std::int64_t i) { return all - 1 - i; });
  arguments_.params["block_table"] = block_table_.tensor;
  params_.block_table = reinterpret_cast<const int*>(block_table_.bytes.data());
  params_.table_stride_batch = pages(row);
  params_.table_stride_page = 1;
  params_.pages = static_cast<int>(all + 1);
  params_.k_len = static_cast<int>(pages(row) * spec_.page_size);
  params_.k_stride = strides_of(Layout::Bshd, k_.tensor);
  params_.v_stride = strides_of(Layout::Bshd, values().tensor);
}

void HostCase::make_params(const Row& row, const Plan& plan) {
  params_.q = q_.bytes.data();
  params_.k = k_.bytes.data();
  params_.v = values().bytes.data();
  params_.o = o_.bytes.data();
  if (spec_.lse != Lse::none) params_.lse = reinterpret_cast<float*>(lse_.bytes.data());
  if (spec_.max_logit) params_.max_logit = reinterpret_cast<float*>(max_logit_.bytes.data());
  if (spec_.sink) params_.sink = reinterpret_cast<const float*>(sink_.bytes.data());
  if (spec_.layout == Layout::Packed) {
    params_.offsets_q = reinterpret_cast<const int*>(offsets_q_.bytes.data());
    if (has_packed_keys(spec_)) params_.offsets_k = reinterpret_cast<const int*>(offsets_k_.bytes.data());
  }
  params_.q_stride = strides_of(spec_.layout, q_.tensor);
  params_.k_stride = strides_of(spec_.layout, k_.tensor);
  params_.v_stride = strides_of(spec_.layout, values().tensor);
  params_.o_stride = strides_of(spec_.layout, o_.tensor);
  params_.row_stride_head = lse_.tensor.shape.back();
  params_.row_stride_batch = params_.row_stride_head * spec_.heads_q;
  params_.batch = static_cast<int>(row.batch);
  params_.q_len = static_cast<int>(row.q);
  params_.k_len = static_cast<int>(row.k);
  params_.tiles_q = static_cast<int>((row.q + *plan.schedule.tile_q - 1) / *plan.schedule.tile_q);
  make_cache(row);
  if (drops(spec_)) {
    constexpr Int64 kSeed = 20261124, kOffset = -3;
    params_.seed = kSeed, params_.offset = kOffset;
    arguments_.scalars = {{"seed", kSeed}, {"offset", kOffset}};
  }
  data_.reserve(row.data.size());
  for (const Row::Data& data : row.data) {
    data_.push_back(tensor_of(data.shape, data.dtype, data.value));
    Owned& owned = data_.back();
    const auto place = std::find_if(spec_.params.begin(), spec_.params.end(),
                                    [&](const Param& param) { return param.name == data.name; });
    ExtraParam& extra = params_.extra[place - spec_.params.begin()];
    extra.data = owned.bytes.data();
    Int64 stride = 1;
    for (int d = place->rank - 1; d >= 0; --d) {
      extra.stride[d] = stride;
      stride *= data.shape[static_cast<std::size_t>(d)];
    }
    arguments_.params[data.name] = owned.tensor;
  }
}

}  // namespace flashjit
