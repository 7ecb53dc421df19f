"""The bundled model's tokenizer: byte-level BPE as Qwen2 splits text, learned from the world's own sentences.

    python -m training.tiny.tokenizer models/kinora-tiny      makes it again (the committed one must not change)
"""
import json
import pathlib
import random
import sys

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>",
           "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>",
           "<|image_pad|>", "<|video_pad|>"]
VOCABULARY = 1280
SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
         r"|\s+(?!\S)|\s+")
MODEL = pathlib.Path(__file__).parents[2] / "models" / "kinora-tiny"

CHAT_TEMPLATE = (
    "{% set counts = namespace(image=0, video=0) %}"
    "{% for message in messages %}"
    "{% if loop.first and message['role'] != 'system' %}<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n{% endif %}"
    "<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}<|im_end|>\n{% else %}"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'image' or 'image' in part or 'image_url' in part %}{% set counts.image = counts.image + 1 %}"
    "{% if add_vision_id %}Picture {{ counts.image }}: {% endif %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif part['type'] == 'video' or 'video' in part %}{% set counts.video = counts.video + 1 %}"
    "{% if add_vision_id %}Video {{ counts.video }}: {% endif %}<|vision_start|><|video_pad|><|vision_end|>"
    "{% elif 'text' in part %}{{ part['text'] }}{% endif %}"
    "{% endfor %}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")


def corpus(worlds=1500):
    from training.world import names, passages, questions, scene
    for seed in range(worlds):
        rng = random.Random(f"corpus/{seed}")
        world = scene.sample(f"corpus/{seed}", rng.choice((16, 64, 256)), image=seed % 5 == 0)
        texts, facts = passages.write(rng, [4, 8], [3, 3])
        skills = ["image"] if world.is_image else questions.VIDEO_SKILLS + ["text", "binding", "chat", "caption"]
        for item in questions.ask_many(rng, world, 16, skills, facts):
            yield item.question
            yield item.answer
        yield from texts
    for name, plural in zip(names.PICTURES, names.PLURALS):  # names are words, not spelled out
        yield from [f"the {name}", f"a {name} moves", f"How many {plural} are there?"] * 150
    yield from ["system\nYou are a helpful assistant.", "user\n", "assistant\n"] * 200


def build():
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY - len(SPECIAL), show_progress=False,
                                  initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), special_tokens=[])
    tokenizer.train_from_iterator(corpus(), trainer)
    tokenizer.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in SPECIAL])
    return tokenizer


def save(directory):
    directory = pathlib.Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer = build()
    if tokenizer.get_vocab_size() != VOCABULARY:
        raise SystemExit(f"the corpus gives {tokenizer.get_vocab_size()} tokens, not {VOCABULARY}")
    tokenizer.save(str(directory / "tokenizer.json"))
    tokenizer.model.save(str(directory))  # vocab.json and merges.txt, for slow tokenizers
    added = {str(tokenizer.token_to_id(s)): dict(content=s, lstrip=False, normalized=False, rstrip=False, single_word=False,
                                                 special=True) for s in SPECIAL}
    config = dict(add_bos_token=False, add_prefix_space=False, added_tokens_decoder=added,
                  additional_special_tokens=SPECIAL[1:], bos_token=None, chat_template=CHAT_TEMPLATE,
                  clean_up_tokenization_spaces=False, eos_token="<|im_end|>", errors="replace", model_max_length=131072,
                  pad_token="<|endoftext|>", split_special_tokens=False, tokenizer_class="Qwen2Tokenizer", unk_token=None)
    (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
    (directory / "chat_template.json").write_text(json.dumps(dict(chat_template=CHAT_TEMPLATE), indent=2) + "\n")


class Text:
    """Encodes the pieces of prompts; remembers what it has encoded."""

    def __init__(self, directory=MODEL):
        from tokenizers import Tokenizer
        self.tokenizer = Tokenizer.from_file(str(pathlib.Path(directory) / "tokenizer.json"))
        self._known = {}
        self.end_of_text, self.start, self.end = (self.tokenizer.token_to_id(s) for s in SPECIAL[:3])
        self.vision_start, self.vision_end = (self.tokenizer.token_to_id(f"<|vision_{s}|>") for s in ("start", "end"))
        self.image_pad, self.video_pad = (self.tokenizer.token_to_id(f"<|{s}_pad|>") for s in ("image", "video"))

    def encode(self, text):
        ids = self._known.get(text)
        if ids is None:
            if len(self._known) > 200_000:
                self._known.clear()
            ids = self._known[text] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, ids):
        return self.tokenizer.decode(list(ids), skip_special_tokens=True)


if __name__ == "__main__":
    save(sys.argv[1] if len(sys.argv) > 1 else MODEL)
