"""Streams as clients feed them: JPEG frames over a WebSocket, and an MPEG transport stream, both made by
ffmpeg, and a camera that speaks RTSP; asked about with OpenAI's client while they run.

    streams.py PROGRAM SOURCE_DIR
"""
import json
import pathlib
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import openai
import websocket

from serving import Serving, patience

program, source = sys.argv[1], pathlib.Path(sys.argv[2])
clip = source / "models" / "demo.mp4"


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Streams(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.data = tempfile.TemporaryDirectory()
        cls.camera_port = free_port()
        cls.camera = f"rtsp://127.0.0.1:{cls.camera_port}/clip"
        cls.serving = Serving(program, "-m", "kinora-tiny", "--data", cls.data.name, "--media-root",
                              str(source / "models"), "--stream-from", cls.camera,
                              environment={"KINORA_API_KEY": "secret"})
        cls.client = openai.OpenAI(base_url=cls.serving.url + "/v1", api_key="secret", max_retries=0)

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        code = cls.serving.stop()
        cls.data.cleanup()
        assert code == 0, cls.serving.logged()

    def start(self, **body):
        return self.client.post("/streams", body=body, cast_to=object)

    def status(self, stream):
        return self.client.get("/streams/" + stream["id"], cast_to=object)

    def wait(self, stream, what):
        end = time.monotonic() + patience(120)
        while not what(self.status(stream)):
            self.assertLess(time.monotonic(), end, self.status(stream))
            time.sleep(0.1)
        return self.status(stream)

    def open(self, stream):
        url = f"ws://127.0.0.1:{self.serving.port}/v1/streams/{stream['id']}/frames"
        return websocket.create_connection(url, header={"Authorization": "Bearer secret"}, timeout=patience(60))

    def ask(self, stream, text):
        answer = self.client.chat.completions.create(model="kinora-tiny", max_tokens=8, temperature=0, messages=[
            {"role": "user", "content": [{"type": "video_url", "uuid": stream["id"]}, {"type": "text", "text": text}]}])
        self.assertTrue(answer.choices[0].message.content)
        return answer.usage.prompt_tokens_details

    def test_jpeg_frames(self):
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run(["ffmpeg", "-nostdin", "-v", "error", "-i", str(clip), "-vf", "fps=4", "-frames:v", "60",
                            f"{folder}/%03d.jpg"], check=True)
            frames = [path.read_bytes() for path in sorted(pathlib.Path(folder).iterdir())]
        stream = self.start(name="camera", mm_processor_kwargs={"fps": 2})
        self.assertEqual((stream["kind"], stream["state"]), ("push", "waiting"))
        socket = self.open(stream)
        for number, frame in enumerate(frames):
            socket.send(json.dumps({"time": number / 4}))
            socket.send_binary(frame)
            if number == 40:
                self.wait(stream, lambda now: now["frames"] > 0)
                early = self.ask(stream, "What is there?").visual_tokens
        socket.close()
        ended = self.wait(stream, lambda now: now["state"] == "ended")
        self.assertAlmostEqual(ended["until"], (len(frames) - 1) / 4, delta=0.6)
        late = self.ask(stream, "And in the end?")
        self.assertGreater(late.visual_tokens, early)
        memory = self.client.post("/memories", body={"stream": stream["id"]}, cast_to=object)
        self.assertGreaterEqual(self.ask(memory, "What was there?").cached_tokens, late.visual_tokens)
        self.client.delete("/streams/" + stream["id"], cast_to=object)
        with self.assertRaises(openai.NotFoundError):
            self.status(stream)

    def test_transport_stream(self):
        stream = self.start(mm_processor_kwargs={"fps": 2})
        socket = self.open(stream)
        with subprocess.Popen(["ffmpeg", "-nostdin", "-v", "error", "-i", str(clip), "-t", "8", "-c:v", "mpeg2video",
                               "-f", "mpegts", "-"], stdout=subprocess.PIPE) as ffmpeg:
            while piece := ffmpeg.stdout.read(60000):
                socket.send_binary(piece)
        socket.close()
        self.assertGreater(self.wait(stream, lambda now: now["state"] == "ended")["frames"], 8)
        self.ask(stream, "What is there?")

    def show_camera(self, *flags):
        """Runs until it is killed, and at the end of the test at the latest."""
        film = pathlib.Path(self.data.name) / "camera.mp4"
        subprocess.run(["ffmpeg", "-nostdin", "-v", "error", "-y", "-f", "lavfi", "-i",
                        "testsrc2=size=64x48:rate=8:duration=10", "-pix_fmt", "yuv420p", "-c:v", "libx264", "-bf", "0",
                        str(film)], check=True)
        showing = subprocess.Popen([sys.executable, str(source / "tests/support/plain_rtsp_server.py"),
                                    str(self.camera_port), str(film), *flags])

        def end():
            showing.kill()
            showing.wait()

        self.addCleanup(end)
        listening = time.monotonic() + patience(60)
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.camera_port)).close()
                return showing
            except ConnectionRefusedError:
                self.assertLess(time.monotonic(), listening, "the camera does not come up")
                time.sleep(0.1)

    def test_a_camera_whose_connection_breaks(self):
        self.show_camera("--cut", "32")
        stream = self.start(url=self.camera, mm_processor_kwargs={"fps": 2})
        self.assertEqual(stream["kind"], "address")
        self.wait(stream, lambda now: now["frames"] >= 4)
        early = self.ask(stream, "What is there?").visual_tokens
        self.assertGreater(early, 0)
        # Cut off after four seconds of the film, it is found again and goes on.
        self.wait(stream, lambda now: now["until"] > 8)
        self.assertGreater(self.ask(stream, "What is there now?").visual_tokens, early)
        self.client.delete("/streams/" + stream["id"], cast_to=object)

    def test_addresses_that_were_not_named(self):
        for other in (self.camera + "2", "rtsp://127.0.0.1:9/clip", "tcp://127.0.0.1:9"):
            with self.assertRaises(openai.PermissionDeniedError) as error:
                self.start(url=other)
            self.assertEqual(error.exception.code, "media_not_allowed")

    def test_a_file_played_now_and_two_who_ask(self):
        stream = self.start(url=f"file://{clip}", speed=20)
        self.wait(stream, lambda now: now["frames"] >= 1)  # before that there is nothing to ask about
        said, threads = [], []
        for number in range(4):
            threads.append(threading.Thread(target=lambda n=number: said.append(self.ask(stream, f"Question {n}?"))))
            threads[-1].start()
        for thread in threads:
            thread.join()
        self.assertEqual(len(said), 4)
        self.wait(stream, lambda now: now["state"] == "ended")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
