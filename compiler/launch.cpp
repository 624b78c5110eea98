#include "compiler/launch.h"

#include <algorithm>

#include <fmt/format.h>

#include "compiler/plan.h"

namespace flashjit {
namespace {

constexpr std::int64_t kLargest = std::int64_t{1} << 62;

std::int64_t product(std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  return __builtin_mul_overflow(a, b, &result) ? kLargest : std::min(result, kLargest);
}

std::int64_t next_multiple(std::int64_t value, std::int64_t multiple) {
  return value > kLargest - multiple ? kLargest : (value + multiple - 1) / multiple * multiple;
}

}  // namespace

std::int64_t items_of(const GridRule& rule, const CallSizes& sizes) {
  if (rule.pieces > 0) {
    const std::int64_t pieces = product(sizes.q_tokens, rule.pieces);
    return pieces / rule.of_item + (pieces % rule.of_item != 0 ? 1 : 0);
  }
  if (rule.rows > 0) return product((sizes.k_rows + rule.rows - 1) / rule.rows, rule.heads);
  const auto tiles = [](std::int64_t size, int of_item) { return of_item == 0 ? 1 : (size + of_item - 1) / of_item; };
  if (rule.numbered) {
    const bool of_keys = rule.keys > 0;
    const bool none = sizes.batch == 0 || (of_keys ? sizes.k_len : sizes.q_len) == 0;
    const std::int64_t filled = of_keys ? sizes.k_tokens / rule.keys : sizes.q_tokens / rule.queries;
    return std::max<std::int64_t>(none ? 0 : product(filled + sizes.batch, rule.heads), rule.least);
  }
  const std::int64_t of_head = product(tiles(sizes.q_len, rule.queries), tiles(sizes.k_len, rule.keys));
  return std::max<std::int64_t>(product(product(of_head, rule.heads), rule.of_all ? 1 : sizes.batch), rule.least);
}

Parts parts_of(const GridRule& rule, const CallSizes& sizes, int sm_count) {
  const PartRule& part = rule.part;
  const std::int64_t items = items_of(rule, sizes) / rule.cluster,
                     at_once = std::int64_t{sm_count} * part.blocks_per_sm / rule.cluster;
  if (!part.cuts() || items == 0 || items > part.most_items || at_once == 0) return {};
  const auto quotient = [](std::int64_t a, std::int64_t b) { return (a + b - 1) / b; };
  const std::int64_t tiles = part.queries > 0 ? quotient(sizes.q_len, part.queries) : quotient(sizes.k_len, part.keys);
  const auto steps = [&](std::int64_t parts, std::int64_t of_part) {
    const std::int64_t of_item = of_part * part.heads + part.beside + (parts > 1 ? part.sums : 0);
    if (!part.uneven) return quotient(items * parts, at_once) * of_item;
    // Items take half as many steps in the mean. Blocks take one item after the other, and a longest one may be the
    // last.
    return quotient(items * parts * of_item, 2 * at_once) + of_item;
  };
  Parts best;
  std::int64_t fewest = steps(1, tiles);
  const std::int64_t most = std::min({tiles, at_once, std::int64_t{part.most_parts}, part.most_of_all / items});
  for (std::int64_t asked = 2; asked <= most; ++asked) {
    const std::int64_t of_part = quotient(tiles, asked), parts = quotient(tiles, of_part);
    if (steps(parts, of_part) >= fewest) continue;
    fewest = steps(parts, of_part);
    best = {static_cast<int>(parts), static_cast<int>(of_part)};
  }
  return best;
}

Teams teams_of(const GridRule& rule, const CallSizes& sizes, const ResidentClusters& resident) {
  const TeamRule& team = rule.team;
  GridRule of_teams = rule;
  of_teams.keys = 0;
  const std::int64_t items = items_of(of_teams, sizes), blocks_at_once = resident[0];
  if (team.most == 1 || items == 0 || blocks_at_once == 0) return {};
  const int of_sequence = static_cast<int>(items / sizes.batch);
  const bool even = team.even || sizes.batch == 1;
  if (items > blocks_at_once) {  // A team is one block that takes several items, or there are no teams.
    const std::int64_t rounds = (items + blocks_at_once - 1) / blocks_at_once, count = (items + rounds - 1) / rounds;
    const bool busy = count * 8 >= blocks_at_once * 7;
    if (!even || !busy || count < team.enough_blocks) return {};
    return {1, static_cast<int>(count), of_sequence};
  }
  int blocks = 1;
  for (std::size_t i = 1; i < resident.size() && items <= resident[i]; ++i) {
    if ((1 << i) > team.most || sizes.k_len <= std::int64_t{blocks} * team.least_keys) break;
    blocks = 1 << i;
  }
  const bool busy = items * blocks * 8 >= blocks_at_once * 7, enough = items * blocks >= team.enough_blocks;
  const int most = !even ? team.most_uneven_keys : enough ? team.many_keys : team.most_keys;
  if (!(even && busy) && sizes.k_len > std::int64_t{blocks} * most) return {};
  return {blocks, static_cast<int>(items), of_sequence};
}

void add_argument(std::string& call, std::string_view argument, int number) {
  // The call may have other parentheses before the last one.
  const auto last = call.begin() + static_cast<std::ptrdiff_t>(call.rfind('('));
  const auto given = static_cast<int>(std::count(last, call.end(), ','));
  std::string more;
  for (int i = given + 1; i < number; ++i) more += ", nullptr";
  call.insert(call.size() - 1, fmt::format("{}, {}", more, argument));
}

std::int64_t bytes_of(const WorkspaceBuffer& buffer, const CallSizes& sizes) {
  std::int64_t bytes = buffer.bytes;
  for (const Extent& extent : buffer.extents) {
    if (extent.count) {
      bytes = product(bytes, extent.count(sizes.*extent.size));
      continue;
    }
    const std::int64_t rounded = next_multiple(sizes.*extent.size, extent.multiple);
    const std::int64_t more = extent.more ? sizes.*extent.more : 0;
    bytes = product(bytes, (extent.tiles ? rounded / extent.multiple : rounded) + more);
  }
  if (bytes > buffer.most) return 0;
  return bytes;
}

std::int64_t offset_of(const std::vector<WorkspaceBuffer>& workspace, int number, const CallSizes& sizes) {
  std::int64_t offset = 0;
  for (std::size_t i = 0; i < static_cast<std::size_t>(number); ++i) {
    const std::int64_t bytes = next_multiple(bytes_of(workspace[i], sizes), kWorkspaceAlignment);
    offset = bytes > kLargest - offset ? kLargest : offset + bytes;
  }
  return offset;
}

std::int64_t bytes_of(const std::vector<WorkspaceBuffer>& workspace, const CallSizes& sizes) {
  return offset_of(workspace, static_cast<int>(workspace.size()), sizes);
}

int Plan::threads() const {
  int most = 0;
  for (const KernelLaunch& launch : launches) most = std::max(most, launch.threads);
  return most;
}

int Plan::smem_bytes() const {
  int most = 0;
  for (const KernelLaunch& launch : launches) most = std::max(most, launch.smem_bytes);
  return most;
}

}  // namespace flashjit
