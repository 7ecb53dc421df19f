"""SentencePiece-style tokenizers in the forms that published tokenizer.json files have, and what they give."""

import json
import struct

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from .paths import FIXTURES, write_json
from .strings import equality_strings, training_corpus

FOLDER = FIXTURES / "tokenizers"
MARK = "\u2581"
CONTROL = ["<unk>", "<s>", "</s>"]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
SPECIAL = ["<|im_start|>", "<|im_end|>", "<image>"]


def _pairs(train_with=None) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement=MARK, prepend_scheme="always", split=True)
    trainer = trainers.BpeTrainer(
        vocab_size=1100, special_tokens=CONTROL + BYTES, limit_alphabet=160, show_progress=False
    )
    tokenizer.train_from_iterator(training_corpus(), trainer)
    return tokenizer


def _add(tokenizer: Tokenizer) -> None:
    tokenizer.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in CONTROL + SPECIAL])
    tokenizer.add_tokens([AddedToken("<think>", normalized=True, special=False)])
    tokenizer.add_tokens([AddedToken("</think>", normalized=False, special=False, lstrip=True, rstrip=True)])
    begin = "<s>"
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{begin} $A", pair=f"{begin} $A {begin} $B:1", special_tokens=[(begin, tokenizer.token_to_id(begin))]
    )


def _llama2() -> Tokenizer:
    """Llama 2, InternLM2, Vicuna: the normalizer marks spaces, the whole text is one word."""
    tokenizer = _pairs()
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(MARK), normalizers.Replace(" ", MARK)])
    tokenizer.pre_tokenizer = None
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer


def _mistral() -> Tokenizer:
    """The same as newer files write it: a mark before the first piece only."""
    tokenizer = _pairs()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement=MARK, prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer


def _gemma() -> Tokenizer:
    """No mark before the text; a split at spaces that are gone by then."""
    tokenizer = _pairs()
    tokenizer.normalizer = normalizers.Replace(" ", MARK)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence([decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse()])
    return tokenizer


def _unigram(byte_fallback: bool) -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement=MARK, prepend_scheme="always", split=True)
    trainer = trainers.UnigramTrainer(vocab_size=900, special_tokens=CONTROL, unk_token="<unk>", show_progress=False)
    # Without the rarest scripts, so that there are unknown characters.
    tokenizer.train_from_iterator([text for text in training_corpus() if max(text) < "\u0500"], trainer)
    saved = json.loads(tokenizer.to_str())
    if byte_fallback:
        lowest = min(score for _, score in saved["model"]["vocab"])
        saved["model"]["vocab"] += [[piece, lowest] for piece in BYTES]
        saved["model"]["byte_fallback"] = True
    tokenizer = Tokenizer.from_str(json.dumps(saved))
    tokenizer.decoder = (
        decoders.Sequence([decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
        if byte_fallback
        else decoders.Metaspace(replacement=MARK, prepend_scheme="always", split=True)
    )
    return tokenizer


def fnv(ids: list[int]) -> int:
    """64-bit FNV-1a of the ids as little-endian u32, its halves folded to 32 bits."""
    value = 0xCBF29CE484222325
    for byte in struct.pack(f"<{len(ids)}I", *ids):
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return value >> 32 ^ value & 0xFFFFFFFF


def make() -> None:
    texts = equality_strings()
    decode = []
    for name, tokenizer in {
        "llama2": _llama2(),
        "mistral": _mistral(),
        "gemma": _gemma(),
        "unigram": _unigram(False),
        "unigram-bytes": _unigram(True),
    }.items():
        _add(tokenizer)
        folder = FOLDER / name
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / "tokenizer.json", json.loads(tokenizer.to_str()), indent=None)
        write_json(folder / "tokenizer_config.json", {"bos_token": "<s>", "eos_token": "</s>"})
        ids = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
        (FOLDER / f"{name}.hashes").write_bytes(b"KNRFNV01" + struct.pack(f"<I{len(ids)}I", len(ids), *map(fnv, ids)))
        for i in range(0, len(ids), 97):
            decode.append({"tokenizer": name, "ids": ids[i], "text": tokenizer.decode(ids[i], skip_special_tokens=False)})
    write_json(FOLDER / "decode-pieces.json", decode, indent=None)
