// Messages, collectives and failures between ranks, on threads in place of processes.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <numeric>

#include "unit/ranks/thread_ranks.h"

namespace sluice::impl {
namespace {

std::vector<std::byte> bytes_of(const std::string& text) {
  std::vector<std::byte> out(text.size());
  if (!text.empty()) std::memcpy(out.data(), text.data(), text.size());
  return out;
}

std::string text_of(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string failure_of(const std::function<void()>& f, int* code = nullptr) {
  try {
    f();
  } catch (const RankError& error) {
    if (code != nullptr) *code = error.code();
    return error.what() + (error.hint().empty() ? "" : " | " + error.hint());
  }
  return "";
}

TEST(Communicator, OfOneProcessGivesBackWhatItWasGiven) {
  Communicator& one = alone();
  EXPECT_EQ(one.rank(), 0);
  EXPECT_EQ(one.size(), 1);
  one.barrier();
  const auto all = one.gather_all(bytes_of("own"));
  ASSERT_EQ(all.size(), 1U);
  EXPECT_EQ(text_of(all[0]), "own");
  std::vector<float> data = {1, 2};
  one.add_all(data);
  EXPECT_EQ(data, (std::vector<float>{1, 2}));
  EXPECT_EQ(one.bytes_sent(), 0);
  EXPECT_EQ(failure_of([&] { one.fail(Error("no", "hint"), 1); }), "no | hint");
}

TEST(Communicator, MessagesLargerThanAPartArriveWhole) {
  on_ranks(
      2,
      [](Communicator& ranks) {
        std::vector<std::byte> data = bytes_of("twenty-three characters");
        if (ranks.rank() == 0) {
          ranks.send(data, 1);
          EXPECT_EQ(ranks.bytes_sent(), 23);
          EXPECT_EQ(ranks.messages_sent(), 4);  // of 7, 7, 7 and 2
        } else {
          std::vector<std::byte> got(data.size());
          ranks.receive(got, 0);
          EXPECT_EQ(got, data);
        }
        std::vector<std::byte> shared = ranks.rank() == 1 ? data : std::vector<std::byte>(23);
        ranks.broadcast(shared, 1);
        EXPECT_EQ(shared, data);
      },
      /*part=*/7);
}

TEST(Communicator, GathersDataOfDifferentSizesInTheOrderOfRanks) {
  for (const size_t part : {size_t{5}, size_t{1} << 20})
    on_ranks(
        4,
        [](Communicator& ranks) {
          const std::vector<std::string> texts = {"", "one", "rank two says more", "3"};
          const auto all = ranks.gather_all(bytes_of(texts[static_cast<size_t>(ranks.rank())]));
          ASSERT_EQ(all.size(), 4U);
          for (size_t r = 0; r < 4; ++r) EXPECT_EQ(text_of(all[r]), texts[r]);
        },
        part);
}

// Large and small: gathered whole, and slice by slice. The sum in the order of ranks is one number,
// whatever the order of arrival.
TEST(Communicator, AddsInTheOrderOfRanksToTheBit) {
  for (const int n_ranks : {2, 3, 4})
    for (const size_t n : {size_t{1}, size_t{37}, size_t{40003}})
      on_ranks(n_ranks, [&](Communicator& ranks) {
        const auto value = [](size_t i, int rank) {
          return std::ldexp(1.0F + 0.1F * static_cast<float>(i % 7), 9 * rank % 25);
        };
        std::vector<float> data(n), expected(n);
        for (size_t i = 0; i < n; ++i) {
          data[i] = value(i, ranks.rank());
          expected[i] = value(i, 0);
          for (int r = 1; r < n_ranks; ++r) expected[i] += value(i, r);
        }
        ranks.add_all(data);
        EXPECT_EQ(std::memcmp(data.data(), expected.data(), n * sizeof(float)), 0);
      });
}

TEST(Communicator, ASumLargerThanAPartIsTheSame) {
  on_ranks(
      3,
      [](Communicator& ranks) {
        std::vector<float> data(29);
        std::iota(data.begin(), data.end(), static_cast<float>(ranks.rank()));
        ranks.add_all(data);
        for (size_t i = 0; i < data.size(); ++i)
          EXPECT_EQ(data[i], 3.0F * static_cast<float>(i) + 3.0F);
      },
      /*part=*/24);
}

TEST(Communicator, TheFailureOfOneRankEndsAllWithATextThatNamesIt) {
  on_ranks(3, [](Communicator& ranks) {
    int code = 0;
    const std::string text = failure_of(
        [&] {
          if (ranks.rank() == 1) ranks.fail(Error("x.txt: no such file", "is it there?"), 1);
          if (ranks.rank() == 0) ranks.gather_all(bytes_of("figures"));
          ranks.barrier();
        },
        &code);
    EXPECT_EQ(text, "rank 1 of 3 (host1): x.txt: no such file | is it there?");
    EXPECT_EQ(code, 1);
  });
}

TEST(Communicator, RanksThatFailAlikeNameNone) {
  on_ranks(3, [](Communicator& ranks) {
    int code = 0;
    EXPECT_EQ(failure_of([&] { ranks.fail(Error("-c is too large"), 2); }, &code),
              "-c is too large");
    EXPECT_EQ(code, 2);
  });
}

TEST(Communicator, OfRanksThatFailDifferentlyTheLowestIsNamed) {
  on_ranks(3, [](Communicator& ranks) {
    EXPECT_EQ(failure_of([&] {
                if (ranks.rank() == 0) ranks.barrier();
                ranks.fail(Error("disk " + std::to_string(ranks.rank())), 1);
              }),
              "rank 1 of 3 (host1): disk 1");
  });
}

}  // namespace
}  // namespace sluice::impl
