"""Training that gives the same vocabulary in every run.

The trainers of `tokenizers` walk hash tables, so with prefixes, suffixes or a limited alphabet
their ties fall differently from run to run; byte-level BPE and word lists do not suffer from it.
"""

import math
from collections import Counter
from collections.abc import Callable

from tokenizers import Tokenizer

from golden import tokenizer_text as text


def count_words(tokenizer: Tokenizer) -> Counter:
    """The words of the training text as the tokenizer's first two steps give them."""
    words: Counter = Counter()
    for line in text.training_text():
        if tokenizer.normalizer is not None:
            line = tokenizer.normalizer.normalize_str(line)
        words.update(word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(line))
    return words


def common_chars(words: Counter, size: int) -> set[str]:
    """The most frequent characters; the smaller one first among equals."""
    counts: Counter = Counter()
    for word, count in words.items():
        for char in word:
            counts[char] += count
    return set(sorted(counts, key=lambda char: (-counts[char], char))[:size])


def learn_bpe(
    words: Counter, split: Callable[[str], list[str]], prefix: str, n_merges: int
) -> tuple[list[str], list[tuple[str, str]]]:
    """Alphabet and merges: the most frequent pair first, the smaller one among equals."""
    table = [(split(word), count) for word, count in sorted(words.items())]
    alphabet = sorted({symbol for symbols, _ in table for symbol in symbols})
    merges: list[tuple[str, str]] = []
    while len(merges) < n_merges:
        pairs: Counter = Counter()
        for symbols, count in table:
            for pair in zip(symbols, symbols[1:]):
                pairs[pair] += count
        if not pairs:
            break
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        table = [(apply_merge(symbols, best, prefix), count) for symbols, count in table]
    return alphabet, merges


def join_pair(pair: tuple[str, str], prefix: str) -> str:
    return pair[0] + pair[1][len(prefix):]


def apply_merge(symbols: list[str], pair: tuple[str, str], prefix: str) -> list[str]:
    """Joins every occurrence of the pair, from left to right."""
    if pair[0] not in symbols:
        return symbols
    out: list[str] = []
    for symbol in symbols:
        if out and (out[-1], symbol) == pair:
            out[-1] = join_pair(pair, prefix)
        else:
            out.append(symbol)
    return out


def vocabulary(first: list[str], alphabet: list[str], merges: list[tuple[str, str]],
               prefix: str) -> dict[str, int]:
    """Ids: the first tokens, the alphabet, then what the merges make; each text once."""
    tokens = dict.fromkeys(first + alphabet + [join_pair(pair, prefix) for pair in merges])
    return {token: index for index, token in enumerate(tokens)}


def unigram_pieces(words: Counter, size: int, n_chars: int) -> list[tuple[str, float]]:
    """Frequent characters and the substrings that cover most text, scored by frequency."""
    chars = common_chars(words, n_chars)
    counts: Counter = Counter()
    for word, count in words.items():
        for begin in range(len(word)):
            for end in range(begin + 1, min(begin + 8, len(word)) + 1):
                counts[word[begin:end]] += count
    longer = sorted((piece for piece in counts if len(piece) > 1 and set(piece) <= chars),
                    key=lambda piece: (-counts[piece] * (len(piece) - 1), piece))
    chosen = sorted(chars) + longer[: size - len(chars)]
    total = sum(counts[piece] for piece in chosen)
    scored = [(piece, round(math.log(counts[piece] / total), 6)) for piece in chosen]
    return sorted(scored, key=lambda item: (-item[1], item[0]))
