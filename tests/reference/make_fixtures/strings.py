"""Deterministic strings that try a tokenizer: scripts, joiners, spaces, look-alikes, random bytes."""

import random

SENTENCES = [
    "What happens in this video, and when is the second chart shown?",
    "The red car turns left at 12:34 while two people cross the street; it doesn't stop.",
    "I'm sure they're here, we've seen it, you'll know: she'd SAY SO, HE'S LATE, I'LL WAIT, 'TIS.",
    "for (int i = 0; i < 128; ++i) {\n\tsum += values[i] * 0.5f;  // running total\n}\n",
    "def answer(question: str) -> str:\n    return model.generate(question)[0]\n\n\n",
    "Der schnelle braune Fuchs springt über den faulen Hund; Größe, Maß, Übermut.",
    "L'été dernier, à Genève, j'ai vu une œuvre très étrange : « déjà vu ».",
    "El niño comió una piña mañana por la mañana. ¿Cuántos años tenía? ¡Qué alegría!",
    "Zażółć gęślą jaźń. Příliš žluťoučký kůň. Đường phố Hà Nội rất đông người.",
    "Быстрая коричневая лиса перепрыгивает через ленивую собаку. Ёлка, объём.",
    "Η γρήγορη καφέ αλεπού πηδάει πάνω από το τεμπέλικο σκυλί.",
    "השועל החום המהיר קופץ מעל הכלב העצלן. שָׁלוֹם",
    "الثعلب البني السريع يقفز فوق الكلب الكسول. مَرْحَبًا ١٢٣",
    "तेज़ भूरी लोमड़ी आलसी कुत्ते के ऊपर से कूदती है। नमस्ते १२३",
    "দ্রুত বাদামী শিয়াল অলস কুকুরের উপর লাফ দেয়।",
    "வேகமான பழுப்பு நரி சோம்பேறி நாயின் மேல் தாவுகிறது.",
    "สุนัขจิ้งจอกสีน้ำตาลกระโดดข้ามสุนัขขี้เกียจ ๑๒๓",
    "ປ່ອງຢ້ຽມ မြန်မာဘာသာ ភាសាខ្មែរ བོད་སྐད་",
    "敏捷的棕色狐狸跳过懒狗。视频中第二张图表什么时候出现？",
    "すばやい茶色の狐はのろまな犬を飛び越える。カタカナ、ひらがな、漢字。ﾊﾝｶｸ",
    "빠른 갈색 여우가 게으른 개를 뛰어넘는다. 한국어 문장입니다.",
    "ქართული ენა. Հայերեն լեզու. አማርኛ ቋንቋ. Ꮳꮃꭹ. ᓀᐦᐃᔭᐍᐏᐣ",
    "👩‍👩‍👧‍👦 family, 🏳️‍🌈 flag, 👍🏽 thumb, 🇨🇭🇯🇵, 1️⃣ keycap, ❤️‍🔥, 🧑🏿‍🚀",
    "x² + y² = z², ½ cup, Ⅷ, ①②③, ﬁ ligature, № 5, ™ ®, ‰, 10⁻³, ∑∫√∞≠≤",
    "https://example.org/watch?v=abc_123&t=42s#part-2 someone@example.org C:\\path\\file.txt",
    "{\"frames\": 768, \"fps\": 2.0, \"tokens\": [1, 22, 333, 4444, 55555]}",
    "e\u0301a\u0308o\u0302\u0323 n\u0303 A\u030a \u1100\u1161\u11a8 q\u0307\u0323 \u212b \u2126 \uf900 \u0958",
]

SPACES = [" ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", " \n", "\n ", "\u00a0", "\u3000", "\u2003", "\u180e", "\u200b",
          "\u2028", "\x0b", "\x0c", "\x85", "\x1c", "\u1680", "\u202f", "\u205f", "\ufeff", "        ", "\n\n\n\n"]

LOOK_ALIKES = [
    "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>",
    "<|im_start|", "<|im_end", "|im_end|>", "<im_end>", "<|IM_END|>", "< |im_end|>", "<|im_end|>>", "<<|im_end|>",
    "<|im_|im_end|>", "<image>", "<video>", "<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|begin_of_text|>",
    "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id", "<s>", "</s>", "<|endoftext|",
]

RANGES = [
    (0x20, 0x7F), (0x20, 0x7F), (0xA0, 0x180), (0x180, 0x250), (0x250, 0x300), (0x300, 0x370), (0x370, 0x400), (0x400, 0x530),
    (0x530, 0x590), (0x590, 0x600), (0x600, 0x700), (0x900, 0x980), (0x980, 0xA00), (0xB80, 0xC00), (0xE00, 0xE80),
    (0xF00, 0x1000), (0x10A0, 0x1200), (0x1E00, 0x2000), (0x2000, 0x2070), (0x2070, 0x20D0), (0x2100, 0x2190),
    (0x2200, 0x2300), (0x2460, 0x2500), (0x3000, 0x3100), (0x4E00, 0x9FFF), (0xAC00, 0xD7A3), (0xF900, 0xFB00),
    (0xFB00, 0xFE00), (0xFF00, 0xFFF0), (0x1D400, 0x1D800), (0x1F300, 0x1F700), (0x20000, 0x20100), (0xE0000, 0xE0080),
]


def training_corpus() -> list[str]:
    """Sentences repeated with growing numbers, so that merges of many scripts are learned."""
    return [text for text in SENTENCES for _ in range(3)] + [f"frame {i} at {i * 0.5:.1f} s" for i in range(200)]


def _words(rng: random.Random) -> str:
    words = rng.choice(SENTENCES).split(" ")
    start = rng.randrange(len(words))
    return " ".join(words[start : start + rng.randint(1, 6)])


def _from_range(rng: random.Random) -> str:
    low, high = rng.choice(RANGES)
    return "".join(chr(rng.randrange(low, high)) for _ in range(rng.randint(1, 8)))


def _decomposed(rng: random.Random) -> str:
    marks = "\u0300\u0301\u0302\u0303\u0308\u030a\u0323\u0327\u0328\u031b\u05b0\u05bc\u0651\u064e\u093c\u3099"
    return "".join(
        rng.choice("aeiounAEIOUNcszCSZqxかは") + "".join(rng.choice(marks) for _ in range(rng.randint(0, 3)))
        for _ in range(rng.randint(1, 6))
    )


def _random_bytes(rng: random.Random) -> str:
    return bytes(rng.randrange(256) for _ in range(rng.randint(1, 16))).decode("utf-8", errors="replace")


def _spaces(rng: random.Random) -> str:
    return "".join(rng.choice(SPACES) for _ in range(rng.randint(1, 5)))


def _numbers(rng: random.Random) -> str:
    return rng.choice(["", "-", "$", "№", "٣", "Ⅷ"]) + str(rng.randrange(10 ** rng.randint(1, 9))) + rng.choice(["", ".5", "%", "km", "½"])


def _contraction(rng: random.Random) -> str:
    return rng.choice(["it", "WE", "I", "they", "Über", "she", "'", ""]) + rng.choice(["'", "’", "''"]) + rng.choice(
        ["s", "S", "t", "re", "RE", "Re", "ve", "m", "ll", "LL", "d", "D", "x", "ſ", "lL", "r", "v"]
    )


def equality_strings(count: int = 10240) -> list[str]:
    rng = random.Random(20240715)
    parts = [_words, _words, _from_range, _from_range, _decomposed, _random_bytes, _spaces, _spaces, _numbers, _contraction,
             lambda r: r.choice(LOOK_ALIKES)]
    texts = ["", " ", "\n", "a", "\u0301", "\u0000", "\U0010ffff", "a secondary secondary", " secondary"] + SENTENCES + SPACES + LOOK_ALIKES
    while len(texts) < count:
        pieces = [rng.choice(parts)(rng) for _ in range(rng.choice([1, 1, 2, 2, 3, 4]))]
        texts.append(rng.choice(["", "", " "]).join(pieces))
    return texts[:count]
