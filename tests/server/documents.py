"""Runs what the documents tell people to run: every command of docs/server-curl.md, the Python of docs/server.md and
examples/ask_server.py.

    documents.py PROGRAM SOURCE_DIR

Exits with 77 (skipped) where there is no curl.
"""
import base64
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
import unittest
import urllib.error
import urllib.request

if not shutil.which("curl"):
    print("skipped: curl is not installed")
    sys.exit(77)

import openai
import websocket

from serving import Serving, patience

program, source = sys.argv[1], pathlib.Path(sys.argv[2])


def blocks(document):
    """The indented blocks of a document of Markdown, dedented."""
    found, block = [], []
    for line in [*(source / "docs" / document).read_text().splitlines(), ""]:
        if line.startswith("    ") or (block and not line.strip()):
            block.append(line)
        elif block:
            found.append(textwrap.dedent("\n".join(block)).strip())
            block = []
    return found + ([textwrap.dedent("\n".join(block)).strip()] if block else [])


def commands():
    """Each with the lines that belong to it."""
    found = []
    for block in blocks("server-curl.md"):
        for line in block.splitlines():
            if line.startswith("curl "):
                found.append(line)
            elif found and "curl " in block:
                found[-1] += "\n" + line
    return found


class Documents(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.videos = pathlib.Path(cls.folder.name) / "videos"
        cls.videos.mkdir()
        for name in ("talk.mp4", "clip.mp4"):
            shutil.copy(source / "models" / "demo.mp4", cls.videos / name)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        film = pathlib.Path(cls.folder.name) / "camera.mp4"
        subprocess.run(["ffmpeg", "-nostdin", "-v", "error", "-f", "lavfi", "-i",
                        "testsrc2=size=64x48:rate=8:duration=60", "-pix_fmt", "yuv420p", "-c:v", "libx264", "-bf", "0",
                        str(film)], check=True)
        cls.camera = subprocess.Popen([sys.executable, str(source / "tests/support/plain_rtsp_server.py"), str(port),
                                       str(film)])
        cls.address = f"rtsp://127.0.0.1:{port}/clip"
        cls.serving = Serving(program, "-m", "kinora-tiny", "--data", cls.folder.name + "/data", "--media-root",
                              str(cls.videos), "--stream-from", cls.address)

    @classmethod
    def tearDownClass(cls):
        cls.camera.kill()
        cls.camera.wait()
        code = cls.serving.stop()
        cls.folder.cleanup()
        assert code == 0, cls.serving.logged()

    def call(self, path, body=None, kind="application/json"):
        data = json.dumps(body).encode() if isinstance(body, dict) else body
        request = urllib.request.Request(self.serving.url + path, data, {"Content-Type": kind} if data else {})
        with urllib.request.urlopen(request, timeout=patience(120)) as response:
            return response.read()

    def video(self):
        return json.loads(self.call("/v1/videos?name=talk.mp4", (self.videos / "talk.mp4").read_bytes(), "video/mp4"))["id"]

    def stream(self):
        for one in json.loads(self.call("/v1/streams"))["data"]:
            if one["kind"] == "file":
                return one["id"]
        name = json.loads(self.call("/v1/streams", {"url": f"file://{self.videos}/talk.mp4"}))["id"]
        end = time.monotonic() + patience(120)
        while not json.loads(self.call(f"/v1/streams/{name}"))["frames"]:
            self.assertLess(time.monotonic(), end, "nothing is seen of the stream")
            time.sleep(0.1)
        return name

    def memory(self):
        for one in json.loads(self.call("/v1/memories"))["data"]:
            return one["id"]
        look = {"mm_processor_kwargs": {"num_frames": 8}}
        return json.loads(self.call("/v1/memories", {"video": self.video(), **look}))["id"]

    def test_curl(self):
        (self.videos / "talk.kinora").write_bytes(self.call(f"/v1/memories/{self.memory()}/content"))
        listed = commands()
        self.assertGreater(len(listed), 20)
        setting = blocks("server-curl.md")[0].replace("http://127.0.0.1:8080", self.serving.url)
        self.assertIn(self.serving.url, setting)
        # Quiet, and what the server refuses is a failure.
        setting += '\nset -eu\ncurl() { command curl -sS --fail-with-body "$@"; }\n'
        for command in listed:
            shown = command
            for sign, make in (("video-…", self.video), ("stream-…", self.stream), ("memory-…", self.memory)):
                if sign in command:
                    command = command.replace(sign, make())
            command = command.replace("/home/me/videos", str(self.videos)).replace("rtsp://camera/1", self.address)
            self.assertNotIn("…", command)
            done = subprocess.run(["bash", "-c", setting + command], cwd=self.videos, capture_output=True, check=False,
                                  timeout=patience(300))
            self.assertEqual(done.returncode, 0, f"{shown}\n{done.stdout.decode(errors='replace')}{done.stderr.decode()}")
            self.assertNotRegex(done.stdout, rb'(?m)^(data: )?\{"error":', shown)
            self.assertTrue(done.stdout or "-o " in command, shown)
        for name in ("frame.png", "now.png"):
            self.assertTrue((self.videos / name).read_bytes().startswith(b"\x89PNG"), name)
        self.assertTrue((self.videos / "talk.kinora").stat().st_size)

    def test_frames_over_a_web_socket(self):
        code = next(block for block in blocks("server-curl.md") if block.startswith("socket = "))
        name = json.loads(self.call("/v1/streams", {"name": "camera"}))["id"]
        subprocess.run(["ffmpeg", "-nostdin", "-v", "error", "-i", "clip.mp4", "-vf", "fps=2", "-frames:v", "8",
                        "%03d.jpg"], check=True, cwd=self.videos)
        frames = [(number / 2, path.read_bytes()) for number, path in enumerate(sorted(self.videos.glob("*.jpg")))]
        code = code.replace("127.0.0.1:8080", f"127.0.0.1:{self.serving.port}").replace("stream-…", name)
        exec(code, {"websocket": websocket, "json": json, "frames": frames})
        end = time.monotonic() + patience(120)
        while (now := json.loads(self.call(f"/v1/streams/{name}")))["state"] != "ended":
            self.assertLess(time.monotonic(), end, now)
            time.sleep(0.1)
        self.assertEqual(now["until"], 3.5)

    def test_python(self):
        code = next(block for block in blocks("server.md") if block.startswith("client = openai"))
        names = {"openai": openai, "base64": base64}
        before = os.getcwd()
        os.chdir(self.videos)
        try:
            exec(code.replace("http://127.0.0.1:8080", self.serving.url), names)
        finally:
            os.chdir(before)
        text = "".join(chunk.choices[0].delta.content or "" for chunk in names["answer"] if chunk.choices)
        self.assertTrue(text)
        names["client"].close()

    def run_example(self, *arguments, **environment):
        return subprocess.run([sys.executable, str(source / "examples/ask_server.py"), *arguments], capture_output=True,
                              text=True, check=False, timeout=patience(300),
                              env={**os.environ, "KINORA_SERVER": self.serving.url, **environment})

    def test_example(self):
        done = self.run_example(str(self.videos / "talk.mp4"), "What happens?")
        self.assertEqual(done.returncode, 0, done.stderr)
        answer, *evidence = done.stdout.splitlines()
        self.assertTrue(answer)
        self.assertTrue(evidence)
        for line in evidence:
            self.assertRegex(line, r"^  \d+\.\d s to \d+\.\d s \(\d+ %\)$")
        self.assertIn("ask_server.py talk.mp4", self.run_example().stderr)
        # Whatever is wrong is said in one line.
        broken = self.videos / "broken.mp4"
        broken.write_text("this is not a video")
        for path, url, words in (("none.mp4", self.serving.url, "none.mp4"),
                                 (str(broken), self.serving.url, "not a video"),
                                 (str(self.videos / "talk.mp4"), "http://127.0.0.1:9", "http://127.0.0.1:9")):
            done = self.run_example(path, "What happens?", KINORA_SERVER=url)
            self.assertEqual(done.returncode, 1)
            self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
            self.assertIn(words, done.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
