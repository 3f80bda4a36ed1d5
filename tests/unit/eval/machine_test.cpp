// The processor's name and the time in results.json.

#include "eval/machine.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <sstream>

namespace sluice::impl {
namespace {

std::string name_in(const std::string& text) {
  std::istringstream stream(text);
  return cpu_name_in(stream);
}

std::string arm(const std::string& implementer, const std::string& part) {
  return "processor\t: 0\nCPU implementer\t: " + implementer +
         "\nCPU architecture: 8\nCPU variant\t: 0x1\nCPU part\t: " + part + "\n\n";
}

TEST(CpuName, IsThatOfTheSystemWhereItTells) {
  EXPECT_EQ(name_in("processor\t: 0\nmodel name\t: Some CPU @ 2.00GHz\nflags\t: fpu\n"),
            "Some CPU @ 2.00GHz");
}

TEST(CpuName, OfArmIsThatOfItsCores) {
  EXPECT_EQ(name_in(arm("0x41", "0xd40") + arm("0x41", "0xd40")), "Neoverse-V1");
  EXPECT_EQ(name_in(arm("0x41", "0xd4f")), "Neoverse-V2");
  EXPECT_EQ(name_in(arm("0x41", "0xd81") + arm("0x41", "0xd82") + arm("0x41", "0xd81")),
            "Cortex-A720 + Cortex-X4");
  EXPECT_EQ(name_in(arm("0x41", "0xfff")), "Arm implementer 0x41 part 0xfff");
  EXPECT_EQ(name_in(arm("what", "0xd40")), "Arm implementer what part 0xd40");
}

TEST(CpuName, OfNothingIsUnknown) {
  EXPECT_EQ(name_in(""), "unknown");
  EXPECT_EQ(name_in("CPU implementer\nCPU part\n"), "unknown");
  EXPECT_NE(cpu_name(), "");
}

class Timestamp : public testing::Test {
 protected:
  void TearDown() override { unsetenv("SOURCE_DATE_EPOCH"); }
  static std::string at(const char* epoch) {
    setenv("SOURCE_DATE_EPOCH", epoch, 1);
    return timestamp();
  }
};

TEST_F(Timestamp, IsThatOfTheEnvironmentWhereItHasOne) {
  EXPECT_EQ(at("0"), "1970-01-01T00:00:00Z");
  EXPECT_EQ(at("1700000000"), "2023-11-14T22:13:20Z");
  EXPECT_EQ(at("253402300799"), "9999-12-31T23:59:59Z");
}

TEST_F(Timestamp, IsNowWhereThatIsNoTime) {
  for (const char* odd : {"", "x", "-1", "12x", "253402300800", "99999999999999999999"}) {
    const std::string now = at(odd);
    EXPECT_EQ(now.size(), 20u) << odd;
    EXPECT_GT(now, "2024") << odd;
    EXPECT_LT(now, "9999") << odd;
  }
}

}  // namespace
}  // namespace sluice::impl
