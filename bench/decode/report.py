"""Tables of what bench/decode/run measured."""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "common"))
import result_table  # noqa: E402


def is_own(name):
    return name.startswith("kinora") or name == "independent decoders"


def table(result):
    """Every program in one case."""
    programs = result["programs"]
    ours = programs.get("kinora")
    rows = []
    for name, one in programs.items():
        if one is None:
            reasons = [text for key, text in result["failures"].items() if key.startswith(name + " (")]
            rows.append([name, "; ".join(reasons).replace("|", "/") or "not run", *[""] * 6])
            continue
        rows.append([name, one["setting"], one["frames"], f"{one['seconds']:.2f} ({one['fastest']:.2f}–{one['slowest']:.2f})",
                     f"{one['seconds'] / ours['seconds']:.2f}×" if ours and name != "kinora" else "",
                     f"{one['first']:.2f} s ({100 * one['first'] / one['seconds']:.0f} %)" if one["first"] else "",
                     f"{one['cpu']:.1f}", f"{one['peak_mb']:.0f} ({one['peak_mb'] - one['baseline_mb']:.0f})"])
    return result_table.measured(
        result["case"], ["program", "setting", "frames", "seconds (range)", "kinora is faster by", "first 16 frames", "CPU s", "peak MB (grown)"], rows,
        "none", "llrrrrrr")


def table_text(result):
    """The same to read, with what follows from it."""
    programs = result["programs"]
    ours, fastest, ceiling = programs.get("kinora"), fastest_peer(programs)[1], programs.get("independent decoders")
    text = f"### {result['case']}\n\n{table(result).markdown()}"
    if ours and fastest:
        text += f"\nFastest peer ÷ kinora: **{fastest['seconds'] / ours['seconds']:.2f}×**\n"
    if ours and ceiling:
        text += f"Share of what independent one-thread decoders reach: **{100 * ceiling['seconds'] / ours['seconds']:.0f} %**\n"
    return text


def fastest_peer(programs):
    peers = {name: one for name, one in programs.items() if one and not is_own(name)}
    return min(peers.items(), key=lambda item: item[1]["seconds"], default=(None, None))


def spread(one):
    """The median; with several rounds also the smallest and largest."""
    text = f"{one['seconds']:.2f}"
    return text if one["rounds"] == 1 else f"{text} ({one['fastest']:.2f}–{one['slowest']:.2f})"


def summary(results, machine):
    """One row per case."""
    rows = []
    for result in results:
        programs = result["programs"]
        peer_name, peer = fastest_peer(programs)
        ceiling = programs.get("independent decoders")
        memory = ", ".join(f"{name} {one['peak_mb']:.0f}" for name, one in programs.items()
                           if one and not is_own(name))
        for name, ours in programs.items():
            if not name.startswith("kinora"):
                continue
            case = result["case"] + name.removeprefix("kinora")
            if not ours:
                rows.append([case, "", "failed", *[""] * 6])
                continue
            rows.append([case, ours["frames"], spread(ours), f"{spread(peer)} ({peer_name})" if peer else "–",
                         f"{peer['seconds'] / ours['seconds']:.2f}" if peer else "–",
                         f"{ours['first']:.2f} s, {100 * ours['first'] / ours['seconds']:.1f} %",
                         f"{100 * ceiling['seconds'] / ours['seconds']:.0f} %" if ceiling else "–",
                         f"{ours['peak_mb']:.0f}", memory])
    return result_table.measured(
        f"Decoding sampled frames, {machine['machine']}, {machine['cores']} cores; absent: {', '.join(machine['absent']) or 'none'}",
        ["case", "samples", "kinora, s", "fastest peer, s", "times faster", "first 16 frames", "of independent decoders", "peak MB: kinora", "peers"],
        rows, "none", "lrrrrrrrl")


def cancel_table(measured):
    """Milliseconds from cancelling to the caller's error, and to the end of every thread."""
    rows = []
    for name, one in measured:
        if one is None:
            rows.append([name, "failed", *[""] * 4])
            continue
        rows.append([name, one["cancelled"], f"{one['answered_ms_median']:.0f}", f"{one['answered_ms_max']:.0f}",
                     f"{one['released_ms_median']:.0f}", f"{one['released_ms_max']:.0f}"])
    return result_table.measured(
        "From cancelling to the error, and to the end of every thread",
        ["cancelled while reading", "times", "error, ms: median", "error, ms: max", "all released, ms: median", "all released, ms: max"], rows, "none", "lrrrrr")
