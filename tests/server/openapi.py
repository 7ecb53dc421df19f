"""schemathesis against the OpenAPI document that `kinora serve` serves: whatever it sends, no crash
and no answer that the document does not know.

    openapi.py PROGRAM SOURCE_DIR
"""
import json
import pathlib
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request

from serving import Serving, patience

program = sys.argv[1]


def check_methods(serving):
    """The server says the same methods of every path as the document does."""
    with urllib.request.urlopen(serving.url + "/openapi.json") as response:
        paths = json.loads(response.read())["paths"]
    for path, operations in paths.items():
        request = urllib.request.Request(serving.url + path.replace("{id}", "x"), method="PATCH")
        try:
            urllib.request.urlopen(request)
            sys.exit(f"{path} takes PATCH")
        except urllib.error.HTTPError as error:
            allowed = {method.strip().lower() for method in error.headers.get("Allow", "").split(",")}
            if error.code != 405 or allowed != set(operations) - {"parameters"}:
                sys.exit(f"{path}: {error.code}, {allowed} and not {set(operations)}")


with tempfile.TemporaryDirectory() as data:
    with Serving(program, "-m", "kinora-tiny", "--data", data, "--max-tokens", "16") as serving:
        check_methods(serving)
        result = subprocess.run(
            [pathlib.Path(sys.executable).parent / "schemathesis", "run", serving.url + "/openapi.json",
             "--checks", "not_a_server_error,status_code_conformance,content_type_conformance,"
             "response_schema_conformance", "--max-examples", "25", "--seed", "1", "--request-timeout", str(patience(60))],
            check=False, cwd=data)
        if result.returncode != 0:
            sys.exit(result.returncode)
        code = serving.stop()
        if code != 0:
            sys.exit(f"the server ended with {code}: {serving.logged()[-2000:]}")
