# pyright: reportMissingImports=false
"""Write what ansible-core makes of every case; run by hand, with the Python that ansible-core is in.

    python tests/golden/inventory/make_expected.py

The tests read the results only. Each ``CASE.json`` names the version that wrote it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ansible.release
from ansible.inventory.manager import InventoryManager
from ansible.parsing.dataloader import DataLoader
from ansible.plugins.loader import init_plugin_loader
from ansible.template import Templar, trust_as_template
from ansible.vars.manager import VariableManager

HERE = Path(__file__).parent
MADE_UP = {
    "ansible_playbook_python", "environment", "group_names", "groups", "inventory_dir",
    "inventory_file", "inventory_hostname", "inventory_hostname_short", "omit", "playbook_dir",
    "ansible_version", "ansible_facts", "ansible_check_mode", "ansible_diff_mode",
    "ansible_config_file", "ansible_forks", "ansible_inventory_sources", "ansible_limit",
    "ansible_run_tags", "ansible_skip_tags", "ansible_verbosity", "vars", "hostvars",
    "ansible_collection_name", "ansible_local", "ansible_play_hosts",
}


def plain(value: Any) -> Any:
    """Return ``value`` without Ansible's tags, by way of exact types."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            return kind(value)
    return None if value is None else str(value)


def source_of(case: Path) -> Path:
    if (case / "inv").is_dir():
        return case / "inv"
    return next(p for p in sorted(case.iterdir()) if p.is_file() and p.stem in ("hosts", "nodes"))


def expected(case: Path) -> dict[str, Any]:
    loader = DataLoader()
    manager = InventoryManager(loader=loader, sources=[str(source_of(case))])
    variables = VariableManager(loader=loader, inventory=manager)
    result: dict[str, Any] = {
        "ansible_core": ansible.release.__version__,
        "source": str(source_of(case).relative_to(HERE)),
        "groups": {name: [h.name for h in group.get_hosts()] for name, group in manager.groups.items()},
        "nodes": {},
    }
    for host in manager.get_hosts():
        found = variables.get_vars(host=host, include_hostvars=False, stage="all")
        if case.name == "templates":
            templar = Templar(loader=loader, variables=found)
            found = {k: v if k in MADE_UP else templar.template(v) for k, v in found.items()}
        result["nodes"][host.name] = {
            "groups": sorted(g.name for g in host.get_groups() if g.name != "all"),
            "vars": {key: plain(value) for key, value in sorted(found.items()) if key not in MADE_UP},
        }
    patterns = case / "patterns.txt"
    if patterns.exists():
        result["patterns"] = {}
        for pattern in patterns.read_text().split("\n"):
            if pattern:
                manager.subset(pattern)
                result["patterns"][pattern] = [h.name for h in manager.get_hosts()]
                manager.subset(None)
    return result


if __name__ == "__main__":
    init_plugin_loader()
    for case in sorted((HERE / "cases").iterdir()):
        text = json.dumps(expected(case), indent=1, sort_keys=True, ensure_ascii=False)
        (HERE / f"{case.name}.json").write_text(text + "\n", encoding="utf-8")
        print(case.name)
