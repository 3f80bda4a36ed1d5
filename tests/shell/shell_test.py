"""The man page and the completions, tried by the programs that read them.

    shell_test.py PROGRAM [unittest's arguments]
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

BASH = """
source {script}
COMP_WORDS=({words}) COMP_CWORD={at}
_sluice
printf '%s\\n' "${{COMPREPLY[@]}}"
"""

# zsh's own functions work within its line editor alone. These print what they are asked to complete.
ZSH = """
compdef() {{ }}
_describe() {{ print -rl -- $commands }}
_arguments() {{ print -rl -- "$@" }}
source {script}
words=({words}) CURRENT={at}
_sluice
"""


def needs(name):
    return unittest.skipUnless(shutil.which(name), f"{name} is not installed")


class Shell(unittest.TestCase):
    program = None

    @classmethod
    def setUpClass(cls):
        cls._folder = tempfile.TemporaryDirectory(prefix="sluice-shell-")
        cls.folder = pathlib.Path(cls._folder.name)
        for shell in ("bash", "zsh", "fish"):
            cls.script(shell).write_text(cls.output("completion", shell), encoding="utf-8")

    @classmethod
    def tearDownClass(cls):
        cls._folder.cleanup()

    @classmethod
    def script(cls, shell):
        return cls.folder / f"sluice.{shell}"

    @classmethod
    def output(cls, *words):
        return subprocess.run([cls.program, *words], capture_output=True, text=True, check=True).stdout

    def commands(self):
        """Names of the commands, of the program's own help."""
        listing = self.output("--help").split("Subcommands:")[1]
        return re.findall(r"^  (\w+) ", listing, re.MULTILINE)

    def bash(self, *words):
        done = subprocess.run(
            ["bash", "--norc", "-c", BASH.format(script=self.script("bash"), at=len(words) - 1,
                                                 words=" ".join(f"'{word}'" for word in words))],
            capture_output=True, text=True, check=True)
        self.assertEqual(done.stderr, "")
        return done.stdout.split()

    def fish(self, line):
        done = subprocess.run(["fish", "--no-config", "-c", f"source {self.script('fish')}; complete -C '{line}'"],
                              capture_output=True, text=True, check=True, cwd=self.folder,
                              env={**os.environ, "HOME": str(self.folder), "PATH": os.environ["PATH"]})
        return [found.split("\t")[0] for found in done.stdout.splitlines()]

    def zsh(self, *words):
        done = subprocess.run(
            ["zsh", "-f", "-c", ZSH.format(script=self.script("zsh"), at=len(words),
                                           words=" ".join(f"'{word}'" for word in words))],
            capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL)
        self.assertEqual(done.stderr, "")
        return done.stdout.splitlines()

    def test_bash_completes_commands_options_and_values(self):
        self.assertEqual(self.bash("sluice", ""), [*self.commands(), "--help", "--version"])
        self.assertEqual(self.bash("sluice", "ana"), ["analyze"])
        self.assertEqual(self.bash("sluice", "eval", "--con"), ["--context"])
        self.assertEqual(self.bash("sluice", "eval", "--device", "c"), ["cpu", "cuda"])
        self.assertEqual(self.bash("sluice", "completion", "z"), ["zsh"])
        self.assertEqual(self.bash("sluice", "help", "gen"), ["generate"])

    def test_bash_leaves_files_to_the_shell(self):
        self.assertEqual(self.bash("sluice", "eval", "-m", "mod"), [])

    @needs("fish")
    def test_fish_completes_commands_options_and_values(self):
        self.assertEqual(sorted(self.fish("sluice ")), sorted(self.commands()))
        self.assertEqual(self.fish("sluice eval --con"), ["--context"])
        self.assertEqual(sorted(self.fish("sluice eval --device c")), ["cpu", "cuda"])
        self.assertEqual(self.fish("sluice completion z"), ["zsh"])

    @needs("zsh")
    def test_zsh_completes_commands_options_and_values(self):
        self.assertEqual([line.split(":")[0] for line in self.zsh("sluice", "")], self.commands())
        options = self.zsh("sluice", "eval", "--d")
        self.assertTrue(any(re.fullmatch(r"\(-c --context\)--context\[.+\]:\w+:_files", line) for line in options))
        self.assertTrue(any(re.fullmatch(r"--device\[.+\]:TEXT:\(cpu cuda reference\)", line) for line in options))
        self.assertIn("*:argument:(bash zsh fish)", self.zsh("sluice", "completion", ""))

    @needs("groff")
    def test_the_man_page_is_well_formed_and_complete(self):
        page = self.output("help", "--man")
        done = subprocess.run(["groff", "-man", "-ww", "-Kutf8", "-Tutf8"], input=page, capture_output=True, text=True,
                              check=True)
        self.assertEqual(done.stderr, "")
        text = re.sub(r"\x1b\[[0-9;]*m|.\x08", "", done.stdout)
        for command in self.commands():
            self.assertRegex(text, rf"\n +sluice {command}\n")
            options = re.findall(r"--[a-z][\w-]+", self.output("help", command).split("Options:")[-1])
            for option in set(options):
                self.assertIn(option, text.replace("‐", "-").replace("−", "-"))


if __name__ == "__main__":
    Shell.program = os.path.abspath(sys.argv.pop(1))
    unittest.main()
