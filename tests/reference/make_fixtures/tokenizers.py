"""Trains the small tokenizers and stores the ids they give to the equality strings."""

import json
import pathlib
import random
import struct
import time

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from .paths import FIXTURES, SCRATCH, write_json
from .strings import equality_strings, training_corpus

FOLDER = FIXTURES / "tokenizers"

SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN_SPECIAL = [
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>",
    "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>",
    "<|image_pad|>", "<|video_pad|>", "<image>", "<video>",
]
QWEN_PLAIN = ["<tool_call>", "</tool_call>", "<|fim_prefix|>", "<think>", "</think>"]
LLAMA_SPECIAL = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
BASE = 1000  # ids below are ordinary tokens


def _train(digits: str) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT % digits), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    trainer = trainers.BpeTrainer(
        vocab_size=BASE, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False
    )
    tokenizer.train_from_iterator(training_corpus(), trainer)
    return tokenizer


def make_qwen() -> None:
    tokenizer = _train("")
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.post_processor = processors.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    tokenizer.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in QWEN_SPECIAL])
    tokenizer.add_tokens([AddedToken(t, normalized=False, special=False) for t in QWEN_PLAIN])
    folder = FOLDER / "qwen"
    folder.mkdir(parents=True, exist_ok=True)
    saved = json.loads(tokenizer.to_str())
    # The published files of Qwen2.5 hold merges as "left right"; newer ones (llama below) as pairs.
    saved["model"]["merges"] = [" ".join(pair) for pair in saved["model"]["merges"]]
    write_json(folder / "tokenizer.json", saved, indent=None)
    write_json(
        folder / "tokenizer_config.json",
        {
            "add_prefix_space": False,
            "additional_special_tokens": QWEN_SPECIAL[1:],
            "bos_token": None,
            "clean_up_tokenization_spaces": False,
            "eos_token": "<|im_end|>",
            "errors": "replace",
            "model_max_length": 32768,
            "pad_token": "<|endoftext|>",
            "split_special_tokens": False,
            "tokenizer_class": "Qwen2Tokenizer",
            "unk_token": None,
        },
    )


def make_llama() -> None:
    tokenizer = _train("{1,3}")
    tokenizer.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in LLAMA_SPECIAL])
    begin = LLAMA_SPECIAL[0]
    tokenizer.post_processor = processors.Sequence(
        [
            processors.ByteLevel(add_prefix_space=True, trim_offsets=False, use_regex=True),
            processors.TemplateProcessing(
                single=f"{begin} $A", pair=f"{begin} $A {begin} $B:1", special_tokens=[(begin, tokenizer.token_to_id(begin))]
            ),
        ]
    )
    saved = json.loads(tokenizer.to_str())
    saved["model"]["ignore_merges"] = True
    # A word that no chain of merges builds, so that ignore_merges is seen to matter.
    vocab = saved["model"]["vocab"]
    loser = max(vocab, key=vocab.get)
    del vocab[loser]
    saved["model"]["merges"] = [pair for pair in saved["model"]["merges"] if "".join(pair) != loser and loser not in pair]
    vocab["Ġsecondary"] = BASE - 1
    folder = FOLDER / "llama"
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "tokenizer.json", saved, indent=None)
    write_json(
        folder / "tokenizer_config.json",
        {
            "bos_token": begin,
            "clean_up_tokenization_spaces": True,
            "eos_token": "<|eot_id|>",
            "model_input_names": ["input_ids", "attention_mask"],
            "model_max_length": 131072,
            "tokenizer_class": "PreTrainedTokenizerFast",
        },
    )


def make_smol() -> None:
    """As SmolLM2: single digits, GPT-2's words, and bytes that the vocabulary does not have."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel(add_prefix_space=True, trim_offsets=True, use_regex=True)
    trainer = trainers.BpeTrainer(
        vocab_size=BASE, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False
    )
    tokenizer.train_from_iterator(training_corpus(), trainer)
    tokenizer.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in QWEN_SPECIAL[:3]])
    saved = json.loads(tokenizer.to_str())
    # The characters that stand for the bytes 0x00-0x05, 0x7f, 0x8c, 0xe2 and 0xf0, and all that holds one.
    gone = [chr(256 + i) for i in range(6)] + [chr(256 + 33), chr(256 + 46), "\u00e2", "\u00f0"]
    kept = lambda token: not any(c in token for c in gone)  # noqa: E731
    vocab = [token for token in sorted(saved["model"]["vocab"], key=saved["model"]["vocab"].get) if kept(token)]
    saved["model"]["vocab"] = {token: i for i, token in enumerate(vocab)}
    for i, token in enumerate(saved["added_tokens"]):
        token["id"] = len(vocab) + i
    saved["model"]["merges"] = [pair for pair in saved["model"]["merges"] if kept("".join(pair))]
    folder = FOLDER / "smol"
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "tokenizer.json", saved, indent=None)
    write_json(folder / "tokenizer_config.json", {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"})


def varint(value: int) -> bytes:
    out = bytearray()
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def write_strings(path: pathlib.Path, texts: list[str]) -> None:
    out = bytearray(b"KNRSTR01" + struct.pack("<I", len(texts)))
    for text in texts:
        data = text.encode("utf-8")
        out += varint(len(data)) + data
    path.write_bytes(out)


def write_ids(path: pathlib.Path, tokenizer: Tokenizer, texts: list[str]) -> None:
    out = bytearray(b"KNRIDS01" + struct.pack("<I", len(texts)))
    for text in texts:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        out += varint(len(ids)) + b"".join(varint(i) for i in ids)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(out)


def _decode_cases(name: str, tokenizer: Tokenizer) -> list[dict]:
    rng = random.Random(7)
    cases = []
    for i in range(120):
        if i % 2:
            ids = [rng.randrange(tokenizer.get_vocab_size()) for _ in range(rng.randint(1, 12))]
        else:
            ids = tokenizer.encode(rng.choice(training_corpus()), add_special_tokens=False).ids
            ids = ids[rng.randrange(len(ids)) :][:20]
        cases.append(
            {
                "tokenizer": name,
                "ids": ids,
                "text": tokenizer.decode(ids, skip_special_tokens=False),
                "text_skip_special": tokenizer.decode(ids, skip_special_tokens=True),
            }
        )
    return cases


def make() -> None:
    make_qwen()
    make_llama()
    make_smol()
    texts = equality_strings()
    write_strings(FOLDER / "strings.bin", texts)
    decode = []
    for name in ("qwen", "llama", "smol"):
        tokenizer = Tokenizer.from_file(str(FOLDER / name / "tokenizer.json"))
        write_ids(FOLDER / f"{name}.ids", tokenizer, texts)
        decode += _decode_cases(name, tokenizer)
    write_json(FOLDER / "decode.json", decode, indent=None)


def make_real(folder: str) -> None:
    """Expected ids of a real tokenizer on the committed strings, into the ignored build folder."""
    tokenizer = Tokenizer.from_file(str(pathlib.Path(folder) / "tokenizer.json"))
    path = SCRATCH / f"{pathlib.Path(folder).name}.ids"
    write_ids(path, tokenizer, equality_strings())
    print(path)


def compare(folder: str) -> None:
    """Single-thread speed of Hugging Face tokenizers on the committed strings."""
    tokenizer = Tokenizer.from_file(str(pathlib.Path(folder) / "tokenizer.json"))
    texts = equality_strings()
    size = sum(len(t.encode("utf-8")) for t in texts)
    best = None
    for _ in range(5):
        start = time.perf_counter()
        tokens = sum(len(tokenizer.encode(t, add_special_tokens=False).ids) for t in texts)
        spent = time.perf_counter() - start
        best = spent if best is None else min(best, spent)
    print(f"{tokens} tokens, {size} bytes in {best:.3f} s: {tokens / best:.0f} tokens/s, {size / best / 1e6:.2f} MB/s")
