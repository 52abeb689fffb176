"""Files are continued where they were cut, and nothing is used whose hash does not fit."""

from __future__ import annotations

import hashlib
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpustate.bundle import fetch
from gpustate.errors import ConnectionFailed, UsageError

DATA = bytes(range(256)) * 4000
SHA = hashlib.sha256(DATA).hexdigest()


class Server(http.server.ThreadingHTTPServer):
    """Sends DATA as it is told: by request, how many bytes before it hangs up."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.cuts: list[int] = []
        self.ranges = True
        self.data = DATA
        self.status = 200
        self.asked: list[str | None] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/file.deb"


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        site = self.server
        assert isinstance(site, Server)
        wanted = self.headers.get("Range")
        site.asked.append(wanted)
        if site.status != 200:
            self.send_error(site.status)
            return
        start = 0
        if wanted and site.ranges:
            start = int(wanted.removeprefix("bytes=").rstrip("-"))
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(site.data) - start))
        self.end_headers()
        cut = site.cuts.pop(0) if site.cuts else len(site.data)
        self.wfile.write(site.data[start : start + cut])

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(fetch.time, "sleep", lambda _: None)
    monkeypatch.setenv("no_proxy", "*")
    with Server() as made:
        thread = threading.Thread(target=made.serve_forever, args=(0.01,))
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def test_a_download_that_was_cut_is_continued_where_it_ended(
    server: Server, tmp_path: Path
) -> None:
    server.cuts = [100_000, 200_000]
    path = fetch.fetch_file(server.url, SHA, len(DATA), tmp_path)
    assert path.read_bytes() == DATA
    assert server.asked == [None, "bytes=100000-", "bytes=300000-"]
    assert fetch.fetch_file(server.url, SHA, len(DATA), tmp_path) == path
    assert len(server.asked) == 3, "what is there is not fetched again"


def test_one_that_was_cut_for_good_goes_on_the_next_time(server: Server, tmp_path: Path) -> None:
    server.cuts = [1000] * 5
    with pytest.raises(ConnectionFailed, match="it resumes the download"):
        fetch.fetch_file(server.url, SHA, len(DATA), tmp_path)
    assert fetch.fetch_file(server.url, SHA, len(DATA), tmp_path).read_bytes() == DATA
    assert server.asked[-1] == "bytes=5000-"


def test_a_server_that_sends_all_of_it_again_is_understood(server: Server, tmp_path: Path) -> None:
    server.cuts, server.ranges = [100_000], False
    assert fetch.fetch_file(server.url, SHA, len(DATA), tmp_path).read_bytes() == DATA


@pytest.mark.parametrize("left", [b"x" * 100_000, b"x" * (len(DATA) + 1), b"x" * len(DATA)])
def test_what_is_left_of_another_file_is_fetched_anew(
    server: Server, tmp_path: Path, left: bytes
) -> None:
    (tmp_path / f"{SHA}.part").write_bytes(left)
    assert fetch.fetch_file(server.url, SHA, len(DATA), tmp_path).read_bytes() == DATA


def test_another_content_is_never_used(server: Server, tmp_path: Path) -> None:
    server.data = DATA[:-1] + b"x"
    with pytest.raises(ConnectionFailed, match="its hash does not match the signed index"):
        fetch.fetch_file(server.url, SHA, len(DATA), tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert len(server.asked) == 2


@pytest.mark.parametrize(
    ("status", "said"), [(404, "no such file"), (403, "refused"), (500, "500")]
)
def test_what_the_server_says_is_told(
    server: Server, tmp_path: Path, status: int, said: str
) -> None:
    server.status = status
    with pytest.raises(ConnectionFailed, match=said) as caught:
        fetch.fetch_file(server.url, SHA, len(DATA), tmp_path)
    assert server.url in str(caught.value)


def test_a_small_file_that_is_not_there_is_none(server: Server) -> None:
    server.status = 404
    assert fetch.fetch_text(server.url) is None


def test_a_server_that_is_not_there_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch.time, "sleep", lambda _: None)
    monkeypatch.setenv("no_proxy", "*")
    with pytest.raises(ConnectionFailed, match=r"download failed .*check URL and proxy"):
        fetch.fetch_text("http://127.0.0.1:9/InRelease")


def test_files_of_this_machine_are_read_and_other_schemes_are_not(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(DATA)
    cache = tmp_path / "cache"
    cache.mkdir()
    assert fetch.fetch_file((tmp_path / "f").as_uri(), SHA, len(DATA), cache).read_bytes() == DATA
    assert fetch.fetch_text((tmp_path / "none").as_uri()) is None
    for url in ("ftp://example.invalid/f", "data:,x", "/etc/passwd", "cdrom:[x]/"):
        with pytest.raises(UsageError, match="unsupported URL scheme"):
            fetch.fetch_text(url)


def test_a_full_disk_is_one_line_and_keeps_what_is_there(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / f"{SHA}.part").write_bytes(DATA[:1000])

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(fetch, "_continue", full)
    with pytest.raises(UsageError, match=r"No space left on device.*; free disk space.*--cache"):
        fetch.fetch_file(server.url, SHA, len(DATA), tmp_path)
    assert (tmp_path / f"{SHA}.part").stat().st_size == 1000
