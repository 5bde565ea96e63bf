"""The API against its description: what schemathesis makes of it, and what it finds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.builders import sweep
from tests.serve.conftest import serving

CONFIG = """\
[checks]
missing_required_header.enabled = false  # it wants 401; 403 is what is promised without a token

[[operations]]
include-operation-id = "logs"
checks.positive_data_acceptance.enabled = false  # no schema says which expressions take long
"""


def test_schemathesis_finds_nothing(tmp_path: Path) -> None:
    root = tmp_path / "root"
    sweep(root / "digits-7f3a")
    sweep(root / "other-0001", ended=False)
    config = tmp_path / "schemathesis.toml"
    config.write_text(CONFIG)
    with serving(root, "--port", "0") as served:
        address = f"http://localhost:{served.told['port']}/api/v1/openapi.json"
        program = [
            str(Path(sys.executable).with_name("schemathesis")),
            "--config-file",
            str(config),
        ]
        flags = ["--generation-deterministic", "--max-examples", "10", "--no-color"]
        token = ["--header", f"Authorization: Bearer {served.told['token']}"]
        ran = subprocess.run(
            [*program, "run", address, *flags, *token],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "Tested: 11" in ran.stdout
