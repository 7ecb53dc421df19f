"""schemathesis against the OpenAPI document that `kinora serve` serves: whatever it sends, no crash
and no answer that the document does not know.

    openapi.py PROGRAM SOURCE_DIR
"""
import pathlib
import subprocess
import sys
import tempfile

from serving import Serving

program = sys.argv[1]
with tempfile.TemporaryDirectory() as data:
    with Serving(program, "-m", "kinora-tiny", "--data", data, "--max-tokens", "16") as serving:
        result = subprocess.run(
            [pathlib.Path(sys.executable).parent / "schemathesis", "run", serving.url + "/openapi.json",
             "--checks", "not_a_server_error,status_code_conformance,content_type_conformance,"
             "response_schema_conformance", "--max-examples", "25", "--seed", "1", "--request-timeout", "60"],
            check=False)
        if result.returncode != 0:
            sys.exit(result.returncode)
        code = serving.stop()
        if code != 0:
            sys.exit(f"the server ended with {code}: {serving.logged()[-2000:]}")
