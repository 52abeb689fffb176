"""Input that nobody meant: payloads, and right input bent a little, as Hypothesis strategies.

Near-right input finds more than noise: every strategy begins with something that is accepted and
changes a few places. Payloads are what would do harm if a shell, a terminal or a template engine got
hold of it; each has the word ``canary`` in it, so that scripts it came into can be told.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from hypothesis import strategies as st

from gpustate.core.queries import Answer, Query

ROOT = Path(__file__).parents[2]
SEEDS = ROOT / "tests/data/fuzz/answers.json"

#: What runs something, if a shell reads it as its own text.
SHELL = (
    "$(touch /tmp/canary/1)",
    "`touch /tmp/canary/2`",
    ";touch /tmp/canary/3;",
    "'; touch /tmp/canary/4; '",
    '"; touch /tmp/canary/5; "',
    "\ntouch /tmp/canary/6\n",
    "|touch /tmp/canary/7",
    "&&touch${IFS}/tmp/canary/8&&",
    "$(touch${IFS}/tmp/canary/9)",
    "'$(touch${IFS}/tmp/canary/10)'",
    "\\'; touch /tmp/canary/11 #",
    "END\ntouch /tmp/canary/12\n",
    "x) touch /tmp/canary/13 ;; *",
    "/canary'`touch${IFS}/tmp/canary/14`'",
)
#: What a program takes for an option of its own.
OPTIONS = ("-oCanary::Canary=1", "--canary=1", "-o ProxyCommand=touch /tmp/canary/15", "-canary")
#: What a terminal, a template, or a careless parser acts on.
OTHERS = (
    "{{ canary }}",
    "{{ lookup('pipe', 'touch /tmp/canary/16') }}",
    "{% for canary in '' %}",
    "\x1b[2J\x1b]0;canary\x07",
    "\x9b31mcanary",
    "canary\u202etxt.exe",
    "canary\u2028x",
    "canary\rgone",
    "\x7fcanary\x08\x08",
    "\ud800canary",
    "canary\x00",
    "../../../tmp/canary/up",
    "%s%n%d{canary}",
    "@RUN@@TAKE@@NONCE@canary",
)
PAYLOADS = (*SHELL, *OPTIONS, *OTHERS)
#: What a number, a list or a line may be bent into.
ODD = (
    "", "0", "-1", "٣", "²", "1e400", "NaN", "Infinity", "0x10", "1_000", "9" * 30, "9" * 5000,
    "null", "~", "true", "[]", "{}", "[[[[", "é", "a" * 3000, "\t", " ", "=", "|", ":", "%", "/", ".", "-", "\n",
)  # fmt: skip

payloads = st.sampled_from(PAYLOADS)
words = st.one_of(payloads, st.sampled_from(ODD), st.text(max_size=8))
Bend = tuple[str, int, str]
#: What is done, where (taken modulo the size), and with which text.
bends: st.SearchStrategy[Bend] = st.tuples(
    st.sampled_from(
        (
            "value",
            "value",
            "value",
            "insert",
            "cut",
            "drop",
            "twice",
            "swap",
            "line",
            "byte",
            "end",
            "inside",
        )
    ),
    st.integers(0, 1_000_000),
    words,
)


def bent(text: bytes, changes: Sequence[Bend]) -> bytes:
    """Change some bytes as asked, one change after the other."""
    for kind, where, word in changes:
        text = _CHANGES[kind](text, where, word.encode("utf-8", "surrogatepass"))
    return text


def _value(text: bytes, where: int, word: bytes) -> bytes:
    """Put a word in the place of what stands between two separators."""
    lines = text.split(b"\n")
    at = where % len(lines)
    line = lines[at]
    cuts = [0, *(i + 1 for i, c in enumerate(line) if c in b"=|: ,\"'/"), len(line) + 1]
    pick = where // max(1, len(lines)) % (len(cuts) - 1)
    lines[at] = line[: cuts[pick]] + word + line[cuts[pick + 1] - 1 :]
    return b"\n".join(lines)


def _insert(text: bytes, where: int, word: bytes) -> bytes:
    at = where % (len(text) + 1)
    return text[:at] + word + text[at:]


def _inside(text: bytes, where: int, word: bytes) -> bytes:
    """Behind a letter or digit, so that what was valid before the place still is."""
    places = [i + 1 for i, c in enumerate(text) if chr(c).isalnum()] or [0]
    at = places[where % len(places)]
    return text[:at] + word + text[at:]


def _cut(text: bytes, where: int, word: bytes) -> bytes:
    return text[: where % (len(text) + 1)]


def _lines(change: Callable[[list[bytes], int], None]) -> Callable[[bytes, int, bytes], bytes]:
    def done(text: bytes, where: int, word: bytes) -> bytes:
        lines = text.split(b"\n")
        change(lines, where % len(lines))
        return b"\n".join(lines)

    return done


def _drop(lines: list[bytes], at: int) -> None:
    del lines[at]


def _twice(lines: list[bytes], at: int) -> None:
    lines.insert(at, lines[at])


def _swap(lines: list[bytes], at: int) -> None:
    lines[at], lines[-1] = lines[-1], lines[at]


def _line(text: bytes, where: int, word: bytes) -> bytes:
    lines = text.split(b"\n")
    lines.insert(where % (len(lines) + 1), word)
    return b"\n".join(lines)


def _byte(text: bytes, where: int, word: bytes) -> bytes:
    at = where % (len(text) + 1)
    return text[:at] + bytes([where % 256]) + text[at + 1 :]


def _end(text: bytes, where: int, word: bytes) -> bytes:
    return text + word


_CHANGES: dict[str, Callable[[bytes, int, bytes], bytes]] = {
    "value": _value,
    "insert": _insert,
    "inside": _inside,
    "cut": _cut,
    "drop": _lines(_drop),
    "twice": _lines(_twice),
    "swap": _lines(_swap),
    "line": _line,
    "byte": _byte,
    "end": _end,
}


# --- answers of nodes ------------------------------------------------------------------------


@cache
def _seeds() -> dict[str, list[tuple[str, list[tuple[int, bytes]]]]]:
    found: dict[str, list[tuple[str, list[tuple[int, bytes]]]]] = {}
    for row in json.loads(SEEDS.read_text()):
        answers = [(status, text.encode()) for status, text in row["answers"]]
        found.setdefault(row["ask"], []).append((row["begins"], answers))
    return found


@cache
def seeds_of(query: Query[Any]) -> list[tuple[int, bytes]]:
    """Real answers to an ask; to asks of its kind, where it was not asked then."""
    rows = _seeds().get(type(query).__name__, [])
    begins = " ".join(query.script().split())[:50]
    same = [answers for start, answers in rows if start == begins]
    chosen = same[0] if same else [a for _, answers in rows for a in answers]
    return chosen or [(0, b"")]


#: What a node says in many answers at once.
TOKENS = (
    "580.65.06", "580.65", "1.18.2-1", "6.1.0-28-amd64", "/boot/vmlinuz-6.1.0-28-amd64", "containerd.service",
    "/usr/bin/containerd", "/etc/containerd/config.toml", "/etc/containerd", "nvidia-container-toolkit", "nvidia-driver-cuda",
    "nvidia-kernel-open-dkms", "nvidia-fabricmanager", "nvidia-persistenced.service", "libnvidia", "amd64", "debian", "bookworm",
    "12", "x86_64", "0000:1b:00.0", "0000:", "0x2330", "2330", "GPU-", "/var/lib/gpustate", "/proc", "/sys", "192.0.2.1:8080",
    "192.0.2.1", "nouveau", "nvidia", "open", "enabled", "1.6.20", "conf.d", "/dev/nvidia", "nvidia.com/gpu", "initramfs",
)  # fmt: skip

#: For one node: which answer is taken, which asks are answered with something bent, and which word of
#: all its answers is another.
Whims = tuple[int, dict[int, tuple[int, list[Bend]]], list[tuple[str, str, bool]]]
whims: st.SearchStrategy[Whims] = st.tuples(
    st.integers(0, 3),
    st.dictionaries(
        st.integers(0, 45),
        st.tuples(st.sampled_from((0, 0, 0, 0, 1, 66, 124, 127, 255)), st.lists(bends, max_size=5)),
        max_size=6,
    ),
    st.lists(st.tuples(st.sampled_from(TOKENS), words, st.booleans()), max_size=3),
)
RIGHT: Whims = (0, {}, [])


class BentNode:
    """Answers as a node that has gone wrong: as a lab node would, but for some asks."""

    def __init__(self, whims: Whims) -> None:
        self.pick, self.changes, self.everywhere = whims
        self.asked: dict[Query[Any], Answer] = {}

    def __call__(self, queries: Sequence[Query[Any]]) -> list[Answer]:
        return [self._answer(query) for query in queries]

    def _answer(self, query: Query[Any]) -> Answer:
        number = len(self.asked)
        seeds = seeds_of(query)
        status, out = seeds[-1 - self.pick % len(seeds)]
        for token, word, instead in self.everywhere:
            other = word if instead else token + word
            out = out.replace(token.encode(), other.encode("utf-8", "surrogatepass"))
        if number in self.changes:
            status_, changes = self.changes[number]
            status, out = status_ or status, bent(out, changes)
        self.asked[query] = Answer(status, out)
        return self.asked[query]


# --- inventories -----------------------------------------------------------------------------


@cache
def inventory_seeds() -> tuple[tuple[str, bytes], ...]:
    """Name and text of every inventory in the repository that is one file of text."""
    found: dict[str, bytes] = {}
    for folder in ("inventories", "tests/golden/inventory/cases", "docs/examples"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.is_file() and path.suffix in {"", ".ini", ".yml", ".yaml", ".json"}:
                data = path.read_bytes()
                if not data.startswith(b"#!") and 0 < len(data) < 20_000:
                    found[f"{path.parent.name}-{path.name}"] = data
    return tuple(found.items())


LOCAL = b"""all:
  vars: {ansible_user: ops, ansible_host: 127.0.0.1, ansible_port: 9, gpustate_state_folder: /var/lib/gpustate}
  children:
    gpu:
      hosts: {"gpu[01:04]": {ansible_ssh_common_args: -o ProxyJump=bastion}, gpu9: {gpustate: {driver: {branch: 570}}}}
      vars: {ansible_become: true, ansible_become_user: root, x: "{{ inventory_hostname }}"}
"""
INI = b"""[gpu]
gpu[01:03] ansible_host=10.0.0.1 ansible_user=ops ansible_ssh_common_args="-o ProxyCommand='ssh -W %h:%p b'"
gpu7:2222 gpustate_state_folder=/var/lib/gpustate
[gpu:vars]
ansible_become=true
ansible_password=secret
gpustate={"driver": {"branch": 570}}
[all:children]
gpu
"""
LIST = json.dumps(
    {
        "gpu": {"hosts": ["gpu1", "gpu2"], "vars": {"ansible_port": 22}, "children": ["b"]},
        "b": ["gpu3"],
        "_meta": {
            "hostvars": {"gpu1": {"ansible_host": "10.0.0.1", "x": {"__ansible_unsafe": "{{"}}}
        },
    },
    indent=1,
).encode()


@st.composite
def inventory_files(draw: st.DrawFn) -> dict[str, bytes]:
    """Files of an inventory by path: one of text, and sometimes folders of variables."""
    own = (("hosts.yml", LOCAL), ("hosts.ini", INI), ("hosts.json", LIST), ("hosts", INI))
    name, text = draw(st.sampled_from((*own, *own, *inventory_seeds())))
    suffix = Path(name).suffix
    files = {f"hosts{suffix}": bent(text, draw(st.lists(bends, max_size=4)))}
    for folder in draw(st.sets(st.sampled_from(("group_vars", "host_vars")))):
        who = draw(
            st.sampled_from(("all", "gpu.yml", "gpu/a.yml", "gpu01.json", "gpu1", "gpu/b/c"))
        )
        variables = draw(
            st.sampled_from(
                (
                    b"ansible_user: a\nx: {y: [1, '{{ z }}']}\n",
                    b'{"x": 1}',
                    b"$ANSIBLE_VAULT;1.1\n61",
                )
            )
        )
        files[f"{folder}/{who}"] = bent(variables, draw(st.lists(bends, max_size=3)))
    return files


# --- policies --------------------------------------------------------------------------------


@cache
def operator_seeds() -> tuple[bytes, ...]:
    """Files of the GPU Operator: the examples, and NVIDIA's own where they lie beside the repository."""
    upstream = ROOT.parent / "shared" / "upstream"
    paths = [
        *sorted((ROOT / "docs/examples").glob("*.yaml")),
        *sorted((ROOT / "tests/golden/clusterpolicy").glob("*.yaml")),
        *(sorted((upstream / "gpu-operator").glob("*.yaml")) if upstream.is_dir() else ()),
    ]
    return tuple(path.read_bytes() for path in paths if path.stat().st_size < 60_000)


@cache
def operator_trees() -> tuple[Any, ...]:
    """The same as data."""
    return tuple(list(yaml.safe_load_all(text)) for text in operator_seeds())


anything = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), words),
    lambda below: st.one_of(st.lists(below, max_size=3), st.dictionaries(words, below, max_size=3)),
    max_leaves=5,
)


@st.composite
def operator_files(draw: st.DrawFn) -> bytes:
    """A file of the Operator with text changed, or with values of its tree changed."""
    if draw(st.booleans()):
        return bent(draw(st.sampled_from(operator_seeds())), draw(st.lists(bends, max_size=5)))
    tree = json.loads(json.dumps(draw(st.sampled_from(operator_trees())), default=str))
    for _ in range(draw(st.integers(1, 3))):
        _change(draw, tree)
    if draw(st.booleans()):
        return json.dumps(tree[0] if tree else None).encode()
    return yaml.safe_dump_all(tree, allow_unicode=True).encode("utf-8", "surrogatepass")


def _change(draw: st.DrawFn, tree: Any) -> None:
    """Put anything in a place of a tree that is found by going down at random."""
    item = tree
    for _ in range(draw(st.integers(1, 7))):
        keys = list(range(len(item))) if isinstance(item, list) else sorted(item, key=str)
        if not keys:
            return
        key = keys[draw(st.integers(0, 1000)) % len(keys)]
        if isinstance(item[key], dict | list) and item[key] and draw(st.integers(0, 4)):
            item = item[key]
        else:
            item[key] = draw(anything)
            return


# --- journals --------------------------------------------------------------------------------

JOURNAL = tuple(
    json.dumps(row).encode()
    for row in (
        {"e": "start", "t": 1},
        {"e": "intent", "i": 1, "t": 1},
        {"e": "effect", "i": 1, "did": "wrote"},
        {"e": "effect", "i": 1, "did": "rolled-back"},
        {"e": "result", "i": 1, "rc": 1, "t": 2, "out": base64.b64encode(b"E: no\n").decode()},
        {"e": "skip", "state": "b", "because": "a"},
        {"e": "end", "stopped": 0, "t": 3},
    )
)
