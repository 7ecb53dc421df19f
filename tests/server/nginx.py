"""`kinora serve` behind nginx with packaging/nginx.conf: TLS, the page, an answer that streams, an upload, and
frames over a WebSocket.

    nginx.py PROGRAM SOURCE_DIR

Exits with 77 (skipped) where there is no nginx or openssl.
"""
import base64
import json
import os
import pathlib
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

program, source = sys.argv[1], pathlib.Path(sys.argv[2])
nginx = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
if not nginx or not shutil.which("openssl"):
    print("skipped: nginx and openssl are not installed")
    sys.exit(77)

import websocket

from serving import Serving, patience

name = "video.example.org"


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


with tempfile.TemporaryDirectory() as folder, \
        Serving(program, "-m", "kinora-tiny", "--data", folder + "/data", "--name", name) as serving:
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}",
                    "-addext", f"subjectAltName=DNS:{name}", "-keyout", f"{folder}/key.pem", "-out",
                    f"{folder}/cert.pem"], check=True, capture_output=True)
    port = free_port()
    # The file as it is shipped, but for the port, the certificate and where kinora listens.
    site = (source / "packaging" / "nginx.conf").read_text()
    for shipped, here in (("listen [::]:443 ssl http2;", ""), ("listen 443", f"listen 127.0.0.1:{port}"),
                          (f"/etc/ssl/certs/{name}.pem", f"{folder}/cert.pem"),
                          (f"/etc/ssl/private/{name}.key", f"{folder}/key.pem"),
                          ("127.0.0.1:8080", f"127.0.0.1:{serving.port}")):
        assert shipped in site, shipped
        site = site.replace(shipped, here)
    user = "user root;" if os.getuid() == 0 else ""
    pathlib.Path(folder, "nginx.conf").write_text(
        f"{user} daemon off; pid {folder}/pid; error_log {folder}/errors; events {{}} "
        f"http {{ access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; "
        f"fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s; {site} }}")
    proxy = subprocess.Popen([nginx, "-c", f"{folder}/nginx.conf", "-e", f"{folder}/errors"])
    trust = ssl.create_default_context(cafile=f"{folder}/cert.pem")

    def connect():
        plain = socket.create_connection(("127.0.0.1", port), timeout=patience(60))
        return trust.wrap_socket(plain, server_hostname=name)

    def call(method, path, body=b"", kind="application/json"):
        """Status, head and the pieces of the body as they came."""
        with connect() as link:
            link.sendall(f"{method} {path} HTTP/1.1\r\nHost: {name}:{port}\r\nConnection: close\r\nContent-Type: {kind}\r\n"
                         f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
            pieces = []
            while piece := link.recv(65536):
                pieces.append(piece)
        head, _, rest = b"".join(pieces).partition(b"\r\n\r\n")
        return int(head.split()[1]), rest, len(pieces)

    try:
        for _ in range(100):
            try:
                connect().close()
                break
            except OSError:
                time.sleep(0.1)
        status, page, _ = call("GET", "/")
        assert status == 200 and b"<title>kinora</title>" in page, page[:200]
        clip = (source / "models" / "demo.mp4").read_bytes()
        status, answer, _ = call("POST", "/v1/videos?name=demo.mp4", clip, "video/mp4")
        assert status == 201, answer
        video = json.loads(answer[answer.index(b"{"):answer.rindex(b"}") + 1])["id"]
        question = {"stream": True, "max_tokens": 24, "messages": [{"role": "user", "content": [
            {"type": "video_url", "uuid": video}, {"type": "text", "text": "What happens?"}]}]}
        status, answer, pieces = call("POST", "/v1/chat/completions", json.dumps(question).encode())
        assert status == 200 and b"data: [DONE]" in answer, answer[-300:]
        assert pieces > 3, f"the answer came in {pieces} pieces: nginx holds it back"

        status, answer, _ = call("POST", "/v1/streams", b"{}")
        stream = json.loads(answer[answer.index(b"{"):answer.rindex(b"}") + 1])["id"]
        frames = websocket.create_connection(f"wss://{name}:{port}/v1/streams/{stream}/frames", socket=connect(),
                                             host=f"{name}:{port}", origin=f"https://{name}:{port}",
                                             timeout=patience(60))
        picture = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg==")
        frames.send_binary(picture)
        frames.close()
        # A name that kinora was not told of is refused, through nginx as well.
        with connect() as link:
            link.sendall(b"GET / HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n")
            assert b" 403 " in link.recv(65536)
    finally:
        proxy.terminate()
        proxy.wait()
        errors = pathlib.Path(folder, "errors")
        if errors.exists():
            print(errors.read_text())
    assert serving.stop() == 0, serving.logged()
print("ok")
