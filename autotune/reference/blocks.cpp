#include "autotune/reference/blocks.h"

#include <map>
#include <memory>
#include <tuple>

#include <fmt/format.h>

namespace flashjit::reference {
namespace {

// batch index, head of lists, block of queries, block of keys
using Block = std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t>;
enum class State { listed, full };
using States = std::map<Block, State>;

// Reads an element. Leading dimensions may be left out, and those of size 1 count for all.
std::int32_t element(const Tensor& tensor, std::initializer_list<std::int64_t> indices) {
  std::int64_t at = 0, contiguous = 1;
  auto index = std::rbegin(indices);
  for (std::size_t i = tensor.shape.size(); i-- > 0; ++index) {
    const std::int64_t stride = tensor.strides.empty() ? contiguous : tensor.strides[i];
    if (tensor.shape[i] > 1) at += *index * stride;
    contiguous *= tensor.shape[i];
  }
  return static_cast<const std::int32_t*>(tensor.data)[at];
}

struct Lists {
  const Tensor &count, &index;

  void add_to(States& states, State state, std::int64_t b, std::int64_t head, std::int64_t row) const {
    const std::int64_t listed = element(count, {b, head, row}), room = index.shape.back();
    for (std::int64_t i = 0; i < listed && i < room; ++i)
      states[{b, head, row, element(index, {b, head, row, i})}] = state;
  }
};

}  // namespace

Result<void> look_at_lists(const AttentionSpec& spec, const Arguments& arguments, Semantics& semantics) {
  for (const char* name : {"block_count", "block_index"}) {
    if (!arguments.params.contains(name)) return invalid(fmt::format("reference: {} is missing in params", name));
  }
  const bool packed = spec.layout == Layout::Packed, has_full = arguments.params.contains("full_count");
  const std::vector<std::int64_t>& q = arguments.q.shape;
  const std::int64_t batch = packed ? arguments.offsets_q.shape.at(0) - 1 : q[0];
  const std::int64_t longest = packed ? arguments.max_q_len : q[spec.layout == Layout::Bhsd ? 2 : 1];
  const auto states = std::make_shared<States>();
  const auto add = [&](const char* count, const char* index, State state) {
    const Lists lists = {arguments.params.at(count), arguments.params.at(index)};
    for (std::int64_t b = 0; b < batch; ++b) {
      for (std::int64_t head = 0; head < spec.blocks.heads; ++head) {
        for (std::int64_t row = 0; row * spec.blocks.q < longest; ++row) lists.add_to(*states, state, b, head, row);
      }
    }
  };
  add("block_count", "block_index", State::listed);
  if (has_full) add("full_count", "full_index", State::full);
  // A full block may lie behind any bound of the mask.
  semantics.unseen_from = std::numeric_limits<std::int64_t>::max();
  semantics.visible = [states, sizes = spec.blocks, group = spec.heads_q / spec.blocks.heads,
                       inside = std::move(semantics.visible)](const Position& at) {
    const auto block = states->find({at.b, at.h / group, at.q / sizes.q, at.k / sizes.k});
    return block != states->end() && (block->second == State::full || !inside || inside(at));
  };
  return {};
}

}  // namespace flashjit::reference
