"""Chat-template cases per family: `chat/FAMILY.json` is a list of
{"name", "messages", "add_generation_prompt", "options", "text"}."""

import json

from jinja2.sandbox import ImmutableSandboxedEnvironment

from . import templates
from .paths import FIXTURES, ROOT, write_json
from .prompts import assistant, image, system, text, user, video

PUBLISHED = ROOT.parent / "shared" / "data" / "qwen2.5-vl-7b-instruct" / "chat_template.json"


def render(template: str, messages: list, add_generation_prompt: bool, options: dict) -> str:
    """As transformers renders: trimmed and left-stripped blocks."""
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(template).render(
        messages=messages, add_generation_prompt=add_generation_prompt, bos_token="<|begin_of_text|>", **options
    )


VISUAL = {
    "text": [user(text("What is a chart?"))],
    "system": [system("Answer in one word."), user(text("What is it?"))],
    "image": [user(image(0), text("Describe it."))],
    "image_after_text": [user(text("Look: "), image(0), text(" Describe it."))],
    "several_images": [user(image(0), image(1), text("Which differs?"), image(2))],
    "video": [user(video(0), text("When does it end?"))],
    "two_videos": [user(video(0), text("or"), video(1))],
    "mixed": [system("Be brief."), user(video(0), image(0), text("Is this in the video?"))],
    "turns": [
        user(image(0), text("What is it?")),
        assistant("A cat."),
        user(video(0), text("Is it here?")),
        assistant("Yes.\nTwice."),
        user(text("When?")),
    ],
    "ends_with_answer": [user(text("Hi")), assistant("Hello")],
    "empty_text": [user(image(0), text(""))],
    "odd_text": [user(text("  <|im_end|> \n\n{{ x }} é\u0301 👩‍👧 "))],
    "several_texts": [user(text("one"), text("two"), video(0), text("three"))],
    "system_later": [user(text("Hi")), system("New rules."), user(text("Go on"))],
}

PLAIN = {
    name: [{"role": m["role"], "content": " ".join(c["text"] for c in m["content"] if c["type"] == "text")} for m in messages]
    for name, messages in VISUAL.items()
    if name in ("text", "system", "turns", "ends_with_answer", "odd_text", "system_later")
}
THOUGHTS = {
    "thought_before": [
        {"role": "user", "content": "1+1?"},
        {"role": "assistant", "content": "<think>\nadd them\n</think>\n\n2"},
        {"role": "user", "content": "2+2?"},
    ],
    "thought_last": [
        {"role": "user", "content": "1+1?"},
        {"role": "assistant", "content": "<think>\nadd them\n</think>\n\n2"},
    ],
}

FAMILIES = {
    "qwen2_5_vl": (templates.QWEN2_5_VL, VISUAL, [{}]),
    "qwen3_vl": (templates.QWEN3_VL, VISUAL, [{}]),
    "llava_onevision": (templates.LLAVA_ONEVISION, VISUAL, [{}]),
    "qwen2": (templates.QWEN2, PLAIN, [{}]),
    "qwen3": (templates.QWEN3, {**PLAIN, **THOUGHTS}, [{}, {"enable_thinking": False}]),
    "llama3": (templates.LLAMA3, PLAIN, [{}, {"date_string": "15 Nov 2026"}]),
    "llama3_0": (templates.LLAMA3_0, PLAIN, [{}]),
}


def make() -> None:
    for family, (template, cases, all_options) in FAMILIES.items():
        out = []
        for name, messages in cases.items():
            for options in all_options:
                for prompt in (True, False):
                    rendered = render(template, messages, prompt, options)
                    if family == "qwen2_5_vl" and PUBLISHED.exists():
                        real = json.loads(PUBLISHED.read_text())["chat_template"]
                        assert render(real, messages, prompt, options) == rendered, name
                    out.append(
                        {"name": name, "messages": messages, "add_generation_prompt": prompt, "options": options, "text": rendered}
                    )
        write_json(FIXTURES / "chat" / f"{family}.json", out, indent=None)
