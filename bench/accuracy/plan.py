"""Which sets are made and which rows are measured: the tables of docs/results.md, as data."""
import dataclasses

# name -> (kind, length, videos, questions a video)
SETS = {
    "skills-64": ("skills", 64, 30, 66), "skills-256": ("skills", 256, 30, 66), "skills-1024": ("skills", 1024, 30, 66),
    "moments-64": ("moments", 64, 130, 2), "moments-256": ("moments", 256, 110, 2), "moments-1024": ("moments", 1024, 70, 3),
    "caption-64": ("caption", 64, 60, 1), "caption-256": ("caption", 256, 60, 1), "caption-1024": ("caption", 1024, 60, 1),
    "pictures": ("pictures", 64, 200, 1),
    "needle-64": ("needle", 64, 20, 0), "needle-128": ("needle", 128, 10, 0), "needle-256": ("needle", 256, 10, 0),
    "needle-512": ("needle", 512, 10, 0), "needle-1024": ("needle", 1024, 12, 0), "needle-2048": ("needle", 2048, 10, 0),
    "needle-4096": ("needle", 4096, 10, 0), "long-4096": ("needle", 4096, 6, 0),
    "mixed-1024": ("mixed-needle", 1024, 16, 22), "mixed-3072": ("mixed-needle", 3072, 6, 22),
    "text-8192": ("text-needle", 8192, 16, 0), "text-24576": ("text-needle", 24576, 4, 0),
    "retain-256": ("skills", 256, 10, 44),
}
# the table of the heads is searched on these, which no row asks about
CALIBRATION = {"calibration": ("mixed-needle", 1024, 1, 4)}
SEED, CALIBRATION_SEED = "accuracy", "calibration"

DENSE = "dense"
MMINFERENCE = "mminference;dense-below=0"
# tables of the heads beside the one that comes with the model -> flags of `kinora tune`; a policy names one in brackets
BUDGET = ("--budget", "50")
HEADS = {"": BUDGET, "no boundaries": (*BUDGET, "--no-boundaries")}


def heads_of(policy):
    """Which table a policy reads: the name in brackets at its end."""
    return policy.rpartition(" (")[2].rstrip(")") if policy.endswith(")") else ""


MOMO = "momo;dense-below=0"


def sparse(text):
    return f"{text};dense-below=0"


# row name -> policy; the first is what the others are compared with
ATTENTION = {
    "dense": DENSE, "MMInference": MMINFERENCE, "MOMO": MOMO, "MInference (vertical-slash)": sparse("vertical-slash"),
    "MMInference, no boundaries": f"{MMINFERENCE} (no boundaries)",
    "MMInference + delta": sparse("mminference+delta"), "MOMO, delta off": sparse("momo:delta=0"),
    "A-shape": sparse("a-shape"), "tri-shape": sparse("tri-shape"), "grid, all lines": sparse("grid"),
    "SparseTransformer fixed": sparse("sf-fixed"), "SparseTransformer strided": sparse("sf-strided"), "A-shape + delta": sparse("a-shape+delta"),
    "mean-pool block top-k": sparse("mean-pool"), "oracle block top-k": sparse("oracle"),
}
# static patterns that cost about what MMInference's table costs
MATCHED = {
    "A-shape, as dear": sparse("a-shape:sink=128,local=7000"), "tri-shape, as dear": sparse("tri-shape:sink=128,local=7000"),
    "grid, as dear": sparse("grid:stride=8"), "SparseTransformer fixed, as dear": sparse("sf-fixed:stride=3"),
    "SparseTransformer strided, as dear": sparse("sf-strided:stride=3"),
}
# whether the text at the end of a group reads everything
LAST = {f"{name}, question sparse": sparse(policy) for name, policy in
        (("MMInference", "mminference:last=0"), ("MOMO", "momo:last=0"))}
# what is left when the budget is small: the same policies with less
TIGHT = {
    "MOMO, 1024 keys": sparse("momo:keys=1024"), "MOMO, 1024 keys, delta off": sparse("momo:keys=1024,delta=0"),
    "oracle, 1024 keys": sparse("oracle:keys=1024"), "mean-pool, 1024 keys": sparse("mean-pool:keys=1024"),
    **{f"vertical-slash, {v} + {s}": sparse(f"vertical-slash:verticals={v},slashes={s}") for v, s in ((740, 4550), (500, 3072), (390, 2400), (250, 1536), (125, 768))},
}
MOMO_SETTINGS = {f"k {k}, exact {e}": sparse(f"momo:k={k},exact={e}") for k, e in
                 ((128, 0), (128, 8), (128, 32), (128, 128), (64, 0), (64, 8), (64, 64), (32, 0), (32, 32))}
MOMO_TILES = {f"every {g}th query, tiles of {t}": sparse(f"momo:query-stride={g},tile={t}") for g, t in
              ((8, 128), (9, 128), (16, 128), (17, 64), (17, 128), (17, 256), (32, 128), (33, 128), (33, 256))}
MOMO_TRIM = {"trim on": sparse("momo:trim=1"), "trim off": sparse("momo:trim=0")}
MOMO_TOP_K = {f"top-k {n}": sparse(f"momo:top-k={n}") for n in ("hybrid", "exact", "tournament", "threshold")}

RATIOS = (1, 0.9, 0.8, 0.6, 0.5, 0.4, 0.2, 0.1)
RETENTION = {f"{p}, {r:g}": f"retain={p}:{r:g}" for p in ("key-norm", "value-norm") for r in RATIOS if r < 1}
BY_QUESTION = {f"attention-score, {r:g}": f"retain=attention-score:{r:g}" for r in RATIOS if r < 1}
GROUPS = {f"groups of {g} frames": f"group={g};retain=key-norm:0.5" for g in (4, 8, 16, 32, 64, 128)}
PRESETS = {name: f"quality={name}" for name in ("exact", "balanced", "fast")}


def runs_on_gpu(policy):
    """Whether a GPU can answer it: sparse attention runs on the CPU."""
    return policy == DENSE or policy.startswith(("retain=", "group="))


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of a table: a policy asked everything in a set."""
    table: str
    name: str
    set: str
    policy: str
    wrong_video: bool = False

    @property
    def key(self):
        return f"{self.set} | {self.policy}{' | wrong video' if self.wrong_video else ''}"


def rows():
    """In the order of importance: a window that ends early leaves whole tables, not holes in all."""
    out = []

    def add(table, sets, policies, **more):
        out.extend(Row(table, name, s, policy, **more) for s in sets for name, policy in policies.items())

    dense = {"dense": DENSE}
    few = ("dense", "MMInference", "MOMO")
    main = (*few, "MInference (vertical-slash)", "A-shape", "tri-shape", "grid, all lines", "SparseTransformer fixed", "SparseTransformer strided",
            "mean-pool block top-k")

    def some(names):
        return {name: ATTENTION[name] for name in names}

    add("skills", (f"{kind}-{length}" for length in (64, 256, 1024) for kind in ("skills", "moments", "caption")), dense)
    add("pictures", ("pictures",), dense)
    add("chance", ("skills-64", "moments-64", "caption-64", "pictures"), dense, wrong_video=True)
    add("needles", ("needle-64", "needle-128", "needle-256", "needle-512", "needle-1024", "needle-2048", "needle-4096"), dense)
    matched = {name: policy for name, policy in MATCHED.items() if "tri" not in name}
    add("attention", ("needle-1024",), some(few))
    add("attention", ("long-4096",), some(few))
    add("attention", ("needle-1024",), matched)
    add("attention", ("mixed-1024",), some((*few, "MMInference, no boundaries")))
    add("attention", ("text-8192",), some(few))
    add("attention", ("mixed-1024",), LAST)
    add("attention", ("needle-1024",), some(("MInference (vertical-slash)",)) | MATCHED)
    add("attention", ("long-4096",), some(("MInference (vertical-slash)",)) | matched)
    add("attention", ("needle-1024",), some(main))
    add("attention", ("long-4096",), some(main) | MATCHED)
    add("retention", ("retain-256",), dense | {k: v for k, v in RETENTION.items() if k.startswith("key")})
    add("attention", ("needle-1024", "mixed-1024", "text-8192", "long-4096"), ATTENTION | MATCHED)
    add("retention", ("retain-256",), RETENTION)
    add("groups", ("retain-256",), GROUPS)
    add("tight", ("mixed-1024",), TIGHT)
    add("by question", ("retain-256",), BY_QUESTION)
    add("presets", ("retain-256", "needle-1024"), PRESETS)
    add("momo", ("mixed-1024",), MOMO_SETTINGS | MOMO_TILES | MOMO_TRIM)
    add("tight", ("needle-1024", "needle-4096"), TIGHT)
    add("attention", ("mixed-3072", "text-24576", "needle-4096"), ATTENTION)
    return out
