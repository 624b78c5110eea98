#include "runtime/tensor_map_cache.h"

#include <cstring>

namespace flashjit {

// Everything that tensor_map_layouts reads of `params`. Maps of packed tensors do not know how long sequences are, only whether
// there is anything at all.
TensorMapCache::Key TensorMapCache::key_of(const KernelConfig& config, const KernelParams& params) {
  const auto size = [&](int value) { return static_cast<std::uint32_t>(config.packed ? value != 0 : value); };
  Key key;
  std::size_t at = 0;
  for (const void* address : {params.q, params.k, params.v, static_cast<const void*>(params.o)}) {
    key[at++] = reinterpret_cast<std::uintptr_t>(address);
  }
  for (const Strides* strides : {&params.q_stride, &params.k_stride, &params.v_stride, &params.o_stride}) {
    for (const Int64 stride : {strides->batch, strides->head, strides->token}) key[at++] = static_cast<std::uint64_t>(stride);
  }
  key[at++] = std::uint64_t{size(params.q_len)} << 32 | size(params.k_len);
  key[at] = size(params.batch);
  return key;
}

std::size_t TensorMapCache::place_of(const Key& key) {
  std::uint64_t hash = 0;
  for (const std::uint64_t word : key) hash = (hash ^ word) * 0x9e3779b97f4a7c15ull;
  return hash >> 32 & (kPlaces - 1);
}

// The order of a sequence lock: who reads a word of a later version also sees, when it looks again, that the version has changed.
bool TensorMapCache::find(const KernelConfig& config, const KernelParams& params, TensorMaps& maps) const {
  const Key key = key_of(config, params);
  const Place& place = places_[place_of(key)];
  const std::uint32_t version = place.version.load(std::memory_order_acquire);
  if (version == 0 || version % 2 != 0) return false;
  for (std::size_t i = 0; i < key.size(); ++i) {
    if (place.key[i].load(std::memory_order_acquire) != key[i]) return false;
  }
  std::uint64_t words[kMapWords];
  for (std::size_t i = 0; i < kMapWords; ++i) words[i] = place.maps[i].load(std::memory_order_acquire);
  if (place.version.load(std::memory_order_relaxed) != version) return false;
  std::memcpy(&maps, words, sizeof words);
  return true;
}

void TensorMapCache::keep(const KernelConfig& config, const KernelParams& params, const TensorMaps& maps) {
  const Key key = key_of(config, params);
  Place& place = places_[place_of(key)];
  std::uint32_t version = place.version.load(std::memory_order_relaxed);
  if (version % 2 != 0 || !place.version.compare_exchange_strong(version, version + 1, std::memory_order_acquire)) return;
  std::uint64_t words[kMapWords];
  std::memcpy(words, &maps, sizeof words);
  for (std::size_t i = 0; i < key.size(); ++i) place.key[i].store(key[i], std::memory_order_release);
  for (std::size_t i = 0; i < kMapWords; ++i) place.maps[i].store(words[i], std::memory_order_release);
  place.version.store(version + 2, std::memory_order_release);
}

}  // namespace flashjit
