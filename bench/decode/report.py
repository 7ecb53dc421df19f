"""Markdown tables of what bench/decode/run measured."""


def is_own(name):
    return name.startswith("kinora") or name == "independent decoders"


def table(result):
    programs_ = result["programs"]
    fastest = fastest_peer(programs_)[1]
    lines = [f"### {result['case']}", "",
             "| program | setting | frames | seconds (range) | kinora is faster by | first 16 frames | CPU s | peak MB (grown) |",
             "|---|---|---:|---:|---:|---:|---:|---:|"]
    ours = programs_.get("kinora")
    for name, one in programs_.items():
        if one is None:
            reasons = [text for key, text in result["failures"].items() if key.startswith(name + " (")]
            lines.append(f"| {name} | {'; '.join(reasons) or 'not run'} | | | | | | |")
            continue
        ratio = f"{one['seconds'] / ours['seconds']:.2f}×" if ours and name != "kinora" else ""
        first = f"{one['first']:.2f} s ({100 * one['first'] / one['seconds']:.0f} %)" if one["first"] else ""
        lines.append(f"| {name} | {one['setting']} | {one['frames']} | {one['seconds']:.2f} "
                     f"({one['fastest']:.2f}–{one['slowest']:.2f}) | {ratio} | {first} | {one['cpu']:.1f} | "
                     f"{one['peak_mb']:.0f} ({one['peak_mb'] - one['baseline_mb']:.0f}) |")
    if ours and fastest:
        lines += ["", f"Fastest peer ÷ kinora: **{fastest['seconds'] / ours['seconds']:.2f}×**"]
    ceiling = programs_.get("independent decoders")
    if ours and ceiling:
        lines += [f"Share of what independent one-thread decoders reach: "
                  f"**{100 * ceiling['seconds'] / ours['seconds']:.0f} %**"]
    return "\n".join(lines) + "\n"


def fastest_peer(programs):
    peers = {name: one for name, one in programs.items() if one and not is_own(name)}
    return min(peers.items(), key=lambda item: item[1]["seconds"], default=(None, None))


def spread(one):
    """The median; with several rounds also the smallest and largest."""
    text = f"{one['seconds']:.2f}"
    return text if one["rounds"] == 1 else f"{text} ({one['fastest']:.2f}–{one['slowest']:.2f})"


def summary(results, machine):
    """One row a case, ready to paste."""
    lines = [f"Decoding sampled frames, {machine['machine']}, {machine['cores']} cores; absent: "
             f"{', '.join(machine['absent']) or 'none'}.", "",
             "| case | samples | kinora s | fastest peer s | times faster | first 16 frames | "
             "of independent decoders | peak MB: kinora | peers |", "|---|---:|---:|---:|---:|---:|---:|---:|---|"]
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
                lines.append(f"| {case} | | failed | | | | | | |")
                continue
            lines.append(
                f"| {case} | {ours['frames']} | {spread(ours)} | "
                + (f"{spread(peer)} ({peer_name}) | **{peer['seconds'] / ours['seconds']:.2f}** | " if peer else "– | – | ")
                + f"{ours['first']:.2f} s, {100 * ours['first'] / ours['seconds']:.1f} % | "
                + (f"{100 * ceiling['seconds'] / ours['seconds']:.0f} % | " if ceiling else "– | ")
                + f"{ours['peak_mb']:.0f} | {memory} |")
    return "\n".join(lines) + "\n"


def cancel_table(measured):
    """Milliseconds from cancelling to the caller's error, and to the end of every thread."""
    lines = ["| cancelled while reading | times | error ms, median | max | all released ms, median | max |",
             "|---|---:|---:|---:|---:|---:|"]
    for name, one in measured:
        if one is None:
            lines.append(f"| {name} | failed | | | | |")
            continue
        lines.append(f"| {name} | {one['cancelled']} | {one['answered_ms_median']:.0f} | {one['answered_ms_max']:.0f} | "
                     f"{one['released_ms_median']:.0f} | {one['released_ms_max']:.0f} |")
    return "\n".join(lines) + "\n"
