#!/usr/bin/env python3
"""Writes the golden files under tests/golden: what C++ results are compared with.

    python tools/make_golden.py [--only models|gguf|tokenizers|chat|blocks|selection] [--out tests/golden]

Every checkpoint is random, or our own and trained, and every tokenizer is trained here: nothing
comes from a third party.
Two runs with the same packages on the same kind of CPU write the same bytes. Another CPU or
another torch may move float32 logits in their last digits. `make golden` installs the packages of
tools/requirements-golden.txt, which made the committed files, and runs this.
"""

import argparse
import importlib
import json
import os
from importlib import metadata
from pathlib import Path

# Nothing here may reach the network; one thread keeps the order of every sum fixed.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["OMP_NUM_THREADS"] = "1"

PACKAGES = ("torch", "transformers", "tokenizers", "safetensors", "gguf", "numpy")
PARTS = {
    "models": "golden.models",
    "gguf": "golden.gguf_models",
    "tokenizers": "golden.tokenizers",
    "chat": "golden.chat",  # uses those tokenizers
    "blocks": "golden.gguf_blocks",
    "selection": "golden.selection",  # of trained checkpoints, those that are here
}


def write_versions(out_dir: Path) -> None:
    """Records which packages made the files."""
    versions = {name: metadata.version(name) for name in PACKAGES}
    (out_dir / "versions.json").write_text(json.dumps(versions, indent=2) + "\n")


def make_readable(out_dir: Path) -> None:
    """safetensors writes files that only their owner can read."""
    for path in out_dir.rglob("*"):
        if path.is_file():
            path.chmod(0o644)


def print_sizes(out_dir: Path) -> None:
    """Prints one line per folder or file of the second level, and the sum."""
    total = 0
    for part in sorted(path for path in out_dir.iterdir() if path.is_dir()):
        for entry in sorted(part.iterdir()):
            files = [entry] if entry.is_file() else [f for f in entry.rglob("*") if f.is_file()]
            size = sum(f.stat().st_size for f in files)
            total += size
            print(f"{size / 1024:9.1f} KiB  {part.name}/{entry.name}")
    print(f"{total / 1024:9.1f} KiB  in all")


def main() -> None:
    """Parses the command line and makes the parts asked for."""
    parser = argparse.ArgumentParser(description="Write the golden files.")
    parser.add_argument("--only", choices=sorted(PARTS), help="make one part")
    parser.add_argument("--out", type=Path, default=Path("tests/golden"), help="output folder")
    args = parser.parse_args()

    args.out.mkdir(parents=True, exist_ok=True)
    for part in [args.only] if args.only else PARTS:
        importlib.import_module(PARTS[part]).make(args.out)
    write_versions(args.out)
    make_readable(args.out)
    print_sizes(args.out)


if __name__ == "__main__":
    main()
