"""Small tokenizers of every kind, trained here, and what the reference libraries make of strings.

Writes out_dir/tokenizers/strings.json and one folder per tokenizer: its files and expected.json.
References: Hugging Face `tokenizers` for tokenizer.json, transformers for ESM's vocab.txt and for
OPT's vocab.json with merges.txt, SentencePiece for the `llama` kind of GGUF.
"""

import io
import json
import shutil
from importlib import metadata
from pathlib import Path

import gguf
import sentencepiece
from tokenizers import Tokenizer, pre_tokenizers

from golden import tokenizer_kinds as kinds
from golden import tokenizer_text as text

PACKAGES = ("tokenizers", "transformers", "sentencepiece", "gguf")


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
        """skipped: without special tokens; plain: of the text's own ids, nothing left out."""
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


def write_case(case: kinds.Case, root: Path) -> None:
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
    model = json.loads(kinds.opt().tokenizer.to_str())["model"]
    (folder / "vocab.json").write_text(compact(model["vocab"]))
    lines = ["#version: 0.2", *(" ".join(pair) for pair in model["merges"])]
    (folder / "merges.txt").write_text("\n".join(lines) + "\n")
    end = kinds.added_token("</s>")
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


def write_gguf_bytes(case: kinds.Case, pre: str, root: Path) -> None:
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
    token_types = []
    for index in range(size):
        if index in flags:
            token_types.append(gguf.TokenType.CONTROL if flags[index]["special"]
                         else gguf.TokenType.USER_DEFINED)
        else:
            token_types.append(gguf.TokenType.NORMAL if index in by_id else gguf.TokenType.UNUSED)
    writer.add_token_types(token_types)
    writer.add_token_merges([" ".join(pair) for pair in content["model"]["merges"]])
    adders = {"bos_token": writer.add_bos_token_id, "eos_token": writer.add_eos_token_id}
    for key, add in adders.items():
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
    case = kinds.gpt2()
    case.name = "smollm"
    case.every = 3
    case.tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True),
         pre_tokenizers.ByteLevel(add_prefix_space=False)])
    write_case(case, root)
    as_bytes = kinds.Case("smollm-bytes", case.kind, case.tokenizer, case.config)
    write_gguf_bytes(as_bytes, "smollm", root)
    target = root / "gguf-smollm"
    (root / "gguf-smollm-bytes").rename(target)
    (root / "smollm" / "expected.json").rename(target / "expected.json")
    shutil.rmtree(root / "smollm")


def train_sentencepiece(prefix: bool) -> sentencepiece.SentencePieceProcessor:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(text.training_text()), model_writer=model, model_type="bpe",
        vocab_size=900, byte_fallback=True, character_coverage=0.98, add_dummy_prefix=prefix,
        remove_extra_whitespaces=False, normalization_rule_name="identity",
        user_defined_symbols=["<tool>", "▁▁▁"], num_threads=1, minloglevel=2,
        allow_whitespace_only_pieces=True)
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


def write_gguf_sentencepiece(name: str, prefix: bool, root: Path) -> None:
    """The `llama` kind: tokens with scores, expectations from SentencePiece itself. Gemma puts no
    space before a text, Llama 2 does."""
    folder = root / name
    folder.mkdir()
    model = train_sentencepiece(prefix)
    writer = start_gguf(folder / "tokenizer.gguf", "llama")
    writer.add_tokenizer_pre("default")
    size = model.vocab_size()
    writer.add_token_list([model.id_to_piece(index) for index in range(size)])
    writer.add_token_scores([model.get_score(index) for index in range(size)])
    token_types = []
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
        token_types.append(kind)
    writer.add_token_types(token_types)
    writer.add_bos_token_id(model.bos_id())
    writer.add_eos_token_id(model.eos_id())
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(False)
    writer.add_add_space_prefix(prefix)
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
    bytes_cases = {"gpt-2": kinds.gpt2(), "llama-bpe": kinds.llama3(), "qwen2": kinds.qwen2(),
                   "olmo": kinds.neox()}
    cases = [*bytes_cases.values(), kinds.opt(), kinds.roberta(), kinds.llama2(),
             kinds.phi3(), kinds.llama2_metaspace(), kinds.gemma(),
             kinds.bert("bert-uncased", True),
             kinds.bert("bert-cased", False), kinds.unigram("unigram", False),
             kinds.unigram("unigram-bytes", True), kinds.added(), kinds.word_bpe(),
             kinds.prefix_bpe(), *kinds.split_variants()]
    for case in cases:
        write_case(case, root)
        print(f"tokenizers/{case.name}: written", flush=True)
    for pre, case in bytes_cases.items():
        write_gguf_bytes(case, pre, root)
    smollm(root)
    write_esm(root)
    write_opt_files(root)
    write_gguf_sentencepiece("gguf-llama-spm", True, root)
    write_gguf_sentencepiece("gguf-gemma-spm", False, root)
