#include <random>

#include <gtest/gtest.h>

#include "compiler/language/expr.h"
#include "compiler/spec/spec.h"
#include "compiler/analysis/interval.h"
#include "compiler/language/named.h"
#include "tests/unit/compiler/expr_random.h"

namespace flashjit {
namespace {

std::vector<Param> declared() {
  return {{"n", Dtype::I32, 0}, {"cap", Dtype::F32, 0}, {"lens", Dtype::I32, 1}, {"extra", Dtype::BF16, 4}};
}

Result<Expr> parse(std::string_view text, bool score = false, bool bottom_right = true) {
  std::vector<Param> params = declared();
  return parse_expr(text, {&params, bottom_right, score});
}

std::string reprinted(std::string_view text, bool score = false) {
  const Result<Expr> expr = parse(text, score);
  return expr ? print(*expr) : expr.error().message;
}

TEST(ExprParse, Precedence) {
  // What the left text means is written with all parentheses on the right.
  static const char* const kRows[][2] = {
      {"q >= k & q - k < 10", "(q >= k) & ((q - k) < 10)"},
      {"q < 1 | k < 2 & h < 3", "(q < 1) | ((k < 2) & (h < 3))"},
      {"!q < k & h < 1", "(!(q < k)) & (h < 1)"},
      {"q - k - h < 0", "((q - k) - h) < 0"},
      {"q - k * h / 2 % 3 < 0", "(q - (((k * h) / 2) % 3)) < 0"},
      {"-q * k < 0", "((-q) * k) < 0"},
      {"- -q < 0", "(-(-q)) < 0"},
      {"q + k > h + b", "(q + k) > (h + b)"},
      {"k >= qpos - 5", "k >= ((q + k_len) - q_len) - 5"},
      {"max(q, k, h) < 1", "max(max(q, k), h) < 1"},
  };
  for (const auto& [text, meaning] : kRows) {
    const Result<Expr> a = parse(text), b = parse(meaning);
    ASSERT_TRUE(a) << text << ": " << a.error().message;
    ASSERT_TRUE(b) << meaning << ": " << b.error().message;
    EXPECT_TRUE(same(*a, *b)) << text << " is read as " << print(*a);
  }
}

TEST(ExprParse, PrintsWithTheFewestParentheses) {
  static const char* const kMasks[] = {
      "k <= q",
      "q < k",
      "k >= q + 5",
      "q - (k - h) < 0",
      "(q + k) * 2 < 5",
      "q / (k + 1) % 3 == 0",
      "!(k < q | h < 2)",
      "!k < q",
      "(k < q | h < 2) & b == 0",
      "k < q | h < 2 & b == 0",
      "-(q + k) < -5",
      "3 < 5",
      "h / 2 > 5",
      "k > q - -5",
      "k > -(5)",
      "where(k < q, h, b) != hk",
      "k < lens[b]",
      "k < lens[lens[lens[b] + 1] % 4]",
      "extra[b, h, q, k] > 0.5",
      "k < n",
      "bit(n, k % 64)",
      "true",
      "k > -9223372036854775808",
      "min(q, k) < abs(h)",
      "cap < 1e-30",
      "cap < -inf",
      "cap != nan",
      "cap < 3.4028235e+38",
      "where(k < q, true, h < 2)",
      "k < 3 & (q < 3 & h < 3)",
  };
  for (const char* text : kMasks) {
    EXPECT_EQ(reprinted(text), text);
  }
  EXPECT_EQ(reprinted("float(q) < float(k)"), "float(q) < k");  // the other side follows
  static const char* const kScores[] = {"s + q", "s * (k - q)", "exp(q)",        "max(s, q)",
                                        "-s",    "-(2.0) * s",  "s - (s - 1.0)", "float(q / 2)"};
  for (const char* text : kScores) EXPECT_EQ(reprinted(text, true), text);
}

TEST(ExprParse, RoundTripOfRandomExpressions) {
  const unsigned seed = std::random_device{}();
  testing::RandomExprs random(seed);
  testing::RandomExprs::World world;
  random.fill(world);
  for (int i = 0; i < 3000; ++i) {
    const bool score = i % 2;
    const Expr expr = random.make(score ? Type::Float : Type::Bool, 1 + i % 4);
    const std::string text = print(expr);
    if (node_count(expr) > kMaxExprNodes || function_count(expr) > kMaxFunctions || text.size() > kMaxExprText ||
        (!score && uses(expr, Variable::S)))
      continue;
    std::vector<Param> params = world.params;
    const Result<Expr> again = parse_expr(text, {&params, true, score});
    ASSERT_TRUE(again) << "seed " << seed << "\n"
                       << text << "\n"
                       << again.error().message << "\n"
                       << again.error().detail;
    ASSERT_TRUE(same(*again, expr)) << "seed " << seed << "\n" << text << "\n" << print(*again);
  }
}

struct Refused {
  const char* text;
  const char* says;
  std::size_t column;
  bool score = false;
};
const Refused kRefused[] = {
    {"", "the text ends", 0},
    {"   ", "the text ends", 3},
    {"k <", "the text ends", 3},
    {"k < q &", "the text ends", 7},
    {"(k < q", "ends where `)` must follow", 6},
    {"k < q)", "unexpected `)`", 5},
    {"causl", "did you mean `causal`?", 0},
    {"k < foo", "unknown name `foo`; declare a run-time parameter", 4},
    {"sliding_window(3)", "there is no function `sliding_window`; those that may stand here are where, min", 0},
    {"sliding_window(3)", ", window(l, r), ", 0},
    {"sliding_window(3)", ", chunk(n), ", 0},
    {"cosine(s)", "sigmoid, bit, float, ", 0, true},
    {"cosine(s)", ", softcap(c), ", 0, true},
    {"cosine(s)", ", bias(name, dtype = fp32), ", 0, true},
    {"sin(s)", "did you mean `min`? What may be called is where, min, max, abs, exp", 0, true},
    {"s * s ** 2.0", "write x * x for `x ** 2`, and exp(y * log(x)) for `x ** y`", 6, true},
    {"(s ** 2.0)", "write x * x for `x ** 2`", 3, true},
    {"k + 1", "a mask must be a condition", 0},
    {"k < q + (h < 2)", "the right side of `+` is a bool", 6},
    {"k & q < 2", "the left side of `&` is an int", 2},
    {"!k", "`!` is an int", 0},
    {"k = q", "write `==`", 2},
    {"k < q && h < 2", "write `&` for `&&`", 6},
    {"k < q and h < 2", "write `&` for `and`", 6},
    {"k < q or h < 2", "write `|` for `or`", 6},
    {"~causal", "write `!` for `~`", 0},
    {"k / 2 == q // 2", "write `/` for `//`; ints are divided rounding down", 11},
    {"k >> 2 == q", "there is no `>>`; multiply or divide by a power of two", 2},
    {"(k << 2) < q", "there is no `<<`; multiply or divide by a power of two", 3},
    {"k < 3 if q > 2 else k > 3", "write where(condition, a, b) for `a if condition else b`", 6},
    {"not causal", "unknown name `not`; did you mean `!`?", 0},
    {"kv_idx <= q", "unknown name `kv_idx`; did you mean `k`?", 0},
    {"k <= Q", "unknown name `Q`; did you mean `q`?", 5},
    {"k < q ? h : 2", "write where(condition, a, b) for `?` and `:`", 6},
    {"k < q || h < 2", "write `|` for `||`", 6},
    {"(k <= q && k > 0)", "write `&` for `&&`", 8},
    {"!(k <= q || k > 0)", "write `|` for `||`", 9},
    {"(k = 1)", "write `==` to compare", 3},
    {"where(k = q, 1, 2) > 1", "write `==` to compare", 8},
    {"lens[b = 1] > 1", "write `==` to compare", 7},
    {"(k # q)", "unexpected `#`", 3},
    {"(k < q q)", "expected `)`", 7},
    {"0 <= k < q", "comparisons do not chain", 7},
    {"k < 9223372036854775808", "does not fit 64 bits", 4},
    {"k < 123456789012345678901234567890123456789012345678901234567890", "does not fit 64 bits", 4},
    {"cap < 1e99", "outside the range of fp32", 6},
    {"k % 1.5 < 2", "`%` takes two ints", 2},
    {"lens < 3", "is a tensor of rank 1", 0},
    {"lens[b, q] < 3", "has rank 1, got 2 indices", 0},
    {"lens[float(lens[b])] < 3", "an index must be an int", 5},
    {"lens[1.5] < 3", "an index must be an int", 5},
    {"n[b] < 3", "is a scalar and takes no index", 1},
    {"where(k < q, 1) < 3", "`where` takes 3 arguments, got 2", 0},
    {"bit(k, 1.0)", "argument 2 of `bit` is a float, but must be an int", 0},
    {"k < \x01", "unexpected byte 0x01", 4},
    {"k \xc3\xa9 q", "unexpected byte 0xc3; the language is plain ASCII", 2},
    {"k # q", "unexpected `#`", 2},
    {"s < 1", "`s` is the score, which a mask cannot depend on", 0},
    {"alibi", "changes the score", 0},
    {"causal; causal", "chains the stages of a score", 6},
    {"window(3)", "needs its argument `r`; write window(l, r)", 0},
    {"window(3, 4, 5)", "takes no more arguments; write window(l, r)", 13},
    {"window(-2, 0)", "argument `l` of `window` is -2, but must be at least -1", 7},
    {"window(1.5, 0)", "argument `l` of `window` must be an int", 7},
    {"chunk(0)", "must be at least 1", 6},
    {"document(k)", "must be the name of a tensor", 9},
    {"document(5)", "must be the name of a tensor", 9},
    {"document(i32)", "must be the name of a tensor", 9},
    {"document(n)", "it is declared as i32 (a scalar)", 0},
    {"document(lens)", "reads `lens` as i32[2], but it is declared as i32[1]", 0},
    {"q_lo < k", "unknown name `q_lo`", 0},
    {"softcap(0)", "must be above 0", 8, true},
    {"softcap(-3)", "must be above 0", 8, true},
    {"softcap(nan)", "is nan, but must be above 0 and finite", 8, true},
    {"softcap(inf)", "is inf, but must be above 0 and finite", 8, true},
    {"softcap(-inf)", "is -inf, but must be above 0 and finite", 8, true},
    {"softcap(1.0 / 0)", "is inf, but must be above 0 and finite", 8, true},
    {"softcap(1e-39)", "from 1.2e-38 to 3.4e38", 8, true},
    {"causal", "a score must be a number", 0, true},
    {"s; ", "the text ends", 3, true},
    {"bias(x, i32)", "takes fp16, bf16 or fp32", 0, true},
    {"bias(x, y)", "one of fp16 bf16 fp32", 8, true},
};

TEST(ExprParse, ErrorsNameThePlace) {
  for (const Refused& row : kRefused) {
    const Result<Expr> result = parse(row.text, row.score);
    ASSERT_FALSE(result) << row.text;
    const Error& error = result.error();
    EXPECT_EQ(error.kind, ErrorKind::Invalid) << row.text;
    EXPECT_NE(error.message.find(row.says), std::string::npos) << row.text << ": " << error.message;
    EXPECT_EQ(error.message.find('\n'), std::string::npos) << row.text;
    const std::size_t line = error.detail.find('\n');
    ASSERT_NE(line, std::string::npos) << row.text;
    EXPECT_EQ(error.detail.substr(line + 1), std::string(2 + row.column, ' ') + "^") << row.text << "\n"
                                                                                     << error.detail;
  }
}

// A bound on every resource: each text ends soon, with a message and a caret.
TEST(ExprParse, HostileTexts) {
  const auto repeat = [](std::string_view part, std::size_t count) {
    std::string text;
    for (std::size_t i = 0; i < count; ++i) text += part;
    return text;
  };
  std::string squares = "s";
  for (int i = 0; i < 60; ++i) squares += "; s * s";
  const std::pair<std::string, bool> texts[] = {
      {repeat("(", 2000), false},
      {repeat("(", 2000) + "k < q" + repeat(")", 2000), false},
      {repeat("!", 4000) + "causal", false},
      {repeat("-", 4000) + "k < q", false},
      {repeat("abs(", 1000) + "k", false},
      {repeat("where(causal, ", 300) + "causal", false},
      {repeat("k < q & ", 500) + "true", false},
      {"k" + repeat(" + k", 1000) + " < q", false},
      {repeat("k < q | ", 1u << 20), false},
      {std::string(10u << 20, 'x'), false},
      {std::string(4000, '9'), false},
      {"k < " + std::string(4000, '9'), false},
      {"cap < 1e" + std::string(4000, '9'), false},
      {std::string("k <\0 q", 6), false},
      {std::string(4096, '\0'), false},
      {repeat("\xff\xfe", 1000), false},
      {repeat("\xe2\x98\x83", 1000), false},
      {squares, true},
      {repeat("bias(x); ", 400), true},
      {repeat("lens[", 700), false},
      {repeat("chunk(", 600), false},
      {"a" + std::string(4000, 'b') + " < k", false},
      {"k <\n\n\n\tq <", false},
  };
  for (const auto& [text, score] : texts) {
    const Result<Expr> result = parse(text, score);
    ASSERT_FALSE(result) << text.substr(0, 60);
    EXPECT_EQ(result.error().kind, ErrorKind::Invalid);
    EXPECT_FALSE(result.error().message.empty());
    EXPECT_LT(result.error().message.size(), 400u) << result.error().message;
    EXPECT_LT(result.error().detail.size(), 400u);
    EXPECT_EQ(result.error().detail.back(), '^') << text.substr(0, 60);
    for (char c : result.error().message + result.error().detail) EXPECT_TRUE(c == '\n' || (c >= ' ' && c <= '~'));
  }
}

TEST(ExprParse, TooManyParameters) {
  std::string text = "document(d0)";
  for (int i = 1; i < 10; ++i) text += " & document(d" + std::to_string(i) + ")";
  std::vector<Param> params;
  const Result<Expr> result = parse_expr(text, {&params, true, false});
  ASSERT_FALSE(result);
  EXPECT_NE(result.error().message.find("8 is the most"), std::string::npos) << result.error().message;
  EXPECT_TRUE(params.empty()) << "a text that is refused declares nothing";
}

// Whatever is accepted also survives everything that is done with an expression later.
TEST(ExprParse, MutatedTexts) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  static const std::pair<std::string, bool> kTexts[] = {
      {"causal & window(4096, 0)", false},
      {"k < 4 | window(1024, 0)", false},
      {"document(ids) & causal", false},
      {"tree(words)", false},
      {"prefix(7)", false},
      {"softcap(50); alibi", true},
      {"bias(x, bf16)", true},
      {"where(causal, s * cap, -inf)", true},
      {"s + extra[b, h, q, k] * 1.5e-3", true},
      {"k / 64 == q / 64 & (q - k) % 128 == 0", false},
      {"bit(n, k % 64)", false},
      {"max(q, k, lens[b]) - abs(n) < 9223372036854775807", false},
  };
  static const std::string kPieces[] = {"(", ")", "&", "|", "!", "-", "99999999999", "*",      "/", "%",
                                        "[", "]", ",", ";", "k", "s", "<=",          "window", "\0"};
  int accepted = 0;
  for (int i = 0; i < 20000; ++i) {
    const auto& [original, score] = kTexts[random() % std::size(kTexts)];
    std::string text = original;
    for (unsigned changes = 1 + random() % 4; changes > 0; --changes) {
      const std::size_t at = random() % (text.size() + 1);
      switch (random() % 4) {
        case 0: text.insert(at, 1, static_cast<char>(random() % 256)); break;
        case 1: text.insert(at, kPieces[random() % std::size(kPieces)]); break;
        case 2: text.erase(at, 1 + random() % 5); break;
        default: text.insert(at, text.substr(random() % (text.size() + 1), random() % 20)); break;
      }
    }
    std::vector<Param> params = declared();
    const Result<Expr> result = parse_expr(text, {&params, random() % 2 == 0, score});
    if (!result) {
      ASSERT_FALSE(result.error().message.empty());
      ASSERT_EQ(result.error().kind, ErrorKind::Invalid);
      ASSERT_FALSE(result.error().detail.empty()) << text;
      continue;
    }
    ++accepted;
    const Expr simple = simplify(*result);
    ASSERT_TRUE(simple) << text;
    const auto ranges = default_ranges(8, 8, 8, 4096, 4096);
    const bool checked = static_cast<bool>(check_ranges(*result, ranges));
    if (checked && !score) {
      ASSERT_TRUE(analyse_tiles(simple).end) << text;
    }
    evaluate(*result, Environment{});
  }
  EXPECT_GT(accepted, 500);
}

TEST(ExprBuild, TypeErrorsAreRemembered) {
  const Expr q = Expr::variable(Variable::Q), k = Expr::variable(Variable::K);
  const Expr broken = (q < k) + q;
  EXPECT_FALSE(broken);
  EXPECT_FALSE(~(broken < q) & (k < q));
  EXPECT_FALSE(Expr::load({"t", Dtype::I32, 2}, {q}));
  EXPECT_FALSE(Expr::load({"t", Dtype::I32, 1}, {Expr::load({"t", Dtype::F32, 1}, {q})}));
  Expr deep = q;
  for (int i = 0; i < 100000; ++i) deep = deep + q;
  EXPECT_FALSE(deep) << "depth is limited for C++ builders too";
  Expr wide = Expr::variable(Variable::S);
  for (int i = 0; i < 64; ++i) wide = wide * wide;
  EXPECT_FALSE(wide) << "so is the number of operations written out";
}

// To parse an index may add parameters; the one that is indexed is still itself.
TEST(NamedRows, InsideAnIndex) {
  for (const char* params : {"a: i32[1]", "a: i32[1], w: i64[1], u: u8[1]"}) {
    const std::string used = std::string_view(params).size() > 10 ? " + w[k] % 9 + u[k]" : "";
    const auto spec = parse_spec("fwd bf16 d=64 heads=8/2 mask=\"a[where(document(d), 1, 0)]" + used +
                                 " == 1\" params=\"" + params + "\"");
    ASSERT_TRUE(spec) << spec.error().message;
    EXPECT_EQ(spec->params.back().name, "d");
    const auto again = parse_spec(print(*spec));
    ASSERT_TRUE(again) << again.error().message;
    EXPECT_EQ(print(*again), print(*spec));
  }
}

TEST(NamedRows, AllParseAndAreReserved) {
  for (const NamedRow& row : named_rows()) {
    EXPECT_TRUE(is_reserved_name(row.name));
    std::string text(row.name);
    const char* separator = "(";
    for (const RowArgument& argument : row.arguments) {
      if (argument.kind == RowArgument::Kind::None || !argument.fallback.empty()) continue;
      text += separator;
      text += argument.kind == RowArgument::Kind::Tensor ? "some_tensor" : "7";
      separator = ", ";
    }
    if (*separator == ',') text += ")";
    for (const bool bottom_right : {true, false}) {
      std::vector<Param> params;
      const Result<Expr> expr = parse_expr(text, {&params, bottom_right, row.score});
      ASSERT_TRUE(expr) << text << ": " << expr.error().message;
      EXPECT_TRUE(check_ranges(*expr, default_ranges(64, 64, 64, 1 << 20, 1 << 20))) << text;
      EXPECT_EQ(params.size(), row.tensor.rank > 0 ? 1u : 0u) << text;
      if (row.tensor.rank > 0) {
        EXPECT_EQ(params[0].rank, row.tensor.rank);
      }
    }
    EXPECT_FALSE(signature(row).empty());
  }
}

TEST(ExprParse, FunctionsWhoseCodeIsLongAreCounted) {
  const auto parsed = [](std::size_t functions) {
    static constexpr const char* kNames[] = {"exp", "log", "tanh", "sigmoid"};
    std::string text = "s";
    for (std::size_t i = 0; i < functions; ++i)
      text += std::string(" + ") + kNames[i % 4] + "(s * " + std::to_string(i + 2) + ".0)";
    return parse_expr(text, {nullptr, true, true});
  };
  EXPECT_TRUE(parsed(kMaxFunctions));
  const Result<Expr> more = parsed(kMaxFunctions + 1);
  ASSERT_FALSE(more);
  EXPECT_NE(more.error().message.find("17 of exp, log, tanh and sigmoid, above 16"), std::string::npos)
      << more.error().message;
}

}  // namespace
}  // namespace flashjit
