"""Text for the golden tokenizers: what they are trained on and the strings they are asked about.

Everything is written here or made by a seeded generator; nothing is taken from elsewhere. Only
characters that have been in Unicode for years are used: the libraries compared carry tables of
different versions.
"""

import random

ENGLISH = (
    "the a of and to in is that it was for on with as his her they at be this from have not by "
    "river stone window garden letter morning evening winter summer teacher doctor captain sailor "
    "walked talked opened closed carried followed remembered wondered answered believed laughing "
    "quiet small green bright heavy sudden careful different several another without between under "
    "number system little house water people because through before after always never again first "
    "don't can't it's we'll they're I've she'd o'clock"
).split()
OTHER = {
    "french": "le la les des une été garçon forêt maison où déjà très lumière château être œuvre",
    "german": "der die das und nicht Straße über schön Größe Mädchen fünf zwölf früh müde weiß",
    "spanish": "el niño mañana corazón pequeño señor también árbol río ¿dónde ¡qué aquí después",
    "russian": "река камень окно сад письмо утро зима учитель большой маленький всегда никогда ещё",
    "greek": "ποτάμι πέτρα παράθυρο κήπος γράμμα πρωί χειμώνας μικρός μεγάλος πάντα ποτέ ψυχή",
    "hebrew": "נהר אבן חלון גן מכתב בוקר חורף מורה קטן גדול תמיד שלום",
    "arabic": "نهر حجر نافذة حديقة رسالة صباح شتاء معلم صغير كبير دائما السَّلَام",
    "hindi": "नदी पत्थर खिड़की बगीचा चिट्ठी सुबह सर्दी शिक्षक छोटा बड़ा हमेशा नमस्ते",
    "thai": "แม่น้ำ หิน หน้าต่าง สวน จดหมาย เช้า ฤดูหนาว ครู เล็ก ใหญ่ เสมอ สวัสดี",
    "chinese": "河流 石头 窗户 花园 信件 早晨 冬天 老师 小 大 总是 从不 你好世界",
    "japanese": "かわ いし まど にわ てがみ あさ ふゆ せんせい カタカナ ちいさい 東京 日本語",
    "korean": "강 돌 창문 정원 편지 아침 겨울 선생님 작은 큰 항상 안녕하세요",
    "vietnamese": "sông đá cửa sổ vườn thư buổi sáng mùa đông nhỏ lớn luôn luôn tiếng Việt",
}
EMOJI = ["😀", "👍🏽", "👩‍💻", "👨‍👩‍👧‍👦", "🇫🇷", "🏳️‍🌈", "❤️", "☕", "🤷🏿‍♀️", "🎉"]
SPACES = [" ", "  ", "   ", "\t", "\n", "\n\n", "\r\n", " \n ", "\u00a0", "\u2003", "\u3000",
          "\u2028", "\u1680", "\u202f", "\u0085", "\x0b", "\x0c", "        "]
CONTROL = ["\x00", "\x01", "\x07", "\x1b", "\x1c", "\x1f", "\x7f", "\u200b", "\u200d", "\ufeff",
           "\ufffd", "\u00ad", "\u202e", "\u180e"]
COMBINING = ["e\u0301", "a\u0323\u0302", "o\u0308\u0304", "n\u0303", "\u0301", "q\u0307\u0323",
             "\u1e9b\u0323", "\u212b", "\ufb01", "\u00bd", "\u2460", "\u33a5", "\uac00",
             "\u1112\u1161\u11ab", "\u01c4", "\u0130", "\u017f", "\u03a3\u03c2"]
ASTRAL = ["𝔘𝔫𝔦", "𝟘𝟙𝟚", "𐍈", "𠀀", "𝒳", "🜁", "𓀀", "𐐷"]
PUNCTUATION = list("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~") + ["…", "—", "“", "”", "«", "¿", "。", "，",
                                                            "、", "؟", "।", "€", "£", "°", "·"]
CODE = ["for (int i = 0; i < n; ++i) {", "def f(x):\n    return x**2", "if(a&&b||!c){return;}",
        "x = y[3:]\t# slice", "#include <vector>", "\"key\": [1, 2.5e-3, null]", "a->b::c()",
        "SELECT * FROM t WHERE id >= 10;", "<div class='x'>&amp;</div>", "$HOME/.config/*.toml"]
LINKS = ["https://example.org/a/b?c=d&e=%20f#g", "user.name+tag@mail.example", "C:\\dir\\file.txt",
         "ftp://10.0.0.1:21/", "www.example.com/index.html"]
SPECIALS = ["<|endoftext|>", "<|begin_of_text|>", "<|im_start|>", "<s>", "</s>", "<unk>", "<pad>",
            "[CLS]", "[SEP]", "[MASK]", "[UNK]", "<mask>", "<cls>", "<eos>", "<|im_end|>", "<tool>",
            "MARK", "word_token", "<0x41>", "▁", "##ing", "Ġ"]
AMINO = "LAGVSERTIDPKQNFYMHWCXBUZO"


def sentence(rng: random.Random, words: list[str], length: int) -> str:
    """Words with capitals, commas and a full stop."""
    chosen = [rng.choice(words) for _ in range(length)]
    chosen[0] = chosen[0][:1].upper() + chosen[0][1:]
    text = chosen[0]
    for word in chosen[1:]:
        text += rng.choices([" ", ", ", " - ", "; "], [20, 3, 1, 1])[0] + word
    return text + rng.choice([".", ".", ".", "!", "?", " ."])


def training_text() -> list[str]:
    """Sentences: mostly English, some of every other language, numbers and code."""
    rng = random.Random(20)
    lines = [sentence(rng, ENGLISH, rng.randint(4, 14)) for _ in range(1500)]
    for words in OTHER.values():
        lines += [sentence(rng, words.split(), rng.randint(3, 8)) for _ in range(40)]
    lines += [f"{rng.choice(ENGLISH)} {rng.randint(0, 99999)}" for _ in range(200)]
    lines += [rng.choice(CODE) for _ in range(100)]
    rng.shuffle(lines)
    return lines


def mixed(rng: random.Random) -> str:
    """A few pieces of any kind, glued with any kind of space or none."""
    everything = [
        lambda: rng.choice(ENGLISH),
        lambda: rng.choice(ENGLISH).upper(),
        lambda: rng.choice(ENGLISH).title(),
        lambda: rng.choice(rng.choice(list(OTHER.values())).split()),
        lambda: str(rng.randint(0, 10 ** rng.randint(1, 9))),
        lambda: rng.choice(EMOJI),
        lambda: rng.choice(PUNCTUATION) * rng.choice([1, 1, 1, 2, 3]),
        lambda: rng.choice(COMBINING),
        lambda: rng.choice(SPACES),
        lambda: rng.choice(CONTROL),
        lambda: rng.choice(ASTRAL),
        lambda: rng.choice(SPECIALS),
        lambda: rng.choice(LINKS),
        lambda: rng.choice(CODE),
    ]
    weights = [6, 2, 2, 6, 3, 2, 5, 3, 4, 1, 1, 3, 0.4, 0.4]
    text = ""
    for _ in range(rng.randint(1, 7)):
        text += rng.choices(everything, weights)[0]()
        text += rng.choices(["", " ", rng.choice(SPACES)], [5, 5, 1])[0]
    return text


def test_strings() -> list[str]:
    """The strings every tokenizer is asked about, each once."""
    rng = random.Random(21)
    strings = ["", " ", "  ", "\n", "a", "A", " a", "a ", "Hello world", "hello  world", " ▁ ▁▁ ",
               "a gardenofstones", "gardenofstones"]
    for group in (EMOJI, SPACES, CONTROL, COMBINING, ASTRAL, PUNCTUATION, CODE, LINKS, SPECIALS):
        strings += group
    strings += [f"a{space}b" for space in SPACES + CONTROL]
    strings += [f"{token}{token}" for token in SPECIALS]
    for token in SPECIALS:
        strings += [f"say {token} now", f"say{token}now", f"  {token}  ", f"({token})", f"{token} x",
                    f"x {token}", token.lower(), token.upper()]
    for language in OTHER.values():
        words = language.split()
        strings += [sentence(rng, words, 5) for _ in range(8)] + words[:6]
    strings += [sentence(rng, ENGLISH, rng.randint(1, 12)) for _ in range(200)]
    strings += [word.upper() for word in ENGLISH[60:]] + ["I'M", "We'Ll", "DON'T", "it’s", "'s", "''"]
    strings += ["".join(rng.choices(AMINO, k=rng.randint(1, 40))) for _ in range(60)]
    strings += ["MKTAYIAK QRQISFVK", "mktay", "<cls> M K <mask> A <eos>", "ACDX-.*Z1J", "M\u00a0K"]
    strings += ["a" * 300, "ab" * 250, "х" * 120, "語" * 90, "1234567890" * 12, " " * 130,
                "supercalifragilistic" * 12, "\n" * 40, "=-" * 100, "e\u0301" * 60, "👍🏽" * 20]
    strings += [f"{rng.randint(0, 10**9)}{rng.choice(['', '.', ',', '%', 'px', ' kg'])}"
                for _ in range(40)]
    while len(set(strings)) < 2150:
        strings.append(mixed(rng))
    return list(dict.fromkeys(strings))
