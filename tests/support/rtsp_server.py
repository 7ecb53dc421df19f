"""Serves one H.264 clip as rtsp://127.0.0.1:PORT/clip until it is killed: rtsp_server.py PORT CLIP.mp4

Needs GStreamer's RTSP server with its Python bindings; prints "ready" once it listens.
"""

import sys

import gi

gi.require_version("Gst", "1.0")
gi.require_version("GstRtspServer", "1.0")
from gi.repository import GLib, Gst, GstRtspServer  # noqa: E402

port, clip = sys.argv[1:]
Gst.init(None)
for part in ("qtdemux", "h264parse", "rtph264pay"):
    if Gst.ElementFactory.find(part) is None:
        sys.exit(f"GStreamer has no {part}")
server = GstRtspServer.RTSPServer()
server.set_address("127.0.0.1")
server.set_service(port)
factory = GstRtspServer.RTSPMediaFactory()
factory.set_launch(f'( filesrc location="{clip}" ! qtdemux ! h264parse config-interval=-1 ! rtph264pay name=pay0 pt=96 )')
server.get_mount_points().add_factory("/clip", factory)
server.attach(None)
print("ready", flush=True)
GLib.MainLoop().run()
