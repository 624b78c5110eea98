#include "autotune/measure/random_data.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>
#include <thread>
#include <vector>

#include "compiler/spec/half.h"
#include "runtime/launch/library_thread.h"
#include "runtime/launch/thread_pool.h"

namespace flashjit {
namespace {

// Every chunk of elements has a generator of its own, whichever thread fills it.
constexpr std::int64_t kChunk = 1 << 16;
constexpr int kDocuments = 4;

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t bits() {  // The generator is splitmix64.
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  // Makes two independent normal values (Box-Muller).
  void normal(float& a, float& b) {
    const std::uint64_t both = bits();
    const double u = (static_cast<double>(both >> 32) + 1) * 0x1p-32;
    const double angle = 2 * std::numbers::pi * static_cast<double>(both & 0xffffffffu) * 0x1p-32;
    const double radius = std::sqrt(-2 * std::log(u));
    a = static_cast<float>(radius * std::cos(angle));
    b = static_cast<float>(radius * std::sin(angle));
  }

 private:
  std::uint64_t state_;
};

std::uint64_t hash(std::string_view text, std::uint64_t seed) {
  std::uint64_t h = 0xcbf29ce484222325u ^ seed * 0x9e3779b97f4a7c15u;
  for (const char c : text) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return h;
}

// Returns one word of the bit set of a node and all its ancestors.
std::uint64_t ancestors(std::int64_t node, std::int64_t word) {
  std::uint64_t set = 0;
  for (;; node = (node - 1) / 2) {
    if (node / 64 == word) set |= std::uint64_t{1} << node % 64;
    if (node == 0) return set;
  }
}

std::int64_t extent(const NamedTensor& tensor, std::size_t from_last) {
  return tensor.shape.size() <= from_last
             ? 1
             : std::max<std::int64_t>(tensor.shape[tensor.shape.size() - 1 - from_last], 1);
}

void fill_slopes(NamedTensor& tensor, std::int64_t begin, std::int64_t end) {
  const std::int64_t heads = extent(tensor, 0);
  for (std::int64_t i = begin; i < end; ++i) {
    const double slope = std::exp2(-8.0 * static_cast<double>(i % heads + 1) / static_cast<double>(heads));
    store_float(tensor.dtype, tensor.bytes.data(), i, static_cast<float>(slope));
  }
}

void fill_normal(NamedTensor& tensor, std::int64_t begin, std::int64_t end, Random& random) {
  for (std::int64_t i = begin; i < end; i += 2) {
    float a = 0, b = 0;
    random.normal(a, b);
    store_float(tensor.dtype, tensor.bytes.data(), i, a);
    if (i + 1 < end) store_float(tensor.dtype, tensor.bytes.data(), i + 1, b);
  }
}

void fill_ints(NamedTensor& tensor, std::int64_t begin, std::int64_t end, Random& random) {
  const bool ids = tensor.dtype == Dtype::I32 || tensor.dtype == Dtype::I64;
  const std::int64_t row = extent(tensor, 0), rows = extent(tensor, 1);
  const int size = size_of(tensor.dtype);
  for (std::int64_t i = begin; i < end; ++i) {
    const std::uint64_t value = tensor.contents == Contents::Tree ? ancestors(i / row % rows, i % row)
                                : ids ? static_cast<std::uint64_t>(i % row * kDocuments / row)
                                      : random.bits();
    std::memcpy(tensor.bytes.data() + i * size, &value, static_cast<std::size_t>(size));  // The host is little-endian.
  }
}

void fill_chunk(NamedTensor& tensor, std::int64_t begin, std::int64_t end, std::uint64_t seed) {
  Random random(seed + 0x632be59bd9b4e019u * static_cast<std::uint64_t>(begin / kChunk + 1));
  if (tensor.contents == Contents::Slopes) {
    fill_slopes(tensor, begin, end);
  } else if (is_float(tensor.dtype)) {
    fill_normal(tensor, begin, end, random);
  } else {
    fill_ints(tensor, begin, end, random);
  }
}

}  // namespace

IntInterval range_of_random(Dtype dtype, Contents contents) {
  const bool ids = contents != Contents::Tree && (dtype == Dtype::I32 || dtype == Dtype::I64);
  return ids ? IntInterval{0, kDocuments - 1} : range_of(dtype);
}

void fill_random(NamedTensor& tensor, std::uint64_t seed) {
  const std::uint64_t own_seed = hash(tensor.name, seed);
  const std::int64_t elements = static_cast<std::int64_t>(tensor.bytes.size()) / size_of(tensor.dtype);
  const std::int64_t chunks = (elements + kChunk - 1) / kChunk;
  const int threads = static_cast<int>(std::clamp<std::int64_t>(usable_cores(), 1, std::max<std::int64_t>(chunks, 1)));
  std::vector<std::jthread> workers;
  for (int t = 0; t < threads; ++t) {
    workers.push_back(library_thread([&, t] {
      for (std::int64_t c = t; c < chunks; c += threads) {
        fill_chunk(tensor, c * kChunk, std::min(elements, (c + 1) * kChunk), own_seed);
      }
    }));
  }
}

}  // namespace flashjit
