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
    "needle-4096": ("needle", 4096, 10, 0),
    "mixed-1024": ("mixed-needle", 1024, 16, 22), "mixed-3072": ("mixed-needle", 3072, 6, 22),
    "text-8192": ("text-needle", 8192, 16, 0), "text-24576": ("text-needle", 24576, 4, 0),
    "retain-256": ("skills", 256, 10, 44),
}
# the table of the heads is searched on these, which no row asks about
CALIBRATION = {"calibration": ("mixed-needle", 1024, 1, 4)}
SEED, CALIBRATION_SEED = "accuracy", "calibration"

DENSE = "dense"
MMINFERENCE, NO_BOUNDARIES = "mminference;dense-below=0", "mminference;dense-below=0 (no boundaries)"
MOMO = "momo;dense-below=0"


def sparse(text):
    return f"{text};dense-below=0"


# row name -> policy; the first is what the others are compared with
ATTENTION = {
    "dense": DENSE, "MMInference": MMINFERENCE, "MOMO": MOMO, "MInference (vertical-slash)": sparse("vertical-slash"),
    "MMInference, no boundaries": NO_BOUNDARIES, "MOMO, delta off": sparse("momo:delta=0"), "A-shape": sparse("a-shape"),
    "tri-shape": sparse("tri-shape"), "oracle block top-k": sparse("oracle"), "mean-pool block top-k": sparse("mean-pool"),
    "grid, all lines": sparse("grid"), "SparseTransformer fixed": sparse("sf-fixed"), "SparseTransformer strided": sparse("sf-strided"),
    "A-shape + delta": sparse("a-shape+delta"), "MMInference + delta": sparse("mminference+delta"),
}
# what is left when the budget is small: the same policies with less
TIGHT = {
    "MOMO, 1024 keys": sparse("momo:keys=1024"), "MOMO, 1024 keys, delta off": sparse("momo:keys=1024,delta=0"),
    "oracle, 1024 keys": sparse("oracle:keys=1024"), "mean-pool, 1024 keys": sparse("mean-pool:keys=1024"),
    "A-shape, 128 + 1024": sparse("a-shape:sink=128,local=1024"), "vertical-slash, 250 + 1536": sparse("vertical-slash:verticals=250,slashes=1536"),
}
MOMO_SETTINGS = {f"k {k}, exact {e}": sparse(f"momo:k={k},exact={e}") for k, e in
                 ((128, 0), (128, 8), (128, 32), (128, 128), (64, 0), (64, 8), (64, 64), (32, 0), (32, 32))}
MOMO_TILES = {f"every {g}th query, tiles of {t}": sparse(f"momo:query-stride={g},tile={t}") for g in (8, 16, 32) for t in (64, 128, 256)}
MOMO_TRIM = {"trim on": sparse("momo:trim=1"), "trim off": sparse("momo:trim=0")}
MOMO_TOP_K = {f"top-k {n}": sparse(f"momo:top-k={n}") for n in ("hybrid", "exact", "tournament", "threshold")}

RATIOS = (1, 0.9, 0.8, 0.6, 0.5, 0.4, 0.2, 0.1)
RETENTION = {f"{p}, {r:g}": f"retain={p}:{r:g}" for p in ("key-norm", "value-norm") for r in RATIOS if r < 1}
BY_QUESTION = {f"attention-score, {r:g}": f"retain=attention-score:{r:g}" for r in RATIOS if r < 1}
GROUPS = {f"groups of {g} frames": f"group={g};retain=key-norm:0.5" for g in (4, 8, 16, 32, 64, 128)}


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
    main = few + ("MMInference + delta", "MInference (vertical-slash)", "A-shape", "tri-shape", "grid, all lines", "MMInference, no boundaries")

    def some(names):
        return {name: ATTENTION[name] for name in names}

    add("skills", (f"{kind}-{length}" for length in (64, 256, 1024) for kind in ("skills", "moments", "caption")), dense)
    add("pictures", ("pictures",), dense)
    add("chance", ("skills-64", "moments-64", "caption-64", "pictures"), dense, wrong_video=True)
    add("needles", ("needle-64", "needle-128", "needle-256", "needle-512", "needle-1024", "needle-2048", "needle-4096"), dense)
    add("attention", ("needle-1024",), some(main))
    add("attention", ("mixed-1024",), some(few + ("MMInference, no boundaries",)))
    add("attention", ("needle-4096",), some(few))
    add("retention", ("retain-256",), dense | {k: v for k, v in RETENTION.items() if k.startswith("key")})
    add("attention", ("needle-4096",), some(main))
    add("attention", ("needle-1024", "mixed-1024"), ATTENTION)
    add("retention", ("retain-256",), RETENTION)
    add("groups", ("retain-256",), GROUPS)
    add("tight", ("mixed-1024",), TIGHT)
    add("attention", ("text-8192", "needle-4096"), ATTENTION)
    add("by question", ("retain-256",), BY_QUESTION)
    add("momo", ("mixed-1024",), MOMO_SETTINGS | MOMO_TILES | MOMO_TRIM)
    add("tight", ("needle-1024", "needle-4096"), TIGHT)
    add("attention", ("mixed-3072", "text-24576"), ATTENTION)
    return out
