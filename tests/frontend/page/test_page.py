"""The page at / and its files: their headers, their caching, and the package that contains them."""

from __future__ import annotations

import gzip
import re
import tomllib
from collections.abc import AsyncIterator
from html.parser import HTMLParser
from pathlib import Path

import arbora
import pytest
import pytest_asyncio
from arbora.frontend.page.assets import FOLDER, read_assets
from http_world import HttpWorld, http_world

pytestmark = pytest.mark.asyncio(loop_scope="module")
ROOT = Path(arbora.__file__).parent
BROWSER = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
VERSION = read_assets().version


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world() -> AsyncIterator[HttpWorld]:
    async with http_world(api_keys=("secret",)) as world:
        yield world


async def test_a_browser_gets_the_page_without_a_key(world: HttpWorld) -> None:
    answer = await world.http.get("/", headers=BROWSER)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert "<title>Arbora</title>" in answer.text


async def test_other_clients_learn_without_a_key_that_the_server_runs(world: HttpWorld) -> None:
    answer = await world.http.get("/", headers={"accept": "*/*"})
    assert (answer.status_code, answer.text) == (200, "Arbora is running")


async def test_the_page_names_no_model_and_its_data_need_a_key(world: HttpWorld) -> None:
    assert "tiny" not in (await world.http.get("/", headers=BROWSER)).text
    for path in ("/v1/models", "/cache", "/cache/tree"):
        assert (await world.http.get(path, headers=BROWSER)).status_code == 401


async def test_the_page_is_asked_for_each_time_and_sent_only_if_it_has_changed(world: HttpWorld) -> None:
    first = await world.http.get("/", headers=BROWSER)
    assert first.headers["cache-control"] == "no-cache"
    again = await world.http.get("/", headers={**BROWSER, "if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize("name", sorted(read_assets().files))
async def test_a_file_is_kept_for_ever_under_its_version(world: HttpWorld, name: str) -> None:
    answer = await world.http.get(f"/page/{VERSION}/{name}")
    assert answer.status_code == 200
    assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
    assert answer.headers["content-encoding"] == "gzip"
    plain = await world.http.get(f"/page/{VERSION}/{name}", headers={"accept-encoding": "identity"})
    assert "content-encoding" not in plain.headers
    packed = FOLDER / f"{name}.gz"
    content = gzip.decompress(packed.read_bytes()) if packed.exists() else (FOLDER / name).read_bytes()
    assert plain.content == answer.content == content


@pytest.mark.parametrize("path", ["0000/main.js", f"{VERSION}/nothing.js", f"{VERSION}/../endpoint.py"])
async def test_another_version_or_file_is_not_found(path: str) -> None:
    async with http_world() as world:
        assert (await world.http.get(f"/page/{path}")).status_code == 404


@pytest.mark.parametrize("path", ["/", f"/page/{VERSION}/main.js"])
async def test_scripts_styles_and_requests_stay_on_the_server(world: HttpWorld, path: str) -> None:
    headers = (await world.http.get(path, headers=BROWSER)).headers
    policy = dict(each.strip().split(" ", 1) for each in headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert {policy[name] for name in ("script-src", "style-src", "connect-src", "img-src")} == {"'self'"}
    assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
    assert policy["require-trusted-types-for"] == "'script'"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"


async def test_a_foreign_host_does_not_get_the_page() -> None:
    async with http_world() as world:
        answer = await world.http.get("/", headers={**BROWSER, "host": "evil.example"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "host_not_allowed")


class Page(HTMLParser):
    """Collects the elements of the page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))


async def test_the_page_has_no_script_or_style_of_its_own_and_loads_only_served_files() -> None:
    assets = read_assets()
    loaded = []
    for tag, attributes in Page(assets.page.body.decode()).elements:
        assert tag != "style" and "style" not in attributes
        assert not [name for name in attributes if name.startswith("on")]
        if tag == "script":
            assert attributes.get("src")
        if tag in ("script", "link"):
            loaded.append(attributes.get("src") or attributes["href"] or "")
    assert loaded and all(path.startswith(f"page/{VERSION}/") for path in loaded)
    assert {path.split("/", 2)[2] for path in loaded} <= assets.files.keys()


async def test_requests_are_relative_so_that_a_proxy_may_serve_the_page_under_a_path() -> None:
    for path in FOLDER.glob("*.js"):
        requested = re.findall(
            r"\b(?:send|stream|getJson|getText|postJson)\([\"`]([^\"`]*)", path.read_text()
        )
        assert not [each for each in requested if each.startswith("/")], path.name


async def test_each_module_uses_the_names_that_it_imports() -> None:
    for path in FOLDER.glob("*.js"):
        source = path.read_text()
        for names in re.findall(r'^import \{([^}]*)\} from "\./', source, re.MULTILINE):
            unused = [
                name for name in re.findall(r"\w+", names) if len(re.findall(rf"\b{name}\b", source)) < 2
            ]
            assert not unused, f"{path.name} imports {unused} without use"


async def test_each_module_imports_only_names_that_another_exports() -> None:
    sources = {path.name: path.read_text() for path in FOLDER.glob("*.js")}
    for name, source in sources.items():
        for names, module in re.findall(r'^import \{([^}]*)\} from "\./([^"]*)";', source, re.MULTILINE):
            if module.startswith("vendor/"):
                assert (FOLDER / module).exists() or (FOLDER / f"{module}.gz").exists()
                continue
            exported = set(
                re.findall(
                    r"^export (?:async )?(?:function\*?|class|const) (\w+)", sources[module], re.MULTILINE
                )
            )
            wanted = {each.strip() for each in names.split(",") if each.strip()}
            assert wanted <= exported, f"{name} imports {wanted - exported} from {module}"
        assert "innerHTML" not in source and "eval(" not in source


async def test_every_label_of_the_page_belongs_to_a_field() -> None:
    elements = Page(read_assets().page.body.decode()).elements
    ids = {attributes.get("id") for _, attributes in elements}
    labels = [attributes["for"] for tag, attributes in elements if tag == "label"]
    assert labels and set(labels) <= ids
    fields = {attributes["id"] for tag, attributes in elements if tag in ("input", "select", "textarea")}
    assert fields <= set(labels)


async def test_the_package_contains_each_file_of_the_page() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        patterns = tomllib.load(file)["tool"]["setuptools"]["package-data"]["arbora.frontend.page"]
    package = FOLDER.parent
    packed = {path for pattern in patterns for path in package.glob(pattern) if path.is_file()}
    assert packed == {path for path in FOLDER.rglob("*") if path.is_file()}
    for library in ("marked", "pdf", "uplot"):
        assert FOLDER / "vendor" / f"{library}.LICENSE.txt" in packed


async def test_the_modules_are_small() -> None:
    lines = {path.name: len(path.read_text().splitlines()) for path in FOLDER.glob("*.js")}
    assert lines and max(lines.values()) < 400
