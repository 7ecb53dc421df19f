#!/usr/bin/env python3
"""Which pictures of an H.264 file its slice headers prove to be unneeded for samples so far apart.

    bench/decode/references.py FILE [SECONDS]

kinora leaves out pictures that no other refers to. This counts how many reference pictures more could
be left out if reference lists were followed: it reads the headers that ffmpeg's trace_headers prints,
keeps the decoded picture buffer and builds the lists as the standard does (progressive pictures,
sliding window and explicit removal), and follows them back from the samples. An upper bound of what
headers can prove: whether a picture in a list is really used only the macroblocks say.
"""

import collections
import re
import subprocess
import sys

FIELD = re.compile(r"\]\s+\d+\s+(\w+)\s+[01]*\s*=\s*(-?\d+)")
REPEATED = {"modification_of_pic_nums_idc", "abs_diff_pic_num_minus1", "ref_pic_list_modification_flag_l1",
            "memory_management_control_operation", "difference_of_pic_nums_minus1"}
P, B = 0, 1


def read_headers(path, seconds):
    """Sequence and picture parameters and one dictionary per picture, in decoding order."""
    command = ["ffmpeg", "-nostdin", "-v", "verbose", "-t", seconds, "-i", path, "-an", "-c", "copy",
               "-bsf:v", "trace_headers", "-f", "null", "-"]
    sections = {"Sequence Parameter Set": "sps", "Picture Parameter Set": "pps", "Slice Header": "slice",
                "Supplemental": None}
    parameters, pictures = {}, []
    section, moment, unit, picture = None, 0, {}, None
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, errors="replace") as process:
        for line in process.stderr:
            if "Packet:" in line:
                moment, picture = int(re.search(r"pts (-?\d+)", line).group(1)), None
            for title, kind in sections.items():
                if title in line:
                    section, unit = kind, {}
            found = FIELD.search(line)
            if not found or section is None:
                continue
            name, value = found.group(1), int(found.group(2))
            if section != "slice":
                parameters[name] = value
                continue
            unit[name] = value
            if name == "first_mb_in_slice" and value == 0 and picture is None:
                picture = unit
                picture.update(moment=moment, steps=[])
                pictures.append(picture)
            elif picture is unit and name in REPEATED:
                picture["steps"].append((name, value))
    return parameters, pictures


def reordered(entries, picture, which, find, modulus):
    """A list after the modification commands of the slice."""
    at, current, predicted, operation, size = 0, 0, picture["frame_num"], 0, len(entries)
    for name, value in picture["steps"]:
        if name == "ref_pic_list_modification_flag_l1":
            current = 1
        elif current == which and name == "modification_of_pic_nums_idc":
            operation = value
        elif current == which and name == "abs_diff_pic_num_minus1":
            predicted = (predicted + (value + 1) * (1 if operation else -1)) % modulus
            chosen = find(predicted if predicted <= picture["frame_num"] else predicted - modulus)
            entries = entries[:at] + [chosen] + [one for one in entries[at:] if one != chosen]
            entries = entries[:size]
            at += 1
    return entries


def follow(parameters, pictures):
    """Gives every picture its order number and the set of pictures that its lists name."""
    modulus = 1 << parameters["log2_max_frame_num_minus4"] + 4
    period = 1 << parameters["log2_max_pic_order_cnt_lsb_minus4"] + 4
    held, low, high = [], 0, 0
    for position, picture in enumerate(pictures):
        if picture["nal_unit_type"] == 5:
            held, low, high = [], 0, 0
        order = picture["pic_order_cnt_lsb"]
        base = high + period * ((low - order >= period // 2) - (order - low > period // 2))
        picture["order"] = base + order

        def number(one):
            own = pictures[one]["frame_num"]
            return own if own <= picture["frame_num"] else own - modulus

        def find(wanted):
            return next(one for one in held if number(one) == wanted)

        kind = picture["slice_type"] % 5
        picture["bidirectional"] = kind == B
        earlier = sorted((one for one in held if pictures[one]["order"] < picture["order"]),
                         key=lambda one: -pictures[one]["order"])
        later = sorted((one for one in held if pictures[one]["order"] > picture["order"]),
                       key=lambda one: pictures[one]["order"])
        lists = {P: [sorted(held, key=number, reverse=True)], B: [earlier + later, later + earlier]}.get(kind, [])
        if kind == B and len(held) > 1 and lists[0] == lists[1]:
            lists[1][:2] = lists[1][1::-1]
        picture["lists"] = []
        for which, entries in enumerate(lists):
            default = parameters[f"num_ref_idx_l{which}_default_active_minus1"]
            size = picture.get(f"num_ref_idx_l{which}_active_minus1", default) + 1
            entries = (entries + [None] * size)[:size]
            if picture.get(f"ref_pic_list_modification_flag_l{which}"):
                entries = reordered(entries, picture, which, find, modulus)
            picture["lists"].append(entries)
        if picture["nal_ref_idc"] == 0:
            continue
        low, high = order, base
        if picture.get("adaptive_ref_pic_marking_mode_flag"):
            for name, value in picture["steps"]:
                if name == "difference_of_pic_nums_minus1":
                    held.remove(find(picture["frame_num"] - value - 1))
        elif len(held) >= parameters["max_num_ref_frames"]:
            held.remove(min(held, key=number))
        held.append(position)


def main():
    path, seconds = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "60"
    parameters, pictures = read_headers(path, seconds)
    follow(parameters, pictures)
    references = [i for i, one in enumerate(pictures) if one["nal_ref_idc"]]
    both = [i for i in references if pictures[i]["bidirectional"]]
    listed = {entry for one in pictures if one["slice_type"] % 5 == P for entry in one["lists"][0]}
    print(f"{path}: {len(pictures)} pictures, {len(references)} references, {len(both)} of them B, "
          f"{len(listed.intersection(both))} of those in the list of a P picture")
    places = collections.Counter(place + 1 for one in pictures if one["slice_type"] % 5 == P
                                 for place, entry in enumerate(one["lists"][0]) if entry in set(both))
    print("  places of B pictures in those lists:", dict(sorted(places.items())))
    shown = sorted(range(len(pictures)), key=lambda i: pictures[i]["moment"])
    starts = [i for i, one in enumerate(pictures) if one["nal_unit_type"] == 5] + [len(pictures)]
    rate = len(shown) / float(seconds)
    for gap in (0.5, 1, 2, 10):
        samples = {shown[i] for i in range(0, len(shown), max(1, round(gap * rate)))}
        decoded = set(samples)
        for begin, end in zip(starts, starts[1:]):
            own = [i for i in samples if begin <= i < end]
            decoded.update(i for i in references if own and begin <= i <= max(own))
        needed, open_ = set(), list(samples)
        while open_:
            one = open_.pop()
            if one is not None and one not in needed:
                needed.add(one)
                open_ += [entry for entries in pictures[one]["lists"] for entry in entries]
        print(f"  a sample every {gap} s: {len(decoded)} pictures decoded, {len(needed)} of them are reached through "
              f"lists: {100 * (1 - len(needed) / len(decoded)):.1f} % fewer")


if __name__ == "__main__":
    main()
