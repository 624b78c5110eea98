// A library that ends whoever loads it, as a broken or foreign NVRTC may.
#include <cstdlib>

namespace {
[[gnu::constructor]] void die() { std::abort(); }
}  // namespace
