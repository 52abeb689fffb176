"""Download files by http, https and file, with resume; a file is used only if its hash matches.

Files of known hash are cached under that hash, so building a bundle again downloads nothing twice, and an
interrupted download resumes. Proxies come from the environment (``https_proxy``, ``no_proxy``).

Surprising: a server may ignore a range request and send the whole file; and a file may change between two
attempts, which only its hash shows. Then it is downloaded once more from the start.

Sources:
    RFC 9110 section 14 (ranges), RFC 9112 section 6.3 (a message that ends early is incomplete).
"""

from __future__ import annotations

import base64
import errno
import hashlib
import http.client
import os
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpustate.errors import ConnectionFailed, UsageError
from gpustate.solve import repodata

_CHUNK = 1 << 18
_TRIES = 5
_TIMEOUT_S = 60
_SCHEMES = ("http", "https", "file")
#: Accepted hash algorithms, by the number of hexadecimal digits.
SUMS = {digits: name for name, digits in repodata.SUMS.items()}
#: Larger than any real index.
_INDEX_LIMIT = 512 << 20

Say = Callable[[str], None]


#: Credentials of private repositories: host and port, path prefix, header.
_LOGINS: list[tuple[str, str, str]] = []


def log_in(url: str, user: str, password: str) -> None:
    """Use credentials for all URLs below an address, and for its host where no other credentials match."""
    parts = urllib.parse.urlsplit(url)
    word = base64.b64encode(f"{user}:{password}".encode()).decode("ascii")
    row = (parts.netloc, parts.path.rstrip("/") + "/", f"Basic {word}")
    if row not in _LOGINS:
        _LOGINS.insert(0, row)


def _login(url: str) -> str | None:
    parts = urllib.parse.urlsplit(url)
    same = [(path, header) for host, path, header in _LOGINS if host == parts.netloc]
    below = [header for path, header in same if parts.path.startswith(path)]
    return next(iter(below), next((header for _, header in same), None))


def _open(url: str, start: int) -> Any:
    if urllib.parse.urlsplit(url).scheme.lower() not in _SCHEMES:
        raise UsageError(f"{url}: unsupported URL scheme, expected http, https or file")
    request = urllib.request.Request(url, headers={"User-Agent": "gpustate"})
    login = _login(url)
    if login is not None:
        request.add_unredirected_header("Authorization", login)
    if start:
        request.add_header("Range", f"bytes={start}-")
    try:
        return urllib.request.urlopen(request, timeout=_TIMEOUT_S)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code in (404, 410):
            raise FileNotFoundError(errno.ENOENT, f"no such file ({error.code})") from None
        if error.code == 416:
            raise _Restart from None
        if error.code in (401, 403, 407):
            raise ConnectionFailed(
                f"{url}: refused ({error.code} {error.reason})",
                fix="check URL and proxy, and the username and password of the repository's state",
            ) from None
        raise OSError(errno.EIO, f"{error.code} {error.reason}") from None
    except urllib.error.URLError as error:
        reason = error.reason
        if isinstance(reason, FileNotFoundError) or "No such file" in str(reason):
            raise FileNotFoundError(errno.ENOENT, "no such file") from None
        raise OSError(errno.EIO, str(reason)) from None
    except ValueError as error:
        raise UsageError(f"{url}: invalid URL ({error})") from None


class _Restart(Exception):
    """A partial download cannot be resumed."""


def fetch_text(url: str) -> bytes | None:
    """Download a small file of unknown hash, such as a signed index or a key; ``None`` where there is none.

    Raises:
        ConnectionFailed: the download failed.
    """
    last = ""
    for attempt in range(_TRIES):
        try:
            with _open(url, 0) as answer:
                data: bytes = answer.read(_INDEX_LIMIT + 1)
        except FileNotFoundError:
            return None
        except (OSError, http.client.HTTPException) as error:
            last = _words(error)
            time.sleep(min(2.0, 0.1 * 2**attempt))
            continue
        if len(data) > _INDEX_LIMIT:
            raise ConnectionFailed(f"{url}: is larger than {_INDEX_LIMIT >> 20} MiB")
        return data
    raise ConnectionFailed(f"{url}: download failed ({last})", fix="check URL and proxy")


def fetch_file(url: str, digest: str, size: int, cache: Path, say: Say = lambda _: None) -> Path:
    """Download a file of known hash and size into the cache.

    Args:
        url: http, https or file.
        digest: SHA-256, SHA-384 or SHA-512, in hexadecimal digits.
        size: in bytes.
        cache: folder.
        say: called with the URL of each download.

    Raises:
        ConnectionFailed: the download failed, or the content does not match its hash.
        UsageError: the disk is full or read-only.
    """
    target = cache / digest
    if _fits(target, digest, size):
        return target
    part = cache / f"{digest}.part"
    say(url)
    last = ""
    wrong = 0
    for attempt in range(_TRIES):
        try:
            _continue(url, part, size)
        except _Restart:
            part.unlink(missing_ok=True)
            continue
        except FileNotFoundError as error:
            last, wrong = _words(error), 1
            break
        except (OSError, http.client.HTTPException) as error:
            _check_room(error, cache)
            last = _words(error)
            time.sleep(min(2.0, 0.1 * 2**attempt))
            continue
        have = part.stat().st_size
        if have < size:
            last = f"connection closed after {have} of {size} bytes"
            continue
        if _fits(part, digest, size):
            os.replace(part, target)
            return target
        part.unlink()
        wrong += 1
        last = "its hash does not match the signed index"
        if wrong == 2:
            break
    raise ConnectionFailed(
        f"{url}: {last}",
        fix="try again later; the repository may be in the middle of an update"
        if wrong
        else "run the command again: it resumes the download",
    )


def _continue(url: str, part: Path, size: int) -> None:
    start = part.stat().st_size if part.exists() else 0
    if start > size:
        raise _Restart
    if start == size:
        return
    with _open(url, start) as answer:
        continued = getattr(answer, "status", None) == 206
        if start and not continued:
            part.unlink()
            start = 0
        with open(part, "ab") as out:
            while start <= size:
                data = answer.read(_CHUNK)
                if not data:
                    return
                out.write(data)
                start += len(data)


def _fits(path: Path, digest: str, size: int) -> bool:
    try:
        if path.stat().st_size != size:
            return False
        with open(path, "rb") as file:
            return hashlib.file_digest(file, SUMS[len(digest)]).hexdigest() == digest
    except FileNotFoundError:
        return False


def _check_room(error: Exception, folder: Path) -> None:
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
        raise UsageError(
            f"cannot write ({error.strerror})",
            place=str(folder),
            fix="free disk space, or set another folder with --cache; finished downloads are kept",
        ) from error


def _words(error: Exception) -> str:
    if isinstance(error, http.client.IncompleteRead):
        return "connection closed"
    return str(getattr(error, "strerror", "") or error or type(error).__name__)
