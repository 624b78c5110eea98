#include "tools/support/inputs.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "compiler/spec/operands.h"
#include "tools/support/files.h"
#include "tools/support/npy.h"

namespace flashjit {
namespace {

// Scalars of a call are doubles, which hold all whole numbers up to this.
constexpr double kLargestExact = 0x1p53;

bool loses_digits(const std::string& text, double number) {
  return std::abs(number) >= kLargestExact && text.find_first_not_of("+-0123456789") == text.npos &&
         fmt::format("{:.0f}", number) != text;
}

Result<void> read_file(const std::string& file, bool exact_shape, NamedTensor& tensor) {
  FLASHJIT_ASSIGN(array, read_npy(file));
  const bool rank_fits = array.shape.size() == tensor.shape.size();
  if (exact_shape ? array.shape != tensor.shape : !rank_fits) {
    return invalid(fmt::format("{}: shape ({}) does not fit {}, which needs ({}) for this spec and --shape", file,
                               fmt::join(array.shape, ", "), tensor.name, fmt::join(tensor.shape, ", ")));
  }
  tensor.shape = array.shape;
  FLASHJIT_ASSIGN(bytes, take_as(file, std::move(array), tensor.dtype));
  tensor.bytes = std::move(bytes);
  return {};
}

Result<void> read_tensor(const std::string& file, bool exact_shape, NamedTensor& tensor) {
  return of_option(option_of(tensor.name), read_file(file, exact_shape, tensor));
}

}  // namespace

std::string option_of(std::string_view tensor) {
  const std::size_t operand = find_operand(tensor);
  if (operand == kOperands.size()) return "--param";
  std::string option = fmt::format("--{}", tensor);
  if (kOperands[operand].role == OperandRole::Output) std::ranges::replace(option, '_', '-');
  return option;
}

void add_line_info_option(CLI::App& app, bool& line_info) {
  app.add_flag("--line-info", line_info,
               "Code names the lines of its source, as FLASHJIT_LINE_INFO=on does: a profiler then shows where "
               "in loop.gen.cuh a kernel waits; GPU only");
}

void add_input_options(CLI::App& app, InputArgs& args, bool files) {
  app.add_option(
         "--shape", args.shape,
         "Sizes: b=2,q=4096,k=4096 (b defaults to 1, k to q); with layout=packed the lengths of the sequences: "
         "q=100+37+0,k=100+64+9; with k_lens those of k, and K and V hold as many as the longest. The schedule is chosen for these sizes, each rounded up to a power of two (of a list, its mean)")
      ->required();
  app.add_option("--target", args.target, "gpu, host, auto (a GPU if there is one), or a target's name")
      ->type_name("WHERE")
      ->capture_default_str();
  app.add_option("--device", args.device, "Which GPU")->capture_default_str()->check(CLI::Range(0, 1023));
  app.add_option(
         "--sms", args.sms,
         "How many SMs of the GPU the loop may run on, so that others find some free; 0: all. Where keys are split "
         "among SMs, last bits depend on it")
      ->type_name("N")
      ->capture_default_str();
  app.add_option("--schedule", args.schedule, "Choices to pin, such as tile_q=128; the rest is chosen");
  app.add_flag("--no-hint", args.no_hint,
               "Do not tell prepare the sizes: the schedule is the one for when they are not known beforehand");
  app.add_option("--override", args.override_dir,
                 "Run the edited source files in DIR, which `compile --out` or FLASHJIT_DUMP_DIR wrote; GPU only")
      ->type_name("DIR");
  add_line_info_option(app, args.line_info);
  app.add_option("--seed", args.seed, "Of the random inputs, and of dropout")->capture_default_str();
  app.add_option("--data", args.data, fmt::format("How the logits of random inputs are distributed: {}", kLogitKinds))
      ->type_name("KIND")
      ->capture_default_str();
  app.add_option(
         "--param", args.params,
         "A run-time parameter of mask or score: NAME=FILE.npy for a tensor, NAME=NUMBER for a scalar (default: what alibi, document "
         "and tree typically have, else random; 1); of dropout, offset=NUMBER (0); of places, q_begin=NUMBER (0), q_step (1), q_total and those of k")
      ->type_name("NAME=VALUE");
  app.add_option("--bundle", args.bundles,
                 "Bundles to take GPU kernels from (flashjit build); with FLASHJIT_JIT=off only from them")
      ->type_name("FILE.fjb");
  app.add_option("--record", args.record, "Append what is prepared to this manifest, for flashjit build")
      ->type_name("FILE");
  if (!files) return;
  for (const Operand& operand : kOperands) {
    if (operand.role == OperandRole::Output || operand.dims[0] == Dim::Offsets)
      continue;                   // Outputs have options of their own.
    if (operand.value) continue;  // It is a number of --seed or --param.
    const std::string name(operand.name);
    app.add_option(option_of(name), args.files[name], fmt::format("{}, instead of random ones", operand.what))
        ->type_name("FILE.npy");
  }
}

Result<InputFiles> input_files(const InputArgs& args) {
  InputFiles inputs;
  inputs.read = read_tensor;
  FLASHJIT_ASSIGN(logits, parse_logit_kind(args.data));
  inputs.logits = logits;
  for (const auto& [name, file] : args.files) {
    if (!file.empty()) inputs.files[name] = file;
  }
  for (const std::string& param : args.params) {
    const std::size_t equals = param.find('=');
    if (equals == 0 || equals == std::string::npos || equals + 1 == param.size()) {
      return invalid(fmt::format("--param: '{}' is not NAME=FILE.npy or NAME=NUMBER", param));
    }
    const std::string name = param.substr(0, equals), value = param.substr(equals + 1);
    if (inputs.files.contains(name) || inputs.scalars.contains(name))
      return invalid(
          fmt::format("--param: {} is given twice, the second time as {}; leave one of them out", name, value));
    char* end = nullptr;
    const double number = std::strtod(value.c_str(), &end);
    if (*end == '\0') {
      if (loses_digits(value, number)) {
        return invalid(fmt::format("--param: {}={} would be rounded to {:.0f}; whole numbers are exact up to {:.0f}",
                                   name, value, number, kLargestExact));
      }
      inputs.scalars[name] = number;
    } else {
      inputs.files[name] = value;
    }
  }
  return inputs;
}

}  // namespace flashjit
