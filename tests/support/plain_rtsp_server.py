"""Serves one H.264 clip without B pictures as rtsp://127.0.0.1:PORT/clip, as a camera does, until it is killed.

    plain_rtsp_server.py PORT CLIP.mp4 [--pace RATE] [--cut FRAMES]

RTP goes through the RTSP connection (RFC 2326, section 10.12); a client that wants UDP is told that it cannot have it. --pace is how many times
faster than real time frames are sent (4). --cut closes the first connection after that many frames, without
saying goodbye; the second connection gets all of them, and the server ends with it.
Needs only Python and the ffmpeg tool, which takes the pictures out of the file.
"""

import argparse
import base64
import re
import socket
import struct
import subprocess
import threading
import time

CLOCK = 90000  # of RTP's times of video
PAYLOAD = 1400  # bytes of a packet


def pictures(clip):
    """The NAL units of each picture, and how many pictures there are in a second."""
    rate = subprocess.run(["ffprobe", "-v", "error", "-select_streams", "v", "-show_entries", "stream=r_frame_rate", "-of", "csv=p=0", clip],
                          check=True, capture_output=True, text=True).stdout.strip()
    stream = subprocess.run(["ffmpeg", "-v", "error", "-i", clip, "-c", "copy", "-bsf:v", "h264_mp4toannexb,h264_metadata=aud=insert", "-f", "h264", "-"],
                            check=True, capture_output=True).stdout
    found = []
    for unit in re.split(b"\x00\x00\x00?\x01", stream)[1:]:
        if unit[0] & 31 == 9:  # an access unit delimiter begins a picture
            found.append([])
        else:
            found[-1].append(unit)
    up, _, down = rate.partition("/")
    return found, int(up) / int(down or 1)


def packets(units):
    """Payloads of one picture: whole units, or pieces of those that are too long (RFC 6184, FU-A)."""
    for unit in units:
        if len(unit) <= PAYLOAD:
            yield unit
            continue
        head, kind = unit[0] & 0xE0 | 28, unit[0] & 31
        for begin in range(1, len(unit), PAYLOAD):
            first, last = begin == 1, begin + PAYLOAD >= len(unit)
            yield bytes([head, kind | first << 7 | last << 6]) + unit[begin:begin + PAYLOAD]


def play(connection, clip, pace, most):
    found, rate = clip
    number, began = 0, time.monotonic()
    for frame, units in enumerate(found[:most]):
        time.sleep(max(0, began + frame / rate / pace - time.monotonic()))
        payloads = list(packets(units))
        for i, payload in enumerate(payloads):
            marker = (i + 1 == len(payloads)) << 7
            packet = struct.pack(">BBHII", 0x80, 96 | marker, number & 0xFFFF, int(frame * CLOCK / rate), 7) + payload
            connection.sendall(struct.pack(">cBH", b"$", 0, len(packet)) + packet)
            number += 1
    if most is None:
        # RTCP: a sender's report, which every message begins with, and that this source has ended.
        goodbye = struct.pack(">BBHIIIIII", 0x80, 200, 6, 7, 0, 0, 0, number, 0) + struct.pack(">BBHI", 0x81, 203, 1, 7)
        connection.sendall(struct.pack(">cBH", b"$", 1, len(goodbye)) + goodbye)


def describe(clip, url):
    units = [unit for picture in clip[0][:1] for unit in picture]
    sets = ",".join(base64.b64encode(next(u for u in units if u[0] & 31 == kind)).decode() for kind in (7, 8))
    return (f"v=0\r\no=- 0 0 IN IP4 127.0.0.1\r\ns=clip\r\nt=0 0\r\na=control:{url}\r\nm=video 0 RTP/AVP 96\r\nc=IN IP4 127.0.0.1\r\n"
            f"a=rtpmap:96 H264/{CLOCK}\r\na=fmtp:96 packetization-mode=1;sprop-parameter-sets={sets}\r\na=control:track\r\n")


def serve(connection, clip, pace, most):
    with connection, connection.makefile("rb") as requests:
        while first := requests.read(1):
            if first == b"$":  # what the client reports, as RTCP
                requests.read(struct.unpack(">BH", requests.read(3))[1])
                continue
            method, url = (first + requests.readline()).decode(errors="replace").split()[:2]
            fields = {}
            while (text := requests.readline().strip()):
                name, _, value = text.decode(errors="replace").partition(":")
                fields[name.lower()] = value.strip()
            status, more, body = "200 OK", "", ""
            if method == "OPTIONS":
                more = "Public: OPTIONS, DESCRIBE, SETUP, PLAY, GET_PARAMETER, TEARDOWN\r\n"
            elif method == "DESCRIBE":
                body = describe(clip, url)
                more = f"Content-Type: application/sdp\r\nContent-Base: {url}/\r\n"
            elif method == "SETUP" and "interleaved" in fields.get("transport", ""):
                more = "Transport: RTP/AVP/TCP;unicast;interleaved=0-1\r\nSession: 1\r\n"
            elif method == "SETUP":
                status = "461 Unsupported Transport"
            elif method == "PLAY":
                more = "Session: 1\r\nRange: npt=0-\r\n"
            connection.sendall(f"RTSP/1.0 {status}\r\nCSeq: {fields.get('cseq', 0)}\r\n{more}Content-Length: {len(body)}\r\n\r\n{body}".encode())
            if method == "PLAY":
                play(connection, clip, pace, most)
            if method == "TEARDOWN" or (method == "PLAY" and most is not None):
                return


def quietly(*arguments):
    try:
        serve(*arguments)
    except OSError:
        pass  # the client went away


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("port", type=int)
    parser.add_argument("clip")
    parser.add_argument("--pace", type=float, default=4)
    parser.add_argument("--cut", type=int)
    given = parser.parse_args()
    clip = pictures(given.clip)
    with socket.create_server(("127.0.0.1", given.port)) as server:
        clients = []
        while not given.cut or len(clients) < 2:
            connection, _ = server.accept()
            if not connection.recv(1, socket.MSG_PEEK):
                continue  # only looked whether the port is open
            most = None if clients else given.cut
            clients.append(threading.Thread(target=quietly, args=(connection, clip, given.pace, most), daemon=True))
            clients[-1].start()
    for client in clients:
        client.join()


main()
