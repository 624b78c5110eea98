// This is ring attention over the processes of MPI, forward and backward: `mpirun -n 4 ring`. Each rank has a share of
// a causal sequence. Its queries stay, while keys and values travel from rank to rank, and in each step the rank
// computes with those that it has, adding to what earlier steps gave (`accumulate`). The next ones arrive meanwhile. At
// the end rank 0 compares all with attention by its definition, in plain loops in double over the whole sequence.
//
// `ring` computes on processors in fp32, and MPI sends what travels. `ring_nccl` is the same program for GPUs, with a
// GPU for each rank, bf16, and NCCL: what differs is in exchange_mpi.h and exchange_nccl.h.
#ifdef WITH_NCCL
#include "exchange_nccl.h"
#else
#include "exchange_mpi.h"
#endif

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "flashjit/flashjit.hpp"

using flashjit::Arguments;
using flashjit::Tensor;

// A chunk has kChunk tokens, and a share is two chunks.
constexpr int kChunk = 64, kRows = 2 * kChunk;
constexpr int kHeads = 4, kKvHeads = 2, kDim = 64;
const std::string kLayer = " " + dtype_of<Element>() + " d=64 heads=4/2 accumulate";

int rank = 0, ranks = 1;

int neighbour(int hops) { return ((rank + hops) % ranks + ranks) % ranks; }

// The sequence is cut into 2 * ranks chunks, and rank r has the r-th from the front and the r-th from the back
// (zigzag). With a causal mask early queries see little and late ones much, so all ranks have equally much to
// compute.
int token_of(int owner, int row) {
  return row < kChunk ? owner * kChunk + row : (2 * ranks - 1 - owner) * kChunk + row - kChunk;
}

// A failure of one rank ends all of them. MPI does so by itself when one of its own calls fails.
[[noreturn]] void fail(const flashjit::Error& error) {
  std::fprintf(stderr, "rank %d: %s: %s\n%s", rank, name(error.kind), error.message.c_str(), error.detail.c_str());
  MPI_Abort(MPI_COMM_WORLD, 1);
  std::abort();
}

template <class T>
T value_of(flashjit::Result<T> result) {
  if (!result) fail(result.error());
  return *std::move(result);
}

using Rows = std::vector<float>;  // [tokens, heads, kDim]

Buffer<Element> elements_of(const Rows& rows) {
  std::vector<Element> elements;
  for (const float x : rows) elements.push_back(element_of(x));
  return Buffer<Element>(std::move(elements));
}

// A pair is K and behind it V of a share, or their gradients, in one message.
using Pair = Buffer<Element>;
using Gradients = Buffer<float>;
constexpr int kPart = kRows * kKvHeads * kDim, kPair = 2 * kPart;

// These tensors of a rank's tokens stay with the rank.
struct Queries {
  Buffer<Element> q, go, final_o;  // `go` is the gradient of O, which comes from the layers above
  Buffer<float> o, dq, lse;        // LSE: [kHeads, kRows]
};

// This is a kernel and the number of SMs that its launches may take beside an exchange. 0 stands for all, which kernels
// need that cannot be limited.
struct Step {
  std::shared_ptr<flashjit::Kernel> kernel;
  int sms;
};

// One kernel is for the step in which a rank has its own keys, and one for all others, whose mask hides nothing.
struct Kernels {
  Step causal, full;

  Kernels(flashjit::Engine& engine, const std::string& operation, int sms)
      : causal{value_of(engine.prepare(operation + kLayer + " mask=\"causal\"")), sms},
        full{value_of(engine.prepare(operation + kLayer)), sms} {}
};

struct Span {
  int begin, count;
};

// Returns the rows of this rank's queries that see keys of `owner`, and the rows of the keys that they see. The chunks
// of an earlier rank are before and behind both of ours, and those of a later rank lie between ours. Our own two are in
// order, as if nothing were between them.
std::pair<Span, Span> seen(int owner) {
  const Span all = {0, kRows}, first = {0, kChunk}, second = {kChunk, kChunk};
  if (owner == rank) return {all, all};
  return owner < rank ? std::pair{all, first} : std::pair{second, all};
}

template <class T>
Tensor rows_of(T* data, int heads, Span rows) {
  return {data + rows.begin * heads * kDim, dtype_of<T>(), {1, rows.count, heads, kDim}, {}};
}

// Makes the operands of a step that forward and backward share.
Arguments step_of(Queries& mine, Pair& theirs, int owner) {
  const auto [queries, keys] = seen(owner);
  Arguments a;
  a.q = rows_of(mine.q.data(), kHeads, queries);
  a.k = rows_of(theirs.data(), kKvHeads, keys);
  a.v = rows_of(theirs.data() + kPart, kKvHeads, keys);
  a.lse = {mine.lse.data() + queries.begin, "fp32", {1, kHeads, queries.count}, {kHeads * kRows, kRows, 1}};
  return a;
}

// Launches keep data in it between their steps. All launches are on one stream, so they can share it.
Buffer<char> workspace;

void run(const Network& network, Kernels& kernels, Arguments& a, int owner) {
  Step& step = owner == rank ? kernels.causal : kernels.full;
  const int bytes = static_cast<int>(value_of(step.kernel->workspace_bytes(a)));
  if (workspace.size() < bytes) workspace = Buffer<char>(std::vector<char>(bytes));
  a.workspace = workspace.data(), a.workspace_bytes = workspace.size();
  a.sms = step.sms;
  auto done = step.kernel->run(a, network.stream());
  if (!done && a.sms > 0 && done.error().message.rfind("sms:", 0) == 0) {
    step.sms = 0, a.sms = 0;
    done = step.kernel->run(a, network.stream());
  }
  if (!done) fail(done.error());
}

// It calls compute(step, owner, K and V of the owner) for all owners, beginning with this rank.
template <class Compute>
void go_around(const Network& network, Pair present, Compute compute) {
  Pair next = elements_of(Rows(kPair));
  Exchange exchange(network, 1);
  for (int step = 0; step < ranks; ++step) {
    if (step + 1 < ranks) exchange.begin(present, neighbour(1), next, neighbour(-1));
    compute(step, neighbour(-step), present);
    exchange.end();
    std::swap(present, next);
  }
}

// The first step finds an LSE of -infinity: nothing has been seen yet, so O may be anything.
void forward(const Network& network, Kernels& kernels, Queries& mine, Pair own) {
  go_around(network, std::move(own), [&](int, int owner, Pair& theirs) {
    Arguments a = step_of(mine, theirs, owner);
    a.o = rows_of(mine.o.data(), kHeads, seen(owner).first);
    run(network, kernels, a, owner);
  });
}

// It adds to dq, which stays, and gives the gradients of this rank's own keys and values. These are sums over all
// ranks, and travel with the keys. If a sum went to the next rank, it would have to arrive between two steps, and all
// would wait for it. So it goes to the rank after the next, and is on its way while a step is computed: the keys of
// an owner have two sums, one of even steps and one of odd steps. The last two steps send them home, where they are
// added.
Rows backward(const Network& network, Kernels& kernels, Queries& mine, Pair own) {
  const Rows zeros(kPair);
  Gradients sum(zeros), leaving(zeros), arriving(zeros);
  Exchange exchange(network, 2);
  go_around(network, std::move(own), [&](int step, int owner, Pair& theirs) {
    const auto [queries, keys] = seen(owner);
    Arguments a = step_of(mine, theirs, owner);
    a.o = rows_of(mine.final_o.data(), kHeads, queries);
    a.params["do"] = rows_of(mine.go.data(), kHeads, queries);
    a.params["dq"] = rows_of(mine.dq.data(), kHeads, queries);
    a.params["dk"] = rows_of(sum.data(), kKvHeads, keys);
    a.params["dv"] = rows_of(sum.data() + kPart, kKvHeads, keys);
    run(network, kernels, a, owner);
    exchange.end();
    // This step's sum leaves, the next step adds to the one that has arrived, and the third has room for another.
    std::swap(sum, leaving);
    std::swap(sum, arriving);
    const int hops = step + 1 < ranks ? 2 : 1;  // After the last step the owner of the sum is the next rank.
    exchange.begin(leaving, neighbour(hops), arriving, neighbour(-hops));
  });
  exchange.end();
  Rows total = sum.read();
  const Rows last = arriving.read();
  for (int i = 0; i < kPair; ++i) total[i] += last[i];
  return total;
}

enum Drawn { kQ, kK, kV, kGo };

// Draws random rows at these tokens, in numbers that an Element can hold. Each rank can draw all of them, so that
// inputs need not be sent to rank 0.
Rows draw(Drawn which, int heads, const std::vector<int>& tokens) {
  Rows rows;
  for (const int token : tokens) {
    std::mt19937 random(4 * token + which);
    std::normal_distribution<float> normal;
    for (int i = 0; i < heads * kDim; ++i) rows.push_back(float_of(element_of(normal(random))));
  }
  return rows;
}

struct Whole {
  std::vector<double> o, dq, dk, dv;  // [tokens, heads, kDim]
};

double dot(const float* a, const float* b) { return std::inner_product(a, a + kDim, b, 0.0); }

// Adds one head of one query, at index `at`, and all its contributions to gradients. K and V begin at `at_kv`.
void add_query(const Rows& q, const Rows& k, const Rows& v, const Rows& go, int token, int at, int at_kv, Whole& to) {
  const double scale = 1 / std::sqrt(double{kDim});
  const int step = kKvHeads * kDim;  // distance from one key to the next
  std::vector<double> p;
  double total = 0, delta = 0;
  for (int j = 0; j <= token; ++j) p.push_back(std::exp(dot(&q[at], &k[at_kv + j * step]) * scale));
  for (const double weight : p) total += weight;
  for (int j = 0; j <= token; ++j) {
    p[j] /= total;
    for (int i = 0; i < kDim; ++i) to.o[at + i] += p[j] * v[at_kv + j * step + i];
  }
  for (int i = 0; i < kDim; ++i) delta += go[at + i] * to.o[at + i];
  for (int j = 0; j <= token; ++j) {
    const int key = at_kv + j * step;
    const double ds = p[j] * (dot(&go[at], &v[key]) - delta) * scale;
    for (int i = 0; i < kDim; ++i) {
      to.dq[at + i] += ds * k[key + i];
      to.dk[key + i] += ds * q[at + i];
      to.dv[key + i] += p[j] * go[at + i];
    }
  }
}

Whole by_definition() {
  std::vector<int> tokens(ranks * kRows);
  std::iota(tokens.begin(), tokens.end(), 0);
  const Rows q = draw(kQ, kHeads, tokens), k = draw(kK, kKvHeads, tokens), v = draw(kV, kKvHeads, tokens),
             go = draw(kGo, kHeads, tokens);
  Whole whole;
  whole.o.resize(q.size()), whole.dq.resize(q.size()), whole.dk.resize(k.size()), whole.dv.resize(v.size());
  for (const int token : tokens) {
    for (int head = 0; head < kHeads; ++head)
      add_query(q, k, v, go, token, (token * kHeads + head) * kDim, head / (kHeads / kKvHeads) * kDim, whole);
  }
  return whole;
}

// All ranks call it with their shares. The result of rank 0 is the norm of the difference, divided by the norm of
// `wanted`. A NaN anywhere makes it NaN.
double error_of(const float* share, int heads, const std::vector<double>& wanted) {
  const int width = heads * kDim, count = kRows * width;
  std::vector<float> shares(rank == 0 ? ranks * count : 0);
  MPI_Gather(share, count, MPI_FLOAT, shares.data(), count, MPI_FLOAT, 0, MPI_COMM_WORLD);
  double differs = 0, norm = 0;
  for (int i = 0; i < static_cast<int>(shares.size()); ++i) {
    const double exact = wanted[token_of(i / count, i % count / width) * width + i % width];
    differs += (shares[i] - exact) * (shares[i] - exact);
    norm += exact * exact;
  }
  return std::sqrt(differs / norm);
}

// Returns whether the results are right. Only rank 0 knows.
bool compare(const Queries& mine, const Rows& gradients) {
  const Whole whole = rank == 0 ? by_definition() : Whole{};
  const Rows o = mine.o.read(), dq = mine.dq.read();
  const double errors[] = {error_of(o.data(), kHeads, whole.o), error_of(dq.data(), kHeads, whole.dq),
                           error_of(gradients.data(), kKvHeads, whole.dk),
                           error_of(gradients.data() + kPart, kKvHeads, whole.dv)};
  if (rank != 0) return true;
  const bool right =
      std::all_of(std::begin(errors), std::end(errors), [](double error) { return error < kLargestError; });
  std::printf("%d tokens on %d ranks: %s, relative errors: o %.1e, dq %.1e, dk %.1e, dv %.1e\n", ranks * kRows, ranks,
              right ? "right" : "wrong", errors[0], errors[1], errors[2], errors[3]);
  return right;
}

bool compute() {
  const Network network;
  // This is done once, when the program starts, because it may compile. Each spec is compiled by one rank, for which
  // the others wait.
  const auto engine = value_of(flashjit::Engine::create(network.engine()));
  const int sms = ranks > 1 ? network.sms_beside_exchanges() : 0;
  Kernels forwards(*engine, "fwd", sms), backwards(*engine, "bwd", sms);

  std::vector<int> tokens;
  for (int row = 0; row < kRows; ++row) tokens.push_back(token_of(rank, row));
  const Rows zeros(kRows * kHeads * kDim);
  Queries mine = {.q = elements_of(draw(kQ, kHeads, tokens)),
                  .go = elements_of(draw(kGo, kHeads, tokens)),
                  .final_o = {},
                  .o = Buffer<float>(zeros),
                  .dq = Buffer<float>(zeros),
                  .lse = Buffer<float>(Rows(kHeads * kRows, -INFINITY))};
  Rows keys = draw(kK, kKvHeads, tokens);
  const Rows values = draw(kV, kKvHeads, tokens);
  keys.insert(keys.end(), values.begin(), values.end());

  forward(network, forwards, mine, elements_of(keys));
  mine.final_o = elements_of(mine.o.read());
  const Rows gradients = backward(network, backwards, mine, elements_of(keys));
  workspace = {};
  return compare(mine, gradients);
}

int main(int argc, char** argv) {
  int provided = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided);  // FlashJIT has threads, which never call MPI.
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  if (provided < MPI_THREAD_FUNNELED) fail(flashjit::unsupported("this MPI takes no process that has several threads"));

  const bool right = compute();
  MPI_Finalize();
  return right ? 0 : 1;
}
