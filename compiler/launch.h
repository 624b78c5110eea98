// The work of run() for a plan, as data: which entries are launched, on how many blocks, with what arguments, and the
// memory that they share. Nothing that reads this asks of which family a plan is.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace flashjit {

// The sizes of one call. Dense layouts: every sequence has these lengths; packed: none is longer.
struct CallSizes {
  std::int64_t batch = 0, q_len = 0, k_len = 0;
  std::int64_t q_tokens = 0, k_tokens = 0;  // of all sequences together
  std::int64_t k_rows = 0;                  // that K has: k_tokens, or those of all its pages
};

// Teams: clusters of blocks that have items with all of their keys to themselves. The blocks of a team run at the same
// time and share the keys evenly; launches that add up what blocks leave of an item are left out. Where one item may be
// longer than another, or many SMs have no block, teams are for few keys only.
struct TeamRule {
  int most = 1;              // blocks of a team, a power of two; 1: there are none
  int least_keys = 1;        // of a block: more blocks would have nothing to do
  int enough_blocks = 0;     // read nearly as fast as all do
  int many_keys = 0;         // of a block at most, where an eighth of the SMs have none
  int most_keys = 0;         // ... if there are not even enough, or ...
  int most_uneven_keys = 0;  // ... if lengths differ
  bool even = false;         // they do not
};

// Items that have all queries, or all keys, may be cut along them: where there are fewer items than SMs, or few more. The
// sums of their blocks, or their parts of a result, then lie in memory that the plan has for so many items, or parts.
struct PartRule {
  int queries = 0;            // of a step, which is not cut; 0: not along the queries
  int keys = 0;               // of a step, which is not cut; 0: not along the keys
  int heads = 1;              // whose queries an item goes over
  int most_items = 0;         // that are cut
  int most_parts = 1 << 30;   // of an item
  int most_of_all = 1 << 30;  // parts of all items
  bool uneven = false;        // a mask lets some see more queries than others
  int blocks_per_sm = 1;      // that run at the same time
  int beside = 3, sums = 1;   // in steps: what an item takes beside them, and, if it is cut, to be put together
  bool cuts() const { return queries > 0 || keys > 0; }
};

// Says how the work of a call is cut into items: every head of every sequence is cut along its queries, its keys or both.
struct GridRule {
  int queries = 0;        // of an item; 0: it has all of them
  int keys = 0;           // of an item; 0: it has all of them
  int heads = 1;          // that have items of their own
  int least = 0;          // items even of calls that have nothing to cut
  bool of_all = false;    // of all sequences together
  bool numbered = false;  // along the queries or the keys: tiles of all sequences are numbered one after the other, of
                          // which there are no more than all tokens fill, and one for each sequence
  int blocks_per_sm = 0;  // not 0: so many for each SM of the device share all items evenly
  int together = 1;       // with blocks_per_sm: so many have a part of each item, and fewer would leave some out
  int cluster = 1;        // blocks are launched so many at a time
  TeamRule team;          // with blocks_per_sm
  PartRule part;
  int pieces = 0;           // not 0: items are pieces instead of tiles. Every query has so many, and an item
  int of_item = 1;          // so many of those of all queries, one after the other
  int rows = 0;             // not 0: items are so many rows of K, of all that it has, for each of the heads
  bool persistent = false;  // as many blocks as fit the device, for all items, which they take from
                            // KernelParams::work_counters, ...
  int of_sm = 1;            // ... so many for each SM
  // Are there as many blocks as SMs that a call may have, and not as many as it has tiles?
  bool counts_sms() const { return persistent || blocks_per_sm > 0; }
};

// Items that there are of a call, none of them cut; 2^62: that many or more.
std::int64_t items_of(const GridRule& rule, const CallSizes& sizes);

// Into how many parts each is cut on a device with this many SMs, and how many steps of a head each has at most.
struct Parts {
  int count = 1;
  int tiles = 1 << 30;
};
Parts parts_of(const GridRule& rule, const CallSizes& sizes, int sm_count);

// Clusters of 1, 2, 4 and 8 blocks of a kernel that a device runs at the same time.
using ResidentClusters = std::array<int, 4>;

// The teams that a call's items are given to; none: blocks share the items evenly.
struct Teams {
  int blocks = 0;  // of a team
  int count = 0;
  int items = 0;  // of a sequence
};
Teams teams_of(const GridRule& rule, const CallSizes& sizes, const ResidentClusters& resident);

// Heads whose tiles are worked on together share L2: of each the rows that a tile may read, keys in forward and queries in
// backward.
struct HeadGroupRule {
  std::int64_t row_bytes = 0;        // that a row of a head takes of L2
  std::int64_t most_rows = 1 << 24;  // that count, however long the sequence is
};

// One kernel of a plan. Its arguments: KernelParams, TensorMaps if it takes them, then pointers to buffers.
struct KernelLaunch {
  std::string entry;   // extern "C" name
  int threads = 0;     // of a block
  int smem_bytes = 0;  // dynamic, of a block
  GridRule grid;
  bool tensor_maps = false;
  bool adds_up = false;   // what blocks of the launch before have left of items: not where those are of teams
  bool of_parts = false;  // it puts together what items that are cut have left, and is left out where none is
  bool of_teams = false;  // of several blocks: where there are such, it is for the launches that are not of teams
  bool overlaps = false;  // it begins while the launch before it runs, and waits for its end itself: first of all, or,
                          // if it adds up, when it knows what
  std::vector<int> buffers;  // numbers in Plan::workspace
  std::string_view bounds;   // of __launch_bounds__, as generated code says it
  std::string call;          // what its body is
  std::string_view file;     // the template that has it; empty: the loop's
};

// KernelLaunch::call with one more argument, of this number, and those before it that it leaves out.
void add_argument(std::string& call, std::string_view argument, int number);

// A factor of a buffer's size: a size of the call, rounded up to a multiple, and with `tiles` divided by that; `more`: so
// many more.
struct Extent {
  std::int64_t CallSizes::* size;
  int multiple = 1;
  bool tiles = false;
  std::function<std::int64_t(std::int64_t)> count = {};  // if it is set: what this makes of the size instead
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
  std::string_view type = "void";  // of its elements, in generated code
  std::int64_t bytes = 0;          // of one element, times all that is known beforehand: heads, d, a number of splits
  std::vector<Extent> extents;
  std::int64_t most = std::int64_t{1} << 62;  // bytes: calls that would need more do without it
};

// Buffers follow each other, each from a multiple of this. So must the address of the whole be.
inline constexpr std::int64_t kWorkspaceAlignment = 256;
inline constexpr int kMaxBuffers = 8;

// Sizes beyond 2^62 count as that: no memory is as large.
std::int64_t bytes_of(const WorkspaceBuffer& buffer, const CallSizes& sizes);
std::int64_t bytes_of(const std::vector<WorkspaceBuffer>& workspace, const CallSizes& sizes);
// The offset of buffers[number] from the beginning of the workspace.
std::int64_t offset_of(const std::vector<WorkspaceBuffer>& workspace, int number, const CallSizes& sizes);

}  // namespace flashjit
