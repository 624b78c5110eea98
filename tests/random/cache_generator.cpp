#include "tests/random/cache_generator.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include "fmt/format.h"
#include "fmt/ranges.h"

namespace flashjit::testing_random {

std::optional<Latent> draw_latent(std::uint64_t seed) {
  Random random(seed ^ 0x1a7e47);
  if (!random.chance(0.12)) return {};
  if (random.chance(0.6)) {
    Latent latent{576, 512, random.pick({16, 16, 5, 32, 64, 128}), random.integer(1, 4)};
    if (random.chance(0.25)) latent.d_qk = latent.d_v;
    else if (random.chance(0.2)) latent.d_qk = 320, latent.d_v = 256;
    return latent;
  }
  const auto eighth = random.integer(1, 40);
  return Latent{static_cast<int>(8 * eighth), static_cast<int>(8 * random.integer(1, eighth))};
}

void CacheGenerator::draw(std::vector<std::int64_t>& rooms, bool may_be_paged, std::int64_t block) {
  if (rooms.empty() || !random_.chance(0.4)) return;
  rooms_ = rooms;
  if (may_be_paged && random_.chance(0.6)) {
    page_size = block > 0             ? block * random_.pick({1, 1, 2, 3})
                : random_.chance(0.7) ? random_.pick({8, 16, 32, 64, 128, 256})
                                      : random_.pick({1, 2, 3, 7, 24, 40, 100});
    make_room_in_pages(random_.integer(0, 2));
  }
  for (const std::int64_t room : rooms_) {
    lens.push_back(random_.chance(0.4) ? random_.integer(0, room)
                                       : random_.pick({std::int64_t{0}, std::int64_t{1}, page_size - 1, page_size,
                                                       page_size + 1, room - 1, room, room + 1, std::int64_t{-1}}));
  }
  // Keys without any page are refused.
  if (page_size > 0 && width_ == 0)
    for (std::int64_t& length : lens) length = std::min<std::int64_t>(length, 0);
  if (page_size > 0) draw_table(random_.chance(0.5));
  rooms = rooms_;
}

void CacheGenerator::take(std::vector<std::int64_t>& rooms, const AttentionSpec& spec) {
  rooms_ = lens = rooms;
  page_size = spec.page_size;
  if (page_size > 0) {
    make_room_in_pages(0);
    draw_table(false);
  } else if (spec.layout == Layout::Packed) {
    for (std::int64_t& length : lens) length = length * 2 / 3;
  } else if (!rooms.empty()) {
    rooms_.assign(rooms.size(), *std::ranges::max_element(rooms));
  }
  rooms = rooms_;
}

void CacheGenerator::own_ends(const std::vector<std::int64_t>& fresh) {
  if (page_size == 0) return;
  for (std::size_t b = 0; b < lens.size(); ++b) {
    const std::int64_t keys = keys_of(static_cast<std::int64_t>(b));
    const std::int64_t first = std::max<std::int64_t>(keys - fresh[b], 0) / page_size;
    for (std::int64_t i = first; i * page_size < keys; ++i)
      table_[b * static_cast<std::size_t>(width_) + static_cast<std::size_t>(i)] = pages++;
  }
  pages = std::max<std::int64_t>(pages, 1);  // a pool without any has no room for new tokens, and they would be refused
}

// Each sequence has room for as many keys as the longest, in whole pages.
void CacheGenerator::make_room_in_pages(std::int64_t more) {
  if (rooms_.empty()) return;
  width_ = (*std::ranges::max_element(rooms_) + page_size - 1) / page_size + more;
  rooms_.assign(rooms_.size(), width_ * page_size);
}

std::int64_t CacheGenerator::keys_of(std::int64_t b) const {
  const auto i = static_cast<std::size_t>(b);
  return std::clamp<std::int64_t>(lens[i], 0, rooms_[i]);
}

std::string CacheGenerator::text() const {
  if (lens.empty()) return {};
  const std::string in_pages = page_size > 0 ? fmt::format(" in {} pages", pages) : "";
  return fmt::format(" k_lens={{{}}}{}", fmt::join(lens, ","), in_pages);
}

// `shared`: any page anywhere. Where there are no keys there are no pages.
void CacheGenerator::draw_table(bool shared) {
  const auto batch = static_cast<std::int64_t>(lens.size());
  for (std::int64_t b = 0; b < batch; ++b) pages += (keys_of(b) + page_size - 1) / page_size;
  pages += random_.integer(0, 3);
  std::vector<std::int64_t> order;
  for (std::int64_t i = 0; i < pages; ++i) {
    order.push_back(i);
    std::swap(order.back(), order[static_cast<std::size_t>(random_.integer(0, i))]);
  }
  auto next = order.begin();
  for (std::int64_t b = 0; b < batch; ++b) {
    for (std::int64_t i = 0; i < width_; ++i) {
      const bool needed = i * page_size < keys_of(b);
      table_.push_back(!needed  ? random_.pick<std::int64_t>({-1, 1 << 30, -(1 << 30), pages})
                       : shared ? random_.integer(0, pages - 1)
                                : *next++);
    }
  }
}

std::int64_t CacheGenerator::row_of(const CaseTensor& pool, std::int64_t b, std::int64_t at, std::int64_t head) const {
  const std::int64_t page = table_[static_cast<std::size_t>(b * width_ + at / page_size)];
  return page * pool.strides[0] + at % page_size * pool.strides[1] + head * pool.strides[2];
}

void CacheGenerator::each_unused_row(const CaseTensor& pool, const std::function<void(std::int64_t row)>& visit) const {
  std::set<std::int64_t> used;
  for (std::int64_t b = 0; b < static_cast<std::int64_t>(lens.size()); ++b) {
    for (std::int64_t at = 0; at < keys_of(b); ++at) used.insert(row_of(pool, b, at, 0));
  }
  for (std::int64_t token = 0; token < pages * page_size; ++token) {
    const std::int64_t row = token / page_size * pool.strides[0] + token % page_size * pool.strides[1];
    if (used.contains(row)) continue;
    for (std::int64_t head = 0; head < pool.shape[2]; ++head) visit(row + head * pool.strides[2]);
  }
}

void CacheGenerator::lay_out_lens(CaseTensor& tensor) const {
  plain(tensor, Dtype::I32, {static_cast<std::int64_t>(lens.size())},
        [&](std::int64_t i) { return static_cast<double>(lens[static_cast<std::size_t>(i)]); });
}

// In any order, with room between numbers now and then.
void CacheGenerator::lay_out_table(CaseTensor& tensor) {
  const auto batch = static_cast<std::int64_t>(lens.size()), gap = random_.pick<std::int64_t>({1, 1, 3});
  tensor.dtype = "i32";
  tensor.shape = {batch, width_};
  tensor.strides = {width_ * gap, gap};
  if (random_.chance(0.3)) tensor.strides = {gap, batch * gap};
  allocate(tensor, 4, false);
  for (std::int64_t i = 0; i < batch * width_; ++i) {
    const auto page = static_cast<std::int32_t>(table_[static_cast<std::size_t>(i)]);
    const std::int64_t at = i / width_ * tensor.strides[0] + i % width_ * tensor.strides[1];
    std::memcpy(tensor.data() + at * 4, &page, sizeof page);
  }
}

double CacheGenerator::not_finite() { return random_.pick<double>({NAN, INFINITY, -INFINITY}); }

}  // namespace flashjit::testing_random
