// What a spec can make of the source: words out of a closed set, and only so much of it.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <regex>
#include <set>

#include "codegen/cuda/embedded_templates.h"
#include "compiler/families/family.h"
#include "compiler/program/vocabulary.h"
#include "runtime/engine/environment.h"
#include "tests/fault/store_fixture.h"
#include "tests/random/spec_generator.h"
#include "tests/requests.h"

namespace flashjit {
namespace {

struct Token {
  enum Kind { String, Word, Number, Sign } kind;  // in the order of the groups below
  std::string text;
};

// Tokens of C++ without comments. What is none of ours (a backslash, a quote that does not end, a byte beyond ASCII) is
// a Sign.
std::vector<Token> tokens_of(const std::string& text) {
  static const std::regex token(
      R"re(//[^\n]*|("[^"\n\\]*")|([A-Za-z_][A-Za-z_0-9]*)|([0-9][A-Za-z_0-9.]*(?:[eE][+-][0-9]+f?)?)|([^\s]))re");
  std::vector<Token> tokens;
  for (std::sregex_iterator i(text.begin(), text.end(), token), end; i != end; ++i) {
    for (std::size_t kind = 0; kind < 4; ++kind) {
      if ((*i)[kind + 1].matched) tokens.push_back({static_cast<Token::Kind>(kind), (*i)[kind + 1]});
    }
  }
  return tokens;
}

class ClosedSource {
 public:
  ClosedSource() {
    // Ours alone: the templates, the lines that statements are, and the few words that only emitters write.
    for (const EmbeddedFile& file : embedded_templates()) add_words(file.text);
    for (const TileOperation& operation : shared_operations()) add_words(operation.line);
    for (const Family family : families()) {
      if (!family->vocabulary) continue;
      for (const TileOperation& operation : family->vocabulary->operations) add_words(operation.line);
    }
    for (const char* word :
         {"kernel_config", "extern", "__global__", "__launch_bounds__", "__grid_constant__", "__cluster_dims__",
          "flashjit_forward", "flashjit_naive_scores", "flashjit_naive_softmax", "flashjit_naive_product",
          "flashjit_naive_score_gradients", "flashjit_naive_query_gradients", "flashjit_naive_key_gradients",
          "flashjit_append", "flashjit_value_rows", "flashjit_transpose_values", "flashjit_widen_keys",
          "flashjit_combine_parts", "flashjit_tile_bounds", "flashjit_pair_answers", "flashjit_tile_lists",
          "flashjit_block_states", "flashjit_wide_rows", "flashjit_shown_keys", "tile_bounds", "pair_answers", "Key",
          "Number", "Visit", "Math",
          // What intermediate results are called.
          "allowed", "condition", "element", "scalar", "squashed", "power", "distance", "x", "offset", "qpos",
          "first_qpos", "last_qpos", "position", "block", "within", "limit", "clamped", "block_begin", "product",
          "q_lo", "q_hi", "k_lo", "k_hi", "choice", "value"}) {
      words_.insert(word);
    }
  }

  // What does not belong there; empty: nothing.
  std::string foreign(const KernelSource& source) const {
    std::string found;
    for (const SourceFile& file : source.generated) {
      for (const char c : file.text) {
        if (c != '\n' && (c < ' ' || c > '~')) found += " a control character";
      }
      if (file.name == "matrix.gen.cuh")
        continue;  // from numbers of the config alone; inline assembly has its own words
      for (const Token& token : tokens_of(file.text)) {
        if (!belongs(token)) found += " " + token.text;
      }
      static const std::regex comment("//[^\n]*\\\\\n|/\\*|\\?\\?");
      if (std::regex_search(file.text, comment)) found += " a comment that does not end with its line";
    }
    return found;
  }

 private:
  void add_words(std::string_view text) {
    for (const Token& token : tokens_of(std::string(text))) {
      if (token.kind == Token::Word) words_.insert(token.text);
    }
  }
  bool belongs(const Token& token) const {
    static const std::regex count("_[0-9]+$"),
        include("\"(templates/([a-z_]+/)?[a-z_]+\\.(h|cuh)|[a-z]+\\.gen\\.cuh|C)\"");
    switch (token.kind) {
      case Token::Word:
        return words_.contains(token.text) || words_.contains(std::regex_replace(token.text, count, ""));
      case Token::Number: return true;
      case Token::String: return std::regex_match(token.text, include);
      case Token::Sign: return std::string("#<>{}()[];:,.=+-*/%!&|?~^").find(token.text) != std::string::npos;
    }
    return false;
  }

  std::set<std::string> words_;
};

// Any target, both families, the textbook version.
void for_each_source(const std::string& spec, const std::function<void(const KernelSource&)>& visit) {
  for (const char* schedule : {"family=sync", "family=hopper", "family=naive"}) {
    const auto plan = plan_spec(spec, "sm_90a", schedule);
    if (!plan) continue;  // as a hopper kernel it may be impossible
    const auto source = emit_cuda(*plan);
    ASSERT_TRUE(source) << spec << ": " << source.error().message;
    visit(*source);
  }
}

TEST(SourceFault, WordsOfRandomSpecsAreOurs) {
  const ClosedSource closed;
  int sources = 0;
  for (std::uint64_t seed = 1; seed <= (is_long() ? 1000u : 150u); ++seed) {
    const std::string spec = testing_random::draw_case(seed, {.device = Device::Gpu}).spec;
    for_each_source(spec, [&](const KernelSource& source) {
      ++sources;
      EXPECT_EQ(closed.foreign(source), "") << "seed " << seed << ": " << spec;
    });
  }
  EXPECT_GT(sources, 200);
}

// Names and texts that would mean something if they reached a compiler or a shell.
const char* const kHostile[] = {
    "fwd bf16 d=64 heads=4 score=\"s + asm[h]\" params=\"asm: fp32[1]\"",
    "fwd bf16 d=64 heads=4 score=\"s + system * __nv_printf\" params=\"system: fp32, __nv_printf: fp32\"",
    "fwd bf16 d=64 heads=4 score=\"s + operator + params + config + seq\" params=\"operator: fp32, params: fp32, config: fp32, seq: fp32\"",
    "fwd bf16 d=64 heads=4 score=\"s + Int64 * flashjit\" params=\"Int64: fp32, flashjit: fp32\"",
    "fwd bf16 d=64 heads=4 mask=\"q >= k; touch touched\"",
    "fwd bf16 d=64 heads=4 mask=\"causal\"; touch touched",
    "fwd bf16 d=64 heads=4 mask=\"$(touch touched)\"",
    "fwd bf16 d=64 heads=4 mask='`touch touched`'",
    "fwd bf16 d=64 heads=4 mask=\"q >= k\n#include </etc/passwd>\n\"",
    "fwd bf16 d=64 heads=4 mask=\"q >= k // \\\n asm(\"trap;\")\"",
    "fwd bf16 d=64 heads=4 mask=\"q >= k */ __trap() /*\"",
    "fwd bf16 d=64 heads=4 mask=\"q >= k\" | touch touched",
    "fwd bf16 d=64 heads=4 params=\"a;touch touched: fp32\"",
    "fwd bf16 d=64 heads=4 params=\"a\": fp32\"",
    "fwd bf16 d=64 heads=4 mask=\"q \xe2\x89\xa5 k\"",
    "fwd bf16 d=64 heads=4 mask=\"q >= k?\?/\"",
};

TEST_F(StoreFault, HostileTextsReachNeitherSourceNorShell) {
  const ClosedSource closed;
  int accepted = 0;
  for (const char* text : kHostile) {
    for_each_source(text, [&](const KernelSource& source) {
      ++accepted;
      EXPECT_EQ(closed.foreign(source), "") << text;
    });
  }
  EXPECT_GE(accepted, 8);
  if (auto nvrtc = Nvrtc::open(read_environment()->nvrtc); !nvrtc) GTEST_SKIP() << nvrtc.error().message;
  EXPECT_EQ(in_child([&] {
              if (chdir(folder.c_str()) != 0) return 1;
              setenv("FLASHJIT_DUMP_DIR", (folder + "/$(touch touched)").c_str(), 1);
              KernelStore store({.directory = folder + "/; touch touched"});
              for (const char* text : kHostile) {
                (void)compile_spec(text, "sm_80", "family=sync,tile_q=64,tile_kv=64", {.store = &store});
                (void)compile_spec("fwd bf16 d=64 heads=4", text, "");
                (void)compile_spec("fwd bf16 d=64 heads=4", "sm_80", text);
              }
              return store.counters().compiles >= 4 ? 0 : 2;
            }),
            0);
  for (const auto& entry : fs::recursive_directory_iterator(folder)) EXPECT_NE(entry.path().filename(), "touched");
}

// The most that a spec can ask for: the most functions, operations and parameters, the largest tiles.
std::string repeat(int times, const std::function<std::string(int)>& text) {
  std::string all;
  for (int i = 0; i < times; ++i) all += text(i);
  return all;
}

std::vector<std::string> greedy_specs() {
  static_assert(kMaxFunctions == 16 && kMaxExprNodes == 512 && kMaxParams == 8, "these are what the specs go up to");
  const auto number = [](int i) { return std::to_string(i + 2); };
  const std::string deep = repeat(16, [](int) { return "tanh(s + "; }) + "s" + std::string(16, ')'),
                    wide = repeat(16, [&](int i) { return " + exp(s * " + number(i) + ".5)"; }),
                    distances = repeat(80, [&](int i) { return " | (q - k == " + number(3 * i) + ")"; }),
                    remainders = repeat(60, [&](int i) { return " | (q + k) % " + number(i) + " == 1"; });
  std::string doubled = "s";
  while (doubled.size() < 1000) doubled = "(" + doubled + " * " + doubled + ")";
  const std::string reads =
      "fwd bf16 d=64 heads=64/2 score=\"s + a[b, h, q, k] * e + i[h, q, k] + c[b, q] + d[b, k] + f[q, k] + g[q, k] + j[k]\""
      " params=\"a: fp32[4], i: bf16[3], c: i32[2], d: i64[2], e: fp32, f: fp16[2], g: u8[2], j: u32[1]\"";
  return {"fwd bf16 d=256 heads=64/2 score=\"" + deep + "\"",
          "fwd bf16 d=256 heads=64/2 score=\"s" + wide + "\"",
          reads,
          "fwd bf16 d=64 heads=64/2 score=\"" + doubled + "\"",
          "fwd bf16 d=256 heads=64/2 mask=\"causal" + distances + "\"",
          "fwd bf16 d=64 heads=64/2 mask=\"causal" + remainders + "\"",
          "fwd fp16 d=256 heads=64/2 layout=packed lse=ln max_logit sink score=\"softcap(30); bias(table, bf16)\""};
}

TEST(SourceFault, SizeIsBounded) {
  // A kernel that computes is unrolled over the elements of a thread; what is not bounded by its text is by these.
  constexpr std::size_t kMostSource = 256 * 1024;
  std::size_t most = 0;
  int accepted = 0;
  const auto look = [&](const std::string& spec) {
    for_each_source(spec, [&](const KernelSource& source) {
      ++accepted;
      std::size_t bytes = 0;
      for (const SourceFile& file : source.generated) bytes += file.text.size();
      EXPECT_LE(bytes, kMostSource) << spec;
      most = std::max(most, bytes);
    });
  };
  const std::vector<std::string> greedy = greedy_specs();
  for (const std::string& spec : greedy) look(spec);
  EXPECT_EQ(accepted, 3 * static_cast<int>(greedy.size())) << "every family takes each of them";
  for (std::uint64_t seed = 1; seed <= (is_long() ? 1000u : 150u); ++seed)
    look(testing_random::draw_case(seed, {.device = Device::Gpu}).spec);
  printf("at most %zu bytes of generated source\n", most);
}

}  // namespace
}  // namespace flashjit
