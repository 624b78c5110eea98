#include "runtime/bundle/bundle.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>

#include "codegen/cuda/embedded_templates.h"
#include "compiler/spec/text_form.h"
#include "runtime/bundle/cubin.h"
#include "runtime/compile/facts.h"
#include "runtime/engine/environment.h"
#include "runtime/store/input_file.h"
#include "runtime/store/key.h"
#include "runtime/store/output_file.h"

namespace flashjit {
namespace {

Error named(const std::string& path, Error error) {
  error.message = fmt::format("{}: {}", path, error.message);
  return error;
}

Error unreadable(const std::string& path, std::string_view what, int code) {
  return {ErrorKind::Io, fmt::format("{}: {}: {}", path, what, std::strerror(code)), {}};
}

// Reads `bytes` bytes at `offset`, or fewer if the file ends before.
Result<std::vector<std::uint8_t>> read_at(int file, const std::string& path, std::uint64_t offset,
                                          std::uint64_t bytes) {
  std::vector<std::uint8_t> into(bytes);
  std::size_t done = 0;
  while (done < into.size()) {
    const ssize_t got = pread(file, into.data() + done, into.size() - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return unreadable(path, "cannot be read", errno);
    if (got == 0) break;
    done += static_cast<std::size_t>(got);
  }
  into.resize(done);
  return into;
}

std::string digest_of(std::span<const SourceFile> files) {
  KeyBuilder key;
  for (const SourceFile& file : files) key.field(file.name, file.text);
  return key.finish().digest;
}

// Quotes a text for a shell.
std::string shell_quoted(std::string_view text) {
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

// Returns the advice for a bundle that another version has built: the command that builds it anew.
std::string command_for(const Bundle& bundle) {
  std::set<std::string> targets;
  for (const BundleItem& item : bundle.index().items) targets.insert(item.key.target);
  return fmt::format("build it with this one: flashjit build MANIFEST --arch {} -o {}",
                     targets.empty() ? "TARGETS" : harmless(fmt::format("{}", fmt::join(targets, ",")), Lines::One),
                     shell_quoted(bundle.path()));
}

// Turns a kernel of a bundle into what a compile would have given.
Result<Compiled> revive(const Bundle& bundle, const BundleItem& item, const Request& request) {
  FLASHJIT_ASSIGN(code, bundle.code(item));
  const auto other_version = [&](std::string_view what) {
    return named(bundle.path(),
                 unsupported(fmt::format("its kernel for {} was made by another version of FlashJIT ({}); {}",
                                         item.key.spec, what, command_for(bundle))));
  };
  const auto schedule = parse_schedule(fact(item.facts, "schedule"));
  if (!schedule) return other_version(schedule.error().message);
  Request taken = request;
  taken.pins = *schedule;
  auto plan = plan_spec(taken);
  if (!plan) return other_version(plan.error().message);
  FLASHJIT_ASSIGN(source, emit_cuda(*plan));
  if (digest_of(source.generated) != fact(item.facts, "source")) return other_version("its source differs");
  Compiled compiled{.plan = std::move(*plan), .source = std::move(source)};
  compiled.key.digest = fact(item.facts, "key");
  compiled.facts = facts_of(compiled.plan, compiled.key.digest, item.facts, code.size(),
                            {.source = "bundle", .layer = bundle.path(), .miss = {}, .notes = {}});
  compiled.binary = std::make_shared<const StoreEntry>(StoreEntry{.facts = item.facts, .payload = std::move(code)});
  return compiled;
}

std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> words;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find(' ', begin), text.size());
    words.emplace_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  std::ranges::sort(words);
  return words;
}

// Counts the words that only one of the two keys has.
std::size_t distance(const BundleKey& a, const BundleKey& b) {
  const auto x = words_of(a.spec + " " + a.pins), y = words_of(b.spec + " " + b.pins);
  std::vector<std::string> different;
  std::ranges::set_symmetric_difference(x, y, std::back_inserter(different));
  return different.size();
}

std::string print(const BundleKey& key) { return print(ManifestLine{.spec = key.spec, .schedule = key.pins}); }

}  // namespace

Result<std::shared_ptr<const Bundle>> Bundle::open(const std::string& path, const TrustedList* trusted) {
  std::shared_ptr<Bundle> bundle(new Bundle);
  bundle->path_ = path;
  bundle->file_ = FileHandle(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat info = {};
  if (!bundle->file_ || fstat(bundle->file_.get(), &info) != 0) {
    const int code = errno;
    Error error = unreadable(path, "the bundle cannot be opened", code);
    if (code == ENOENT) error.kind = ErrorKind::NotFound;
    return error;
  }
  if (!S_ISREG(info.st_mode))
    return named(path, invalid(fmt::format("this is no bundle: it is no file but a {}", kind_of_file(info.st_mode))));
  const auto file_bytes = static_cast<std::uint64_t>(info.st_size);
  FLASHJIT_ASSIGN(header, read_at(bundle->file_.get(), path, 0, kBundleHeaderBytes));
  auto head_bytes = bundle_head_bytes(header, file_bytes);
  if (!head_bytes) return named(path, head_bytes.error());
  FLASHJIT_ASSIGN(head, read_at(bundle->file_.get(), path, 0, *head_bytes));
  auto index = decode_index(head, file_bytes);
  if (!index) return named(path, index.error());
  bundle->index_ = std::move(*index);
  if (trusted) FLASHJIT_TRY(bundle->check_listed(head, *trusted));
  return std::shared_ptr<const Bundle>(std::move(bundle));
}

const BundleItem* Bundle::find(const BundleKey& key) const {
  const auto found = std::ranges::lower_bound(index_.items, key, {}, &BundleItem::key);
  return found != index_.items.end() && found->key == key ? &*found : nullptr;
}

Result<std::vector<std::uint8_t>> Bundle::frame(const BundleItem& item) const {
  return read_at(file_.get(), path_, item.offset, item.packed_bytes);
}

Result<std::vector<std::uint8_t>> Bundle::code(const BundleItem& item) const {
  FLASHJIT_ASSIGN(packed, frame(item));
  auto code = unpack(item, packed);
  if (!code) return named(path_, code.error());
  return std::move(*code);
}

Result<void> write_bundle(const std::string& path, std::span<const std::uint8_t> bytes) {
  return write_output(path, {{reinterpret_cast<const char*>(bytes.data()), bytes.size()}},
                      {.forbidden = S_IWGRP | S_IWOTH});
}

Result<void> Bundle::check_trusted() const { return check_owner(file_.get(), path_, Trust::OwnOrRoot); }

// The head is hashed in the form in which it was decoded, even if the file has changed by now. Code is read again when
// it is needed, and is then compared with what the head says about it.
Result<void> Bundle::check_listed(std::span<const std::uint8_t> head, const TrustedList& trusted) const {
  constexpr std::uint64_t kChunk = 1 << 20;
  Sha256 hash;
  hash.update(head.data(), head.size());
  for (std::uint64_t at = head.size();;) {
    FLASHJIT_ASSIGN(chunk, read_at(file_.get(), path_, at, kChunk));
    hash.update(chunk.data(), chunk.size());
    at += chunk.size();
    if (chunk.size() < kChunk) break;
  }
  const Sha256::Digest digest = hash.finish();
  if (trusted.has(digest)) return {};
  return Error{
      ErrorKind::Io,
      fmt::format(
          "{}: its SHA-256, {}, is not in {}, the list of trusted files; if the file is what it should be, add the line "
          "that sha256sum prints for it",
          path_, hex(digest), trusted.path()),
      {}};
}

BundleKey bundle_key(const Request& request) {
  return {std::string(request.target.name), request.text, print(request.pins)};
}

BundleItem bundle_item(const BundleKey& key, const Compiled& compiled, std::string_view compiler) {
  const Facts& facts = compiled.facts;
  return {.key = key,
          .facts = {{"schedule", facts.schedule},
                    {"registers", std::to_string(facts.registers)},
                    {"spill_bytes", std::to_string(facts.spill_bytes)},
                    {"smem_bytes", std::to_string(facts.smem_bytes)},
                    {"notes", fmt::format("{}", fmt::join(facts.notes, "\n"))},
                    {"key", facts.key},
                    {"compiler", std::string(compiler)},
                    {"source", digest_of(compiled.source.generated)}}};
}

Result<void> check_kernel(const Bundle& bundle, const BundleItem& item) {
  FLASHJIT_ASSIGN(code, bundle.code(item));
  std::vector<std::string> entries;
  if (bundle.index().templates == templates_digest()) {
    const auto request = Request::parse(item.key.spec, item.key.target, item.key.pins);
    if (!request) return named(bundle.path(), request.error());
    if (bundle_key(*request) != item.key)
      return named(bundle.path(), invalid("its spec is not in the words that it would be looked for with"));
    FLASHJIT_ASSIGN(compiled, revive(bundle, item, *request));
    for (const auto* launches : {&compiled.plan.before, &compiled.plan.launches})
      for (const KernelLaunch& launch : *launches) entries.push_back(launch.entry);
  }
  const auto sound = check_cubin(code, item.key.target, entries);
  return sound ? sound : named(bundle.path(), sound.error());
}

std::string templates_digest() {
  KeyBuilder key;
  for (const EmbeddedFile& file : embedded_templates()) key.field(file.name, file.text, file.sha256);
  return key.finish().digest;
}

Result<Bundles> Bundles::open(const std::vector<std::string>& paths, const TrustedList* trusted) {
  Bundles bundles;
  const std::string own = paths.empty() ? "" : templates_digest();
  for (const std::string& path : paths) {
    FLASHJIT_ASSIGN(bundle, Bundle::open(path, trusted));
    FLASHJIT_TRY(bundle->check_trusted());
    if (bundle->index().templates != own) {
      return named(
          path, unsupported(fmt::format(
                    "the bundle was built by another version of FlashJIT, whose kernels take other parameters or are "
                    "other code (templates {:.12}, here {:.12}); {}",
                    bundle->index().templates, own, command_for(*bundle))));
    }
    bundles.bundles_.push_back(std::move(bundle));
  }
  return bundles;
}

bool Bundles::has(const BundleKey& key) const {
  return std::ranges::any_of(bundles_, [&](const auto& bundle) { return bundle->find(key) != nullptr; });
}

Result<std::optional<Compiled>> Bundles::find(const Request& request) const {
  const BundleKey key = bundle_key(request);
  for (const auto& bundle : bundles_) {
    const BundleItem* item = bundle->find(key);
    if (!item) continue;
    FLASHJIT_ASSIGN(compiled, revive(*bundle, *item, request));
    return std::optional<Compiled>(std::move(compiled));
  }
  return std::optional<Compiled>();
}

std::string Bundles::targets() const {
  std::vector<std::string> names;
  for (const auto& bundle : bundles_) {
    for (const BundleItem& item : bundle->index().items) names.push_back(item.key.target);
  }
  std::ranges::sort(names);
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names.empty() ? "no kernels" : fmt::format("kernels for {}", fmt::join(names, ", "));
}

Error Bundles::missing(const Request& request) const {
  constexpr std::size_t kShown = 3;
  const BundleKey key = bundle_key(request);
  const std::string wanted = print(key);
  const std::string command =
      fmt::format("printf '%s\\n' {} | flashjit build - --arch {} -o more.fjb", shell_quoted(wanted), key.target);
  if (empty()) {
    return {ErrorKind::NotFound,
            fmt::format("{}, and no bundle was given: kernels come from bundles alone then; for {} build one with: {}",
                        kNoJit, key.spec, command),
            {}};
  }
  std::vector<const BundleKey*> nearest;
  for (const auto& bundle : bundles_) {
    for (const BundleItem& item : bundle->index().items) {
      if (item.key.target == key.target) nearest.push_back(&item.key);
    }
  }
  std::ranges::stable_sort(nearest, {}, [&](const BundleKey* other) { return distance(*other, key); });
  std::string detail = fmt::format("the bundles have {} for {}", counted(nearest.size(), "kernel"), key.target);
  if (!nearest.empty()) detail += nearest.size() > kShown ? "; the nearest:\n" : ":\n";
  for (std::size_t i = 0; i < std::min(kShown, nearest.size()); ++i)
    detail += fmt::format("  {}\n", harmless(print(*nearest[i]), Lines::One));
  for (const auto& bundle : bundles_) {
    const auto& shards = bundle->index().shards;
    if (!shards) continue;
    detail += fmt::format("{}{} has {} of {}: `flashjit bundle merge` puts all of them together\n",
                          detail.ends_with('\n') ? "" : "\n", bundle->path(), shards->numbers.size(),
                          counted(shards->count, "shard"));
  }
  return {ErrorKind::NotFound,
          fmt::format("{}, and the bundles have no kernel for {} on {}; build it with: {}", kNoJit, wanted, key.target,
                      command),
          std::move(detail)};
}

Result<void> Bundles::check_target(std::string_view target) const {
  for (const auto& bundle : bundles_) {
    if (std::ranges::any_of(bundle->index().items, [&](const BundleItem& item) { return item.key.target == target; }))
      return {};
  }
  std::vector<std::string> paths;
  for (const auto& bundle : bundles_) paths.push_back(bundle->path());
  return Error{ErrorKind::NotFound,
               fmt::format("{}: {}, and nothing for {}, which is this engine's target; build with --arch {}",
                           fmt::join(paths, ", "), targets(), target, target),
               {}};
}

Result<void> Bundles::check_manifest(const std::string& path, std::string_view target) const {
  FLASHJIT_ASSIGN(lines, read_manifest(path));
  std::string list;
  int missing = 0, wanted = 0;
  for (const ManifestLine& line : lines) {
    if (!line.archs.empty() && std::ranges::find(line.archs, target) == line.archs.end()) continue;
    const auto request = Request::parse(line.spec, target, line.schedule);
    if (!request) return named(fmt::format("{}:{}", path, line.number), request.error());
    const auto kernels = kernels_of(*request);
    if (!kernels) return named(fmt::format("{}:{}", path, line.number), kernels.error());
    for (const Request& kernel : *kernels) {
      const BundleKey key = bundle_key(kernel);
      ++wanted;
      if (has(key)) continue;
      ++missing;
      list += fmt::format("  {}\n", print(key));
    }
  }
  if (missing == 0) return {};
  return Error{
      ErrorKind::NotFound,
      fmt::format(
          "the bundles lack {} of the {} of {} for {}; build them with: flashjit build {} --arch {} -o kernels.fjb",
          missing, counted(wanted, "spec"), path, target, shell_quoted(path), target),
      std::move(list)};
}

}  // namespace flashjit
