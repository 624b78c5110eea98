#include "autotune/measure/check_outputs.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <limits>
#include <optional>
#include <span>
#include <thread>

#include <fmt/format.h>

#include "runtime/launch/thread_pool.h"
#include "compiler/spec/half.h"
#include "runtime/launch/library_thread.h"

namespace flashjit {
namespace {

// These limits count units of the type's rounding: either side rounds P and O, and the errors of an element seldom add
// up.
constexpr double kRmsUnits = 4, kLargestUnits = 32;
// This is the unit for fp32 outputs, because exp and the sums over keys cost more bits than the output's rounding.
constexpr double kLeastUnit = 0x1p-16;

// Two kernels round scores in their own ways, so either of two keys with nearly the same score may be the last of a
// list. The lists of a wrong kernel have far less in common with those of a right one.
constexpr double kLeastCommon = 0.9;

struct Sums {
  double square = 0, square_of_difference = 0, largest = 0, largest_difference = 0;
  std::int64_t unlike = -1;  // an element that is NaN or infinite on one side only
  std::int64_t worst = -1;
};

// Makes a table of all values of a type of 8 or 16 bits, because fifty million conversions take a while.
std::vector<float> values_of(Dtype dtype) {
  if (size_of(dtype) > 2) return {};
  std::vector<float> values(std::size_t{1} << 8 * size_of(dtype));
  for (std::uint32_t bits = 0; bits < values.size(); ++bits) values[bits] = load_float(dtype, &bits, 0);
  return values;  // The host is little-endian.
}

Sums compare_range(const NamedTensor& a, const NamedTensor& b, const std::vector<float>& values, std::int64_t begin,
                   std::int64_t end) {
  Sums sums;
  const auto at = [&](const NamedTensor& t, std::int64_t i) {
    if (values.empty()) return reinterpret_cast<const float*>(t.bytes.data())[i];
    if (size_of(t.dtype) == 1) return values[t.bytes[static_cast<std::size_t>(i)]];
    return values[reinterpret_cast<const std::uint16_t*>(t.bytes.data())[i]];
  };
  for (std::int64_t i = begin; i < end; ++i) {
    const float x = at(a, i), y = at(b, i);
    if (!std::isfinite(x) || !std::isfinite(y)) {
      if (!(x == y || (std::isnan(x) && std::isnan(y)))) sums.unlike = i;
      continue;
    }
    const double difference = std::abs(static_cast<double>(x) - y);
    sums.square += static_cast<double>(x) * x;
    sums.square_of_difference += difference * difference;
    sums.largest = std::max(sums.largest, std::abs(static_cast<double>(x)));
    if (difference > sums.largest_difference) sums.largest_difference = difference, sums.worst = i;
  }
  return sums;
}

Sums compare_all(const NamedTensor& a, const NamedTensor& b) {
  const std::vector<float> values = values_of(a.dtype);
  const auto elements = static_cast<std::int64_t>(a.bytes.size()) / size_of(a.dtype);
  const auto threads = static_cast<std::size_t>(std::clamp<std::int64_t>(elements >> 16, 1, usable_cores()));
  std::vector<Sums> sums(threads);
  {
    std::vector<std::jthread> workers;
    for (std::size_t t = 0; t < threads; ++t) {
      const auto cut = [&](std::size_t i) {
        return elements * static_cast<std::int64_t>(i) / static_cast<std::int64_t>(threads);
      };
      workers.push_back(library_thread(
          [&, t, begin = cut(t), end = cut(t + 1)] { sums[t] = compare_range(a, b, values, begin, end); }));
    }
  }
  Sums all;
  for (const Sums& own : sums) {
    all.square += own.square;
    all.square_of_difference += own.square_of_difference;
    all.largest = std::max(all.largest, own.largest);
    if (own.unlike >= 0) all.unlike = own.unlike;
    if (own.largest_difference > all.largest_difference)
      all.largest_difference = own.largest_difference, all.worst = own.worst;
  }
  return all;
}

// Returns the numbers of keys in a list, or nothing if they are not in order or are not followed by -1.
std::optional<std::span<const std::int32_t>> keys_of_list(std::span<const std::int32_t> list) {
  const auto end = std::ranges::find(list, -1);
  const bool in_order = std::ranges::is_sorted(list.begin(), end, std::ranges::less_equal());
  if (!in_order || !std::all_of(end, list.end(), [](std::int32_t key) { return key == -1; })) return {};
  return std::span(list.begin(), end);
}

// An index has such outputs: its lists, or how many keys each has.
std::string compare_ints(const NamedTensor& a, const NamedTensor& b) {
  const auto ints = [](const NamedTensor& t) {
    return std::span(reinterpret_cast<const std::int32_t*>(t.bytes.data()), t.bytes.size() / sizeof(std::int32_t));
  };
  const std::span<const std::int32_t> x = ints(a), y = ints(b);
  if (a.name != "key_index") {
    const auto [at_x, at_y] = std::ranges::mismatch(x, y);
    if (at_x == x.end()) return {};
    return fmt::format("{}: element {} is {}, and {} by the default kernel", a.name, at_x - x.begin(), *at_y, *at_x);
  }
  const auto room = static_cast<std::size_t>(a.shape.back());
  std::size_t all = 0;
  std::int64_t common = 0;
  std::vector<std::int32_t> both;
  for (std::size_t first = 0; first < x.size(); first += room) {
    const auto own = keys_of_list(x.subspan(first, room)), others = keys_of_list(y.subspan(first, room));
    if (!own || !others)
      return fmt::format("{}: list {} has keys that are not in order, with -1 behind them", a.name, first / room);
    if (own->size() != others->size())
      return fmt::format("{}: list {} has {} keys, and {} by the default kernel", a.name, first / room, others->size(),
                         own->size());
    both.clear();
    std::ranges::set_intersection(*own, *others, std::back_inserter(both));
    all += own->size(), common += std::ssize(both);
  }
  if (static_cast<double>(common) >= kLeastCommon * static_cast<double>(all)) return {};
  return fmt::format("{}: lists have {} of {} keys in common with those of the default kernel", a.name, common, all);
}

}  // namespace

std::vector<NamedTensor> outputs_of(ProblemData& data) {
  std::vector<NamedTensor> outputs;
  for (const NamedTensor& tensor : data.tensors()) {
    if (tensor.role == NamedTensor::Role::Output) outputs.push_back(tensor);
  }
  return outputs;
}

double unit_of_weights(const Facts& facts) {
  const auto dtype = parse_dtype(facts.weights);
  return dtype && size_of(*dtype) == 1 ? unit_roundoff(*dtype) : 0;
}

std::string compare_outputs(const std::vector<NamedTensor>& expected, ProblemData& got, double unit_of_weights) {
  for (const NamedTensor& a : expected) {
    if (a.dtype == Dtype::I32) {
      if (std::string unlike = compare_ints(a, *got.find(a.name)); !unlike.empty()) return unlike;
      continue;
    }
    const Sums sums = compare_all(a, *got.find(a.name));
    if (sums.unlike >= 0)
      return fmt::format("{}: element {} is NaN or infinite in one of the two kernels", a.name, sums.unlike);
    const double unit = std::max({unit_roundoff(a.dtype), kLeastUnit, unit_of_weights});
    if (std::sqrt(sums.square_of_difference) > kRmsUnits * unit * std::sqrt(sums.square) ||
        sums.largest_difference > kLargestUnits * unit * std::max(sums.largest, std::numeric_limits<double>::min())) {
      return fmt::format(
          "{}: differs from the default kernel by {:.2g} in the norm and {:.2g} at element {}, far beyond rounding",
          a.name, std::sqrt(sums.square_of_difference / std::max(sums.square, 1e-300)), sums.largest_difference,
          sums.worst);
    }
  }
  return {};
}

}  // namespace flashjit
