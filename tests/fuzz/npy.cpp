// .npy files: an accepted array has the bytes that its shape says, and is read again as it was written.
#include "tools/support/npy.h"

#include <unistd.h>

#include <cstdio>

#include "tests/fuzz/fuzz.h"

using namespace flashjit;
using fuzz::require;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto array = parse_npy("input", {data, data + size});
  if (!array) {
    require(array.error().kind == ErrorKind::Invalid, "a file is refused as invalid", array.error().message);
    return 0;
  }
  require(array->bytes.size() == static_cast<std::size_t>(array->elements() * size_of(array->type)),
          "shape and bytes agree", fmt::format("{} bytes", array->bytes.size()));

  static const std::string path = fmt::format("{}/flashjit_fuzz_{}.npy", P_tmpdir, ::getpid());
  const auto wrote = write_npy(path, *array);
  require(static_cast<bool>(wrote), "an array is written", path, wrote ? "" : wrote.error().message);
  const auto again = read_npy(path);
  ::unlink(path.c_str());
  require(static_cast<bool>(again), "a written array is read again", path, again ? "" : again.error().message);
  require(again->type == array->type && again->shape == array->shape && again->bytes == array->bytes,
          "a written array stays the same", path);

  for (const Dtype dtype : {Dtype::F16, Dtype::BF16, Dtype::F32, Dtype::I32, Dtype::I64, Dtype::U32, Dtype::U8}) {
    const auto taken = take_as("input", *array, dtype);
    if (taken) require(*taken == array->bytes, "an array is taken as it is", name(dtype));
  }
  return 0;
}
