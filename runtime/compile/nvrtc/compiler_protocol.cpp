// A program and its flashjit-compiler exchange these bytes.
#include <charconv>
#include <cstring>

#include "runtime/compile/nvrtc/compiler_process.h"
#include "runtime/store/sha256.h"

namespace flashjit {
namespace {

constexpr std::string_view kRequest = "flashjit request 1", kAnswer = "flashjit answer 1";

class Writer {
 public:
  explicit Writer(std::string_view magic) { text(magic); }
  void number(std::uint64_t value) {
    for (int i = 0; i < 8; ++i) fields_.push_back(static_cast<std::uint8_t>(value >> (8 * i)));
  }
  void bytes(const void* data, std::size_t size) {
    number(size);
    const auto* from = static_cast<const std::uint8_t*>(data);
    fields_.insert(fields_.end(), from, from + size);
  }
  void text(std::string_view value) { bytes(value.data(), value.size()); }
  void files(const std::vector<SourceFile>& files) {
    number(files.size());
    for (const SourceFile& file : files) {
      text(file.name);
      text(file.text);
    }
  }
  std::vector<std::uint8_t> finish() {
    const auto digest = sha256(fields_);
    std::vector<std::uint8_t> message;
    fields_.swap(message);
    number(message.size() + digest.size());
    fields_.insert(fields_.end(), message.begin(), message.end());
    fields_.insert(fields_.end(), digest.begin(), digest.end());
    return std::move(fields_);
  }

 private:
  std::vector<std::uint8_t> fields_;
};

// After the first field that does not fit, nothing is read any more and `sound` is false.
class Reader {
 public:
  Reader(std::span<const std::uint8_t> message, std::string_view magic) : rest_(message) {
    constexpr std::size_t kDigest = sizeof(Sha256::Digest);
    if (number() != rest_.size() || rest_.size() < kDigest) {
      sound_ = false;
      return;
    }
    const auto digest = rest_.last(kDigest);
    rest_ = rest_.first(rest_.size() - kDigest);
    const auto expected = sha256(rest_);
    sound_ = std::memcmp(expected.data(), digest.data(), kDigest) == 0 && text() == magic;
  }
  std::uint64_t number() {
    if (rest_.size() < 8) {
      sound_ = false;
      return 0;
    }
    std::uint64_t value = 0;
    for (int i = 0; i < 8; ++i) value |= std::uint64_t{rest_[static_cast<std::size_t>(i)]} << (8 * i);
    rest_ = rest_.subspan(8);
    return value;
  }
  std::span<const std::uint8_t> bytes() {
    const std::uint64_t size = number();
    if (!sound_ || size > rest_.size()) {
      sound_ = false;
      return {};
    }
    const auto field = rest_.first(size);
    rest_ = rest_.subspan(size);
    return field;
  }
  std::string text() {
    const auto field = bytes();
    return {field.begin(), field.end()};
  }
  std::vector<SourceFile> files() {
    std::vector<SourceFile> files;
    for (std::uint64_t left = number(); sound_ && left > 0; --left) {
      std::string name = text();
      files.push_back({std::move(name), text()});
    }
    return files;
  }
  bool sound() const { return sound_; }
  bool complete() const { return sound_ && rest_.empty(); }

 private:
  std::span<const std::uint8_t> rest_;
  bool sound_ = true;
};

}  // namespace

std::vector<std::uint8_t> encode(const CompilerRequest& request) {
  Writer writer(kRequest);
  writer.text(request.nvrtc);
  writer.text(request.identity);
  writer.number(request.options.size());
  for (const std::string& option : request.options) writer.text(option);
  writer.files(request.source.generated);
  writer.files(request.source.headers);
  writer.number(static_cast<std::uint64_t>(request.output));
  return writer.finish();
}

std::vector<std::uint8_t> encode(const Result<CompilerResult>& answer) {
  Writer writer(kAnswer);
  writer.number(answer ? 0 : 1 + static_cast<std::uint64_t>(answer.error().kind));
  writer.text(answer ? answer->log : answer.error().detail);
  if (answer) {
    writer.bytes(answer->bytes.data(), answer->bytes.size());
  } else {
    writer.text(answer.error().message);
  }
  return writer.finish();
}

std::optional<CompilerRequest> decode_request(std::span<const std::uint8_t> message) {
  Reader reader(message, kRequest);
  CompilerRequest request;
  request.nvrtc = reader.text();
  request.identity = reader.text();
  for (std::uint64_t left = reader.number(); reader.sound() && left > 0; --left)
    request.options.push_back(reader.text());
  request.source.generated = reader.files();
  request.source.headers = reader.files();
  const std::uint64_t output = reader.number();
  if (!reader.complete() || output > static_cast<std::uint64_t>(CompilerOutput::Identity)) return std::nullopt;
  request.output = static_cast<CompilerOutput>(output);
  return request;
}

std::optional<Result<CompilerResult>> decode_answer(std::span<const std::uint8_t> message) {
  Reader reader(message, kAnswer);
  const std::uint64_t kind = reader.number();
  std::string log = reader.text();
  const auto rest = reader.bytes();
  if (!reader.complete() || kind > 1 + static_cast<std::uint64_t>(ErrorKind::Cancelled)) return std::nullopt;
  if (kind == 0) return CompilerResult{std::move(log), {rest.begin(), rest.end()}};
  return Error{static_cast<ErrorKind>(kind - 1), {rest.begin(), rest.end()}, std::move(log)};
}

}  // namespace flashjit
