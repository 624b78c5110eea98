// The work of run() for a plan, as data: which entries are launched, on how many blocks, with what arguments, and the
// memory that they share. Nothing that reads it asks for the plan's family.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace flashjit {

// The sizes of one call. In dense layouts every sequence has these lengths; in packed ones none is longer.
struct CallSizes {
  std::int64_t batch = 0, q_len = 0, k_len = 0;
  std::int64_t q_tokens = 0, k_tokens = 0;  // The tokens of all sequences together.
  std::int64_t k_rows = 0;                  // The rows of K: k_tokens, or the rows of all its pages.
};

// A team is a cluster of blocks that has items with all of their keys to itself. Its blocks run at the same time and
// share the keys evenly, so the launch that adds up what blocks leave of an item is left out. Where one item may be
// longer than another, or many SMs have no block, only calls with few keys use teams.
struct TeamRule {
  int most = 1;              // The most blocks of a team, a power of two; 1: there are no teams.
  int least_keys = 1;        // With fewer keys than this for each block, more blocks would have nothing to do.
  int enough_blocks = 0;     // So many blocks read nearly as fast as all do.
  int many_keys = 0;         // The most keys of a block where more than an eighth of the SMs have no block.
  int most_keys = 0;         // The most keys of a block where there are not even enough blocks.
  int most_uneven_keys = 0;  // The most keys of a block where lengths differ.
  bool even = false;         // Lengths do not differ.
};

// Items that have all queries, or all keys, may be cut along them where there are fewer items than SMs, or few more.
// The sums of their blocks, or their parts of a result, then lie in memory that the plan has for a limited number of
// items, or parts.
struct PartRule {
  int queries = 0;            // The queries of a step, which stays whole; 0: items are not cut along the queries.
  int keys = 0;               // The keys of a step, which stays whole; 0: items are not cut along the keys.
  int heads = 1;              // The heads whose queries an item goes over.
  int most_items = 0;         // Calls with more items are not cut.
  int most_parts = 1 << 30;   // The most parts of an item.
  int most_of_all = 1 << 30;  // The most parts of all items together.
  bool uneven = false;        // A mask lets some items see more queries than others.
  int blocks_per_sm = 1;      // The blocks of an SM that run at the same time.
  // An item takes `beside` steps besides its own and, if it is cut, `sums` steps to be put together.
  int beside = 3, sums = 1;
  bool cuts() const { return queries > 0 || keys > 0; }
};

// The way in which a call is cut into items: every head of every sequence is cut along its queries, its keys or both.
struct GridRule {
  int queries = 0;      // The queries of an item; 0: it has all of them.
  int keys = 0;         // The keys of an item; 0: it has all of them.
  int heads = 1;        // The heads that have items of their own.
  int least = 0;        // The least number of items, even of calls that have nothing to cut.
  bool of_all = false;  // Items are those of all sequences together, not of each one.
  // Tiles of all sequences are numbered one after the other, along the queries or the keys. There are no more tiles
  // than all tokens fill, and one for each sequence.
  bool numbered = false;
  int blocks_per_sm = 0;  // If not 0, so many blocks for each SM of the device share all items evenly.
  int together = 1;       // With blocks_per_sm, so many blocks have a part of each item; fewer would leave some out.
  int cluster = 1;        // So many blocks are launched together.
  TeamRule team;          // It counts with blocks_per_sm.
  PartRule part;
  int pieces = 0;   // If not 0, items are pieces instead of tiles, and every query has so many pieces.
  int of_item = 1;  // The pieces of an item, which follow each other among those of all queries.
  int rows = 0;     // If not 0, an item is so many rows of K for one of the heads.
  // There are as many blocks as fit the device, and they take items from KernelParams::work_counters.
  bool persistent = false;
  int of_sm = 1;  // The blocks of an SM, if persistent.
  // Returns true if the number of blocks follows from the SMs that a call may use, not from its items.
  bool counts_sms() const { return persistent || blocks_per_sm > 0; }
};

// Returns the number of items of a call, none of them cut. 2^62 means that many or more.
std::int64_t items_of(const GridRule& rule, const CallSizes& sizes);

// The number of parts into which each item is cut on a device with this many SMs, and the most steps of a head that a
// part has.
struct Parts {
  int count = 1;
  int tiles = 1 << 30;
};
Parts parts_of(const GridRule& rule, const CallSizes& sizes, int sm_count);

// The number of clusters of 1, 2, 4 and 8 blocks of a kernel that a device runs at the same time.
using ResidentClusters = std::array<int, 4>;

// The teams to which a call's items are given. Without teams, blocks share the items evenly.
struct Teams {
  int blocks = 0;  // The blocks of a team.
  int count = 0;
  int items = 0;  // The items of a sequence.
};
Teams teams_of(const GridRule& rule, const CallSizes& sizes, const ResidentClusters& resident);

// Heads whose tiles are worked on together share L2. Each of them brings the rows that a tile may read: keys in
// forward, queries in backward.
struct HeadGroupRule {
  std::int64_t row_bytes = 0;        // The bytes of L2 that a row of a head takes.
  std::int64_t most_rows = 1 << 24;  // The most rows that count, however long the sequence is.
};

// One kernel of a plan. Its arguments are KernelParams, TensorMaps if it takes them, then pointers to buffers.
struct KernelLaunch {
  std::string entry;   // The extern "C" name.
  int threads = 0;     // The threads of a block.
  int smem_bytes = 0;  // The dynamic shared memory of a block.
  GridRule grid;
  bool tensor_maps = false;
  // It adds up what blocks of the launch before it leave of items. It is left out where those are teams.
  bool adds_up = false;
  bool of_parts = false;  // It puts together what cut items have left, and is left out where none is cut.
  bool of_teams = false;  // With teams of several blocks it takes the place of the launches that are not of teams.
  // It begins while the launch before it runs, and waits for the end of that launch itself: first of all or, if it adds
  // up, once it knows what to add up.
  bool overlaps = false;
  std::vector<int> buffers;  // Their numbers in Plan::workspace.
  std::string_view bounds;   // The arguments of __launch_bounds__ in generated code.
  std::string call;          // The call that is its body.
  std::string_view file;     // The template that has the call; empty: the loop's own.
};

// Adds `argument` to `call` as its argument of this number, from 0. Arguments before it that `call` leaves out become
// nullptr.
void add_argument(std::string& call, std::string_view argument, int number);

// A factor of a buffer's size: a size of the call, rounded up to a multiple. With `tiles` it is divided by the
// multiple, and the size `more` is added.
struct Extent {
  std::int64_t CallSizes::* size;
  int multiple = 1;
  bool tiles = false;
  std::function<std::int64_t(std::int64_t)> count = {};  // If it is set, its result for the size is the factor.
  std::int64_t CallSizes::* more = nullptr;
};

// Memory that the launches of one call pass on. For example:
//   partial outputs, one per split of 1024 keys
//     {"partials", "float", 4 * heads * d, {{&batch}, {&q_len}, {&k_len, 1024, true}}}
//   an fp32 accumulator of dQ, in whole tiles, and the same of a packed layout
//     {"dq", "float", 4 * heads * d, {{&batch}, {&q_len, 64}}}
//     {"dq", "float", 4 * heads * d, {{&q_tokens}}}
struct WorkspaceBuffer {
  std::string name;
  std::string_view type = "void";  // The type of its elements in generated code.
  // The bytes of one element, times all that is known beforehand: heads, d, a number of splits.
  std::int64_t bytes = 0;
  std::vector<Extent> extents;
  std::int64_t most = std::int64_t{1} << 62;  // The most bytes. A call that would need more does without the buffer.
};

// Buffers follow each other, each at a multiple of this. The address of the whole workspace is a multiple of it as
// well.
inline constexpr std::int64_t kWorkspaceAlignment = 256;
inline constexpr int kMaxBuffers = 8;

// A size beyond 2^62 is cut to that, because no memory is as large.
std::int64_t bytes_of(const WorkspaceBuffer& buffer, const CallSizes& sizes);
std::int64_t bytes_of(const std::vector<WorkspaceBuffer>& workspace, const CallSizes& sizes);
// Returns the offset of buffers[number] from the beginning of the workspace.
std::int64_t offset_of(const std::vector<WorkspaceBuffer>& workspace, int number, const CallSizes& sizes);

}  // namespace flashjit
