// Target x dtype x head dim x mask x score through NVRTC: every default schedule (and, where that may be of the hopper
// family, the best one of the sync family, which must do when hopper kernels do not) compiles, spills nothing, uses the
// shared memory that was predicted, and fits its target as often as it says it does. (Hopper kernels that are not as
// planned are never the result: see compile_spec.)
//
//   compile_check                  a spread-out sample
//   compile_check --all            every combination (takes long)
//   compile_check --count N --jobs N --json --only REGEX    of "TARGET SPEC": '^sm_90a bwd .* d=64 heads=32/8$'
//
// Exit code: 0 good, 1 something is wrong, 2 wrong usage, 77 there is no NVRTC here.
#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstdio>
#include <mutex>
#include <regex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "compiler/spec/target.h"
#include "fmt/format.h"
#include "runtime/compile/nvrtc/nvrtc_log.h"
#include "templates/quantize/rotation.h"
#include "tests/requests.h"

namespace flashjit {
namespace {

constexpr int kSkipped = 77;

struct Options {
  int count = 50, jobs = 2;
  bool all = false, json = false;
  std::regex only{""};
};

struct Row {
  std::string spec;
  std::string_view target, pins;
};

struct Outcome {
  Row row;
  std::string problem, schedule;
  double milliseconds = 0;
  int registers = 0, spill_bytes = 0, smem_bytes = 0;
  bool passed_over = false;  // the kernel of the cost model's first choice was bad, and another schedule was taken
};

std::vector<std::string_view> pins_for(const Target& target, std::string_view sync = "family=sync") {
  if (target.can.wgmma) return {"", sync};
  return {""};
}

constexpr const char* kVariants[] = {
    "",
    " mask=\"causal\"",
    " mask=\"causal & window(1024, 0)\" lse=ln",
    " layout=packed mask=\"causal\" lse=log2 max_logit",
    " layout=bhsd mask=\"causal\" score=\"softcap(50.0)\" sink",
    " mask=\"document(doc)\" score=\"alibi\" lse=ln",
    " score=\"bias(extra, bf16)\"",
    " mask=\"(q + k) % 3 != 0\" bytes=2",
    " mask=\"causal\" k_lens lse=ln",
    " layout=paged(16) mask=\"causal\"",
    " layout=packed/paged(48) mask=\"causal & window(1024, 0)\" lse=ln",
    " layout=paged(1) lse=ln",
    " q_len=1 lse=ln",
    " q_len=4 mask=\"causal & window(1024, 0)\" score=\"softcap(30.0)\" layout=packed sink",
    " kv=e4m3 mask=\"causal\" lse=ln",
    " kv=int8 layout=paged(16) mask=\"causal\" bytes=8",
    " kv=e4m3 q_len=1 layout=paged(64)",
    " kv=e5m2 q_len=2 mask=\"causal\" k_lens lse=ln",
    " kv=int8 q_len=1",
    " layout=packed mask=\"causal\" lse=ln dropout=0.1",
    " params=\"start: i32[1], doc: i64[2]\" mask=\"k >= start[doc[b, q]] & k <= q\"",
};
constexpr const char* kRounding[] = {" scales=block(128)", " rotate scales=block(128)",
                                     " rotate scales=block(64) out=e5m2", " rotate",
                                     " layout=packed rotate scales=block(256)"};
// Columns that turn: all, and a few that lanes do not share evenly.
constexpr const char* kTurning[] = {" rope=half({0})", " rope=interleaved({0})", " rope=half({0}) rope_base=10000",
                                    " rope=half(6)"};
// Of a Q of 8 bits.
constexpr const char* kNarrow[] = {
    "",
    " mask=\"causal\" lse=ln",
    " scales=block(128) mask=\"causal & window(1024, 0)\"",
    " layout=packed mask=\"causal\" score=\"softcap(50.0)\" out=fp16",
    " layout=paged(64) kv=e5m2 mask=\"causal\"",
    " layout=packed/paged(128) scales=block(64) mask=\"causal\"",
    " kv=e4m3 mask=\"document(doc)\" score=\"alibi\" bytes=2",
    " q_len=1 layout=paged(64) lse=ln",
    " q_len=4 scales=block(64) k_lens",
    " linear_exp",
    " layout=packed mask=\"causal & window(1024, 0)\" sink linear_exp",
    " mask=\"causal\" score=\"softcap(50.0)\" max_logit linear_exp",
    " mask=\"causal\" score=\"bias(extra, bf16)\" linear_exp",
};
constexpr const char* kBackward[] = {
    "",
    " mask=\"causal\"",
    " layout=packed mask=\"causal & window(1024, 0)\" score=\"softcap(50.0)\"",
    " mask=\"document(doc)\" score=\"alibi\" dlse bytes=2",
    " mask=\"causal\" score=\"bias(extra, bf16)\" out=fp32 numerics=deterministic",
    " mask=\"causal\" score=\"bias(extra, bf16)\" grads=\"extra\"",
    " mask=\"causal\" out=fp32/bf16/fp16",
    " layout=packed mask=\"causal\" dropout=0.1",
    " params=\"start: i32[1], doc: i64[2]\" mask=\"k >= start[doc[b, q]] & k <= q\"",
};

constexpr const char* kIndex[] = {
    "",
    " layout=packed mask=\"causal\"",
    " layout=paged(64) q_len=1 select=keys(2048)",
    " layout=bhsd mask=\"document(doc)\" select=keys(64) k_lens",
    " layout=packed/paged(16) mask=\"window(1024, 0) & hk != 1\" align=top_left",
};

std::vector<Row> index_rows() {
  std::vector<Row> rows;
  for (const Target& target : targets()) {
    for (const char* dtype : {"e4m3", "e5m2", "bf16", "fp16"}) {
      const std::string_view scales = dtype[0] == 'e' ? " token_scales" : "";
      for (const char* variant : kIndex) {
        if (!target.gpu) continue;
        for (const char* sizes : {"d=128 heads=64/1", "d=128 heads=8/2", "d=64 heads=20/1", "d=256 heads=4"})
          rows.push_back({fmt::format("index {} {}{}{}", dtype, sizes, variant, scales), target.name, ""});
      }
    }
  }
  return rows;
}

// Everything, in an order in which neighbours are alike.
std::vector<Row> every_row() {
  std::vector<Row> rows = index_rows();
  for (const Target& target : targets()) {
    if (!target.gpu) continue;
    for (const char* dtype : {"e4m3", "e5m2"}) {
      for (const char* variant : kNarrow) {
        for (int d = 8; d <= 256; d += 8)
          rows.push_back({fmt::format("fwd {} d={} heads=32/8{}", dtype, d, variant), target.name, ""});
      }
    }
    for (const char* dtype : {"bf16", "fp16"}) {
      for (int d = 8; d <= 256; d += 8)
        rows.push_back({fmt::format("merge {} d={} heads=32 lse=ln", dtype, d), target.name, ""});
      for (int d = 8; d <= 256; d += 8) {
        for (const char* variant : kRounding) {
          const bool rotates = std::string_view(variant).find("rotate") != std::string_view::npos;
          if (rotates && rotation_sections(d) == 0) continue;
          const char* const bytes = d % 16 == 0 ? "" : " bytes=8";
          rows.push_back({fmt::format("quantize {} d={} heads=32{}{}", dtype, d, variant, bytes), target.name, ""});
        }
        const std::string_view rotated = rotation_sections(d) != 0 ? " rotate" : "",
                               bytes = d % 16 == 0 ? "" : " bytes=8";
        for (const char* turning : kTurning) {
          const std::string rope = fmt::format(fmt::runtime(turning), d);
          rows.push_back(
              {fmt::format("quantize {} d={} heads=32{} scales=block(128){}{}", dtype, d, rotated, rope, bytes),
               target.name, ""});
        }
      }
      for (const char* variant : kBackward) {
        for (const std::string_view pins : pins_for(target, "family=sync_backward")) {
          for (int d = 8; d <= 256; d += 8)
            rows.push_back({fmt::format("bwd {} d={} heads=32/8{}", dtype, d, variant), target.name, pins});
          for (const char* dims : {"192/128", "128/64"})
            rows.push_back({fmt::format("bwd {} d={} heads=32/8{}", dtype, dims, variant), target.name, pins});
        }
      }
      // Sixteen rows: with more columns than registers bear, Q lies in shared memory. Another family would hide what spills.
      for (const int d : {64, 128, 144, 160, 192, 208, 224, 256}) {
        for (const char* kv : {"", " kv=e4m3"}) {
          rows.push_back({fmt::format("fwd {} d={} heads=32/8 q_len=4{} layout=paged(64)", dtype, d, kv), target.name,
                          "family=decode"});
        }
      }
      for (const char* variant : kVariants) {
        for (const std::string_view pins : pins_for(target)) {
          for (int d = 8; d <= 256; d += 8) {
            rows.push_back({fmt::format("fwd {} d={} heads=32/8{}", dtype, d, variant), target.name, pins});
          }
          rows.push_back({fmt::format("fwd {} d=192/128 heads=32/8{}", dtype, variant), target.name, pins});
          rows.push_back({fmt::format("fwd {} d=64/256 heads=32/8{}", dtype, variant), target.name, pins});
          if (pins.empty() && std::string_view(variant).find("dropout") == std::string_view::npos)
            for (const char* d : {"576/512", "512", "320/256"})
              rows.push_back({fmt::format("fwd {} d={} heads=64/1 v_in_k{}", dtype, d, variant), target.name, pins});
        }
      }
    }
  }
  return rows;
}

// The table that compile times are quoted for comes first; the rest is walked with a golden step, which spreads any
// number of samples evenly over all axes.
std::vector<Row> sample(int count) {
  std::vector<Row> rows;
  for (const char* name : {"sm_80", "sm_90a"}) {
    const Target& target = **find_target(name);
    for (const std::string_view pins : pins_for(target)) {
      for (const int d : {64, 128, 256}) {
        for (const char* mask : {"", " mask=\"causal\"", " mask=\"window(1024, 0)\""}) {
          rows.push_back({fmt::format("fwd bf16 d={} heads=32/8{}", d, mask), target.name, pins});
        }
      }
    }
  }
  const std::vector<Row> all = every_row();
  const auto step = static_cast<std::size_t>(static_cast<double>(all.size()) * 0.6180339887) | 1;
  for (std::size_t i = 1; static_cast<int>(rows.size()) < count; ++i) rows.push_back(all[i * step % all.size()]);
  rows.resize(static_cast<std::size_t>(count));
  return rows;
}

std::string problem_of(const Compiled& compiled) {
  const Facts& facts = compiled.facts;
  const Plan& plan = compiled.plan;
  const Target& target = plan.target;
  if (facts.spill_bytes > 0) return fmt::format("spills {} bytes", facts.spill_bytes);
  if (facts.smem_bytes != plan.smem_bytes()) {
    return fmt::format("uses {} bytes of shared memory, predicted were {}", facts.smem_bytes, plan.smem_bytes());
  }
  if (plan.smem_bytes() > target.smem_per_block) {
    return fmt::format("needs {} bytes of shared memory, a block has {}", plan.smem_bytes(), target.smem_per_block);
  }
  const int blocks = plan.schedule.blocks_per_sm.value_or(1);
  const auto found = compiled.binary->facts.find("log");
  const CompileLog log = parse_compile_log(found == compiled.binary->facts.end() ? "" : found->second);
  // Of the templates. What ptxas remarks is about speed, and not always to be helped.
  for (const std::string& warning : log.warnings)
    if (warning.find("warning #") != std::string::npos) return warning;
  for (const EntryUsage& entry : log.entries) {
    if (entry.static_smem_bytes > 0)
      return fmt::format("has {} bytes of static shared memory", entry.static_smem_bytes);
    if (entry.stack_bytes > 0) return fmt::format("has a stack frame of {} bytes", entry.stack_bytes);
    for (const auto& launch : plan.launches) {
      // The first launch is the one whose blocks the schedule counts.
      const int together = &launch == &plan.launches.front() ? blocks : 1;
      const int registers = (entry.registers + 7) / 8 * 8 * launch.threads * together;
      if (entry.entry == launch.entry && registers > target.registers_per_sm)
        return fmt::format("{} blocks of {} registers x {} threads do not fit an SM", together, entry.registers,
                           launch.threads);
    }
  }
  constexpr int kReservedPerBlock = 1024;
  if (blocks * (plan.smem_bytes() + kReservedPerBlock) > target.smem_per_sm) {
    return fmt::format("{} blocks of {} bytes of shared memory do not fit an SM", blocks, plan.smem_bytes());
  }
  return {};
}

Outcome compile(const Row& row) {
  Outcome outcome{.row = row};
  const auto compiled = compile_spec(row.spec, row.target, row.pins);
  if (!compiled) {
    outcome.problem = fmt::format("{}: {}", name(compiled.error().kind), compiled.error().message);
    return outcome;
  }
  outcome.problem = problem_of(*compiled);
  outcome.schedule = compiled->facts.schedule;
  outcome.milliseconds = compiled->facts.compile_ms;
  outcome.registers = compiled->facts.registers;
  outcome.spill_bytes = compiled->facts.spill_bytes;
  outcome.smem_bytes = compiled->facts.smem_bytes;
  for (const std::string& note : compiled->facts.notes) {
    if (note.find("passed over") == note.npos) continue;
    outcome.passed_over = true;
    // Twice as slow, and nobody would notice.
    if (outcome.problem.empty() && note.starts_with("family=hopper") && outcome.schedule.starts_with("family=sync"))
      outcome.problem = "fell to another family: " + note;
  }
  return outcome;
}

void print_row(const Outcome& o) {
  fmt::print("{:8} {:4} {:3} registers {:6} smem {:5.0f} ms  {}  [{}]{}{}\n", o.row.target,
             o.problem.empty() ? "ok" : "BAD", o.registers, o.smem_bytes, o.milliseconds, o.row.spec, o.schedule,
             o.problem.empty() ? o.passed_over ? " after another that was passed over" : "" : ": ", o.problem);
  std::fflush(stdout);
}

void print_json(const Outcome& o) {
  std::string spec;
  for (const char c : o.row.spec) spec += c == '"' ? "\\\"" : std::string(1, c);
  fmt::print(
      "{{\"spec\": \"{}\", \"target\": \"{}\", \"schedule\": \"{}\", \"ok\": {}, \"problem\": \"{}\", \"registers\": {}, "
      "\"spill_bytes\": {}, \"smem_bytes\": {}, \"compile_ms\": {:.1f}, \"passed_over\": {}}}\n",
      spec, o.row.target, o.schedule, o.problem.empty(), o.problem, o.registers, o.spill_bytes, o.smem_bytes,
      o.milliseconds, o.passed_over);
  std::fflush(stdout);
}

int finish(const std::vector<Outcome>& outcomes, bool json) {
  std::vector<double> times;
  int bad = 0, passed_over = 0, most_registers = 0;
  const Outcome* slowest = nullptr;
  for (const Outcome& o : outcomes) {
    times.push_back(o.milliseconds);
    bad += !o.problem.empty();
    passed_over += o.passed_over;
    most_registers = std::max(most_registers, o.registers);
    if (!slowest || o.milliseconds > slowest->milliseconds) slowest = &o;
  }
  if (outcomes.empty()) return 0;
  std::sort(times.begin(), times.end());
  if (!json) {
    fmt::print(
        "{} kernels, {} bad, {} where the first choice was passed over; compile median {:.0f} ms, worst {:.0f} ms ({} {}); at most {} "
        "registers\n",
        outcomes.size(), bad, passed_over, times[times.size() / 2], times.back(), slowest->row.target,
        slowest->row.spec, most_registers);
  }
  return bad == 0 ? 0 : 1;
}

bool parse_options(int argc, char** argv, Options& options) {
  const auto number = [](std::string_view text, int& value) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    return error == std::errc() && end == text.data() + text.size() && value > 0;
  };
  const auto pattern = [](const char* text, std::regex& only) {
    try {
      only = text;
      return true;
    } catch (const std::regex_error&) {
      return false;
    }
  };
  for (int i = 1; i < argc; ++i) {
    const std::string_view flag = argv[i];
    if (flag == "--all") options.all = true;
    else if (flag == "--json") options.json = true;
    else if (i + 1 < argc && flag == "--only" && pattern(argv[i + 1], options.only)) ++i;
    else if (i + 1 < argc && flag == "--count" && number(argv[i + 1], options.count)) ++i;
    else if (i + 1 < argc && flag == "--jobs" && number(argv[i + 1], options.jobs)) ++i;
    else return false;
  }
  return true;
}

int run(const Options& options) {
  if (auto nvrtc = Nvrtc::open(""); !nvrtc) {
    fmt::print(stderr, "skipped: {}\n", nvrtc.error().message);
    return kSkipped;
  }
  std::vector<Row> rows = options.all ? every_row() : sample(options.count);
  std::erase_if(
      rows, [&](const Row& row) { return !std::regex_search(std::string(row.target) + " " + row.spec, options.only); });
  std::vector<Outcome> outcomes(rows.size());
  std::atomic<std::size_t> next = 0;
  std::mutex printing;
  const auto work = [&] {
    for (std::size_t i; (i = next++) < rows.size();) {
      outcomes[i] = compile(rows[i]);
      const std::lock_guard lock(printing);
      if (options.json) print_json(outcomes[i]);
      else print_row(outcomes[i]);
    }
  };
  std::vector<std::thread> threads;
  for (int i = 1; i < options.jobs; ++i) threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
  return finish(outcomes, options.json);
}

}  // namespace
}  // namespace flashjit

int main(int argc, char** argv) {
  flashjit::Options options;
  if (!flashjit::parse_options(argc, argv, options)) {
    fmt::print(stderr, "usage: compile_check [--all] [--count N] [--only REGEX] [--jobs N] [--json]\n");
    return 2;
  }
  return flashjit::run(options);
}
