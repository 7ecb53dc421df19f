"""Streams as clients feed them: JPEG frames over a WebSocket, and an MPEG transport stream, both made by
ffmpeg; asked about with OpenAI's client while they run.

    streams.py PROGRAM SOURCE_DIR
"""
import json
import pathlib
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


class Streams(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.data = tempfile.TemporaryDirectory()
        cls.serving = Serving(program, "-m", "kinora-tiny", "--data", cls.data.name, "--media-root",
                              str(source / "models"), environment={"KINORA_API_KEY": "secret"})
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

    def test_a_file_played_now_and_two_who_ask(self):
        stream = self.start(url=f"file://{clip}", speed=20)
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
