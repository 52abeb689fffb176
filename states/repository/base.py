"""What the driver's and the toolkit's repository have in common: files, key, pins, package lists."""

from __future__ import annotations

import hashlib
import shlex
import time
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar

from gpustate import Node, NodeFacts, Plan, Step, diff, ops
from gpustate.core.file_queries import FileStat, apart, noted
from gpustate.documents import JsonView
from gpustate.formats import aptsources, openpgp, package_errors
from gpustate.formats.numbers import parse_uint
from gpustate.formats.rpm import is_rpm
from gpustate.ops.access import make_readable
from gpustate.ops.upload import APT_CONF, BUNDLE_FOLDER, FORGET_UPLOAD, LEAVE_BUNDLE, RPM_REPOS
from gpustate.probes.repository_preview import NO_ROOM, RepositoryQuery
from gpustate.states.repository import logins, rpm
from gpustate.states.repository.parameters import Observed, RepositoryParameters
from gpustate.states.repository.where import (
    FOREIGN,
    Repository,
    archive,
    archive_beside,
    archive_lists,
    between_releases,
    fingerprints,
    hosts,
    list_prefixes,
    pin_text,
    place,
    read_if_possible,
    sources_text,
    unread,
)

SOURCE_PATTERNS = (
    "/etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources"
)
KEY_FOLDERS = ("/etc/apt", "/etc/apt/keyrings")
#: Which lists are there, ``empty:`` before those without content; nothing is started for it.
LISTS = (
    "for f in /var/lib/apt/lists/*_Packages*; do "
    'if [ -s "$f" ]; then printf \'%s\\n\' "$f"; else printf \'empty:%s\\n\' "$f"; fi; done'
)


class RepositoryState(RepositoryParameters):
    """What both repositories do; :class:`RepositoryParameters` is what they take."""

    needs: ClassVar[tuple[str, ...]] = ("preflight",)
    implied_parameters: ClassVar[JsonView] = {"unless_offered": True}
    driver: ClassVar[bool] = False  # the driver is in it
    serves: ClassVar[tuple[str, ...]] = ()  # states whose packages come from here
    stable: ClassVar[tuple[str, ...] | None] = (
        *("sources_text", "fingerprints", "key_access", "folder_access", "pin_text"),
        *("lists_read", "foreign", "conflicts", "half_bundle"),
    )

    @classmethod
    def bundle_parameters(cls, url: str) -> dict[str, object]:
        """Parameters with which the packages come from a bundle's repository at ``url``, on the node."""
        return {
            "origin": "mirror",
            "url": url,
            "suite": "/",
            "components": (),
            "key": None,
            "fingerprint": None,
            "exclusive": True,
            "refresh_days": None,
            "unless_offered": False,
            "signed": "nothing",
        }

    @abstractmethod
    def vendor(self, facts: NodeFacts) -> Repository:
        """NVIDIA's repository for a node."""

    @abstractmethod
    def packages(self, os_id: str) -> tuple[str, ...]:
        """Names of the packages that come from here and nowhere else."""

    @abstractmethod
    def chief_packages(self) -> tuple[str, ...]:
        """Names of packages of which a repository that serves a node has one."""

    @property
    def sources_path(self) -> str:
        """The source file."""
        return f"/etc/apt/sources.list.d/gpustate-{self.name}.sources"

    @property
    def key_path(self) -> str:
        """The key file."""
        return f"{KEY_FOLDERS[-1]}/gpustate-{self.name}.asc"

    @property
    def pin_path(self) -> str:
        """The pins."""
        return f"/etc/apt/preferences.d/gpustate-{self.name}"

    @property
    def stamp_path(self) -> str:
        """What the package lists were last read with."""
        return f"/var/lib/gpustate/{self.name}.read"

    def probe(self, node: Node) -> Observed:
        observed = self._probe(node)
        if not self.unless_offered:
            return observed
        offers = node.candidates(*self.chief_packages())
        return replace(
            observed,
            offered=any(offers.values()) and not (observed.sources_text or observed.pin_text),
        )

    def _probe(self, node: Node) -> Observed:
        facts = node.facts()
        private = logins.paths(self.name)
        texts = node.read_texts(f"{SOURCE_PATTERNS} {rpm.SOURCE_PATTERN} {' '.join(private)}")
        stats = node.stats(*private)
        private_texts = {path: texts[path] for path in private if path in texts}
        login = tuple(
            (path, noted(stats[path].otherwise(private=True), text) if path in stats else text)
            for path, text in private_texts.items()
        )
        texts = {path: text for path, text in texts.items() if path not in private_texts}
        key_access, key = apart(node.own_text(self.key_path))
        rpm_key_access, rpm_key = apart(node.own_text(rpm.key_path(self.name)))
        imported = node.read_text(rpm.record_path(self.name)) is not None
        pin, sources_text = node.own_text(self.pin_path), node.own_text(self.sources_path)
        repos = {m: node.own_text(rpm.sources_path(m, self.name)) for m in ("dnf", "zypper")}
        stamp = node.own_text(self.stamp_path, private=True)
        half = {*node.stats(BUNDLE_FOLDER, APT_CONF, RPM_REPOS)} == {BUNDLE_FOLDER}
        lists = node.shell(f"{LISTS}\n{rpm.LISTS}").stdout.split()
        stamp = stamp if self._is_fresh(node) else None
        if is_rpm(facts.package_manager):
            sources_text = repos[facts.package_manager]
            observed = replace(
                self._rpm_observed(facts, texts, sources_text, rpm_key, lists, stamp),
                imported=imported,
                key_access=rpm_key_access,
            )
        else:
            observed = replace(
                self._apt_observed(facts, texts, sources_text, key, lists, stamp),
                key_access=key_access,
                folder_access=_closed(node.stats(*KEY_FOLDERS)),
                pin_text=pin,
            )
        return replace(
            observed,
            half_bundle=half,
            logins=login,
            lists_read=observed.lists_read
            and dict(login) == self._logins(observed.where, observed.manager),
        )

    def _is_fresh(self, node: Node) -> bool:
        """Package lists are not older than they may be."""
        if self.refresh_days is None:
            return True
        answer = node.shell(
            f"echo $(($(date +%s) - $(stat -c %Y {self.stamp_path} || echo 0)))", assume="0"
        )
        return (parse_uint(answer.stdout.strip()) or 0) < self.refresh_days * 86400

    def _apt_observed(
        self,
        facts: NodeFacts,
        texts: dict[str, str],
        sources_text: str | None,
        key: str | None,
        lists: list[str],
        stamp: str | None,
    ) -> Observed:
        sources = aptsources.parse_sources(texts)
        elsewhere = [s for s in sources if s.file != self.sources_path]
        where = self._apt_place(facts, sources, elsewhere)
        wanted_lists = (
            {aptsources.list_name(entry.uri) for entry in where.entries}
            if where.uri
            else archive_lists(facts, sources)
        )
        present = all(
            any(name.startswith(f"/var/lib/apt/lists/{base}_") for name in lists)
            for base in wanted_lists
        )
        return Observed(
            sources_text=sources_text,
            key_text=key,
            fingerprints=fingerprints(key),
            pin_text=None,
            lists_read=present and stamp == self._stamp(where),
            foreign=tuple(place(s) for s in elsewhere if self._is_foreign(s, where)),
            conflicts=tuple(place(s) for s in elsewhere if self._clashes(s, where)),
            cdroms=tuple(place(s) for s in elsewhere if s.uri.startswith("cdrom:")),
            # A foreign repository may be empty.
            unread=unread(elsewhere, [name.removeprefix("empty:") for name in lists]),
            apt=facts.package_manager == "apt",
            where=where,
        )

    def _apt_place(
        self,
        facts: NodeFacts,
        sources: tuple[aptsources.Source, ...],
        elsewhere: list[aptsources.Source],
    ) -> Repository:
        """Where the packages come from, and what other sources of this node mean for that."""
        where = replace(self._where(facts, sources), os_id=facts.os_id)
        if self.driver:
            where = replace(where, beside=archive_beside(facts, where, sources))
        if where.codename:
            alike = [s for s in elsewhere if s.suite.startswith(where.codename)]
            foreign = [s for s in elsewhere if self._is_foreign(s, where)]
            away = dict.fromkeys(s.host for s in (*alike, *foreign) if s.host not in where.hosts)
            # Packages that are kept for a rollback have no host, as have files.
            away.pop("", None)
            where = replace(where, elsewhere=tuple(away))
        return replace(where, problem=between_releases(facts, sources) or where.problem)

    def _rpm_observed(
        self,
        facts: NodeFacts,
        texts: dict[str, str],
        sources_text: str | None,
        key: str | None,
        lists: list[str],
        stamp: str | None,
    ) -> Observed:
        manager = facts.package_manager
        where = replace(self.rpm_place(facts), os_id=facts.os_id)
        elsewhere = rpm.foreign_sources(manager, self.name, texts)
        return Observed(
            sources_text=sources_text,
            key_text=key,
            fingerprints=fingerprints(key),
            pin_text=None,
            lists_read=rpm.is_read(manager, f"gpustate-{self.name}", lists)
            and stamp == self._stamp(where, manager),
            foreign=tuple(
                f"{s.file}:{s.line}: {s.uri}"
                for s in elsewhere
                if rpm.is_foreign(s, where, driver=self.driver) and self._same_packages(s.uri)
            ),
            conflicts=(),
            cdroms=(),
            unread=tuple(s.id for s in elsewhere if not rpm.is_read(manager, s.id, lists)),
            apt=False,
            where=where,
            manager=manager,
        )

    def rpm_place(self, facts: NodeFacts) -> Repository:
        """Where the packages come from, for a node with dnf or zypper."""
        if self.source == "distribution":
            return rpm.archive(facts)
        url = None if self.source == "vendor" else self.url
        repository = rpm.mirror(self.rpm_vendor(facts), url, self.suite)
        chosen = replace(
            repository,
            fingerprint=self.fingerprint or repository.fingerprint,
            sha256="" if self.fingerprint else repository.sha256,
            private=self.login is not None and not rpm.is_bundled(repository.uri),
        )
        return rpm.with_key(chosen, self.name, self.key, self.signed)

    @abstractmethod
    def rpm_vendor(self, facts: NodeFacts) -> Repository:
        """NVIDIA's repository for a node with dnf or zypper."""

    def place(self, facts: NodeFacts, sources: tuple[aptsources.Source, ...]) -> Repository:
        """Where the packages come from, for a node with these source entries."""
        return self._where(facts, sources)

    def _where(self, facts: NodeFacts, sources: tuple[aptsources.Source, ...]) -> Repository:
        if self.source == "distribution":
            return archive(facts, sources, self.sources_path)
        if self.source == "vendor":
            repository = self.vendor(facts)
            key_url = repository.key_url if self.key is None else self.key
            repository = replace(
                repository, key_url=key_url, fingerprint=self.fingerprint or repository.fingerprint
            )
        else:
            repository = Repository(
                uri=(self.url or "").rstrip("/"),
                suite=self.suite,
                components=self.components,
                hosts=(aptsources.uri_host(self.url or ""),),
                key_url=self.key,
                fingerprint=self.fingerprint,
            )
        if self.signed == "nothing":
            return replace(repository, key_url=None, signed="nothing")
        if repository.key_url is None or not repository.key_url.startswith("http"):
            return replace(repository, key_url=None, signed_by=self.key_path)
        return replace(repository, signed_by=f"{self.key_path} {repository.fingerprint}")

    def _is_foreign(self, source: aptsources.Source, where: Repository) -> bool:
        return (
            bool(FOREIGN.search(source.uri))
            and source.uri != where.uri
            and self._same_packages(source.uri)
        )

    def _same_packages(self, uri: str) -> bool:
        return True

    def _clashes(self, source: aptsources.Source, where: Repository) -> bool:
        return any(
            source.key == entry.key and source.signed_by.split() != entry.signed_by.split()
            for entry in where.entries
        )

    def _logins(self, where: Repository, manager: str) -> dict[str, str]:
        """Files with user and password, as they should be."""
        uris = (where.uri or "", where.key_url or "") if where.uri else ()
        below = len(uris) > 1 and uris[1].startswith(f"{uris[0]}/")
        return logins.files(manager, self.name, self.login, uris[:1] if below else uris)

    def _text(self, where: Repository, manager: str) -> str:
        """The source file."""
        if is_rpm(manager):
            return rpm.sources_text(manager, self.name, where)
        return sources_text(where)

    def _stamp(self, where: Repository, manager: str = "apt") -> str:
        parts = (
            self._text(where, manager),
            where.fingerprint or "",
            self.key or "",
            where.uri or "",
        )
        return hashlib.sha256("\0".join(parts).encode()).hexdigest() + "\n"

    def desired(self, observed: Observed) -> Observed:
        where = observed.where
        if observed.offered and not self.absent:
            return observed
        if self.absent or not rpm.is_bundled(where.uri):
            observed = replace(observed, half_bundle=False)
        if self.absent:
            return replace(
                observed,
                sources_text=None,
                key_text=None,
                fingerprints=(),
                pin_text=None,
                lists_read=False,
                imported=False,
                logins=(),
            )
        if where.uri is None:
            return replace(
                observed,
                sources_text=None,
                key_text=None,
                fingerprints=(),
                logins=(),
                pin_text=pin_text(where, self.packages(where.os_id), self.pin_priority),
                lists_read=True,
            )
        return replace(
            observed,
            sources_text=self._text(where, observed.manager),
            key_text=self.key if where.key_url is None and where.signed_by else _kept_key(observed),
            fingerprints=self._wanted_fingerprints(observed),
            key_access="",
            folder_access=observed.folder_access if is_rpm(observed.manager) else "",
            pin_text=None
            if is_rpm(observed.manager)
            else pin_text(where, self.packages(where.os_id), self.pin_priority),
            lists_read=True,
            logins=tuple(self._logins(where, observed.manager).items()),
        )

    def _wanted_fingerprints(self, observed: Observed) -> tuple[str, ...]:
        where = observed.where
        if where.key_url is None:
            return fingerprints(self.key) if where.signed_by else ()
        fingerprint = where.fingerprint or ""
        # A key file may hold more keys; Signed-By names the one that counts.
        imported = any(candidate.endswith(fingerprint) for candidate in observed.fingerprints)
        return observed.fingerprints if imported else (fingerprint,)

    def refuse(self, observed: Observed) -> str | None:
        if not observed.apt and not is_rpm(observed.manager):
            return "no apt, dnf or zypper on this node; exclude the node from this state with only="
        if self.absent or observed.offered:
            return None
        if observed.where.problem:
            return observed.where.problem
        if observed.conflicts:
            return f"{observed.conflicts[0]} is the same repository; {package_errors.SIGNED_BY}"
        if observed.foreign and not self.exclusive:
            return (
                f"NVIDIA packages also come from {', '.join(observed.foreign)}; remove the entry, "
                "or set exclusive: true to keep it and pin its packages to a negative priority"
            )
        if observed.apt and set(hosts(observed.foreign)) & set(observed.where.hosts):
            return (
                f"{observed.foreign[0]} is on the same host as the repository wanted, and pins cannot tell them "
                "apart; remove that entry"
            )
        return None

    def plan(self, observed: Observed) -> Plan:
        plan = diff(
            observed,
            self.desired(observed),
            paths=self._paths(observed),
            secret=frozenset({"logins"}),
            why={"half_bundle": "an incompletely transferred bundle, unused"}
            if self.absent
            else {
                "logins": "user and password are in a file readable by root only",
                "lists_read": "refreshed once with these files",
                "fingerprints": f"the key comes from {observed.where.key_url or 'the policy'}",
                "key_access": "apt reads the key as its own unprivileged user",
                "folder_access": "apt reads the key as its own unprivileged user",
                "half_bundle": "an incompletely transferred bundle, unused",
            },
        )
        if observed.offered and not self.absent:
            return Plan(notes=("other repositories of the node have the packages",))
        notes = [f"pinned away: {place}" for place in observed.foreign] if self.exclusive else []
        notes += [
            f"{place}: apt may prompt for a disc; remove the entry" for place in observed.cdroms
        ]
        return Plan(plan.changes, tuple(notes))

    def preview(self, observed: Observed) -> str:
        where = observed.where
        if self.absent or observed.offered or where.problem:
            return ""
        if rpm.is_bundled(where.uri):
            return "preview_failed 'the bundle is not on the node yet'"
        if is_rpm(observed.manager):
            return self._preview_rpm(observed)
        desired, name = self.desired(observed), f"gpustate-{self.name}"
        lines = [
            f'rm -f "$T/apt/sources.list.d/{name}.sources"',
            _written(f"apt/preferences.d/{name}", desired.pin_text or ""),
        ]
        if where.uri is not None and desired.sources_text:
            if where.key_url is not None:
                url = shlex.quote(where.key_url)
                lines.append(
                    f'o=$(/usr/lib/apt/apt-helper -o Acquire::Retries=0 download-file {url} "$T/{name}.asc" 2>&1) || '
                    f"preview_failed \"the repository key cannot be fetched: $(printf '%s\\n' \"$o\" | grep '^E:')\""
                )
            elif where.signed_by:
                lines.append(_written(f"{name}.asc", self.key or ""))
            lines += [
                'mkdir -p "$T/new"',
                _written(f"new/{name}.sources", desired.sources_text),
                f'sed -i "s|{self.key_path}|$T/{name}.asc|" "$T/new/{name}.sources"',
            ]
        return "\n".join(lines)

    def forecast(self, node: Node, preview: str) -> Plan:
        observed = self.probe(node)
        where = observed.where
        # A login comes with the change, and dnf's and zypper's is not read in other folders.
        login = where.private or dict(observed.logins) != self._logins(where, observed.manager)
        if where.uri is None or rpm.is_bundled(where.uri) or login:
            return Plan()
        reason, fetched = node.query(RepositoryQuery(preview))
        if not reason or reason.startswith(NO_ROOM):
            return Plan()
        _, move = package_errors.find_error(reason) or ("", "check its address, and apply again")
        expired = "".join(
            f"; key {fingerprint} expired on {time.strftime('%Y-%m-%d', time.gmtime(expiry))}"
            for fingerprint, expiry in openpgp.expiries(self.key or fetched).items()
            if expiry < time.time()
        )
        return Plan(refusal=f"{reason}{expired}; {move}")

    def _preview_rpm(self, observed: Observed) -> str:
        if observed.where.private:
            return "preview_failed 'the repository needs a login that is not on the node yet'"
        return _written(f"new/gpustate-{self.name}.repo", self.desired(observed).sources_text or "")

    def _paths(self, observed: Observed) -> dict[str, str]:
        """Files of the fields that are files."""
        if is_rpm(observed.manager):
            return rpm.paths(observed.manager, self.name)
        paths = (self.sources_path, self.key_path, self.pin_path)
        return dict(zip(("sources_text", "key_text", "pin_text"), paths, strict=True))

    def _changed_paths(self, observed: Observed, plan: Plan) -> tuple[str, ...]:
        fields = plan.fields | ({"key_text"} if "fingerprints" in plan.fields else set[str]())
        return tuple(path for field, path in self._paths(observed).items() if field in fields)

    def _apply_rpm(self, observed: Observed, plan: Plan) -> Iterator[Step]:
        desired, paths = self.desired(observed), self._paths(observed)
        yield from self._login_steps(observed, desired, plan)
        if plan.fields & {"key_text", "fingerprints"} and desired.fingerprints:
            if observed.where.key_url is None:
                yield ops.PutText(paths["key_text"], self.key or "", mode=0o644)
            else:
                login = self.login is not None
                yield rpm.fetch_key(self.name, observed.where, observed.manager if login else "")
        elif "key_access" in plan.fields and observed.key_text is not None:
            yield make_readable(paths["key_text"])
        elif plan.fields & {"key_text", "fingerprints"}:
            yield ops.RemoveFile(paths["key_text"])
        if "sources_text" in plan.fields and desired.sources_text is not None:
            yield ops.PutText(paths["sources_text"], desired.sources_text, mode=0o644)
        yield from _leave_bundle(observed, desired.sources_text, plan)
        if "lists_read" in plan.fields:
            if desired.fingerprints:
                yield rpm.import_key(self.name, desired.fingerprints)
            unread = () if rpm.is_bundled(observed.where.uri) else observed.unread
            name = f"gpustate-{self.name}"
            yield ops.RpmUpdate(observed.manager, name, self._changed_paths(observed, plan), unread)
            yield ops.PutText(
                self.stamp_path, self._stamp(observed.where, observed.manager), mode=0o600
            )

    def apply(self, observed: Observed, plan: Plan) -> Iterator[Step]:
        desired = self.desired(observed)
        if self.absent:
            yield from self._take_away(observed, plan)
            return
        if is_rpm(observed.manager):
            yield from self._apply_rpm(observed, plan)
            return
        yield from self._login_steps(observed, desired, plan)
        if "folder_access" in plan.fields:
            yield ops.Run(
                f"for f in {' '.join(KEY_FOLDERS)}; do [ ! -d $f ] || chmod a+rx $f; done; effect made",
                f"make {KEY_FOLDERS[-1]} readable by all users",
                timeout=30,
            )
        if plan.fields & {"key_text", "fingerprints"} and desired.fingerprints:
            yield self._key_step(observed.where)
        elif "key_access" in plan.fields and observed.key_text is not None:
            yield make_readable(self.key_path)
        for field, path in (("sources_text", self.sources_path), ("pin_text", self.pin_path)):
            text = getattr(desired, field)
            if field in plan.fields:
                yield ops.RemoveFile(path) if text is None else ops.PutText(path, text, mode=0o644)
        if plan.fields & {"key_text", "fingerprints"} and not desired.fingerprints:
            yield ops.RemoveFile(self.key_path)
        yield from _leave_bundle(observed, desired.sources_text, plan)
        if "lists_read" in plan.fields:
            # A node with a bundle has no way out: nobody else is asked.
            for file in () if rpm.is_bundled(observed.where.uri) else observed.unread:
                yield read_if_possible(file)
            source = self.sources_path if desired.sources_text else None
            hosts = () if source else tuple(filter(None, observed.where.hosts))
            yield ops.AptUpdate(source, self._changed_paths(observed, plan), hosts)
            yield ops.PutText(self.stamp_path, self._stamp(observed.where), mode=0o600)

    def _login_steps(self, observed: Observed, desired: Observed, plan: Plan) -> Iterator[Step]:
        if "logins" in plan.fields:
            yield from logins.steps(self.name, dict(observed.logins), dict(desired.logins))

    def _key_step(self, where: Repository) -> Step:
        if where.key_url is None:
            return ops.PutText(self.key_path, self.key or "", mode=0o644)
        return ops.Run(
            f't=$R/key.{self.name}; rm -f "$t"\n'
            f'/usr/lib/apt/apt-helper -o Acquire::Retries=2 download-file {shlex.quote(where.key_url)} "$t"\n'
            f'put {self.key_path} 0644 root:root <"$t"; rm -f "$t"',
            f"fetch the repository key {where.key_url}",
            timeout=180,
        )

    def _take_away(self, observed: Observed, plan: Plan) -> Iterator[Step]:
        for field, path in self._paths(observed).items():
            if field in plan.fields:
                yield ops.RemoveOwn(path)
        yield from self._login_steps(observed, self.desired(observed), plan)
        if is_rpm(observed.manager):
            yield from rpm.forget(observed.manager, self.name, self.stamp_path)
            yield from _leave_bundle(observed, None, plan)
            return
        prefixes = list_prefixes(observed.where, shared=self.source == "distribution")
        tail = "".join(f"; rm -f /var/lib/apt/lists/{shlex.quote(base)}*" for base in prefixes)
        yield ops.ForgetOriginal(self.stamp_path)
        yield ops.Run(
            f"rm -f {self.stamp_path}{tail}", f"remove the package lists of {self.name}", timeout=30
        )
        yield from _leave_bundle(observed, None, plan)


def _written(path: str, text: str) -> str:
    """sh that writes a file below ``$T``."""
    return f"printf '%s' {shlex.quote(text)} >\"$T/{path}\""


def _closed(folders: dict[str, FileStat]) -> str:
    """The folders that apt's own user cannot enter, with their modes."""
    return "; ".join(
        f"{path}: mode {stat.mode:04o}"
        for path, stat in folders.items()
        if stat.kind == "dir" and not stat.mode & 0o001
    )


def _leave_bundle(observed: Observed, sources_text: str | None, plan: Plan) -> Iterator[Step]:
    """The bundle goes with the last repository that was in it, and one that has not come whole at once."""
    if "half_bundle" in plan.fields:
        yield ops.Run(FORGET_UPLOAD, "remove package lists that came from a bundle")
    if rpm.is_bundled(observed.sources_text) and not rpm.is_bundled(sources_text):
        yield ops.Run(LEAVE_BUNDLE, "stop using the bundle")


def _kept_key(observed: Observed) -> str | None:
    """A fetched key is judged by its fingerprint; its bytes are the repository's business."""
    return observed.key_text if observed.where.signed_by else None
