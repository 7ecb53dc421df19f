"""All model directories and their cases."""

from . import family_qwen2_5_vl


def make(chosen) -> None:
    for family in (family_qwen2_5_vl,):
        family.make(chosen)
