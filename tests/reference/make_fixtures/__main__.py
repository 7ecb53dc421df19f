"""`python -m make_fixtures [what …]`: see README.md."""

import sys


def main() -> None:
    wanted = sys.argv[1:]
    if wanted and wanted[0] in ("real-tokenizer", "tokenizer-speed"):
        from . import tokenizers

        (tokenizers.make_real if wanted[0] == "real-tokenizer" else tokenizers.compare)(wanted[1])
        return

    if wanted == ["published-templates"]:
        from . import jinja

        jinja.make_published()
        return

    def chosen(name: str) -> bool:
        return not wanted or any(name.startswith(prefix) for prefix in wanted)

    if chosen("tokenizers"):
        from . import tokenizers

        tokenizers.make()
    if chosen("pieces"):
        from . import sentencepiece

        sentencepiece.make()
    if chosen("chat"):
        from . import chat

        chat.make()
    if chosen("jinja"):
        from . import jinja

        jinja.make()
    if chosen("configs"):
        from . import configs

        configs.make()
    if chosen("pictures"):
        from . import pictures

        pictures.make()
    if chosen("processor"):
        from . import processor

        processor.make()
    if not wanted or any(prefix.startswith("models") for prefix in wanted):
        from . import models

        models.make(chosen)
    if chosen("drafts"):
        from . import drafts

        drafts.make()
    if chosen("quantized"):
        from . import quantized

        quantized.make()


main()
