#include "tools/ranks/ways.h"

#include <fmt/format.h>

#include <algorithm>

namespace flashjit {
namespace {

// Number of pieces of the KV heads, at most, as flashjit.distributed takes them.
constexpr int kGatherPieces = 4;
constexpr double kBytesPerTbAndUs = 1e6;

// Returns the sizes, in KV heads, of pieces that flashjit.distributed reads from GPUs of its host. Each is twice the
// one before.
std::vector<int> growing_pieces(int heads) {
  std::vector<int> sizes;
  for (int rest = heads, size = 1; rest > 0; size *= 2) {
    sizes.push_back(rest < 2 * size ? rest : size);
    rest -= sizes.back();
  }
  return sizes;
}

std::vector<int> equal_pieces(int heads) {
  int count = 1;
  for (int pieces = 1; pieces <= kGatherPieces; ++pieces)
    if (heads % pieces == 0) count = pieces;
  return std::vector<int>(static_cast<std::size_t>(count), heads / count);
}

double tokens(std::int64_t batch, std::int64_t length) {
  return static_cast<double>(batch) * static_cast<double>(length);
}

// Every rank of a group of neighbours sends this many bytes to each other rank of it.
Exchange to_group(const Network& network, int group, double bytes_each) {
  const int in_host = std::min(network.within.count, group);
  const double within = bytes_each * (in_host - 1), between = bytes_each * (group - in_host);
  return {exchange_us(network, within, between), within + between};
}

// Every rank sends to one other of its ring. A ring reaches all hosts, and all ranks wait for those whose message
// leaves their host.
Exchange along_ring(const Network& network, double bytes) {
  return {network.has_hosts() ? exchange_us(network, 0, bytes) : exchange_us(network, bytes, 0), bytes};
}

// All-gathers and their sums use all links at once. Bytes of other hosts come once to the host and are passed on in it.
Exchange of_gather(const Network& network, double bytes_each) {
  const int ranks = network.ranks();
  const double within = bytes_each * (ranks - 1), between = bytes_each * (network.between.count - 1);
  return {exchange_us(network, within, between), within};
}

struct Group {
  int heads_over = 1, ring_of = 1;
};

// Neighbours share heads, and ranks at that distance share tokens.
class CourseCounter {
 public:
  CourseCounter(const RankProblem& problem, const StepTimes& times) : p_(problem), times_(times) {}

  Result<Course> ring(Direction direction, const Group& group, const Sights& sights) const {
    const Shape own{p_.whole.b, p_.whole.q_len / group.ring_of, p_.whole.k_len / group.ring_of};
    const bool alone = group.ring_of == 1;  // The kernel then has the mask, and the whole sequence.
    FLASHJIT_ASSIGN(time, times_({direction, group.heads_over, own, alone, !alone && is_beside()}));
    FLASHJIT_ASSIGN(edges, cost_of_edges(direction, group.heads_over, sights));
    const TokenBytes bytes(p_.spec, group.heads_over);
    const double own_keys = tokens(own.b, own.k_len);
    std::vector<double> compute;
    std::vector<Exchange> keys, gradients;
    for (int t = 0; t < group.ring_of; ++t) {
      double slowest = 0, needed = 0;
      for (int rank = 0; rank < group.ring_of; ++rank) {
        const int owner = (rank - t + group.ring_of) % group.ring_of;
        slowest = std::max(slowest, alone ? time.fixed_us + time.work_us : time.at(sights.seen(rank, owner) * edges));
        needed = std::max(needed, sights.needed(rank, owner));
      }
      compute.push_back(slowest + (alone || slowest == 0 ? 0 : sums_us(direction, group, t)));
      const bool sends = t > 0 && needed > 0;
      keys.push_back(sends ? along_ring(p_.network, bytes.kv * own_keys * needed) : Exchange());
      if (direction == Direction::Backward)
        gradients.push_back(sends ? along_ring(p_.network, bytes.dkv * own_keys * needed) : Exchange());
    }
    Course course = ring_course(compute, keys, gradients);
    add_heads(direction, group, course);
    return course;
  }

  Result<Course> gather(Direction direction, const Sights& sights) const {
    const int ranks = p_.network.ranks(), heads = p_.spec.heads_kv;
    const Shape own{p_.whole.b, p_.whole.q_len / ranks, p_.whole.k_len};
    FLASHJIT_ASSIGN(time, times_({direction, 1, own, false, is_beside()}));
    FLASHJIT_ASSIGN(edges, cost_of_edges(direction, 1, sights));
    const TokenBytes bytes(p_.spec);
    const double own_keys = tokens(p_.whole.b, p_.whole.k_len / ranks);
    std::vector<double> compute;
    std::vector<Exchange> keys, sums;
    for (const int piece : p_.network.has_hosts() ? equal_pieces(heads) : growing_pieces(heads)) {
      const double fraction = static_cast<double>(piece) / heads;
      compute.push_back(time.fixed_us + sights.most_seen() * edges * time.work_us * fraction);
      keys.push_back(of_gather(p_.network, bytes.kv * own_keys * fraction));
      if (direction == Direction::Backward) sums.push_back(of_gather(p_.network, bytes.dkv * own_keys * fraction));
    }
    return gather_course(compute, keys, sums);
  }

 private:
  // Between hosts an exchange takes a good part of a step, so kernels leave SMs to it. Within a host copies or short
  // kernels do the exchange.
  bool is_beside() const { return p_.network.has_hosts(); }

  double memory_us(double bytes) const { return p_.memory_tbs > 0 ? bytes / (p_.memory_tbs * kBytesPerTbAndUs) : 0; }

  // A step of a ring reads and writes more than its share of one kernel's work: O and dQ are sums in fp32, which are
  // rounded behind the last step.
  double sums_us(Direction direction, const Group& group, int step) const {
    const AttentionSpec& spec = p_.spec;
    const bool is_forward = direction == Direction::Forward;
    const double rows = tokens(p_.whole.b, p_.whole.q_len) / group.ring_of * spec.heads_q / group.heads_over;
    const double elements = rows * (is_forward ? spec.d_v : spec.d_qk);
    const double wide = size_of(Dtype::F32), last = size_of(is_forward ? spec.out_dtype : spec.dtype);
    double bytes = step > 0 ? 2 * wide : wide - last;
    if (!is_forward && step > 0) bytes += wide;  // dQ is first a sum of its own.
    if (step + 1 == group.ring_of && last < wide) bytes += wide + last;
    return memory_us(bytes * elements);
  }

  // A kernel with a mask does more than the visible scores: tiles that an edge cuts are whole, and evaluate the mask.
  // Returns the factor. All steps together have the edges of the whole.
  Result<double> cost_of_edges(Direction direction, int heads_over, const Sights& sights) const {
    FLASHJIT_ASSIGN(masked, times_({direction, heads_over, p_.whole, true, false}));
    FLASHJIT_ASSIGN(plain, times_({direction, heads_over, p_.whole, false, false}));
    const double seen = sights.mean_seen() * plain.work_us;
    return seen > 0 ? masked.work_us / seen : 1.0;
  }

  // Heads are exchanged for tokens before anything is computed, and come back behind it.
  void add_heads(Direction direction, const Group& group, Course& course) const {
    if (group.heads_over == 1) return;
    const TokenBytes bytes(p_.spec, group.heads_over);
    const double q_tokens = tokens(p_.whole.b, p_.whole.q_len) / p_.network.ranks();
    const double k_tokens = tokens(p_.whole.b, p_.whole.k_len) / p_.network.ranks();
    const auto turned = [&](double sent) {  // One part of these stays.
      return to_group(p_.network, group.heads_over, sent / group.heads_over);
    };
    const double all_kv = bytes.kv * group.heads_over * k_tokens;
    const Exchange given = turned(bytes.q * q_tokens + all_kv), made = turned(bytes.o * q_tokens);
    const Exchange& before = direction == Direction::Forward ? given : made;  // Q, K and V were kept, and dO comes.
    // dQ, dK and dV go back as Q, K and V came.
    const Exchange& behind = direction == Direction::Forward ? made : given;
    // Rows are put in order of receivers before they are sent, and in order of tokens afterwards, so they are read and
    // written twice.
    const double passes = memory_us(4 * (bytes.q * q_tokens + all_kv)), passes_of_o = memory_us(4 * bytes.o * q_tokens);
    course.before_us += direction == Direction::Forward ? passes : passes_of_o;
    course.behind_us += direction == Direction::Forward ? passes_of_o : passes;
    course.before_us += before.us;
    course.before_bytes += before.bytes;
    course.behind_us += behind.us;
    course.behind_bytes += behind.bytes;
  }

  const RankProblem& p_;
  const StepTimes& times_;
};

double time_of(const Way& way) { return way.forward.total_us() + (way.backward ? way.backward->total_us() : 0); }

std::string name_of(const Group& group) {
  if (group.heads_over == 1) return "ring";
  return group.ring_of == 1 ? "ulysses" : "mesh";
}

std::string why_not_lengths(const Shape& whole, int ranks) {
  for (const auto& [name, length] : {std::pair("q", whole.q_len), std::pair("k", whole.k_len)})
    if (length % (2 * ranks) != 0)
      return fmt::format("--shape: {}={} is not a multiple of {}, two runs of tokens for each of {} ranks; give {}={}",
                         name, length, 2 * ranks, ranks, name,
                         std::max<std::int64_t>(1, length / (2 * ranks)) * 2 * ranks);
  return {};
}

using CountWay = std::function<Result<Course>(Direction direction, const Sights& sights)>;

// Returns the way with the faster order of tokens.
Result<Way> in_faster_order(const RankProblem& problem, const Way& plain, const CountWay& count, bool gradients) {
  std::optional<Way> best;
  const int shares = plain.name == "gather" ? problem.network.ranks() : plain.ring_of;
  for (const TokenOrder order : {TokenOrder::Zigzag, TokenOrder::Contiguous}) {
    const Sights sights(problem.spec, problem.whole, shares, order);
    Way way = plain;
    if (shares > 1) way.order = order;
    FLASHJIT_ASSIGN(forward, count(Direction::Forward, sights));
    way.forward = std::move(forward);
    if (gradients) {
      FLASHJIT_ASSIGN(backward, count(Direction::Backward, sights));
      way.backward = std::move(backward);
    }
    if (!best || time_of(way) < time_of(*best)) best = std::move(way);
    if (shares == 1) break;
  }
  return *best;
}

}  // namespace

TokenBytes::TokenBytes(const AttentionSpec& spec, int head_shares) {
  // If there are more shares than heads, several shares have the same head.
  const double heads = std::max(1, spec.heads_kv / head_shares);
  q = static_cast<double>(spec.heads_q) * spec.d_qk * size_of(spec.dtype);
  o = static_cast<double>(spec.heads_q) * spec.d_v * size_of(spec.out_dtype);
  kv = heads * cached_dims(spec) * size_of(spec.kv_dtype);
  dkv = heads * (spec.d_qk + spec.d_v) * size_of(Dtype::F32);
}

std::string why_not_heads(const AttentionSpec& spec, int head_shares) {
  if (spec.heads_q % head_shares != 0)
    return fmt::format("{} query heads cannot be divided among {} ranks", spec.heads_q, head_shares);
  if (spec.heads_kv % head_shares != 0 && head_shares % spec.heads_kv != 0)
    return fmt::format("{} KV heads and {} ranks: neither is a multiple of the other", spec.heads_kv, head_shares);
  return {};
}

Result<std::vector<Way>> ways_of(const RankProblem& problem, const StepTimes& times, bool gradients) {
  const int ranks = problem.network.ranks();
  if (const std::string why = why_not_lengths(problem.whole, ranks); !why.empty()) return invalid(why);
  const CourseCounter counter(problem, times);
  const double kv_bytes = TokenBytes(problem.spec).kv * tokens(problem.whole.b, problem.whole.k_len);
  std::vector<Way> ways;
  const Way gather{.name = "gather",
                   .heads_over = 1,
                   .ring_of = 1,
                   .why_not = {},
                   .order = {},
                   .forward = {},
                   .backward = {},
                   .most_kv_bytes = kv_bytes};
  FLASHJIT_ASSIGN(
      gathered, in_faster_order(
                    problem, gather, [&](Direction direction, const Sights& s) { return counter.gather(direction, s); },
                    gradients));
  ways.push_back(std::move(gathered));
  for (int heads_over = 1; heads_over <= ranks; ++heads_over) {
    if (ranks % heads_over != 0) continue;
    const Group group{heads_over, ranks / heads_over};
    const int gpus = problem.network.within.count;
    Way way{.name = name_of(group),
            .heads_over = heads_over,
            .ring_of = group.ring_of,
            .why_not = why_not_heads(problem.spec, heads_over),
            .order = {},
            .forward = {},
            .backward = {},
            .most_kv_bytes = 0};
    const bool listed = heads_over == 1 || heads_over == ranks;  // A mesh that does not exist is not missed.
    if (!listed && (!way.why_not.empty() || (gpus % heads_over != 0 && heads_over % gpus != 0))) continue;
    way.most_kv_bytes = (group.ring_of > 1 ? 2 : 1) * kv_bytes / ranks *
                        (TokenBytes(problem.spec, heads_over).kv * heads_over / TokenBytes(problem.spec).kv);
    if (way.why_not.empty()) {
      const auto count = [&](Direction direction, const Sights& sights) {
        return counter.ring(direction, group, sights);
      };
      FLASHJIT_ASSIGN(made, in_faster_order(problem, way, count, gradients));
      way = std::move(made);
    }
    if (ranks > 1 || heads_over == 1) ways.push_back(std::move(way));
  }
  return ways;
}

}  // namespace flashjit
