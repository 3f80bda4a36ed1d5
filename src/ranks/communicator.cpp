#include "ranks/communicator.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace sluice::impl {
namespace {

// Up to here one message to each rank is faster than two of a part each: latency, not bytes, is
// what a sum of a decode step costs.
constexpr size_t kGatheredBytes = size_t{64} << 10;

// How long a failing rank waits for the others: ranks that fail alike do so within moments.
constexpr std::chrono::milliseconds kMostWaited{10'000};
// A rank waits longer by this for every rank before it, so that of several one ends them all.
constexpr std::chrono::milliseconds kApart{500};
constexpr std::chrono::hours kNoLimit{24 * 365};

// A word below zero says that a rank fails: what is behind it is the length of its text.
int64_t failing_word(size_t length) { return -1 - static_cast<int64_t>(length); }
size_t failing_length(int64_t word) { return static_cast<size_t>(-1 - word); }

// code, message, hint; the first is one byte, the others end with a zero byte.
std::string packed(const Error& error, int code) {
  std::string text(1, static_cast<char>(code));
  text += std::string(error.what()) + '\0' + error.hint() + '\0';
  return text;
}

template <typename F>
void in_parts(size_t n_bytes, size_t part, F&& f) {
  for (size_t begin = 0; begin < n_bytes; begin += part) f(begin, std::min(part, n_bytes - begin));
}

}  // namespace

Communicator::Communicator(std::unique_ptr<Transport> transport, size_t part)
    : transport_(std::move(transport)),
      part_(part),
      rank_(transport_->rank()),
      size_(transport_->size()) {
  SLUICE_CHECK(part_ >= sizeof(float));
}

void Communicator::count(size_t n_bytes, int n_messages) {
  bytes_sent_ += static_cast<int64_t>(n_bytes) * n_messages;
  messages_sent_ += n_messages;
}

void Communicator::send(std::span<const std::byte> data, int to) {
  SLUICE_CHECK(to >= 0 && to < size_ && to != rank_);
  in_parts(data.size(), part_, [&](size_t begin, size_t n) {
    transport_->send(data.subspan(begin, n), to);
    count(n, 1);
  });
}

void Communicator::post(std::span<const std::byte> data, int to) {
  SLUICE_CHECK(to >= 0 && to < size_ && to != rank_);
  in_parts(data.size(), part_, [&](size_t begin, size_t n) {
    transport_->post(data.subspan(begin, n), to);
    count(n, 1);
  });
}

void Communicator::receive(std::span<std::byte> data, int from) {
  SLUICE_CHECK(from >= 0 && from < size_ && from != rank_);
  in_parts(data.size(), part_,
           [&](size_t begin, size_t n) { transport_->receive(data.subspan(begin, n), from); });
}

void Communicator::broadcast(std::span<std::byte> data, int from) {
  SLUICE_CHECK(from >= 0 && from < size_);
  if (size_ == 1) return;
  in_parts(data.size(), part_, [&](size_t begin, size_t n) {
    transport_->broadcast(data.subspan(begin, n), from);
    if (from == rank_) count(n, size_ - 1);
  });
}

std::vector<int64_t> Communicator::agreed(int64_t own) {
  std::vector<int64_t> words(static_cast<size_t>(size_), own);
  if (size_ == 1) return words;
  if (!transport_->agree(own, words, kNoLimit)) abort("the other ranks do not answer");
  count(sizeof own, size_ - 1);
  if (std::any_of(words.begin(), words.end(), [](int64_t word) { return word < 0; }))
    end_together(words, "");
  return words;
}

std::vector<std::vector<std::byte>> Communicator::gather_all(std::span<const std::byte> data) {
  const std::vector<int64_t> sizes = agreed(static_cast<int64_t>(data.size()));
  std::vector<std::vector<std::byte>> all;
  if (size_ == 1) {
    all.emplace_back(data.begin(), data.end());
    return all;
  }
  for (const int64_t size : sizes) all.emplace_back(static_cast<size_t>(size));
  const auto largest = static_cast<size_t>(*std::max_element(sizes.begin(), sizes.end()));
  // The received parts of all ranks together are one message's worth.
  const size_t part = std::max<size_t>(1, part_ / static_cast<size_t>(size_));
  std::vector<std::byte> own(std::min(part, largest)), parts(own.size() * all.size());
  in_parts(largest, part, [&](size_t begin, size_t n) {
    const auto within = [&](size_t size) { return begin < size ? std::min(n, size - begin) : 0; };
    if (within(data.size()) > 0) std::memcpy(own.data(), &data[begin], within(data.size()));
    transport_->gather_all(std::span(own).first(n), std::span(parts).first(n * all.size()));
    for (size_t r = 0; r < all.size(); ++r)
      if (within(all[r].size()) > 0)
        std::memcpy(&all[r][begin], &parts[r * n], within(all[r].size()));
    count(n, size_ - 1);
  });
  return all;
}

void Communicator::share(std::vector<std::byte>& data) {
  if (size_ == 1) return;
  const std::vector<int64_t> sizes = agreed(rank_ == 0 ? std::ssize(data) : 0);
  data.resize(static_cast<size_t>(sizes.front()));
  broadcast(data, 0);
}

void Communicator::add_gathered(std::span<float> data) {
  std::vector<float> all(data.size() * static_cast<size_t>(size_));
  transport_->gather_all(std::as_bytes(data), std::as_writable_bytes(std::span(all)));
  count(data.size_bytes(), size_ - 1);
  std::copy_n(all.begin(), data.size(), data.begin());
  for (size_t begin = data.size(); begin < all.size(); begin += data.size())
    for (size_t i = 0; i < data.size(); ++i) data[i] += all[begin + i];
}

// Every rank adds a slice for all: twice the bytes of `data` travel, however many ranks there are.
void Communicator::add_exchanged(std::span<float> data) {
  const auto n_ranks = static_cast<size_t>(size_);
  const size_t slice = (data.size() + n_ranks - 1) / n_ranks;
  std::vector<float> own(slice * n_ranks), all(slice * n_ranks);
  std::copy(data.begin(), data.end(), own.begin());
  transport_->exchange(std::as_bytes(std::span(own)), std::as_writable_bytes(std::span(all)));
  for (size_t r = 1; r < n_ranks; ++r)
    for (size_t i = 0; i < slice; ++i) all[i] += all[r * slice + i];
  transport_->gather_all(std::as_bytes(std::span(all).first(slice)),
                         std::as_writable_bytes(std::span(own)));
  count(slice * sizeof(float), 2 * (size_ - 1));
  std::copy_n(own.begin(), data.size(), data.begin());
}

void Communicator::add_all(std::span<float> data) {
  if (size_ == 1) return;
  // What is received from all ranks together is one message's worth.
  const size_t part = std::max<size_t>(1, part_ / sizeof(float) / static_cast<size_t>(size_));
  in_parts(data.size(), part, [&](size_t begin, size_t n) {
    const std::span<float> some = data.subspan(begin, n);
    if (size_ == 2 || some.size_bytes() <= kGatheredBytes)
      add_gathered(some);
    else
      add_exchanged(some);
  });
}

void Communicator::barrier() { agreed(0); }

// The text of the lowest rank that failed. Its rank is not named where all say the same.
void Communicator::end_together(const std::vector<int64_t>& words, const std::string& own) {
  const auto failed = [](int64_t word) { return word < 0; };
  const auto first = std::find_if(words.begin(), words.end(), failed);
  const int rank = static_cast<int>(first - words.begin());
  std::string text = rank == rank_ ? own : std::string(failing_length(*first), '\0');
  transport_->broadcast(std::as_writable_bytes(std::span(text)), rank);
  std::vector<int64_t> same(words.size());
  if (!transport_->agree(text == own ? 1 : 0, same, kNoLimit)) abort("the other ranks have gone");
  const size_t end = text.find('\0', 1);
  std::string message = text.substr(1, end - 1);
  if (std::find(same.begin(), same.end(), 0) != same.end()) {
    std::string host = rank == rank_ ? transport_->host() : "";
    host.resize(64);
    transport_->broadcast(std::as_writable_bytes(std::span(host)), rank);
    message = "rank " + std::to_string(rank) + " of " + std::to_string(size_) + " (" +
              host.c_str() + "): " + message;
  }
  throw RankError(message, text.substr(end + 1, text.size() - end - 2), text[0]);
}

void Communicator::fail(const Error& error, int code) {
  if (size_ == 1) throw RankError(error.what(), error.hint(), code);
  const std::string text = packed(error, code);
  std::vector<int64_t> words(static_cast<size_t>(size_));
  if (!transport_->agree(failing_word(text.size()), words, kMostWaited + rank_ * kApart))
    abort(error.what() + (error.hint().empty() ? "" : " (hint: " + error.hint() + ")"), code);
  end_together(words, text);
}

void Communicator::abort(const std::string& message, int code) {
  std::string line = "sluice: ";
  if (size_ > 1)
    line += "rank " + std::to_string(rank_) + " of " + std::to_string(size_) + " (" +
            transport_->host() + "): ";
  for (const char c : message) line += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? '?' : c;
  line += '\n';
  [[maybe_unused]] const ssize_t n = ::write(STDERR_FILENO, line.data(), line.size());
  if (transport_) transport_->abort(code);
  ::_exit(code);
}

Communicator& alone() {
  static Communicator one;
  return one;
}

}  // namespace sluice::impl
