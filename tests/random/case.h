// One differential case: a spec, its tensors and what it means, apart from any device.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "compiler/spec/dtype.h"
#include "flashjit/flashjit.hpp"
#include "autotune/reference/semantics.h"
#include "tests/random/random.h"

namespace flashjit::testing_random {

// A tensor inside its own memory. The image is what lies there: some bytes in front that decide the alignment, then the
// elements with whatever strides, and nothing after the last element, so that reading beyond it leaves the allocation.
// Outputs are poisoned with 0xff (NaN in every float type) and carry guard bytes on both sides.
struct CaseTensor {
  std::string dtype;
  std::vector<std::int64_t> shape, strides;
  std::vector<std::uint8_t> image;
  std::size_t begin = 0;  // byte offset of the first element
  bool output = false;
  bool given = false;
  // Packed: along this axis so many tokens at both ends are of no sequence.
  std::size_t token_axis = 0;
  std::int64_t stray_front = 0, stray_back = 0;
  // An input in which a call writes these rows, and nothing else: where they begin, in elements, and how long they are.
  std::vector<std::int64_t> new_rows;
  std::int64_t new_row_elements = 0;  // 0: the last dimension
  bool updated = false;

  std::int64_t elements() const;
  std::uint8_t* data() { return image.data() + begin; }
};

constexpr std::size_t kGuardBytes = 256;

// Room for a tensor of this shape; strides must be set. `align`: the address is a multiple of it, but of nothing
// larger.
void allocate(CaseTensor& tensor, int align, bool output);

// Strides for a logical [batch, token, head, dim] or [token, head, dim] tensor in the order of the layout: contiguous, or
// with gaps, or stored in another order than the one it is seen in.
struct StrideRules {
  int align;                  // strides are multiples of so many bytes
  bool any_order;             // or tokens and heads as they are
  std::int64_t more_between;  // elements between batches
};
void draw_strides(CaseTensor& tensor, Dtype dtype, std::vector<std::int64_t> shape, const StrideRules& rules,
                  Random& random);

// Contiguous but for a gap behind each row, in elements.
void lay_out(CaseTensor& tensor, Dtype dtype, std::vector<std::int64_t> shape, int align, std::int64_t gap,
             bool output);
// Every element of the tensor: its index, and its offset.
void each_element(const CaseTensor& tensor,
                  const std::function<void(const std::vector<std::int64_t>& index, std::int64_t offset)>& visit);

// A contiguous input; `value`: by index in memory order.
void plain(CaseTensor& tensor, Dtype dtype, std::vector<std::int64_t> shape,
           const std::function<double(std::int64_t i)>& value, int align = 1);

// Bytes of an output that belong to no element of a sequence, and no longer hold the poison; -1: none.
std::int64_t first_damaged_byte(const CaseTensor& tensor);
// The same of an input in which rows are written: bytes that are no longer what `before` has there.
std::int64_t first_changed_byte(const CaseTensor& tensor, const std::vector<std::uint8_t>& before);

struct Case {
  std::uint64_t seed = 0;
  std::string spec;      // text
  std::string schedule;  // pins, or empty
  std::string shape;     // readable: b=2 q=33 k=65
  std::string data;      // readable: what kind of numbers
  CaseTensor q, k, v, o, lse, max_logit, sink, offsets_q, offsets_k;
  std::map<std::string, CaseTensor> params;
  std::map<std::string, double> scalars;
  std::int64_t max_q_len = 0, max_k_len = 0;
  reference::Semantics semantics;
  bool independent = true;    // false: take the meaning from the spec's own expressions
  bool any_schedule = false;  // without pins: on a GPU some are drawn
  bool side_by_side = false;  // on a GPU: launch it many times at once as well

  // Calls `visit` for every tensor that is given.
  void each(const std::function<void(const std::string& name, CaseTensor& tensor)>& visit);
  // The arguments as seen at another place: `place` returns where the image of this tensor lies there.
  Arguments arguments(const std::function<void*(const CaseTensor&)>& place) const;
  Arguments host_arguments() const;
};

}  // namespace flashjit::testing_random
