"""Which sets are made and which rows are measured: the tables of docs/results/, as data."""
import dataclasses

# name -> (kind, length, videos, questions per video)
SETS = {
    "skills-64": ("skills", 64, 30, 66), "fresh-64": ("skills", 64, 30, 66), "skills-128": ("skills", 128, 30, 66), "skills-256": ("skills", 256, 30, 66), "skills-1024": ("skills", 1024, 30, 66),
    "moments-64": ("moments", 64, 130, 2), "moments-256": ("moments", 256, 110, 2), "moments-1024": ("moments", 1024, 70, 3),
    "caption-64": ("caption", 64, 60, 1), "caption-256": ("caption", 256, 60, 1), "caption-1024": ("caption", 1024, 60, 1),
    "pictures": ("pictures", 64, 200, 1),
    "needle-64": ("needle", 64, 20, 0), "needle-128": ("needle", 128, 10, 0), "needle-256": ("needle", 256, 10, 0),
    "needle-512": ("needle", 512, 10, 0), "needle-1024": ("needle", 1024, 12, 0), "needle-2048": ("needle", 2048, 10, 0),
    "needle-4096": ("needle", 4096, 10, 0), "long-4096": ("needle", 4096, 6, 0),
    "mixed-512": ("mixed-needle", 512, 10, 22), "mixed-1024": ("mixed-needle", 1024, 16, 22), "mixed-3072": ("mixed-needle", 3072, 6, 22),
    # no rule of a search was chosen on it
    "mixed-fresh-1024": ("mixed-needle", 1024, 16, 22),
    "text-10240": ("text-needle", 10240, 16, 0), "text-24576": ("text-needle", 24576, 4, 0),
    # where dense attention is not right by itself: 45 facts among as many sentences like them, the order of things in very long videos
    "crowd-4096": ("text-crowd", 4096, 14, 30), "crowd-16384": ("text-crowd", 16384, 14, 30), "crowd-24576": ("text-crowd", 24576, 14, 30),
    "crowd-33792": ("text-crowd", 33792, 14, 30), "mixed-crowd-1024": ("mixed-crowd", 1024, 14, 30), "sequence-4096": ("sequence", 4096, 14, 30), "sequence-8192": ("sequence", 8192, 14, 30),
    "retain-256": ("skills", 256, 10, 44), "ask-256": ("skills", 256, 10, 10),
    # the preset `fast` is chosen on these …
    "choose-64": ("skills", 64, 8, 66), "choose-steps-128": ("skills", 128, 5, 66), "choose-1024": ("skills", 1024, 2, 66), "choose-4096": ("needle", 4096, 2, 0),
    # … and shown on these, on which nothing was chosen; "steps": the file has eight frames for each that is looked at
    "presets-64": ("skills", 64, 12, 66), "presets-steps-128": ("skills", 128, 8, 66), "presets-256": ("skills", 256, 10, 66), "presets-1024": ("skills", 1024, 6, 66),
    "presets-4096": ("needle", 4096, 4, 0),
}
# how they are made besides
MORE = {name: (*(("--steps", "8") if "steps" in name else ()), "--seed", f"presets/{'choose' if name.startswith('choose') else 'fresh'}")
        for name in SETS if name.startswith(("choose", "presets"))}


def set_title(name):
    """What a set is, in words."""
    kind, length, *_ = SETS[name]
    title = f"{'needles' if kind == 'needle' else 'every skill'}, {length:,} frames"
    return title + (", one in eight of the file" if "steps" in name else "")


# in how many wordings a set's questions are asked, because a prefill costs far more than a question
WORDINGS = {"long-4096": 2, "choose-4096": 2, "presets-4096": 2, "mixed-1024": 2, "mixed-fresh-1024": 2, "text-10240": 3}
# the table of the heads is searched on these, which no row asks about
CALIBRATION = {"calibration": ("mixed-needle", 1024, 4, 4), "calibration-512": ("mixed-needle", 512, 4, 4)}
SEED, CALIBRATION_SEED = "accuracy", "calibration"

DENSE = "dense"
MMINFERENCE = "mminference;dense-below=0"
# tables of the heads besides the one that comes with the model -> flags of `kinora tune`; a policy names one in brackets
# budgets are shares of dense attention's FLOPs; "paper": what an A-shape of 1,024 + 4,096 tokens computes
HEADS = {"": ("--budget", "50"), "no boundaries": ("--budget", "50", "--no-boundaries"),
         "paper": (), "paper, four prompts": ("--prompts", "4"),
         "paper, question too": ("--last", "0"), "small, question too": ("--budget", "20", "--last", "0"),
         "small": ("--budget", "20"), "small, no boundaries": ("--budget", "20", "--no-boundaries"), "small, four prompts": ("--budget", "20", "--prompts", "4")}


def heads_of(policy):
    """Which table a policy reads: the name in brackets at its end."""
    return policy.rpartition(" (")[2].rstrip(")") if policy.endswith(")") else ""


MOMO = "momo;dense-below=0"


def sparse(text):
    return f"{text};dense-below=0"


SPARSE_QUESTION = "last=0,least=2"


def as_published(policy):
    """A policy without what kinora adds to it: the question, and groups that are short, are sparse like everything else."""
    text, _, rest = policy.partition(";")
    name, plus, delta = text.partition("+")
    return f"{name}{',' if ':' in name else ':'}{SPARSE_QUESTION}{plus}{delta};{rest}"


def question_is_sparse(policy):
    return SPARSE_QUESTION in policy


def both_ways(policies):
    """Every sparse policy as published first, then with the rule that the question reads everything."""
    out = {}
    for name, policy in policies.items():
        if policy != DENSE:
            out[name] = as_published(policy)
        out[name if policy == DENSE else f"{name}, question dense"] = policy
    return out


# row name -> policy; the first is what the others are compared with
ATTENTION = {
    "dense": DENSE, "MMInference": MMINFERENCE, "MOMO": MOMO, "MInference (vertical-slash)": sparse("vertical-slash"),
    "MMInference, no boundaries": f"{MMINFERENCE} (no boundaries)",
    "MMInference, the paper's budget": f"{MMINFERENCE} (paper)",
    "MMInference, the paper's budget, four prompts": f"{MMINFERENCE} (paper, four prompts)",
    "MMInference, the paper's budget, question searched": f"{MMINFERENCE} (paper, question too)",
    "MOMO, delta off": sparse("momo:delta=0"), "MOMO, ranked by mass": sparse("momo:rank=mass"),
    "MOMO, 128/8": sparse("momo:k=128,exact=8"), "MOMO, 1 layer dense": sparse("momo:dense-layers=1"),
    "mean-pool block top-k": sparse("mean-pool"), "oracle block top-k": sparse("oracle"),
    # as many keys more as MOMO's measured queries read: 25,000 / 2 / 17
    "mean-pool, MOMO's FLOPs": sparse("mean-pool:keys=4830"),
}
PUBLISHED = {
    "MMInference + delta": sparse("mminference+delta"), "A-shape": sparse("a-shape"), "tri-shape": sparse("tri-shape"), "grid, all lines": sparse("grid"),
    "SparseTransformer fixed": sparse("sf-fixed"), "SparseTransformer strided": sparse("sf-strided"), "A-shape + delta": sparse("a-shape+delta"),
}
# static patterns that cost about what MMInference's table costs: strides of a frame as published, windows as large as it takes
MATCHED = {
    "A-shape, matched": sparse("a-shape:sink=128,local=7000"), "tri-shape, matched": sparse("tri-shape:sink=128,local=7000"),
    "grid, matched": sparse("grid:local=4500"), "SparseTransformer fixed, matched": sparse("sf-fixed:local=5600"),
    "SparseTransformer strided, matched": sparse("sf-strided:local=5600"),
}
# rows of the harder sets, besides these
HARDER = ("dense", "MMInference", "MOMO", "MOMO, ranked by mass", "MInference (vertical-slash)")
# tables searched with a smaller budget, and static patterns that cost about the same
SMALL = {
    "dense": DENSE, "MMInference": f"{MMINFERENCE} (small)", "MMInference, no boundaries": f"{MMINFERENCE} (small, no boundaries)",
    "MMInference, four prompts": f"{MMINFERENCE} (small, four prompts)",
    "MMInference, question searched": f"{MMINFERENCE} (small, question too)",
    "MOMO, 512 keys": sparse("momo:keys=512"),
    "MInference (vertical-slash)": sparse("vertical-slash:verticals=175,slashes=1060"),
    # half as many lines
    "MInference (vertical-slash), half": sparse("vertical-slash:verticals=88,slashes=530"),
    "A-shape": sparse("a-shape:sink=128,local=2400"), "tri-shape": sparse("tri-shape:sink=128,local=2400"),
    "grid": sparse("grid:local=1200"), "SparseTransformer fixed": sparse("sf-fixed:local=1500"),
    "SparseTransformer strided": sparse("sf-strided:local=1500"),
}
# what is left when the budget is small: the same policies with less
TIGHT = {
    "MOMO, 1024 keys": sparse("momo:keys=1024"), "MOMO, 1024 keys, delta off": sparse("momo:keys=1024,delta=0"),
    "MOMO, 1024 keys, ranked by mass": sparse("momo:keys=1024,rank=mass"),
    "oracle, 1024 keys": sparse("oracle:keys=1024"), "mean-pool, 1024 keys": sparse("mean-pool:keys=1024"),
    **{f"vertical-slash, {v} + {s}": sparse(f"vertical-slash:verticals={v},slashes={s}") for v, s in ((740, 4550), (500, 3072), (390, 2400), (250, 1536), (125, 768))},
}
MOMO_SETTINGS = {f"k {k}, exact {e}": sparse(f"momo:k={k},exact={e}") for k, e in
                 ((128, 0), (128, 8), (128, 32), (128, 128), (64, 0), (64, 8), (64, 64), (32, 0), (32, 32))}
MOMO_RANK = {"MOMO, ranked by mass, delta off": sparse("momo:rank=mass,delta=0")}
WIDER = {name: MOMO_SETTINGS[name] for name in ("k 128, exact 8", "k 128, exact 128")} | MOMO_RANK
MOMO_TILES = {f"every {g}{'nd' if g == 32 else 'rd' if g == 33 else 'th'} query, tiles of {t}": sparse(f"momo:query-stride={g},tile={t}") for g, t in
              ((8, 128), (9, 128), (16, 128), (17, 64), (17, 128), (17, 256), (32, 128), (33, 128), (33, 256))}
MOMO_TRIM = {"trim on": sparse("momo:trim=1"), "trim off": sparse("momo:trim=0")}
MOMO_TOP_K = {f"top-k {n}": sparse(f"momo:top-k={n}") for n in ("hybrid", "exact", "tournament", "threshold")}

# attention captured, and its time: sets that are so long that every Nth group of tokens has to do
RECALL_EVERY = {"long-4096": 8, "needle-4096": 8}

RATIOS = (1, 0.9, 0.8, 0.6, 0.5, 0.4, 0.2, 0.1)
RETENTION = {f"{p}, {r:g}": f"retain={p}:{r:g}" for p in ("key-norm", "value-norm") for r in RATIOS if r < 1}
BY_QUESTION = {f"{p}, {r:g}": f"retain={p}:{r:g}" for p in ("attention-score", "attention-mass") for r in RATIOS if r < 1}
GROUPS = {f"groups of {g} frames": f"group={g};retain=key-norm:0.5" for g in (4, 8, 16, 32, 64, 128)}
# how many of a video's frames and of their pixels are looked at
LESS = {f"{f:g} of the frames": f"frames={f:g}" for f in (0.75, 0.5, 0.25)} | {"9 of 16 tokens a frame": "pixels=0.6"}
# a quarter and half of a video: tokens that the decoder never sees, rows that it forgets again, and controls of the same size
KEPT = (0.5, 0.25)
BEFORE = {f"tokens {p}, {r:g}": f"tokens={p}:{r:g}" for r in KEPT for p in ("novel", "evs", "random", "frames")}
AFTER = {f"rows {p}, {r:g}": f"retain={p}:{r:g}" for r in KEPT for p in ("value-norm", "key-norm", "random")}
FEWER = {f"{r:g} of the frames": f"frames={r:g}" for r in KEPT}
PRESETS = {name: f"quality={name}" for name in ("exact", "balanced", "fast")}


def quickly(*settings, attention="momo"):
    return ";".join((attention, "rows=auto", *settings))


# what `fast` could be; the first is what it was
EARLIER_FAST = {"fast before": quickly("retain=value-norm:0.8", "frames=0.75", "snap=0.5")}
SHARES = {f"tokens {r:g}, snapped": quickly(f"tokens=novel:{r:g}", "snap=0.5") for r in (0.5, 0.35, 0.25)}  # the second is `fast`
CANDIDATES = EARLIER_FAST | {
    "balanced": quickly(), "balanced, ranked by mass": quickly(attention="momo:rank=mass"),
    **{f"{name}{', snapped' if snap else ''}": quickly(*settings, *(("snap=0.5",) if snap else ())) for snap in (False, True) for name, settings in {
        "tokens 0.5": ("tokens=novel:0.5",), "tokens 0.35": ("tokens=novel:0.35",), "tokens 0.25": ("tokens=novel:0.25",),
        "3 of 4 frames, tokens 0.5": ("tokens=novel:0.5", "frames=0.75"), "3 of 4 frames, tokens 0.33": ("tokens=novel:0.33", "frames=0.75")}.items()},
    "tokens 0.25, ranked by mass": quickly("tokens=novel:0.25", attention="momo:rank=mass"),
    "tokens 0.5, ranked by mass": quickly("tokens=novel:0.5", attention="momo:rank=mass"),
}


def reads_everything(policy):
    """Whether attention itself is dense."""
    return policy in (DENSE, PRESETS["exact"]) or policy.startswith(("retain=", "tokens=", "group=", "frames=", "pixels="))


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
    few = ("dense", "MMInference", "MOMO", "MMInference, no boundaries", "MMInference, the paper's budget",
           "MMInference, the paper's budget, four prompts", "MMInference, the paper's budget, question searched", "MInference (vertical-slash)")

    def some(names):
        return both_ways({name: ATTENTION[name] for name in names})

    add("skills", (f"{kind}-{length}" for length in (64, 256, 1024) for kind in ("skills", "moments", "caption")), dense)
    add("pictures", ("pictures",), dense)
    add("chance", ("skills-64", "moments-64", "caption-64", "pictures"), dense, wrong_video=True)
    add("needles", ("needle-64", "needle-128", "needle-256", "needle-512", "needle-1024", "needle-2048", "needle-4096"), dense)
    add("attention", ("long-4096",), some(few) | both_ways(MATCHED))
    add("attention", ("mixed-1024",), some(few) | both_ways(MATCHED))
    add("attention", ("text-10240",), some(few) | both_ways(MATCHED))
    add("attention", ("needle-1024",), some(few) | both_ways(MATCHED))
    add("attention", ("needle-1024", "mixed-1024", "text-10240", "long-4096"), some(("MOMO, delta off", "MOMO, 128/8", "MOMO, 1 layer dense")))
    add("harder", ("crowd-4096", "mixed-crowd-1024", "sequence-4096", "crowd-16384", "crowd-24576", "crowd-33792", "sequence-8192"), some(HARDER) | both_ways(MATCHED))
    add("small budget", ("needle-1024", "mixed-1024"), both_ways(SMALL))
    add("attention", ("needle-1024", "text-10240"), some(("MOMO, ranked by mass", "mean-pool block top-k", "mean-pool, MOMO's FLOPs")))
    add("attention", ("mixed-1024", "long-4096"), some(("MOMO, ranked by mass",)))
    add("attention", ("mixed-1024", "long-4096"), some(("mean-pool block top-k", "mean-pool, MOMO's FLOPs")))
    add("attention", ("needle-1024", "text-10240", "mixed-1024", "long-4096"), some(("oracle block top-k",)))
    add("published sizes", ("needle-1024", "mixed-1024", "text-10240", "long-4096"), dense | both_ways(PUBLISHED))
    add("retention", ("retain-256",), dense | {k: v for k, v in RETENTION.items() if k.startswith("key")})
    add("retention", ("retain-256",), RETENTION)
    add("groups", ("retain-256",), GROUPS)
    add("tight", ("mixed-1024",), both_ways(TIGHT))
    add("frames", ("retain-256",), dense | LESS)
    # fresh-64: no rule was chosen on it
    add("tokens", ("fresh-64", "skills-128", "skills-1024", "skills-256", "skills-64"), dense | BEFORE | AFTER | FEWER)
    add("by question", ("ask-256",), dense | BY_QUESTION)
    add("presets", ("presets-256", "presets-4096", "presets-64", "presets-1024", "presets-steps-128"), PRESETS | EARLIER_FAST | SHARES)
    for name in ("choose-4096", "choose-64", "choose-steps-128", "choose-1024", "fresh-64"):  # below 8,192 rows all is dense
        add("candidates", (name,), {k: v for k, v in ({"exact": DENSE} | CANDIDATES).items()
                                    if ("steps" in name or not k.endswith("snapped")) and ("4096" in name or "mass" not in k)
                                    and (name != "fresh-64" or k in ("exact", "fast before", "tokens 0.5", "tokens 0.35", "tokens 0.25"))})
    add("momo", ("mixed-1024", "needle-1024"), MOMO_SETTINGS | MOMO_TILES | MOMO_TRIM)
    add("momo k", ("long-4096", "mixed-1024", "needle-1024"), WIDER)
    add("tight", ("needle-1024", "long-4096", "text-10240", "needle-4096"), both_ways(TIGHT))
    add("attention", ("mixed-3072", "text-24576", "needle-4096"), both_ways(ATTENTION | MATCHED))
    return out
