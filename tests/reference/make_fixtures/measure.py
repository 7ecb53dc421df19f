"""Runs one prompt through a model and keeps what kinora compares: hidden states, logits, greedy tokens."""

import torch

MARGIN = 0.005  # a greedy choice closer than this could flip with the order of a sum
DISTINCT = 16  # a short loop would prove little


@torch.no_grad()
def prefill(model, decoder, inputs: dict) -> dict:
    """What each layer leaves for the next (DeepStack's rows added) and the logits; `decoder` has .layers and .norm."""
    kept: dict[str, torch.Tensor] = {}
    hooks = []

    for i, reader in enumerate([*decoder.layers, decoder.norm]):

        def before(module, args, kwargs, name="hidden.embeddings" if i == 0 else f"hidden.layer.{i - 1}"):
            kept[name] = (args[0] if args else kwargs["hidden_states"])[0].clone()

        hooks.append(reader.register_forward_pre_hook(before, with_kwargs=True))
    hooks.append(
        decoder.norm.register_forward_hook(lambda m, a, output: kept.__setitem__("hidden.final", output[0].clone()))
    )
    logits = model(**inputs, use_cache=False).logits[0]
    for hook in hooks:
        hook.remove()
    kept["logits"] = logits
    return kept


@torch.no_grad()
def greedy(model, inputs: dict, steps: int = 64) -> tuple[list[int], float]:
    """Token ids, and the smallest distance between the best and the second logit (0 for a short loop)."""
    out = model.generate(
        **inputs,
        max_new_tokens=steps,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
        return_dict_in_generate=True,
        output_logits=True,
    )
    tokens = out.sequences[0, inputs["input_ids"].shape[1] :].tolist()
    assert len(tokens) == steps
    margin = min((top[0, 0] - top[0, 1]).item() for top in (l.topk(2).values for l in out.logits))
    return tokens, margin if len(set(tokens)) >= DISTINCT else 0.0


def to_numpy(kept: dict) -> dict:
    """Of the logits only the last position is kept: hidden.final has every row."""
    kept = {**kept, "logits": kept["logits"][-1:]}
    return {name: value.float().numpy() for name, value in kept.items()}
