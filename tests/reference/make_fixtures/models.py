"""All model directories and their cases."""

from . import family_llava_onevision, family_qwen2_5_vl, family_qwen3_vl, family_text


def make(chosen) -> None:
    for family in (family_qwen2_5_vl, family_qwen3_vl, family_llava_onevision, family_text):
        family.make(chosen)
