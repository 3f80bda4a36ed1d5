"""Small tokenizers of every kind, trained here, and what the reference libraries make of strings.

Writes out_dir/tokenizers/strings.json and one folder per tokenizer: its files and expected.json.
References: Hugging Face `tokenizers` for tokenizer.json, transformers for ESM's vocab.txt,
SentencePiece for the `llama` kind of GGUF.
"""

import io
import json
import shutil
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

import gguf
import sentencepiece
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

PACKAGES = ("tokenizers", "transformers", "sentencepiece", "gguf")
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


def llama2_metaspace() -> Case:
    tokenizer = train_llama2()
    tokenizer = changed(tokenizer, lambda content: content.update(normalizer=None))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(),
                                           decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    template(tokenizer, "<s>", "</s>")
    config = {"bos_token": added_token("<s>"), "eos_token": added_token("</s>")}
    return Case("llama2-metaspace", "SentencePiece BPE", tokenizer, config)


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


def compact(value) -> str:
    """JSON without spaces, characters as they are."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n"


def write_expected(folder: Path, fields: dict) -> None:
    """expected.json: ids of every string, and texts where they are not the string itself."""
    versions = {name: metadata.version(name) for name in PACKAGES}
    (folder / "expected.json").write_text(compact({"versions": versions, **fields}))


class Texts:
    """Decoded texts, stored only where a reader cannot guess them."""

    def __init__(self) -> None:
        self.decoded: dict[str, str] = {}
        self.decoded_plain: dict[str, str] = {}

    def add(self, index: int, string: str, skipped: str, plain: str) -> None:
        """skipped: without special tokens; plain: of the ids without added ones, nothing left out."""
        if skipped != string:
            self.decoded[str(index)] = skipped
        if plain != skipped:
            self.decoded_plain[str(index)] = plain


def around(full: list[int], plain: list[int]) -> tuple[list[int], list[int]]:
    """What was added before and after the ids of a text."""
    start = next(i for i in range(len(full) - len(plain) + 1) if full[i:i + len(plain)] == plain)
    return full[:start], full[start + len(plain):]


def token_content(value) -> str | None:
    return value["content"] if isinstance(value, dict) else value


def write_case(case: Case, root: Path) -> None:
    """A folder with tokenizer.json, tokenizer_config.json and expected.json."""
    folder = root / case.name
    folder.mkdir()
    content = json.loads(case.tokenizer.to_str())
    if case.name == "gpt2":  # the older form: both tokens in one string
        merges = content["model"]["merges"]
        content["model"]["merges"] = [" ".join(pair) for pair in merges]
    (folder / "tokenizer.json").write_text(compact(content))
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    if case.config:
        (folder / "tokenizer_config.json").write_text(compact(case.config))

    before, after = around(tokenizer.encode("x").ids,
                           tokenizer.encode("x", add_special_tokens=False).ids)
    ids, texts = [], Texts()
    for index, string in list(enumerate(text.test_strings()))[::case.every]:
        plain = tokenizer.encode(string, add_special_tokens=False).ids
        full = tokenizer.encode(string).ids
        assert full == before + plain + after, (case.name, string)
        ids.append(plain)
        texts.add(index, string, tokenizer.decode(full, skip_special_tokens=True),
                  tokenizer.decode(plain, skip_special_tokens=False))

    def id_of(key: str) -> int | None:
        token = token_content(case.config.get(key))
        return None if token is None else tokenizer.token_to_id(token)

    size = max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1
    write_expected(folder, {
        "kind": case.kind, "vocab_size": size, "bos": id_of("bos_token"), "eos": id_of("eos_token"),
        "before": before, "after": after, "every": case.every, "ids": ids,
        "decoded": texts.decoded, "decoded_plain": texts.decoded_plain,
    })


def write_opt_files(root: Path) -> None:
    """OPT as its checkpoints ship it: vocab.json, merges.txt and a config that asks for </s>."""
    from transformers import GPT2Tokenizer

    folder = root / "opt-files"
    folder.mkdir()
    model = json.loads(opt().tokenizer.to_str())["model"]
    (folder / "vocab.json").write_text(compact(model["vocab"]))
    lines = ["#version: 0.2", *(" ".join(pair) for pair in model["merges"])]
    (folder / "merges.txt").write_text("\n".join(lines) + "\n")
    end = added_token("</s>")
    config = {"tokenizer_class": "GPT2Tokenizer", "bos_token": end, "eos_token": end,
              "unk_token": end, "pad_token": "<pad>", "add_bos_token": True,
              "add_prefix_space": False}
    (folder / "tokenizer_config.json").write_text(compact(config))
    tokenizer = GPT2Tokenizer.from_pretrained(folder)
    write_transformers(folder, tokenizer, "byte-level BPE", every=3)


def write_transformers(folder: Path, tokenizer, kind: str, every: int) -> None:
    """expected.json from a tokenizer of transformers."""
    before, after = around(tokenizer.encode("M"), tokenizer.encode("M", add_special_tokens=False))
    ids, texts = [], Texts()
    for index, string in list(enumerate(text.test_strings()))[::every]:
        plain = tokenizer.encode(string, add_special_tokens=False)
        full = tokenizer.encode(string)
        assert full == before + plain + after, string
        ids.append(plain)
        texts.add(index, string, tokenizer.decode(full, skip_special_tokens=True),
                  tokenizer.decode(plain, skip_special_tokens=False))
    write_expected(folder, {
        "kind": kind, "vocab_size": len(tokenizer), "bos": tokenizer.bos_token_id,
        "eos": tokenizer.eos_token_id, "before": before, "after": after, "every": every, "ids": ids,
        "decoded": texts.decoded, "decoded_plain": texts.decoded_plain,
    })


def write_esm(root: Path) -> None:
    """ESM-2 has no tokenizer.json: transformers reads vocab.txt."""
    from transformers import EsmTokenizer

    folder = root / "esm"
    folder.mkdir()
    vocabulary = ["<cls>", "<pad>", "<eos>", "<unk>", *text.AMINO, ".", "-", "<null_1>", "<mask>"]
    (folder / "vocab.txt").write_text("\n".join(vocabulary))
    config = {"tokenizer_class": "EsmTokenizer", "cls_token": "<cls>", "eos_token": "<eos>",
              "pad_token": "<pad>", "unk_token": "<unk>", "mask_token": "<mask>"}
    (folder / "tokenizer_config.json").write_text(compact(config))
    write_transformers(folder, EsmTokenizer.from_pretrained(folder), "ESM", every=1)


def start_gguf(path: Path, model: str) -> gguf.GGUFWriter:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model(model)
    return writer


def finish_gguf(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_gguf_bytes(case: Case, pre: str, root: Path) -> None:
    """The vocabulary of a byte-level case as GGUF metadata, with the case's expectations."""
    folder = root / f"gguf-{case.name}"
    folder.mkdir()
    content = json.loads(case.tokenizer.to_str())
    by_id = {index: token for token, index in case.tokenizer.get_vocab().items()}
    flags = {token["id"]: token for token in content["added_tokens"]}
    writer = start_gguf(folder / "tokenizer.gguf", "gpt2")
    writer.add_tokenizer_pre(pre)
    size = max(by_id) + 1
    writer.add_token_list([by_id.get(index, f"[unused{index}]") for index in range(size)])
    kinds = []
    for index in range(size):
        if index in flags:
            kinds.append(gguf.TokenType.CONTROL if flags[index]["special"]
                         else gguf.TokenType.USER_DEFINED)
        else:
            kinds.append(gguf.TokenType.NORMAL if index in by_id else gguf.TokenType.UNUSED)
    writer.add_token_types(kinds)
    writer.add_token_merges([" ".join(pair) for pair in content["model"]["merges"]])
    for key, add in (("bos_token", writer.add_bos_token_id), ("eos_token", writer.add_eos_token_id)):
        token = token_content(case.config.get(key))
        if token is not None:
            add(case.tokenizer.token_to_id(token))
    finish_gguf(writer)
    expected = root / case.name / "expected.json"
    if expected.exists():
        # The same pipeline under another file format: the same answers, for a third of the strings.
        fields = json.loads(expected.read_text())
        fields["ids"] = fields["ids"][::3]
        fields["every"] = 3
        for table in ("decoded", "decoded_plain"):
            fields[table] = {key: value for key, value in fields[table].items()
                             if int(key) % 3 == 0}
        (folder / "expected.json").write_text(compact(fields))


def smollm(root: Path) -> None:
    """gpt2's vocabulary with digits cut one by one; written as GGUF only."""
    case = gpt2()
    case.name = "smollm"
    case.every = 3
    case.tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True),
         pre_tokenizers.ByteLevel(add_prefix_space=False)])
    write_case(case, root)
    write_gguf_bytes(Case("smollm-bytes", case.kind, case.tokenizer, case.config), "smollm", root)
    target = root / "gguf-smollm"
    (root / "gguf-smollm-bytes").rename(target)
    (root / "smollm" / "expected.json").rename(target / "expected.json")
    shutil.rmtree(root / "smollm")


def train_sentencepiece() -> sentencepiece.SentencePieceProcessor:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(text.training_text()), model_writer=model, model_type="bpe",
        vocab_size=900, byte_fallback=True, character_coverage=0.98, add_dummy_prefix=True,
        remove_extra_whitespaces=False, normalization_rule_name="identity",
        user_defined_symbols=["<tool>", "▁▁▁"], num_threads=1, minloglevel=2,
        allow_whitespace_only_pieces=True)
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


def write_gguf_sentencepiece(root: Path) -> None:
    """The `llama` kind: tokens with scores, expectations from SentencePiece itself."""
    folder = root / "gguf-llama-spm"
    folder.mkdir()
    model = train_sentencepiece()
    writer = start_gguf(folder / "tokenizer.gguf", "llama")
    writer.add_tokenizer_pre("default")
    size = model.vocab_size()
    writer.add_token_list([model.id_to_piece(index) for index in range(size)])
    writer.add_token_scores([model.get_score(index) for index in range(size)])
    kinds = []
    for index in range(size):
        kind = gguf.TokenType.NORMAL
        if model.is_unknown(index):
            kind = gguf.TokenType.UNKNOWN
        elif model.is_control(index):
            kind = gguf.TokenType.CONTROL
        elif model.is_byte(index):
            kind = gguf.TokenType.BYTE
        elif model.id_to_piece(index) in ("<tool>", "▁▁▁"):
            kind = gguf.TokenType.USER_DEFINED
        kinds.append(kind)
    writer.add_token_types(kinds)
    writer.add_bos_token_id(model.bos_id())
    writer.add_eos_token_id(model.eos_id())
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(False)
    writer.add_add_space_prefix(True)
    finish_gguf(writer)
    ids, texts = [], Texts()
    for index, string in enumerate(text.test_strings()):
        # SentencePiece never reads control tokens in text; the program does.
        if any(token in string for token in ("<unk>", "<s>", "</s>")):
            ids.append(None)
            continue
        plain = model.encode(string)
        ids.append(plain)
        decoded = model.decode(plain)
        texts.add(index, string, decoded, decoded)
    write_expected(folder, {
        "kind": "SentencePiece BPE", "vocab_size": size, "bos": model.bos_id(),
        "eos": model.eos_id(), "before": [model.bos_id()], "after": [], "every": 1, "ids": ids,
        "decoded": texts.decoded, "decoded_plain": texts.decoded_plain,
    })


def make(out_dir: Path) -> None:
    """Writes the files under out_dir/tokenizers."""
    root = out_dir / "tokenizers"
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    (root / "strings.json").write_text(compact(text.test_strings()))
    bytes_cases = {"gpt-2": gpt2(), "llama-bpe": llama3(), "qwen2": qwen2()}
    cases = [*bytes_cases.values(), opt(), roberta(), llama2(), llama2_metaspace(),
             bert("bert-uncased", True), bert("bert-cased", False), unigram("unigram", False),
             unigram("unigram-bytes", True), added(), word_bpe(), prefix_bpe(), *split_variants()]
    for case in cases:
        write_case(case, root)
        print(f"tokenizers/{case.name}: written", flush=True)
    for pre, case in bytes_cases.items():
        write_gguf_bytes(case, pre, root)
    smollm(root)
    write_esm(root)
    write_opt_files(root)
    write_gguf_sentencepiece(root)
