"""Lint the text of a file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from gpustate.errors import PolicyError
from gpustate.formats.words import quote
from gpustate.gpu_operator import choice, history, nearest, shape, umbrella
from gpustate.gpu_operator.check import Checker, Problem, Setting
from gpustate.gpu_operator.choice import Choice
from gpustate.gpu_operator.companions import CompanionStore
from gpustate.gpu_operator.desired import READ_THEN, SANDBOX
from gpustate.gpu_operator.documents import Item, plain
from gpustate.gpu_operator.keys import TITLES, Record, Support, fields, records
from gpustate.gpu_operator.lint import between, contradictions, idle, settings, variables
from gpustate.gpu_operator.lint.context import Context
from gpustate.gpu_operator.lint.finding import Finding, Report, Use
from gpustate.gpu_operator.other_files import OtherFiles
from gpustate.gpu_operator.parts import Part, parts
from gpustate.gpu_operator.reading import read

_RULES = {
    "unknown": "unknown-key",
    "newer": "newer-key",
    "misnamed": "misnamed-key",
    "rendered": "rendered",
    "type": "wrong-type",
    "value": "wrong-value",
    "nameless": "wrong-value",
}
#: Values with this many unknown keys, and more of them than known ones, belong to another chart.
_OF_OTHERS = 8
_HEAD = ("apiVersion", "kind", "metadata", "spec", "status")
_CHECKS = (*contradictions.CHECKS, *settings.CHECKS, *variables.CHECKS, *idle.CHECKS)


def lint(text: str, file: str, *, release: str | None = None) -> Report:
    """Lint a file of the GPU Operator.

    Args:
        text: all of it.
        file: its path, for places, and for the folder of ConfigMaps next to it.
        release: of the Operator it is for, such as ``v24.9.0``; by default the newest supported.

    Raises:
        PolicyError: it is not YAML, or not one of the Operator's files.
        UsageError: there is no such release.
    """
    findings: list[Finding] = []
    contexts: list[Context] = []
    companions: list[Item] = []

    def failed(error: PolicyError, item: Item) -> None:
        findings.append(_of_error("kind", error, file, item))

    requested = history.release(release) if release is not None else ""
    file_parts = parts(text, file, failed=failed)
    release_of_file = next((part.release for part in file_parts if part.release), "")
    against = requested or release_of_file or history.newest()
    for part in file_parts:
        plain_values = part.kind == "helm" and part.held is None
        foreign = umbrella.foreign(part.item, file, least=_OF_OTHERS) if plain_values else None
        if foreign is not None:
            findings.append(_of_error("kind", foreign, file, part.item))
        elif part.kind in ("configmap", "secret", "node"):
            companions.append(part.item)
        elif part.kind != "other":
            context, more = _document(part, file, against)
            contexts.append(context)
            findings.extend(more)
    if not contexts and companions and not findings:
        alone, recognised = between.companions_only(file, companions)
        if recognised:
            return Report(file, against, tuple(sorted(alone, key=_order)), ())
    if not contexts and not findings:
        kinds = sorted({part.item.text("kind") for part in file_parts})
        raise PolicyError(
            f"contains no policy, only {', '.join(kinds)}", place=file, fix=shape.EXPECTED
        )
    findings.extend(_together(contexts, CompanionStore(file, tuple(companions))))
    origins = file_parts[0].origins if file_parts else OtherFiles(file)
    findings = [_placed(finding, origins) for finding in findings]
    unused: Mapping[tuple[str, int], str] = {}
    if not any(finding.level == "error" for finding in findings):
        # A missing object has a finding already; the cluster may well have it.
        lacking = {
            (finding.file, finding.line) for finding in findings if finding.rule == "not-found"
        }
        try:
            unused = read(text, file, release=against).unused
        except PolicyError as error:
            refused = _of_error("refused", error, file, Item(None, 1))
            findings.extend([refused] if (refused.file, refused.line) not in lacking else ())
    uses = (
        _use_placed(use, file, origins) for context in contexts for use in _uses(context, unused)
    )
    return Report(file, against, tuple(sorted(findings, key=_order)), tuple(uses))


def _placed(finding: Finding, origins: OtherFiles) -> Finding:
    """The finding at its real place, where values come from another file."""
    if not origins:
        return finding
    file, line = origins.resolved(finding.file, finding.line)
    fix = origins.text(finding.fix) if finding.fix else finding.fix
    return replace(finding, file=file, line=line, message=origins.text(finding.message), fix=fix)


def _use_placed(use: Use, file: str, origins: OtherFiles) -> Use:
    real, line = origins.resolved(file, use.line)
    return replace(use, file=real, line=line) if real != file else use


def _order(finding: Finding) -> tuple[str, int, str]:
    return (finding.file, finding.line, finding.rule)


def _document(part: Part, file: str, release: str) -> tuple[Context, list[Finding]]:
    findings: list[Finding] = []
    item, of_kind = part.item, part.kind
    spec = item if of_kind == "helm" else item.get("spec")
    title = TITLES[of_kind]
    name = item.text("metadata", "name") if of_kind != "helm" else ""
    title = f"{title} {name}" if name else title
    if part.held is not None:
        message = f"read as values of the chart in {part.held.wrapper}"
        if part.release:
            message = f"{message}, for {part.release}"
        findings.append(Finding("wrapped", "", message, file, item.line, None, title))
        findings.extend(_of_note(note, file, item.line, title) for note in part.held.notes)
    elif of_kind != "helm":
        findings.extend(_head(item, file, title))
    if spec is None:
        message = f"the {item.text('kind')} has no spec"
        findings.append(Finding("contradiction", "", message, file, item.line, None, title))
        spec = Item({}, item.line)
    good: list[Setting] = []
    checker = Checker(file, fields(of_kind), of_kind, release=release)
    for entry in checker.walk(spec):
        if isinstance(entry, Setting):
            good.append(entry)
        else:
            findings.extend(_problem(entry, of_kind, file, title, release))
    spec = checker.as_rendered(spec)
    chosen = _chosen(file)
    as_chosen = tuple(choice.applied(setting, chosen) for setting in good)
    context = Context(of_kind, file, title, spec, as_chosen, item, release, chosen.containers)
    findings.extend(finding for setting in as_chosen for finding in _field(setting, context))
    return context, findings


def _chosen(file: str) -> Choice:
    """Which components run as containers; the reader reports an invalid file."""
    try:
        return CompanionStore(file).choice()
    except PolicyError:
        return Choice()


def _of_note(note: str, file: str, line: int, title: str) -> Finding:
    """A warning of the reader about the wrapper: ``file:3: warning: ...``."""
    place, _, message = note.partition(": warning: ")
    where, _, number = place.rpartition(":")
    if where and number.isdigit():
        file, line = where, int(number)
    return Finding("wrapper", "", message or note, file, line, None, title)


def _head(item: Item, file: str, title: str) -> Iterator[Finding]:
    """Unknown keys at the level of ``spec``."""
    for key, child in item.value.items():
        if key not in _HEAD:
            is_spec_key = key in {path.partition(".")[0] for path in fields("clusterpolicy")}
            fix = f"supported keys: {', '.join(_HEAD)}"
            if key.lower() in _HEAD or key.lower() == "apiversion":
                fix = f"did you mean {next(head_key for head_key in _HEAD if head_key.lower() == key.lower())}"
            elif is_spec_key:
                fix = f"move it below spec: spec.{key}"
            message = (
                f"unknown key {quote(key)} next to spec, which the API server would silently drop"
            )
            yield Finding("unknown-key", key, message, file, child.line, fix, title)


def _problem(problem: Problem, kind: str, file: str, title: str, release: str) -> Iterator[Finding]:
    rule, message, fix = _RULES[problem.rule], problem.message, problem.fix
    if problem.rule == "newer":
        message = f"{problem.path} was added in {_since(kind, problem.path)}, and this is {release}"
    if problem.rule == "unknown":
        since = _since(kind, problem.suggestion.path) if problem.suggestion is not None else ""
        if since and (history.number(release) or (0,)) < (history.number(since) or (0,)):
            fix = f"{fix}; that was added in {since}, and this is {release}"
        if problem.suggestion is not None and any(
            problem.path.startswith(wrong) for wrong in nearest.renamed(kind)
        ):
            rule = "misnamed-key"
    elif problem.rule == "misnamed" and problem.suggestion is not None:
        message = f"unknown key {quote(problem.path)}, which the API server would silently drop"
        fix = f"gpustate reads it as {problem.suggestion.path}; rename it"
    yield Finding(rule, problem.path, message, file, problem.item.line, fix, title)


def _since(kind: str, path: str) -> str:
    """The release that added a key or the first key below it; empty if it always existed."""
    tags = [
        record.since
        for record_path, record in records(kind).items()
        if path and (record_path == path or record_path.startswith((f"{path}.", f"{path}[]")))
    ]
    return min(tags, key=lambda tag: history.number(tag) or (0, 0, 0)) if tags else ""


def _between(first: str, release: str, last: str) -> bool:
    numbers = [history.number(tag) or (0, 0, 0) for tag in (first, release, last)]
    return numbers[0] <= numbers[1] <= numbers[2]


def _field(setting: Setting, context: Context) -> Iterator[Finding]:
    """Findings on one setting by itself."""
    record = records(context.kind, context.release)[setting.path]
    looked_at = setting.field.until and _between("1.0.0", context.release, setting.field.until)
    if looked_at or not _asks(setting, record):
        return
    if setting.field.support in (Support.DEAD, Support.DEPRECATED):
        rule = "ignored-key" if setting.field.support is Support.DEAD else "deprecated-key"
        verb = "is ignored" if setting.field.support is Support.DEAD else "is deprecated"
        fix = f"use {setting.field.instead}" if setting.field.instead else None
        when = f" since the release after {setting.field.until}" if setting.field.until else ""
        message = f"{setting.path} {verb}{when}: {setting.field.detail}"
        yield _of_setting(rule, setting, context, message, fix)


def _of_setting(
    rule: str, setting: Setting, context: Context, message: str, fix: str | None = None
) -> Finding:
    line = setting.item.line
    return Finding(rule, setting.path, message, context.file, line, fix, context.title)


def _asks(setting: Setting, record: Record) -> bool:
    """Whether it differs from the default."""
    value = plain(setting.item)
    if setting.path.endswith("env[].value"):
        return False  # the finding on its name is enough
    return value not in (None, "", False, [], {}) and value != record.default


def _uses(context: Context, unused: Mapping[tuple[str, int], str]) -> Iterator[Use]:
    unread = variables.unsupported_variables(context)
    for setting in context.settings:
        record = records(context.kind)[setting.path]
        support, detail = unread.get(id(setting.item), _support(setting, context.release))
        why = unused.get((setting.path, setting.item.line))
        if why and support is Support.HONOURED:
            support, detail = Support.LATER, why
        yield Use(setting.path, setting.item.line, support, detail, record.since, context.title)


def _support(setting: Setting, release: str) -> tuple[Support, str]:
    """The support of a field, for the release that the file is for."""
    field = setting.field
    if not field.until or history.before(field.until, release):
        return field.support, field.detail
    if setting.path in READ_THEN:
        return Support.HONOURED, READ_THEN[setting.path]
    return Support.LATER, f"read by {release}; later releases ignore it"


def _together(contexts: list[Context], store: CompanionStore) -> Iterator[Finding]:
    for context in contexts:
        for check in _CHECKS:
            yield from check(context)
        yield from _later(context)
        yield from between.companions(context, store)
    yield from between.documents(contexts)


def _later(context: Context) -> Iterator[Finding]:
    """Node settings that gpustate does not carry out."""
    for setting in context.settings:
        section = setting.path.partition(".")[0]
        off = f"{section}.enabled" in records(context.kind) and not context.on(section)
        sandbox = section in SANDBOX and not context.on("sandboxWorkloads")
        dra = (
            section == "draDriver"
            and context.kind == "helm"
            and not context.value("gpuCluster.deployCR")
        )
        if setting.field.support is not Support.LATER or off or sandbox or dra:
            continue
        if setting.has_effect and not setting.path.endswith("env[].value"):
            message = f"{setting.path} is not carried out by gpustate: {setting.field.detail}"
            yield _of_setting("not-carried-out", setting, context, message)


def _of_error(rule: str, error: PolicyError, file: str, item: Item) -> Finding:
    place, _, line = (error.place or "").rpartition(":")
    number = int(line) if line.isdigit() else item.line
    finding = Finding(rule, "", error.message, file, number, error.fix)
    return replace(finding, file=place) if line.isdigit() and place else finding
