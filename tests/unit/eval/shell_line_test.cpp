// Command lines that paste back.

#include "eval/shell_line.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "io/tokenizer/utf8.h"
#include "unit/test_files.h"

namespace sluice::impl::test {
namespace {

TEST(ShellLine, QuotesWhatAShellWouldChangeAndNothingElse) {
  EXPECT_EQ(shell_line({"sluice", "eval", "-m", "models/gpt2", "--tau", "0.3,0.5"}),
            "sluice eval -m models/gpt2 --tau 0.3,0.5");
  EXPECT_EQ(shell_line({"a b", "", "it's", "$x", "~", "*", "--a=b"}),
            "'a b' '' 'it'\\''s' '$x' '~' '*' --a=b");
  EXPECT_EQ(shell_line({"=ls", "naïve ✓"}), "'=ls' 'naïve ✓'");
  EXPECT_EQ(shell_line({"a\nb\t", "\x1b[31m'\\",
                        "\xff\xe2\x82"
                        "1"}),
            "$'a\\nb\\t' $'\\033[31m\\'\\\\' $'\\377\\342\\2021'");
}

TEST(ShellLine, IsOneLineOfValidUtf8) {
  std::string every;
  for (int byte = 1; byte < 256; ++byte) every += static_cast<char>(byte);
  const std::string line = shell_line({every, every});
  EXPECT_TRUE(tok::is_valid_utf8(line));
  for (const char c : line) EXPECT_TRUE(static_cast<unsigned char>(c) >= 0x20 && c != 0x7f);
}

TEST(ShellLine, ComesBackFromAShellByteForByte) {
  if (std::system("bash -c true") != 0) GTEST_SKIP() << "bash is not here";
  std::vector<std::string> words = {"",
                                    " ",
                                    "a b",
                                    "it's",
                                    "\"q\"",
                                    "$HOME",
                                    "`id`",
                                    "\\",
                                    "\\n",
                                    "!x",
                                    "#x",
                                    "~",
                                    "*",
                                    "{a,b}",
                                    "a;b",
                                    "=x",
                                    "-n",
                                    "naïve ✓",
                                    "\n",
                                    "a\r\tb'\\",
                                    "\x01"
                                    "7",
                                    "\x7f"};
  std::string every;
  for (int byte = 1; byte < 256; ++byte) {
    every += static_cast<char>(byte);
    words.emplace_back(1, static_cast<char>(byte));
    words.push_back("1" + std::string(1, static_cast<char>(byte)) + "7");
  }
  words.push_back(every);
  const TempDir dir;
  const auto script = dir.write("script", "printf '%s\\0' " + shell_line(words));
  const auto out = dir.path() / "out";
  ASSERT_EQ(std::system(("bash '" + script.string() + "' > '" + out.string() + "'").c_str()), 0);
  std::string expected;
  for (const std::string& word : words) expected.append(word).push_back('\0');
  EXPECT_EQ(read_bytes(out), expected);
}

}  // namespace
}  // namespace sluice::impl::test
