// Computes scores of a tile and their online softmax. A lane holds a row of each octet (row lane / 4) and two
// neighbouring keys of every eight. O is transposed: a lane holds columns of two rows.
#pragma once

#include "templates/decode/key_facts.cuh"
#include "templates/score_and_mask.cuh"

namespace flashjit {

constexpr int kRowPairs = row_pairs(config);
// They count the products of a piece.
constexpr int kKeyProducts = key_products(config), kValueProducts = value_products(config);
constexpr int kOutputs = kValuePieces * kValueProducts;  // The number of instructions that make O of eight rows.
constexpr Element kProduct = product_element(config);

constexpr bool kManyRows = has_many_rows(config);

// The words of an octet of Q that a lane has.
using QueryWords = u32[kKeyPieces][2 * kKeyProducts];

using Scores = float[kKeyOctets][4 * kRowPairs];  // Row octet r has elements 2 r and 2 r + 1.
using Output = float[kOctets][kOutputs][4];

// This is how far, in powers of two, a row's maximum may rise above its reference before O and the sum are rescaled.
constexpr float kRaiseThreshold = 8.0f;

// The state of a warp's rows; `sum` is this lane's share. With scales of keys O is divided by its row's `unit`, and
// halves hold P divided by it.
struct SoftmaxRows {
  float reference[kOctets], sum[kOctets], top[kOctets], unit[kOctets];

  __device__ void clear() {
#pragma unroll
    for (int r = 0; r < kOctets; ++r) {
      reference[r] = top[r] = -kInfinity;
      sum[r] = unit[r] = 0;
    }
  }
};

// Turns a row of bf16 into halves. Its largest element becomes 2^14 or more, and the smallest half is then 2^-38 of
// that. Returns the factor that restores the row.
__device__ inline float to_halves(QueryWords& words) {
  const auto low = [](u32 word) { return __uint_as_float(word << 16); };
  const auto high = [](u32 word) { return __uint_as_float(word & 0xffff0000); };
  float largest = 0;
#pragma unroll
  for (int j = 0; j < kKeyPieces; ++j)
#pragma unroll
    for (int i = 0; i < 2 * kKeyProducts; ++i) {
      const u32 word = words[j][i];
      largest = fmaxf(largest, fmaxf(fabsf(low(word)), fabsf(high(word))));
    }
  // Exponents are compared as bits. Rows of nearly nothing count as a little more, so that all factors are normal
  // numbers.
  const int exponent = max(static_cast<int>(__float_as_uint(quad_max(largest)) >> 23), 27);
  const float up = __uint_as_float(static_cast<u32>(268 - exponent) << 23);
#pragma unroll
  for (int j = 0; j < kKeyPieces; ++j)
#pragma unroll
    for (int i = 0; i < 2 * kKeyProducts; ++i) {
      u32& word = words[j][i];
      word = pack<Element::f16>(low(word) * up, high(word) * up);
    }
  return __uint_as_float(static_cast<u32>(exponent - 14) << 23);
}

// Loads eight elements of a row of Q.
__device__ inline uint4 eight_of_query(const Asked* q) {
  if constexpr (has_scaled_queries(config)) return widened<config.queries>(*reinterpret_cast<const uint2*>(q));
  else return *reinterpret_cast<const uint4*>(q);
}

__device__ inline void set_words(u32 (&words)[2 * kKeyProducts], int i, const uint4& piece) {
  words[4 * i] = piece.x, words[4 * i + 1] = piece.y, words[4 * i + 2] = piece.z, words[4 * i + 3] = piece.w;
}

__device__ inline void load_octet(QueryWords& words, float& scale, const KernelParams& params, const Segment& s,
                                  int octet) {
  const Query query = query_of(s, octet);
  const Asked* row =
      static_cast<const Asked*>(params.q) + query_row(params.q_stride, s.seq, query.seq.h, query.q) + key_column();
#pragma unroll
  for (int j = 0; j < kKeyPieces; ++j)
#pragma unroll
    for (int i = 0; i < kKeyProducts / 2; ++i)
      set_words(words[j], i, inside_key(eight_of_query(key_piece_of(row, j) + i * 8), j));
  if constexpr (is_scaled(config)) scale = score_scale(params, query.seq, query.q);
}

// Holds Q in registers.
struct RegisterOperands {
  QueryWords words[kOctets];
  float scale[kOctets];  // The factors of the lane's rows, where these are known only at run time.

  RegisterOperands() = default;
  __device__ explicit RegisterOperands(u32) {}

  __device__ void begin(const KernelParams& params, const Segment& s) {
#pragma unroll
    for (int r = 0; r < kOctets; ++r) load_octet(words[r], scale[r], params, s, r);
  }
  // Does the work that has to wait for the loads. Words that products take unchanged go through a shuffle that leaves
  // each where it is: without the shuffle ptxas moves them to their registers, and so waits for them, before K and V
  // are loaded.
  template <bool shared = false>
  __device__ void finish(const KernelParams&, const Segment&) {
#pragma unroll
    for (int r = 0; r < kOctets; ++r) {
      if constexpr (kProduct != config.element) {
        scale[r] *= to_halves(words[r]);
      } else if constexpr (!shared) {
#pragma unroll
        for (int j = 0; j < kKeyPieces; ++j)
#pragma unroll
          for (u32& word : words[r][j]) word = __shfl_sync(0xffffffff, word, lane_id());
      }
    }
  }
};

// True if rows of Q of 16 bits come by way of shared memory. A block then loads each row once, where otherwise each
// warp would compute where its lanes' pieces lie before it loads K.
constexpr bool kSharesQueries = kHasTeams && !has_scaled_queries(config);
struct SharedQueries {
  u32 rows;

  // Copies the rows as a group of copies by itself.
  __device__ void copy(const KernelParams& p, const Segment& s) const {
    constexpr u32 kChunks = config.head_dim_qk / 8;
#pragma unroll 1
    for (u32 i = threadIdx.x; i < kTileRows * kChunks; i += kThreads) {
      const u32 row = i / kChunks, chunk = i % kChunks, of_all = s.row_lo + row;
      if (static_cast<int>(row) >= rows_of(s)) break;
      const Int64 at = query_row(p.q_stride, s.seq, s.seq.hk * kGroup + of_all % kGroup, of_all / kGroup) + chunk * 8;
      copy_async<16>(rows + row * team_query_pitch(config) + chunk * 16, static_cast<const Asked*>(p.q) + at, true);
    }
    commit_copies();
  }
  __device__ void load(RegisterOperands& queries, const KernelParams& p, const Segment& s) const {
#pragma unroll
    for (int r = 0; r < kOctets; ++r) {
      const int row = min(r * kOctet + lane_id() / 4, rows_of(s) - 1);
      const u32 from = rows + row * team_query_pitch(config) + key_column() * 2;
#pragma unroll
      for (int j = 0; j < kKeyPieces; ++j)
#pragma unroll
        for (int i = 0; i < kKeyProducts / 2; ++i)
          set_words(queries.words[r][j], i, inside_key(load_shared(from + (j * kKeyColumns + i * 8) * 2), j));
      if constexpr (is_scaled(config)) {
        const Query query = query_of(s, r);
        queries.scale[r] = score_scale(p, query.seq, query.q);
      }
    }
  }
};

// Holds Q in shared memory, in the order in which each lane of any warp reads it.
struct SharedOperands {
  u32 operands;
  float scale[kOctets];

  __device__ explicit SharedOperands(u32 operands) : operands(operands) {}

  static constexpr int kOctetBytes = kKeyPieces * kKeyProducts / 2 * 32 * 16;
  __device__ u32 offset_of(int octet, int j, int i) const {
    return operands + octet * kOctetBytes + ((j * (kKeyProducts / 2) + i) * 32 + lane_id()) * 16;
  }
  __device__ u32 scales() const { return operands + kOctets * kOctetBytes; }

  __device__ void begin(const KernelParams&, const Segment&) {}
  // Each octet is written by one warp. The octets of the segment before have been read.
  __device__ void finish(const KernelParams& params, const Segment& s) {
#pragma unroll 1
    for (int octet = warp_id(); octet < kOctets; octet += config.decode.warps) {
      QueryWords words;
      float factor = 1;
      load_octet(words, factor, params, s, octet);
      if constexpr (kProduct != config.element) factor *= to_halves(words);
#pragma unroll
      for (int j = 0; j < kKeyPieces; ++j)
#pragma unroll
        for (int i = 0; i < kKeyProducts / 2; ++i)
          store_shared(offset_of(octet, j, i),
                       make_uint4(words[j][4 * i], words[j][4 * i + 1], words[j][4 * i + 2], words[j][4 * i + 3]));
      if (is_scaled(config) && lane_id() % 4 == 0)
        store_shared(scales() + (octet * kOctet + lane_id() / 4) * 4, __float_as_uint(factor));
    }
    __syncthreads();
    if constexpr (is_scaled(config)) {
#pragma unroll
      for (int r = 0; r < kOctets; ++r)
        scale[r] = __uint_as_float(load_shared_word(scales() + (r * kOctet + lane_id() / 4) * 4));
    }
  }
  __device__ void load(u32 (&words)[2 * kKeyProducts], int octet, int j) const {
#pragma unroll
    for (int i = 0; i < kKeyProducts / 2; ++i) set_words(words, i, load_shared(offset_of(octet, j, i)));
  }
};

using OperandsOfQueries = Either<kManyRows, SharedOperands, RegisterOperands>::type;

// Returns two words of a piece of K as the right operand of product `i`, converted where K has 8 bits.
__device__ inline HalfPairs key_operand(const uint4& piece, int i) {
  const u32 words[4] = {piece.x, piece.y, piece.z, piece.w};
  if constexpr (is_scaled(config)) return halves_of<config.cache>(words[i]);
  else return {words[2 * i], words[2 * i + 1]};
}

// Makes the left operand of product `i` from pieces of V of four keys: the columns 2 i (its rows 0 to 7) and 2 i + 1.
__device__ inline void value_operand(u32 (&a)[4], const uint4 (&v)[4], int i) {
  u32 words[4];
#pragma unroll
  for (int key = 0; key < 4; ++key) {
    const u32 of_key[4] = {v[key].x, v[key].y, v[key].z, v[key].w};
    words[key] = of_key[i * 4 / kValueProducts];
  }
  if constexpr (is_scaled(config)) {
    const u32 order = i % 2 == 0 ? 0x5140 : 0x7362;
    const HalfPairs first = halves_of<config.cache>(__byte_perm(words[0], words[1], order)),
                    second = halves_of<config.cache>(__byte_perm(words[2], words[3], order));
    a[0] = first.low, a[1] = first.high, a[2] = second.low, a[3] = second.high;
  } else {
    a[0] = __byte_perm(words[0], words[1], 0x5410), a[1] = __byte_perm(words[0], words[1], 0x7632);
    a[2] = __byte_perm(words[2], words[3], 0x5410), a[3] = __byte_perm(words[2], words[3], 0x7632);
  }
}

// Computes S = Q K^T.
template <class Tiles>
__device__ inline void compute_scores(Scores& s, const RegisterOperands& q, const Tiles& tiles) {
#pragma unroll
  for (int n = 0; n < kKeyOctets; ++n) {
    // Two sums keep an instruction from waiting for the one before.
    float sums[2][4] = {};
#pragma unroll
    for (int j = 0; j < kKeyPieces; ++j) {
      const uint4 k = tiles.key_piece(n, j);
      const u32(&low)[2 * kKeyProducts] = q.words[0][j], (&high)[2 * kKeyProducts] = q.words[kOctets - 1][j];
#pragma unroll
      for (int i = 0; i < kKeyProducts; ++i) {
        const u32 a[4] = {low[2 * i], kOctets > 1 ? high[2 * i] : 0, low[2 * i + 1], kOctets > 1 ? high[2 * i + 1] : 0};
        const HalfPairs b = key_operand(k, i);
        mma<kProduct>(sums[i % 2], a, b.low, b.high);
      }
    }
#pragma unroll
    for (int e = 0; e < 4; ++e) s[n][e] = sums[0][e] + sums[1][e];
  }
}

// Computes S = Q K^T with many rows: a piece of Q is read once for all keys of the tile.
template <class Tiles>
__device__ inline void compute_scores(Scores& s, const SharedOperands& q, const Tiles& tiles) {
  float sums[kKeyOctets][kRowPairs][4] = {};
#pragma unroll
  for (int j = 0; j < kKeyPieces; ++j) {
    // An octet that a pair lacks stays zero.
    u32 words[2 * kRowPairs][2 * kKeyProducts] = {};
#pragma unroll
    for (int r = 0; r < kOctets; ++r) q.load(words[r], r, j);
#pragma unroll
    for (int n = 0; n < kKeyOctets; ++n) {
      const uint4 k = tiles.key_piece(n, j);
#pragma unroll
      for (int i = 0; i < kKeyProducts; ++i) {
        const HalfPairs b = key_operand(k, i);
#pragma unroll
        for (int pair = 0; pair < kRowPairs; ++pair) {
          const u32(&low)[2 * kKeyProducts] = words[2 * pair], (&high)[2 * kKeyProducts] = words[2 * pair + 1];
          const u32 a[4] = {low[2 * i], high[2 * i], low[2 * i + 1], high[2 * i + 1]};
          mma<kProduct>(sums[n][pair], a, b.low, b.high);
        }
      }
    }
  }
#pragma unroll
  for (int n = 0; n < kKeyOctets; ++n)
#pragma unroll
    for (int e = 0; e < 4 * kRowPairs; ++e) s[n][e] = sums[n][e / 4][e % 4];
}

// Applies the score function, and sets scores of hidden keys to -infinity. The score function may load from a tensor
// that ends at the last key.
template <class Operands>
__device__ inline void apply_score_and_mask(Scores& s, const Operands& queries, const KeyFacts& facts,
                                            const KernelParams& params, const Segment& segment, int tile) {
  const int k_lo = tile * kTileKv, page_begin = k_lo - static_cast<u32>(k_lo) % kPageKeys,
            first[2] = {k_lo + score_key(0), k_lo + score_key(1)};
  if constexpr (!kScaleFolded) {
#pragma unroll
    for (int r = 0; r < kOctets; ++r) {
      const Query query = query_of(segment, r);
#pragma unroll
      for (int n = 0; n < kKeyOctets; ++n)
#pragma unroll
        for (int e = 2 * r; e < 2 * r + 2; ++e) {
          s[n][e] *= is_scaled(config) ? queries.scale[r] : config.scale;
          if constexpr (has_key_scales(config)) s[n][e] *= facts.scale_of_k[n][e % 2];
          s[n][e] = logit(params, query.seq, s[n][e], query.q, first[e % 2] + n * 8);
        }
    }
  }
  if (k_lo >= segment.full_begin && k_lo + kTileKv <= segment.full_end) return;
#pragma unroll
  for (int r = 0; r < kOctets; ++r) {
    const Query query = query_of(segment, r);
    const auto hides = [&](int key) {
      const int k = first[key % 2] + key / 2 * 8;
      return kListsAreMerged ? k - page_begin >= facts.tokens[r] : is_hidden(params, query.seq, query.q, k);
    };
    // It has a bit for each key, where the mask is evaluated in a loop.
    u32 hidden = 0;
    if constexpr (config.mask_is_long) {
#pragma unroll 1
      for (int key = 0; key < 2 * kKeyOctets; ++key) hidden |= static_cast<u32>(hides(key)) << key;
    }
#pragma unroll
    for (int key = 0; key < 2 * kKeyOctets; ++key) {
      if (config.mask_is_long ? hidden >> key & 1 : hides(key)) s[key / 2][2 * r + key % 2] = -kInfinity;
    }
  }
}

// Multiplies an octet of O^T by a factor for each row. Lane 4 g has row g, and lanes with i = lane % 4 hold columns of
// rows 2 i and 2 i + 1 of O^T.
__device__ inline void scale_output(Output& o, int octet, float factor) {
  const int lane = lane_id() % 4 * 8;
  const float even = __shfl_sync(0xffffffff, factor, lane), odd = __shfl_sync(0xffffffff, factor, lane + 4);
#pragma unroll
  for (int m = 0; m < kOutputs; ++m) {
    o[octet][m][0] *= even;
    o[octet][m][1] *= odd;
    o[octet][m][2] *= even;
    o[octet][m][3] *= odd;
  }
}

// The rare part of a softmax step: raises references to the maximum, and rescales sums and O. Returns whether the
// references have been subtracted from the scores already: a large reference must be subtracted, exactly, before scores
// are scaled.
__device__ inline bool raise_references(Scores& s, SoftmaxRows& rows, Output& o, const float (&maximum)[kOctets]) {
  bool large = false;
#pragma unroll
  for (int r = 0; r < kOctets; ++r) {
    const float factor = raise_reference(rows.reference[r], rows.sum[r], maximum[r]);
    large |= is_large(rows.reference[r]);
    if constexpr (has_key_scales(config)) rows.unit[r] *= factor;
    else scale_output(o, r, factor);
  }
  if (!__any_sync(0xffffffff, large)) return false;
#pragma unroll
  for (int r = 0; r < kOctets; ++r) {
    const float reference = rows.reference[r] == -kInfinity ? 0.0f : rows.reference[r];
#pragma unroll
    for (int n = 0; n < kKeyOctets; ++n) {
      s[n][2 * r] -= reference;
      s[n][2 * r + 1] -= reference;
    }
  }
  return true;
}

// One step of the online softmax turns scores into P.
__device__ inline void softmax_step(Scores& s, SoftmaxRows& rows, Output& o) {
  float maximum[kOctets];
  bool rose = false;
#pragma unroll
  for (int r = 0; r < kOctets; ++r) {
    float x = fmaxf(s[0][2 * r], s[0][2 * r + 1]);
#pragma unroll
    for (int n = 1; n < kKeyOctets; ++n) x = fmaxf(x, fmaxf(s[n][2 * r], s[n][2 * r + 1]));
    maximum[r] = quad_max(x);
    if constexpr (config.max_logit) rows.top[r] = fmaxf(rows.top[r], maximum[r]);
    rose |= maximum[r] > rows.reference[r] + kRaiseThreshold / kLog2Scale || fabsf(maximum[r]) > kLargeScore;
  }
  bool subtracted = false;
  if (__any_sync(0xffffffff, rose)) subtracted = raise_references(s, rows, o, maximum);
#pragma unroll
  for (int r = 0; r < kOctets; ++r) {
    const bool nothing = subtracted || rows.reference[r] == -kInfinity;
    const float offset = nothing ? 0.0f : rows.reference[r] * kLog2Scale;
#pragma unroll
    for (int n = 0; n < kKeyOctets; ++n)
#pragma unroll
      for (int e = 2 * r; e < 2 * r + 2; ++e) {
        s[n][e] = exp2_approx(s[n][e] * kLog2Scale - offset);
        rows.sum[r] += s[n][e];
      }
  }
}

// Multiplies P by the scales of V, in units of its row. A unit is about the largest of these scales so far, relative to
// the reference of the row, so halves have room above it and digits below. Units rise rarely, as references do.
__device__ inline void apply_value_scales(Scores& p, const KeyFacts& facts, SoftmaxRows& rows, Output& o) {
  constexpr float kLeastUnit = 0x1p-100f;  // One over it is a normal number.
  float largest[kOctets];
  bool rose = false;
#pragma unroll
  for (int r = 0; r < kOctets; ++r) {
    largest[r] = 0;
#pragma unroll
    for (int n = 0; n < kKeyOctets; ++n)
#pragma unroll
      for (int e = 2 * r; e < 2 * r + 2; ++e) {
        p[n][e] *= facts.scale_of_v[n][e % 2];
        largest[r] = fmaxf(largest[r], fabsf(p[n][e]));
      }
    largest[r] = quad_max(largest[r]);
    rose |= largest[r] > rows.unit[r] * 256.0f;
  }
  if (__any_sync(0xffffffff, rose)) {
#pragma unroll
    for (int r = 0; r < kOctets; ++r) {
      const float power = __uint_as_float(__float_as_uint(largest[r]) & 0x7f800000);
      const float unit = fmaxf(fmaxf(power, rows.unit[r]), kLeastUnit);
      scale_output(o, r, rows.unit[r] / unit);
      rows.unit[r] = unit;
    }
  }
#pragma unroll
  for (int r = 0; r < kOctets; ++r) {
    const float inverse = rows.unit[r] > 0 ? 1.0f / rows.unit[r] : 0.0f;
#pragma unroll
    for (int n = 0; n < kKeyOctets; ++n)
#pragma unroll
      for (int e = 2 * r; e < 2 * r + 2; ++e) p[n][e] *= inverse;
  }
}

// Computes O^T += V^T P^T: the accumulator of S is P^T as an operand. An instruction's rows are an even column of V in
// each lane's piece, then the odd one beside it.
template <class Tiles>
__device__ inline void accumulate_output(Output& o, const Scores& p, const Tiles& tiles) {
#pragma unroll
  for (int pair = 0; pair < kKeyPairs; ++pair) {
    u32 b[kOctets][2];
#pragma unroll
    for (int r = 0; r < kOctets; ++r) {
      b[r][0] = pack<kProduct>(p[2 * pair][2 * r], p[2 * pair][2 * r + 1]);
      b[r][1] = pack<kProduct>(p[2 * pair + 1][2 * r], p[2 * pair + 1][2 * r + 1]);
    }
#pragma unroll
    for (int j = 0; j < kValuePieces; ++j) {
      const uint4 v[4] = {tiles.value_piece(pair, j, 0), tiles.value_piece(pair, j, 1), tiles.value_piece(pair, j, 2),
                          tiles.value_piece(pair, j, 3)};
#pragma unroll
      for (int i = 0; i < kValueProducts; ++i) {
        u32 a[4];
        value_operand(a, v, i);
#pragma unroll
        for (int r = 0; r < kOctets; ++r) mma<kProduct>(o[r][j * kValueProducts + i], a, b[r][0], b[r][1]);
      }
    }
  }
}

}  // namespace flashjit
