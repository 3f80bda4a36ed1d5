"""Writes the longest documents of a text, each to a file of its own.

Documents are parted by <|endoftext|>. Files are named after their place by length in characters:
doc-1.txt is the longest. docs/results/ measures on the third to fifth of a text.

  python3 tools/longest_documents.py TEXT FOLDER 3 5
"""

import pathlib
import sys


def main():
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    text, folder, first, last = sys.argv[1:]
    documents = pathlib.Path(text).read_text().split("<|endoftext|>")
    documents.sort(key=len, reverse=True)
    out = pathlib.Path(folder)
    out.mkdir(parents=True, exist_ok=True)
    for place in range(int(first), int(last) + 1):
        (out / f"doc-{place}.txt").write_text(documents[place - 1])


if __name__ == "__main__":
    main()
