// The language of masks and scores: typed, immutable expression DAGs.
//
// Types: bool, int (64-bit in the host evaluator; printers use 32 bits where the interval analysis proves that enough),
// float (32-bit). `/` and `%` on ints are floor division and its remainder; the divisor must be provably positive.
// An int meets a float by conversion to float. There is no implicit conversion to or from bool.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/spec/dtype.h"
#include "compiler/result.h"
#include "templates/kernel_config.h"

namespace flashjit {

enum class Type { Bool, Int, Float };

enum class Op {
  // leaves
  BoolConst,
  IntConst,
  FloatConst,
  Variable,
  Scalar,
  Load,  // a tensor parameter, indexed by the int arguments
  // arithmetic (Int or Float; both arguments have the node's type)
  Add,
  Sub,
  Mul,
  Div,
  Mod,
  Neg,
  Min,
  Max,
  Abs,
  // comparisons (arguments Int or Float, result Bool); > and >= are built by swapping
  Lt,
  Le,
  Eq,
  Ne,
  // logic
  And,
  Or,
  Not,
  Where,    // where(bool, a, b)
  ToFloat,  // int -> float
  Exp,
  Log,
  Sqrt,
  Tanh,
  Sigmoid,
  Bit,  // bit(x, i): bit i (0..63) of the int x, as bool
};

enum class Variable {
  Q,
  K,  // position in its sequence, from 0
  B,
  H,
  Hk,  // batch index, query head, KV head
  QLen,
  KLen,  // lengths of this sequence
  S,     // the score, float, already multiplied by the scale; only in scores
  // Only in derived expressions: the first and last (inclusive) position of a tile.
  QLo,
  QHi,
  KLo,
  KHi,
};
std::string_view name(Variable variable);  // "q" "k" "b" "h" "hk" "q_len" "k_len" "s" "q_lo" ...

// The numbers that a tensor typically holds. No code depends on it: data that is drawn for measuring does.
enum class Contents {
  Plain,      // nothing in particular
  Documents,  // the number of its document for each position, along the last dimension
  Tree,       // [.., node, word of 64 bits]: for each node of a tree the set of its ancestors and itself
  Slopes,     // of ALiBi, one per head: 2^(-8 (h + 1) / heads)
};

// A run-time parameter of a mask or score: rank 0 is a scalar, otherwise an indexed tensor.
struct Param {
  std::string name;
  Dtype dtype = Dtype::F32;
  int rank = 0;  // 0..4
  Contents contents = Contents::Plain;
  // It is the same tensor, whatever is known of it.
  bool operator==(const Param& other) const { return name == other.name && dtype == other.dtype && rank == other.rank; }
};
inline constexpr int kMaxParamRank = 4;

class Expr;
struct Node;

class Expr {
 public:
  Expr() = default;  // empty: "no mask", "no score"
  explicit Expr(std::shared_ptr<const Node> node) : node_(std::move(node)) {}
  static Expr boolean(bool value);
  static Expr integer(std::int64_t value);
  static Expr real(double value);
  static Expr variable(Variable variable);
  static Expr scalar(const Param& param);
  static Expr load(const Param& param, std::vector<Expr> index);
  // Builds and type-checks any other node; ints are converted to float where the other argument is a float.
  static Result<Expr> make(Op op, std::vector<Expr> args);

  explicit operator bool() const { return node_ != nullptr; }
  const Node& operator*() const { return *node_; }
  const Node* operator->() const { return node_.get(); }
  const Node* get() const { return node_.get(); }

 private:
  std::shared_ptr<const Node> node_;
};

struct Node {
  Op op = Op::BoolConst;
  Type type = Type::Bool;
  std::int64_t integer = 0;  // IntConst; BoolConst (0 or 1)
  double real = 0;           // FloatConst
  Variable variable = Variable::Q;
  Param param;  // Scalar, Load
  std::vector<Expr> args;
  // The size of the expression written out as a tree. make() refuses more than kMaxTreeDepth and kMaxTreeNodes, so that
  // whatever walks an expression may recurse, and may visit a shared node once per use.
  int depth = 1;
  int tree_nodes = 1;
  // The operations and variables that occur in it, as bits: uses() is asked at every step of an analysis.
  std::uint32_t variables = 0, ops = 0;
  std::size_t hash = 0;  // equal for equal expressions, so most that differ need not be walked through
};
inline constexpr int kMaxTreeDepth = 1024;
inline constexpr int kMaxTreeNodes = 1 << 15;

// C++ operators for building. A type error is remembered: the result is an empty Expr, and so is everything built on
// it.
Expr operator+(const Expr&, const Expr&);
Expr operator-(const Expr&, const Expr&);
Expr operator*(const Expr&, const Expr&);
Expr operator/(const Expr&, const Expr&);
Expr operator%(const Expr&, const Expr&);
Expr operator-(const Expr&);
Expr operator<(const Expr&, const Expr&);
Expr operator<=(const Expr&, const Expr&);
Expr operator>(const Expr&, const Expr&);
Expr operator>=(const Expr&, const Expr&);
Expr operator==(const Expr&, const Expr&);
Expr operator!=(const Expr&, const Expr&);
Expr operator&(const Expr&, const Expr&);
Expr operator|(const Expr&, const Expr&);
Expr operator~(const Expr&);  // "not": ! asks whether an Expr is empty
Expr where(const Expr& condition, const Expr& yes, const Expr& no);
Expr min(const Expr&, const Expr&);
Expr max(const Expr&, const Expr&);
Expr call(Op op, const Expr& argument);  // Abs Exp Log Sqrt Tanh Sigmoid ToFloat

bool same(const Expr& a, const Expr& b);   // structural equality
std::size_t node_count(const Expr& expr);  // of the DAG, shared nodes once
// Is the score a number where `s` is 0, as far as its operations tell?
bool is_number_at_zero(const Expr& score);
std::size_t function_count(const Expr& expr);  // exp, log, tanh and sigmoid among them
bool uses(const Expr& expr, Variable variable);
bool uses(const Expr& expr, Op op);
// The index of a Load that reads a tensor itself: where it leads is known only once there are values. On processors the
// values are looked through when a call is made, and what leads outside is refused. Kernels on GPUs cut the index to the
// tensor, and so does whoever evaluates an expression.
bool is_looked_up(const Expr& index);
std::vector<Param> params_of(const Expr& expr);  // in order of first use, each once

// Limits of the language. Text beyond them is refused with the limit in the message.
inline constexpr std::size_t kMaxExprText = 4096;  // bytes
inline constexpr int kMaxExprDepth = 64;           // nesting
inline constexpr std::size_t kMaxExprNodes = 512;  // of the DAG after expansion of named rows
// Kernels are unrolled over the scores of a thread, so each of these is long code 32 to 192 times: ten log take NVRTC
// 10 s.
inline constexpr std::size_t kMaxFunctions = 16;

// Parsing. `params` are the declared run-time parameters; `alignment_bottom_right` says how named rows and the derived
// name `qpos` line queries up with keys: qpos = q + k_len - q_len, or q.
// Named rows (compiler/language/named.h) may declare further parameters, which are appended to `params`.
// An error has kind Invalid, a one-line message, and as detail the text with a caret under what is wrong.
struct ParseContext {
  std::vector<Param>* params = nullptr;
  bool bottom_right = true;
  bool score = false;  // the variable s exists, and the result must be a float; otherwise the result must be bool
};
Result<Expr> parse_expr(std::string_view text, const ParseContext& context);

// Prints with the fewest parentheses; parse_expr(print(e)) gives e again, unless the text, which writes out shared
// nodes and the stages of a score, is beyond the limits.
std::string print(const Expr& expr);

// Constant folding, identities (x & true, x + 0, where(true, a, b), !!x ...), common sub-expressions shared.
// Keeps the value for every input, except that float operations are folded in 32 bits as the device would.
Expr simplify(const Expr& expr);

// Host evaluation, one element at a time: slow and plain.
struct ParamValue {            // what a run-time parameter holds
  const void* data = nullptr;  // rank 0: points to the value
  std::int64_t shape[kMaxParamRank] = {};
  std::int64_t stride[kMaxParamRank] = {};  // in elements
};
struct Environment {
  std::int64_t variables[12] = {};  // by Variable; S is not here
  float s = 0;
  const std::vector<Param>* params = nullptr;
  const ParamValue* values = nullptr;  // parallel to *params
};
struct Value {
  Type type = Type::Bool;
  std::int64_t integer = 0;  // Int and Bool
  float real = 0;
};
Value evaluate(const Expr& expr, const Environment& environment);

}  // namespace flashjit
