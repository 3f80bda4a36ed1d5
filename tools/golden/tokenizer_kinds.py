"""The golden tokenizers themselves: one small one of every kind, trained on tokenizer_text."""

import json
from dataclasses import dataclass, field

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from golden import tokenizer_text as text
from golden import tokenizer_train as train

LLAMA3_REGEX = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2_REGEX = LLAMA3_REGEX.replace("{1,3}", "")
BYTE_TOKENS = [f"<0x{byte:02X}>" for byte in range(256)]


@dataclass
class Case:
    """One golden folder."""

    name: str
    kind: str
    tokenizer: Tokenizer
    config: dict = field(default_factory=dict)
    every: int = 1  # asks about every n-th string only


def special(*contents: str) -> list[AddedToken]:
    """Special tokens as training registers them."""
    return [AddedToken(content, special=True, normalized=False) for content in contents]


def added_token(content: str) -> dict:
    """A token as tokenizer_config.json spells it out."""
    return {"__type": "AddedToken", "content": content, "lstrip": False, "normalized": False,
            "rstrip": False, "single_word": False, "special": True}


def train_bytes(pre_tokenizer, normalizer, size: int, tokens: list[AddedToken]) -> Tokenizer:
    """Byte-level BPE."""
    tokenizer = Tokenizer(models.BPE())
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=tokens,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(text.training_text(), trainer)
    return tokenizer


def changed(tokenizer: Tokenizer, change) -> Tokenizer:
    """The tokenizer after `change(dict)` edited its JSON."""
    content = json.loads(tokenizer.to_str())
    change(content)
    return Tokenizer.from_str(json.dumps(content))


def template(tokenizer: Tokenizer, before: str, after: str = "") -> None:
    """Puts special tokens around a text."""
    names = [token for token in (before, after) if token]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{before} $A {after}".strip(),
        special_tokens=[(name, tokenizer.token_to_id(name)) for name in names],
    )


def split_regex(regex: str):
    """A regex whose matches stay whole, then the byte alphabet."""
    return pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(regex), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])


def gpt2() -> Case:
    tokenizer = train_bytes(pre_tokenizers.ByteLevel(add_prefix_space=False), None, 760,
                            special("<|endoftext|>"))
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    config = {"bos_token": "<|endoftext|>", "eos_token": added_token("<|endoftext|>")}
    return Case("gpt2", "byte-level BPE", tokenizer, config)


def opt() -> Case:
    tokenizer = train_bytes(pre_tokenizers.ByteLevel(add_prefix_space=False), None, 600,
                            special("<s>", "<pad>", "</s>", "<unk>"))
    template(tokenizer, "</s>")
    config = {"bos_token": "</s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "</s>",
              "add_bos_token": True}
    return Case("opt", "byte-level BPE", tokenizer, config)


def roberta() -> Case:
    """RoBERTa's processor, a space put before the text, no regex bypass."""
    tokenizer = train_bytes(pre_tokenizers.ByteLevel(add_prefix_space=True), None, 420,
                            special("<s>", "<pad>", "</s>", "<unk>"))
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True, special=True)])
    tokenizer.post_processor = processors.RobertaProcessing(
        ("</s>", tokenizer.token_to_id("</s>")), ("<s>", tokenizer.token_to_id("<s>")))
    config = {"bos_token": "<s>", "eos_token": "</s>"}
    return Case("roberta", "byte-level BPE", tokenizer, config, every=2)


def llama3() -> Case:
    tokenizer = train_bytes(split_regex(LLAMA3_REGEX), None, 800, [])

    def change(content: dict) -> None:
        content["model"]["ignore_merges"] = True
        # A word without merges of its own: only ignore_merges finds it.
        content["model"]["vocab"]["Ġgardenofstones"] = len(content["model"]["vocab"])

    tokenizer = changed(tokenizer, change)
    tokenizer.add_special_tokens(special("<|begin_of_text|>", "<|endoftext|>", "<|im_start|>"))
    bos = tokenizer.token_to_id("<|begin_of_text|>")
    tokenizer.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single="<|begin_of_text|> $A",
                                      special_tokens=[("<|begin_of_text|>", bos)]),
    ])
    config = {"bos_token": "<|begin_of_text|>", "eos_token": "<|endoftext|>"}
    return Case("llama3", "byte-level BPE", tokenizer, config)


def qwen2() -> Case:
    tokenizer = train_bytes(split_regex(QWEN2_REGEX), normalizers.NFC(), 700, [])
    tokenizer.add_special_tokens(special("<|endoftext|>", "<|im_start|>", "<|im_end|>"))
    tokenizer.add_tokens([AddedToken("<tool>", special=False, normalized=False)])
    config = {"bos_token": None, "eos_token": "<|im_end|>", "add_bos_token": False}
    return Case("qwen2", "byte-level BPE", tokenizer, config)


def neox() -> Case:
    """Runs of spaces are added tokens, which are no special ones."""
    tokenizer = train_bytes(pre_tokenizers.ByteLevel(add_prefix_space=False), normalizers.NFC(), 700,
                            special("<|endoftext|>", "<|padding|>"))
    tokenizer.add_tokens([AddedToken(" " * n, normalized=True) for n in (8, 4, 3, 2)])
    config = {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"}
    return Case("neox", "byte-level BPE", tokenizer, config)


def train_llama2() -> Tokenizer:
    """BPE over U+2581 text with byte tokens, as Llama 2's tokenizer.json has it."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"),
                                                 normalizers.Replace(" ", "▁")])
    tokenizer.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    words = train.count_words(tokenizer)
    chars = train.common_chars(words, 100)
    words = {word: count for word, count in words.items() if set(word) <= chars}
    alphabet, merges = train.learn_bpe(words, list, "", 500)
    vocab = train.vocabulary(["<unk>", "<s>", "</s>", *BYTE_TOKENS], alphabet, merges, "")
    trained = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True,
                                   byte_fallback=True))
    trained.normalizer = tokenizer.normalizer
    trained.add_special_tokens(special("<unk>", "<s>", "</s>"))
    return trained


def llama2() -> Case:
    tokenizer = train_llama2()
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(),
                                           decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    template(tokenizer, "<s>")
    config = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    return Case("llama2", "SentencePiece BPE", tokenizer, config)


def phi3() -> Case:
    """Llama 2's, with special tokens that take the whitespace after them along."""
    tokenizer = train_llama2()
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(),
                                           decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    tokenizer.add_special_tokens(special("<|endoftext|>"))
    tokenizer.add_special_tokens([AddedToken("<|im_start|>", rstrip=True, special=True)])
    config = {"bos_token": "<s>", "eos_token": "<|endoftext|>", "add_bos_token": False}
    return Case("phi3", "SentencePiece BPE", tokenizer, config, every=3)


def llama2_metaspace() -> Case:
    tokenizer = train_llama2()
    tokenizer = changed(tokenizer, lambda content: content.update(normalizer=None))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(),
                                           decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    template(tokenizer, "<s>", "</s>")
    config = {"bos_token": added_token("<s>"), "eos_token": added_token("</s>")}
    return Case("llama2-metaspace", "SentencePiece BPE", tokenizer, config)


def gemma() -> Case:
    """Llama 2's pieces without a space put before the text; runs of white space are tokens."""
    tokenizer = train_llama2()
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", behavior="merged_with_previous")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(),
                                           decoders.Fuse()])
    runs = ["\n\n", "\t\t", "▁▁", "▁▁▁"]
    tokenizer.add_tokens([AddedToken(run, special=False, normalized=False) for run in runs])
    template(tokenizer, "<s>")
    config = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    return Case("gemma", "SentencePiece BPE", tokenizer, config)


def train_wordpiece(tokenizer: Tokenizer, tokens: list[str], n_merges: int) -> Tokenizer:
    """The same steps with a WordPiece model behind them."""
    words = train.count_words(tokenizer)
    alphabet, merges = train.learn_bpe(words, with_prefix, "##", n_merges)
    vocab = train.vocabulary(tokens, alphabet, merges, "##")
    trained = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]", max_input_chars_per_word=100))
    trained.normalizer = tokenizer.normalizer
    trained.pre_tokenizer = tokenizer.pre_tokenizer
    trained.add_special_tokens(special(*tokens))
    return trained


def with_prefix(word: str) -> list[str]:
    return [char if index == 0 else f"##{char}" for index, char in enumerate(word)]


def bert(name: str, lowercase: bool) -> Case:
    tokenizer = Tokenizer(models.WordPiece())
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer = train_wordpiece(tokenizer, ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"], 400)
    tokenizer.decoder = decoders.WordPiece(cleanup=lowercase)
    if lowercase:
        template(tokenizer, "[CLS]", "[SEP]")
    else:
        tokenizer.post_processor = processors.BertProcessing(
            ("[SEP]", tokenizer.token_to_id("[SEP]")), ("[CLS]", tokenizer.token_to_id("[CLS]")))
    config = {"cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]",
              "unk_token": "[UNK]", "mask_token": "[MASK]"}
    return Case(name, "WordPiece", tokenizer, config)


def unigram(name: str, byte_fallback: bool) -> Case:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme="always", split=True)
    first = ["<unk>", "<s>", "</s>"] + (BYTE_TOKENS if byte_fallback else [])
    pieces = train.unigram_pieces(train.count_words(tokenizer), 600, 110)
    tokenizer.model = models.Unigram([(token, 0.0) for token in first] + pieces, 0, byte_fallback)
    tokenizer.add_special_tokens(special("<unk>", "<s>", "</s>"))
    tokenizer.decoder = decoders.Metaspace("▁", prepend_scheme="always", split=True)
    if byte_fallback:
        tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), tokenizer.decoder])
    template(tokenizer, "", "</s>")
    return Case(name, "Unigram", tokenizer, {"eos_token": "</s>", "unk_token": "<unk>"})


def added() -> Case:
    """Added tokens with every flag, over lower-casing normalization."""
    tokenizer = Tokenizer(models.WordPiece())
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFD(), normalizers.Lowercase(), normalizers.StripAccents()])
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = train_wordpiece(tokenizer, ["[UNK]"], 200)
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_tokens([
        AddedToken("MARK", normalized=True),
        AddedToken("word_token", normalized=True, single_word=True),
        AddedToken("<tool>", normalized=False, lstrip=True),
        AddedToken("stone", normalized=True, single_word=True, rstrip=True),
        AddedToken("été", normalized=True),
        AddedToken("gar", normalized=False),
        AddedToken("garden", normalized=False, single_word=True),
    ])
    tokenizer.add_special_tokens([
        AddedToken("[MASK]", special=True, normalized=False, lstrip=True, rstrip=True),
        AddedToken("<mask>", special=True, normalized=True, rstrip=True),
        AddedToken("[CLS]", special=True, normalized=False, single_word=True),
    ])
    return Case("added-tokens", "WordPiece", tokenizer, {})


def train_word_bpe(tokenizer: Tokenizer, split, n_merges: int, **options) -> Tokenizer:
    """The same steps with a BPE model behind them that does not know every character."""
    words = train.count_words(tokenizer)
    chars = train.common_chars(words, 80)
    words = {word: count for word, count in words.items() if set(word) <= chars}
    prefix = options.get("continuing_subword_prefix", "")
    alphabet, merges = train.learn_bpe(words, split, prefix, n_merges)
    vocab = train.vocabulary(["<unk>"], alphabet, merges, prefix)
    trained = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", **options))
    if tokenizer.normalizer is not None:
        trained.normalizer = tokenizer.normalizer
    trained.pre_tokenizer = tokenizer.pre_tokenizer
    trained.add_special_tokens(special("<unk>"))
    return trained


def with_suffix(word: str) -> list[str]:
    return [*word[:-1], f"{word[-1]}</w>"]


def word_bpe() -> Case:
    """BPE with a suffix at the end of words and unknown characters."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Sequence([normalizers.Strip(), normalizers.NFKD()])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation(),
         pre_tokenizers.Digits(individual_digits=True)])
    tokenizer = train_word_bpe(tokenizer, with_suffix, 300, end_of_word_suffix="</w>")
    tokenizer.decoder = decoders.BPEDecoder("</w>")
    return Case("word-bpe", "BPE", tokenizer, {}, every=2)


def prefix_bpe() -> Case:
    """BPE with a prefix inside words; neighbouring unknown characters become one token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer = train_word_bpe(tokenizer, with_prefix, 250, fuse_unk=True,
                               continuing_subword_prefix="##")
    tokenizer.decoder = decoders.WordPiece(prefix="##", cleanup=True)
    return Case("prefix-bpe", "BPE", tokenizer, {}, every=3)


def split_variants() -> list[Case]:
    """A word list behind the remaining pre-tokenizers; a part of the strings is enough."""
    variants = {
        "removed": pre_tokenizers.Split(Regex(r"\s+|\p{P}"), "removed"),
        "previous": pre_tokenizers.Split(Regex(r"[aeiou]"), "merged_with_previous"),
        "next": pre_tokenizers.Split("e", "merged_with_next"),
        "contiguous": pre_tokenizers.Split(Regex(r"\W"), "contiguous"),
        "invert": pre_tokenizers.Split(Regex(r"\w+|[^\w\s]"), "removed", invert=True),
        "digits": pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(),
                                           pre_tokenizers.Digits(individual_digits=False),
                                           pre_tokenizers.Punctuation("contiguous")]),
        "metaspace": pre_tokenizers.Sequence([
            pre_tokenizers.Split(Regex(r"\b"), "isolated"),
            pre_tokenizers.Metaspace("_", prepend_scheme="first")]),
        "never": pre_tokenizers.Metaspace("▁", prepend_scheme="never"),
    }
    cases = []
    for name, pre_tokenizer in variants.items():
        tokenizer = Tokenizer(models.WordLevel(unk_token="<unk>"))
        tokenizer.pre_tokenizer = pre_tokenizer
        trainer = trainers.WordLevelTrainer(vocab_size=300, special_tokens=special("<unk>"),
                                            show_progress=False)
        # Trained on the very strings, so that few words are unknown.
        tokenizer.train_from_iterator(text.test_strings()[::9] + text.training_text()[:50], trainer)
        cases.append(Case(f"split-{name}", "WordLevel", tokenizer, {}, every=9))
    return cases
